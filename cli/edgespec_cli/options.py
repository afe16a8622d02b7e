"""The options that several commands share. They have the names of llama.cpp's options."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import cloup
from click.core import ParameterSource

from edgespec.config import CONSTRAINTS, EngineConfig, SamplingParams, SpeculativeConfig
from edgespec.setting import settings_of

from .parameters import (
    ExistingPathType,
    GpuLayersType,
    KeyValueType,
    LogitBiasType,
    ModelType,
    NameType,
    PathsType,
    SpecType,
    StopType,
    acceptance_rules,
    policies,
)

F = TypeVar("F", bound=Callable[..., Any])

FILE = click.Path(path_type=Path)


def option(*names: str, **settings: Any) -> Callable[[F], F]:
    """Declare an option that the variable EDGESPEC_<LONG NAME> can set too; --help names it."""
    flag = next(name for name in names if name.startswith("--")).partition("/")[0]
    variable = "EDGESPEC_" + flag[2:].upper().replace("-", "_")
    return cloup.option(*names, cls=_Option, envvar=variable, show_envvar=True, **settings)


def setting(owner: type, name: str, *flags: str, **more: Any) -> Callable[[F], F]:
    """Declare the option for a setting. Its parameter has the setting's name.

    owner: the class of the setting. flags: the flags of the option, by default the name with
    dashes. more: arguments of the option that replace those from the setting's declaration.
    """
    declared = settings_of(owner)[name]
    told: dict[str, Any] = {"help": declared.sentence}
    flags = flags or _flags(name)
    if declared.choices:
        told["type"] = click.Choice(declared.choices)
    elif declared.kind is not bool:
        told["type"] = declared.kind
    elif declared.default:  # it can only be switched off
        *short, flag = flags
        flags = (*short, f"{flag}/--no-{flag[2:]}")
        told |= {"default": None, "show_default": "yes"}
    else:
        told |= {"is_flag": True, "default": None}
    return option(*flags, name, **told | more)


def _flags(name: str) -> tuple[str, ...]:
    return ("--" + name.removesuffix("_s").replace("_", "-"),)


class _Option(cloup.Option):
    """An option whose errors name its environment variable, if the value came from there."""

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Return the names of the option, and its variable if that holds the wrong value."""
        hint = super().get_error_hint(ctx)  # type: ignore[arg-type]
        is_set = ctx and ctx.get_parameter_source(self.name or "") is ParameterSource.ENVIRONMENT
        return hint if is_set else hint.partition(" (env var")[0]


def pass_params(command: F) -> F:
    """Make a click command that calls `command(ctx)`: the options are only in `ctx.params`."""

    @click.pass_context
    @functools.wraps(command)
    def call(ctx: click.Context, /, *args: Any, **kwargs: Any) -> Any:
        return command(ctx)

    return call  # type: ignore[return-value]


offline_option = option("--offline", is_flag=True, help="Do not download anything.")

tools_option = option(
    "--python",
    type=ExistingPathType(dir_okay=False),
    metavar="PATH",
    help="A Python interpreter that has the tools installed. Without this option they are "
    "installed once, in a separate environment.",
)

json_option = cloup.option_group(
    "Output", option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
)

