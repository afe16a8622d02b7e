"""The options, after llama.cpp's names, and what they mean to the library."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])


class Option(click.Option):
    """An option with a section in --help, readable from EDGESPEC_<FLAG>."""

    def __init__(self, *args: Any, section: str = "Options", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section
        flag = next(name for name in self.opts if name.startswith("--"))
        self.envvar = "EDGESPEC_" + flag[2:].upper().replace("-", "_")
        self.show_envvar = True


class Command(click.Command):
    """A command whose --help has sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, section by section in the order of declaration."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record:
                sections.setdefault(getattr(param, "section", "Options"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


class ModelType(click.ParamType):  # type: ignore[type-arg]
    """A model reference; names complete from the catalogue, paths from the disk."""

    name = "model"

    def __init__(self, *extra: str) -> None:
        self._extra = extra

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Names; where there are none, whatever files the shell finds. Bash forgets the names
        where both are given.
        """
        from edgespec.hub import catalogue

        names = [*self._extra, *catalogue.entries()]
        found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return found or [CompletionItem(incomplete, type="file")]


class StopType(click.ParamType):  # type: ignore[type-arg]
    """A stop string; in the environment one string, or a JSON list of them."""

    name = "text"

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        """Stop strings may hold blanks, so blanks separate nothing."""
        if rv.lstrip().startswith("["):
            try:
                values = json.loads(rv)
            except ValueError:
                return [rv]
            if isinstance(values, list) and all(isinstance(v, str) for v in values):
                return values
        return [rv]


class LogitBiasType(click.ParamType):  # type: ignore[type-arg]
    """ID=VALUE; -inf forbids a token."""

    name = "id=value"

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        """Separated by commas or blanks."""
        return rv.replace(",", " ").split()

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, float]:
        """Both halves as numbers."""
        if isinstance(value, tuple):
            return value
        token, _, bias = str(value).partition("=")
        try:
            pair = int(token), float(bias)
        except ValueError:
            self.fail(f"{value!r} is not ID=VALUE, for example 1234=-inf or 50=2.5", param, ctx)
        if math.isnan(pair[1]) or pair[1] == math.inf or pair[0] < 0:
            self.fail(f"{value!r}: ID counts from 0, VALUE is a number or -inf", param, ctx)
        return pair


class IdsType(click.ParamType):  # type: ignore[type-arg]
    """Token ids separated by commas or blanks."""

    name = "ids"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[int]:
        """A list of numbers."""
        if isinstance(value, list):
            return value
        try:
            return [int(part) for part in str(value).replace(",", " ").split()]
        except ValueError:
            self.fail(f"{value!r} is not a list of token ids such as 1,2,3", param, ctx)


_METHODS = {
    "auto": "auto",
    "none": "none",
    "draft-model": "draft_model",
    "draft_model": "draft_model",
    "suffix": "suffix",
    "ngram": "suffix",
}


class SpecType(click.ParamType):  # type: ignore[type-arg]
    """A comma list of methods; the value is their set."""

    name = "a,b"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> frozenset[str]:
        """Known methods that go together."""
        if isinstance(value, frozenset):
            return value
        words = [word.strip() for word in str(value).split(",")]
        for word in words:
            if word not in _METHODS:
                self.fail(f"{word!r} is unknown; known: {', '.join(_METHODS)}", param, ctx)
        methods = frozenset(_METHODS[word] for word in words)
        if len(methods) > 1 and methods & {"none", "auto"}:
            self.fail(f"{value!r}: auto and none stand alone", param, ctx)
        return methods

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The methods."""
        return [CompletionItem(word) for word in _METHODS if word.startswith(incomplete)]


def _options(section: str, *declared: tuple[tuple[str, ...], dict[str, Any]]) -> Callable[[F], F]:
    """A decorator that adds the declared options, in that order, under one heading."""

    def add(command: F) -> F:
        for names, settings in reversed(declared):
            command = click.option(*names, cls=Option, section=section, **settings)(command)
        return command

    return add


def shared(section: str, *declared: tuple[str, dict[str, Any]]) -> Callable[[F], F]:
    """Options that several commands have in common: (flag, settings)."""
    return _options(section, *(((name,), settings) for name, settings in declared))


def _option(*names: str, **settings: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    return names, settings


_SWITCH = click.Choice(["on", "off", "auto"])

model_options = _options(
    "Model",
    _option(
        "-m", "--model", type=ModelType(),
        help="Catalogue name, path of a GGUF or ONNX model, or hf:org/repo/file.gguf.  "
        "[default: the catalogue's]",
    ),
    _option(
        "-md", "--draft-model", type=ModelType("auto", "none"),
        help="Draft model: as above, 'auto' or 'none'.  [default: auto]",
    ),
    _option("-ngl", "--n-gpu-layers", type=int, help="Layers on the GPU, -1 for all that fit."),
    _option("-ngld", "--n-gpu-layers-draft", type=int, help="The same for the draft model."),
    _option(
        "-c", "--ctx-size", type=int,
        help="Context in tokens, 0 for what the model was trained with, at most 8192.",
    ),
    _option("-cd", "--ctx-size-draft", type=int, help="The same for the draft model."),
    _option("-t", "--threads", type=int, help="Threads for single steps, 0 for all cores."),
    _option("-tb", "--threads-batch", type=int, help="Threads for reading prompts."),
    _option("-fa", "--flash-attn", type=_SWITCH, help="Flash attention."),
    _option("-ctk", "--cache-type-k", metavar="TYPE", help="Type of the K cache: f16, q8_0, …"),
    _option("-ctv", "--cache-type-v", metavar="TYPE", help="Type of the V cache."),
    _option(
        "--provider", metavar="NAME",
        help="What runs an ONNX model: auto, cpu, cuda or another of onnxruntime's.",
    ),
    _option(
        "--batch-invariant/--no-batch-invariant", default=None,
        help="Whether evaluations may cost more so that drafts never change the text, not even "
        "at near ties: by default yes with ONNX, where it costs little, and no with GGUF.",
    ),
    _option(
        "--requantize-draft/--no-requantize-draft", default=None,
        help="Whether a GGUF draft model may be drafted with as Q4_0 where this CPU evaluates that "
        "faster; the copy is made once. It changes no text.  [default: yes]",
    ),
    _option("--offline", is_flag=True, help="Download nothing."),
)  # fmt: skip

verifier_options = _options(
    "Remote target",
    _option(
        "--verifier", metavar="URL",
        help="Verify drafts on another machine: wss://HOST:PORT of `edgespec serve`, or "
        "sglang+http://…, vllm+http://…, openai+http://…. -m is then the model to go on with "
        "while it is away, if it is given.",
    ),
    _option(
        "--verifier-key-file", metavar="FILE", type=click.Path(path_type=Path),
        help="Holds the key for it; EDGESPEC_VERIFIER_KEY does as well.",
    ),
    _option("--verifier-model", metavar="NAME", help="The model that it must have."),
    _option(
        "--verifier-timeout", metavar="SECONDS", type=float, default=10.0,
        help="How long it may be silent.  [default: 10]",
    ),
)  # fmt: skip

sampling_options = _options(
    "Sampling",
    _option("--temp", type=float, help="Temperature; 0 takes the likeliest token.  [default: 0]"),
    _option("--top-k", type=int, help="Keep the K likeliest tokens, 0 for all."),
    _option("--top-p", type=float, help="Keep the likeliest tokens that hold this probability."),
    _option("--min-p", type=float, help="Drop tokens below this share of the likeliest one's."),
    _option("--repeat-penalty", type=float, help="Divide the logits of repeated tokens, 1 is off."),
    _option("--presence-penalty", type=float, help="Subtract this from tokens already emitted."),
    _option("--frequency-penalty", type=float, help="The same, for each time it was emitted."),
    _option(
        "--logit-bias", type=LogitBiasType(), multiple=True, metavar="ID=VALUE",
        help="Add VALUE to a token's logit; repeatable.",
    ),
    _option("--seed", type=int, help="For the same text again; a fresh one by default."),
    _option(
        "-n", "--n-predict", "--max-tokens", "n_predict", type=int,
        help="Most tokens to emit; -1, the default, until the context is full.",
    ),
    _option("--stop", type=StopType(), multiple=True, help="Stop before this text; repeatable."),
    _option("--ignore-eos", is_flag=True, help="Go on where the model would end."),
    _option("--time-limit", type=float, metavar="SECONDS", help="Stop after this time."),
)  # fmt: skip

speculation_options = _options(
    "Speculation",
    _option(
        "--spec-type", type=SpecType(),
        help="auto, none, draft-model, suffix (also ngram), or suffix,draft-model.",
    ),
    _option("--spec-draft-n-max", type=int, help="Most tokens drafted in a step."),
    _option("--spec-draft-n-min", type=int, help="Drafts shorter than this are not used."),
    _option("--spec-draft-p-min", type=float, help="End a draft where it gets less likely."),
    _option(
        "--acceptance", type=click.Choice(["block", "rejection", "coupled", "deterministic"]),
        help="Rule for drafts drawn at a temperature above 0.",
    ),
)  # fmt: skip

display_options = _options(
    "Output",
    _option("-q", "--quiet", is_flag=True, help="No figures."),
    _option("--show-drafts", is_flag=True, help="Colour the tokens that were drafted."),
)

system_option = _options("Prompt", _option("--system", help="System prompt."))


def generation_options(command: F) -> F:
    """Everything that `run` and `chat` have in common."""
    for add in (
        display_options, speculation_options, sampling_options, verifier_options, model_options,
    ):  # fmt: skip
        command = add(command)
    return system_option(command)


# --- what they mean ----------------------------------------------------------------------------

_ENGINE = {
    "ctx_size": "n_ctx",
    "threads": "n_threads",
    "threads_batch": "n_threads_batch",
    "n_gpu_layers": "n_gpu_layers",
    "flash_attn": "flash_attn",
    "cache_type_k": "type_k",
    "cache_type_v": "type_v",
    "provider": "provider",
    "batch_invariant": "batch_invariant",
    "requantize_draft": "requantize",
}
_DRAFT_ENGINE = {"ctx_size_draft": "n_ctx", "n_gpu_layers_draft": "n_gpu_layers"}
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
    "n_predict": "max_tokens",
    "time_limit": "time_limit_s",
    "logprobs": "logprobs",
}
_SPECULATION = {
    "spec_draft_n_max": "num_speculative_tokens",
    "spec_draft_n_min": "min_speculative_tokens",
    "spec_draft_p_min": "draft_p_min",
    "acceptance": "acceptance",
}


def _renamed(options: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Those that were given, under the library's names."""
    return {names[k]: v for k, v in options.items() if k in names and v is not None}


def engine_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of `edgespec.load`, checked as far as that goes without a model."""
    import edgespec

    engine, draft_engine = _renamed(options, _ENGINE), _renamed(options, _DRAFT_ENGINE)
    edgespec.EngineConfig(**engine)
    edgespec.EngineConfig(**draft_engine)
    draft, method = _draft_and_method(options)
    speculation = _renamed(options, _SPECULATION) | {"method": method}
    # checked without its draft, whose name belongs to `draft`
    edgespec.SpeculativeConfig(**(speculation | {"method": "auto"}))
    return engine | {
        "draft": draft,
        "draft_options": draft_engine or None,
        "speculative_config": speculation,
    }


def _draft_and_method(options: Mapping[str, Any]) -> tuple[str | None, str]:
    methods = options.get("spec_type") or frozenset({"auto"})
    draft = options.get("draft_model") or "auto"
    uses_draft = bool(methods & {"auto", "draft_model"})
    if not uses_draft and draft not in ("auto", "none"):
        ctx = click.get_current_context(silent=True)
        if ctx is None or not overrides(ctx, "spec_type", "draft_model"):
            raise click.UsageError(
                f"--spec-type {','.join(methods)} uses no draft model, but -md {draft} was given; "
                "leave one out"
            )
    if "draft_model" in methods and draft == "none":
        raise click.UsageError(
            "--spec-type draft-model needs a draft model, but -md none was given; name one"
        )
    method = methods if len(methods) == 1 else {"auto"}
    return (draft if uses_draft and draft != "none" else None), next(iter(method))


def sampling_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of SamplingParams that were given, checked."""
    import edgespec

    sampling = _renamed(options, _SAMPLING)
    if sampling.get("max_tokens") == -1:
        del sampling["max_tokens"]
    if options.get("logit_bias"):
        sampling["logit_bias"] = dict(options["logit_bias"])
    if options.get("stop"):
        sampling["stop"] = tuple(options["stop"])
    if options.get("ignore_eos"):
        sampling["ignore_eos"] = True
    edgespec.SamplingParams(**sampling)
    return sampling


def overrides(ctx: click.Context, strong: str, weak: str) -> bool:
    """Whether `strong` was typed and `weak` only comes from the environment."""
    typed, set_before = ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT
    return (
        ctx.get_parameter_source(strong) is typed and ctx.get_parameter_source(weak) is set_before
    )


def exclusive(ctx: click.Context, first: str, second: str) -> None:
    """Refuse two options that contradict each other; what was typed wins over the environment.

    The loser is set to None in `ctx.params`.
    """
    if not ctx.params[first] or not ctx.params[second]:
        return
    for strong, weak in ((first, second), (second, first)):
        if overrides(ctx, strong, weak):
            ctx.params[weak] = None
            return
    raise click.UsageError(f"{_flag(ctx, first)} and {_flag(ctx, second)} exclude each other")


def _flag(ctx: click.Context, name: str) -> str:
    param = next(p for p in ctx.command.params if p.name == name)
    return max(param.opts, key=len) if isinstance(param, click.Option) else f"a {name} argument"


def pass_params(command: F) -> F:
    """Call `command(ctx)` alone: its options are in `ctx.params`."""

    @click.pass_context
    @functools.wraps(command)
    def call(ctx: click.Context, /, *args: Any, **kwargs: Any) -> Any:
        return command(ctx)

    return call  # type: ignore[return-value]
