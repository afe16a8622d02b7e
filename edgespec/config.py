"""The settings that a user may give. Frozen; unknown keys and impossible values are refused."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar

from .errors import ConfigError

T = TypeVar("T")

_LARGEST = 2**31 - 1
_MOST_BIAS = 1e6  # far beyond all logits, and far from the ends of float32
_MOST_THREADS = 512  # of llama.cpp, whose process ends beyond

_ALIASES = {  # Hugging Face's names for the same things
    "num_assistant_tokens": "num_speculative_tokens",
    "assistant_confidence_threshold": "draft_p_min",
    "prompt_lookup_num_tokens": "num_speculative_tokens",
}


def build(cls: type[T], options: Mapping[str, Any]) -> T:
    """Return `cls(**options)` with aliases resolved.

    Raises ConfigError for an unknown key, naming the closest known one.
    """
    if not isinstance(options, Mapping):
        raise ConfigError(f"{cls.__name__} is made of named options, got {options!r:.80}")
    known = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    resolved: dict[str, Any] = {}
    for key, value in options.items():
        name = _ALIASES.get(key, key) if key not in known else key
        if name not in known:
            hint = did_you_mean(key, known)
            raise ConfigError(f"unknown option {key!r} for {cls.__name__}; {hint}")
        if name in resolved:
            raise ConfigError(f"option {name!r} was given twice (once as an alias)")
        resolved[name] = value
    return cls(**resolved)


def did_you_mean(name: str, known: list[str]) -> str:
    """Return "did you mean 'x'?" for the closest known name, or the list of all of them."""
    import difflib

    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"


def _require(
    name: str, value: float | None, low: float, high: float = math.inf, *, whole: bool = False
) -> None:
    """Raise ConfigError unless `value` is None or a number from `low` to `high`.

    Whole numbers go up to that of an int32 where no other bound is given: engines take no more.
    """
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        raise ConfigError(f"{name} must be a number, got {value!r:.80}")
    if whole and not isinstance(value, int):
        raise ConfigError(f"{name} must be a whole number, got {value!r:.80}")
    largest = high if high < math.inf else _LARGEST if whole else sys.float_info.max
    if not (low <= value <= largest or value == high):
        open_ended = high == math.inf and value < low
        bounds = f"at least {low}" if open_ended else f"between {low} and {largest}"
        raise ConfigError(f"{name} must be {bounds}, got {value!r:.80}")


def _several(name: str, values: Any, kind: type[T]) -> tuple[T, ...]:
    """Return one or several values of a kind as a tuple. Raises ConfigError for another kind."""
    one = isinstance(values, (kind, Mapping)) or not isinstance(values, Iterable)
    all_values = (values,) if one else tuple(values)
    wrong = [
        value for value in all_values if not isinstance(value, kind) or isinstance(value, bool)
    ]
    if wrong:
        raise ConfigError(f"{name} must be several {kind.__name__}, got {wrong[0]!r}")
    return all_values


def _paths(name: str, values: Any) -> tuple[str, ...]:
    """Return one or several paths as texts. Raises ConfigError for anything else."""
    one = isinstance(values, (str, os.PathLike)) or not isinstance(values, Iterable)
    try:
        return tuple(os.fsdecode(value) for value in ((values,) if one else values))
    except TypeError:
        raise ConfigError(f"{name} must be paths, got {values!r:.80}") from None


def _check_kinds(settings: Any) -> None:
    """Raise ConfigError for a field that takes a bool or a text and has none, or a number and has
    None.
    """
    for known in fields(settings):
        value, kind = getattr(settings, known.name), str(known.type)
        if kind.startswith("bool") and not isinstance(value, bool):
            if value is not None or "None" not in kind:
                raise ConfigError(f"{known.name} must be True or False, got {value!r:.80}")
        elif kind in ("int", "float") and value is None:
            raise ConfigError(f"{known.name} must be a number, got None; leave it out")
        elif kind == "str" and not isinstance(value, str):
            raise ConfigError(f"{known.name} must be text, got {value!r:.80}")


def _check_bias(bias: Any) -> None:
    if not isinstance(bias, Mapping):
        raise ConfigError(f"logit_bias must map token ids to numbers, got {bias!r}")
    for token, value in bias.items():
        _require("a token id in logit_bias", token, 0, whole=True)
        if value is None:
            raise ConfigError(f"logit_bias of token {token} must be a number, got None")
        if value != -math.inf:
            _require(f"logit_bias of token {token}", value, -_MOST_BIAS, _MOST_BIAS)


@dataclass(frozen=True, slots=True)
class RepetitionDetection:
    """Says when an answer that repeats itself ends, with the finish reason "repetition".

    As in vLLM, it ends at the first token with which its last tokens are a span of min_pattern_size
    to max_pattern_size tokens, min_count times in a row; max_pattern_size 0 is off. min_tokens:
    what repeats has at least so many tokens in all, which lets short spans repeat more often.
    """

    max_pattern_size: int = 0
    min_pattern_size: int = 1
    min_count: int = 0
    min_tokens: int = 0

    def __post_init__(self) -> None:
        _check_kinds(self)
        _require("max_pattern_size", self.max_pattern_size, 0, 1024, whole=True)
        _require("min_pattern_size", self.min_pattern_size, 0, whole=True)
        _require("min_count", self.min_count, 2 if self.max_pattern_size else 0, whole=True)
        _require("min_tokens", self.min_tokens, 0, whole=True)
        object.__setattr__(self, "min_pattern_size", max(1, self.min_pattern_size))  # vLLM sends 0
        if 0 < self.max_pattern_size < self.min_pattern_size:
            raise ConfigError(
                f"min_pattern_size {self.min_pattern_size} is more than max_pattern_size "
                f"{self.max_pattern_size}"
            )

    @classmethod
    def endless(cls) -> RepetitionDetection:
        """Return the rule of `edgespec chat` and `run`: at least 512 tokens that are one span of at
        most 128, at least 24 times in a row. One of 9,791 source and data files has such a place.
        """
        return cls(max_pattern_size=128, min_count=24, min_tokens=512)


CONSTRAINTS = ("schema", "regex", "grammar", "choices")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The settings of one request.

    Transforms are applied in this order: logit_bias, repetition_penalty (prompt and output),
    presence_penalty and frequency_penalty (output), temperature, top_k, top_p, min_p.
    temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 are off. Where a request to an engine does
    not name these and the penalties, it gets those of `Engine.sampling`. logit_bias maps token ids
    to what is added to their logits (-inf forbids). seed None: a fresh one every time.

    max_tokens None: until the context is full. time_limit_s: seconds, counted from the call;
    what is there by then is returned, and 0 or less means that no time is left. stop: strings that
    end the text and are not part of it.
    logprobs: None, or how many of the likeliest tokens to report beside each emitted one.
    disable_spec_decode and num_draft_tokens switch or bound speculation for this request.
    repetition_detection: when an answer that repeats itself ends, a RepetitionDetection or a
    mapping of its fields; None never ends one. It does not end an answer that has a form.

    One of these says what an answer has to look like, to its last token; max_tokens may cut it.
    schema: a JSON schema (a mapping, or its text), or a type whose values answers are: a pydantic
    model, dataclass, msgspec Struct or TypedDict. regex: a regular expression for all of it.
    grammar: a grammar in Lark's form as llguidance reads it, or in llama.cpp's (GBNF). choices:
    texts, one of which it is.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int | None = None
    time_limit_s: float | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    disable_spec_decode: bool = False
    num_draft_tokens: int | None = None
    repetition_detection: RepetitionDetection | None = None
    schema: Any = None
    regex: str | None = None
    grammar: str | None = None
    choices: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        _check_kinds(self)
        self._check_constraint()
        _require("temperature", self.temperature, 0)
        _require("top_k", self.top_k, 0, whole=True)
        _require("top_p", self.top_p, 0, 1)
        _require("min_p", self.min_p, 0, 1)
        _require("repetition_penalty", self.repetition_penalty, 0.01, 100)
        _require("presence_penalty", self.presence_penalty, -100, 100)
        _require("frequency_penalty", self.frequency_penalty, -100, 100)
        _require("seed", self.seed, 0, 2**64 - 1, whole=True)
        _require("max_tokens", self.max_tokens, 1, whole=True)
        _require("time_limit_s", self.time_limit_s, -math.inf)
        if self.time_limit_s is not None:  # a deadline that has passed: no time is left
            object.__setattr__(self, "time_limit_s", max(self.time_limit_s, 0))
        _require("logprobs", self.logprobs, 0, 100, whole=True)
        _require("num_draft_tokens", self.num_draft_tokens, 0, whole=True)
        if self.temperature == math.inf:
            raise ConfigError("temperature must be finite, got inf")
        if self.top_p == 0:
            raise ConfigError("top_p must be above 0; use temperature=0 for greedy decoding")
        stop = _several("stop", self.stop, str)
        if "" in stop:
            raise ConfigError("a stop string must not be empty")
        object.__setattr__(self, "stop", stop)
        ids = _several("stop_token_ids", self.stop_token_ids, int)
        object.__setattr__(self, "stop_token_ids", ids)
        _check_bias(self.logit_bias)
        rule = self.repetition_detection
        if rule is not None and not isinstance(rule, RepetitionDetection):
            object.__setattr__(self, "repetition_detection", build(RepetitionDetection, rule))

    def _check_constraint(self) -> None:
        if self.choices is not None:
            object.__setattr__(self, "choices", _several("choices", self.choices, str))
            if not self.choices:
                raise ConfigError("choices is empty; give at least one text, or leave it out")
        for name in ("regex", "grammar"):
            if (value := getattr(self, name)) is not None and not isinstance(value, str):
                raise ConfigError(f"{name} must be text, got {value!r:.80}")
        given = [name for name in CONSTRAINTS if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)} were given; an answer follows one of them")
        others = [n for n in ("stop", "stop_token_ids", "ignore_eos") if getattr(self, n)]
        if given and others:
            raise ConfigError(
                f"{given[0]} and {others[0]} were given: an answer under {given[0]} ends where it "
                f"is complete; leave {others[0]} out"
            )

    @property
    def is_constrained(self) -> bool:
        """True if the answer has to follow a schema, an expression, a grammar or choices."""
        return any(getattr(self, name) is not None for name in CONSTRAINTS)

    @property
    def ends_repetition(self) -> bool:
        """True if an answer that repeats itself is ended."""
        rule = self.repetition_detection
        return rule is not None and rule.max_pattern_size > 0 and not self.is_constrained

    @property
    def may_draft(self) -> bool:
        """True unless the request forbids speculation."""
        return not self.disable_spec_decode and self.num_draft_tokens != 0

    @property
    def has_penalties(self) -> bool:
        """True if a row depends on which tokens came before it."""
        return bool(self.repetition_penalty != 1 or self.presence_penalty or self.frequency_penalty)


DraftMemory = Literal["off", "process", "disk"]
Remember = Literal["all", "rates", "nothing"]


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """The settings of speculation; names after vLLM, Hugging Face's as aliases.

    method: names of drafters separated by commas, "auto" or "none" (plain decoding). "suffix"
    (alias "ngram") is prompt lookup, "draft_model" a draft model (`model`, or one that the
    catalogue suggests); "auto" uses both, if there is a draft model. `edgespec.drafters.names()`
    lists all, those of other packages included. policy: what decides how much is drafted, one of
    `edgespec.policies.names()`; "auto" is "adaptive", or "fixed" where a depth is named. options:
    settings of drafters and policy that have no field here. Names and options are checked when a
    model is loaded.
    num_speculative_tokens, draft_p_min: without them every step decides from measured costs what
    to draft and how much. With one of them the depth is fixed: at most so many tokens (4), and
    a draft ends where its estimated acceptance probability (lookup) or the largest probability of
    the draft model's row falls below draft_p_min (0.75). min_speculative_tokens: shorter drafts
    of a fixed depth are not worth a step.
    prompt_lookup_min: shortest match, in tokens, that prompt lookup drafts from; by default 2, and
    1 if a draft of one token is free (ONNX models whose single tokens are evaluated as two).
    acceptance: the rule for drafts drawn at temperature > 0, one of
    `edgespec.sampling.rules.names()`. "block" is the default, and means
    "coupled" for requests that give a seed, so that the same seed gives the same text;
    "coupled" makes the text a function of seed and target alone; "deterministic" lets the
    draft model propose its likeliest token instead of drawing one.
    draft_window: how many of a text's latest tokens a draft model sees beside the first few; 0 for
    all that its context holds, None for what measured costs say.
    remember: what is kept on this disk for later processes, unless depths are fixed: the "rates" at
    which drafts came true, by kind of evidence, "all" the tokens that likely follow one as well, or
    "nothing".
    draft_corpus: files and folders to draft from as well; None takes what `edgespec corpus add` has
    added for the model's vocabulary, () nothing. draft_memory: earlier answers to draft from: "off"
    for those of the conversation only, "process" for all that this engine gave, "disk" for those
    of earlier processes as well, and then answers are kept on this disk. Answers for an `owner`
    are used for that one only, and are not kept on disk.
    """

    method: str = "auto"
    model: str | None = None
    num_speculative_tokens: int | None = None
    min_speculative_tokens: int = 1
    draft_p_min: float | None = None
    prompt_lookup_min: int | None = None
    acceptance: str = "block"
    draft_window: int | None = None
    remember: Remember = "all"
    draft_corpus: tuple[str, ...] | None = None
    draft_memory: DraftMemory = "process"
    options: Mapping[str, Any] = field(default_factory=dict)
    policy: str = "auto"

    @property
    def has_memory(self) -> bool:
        """True if there may be documents or earlier answers to draft from."""
        return self.draft_memory != "off" or self.draft_corpus != ()

    @property
    def fixed(self) -> tuple[int, float] | None:
        """The pair (depth, least probability) if they are fixed, None if each step decides."""
        if self.method == "none" or self.num_speculative_tokens == 0:
            return 0, 0.0
        depth, p_min = self.num_speculative_tokens, self.draft_p_min
        names_one = depth is not None or p_min is not None
        if not (self.policy == "fixed" or (self.policy == "auto" and names_one)):
            return None
        return 4 if depth is None else depth, 0.75 if p_min is None else p_min

    def __post_init__(self) -> None:
        for name in ("method", "policy", "acceptance"):
            if not isinstance(value := getattr(self, name), str):
                raise ConfigError(f"{name} must be a name, got {value!r}")
        if not isinstance(self.options, Mapping):
            raise ConfigError(f"options must map names to values, got {self.options!r}")
        for name, known in (
            ("remember", Remember), ("draft_memory", DraftMemory),
        ):  # fmt: skip
            if (value := getattr(self, name)) not in (all_known := known.__args__):  # type: ignore[attr-defined]
                raise ConfigError(f"unknown {name} {value!r}; known: {', '.join(all_known)}")
        if self.draft_corpus is not None:
            object.__setattr__(self, "draft_corpus", _paths("draft_corpus", self.draft_corpus))
        _require("num_speculative_tokens", self.num_speculative_tokens, 0, 31, whole=True)
        _require("min_speculative_tokens", self.min_speculative_tokens, 0, 31, whole=True)
        _require("draft_p_min", self.draft_p_min, 0, 1)
        _require("prompt_lookup_min", self.prompt_lookup_min, 1, whole=True)
        _require("draft_window", self.draft_window, 0, whole=True)
        depth, _ = self.fixed or (0, None)
        if 0 < depth < self.min_speculative_tokens:
            raise ConfigError(
                f"min_speculative_tokens {self.min_speculative_tokens} is more than the "
                f"{depth} that are drafted at most: nothing would be drafted"
            )


Priority = Literal["low", "normal", "high"]
KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The settings with which a model is loaded.

    n_ctx: context in tokens, 0 = what the model was trained for, at most 8192.
    n_threads, n_threads_batch: for single steps and for prefill; 0 = the physical cores.
    max_cores: most threads of any kind, whatever else was given or tuned; 0 = no limit.
    dynamic_threads: fewer threads while other programs use the cores, and all of them again when
    they have left; False: always the numbers above. With batch_invariant it changes between
    requests only. GGUF only. prio: priority of this process, for all of its models; "high" needs
    permission.
    n_gpu_layers: -1 = everything that fits where the build can offload. device: the GPUs to use, by
    llama.cpp's names with commas between them ("Vulkan0"), or "none"; "" for those with memory of
    their own; GGUF only. n_batch: tokens a prefill chunk. on_busy: what a second request
    does while one is running.
    flash_attn, type_k, type_v, use_extra_bufts, n_threads_batch: GGUF only.
    requantize: a draft model that is a GGUF may be drafted with as Q4_0 where that is faster, which
    CPUs often are; the copy is made once (`requantization`). Targets are always as they are.
    provider: ONNX only: "cpu", "cuda" or another one of onnxruntime's; "auto" is CUDA where the
    build has it.
    batch_invariant: rows that do not depend on how many tokens are evaluated at once, so that
    text with and without speculation is the same to the last near tie; on CPUs about a fifth
    slower. A GGUF runs with flash attention, without repacked weights and with bf16 values in the
    cache, and drafts are kept as short as rows stay equal; an ONNX graph evaluates single tokens
    as two where its kernels treat them otherwise.
    """

    n_ctx: int = 0
    n_threads: int = 0
    n_threads_batch: int = 0
    max_cores: int = 0
    dynamic_threads: bool = True
    prio: Priority = "normal"
    n_gpu_layers: int = -1
    device: str = ""
    n_batch: int = 512
    flash_attn: Literal["auto", "on", "off"] = "auto"
    type_k: str = "f16"
    type_v: str = "f16"
    use_extra_bufts: bool = True
    requantize: bool = True
    provider: str = "auto"
    batch_invariant: bool = False
    on_busy: Literal["wait", "error"] = "wait"

    def __post_init__(self) -> None:
        _check_kinds(self)
        _require("n_ctx", self.n_ctx, 0, whole=True)
        _require("n_threads", self.n_threads, 0, _MOST_THREADS, whole=True)
        _require("n_threads_batch", self.n_threads_batch, 0, _MOST_THREADS, whole=True)
        _require("max_cores", self.max_cores, 0, whole=True)
        _require("n_gpu_layers", self.n_gpu_layers, -1, whole=True)
        _require("n_batch", self.n_batch, 32, whole=True)
        for name, value, known in (
            ("type_k", self.type_k, KV_TYPES),
            ("type_v", self.type_v, KV_TYPES),
            ("flash_attn", self.flash_attn, ("auto", "on", "off")),
            ("on_busy", self.on_busy, ("wait", "error")),
            ("prio", self.prio, Priority.__args__),  # type: ignore[attr-defined]
        ):
            if value not in known:
                raise ConfigError(f"unknown {name} {value!r}; known: {', '.join(known)}")
        if self.batch_invariant and self.flash_attn == "off":
            raise ConfigError("batch_invariant needs flash attention, but flash_attn is 'off'")
        if self.flash_attn == "off" and self.type_v not in ("f32", "f16", "bf16"):
            raise ConfigError(
                f"a KV cache with values in {self.type_v} needs flash attention, but flash_attn is "
                "'off'"
            )

    def threads(self, cores: int) -> tuple[int, int]:
        """Return the threads for single steps and for prefill, on so many cores."""
        most = self.max_cores or math.inf
        one, many = self.n_threads or cores, self.n_threads_batch or self.n_threads or cores
        return int(min(one, most)), int(min(many, most))


