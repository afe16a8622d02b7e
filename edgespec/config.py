"""The user's settings, as frozen dataclasses. Unknown keys and impossible values are refused."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal, TypeVar

from msgspec import Meta

from .errors import ConfigError
from .setting import Setting, check, described

T = TypeVar("T")

OnBusy = Literal["wait", "error", "replace"]
"""What a request does if all slots are taken: wait for one; be refused with EngineBusy; or cancel
the running request of its owner that began first, and take its slot. If its owner has no running
request, it waits.
"""

_MOST_BIAS = 1e6  # far beyond all logits, and far below the largest float32
_MOST_THREADS = 512  # llama.cpp's limit: with more threads it ends the process
_SHAPES = {"shapes_rows": True}

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


def _several(name: str, values: Any, kind: type[T]) -> tuple[T, ...]:
    """Return one value or several as a tuple. Raises ConfigError if one is not a `kind`."""
    one = isinstance(values, (kind, Mapping)) or not isinstance(values, Iterable)
    all_values = (values,) if one else tuple(values)
    wrong = [
        value for value in all_values if not isinstance(value, kind) or isinstance(value, bool)
    ]
    if wrong:
        raise ConfigError(f"{name} must be several {kind.__name__}, got {wrong[0]!r}")
    return all_values


def _paths(name: str, values: Any) -> tuple[str, ...]:
    """Return one path or several paths as strings. Raises ConfigError for anything else."""
    one = isinstance(values, (str, os.PathLike)) or not isinstance(values, Iterable)
    try:
        return tuple(os.fsdecode(value) for value in ((values,) if one else values))
    except TypeError:
        raise ConfigError(f"{name} must be paths, got {values!r:.80}") from None


def _check_bias(bias: Any) -> None:
    if not isinstance(bias, Mapping):
        raise ConfigError(f"logit_bias must map token ids to numbers, got {bias!r}")
    for token, value in bias.items():
        Setting("a token id in logit_bias", int, ge=0).check(token)
        if value != -math.inf:
            of_token = f"logit_bias of token {token}"
            Setting(of_token, float, ge=-_MOST_BIAS, le=_MOST_BIAS).check(value)


@dataclass(frozen=True, slots=True)
class RepetitionDetection:
    """The rule that ends an answer that repeats itself, with the finish reason "repetition".

    As in vLLM, the answer ends as soon as its last tokens are one span of min_pattern_size to
    max_pattern_size tokens, repeated min_count times in a row. With min_tokens, short spans must
    repeat more often: all repetitions together must have at least that many tokens.
    """

    max_pattern_size: Annotated[
        int,
        Meta(
            ge=0,
            le=1024,
            description="Largest number of tokens in the repeated span; 0 turns the rule off.",
        ),
    ] = 0
    min_pattern_size: Annotated[
        int, Meta(ge=0, le=1024, description="Smallest number of tokens in the span.")
    ] = 1
    min_count: Annotated[
        int, Meta(ge=0, description="How many times in a row the span must occur, at least 2.")
    ] = 0
    min_tokens: Annotated[
        int,
        Meta(
            ge=0,
            description="Smallest number of tokens in all repetitions together; vLLM has no such "
            "setting.",
        ),
    ] = 0

    def __post_init__(self) -> None:
        check(self)
        if self.max_pattern_size and self.min_count < 2:
            raise ConfigError(f"min_count must be at least 2, got {self.min_count}")
        object.__setattr__(self, "min_pattern_size", max(1, self.min_pattern_size))  # vLLM sends 0
        if 0 < self.max_pattern_size < self.min_pattern_size:
            raise ConfigError(
                f"min_pattern_size {self.min_pattern_size} is more than max_pattern_size "
                f"{self.max_pattern_size}"
            )

    @classmethod
    def endless(cls) -> RepetitionDetection:
        """Return the rule of `edgespec chat` and `run`: one span of at most 128 tokens, at least 24
        times in a row, at least 512 tokens in all. Of 9,791 source and data files, one has such a
        repetition.
        """
        return cls(max_pattern_size=128, min_count=24, min_tokens=512)


CONSTRAINTS = ("schema", "regex", "grammar", "choices")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The settings of one request.

    Transforms are applied in this order: logit_bias, repetition_penalty (prompt and output),
    presence_penalty and frequency_penalty (output), temperature, top_k, top_p, min_p. All of these
    except logit_bias have defaults in `Engine.sampling`, for requests that do not name them.

    Without max_tokens an answer can fill the context. time_limit_s counts from the call; 0 or less
    means that no time is left. A request has at most one of schema, regex, grammar and choices. The
    one given constrains the whole answer, but max_tokens may still cut the answer.
    """

    temperature: Annotated[
        float,
        Meta(
            ge=0,
            le=100,
            extra=_SHAPES,
            description="Temperature; 0 always takes the most likely token.",
        ),
    ] = 0.0
    top_k: Annotated[
        int,
        Meta(ge=-1, extra=_SHAPES, description="Keep the K most likely tokens, 0 or -1 for all."),
    ] = 0
    top_p: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            extra=_SHAPES,
            description="Keep the most likely tokens that together have this probability; 0 always "
            "takes the most likely token.",
        ),
    ] = 1.0
    min_p: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            extra=_SHAPES,
            description="Drop tokens less likely than this fraction of the most likely token's "
            "probability.",
        ),
    ] = 0.0
    repetition_penalty: Annotated[
        float,
        Meta(
            ge=0.01,
            le=100,
            extra=_SHAPES,
            description="Divide positive logits of tokens that have already occurred by this "
            "number, and multiply negative ones; 1 for no penalty.",
        ),
    ] = 1.0
    presence_penalty: Annotated[
        float,
        Meta(
            ge=-100,
            le=100,
            extra=_SHAPES,
            description="Subtract this from the logits of all tokens that are already in the "
            "answer.",
        ),
    ] = 0.0
    frequency_penalty: Annotated[
        float,
        Meta(
            ge=-100,
            le=100,
            extra=_SHAPES,
            description="Subtract this from the logit of a token for each time that it is already "
            "in the answer.",
        ),
    ] = 0.0
    logit_bias: Annotated[
        Mapping[int, float],
        Meta(
            description="Token ids, each with a value that is added to its logit; -inf forbids the "
            "token."
        ),
    ] = field(default_factory=dict)
    seed: Annotated[
        int | None,
        Meta(
            ge=0,
            le=2**64 - 1,
            description="Seed of the random numbers: the same seed gives the same text, with and "
            "without speculation.",
        ),
    ] = None
    max_tokens: Annotated[
        int | None,
        Meta(ge=1, description="Largest number of tokens in the answer."),
    ] = None
    time_limit_s: Annotated[
        float | None,
        Meta(
            extra={"on_the_wire": {"ge": 0, "le": 86400}},
            description="End the answer after this many seconds, and keep what was generated by "
            "then.",
        ),
    ] = None
    stop: Annotated[
        tuple[str, ...],
        Meta(
            description="Texts that end the answer and are not part of it. They do not count in "
            "reasoning; in an answer that follows a schema, they count in texts that are values."
        ),
    ] = ()
    stop_token_ids: Annotated[
        tuple[int, ...], Meta(description="Ids of tokens that end the answer.")
    ] = ()
    ignore_eos: Annotated[
        bool, Meta(description="Continue where the model would end its answer.")
    ] = False
    logprobs: Annotated[
        int | None,
        Meta(
            ge=0,
            le=100,
            description="Number of most likely tokens to report for each token of the answer.",
        ),
    ] = None
    disable_spec_decode: Annotated[
        bool, Meta(description="Decode this request without speculation.")
    ] = False
    num_draft_tokens: Annotated[
        int | None,
        Meta(ge=0, le=1024, description="Largest number of tokens to draft in a step, 0 for none."),
    ] = None
    repetition_detection: Annotated[
        RepetitionDetection | None,
        Meta(
            description="End an answer that repeats itself, by vLLM's rule. A constrained answer "
            "is not ended."
        ),
    ] = None
    schema: Annotated[
        Any,
        Meta(
            description="The answer is JSON that follows this JSON schema. The schema is a "
            "mapping, its text, or a type: a pydantic model, dataclass, msgspec Struct or "
            "TypedDict."
        ),
    ] = None
    additional_properties: Annotated[
        bool,
        Meta(
            description="Objects may have fields that their schema does not name, where the schema "
            "does not say whether they may (JSON Schema's own default)."
        ),
    ] = False
    regex: Annotated[
        str | None, Meta(description="The whole answer matches this regular expression.")
    ] = None
    grammar: Annotated[
        str | None,
        Meta(
            description="The answer follows this grammar, in the format of llama.cpp (GBNF) or of "
            "Lark."
        ),
    ] = None
    choices: Annotated[
        tuple[str, ...] | None, Meta(description="The answer is one of these texts.")
    ] = None

    def __post_init__(self) -> None:
        check(self)
        object.__setattr__(self, "top_k", max(0, self.top_k))
        if self.top_p == 0:  # no token but the most likely one
            object.__setattr__(self, "temperature", 0.0)
            object.__setattr__(self, "top_p", 1.0)
        self._check_constraint()
        if self.time_limit_s is not None:  # a deadline that has passed: no time is left
            object.__setattr__(self, "time_limit_s", max(self.time_limit_s, 0))
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
        given = [name for name in CONSTRAINTS if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)} were given; an answer follows one of them")
        others = [n for n in ("stop_token_ids", "ignore_eos") if getattr(self, n)]
        if given and others:
            raise ConfigError(
                f"{given[0]} and {others[0]} were given: an answer under {given[0]} ends where it "
                f"is complete; leave {others[0]} out"
            )

    @property
    def is_constrained(self) -> bool:
        """True if the answer has to follow a schema, a regex, a grammar or choices."""
        return any(getattr(self, name) is not None for name in CONSTRAINTS)

    @property
    def ends_repetition(self) -> bool:
        """True if an answer that repeats itself is to be ended early."""
        rule = self.repetition_detection
        return rule is not None and rule.max_pattern_size > 0 and not self.is_constrained

    @property
    def may_draft(self) -> bool:
        """True unless the request forbids speculation."""
        return not self.disable_spec_decode and self.num_draft_tokens != 0

    @property
    def has_penalties(self) -> bool:
        """True if a penalty is set, so that logits are changed depending on earlier tokens."""
        return bool(self.repetition_penalty != 1 or self.presence_penalty or self.frequency_penalty)