model_options = cloup.option_group(
    "Model",
    option(
        "-m", "--model", type=ModelType(), show_default="chosen once for this device",
        help="The model: a name that `edgespec models` lists, the path of a GGUF file or an ONNX "
        "folder, or an address on the hub: hf:org/repo, hf:org/repo:Q8_0, hf:org/repo/file.gguf.",
    ),
    option(
        "-md", "--draft-model", type=ModelType("auto", "none"), show_default="auto",
        help="The draft model: given like -m, or 'auto' for one on this disk that fits the model, "
        "or 'none'.",
    ),
    setting(
        EngineConfig, "n_gpu_layers", "-ngl", "--n-gpu-layers", type=GpuLayersType(),
        help="Number of layers to put on the GPU; -1, all or auto for as many as fit.",
    ),
    option(
        "-ngld", "--n-gpu-layers-draft", type=GpuLayersType(),
        help="The same as -ngl, for the draft model.",
    ),
    setting(EngineConfig, "device", "-dev", "--device", metavar="NAMES"),
    option(
        "-devd", "--device-draft", metavar="NAMES", help="The same as -dev, for the draft model."
    ),
    setting(EngineConfig, "n_ctx", "-c", "--ctx-size"),
    option("-cd", "--ctx-size-draft", type=int, help="The same as -c, for the draft model."),
    setting(EngineConfig, "n_threads", "-t", "--threads"),
    setting(EngineConfig, "n_threads_batch", "-tb", "--threads-batch"),
    setting(EngineConfig, "max_cores", metavar="N"),
    setting(EngineConfig, "dynamic_threads"),
    setting(EngineConfig, "prio", show_default="normal"),
    setting(EngineConfig, "flash_attn", "-fa", "--flash-attn"),
    setting(EngineConfig, "type_k", "-ctk", "--cache-type-k", metavar="TYPE"),
    setting(EngineConfig, "type_v", "-ctv", "--cache-type-v", metavar="TYPE"),
    setting(EngineConfig, "mmproj", metavar="FILE", show_default="the one next to the model"),
    setting(EngineConfig, "image_max_tokens", metavar="N"),
    setting(EngineConfig, "provider", metavar="NAME"),
    setting(
        EngineConfig, "batch_invariant", "--batch-invariant/--no-batch-invariant", default=None
    ),
    setting(EngineConfig, "requantize", "--requantize-draft"),
    setting(
        EngineConfig, "prompt_cache",
        show_default="memory; disk for chats that are kept; off for bench",
    ),
    setting(EngineConfig, "cache_ram", "-cram", "--cache-ram", metavar="MIB"),
    setting(EngineConfig, "cache_disk", metavar="MIB"),
    offline_option,
)  # fmt: skip

verifier_options = cloup.option_group(
    "Remote target",
    option(
        "--verifier", metavar="URL",
        help="Address of another machine that verifies the drafts: wss://HOST:PORT of `edgespec "
        "serve`, or sglang+http://…, vllm+http://…, openai+http://…. While it cannot be reached, "
        "the model of -m answers, if one is given.",
    ),
    option(
        "--verifier-key-file", metavar="FILE", type=FILE,
        help="File with the key for the verifier. The variable EDGESPEC_VERIFIER_KEY can hold the "
        "key instead.",
    ),
    option(
        "--verifier-model", metavar="NAME",
        help="Name of the model that the verifier must have; any other is refused.",
    ),
    option(
        "--verifier-timeout", metavar="SECONDS", type=float, default=10,
        help="Longest time to wait for a reply of the verifier.",
    ),
)  # fmt: skip

_SAMPLING: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {  # flags, and other arguments
    "temperature": (
        ("--temp",), {"show_default": "the model's own; also for top-k to frequency-penalty"}
    ),
    "repetition_penalty": (("--repeat-penalty",), {}),
    "logit_bias": ((), {
        "type": LogitBiasType(), "multiple": True, "metavar": "ID=VALUE",
        "help": "Add VALUE to the logit of token ID; can be given several times.",
    }),
    "seed": ((), {"show_default": "a new one every time"}),
    "max_tokens": (("-n", "--n-predict", "--max-tokens"), {
        "show_default": "-1; 2048 with run",
        "help": "Largest number of tokens to generate; -1 to generate until the context is full.",
    }),
    "time_limit_s": ((), {"type": click.FloatRange(min=0), "metavar": "SECONDS"}),
    "stop": ((), {
        "type": StopType(), "multiple": True,
        "help": "End the answer before this text; can be given several times.",
    }),
}  # fmt: skip
_NO_SAMPLING = (  # settings of a request without an option, or in a different option group
    "stop_token_ids", "logprobs", "disable_spec_decode", "num_draft_tokens",
    "repetition_detection", *CONSTRAINTS,
)  # fmt: skip
_FLAGS = {  # flags of the settings that are sampling options
    name: _SAMPLING.get(name, ((), {}))[0] or _flags(name)
    for name in settings_of(SamplingParams)
    if name not in _NO_SAMPLING
}
SAMPLING = {
    name: next(flag[2:] for flag in flags if flag.startswith("--"))
    for name, flags in _FLAGS.items()
}
"""The settings that `/set` changes in a chat, each with its name there."""

