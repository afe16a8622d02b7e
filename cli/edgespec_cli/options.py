"""The options that several commands share, named after llama.cpp's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import cloup
from click.core import ParameterSource

from .parameters import (
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
    """Declare an option that EDGESPEC_<LONG NAME> sets as well, which --help says."""
    flag = next(name for name in names if name.startswith("--")).partition("/")[0]
    variable = "EDGESPEC_" + flag[2:].upper().replace("-", "_")
    return cloup.option(*names, cls=_Option, envvar=variable, show_envvar=True, **settings)


class _Option(cloup.Option):
    """An option whose errors name its environment variable where the value came from there."""

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Return the names of the option, and the variable if that is what is wrong."""
        hint = super().get_error_hint(ctx)  # type: ignore[arg-type]
        is_set = ctx and ctx.get_parameter_source(self.name or "") is ParameterSource.ENVIRONMENT
        return hint if is_set else hint.partition(" (env var")[0]


def pass_params(command: F) -> F:
    """Call `command(ctx)` alone: its options are in `ctx.params`."""

    @click.pass_context
    @functools.wraps(command)
    def call(ctx: click.Context, /, *args: Any, **kwargs: Any) -> Any:
        return command(ctx)

    return call  # type: ignore[return-value]


offline_option = option("--offline", is_flag=True, help="Do not download anything.")

json_option = cloup.option_group(
    "Output", option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
)

model_options = cloup.option_group(
    "Model",
    option(
        "-m", "--model", type=ModelType(), show_default="chosen once for this device",
        help="The model: a name that `edgespec models` lists, the path of a GGUF file or an ONNX "
        "folder, or of the hub: hf:org/repo, hf:org/repo:Q8_0, hf:org/repo/file.gguf.",
    ),
    option(
        "-md", "--draft-model", type=ModelType("auto", "none"), show_default="auto",
        help="The draft model: named like the model, or 'auto' for one that is on disk and fits "
        "it, or 'none'.",
    ),
    option(
        "-ngl", "--n-gpu-layers", type=GpuLayersType(),
        help="Number of layers to put on the GPU; -1, all or auto for as many as fit.",
    ),
    option(
        "-ngld", "--n-gpu-layers-draft", type=GpuLayersType(),
        help="The same for the draft model.",
    ),
    option(
        "-dev", "--device", metavar="NAMES",
        help="The GPUs to use, as `edgespec doctor` names them, with commas between them, or "
        "'none'; left out, those that have memory of their own.",
    ),
    option("-devd", "--device-draft", metavar="NAMES", help="The same for the draft model."),
    option(
        "-c", "--ctx-size", type=int,
        help="Context length in tokens; 0 for what the model was trained with, at most 8192.",
    ),
    option("-cd", "--ctx-size-draft", type=int, help="The same for the draft model."),
    option(
        "-t", "--threads", type=int,
        help="Number of threads that generate, 0 for one on each core.",
    ),
    option("-tb", "--threads-batch", type=int, help="Number of threads that read the prompt."),
    option(
        "--max-cores", type=int, metavar="N",
        help="Use at most N cores, whatever else was given or tuned.",
    ),
    option(
        "--dynamic-threads/--no-dynamic-threads", default=None, show_default="yes",
        help="Use fewer threads while other programs use the cores.",
    ),
    option(
        "--prio", type=click.Choice(["low", "normal", "high"]), show_default="normal",
        help="Priority of the process; low lets other programs go first.",
    ),
    option(
        "-fa", "--flash-attn", type=click.Choice(["on", "off", "auto"]),
        help="Whether to use flash attention.",
    ),
    option(
        "-ctk", "--cache-type-k", metavar="TYPE",
        help="Number format of the keys in the KV cache: f16, q8_0, …",
    ),
    option("-ctv", "--cache-type-v", metavar="TYPE", help="Number format of the values in it."),
    option(
        "--provider", metavar="NAME",
        help="Execution provider for an ONNX model: auto, cpu, cuda or another of onnxruntime's.",
    ),
    option(
        "--batch-invariant/--no-batch-invariant", default=None,
        help="Compute in a way in which drafts never change the text, not even where two tokens "
        "are almost equally likely. About a fifth slower on CPUs.",
    ),
    option(
        "--requantize-draft/--no-requantize-draft", default=None, show_default="yes",
        help="Let a GGUF draft model run as a Q4_0 copy where this CPU evaluates that faster. "
        "The copy is made once; the text stays the same.",
    ),
    offline_option,
)  # fmt: skip

verifier_options = cloup.option_group(
    "Remote target",
    option(
        "--verifier", metavar="URL",
        help="Verify drafts on another machine: wss://HOST:PORT of `edgespec serve`, or "
        "sglang+http://…, vllm+http://…, openai+http://…. The model of -m, if there is one, "
        "answers while that machine cannot be reached.",
    ),
    option(
        "--verifier-key-file", metavar="FILE", type=FILE,
        help="File with the key for that machine. EDGESPEC_VERIFIER_KEY can hold the key instead.",
    ),
    option(
        "--verifier-model", metavar="NAME",
        help="Name of the model that it must have; any other is refused.",
    ),
    option(
        "--verifier-timeout", metavar="SECONDS", type=float, default=10,
        help="Longest time to wait for a reply.",
    ),
)  # fmt: skip