DraftMemory = Literal["off", "process", "disk"]
Remember = Literal["all", "rates", "nothing"]


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """The settings of speculation, with vLLM's names; Hugging Face's names are aliases.

    `edgespec.drafters.names()`, `edgespec.policies.names()` and `edgespec.rules.names()` list the
    values of method, policy and acceptance; names and options are checked when a model is loaded.
    Without num_speculative_tokens and draft_p_min, every step decides from measured costs which
    tokens to draft and how many; with one of them, the depth is fixed.

    The acceptance rule "coupled" makes the text a function of seed and target alone. "block", the
    default, acts as "coupled" for requests with a seed, so that the same seed gives the same text.
    "deterministic" lets the draft model propose its likeliest token instead of drawing one. Answers
    for an `owner` are used as drafts only for the same owner, and are not stored on disk.
    """

    method: Annotated[
        str,
        Meta(
            description="The drafters to use, separated by commas; auto chooses at every step, "
            "none is plain decoding. suffix (also called ngram) is prompt lookup, draft_model uses "
            "a draft model."
        ),
    ] = "auto"
    model: Annotated[
        str | None,
        Meta(description="The draft model; by default, one that the catalogue suggests."),
    ] = None
    num_speculative_tokens: Annotated[
        int | None,
        Meta(
            ge=0,
            le=31,
            description="Largest number of tokens to draft in a step; with a fixed depth, 4 by "
            "default.",
        ),
    ] = None
    min_speculative_tokens: Annotated[
        int,
        Meta(
            ge=0,
            le=31,
            description="With a fixed depth, do not use drafts that have fewer tokens than this.",
        ),
    ] = 1
    draft_p_min: Annotated[
        float | None,
        Meta(
            ge=0,
            le=1,
            description="End a draft once its tokens are less probable than this; with a fixed "
            "depth, 0.75 by default.",
        ),
    ] = None
    prompt_lookup_min: Annotated[
        int | None,
        Meta(
            ge=1,
            description="Length in tokens of the shortest match that prompt lookup drafts from. "
            "The default is 2. It is 1 for ONNX models that evaluate a single token as two, "
            "because a draft of one token then costs nothing.",
        ),
    ] = None
    acceptance: Annotated[
        str,
        Meta(description="Acceptance rule for drafts at a temperature above 0."),
    ] = "block"
    draft_window: Annotated[
        int | None,
        Meta(
            ge=0,
            description="Number of latest tokens that a draft model reads, in addition to the "
            "first few; 0 for as many as its context holds. By default, measured costs decide.",
        ),
    ] = None
    remember: Annotated[
        Remember,
        Meta(
            description="What to keep on this disk for later processes: how often drafts came true "
            "(rates), also which tokens likely follow each token (all), or nothing. No text is "
            "kept, and with a fixed depth nothing at all."
        ),
    ] = "all"
    draft_corpus: Annotated[
        tuple[str, ...] | None,
        Meta(
            description="Further files and folders to draft from, () for none. By default, those "
            "that `edgespec corpus add` has added for the model's vocabulary."
        ),
    ] = None
    draft_memory: Annotated[
        DraftMemory,
        Meta(
            description="Earlier answers to draft from: only those of the conversation (off), all "
            "of this engine (process), or those of earlier processes as well (disk). With disk, "
            "answers are kept on this disk."
        ),
    ] = "process"
    options: Annotated[
        Mapping[str, Any],
        Meta(
            description="Settings of the drafters and of the policy that have no field of their "
            "own."
        ),
    ] = field(default_factory=dict)
    policy: Annotated[
        str,
        Meta(
            description="The rule that decides how many tokens to draft: adaptive goes by measured "
            "costs, fixed by a given depth. auto is fixed if a depth is given, else adaptive."
        ),
    ] = "auto"

    @property
    def has_memory(self) -> bool:
        """True if there may be documents or earlier answers to draft from."""
        return self.draft_memory != "off" or self.draft_corpus != ()

    @property
    def fixed(self) -> tuple[int, float] | None:
        """The pair (depth, lowest draft probability) if it is fixed, None if each step decides."""
        if self.method == "none" or self.num_speculative_tokens == 0:
            return 0, 0.0
        depth, p_min = self.num_speculative_tokens, self.draft_p_min
        names_one = depth is not None or p_min is not None
        if not (self.policy == "fixed" or (self.policy == "auto" and names_one)):
            return None
        return 4 if depth is None else depth, 0.75 if p_min is None else p_min

    def __post_init__(self) -> None:
        check(self)
        if not isinstance(self.options, Mapping):
            raise ConfigError(f"options must map names to values, got {self.options!r}")
        if self.draft_corpus is not None:
            object.__setattr__(self, "draft_corpus", _paths("draft_corpus", self.draft_corpus))
        depth, _ = self.fixed or (0, None)
        if 0 < depth < self.min_speculative_tokens:
            raise ConfigError(
                f"min_speculative_tokens {self.min_speculative_tokens} is more than the "
                f"{depth} that are drafted at most: nothing would be drafted"
            )