sampling_options = cloup.option_group(
    "Sampling",
    *(
        setting(SamplingParams, name, *flags, **_SAMPLING.get(name, ((), {}))[1])
        for name, flags in _FLAGS.items()
    ),
)

answer_options = cloup.option_group(
    "Form of the answer",
    option(
        "-j", "--json-schema", metavar="SCHEMA",
        help="The answer is JSON that follows this JSON schema.",
    ),
    option(
        "-jf", "--json-schema-file", metavar="FILE", type=click.File("rb"),
        help="The answer is JSON that follows the JSON schema in this file.",
    ),
    setting(SamplingParams, "grammar", metavar="GRAMMAR"),
    option(
        "--grammar-file", metavar="FILE", type=click.File("rb"),
        help="The answer follows the grammar in this file.",
    ),
    setting(SamplingParams, "regex", metavar="REGEX"),
    option(
        "--choice", "choices", metavar="TEXT", multiple=True,
        help="One of the texts that the answer may be; can be given several times.",
    ),
)  # fmt: skip

policy_option = setting(
    SpeculativeConfig, "policy", type=NameType("policy", policies), show_default="auto"
)

speculation_options = cloup.option_group(
    "Speculation",
    option(
        "--spec-type", type=SpecType(), show_default="auto",
        help="The methods that draft tokens, separated by commas: auto chooses at every step, none "
        "is plain decoding, ngram is another name for suffix.",
    ),
    policy_option,
    setting(SpeculativeConfig, "num_speculative_tokens", "--spec-draft-n-max"),
    setting(SpeculativeConfig, "min_speculative_tokens", "--spec-draft-n-min"),
    setting(SpeculativeConfig, "draft_p_min", "--spec-draft-p-min"),
    option(
        "--spec-option", "spec_options", type=KeyValueType(), multiple=True, metavar="NAME=VALUE",
        help="An option of a drafter or policy; can be given several times.",
    ),
    setting(SpeculativeConfig, "draft_window", metavar="TOKENS"),
    option(
        "--draft-corpus", multiple=True, metavar="PATH", type=PathsType(),
        help="Also draft from this text file, folder or saved chat, and not from what `edgespec "
        "corpus add` has added; 'none' for neither. Can be given several times.",
    ),
    setting(
        SpeculativeConfig, "draft_memory", show_default="process; off for serve and bench"
    ),
    setting(
        SpeculativeConfig, "acceptance", type=NameType("acceptance", acceptance_rules),
        show_default="block",
    ),
    setting(
        SpeculativeConfig, "remember", "--spec-remember", show_default="all; rates for serve"
    ),
)  # fmt: skip

system_option = option("--system", help="System prompt.")

image_option = option(
    "--image", "images", metavar="FILE", type=FILE, multiple=True,
    help="A picture to show to the model with the first message: PNG, JPEG, WebP, GIF or BMP. Can "
    "be given several times.",
)  # fmt: skip

reasoning_option = option(
    "--reasoning-budget", type=int, metavar="N",
    show_default="0 if the model can answer without reasoning, else -1",
    help="Largest number of reasoning tokens before the answer: 0 for no reasoning, -1 for no "
    "limit.",
)  # fmt: skip

display_options = (
    option("-q", "--quiet", is_flag=True, help="Do not print figures after an answer."),
    option("--show-drafts", is_flag=True, help="Colour the tokens that were drafted."),
)


def generation_options(command: F) -> F:
    """Add the options that `run` and `chat` share, between their Prompt and Output options."""
    groups = (model_options, verifier_options, sampling_options, speculation_options)
    for add in reversed(groups):
        command = add(command)
    return command