sampling_options = cloup.option_group(
    "Sampling",
    option(
        "--temp", type=float, show_default="the model's own, as with top-k to frequency-penalty",
        help="Temperature; 0 always takes the most likely token.",
    ),
    option("--top-k", type=int, help="Keep the K most likely tokens, 0 for all."),
    option(
        "--top-p", type=float,
        help="Keep the most likely tokens that together have this probability.",
    ),
    option(
        "--min-p", type=float,
        help="Drop tokens less likely than this fraction of the most likely token's probability.",
    ),
    option(
        "--repeat-penalty", type=float,
        help="Divide the logits of tokens that occurred before by this, 1 for none.",
    ),
    option(
        "--presence-penalty", type=float,
        help="Subtract this from the logits of tokens in the answer so far.",
    ),
    option(
        "--frequency-penalty", type=float,
        help="Subtract this as often as the token is in the answer so far.",
    ),
    option(
        "--logit-bias", type=LogitBiasType(), multiple=True, metavar="ID=VALUE",
        help="Add VALUE to the logit of token ID; can be given several times.",
    ),
    option(
        "--seed", type=int, show_default="a new one every time",
        help="Seed of the random numbers: the same seed gives the same text.",
    ),
    option(
        "-n", "--n-predict", "--max-tokens", "n_predict", type=int,
        show_default="-1; 2048 with run",
        help="Largest number of tokens to generate, -1 until the context is full.",
    ),
    option(
        "--stop", type=StopType(), multiple=True,
        help="End the answer before this text; can be given several times.",
    ),
    option("--ignore-eos", is_flag=True, help="Go on where the model would end its answer."),
    option(
        "--time-limit", type=click.FloatRange(min=0), metavar="SECONDS",
        help="End the answer after this time.",
    ),
)  # fmt: skip

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
    option(
        "--grammar", metavar="GRAMMAR",
        help="The answer follows this grammar, in llama.cpp's form (GBNF) or Lark's.",
    ),
    option(
        "--grammar-file", metavar="FILE", type=click.File("rb"),
        help="The answer follows the grammar in this file.",
    ),
    option("--regex", metavar="REGEX", help="All of the answer matches this regular expression."),
    option(
        "--choice", "choices", metavar="TEXT", multiple=True,
        help="The answer is this text, or another choice; can be given several times.",
    ),
)  # fmt: skip

policy_option = option(
    "--policy", type=NameType("policy", policies), show_default="auto",
    help="What decides how much is drafted: auto is adaptive, by measured costs, or fixed where "
    "a number of tokens is given.",
)  # fmt: skip

speculation_options = cloup.option_group(
    "Speculation",
    option(
        "--spec-type", type=SpecType(), show_default="auto",
        help="What drafts tokens, one method or several separated by commas: auto chooses at "
        "every step, none is plain decoding, ngram is another name of suffix.",
    ),
    policy_option,
    option("--spec-draft-n-max", type=int, help="Largest number of tokens drafted in a step."),
    option("--spec-draft-n-min", type=int, help="Do not use drafts shorter than this."),
    option(
        "--spec-draft-p-min", type=float,
        help="End a draft where its probability falls below this.",
    ),
    option(
        "--spec-option", "spec_options", type=KeyValueType(), multiple=True, metavar="NAME=VALUE",
        help="An option of a drafter or policy; can be given several times.",
    ),
    option(
        "--draft-window", type=int, metavar="TOKENS",
        show_default="where that is measured to be faster",
        help="Let a draft model see only the first tokens and so many of the latest, 0 for all.",
    ),
    option(
        "--draft-corpus", multiple=True, metavar="PATH", type=PathsType(),
        help="Draft from this text file, folder or saved chat as well, in place of what "
        "`edgespec corpus add` has added; 'none' for nothing. Can be given several times.",
    ),
    option(
        "--draft-memory", type=click.Choice(["off", "process", "disk"]),
        show_default="process; off for serve and bench",
        help="Draft from earlier answers: those of this process, or those of earlier ones too, "
        "which are kept on this disk.",
    ),
    option(
        "--acceptance", type=NameType("acceptance", acceptance_rules),
        show_default="block", help="Acceptance rule for drafts at a temperature above 0.",
    ),
    option(
        "--spec-remember", type=click.Choice(["all", "rates", "nothing"]),
        show_default="all, with serve rates",
        help="What of drafts is kept on this disk for later starts: all, only the rates at which "
        "they came true, or nothing. No text is kept.",
    ),
)  # fmt: skip

system_option = option("--system", help="System prompt.")

reasoning_option = option(
    "--reasoning-budget", type=int, metavar="N",
    show_default="0 for a model that can do without, else -1",
    help="Largest number of tokens that a model reasons with before it answers: 0 for no "
    "reasoning, -1 for no limit.",
)  # fmt: skip

display_options = (
    option("-q", "--quiet", is_flag=True, help="Do not print figures after an answer."),
    option("--show-drafts", is_flag=True, help="Show tokens that were drafted in colour."),
)


def generation_options(command: F) -> F:
    """Add what `run` and `chat` have in common, between their Prompt and Output options."""
    groups = (model_options, verifier_options, sampling_options, speculation_options)
    for add in reversed(groups):
        command = add(command)
    return command