Priority = Literal["low", "normal", "high"]
CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The settings with which a model is loaded.

    With batch_invariant, a GGUF runs with flash attention, without repacked weights and with bf16
    values in the cache. Drafts are kept so short that their length does not change logits, and the
    number of threads changes only between requests. An ONNX graph evaluates single tokens as two if
    its kernels treat single tokens differently.

    requantize copies only draft models, each of them once; targets always run as they are.
    flash_attn, type_k, type_v, use_extra_bufts, n_threads_batch, device and dynamic_threads act
    only on GGUF models, provider only on ONNX models.
    """

    n_ctx: Annotated[
        int,
        Meta(
            ge=0,
            description="Context length in tokens; 0 for the length that the model was trained "
            "with, but at most 32768, and less if less than a quarter of the memory would stay "
            "free.",
        ),
    ] = 0
    n_threads: Annotated[
        int,
        Meta(
            ge=0,
            le=_MOST_THREADS,
            description="Number of threads that generate tokens, 0 for one on each core.",
        ),
    ] = 0
    n_threads_batch: Annotated[
        int,
        Meta(ge=0, le=_MOST_THREADS, description="Number of threads that read the prompt."),
    ] = 0
    max_cores: Annotated[
        int,
        Meta(
            ge=0,
            description="Use at most this many cores, whatever other settings or `edgespec tune` "
            "say; 0 for no limit.",
        ),
    ] = 0
    dynamic_threads: Annotated[
        bool, Meta(description="Use fewer threads while other programs use the cores.")
    ] = True
    prio: Annotated[
        Priority,
        Meta(
            description="Priority of the process; low lets other programs go first, high needs "
            "permission."
        ),
    ] = "normal"
    n_gpu_layers: Annotated[
        int,
        Meta(ge=-1, description="Number of layers to put on the GPU; -1 for as many as fit."),
    ] = -1
    device: Annotated[
        str,
        Meta(
            description="The GPUs to use, separated by commas and named as in `edgespec doctor`, "
            "or none. By default, those that have memory of their own."
        ),
    ] = ""
    mmproj: Annotated[
        str,
        Meta(
            description="File of the projector with which the model sees pictures, or none. By "
            "default, the mmproj file in the model's folder, or the vision_encoder of an ONNX "
            "model."
        ),
    ] = ""
    image_max_tokens: Annotated[
        int,
        Meta(
            ge=64,
            le=16384,
            description="Largest number of tokens of a picture, for models that can scale pictures "
            "down to fewer.",
        ),
    ] = 1024
    n_batch: Annotated[
        int, Meta(ge=32, description="Number of prompt tokens that are evaluated at once.")
    ] = 512
    flash_attn: Annotated[
        Literal["auto", "on", "off"], Meta(description="Whether to use flash attention.")
    ] = "auto"
    type_k: Annotated[
        CacheType, Meta(description="Number format of the keys in the KV cache: f16, q8_0, …")
    ] = "f16"
    type_v: Annotated[
        CacheType, Meta(description="Number format of the values in the KV cache.")
    ] = "f16"
    use_extra_bufts: Annotated[
        bool, Meta(description="Let llama.cpp repack weights for this processor.")
    ] = True
    requantize: Annotated[
        bool,
        Meta(
            description="Run a GGUF draft model as a Q4_0 copy if that is faster on this CPU. The "
            "copy is made once; the text stays the same."
        ),
    ] = True
    provider: Annotated[
        str,
        Meta(
            description="Execution provider for an ONNX model: auto, cpu, cuda or another one of "
            "onnxruntime; auto is CUDA if this build of onnxruntime has it."
        ),
    ] = "auto"
    batch_invariant: Annotated[
        bool,
        Meta(
            description="Compute logits so that drafts never change the text, not even where two "
            "tokens are almost equally likely. This is about a fifth slower on CPUs."
        ),
    ] = False
    n_slots: Annotated[
        int,
        Meta(
            ge=0,
            le=64,
            description="Number of requests that are answered at once, each with a context of its "
            "own; 0 for as many as memory allows, at most 4.",
        ),
    ] = 1
    on_busy: Annotated[
        OnBusy,
        Meta(
            description="What a request does if all slots are taken: wait, be refused with an "
            "error, or replace the running request of its owner that began first."
        ),
    ] = "wait"
    prompt_cache: Annotated[
        Literal["off", "memory", "disk"],
        Meta(
            description="Where prompts and conversations that were read are kept, so that they are "
            "not read again: nowhere, in memory, or in memory and on this disk."
        ),
    ] = "memory"
    cache_ram: Annotated[
        int | None,
        Meta(
            ge=0,
            description="Most MiB of memory for prompts that were read; by default a quarter of "
            "what is free, at most 8192.",
        ),
    ] = None
    cache_disk: Annotated[
        int | None,
        Meta(
            ge=0,
            description="Most MiB on disk for prompts that were read; by default a quarter of what "
            "is free, at most 8192.",
        ),
    ] = None

    def __post_init__(self) -> None:
        if isinstance(self.mmproj, os.PathLike):
            object.__setattr__(self, "mmproj", os.fspath(self.mmproj))
        check(self)
        if self.batch_invariant and self.flash_attn == "off":
            raise ConfigError("batch_invariant needs flash attention, but flash_attn is 'off'")
        if self.flash_attn == "off" and self.type_v not in ("f32", "f16", "bf16"):
            raise ConfigError(
                f"a KV cache with values in {self.type_v} needs flash attention, but flash_attn is "
                "'off'"
            )

    def threads(self, cores: int) -> tuple[int, int]:
        """Return the number of threads for single steps and that for prefill, on `cores` cores."""
        most = self.max_cores or math.inf
        one, many = self.n_threads or cores, self.n_threads_batch or self.n_threads or cores
        return int(min(one, most)), int(min(many, most))


NOT_SPEED = (
    "on_busy", "n_slots", "n_ctx", "requantize", "max_cores", "dynamic_threads", "prio",
    "prompt_cache", "cache_ram", "cache_disk", "mmproj", "image_max_tokens",
)  # fmt: skip
"""Fields of EngineConfig that do not affect a model's speed, given its number of threads."""