NOT_SPEED = ("on_busy", "n_ctx", "requantize", "max_cores", "dynamic_threads", "prio")
"""Fields of EngineConfig that say nothing about how fast a model is, once its threads are known."""


@dataclass(frozen=True, slots=True)
class RemoteConfig:
    """The address of a target on another machine, and what to use beside it.

    url: ws:// or wss:// of `edgespec serve`; sglang+http://, vllm+http:// or openai+http:// (and
    https) of other inference servers. api_key: sent as a bearer token; None for servers without
    keys. model: the name that the server must have, "" for the one that it has. timeout_s:
    seconds that a server may be silent or away before VerifierUnavailable.
    local: a model to go on with while the server is away, or slower being the same model.
    tokenizer: a file whose vocabulary is the server's, needed where neither `local` nor a draft
    model is given; its weights are not read. n_ctx: tokens of the server's context, for servers
    of others that do not tell it; 0 takes what the server tells.
    """

    url: str
    api_key: str | None = field(default=None, repr=False)
    model: str = ""
    timeout_s: float = 10.0
    local: str | os.PathLike[str] | None = None
    tokenizer: str | os.PathLike[str] | None = None
    n_ctx: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.url, str) or "://" not in self.url:
            raise ConfigError(
                f"{self.url!r} is no address of a verifier; give one such as ws://host:port, "
                "wss://host:port, vllm+http://host:port or sglang+http://host:port"
            )
        key = self.api_key or ""
        if not isinstance(key, str) or not key.isascii() or not key.isprintable() or " " in key:
            raise ConfigError("api_key must be printable ASCII without spaces; check its file")
        if not isinstance(self.model, str):
            raise ConfigError(f"model must be a name on the server, got {self.model!r}")
        _require("timeout_s", self.timeout_s, 0)
        if not 0 < self.timeout_s < math.inf:
            raise ConfigError(f"timeout_s must be above 0 and finite, got {self.timeout_s!r}")
        for name, value in (("local", self.local), ("tokenizer", self.tokenizer)):
            if value is not None and not isinstance(value, (str, os.PathLike)):
                raise ConfigError(f"{name} must be a model's name or file, got {value!r}")
        _require("n_ctx", self.n_ctx, 0, whole=True)