@dataclass(frozen=True, slots=True)
class RemoteConfig:
    """The address of a target on another machine, and the local files to use with it."""

    url: Annotated[
        str,
        Meta(
            description="Address of the server: ws:// or wss:// for `edgespec serve`; "
            "sglang+http://, vllm+http:// or openai+http:// (or https) for other inference servers."
        ),
    ]
    api_key: Annotated[
        str | None,
        Meta(description="Key that is sent as a bearer token; None for servers without keys."),
    ] = field(default=None, repr=False)
    model: Annotated[
        str,
        Meta(
            description="Name of the model that the server must have; empty for the model that it "
            "has."
        ),
    ] = ""
    timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=86400,
            description="Seconds that a server may be silent or unreachable before "
            "VerifierUnavailable is raised.",
        ),
    ] = 10.0
    local: Annotated[
        str | os.PathLike[str] | None,
        Meta(
            description="A local model that answers while the server is away. If it is the "
            "server's model, it also answers while the server is slower."
        ),
    ] = None
    tokenizer: Annotated[
        str | os.PathLike[str] | None,
        Meta(
            description="A model file with the server's vocabulary, needed if neither `local` nor "
            "a draft model is given; its weights are not read."
        ),
    ] = None
    n_ctx: Annotated[
        int,
        Meta(
            ge=0,
            description="Context length of the server in tokens, for other inference servers that "
            "do not report it; 0 takes what the server reports.",
        ),
    ] = 0

    def __post_init__(self) -> None:
        if not isinstance(self.url, str) or "://" not in self.url:
            raise ConfigError(
                f"{self.url!r} is no address of a verifier; give one such as ws://host:port, "
                "wss://host:port, vllm+http://host:port or sglang+http://host:port"
            )
        check(self)
        key = self.api_key or ""
        if not key.isascii() or not key.isprintable() or " " in key:
            raise ConfigError("api_key must be printable ASCII without spaces; check its file")
        for name, value in (("local", self.local), ("tokenizer", self.tokenizer)):
            if value is not None and not isinstance(value, (str, os.PathLike)):
                raise ConfigError(f"{name} must be a model's name or file, got {value!r}")


for _settings in (
    RepetitionDetection, SamplingParams, SpeculativeConfig, EngineConfig, RemoteConfig,
):  # fmt: skip
    _settings.__doc__ = described(_settings)
