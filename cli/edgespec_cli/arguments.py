"""Checks options and turns them into arguments of the library's functions."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from edgespec.config import CONSTRAINTS
from edgespec.setting import settings_of

from .prompt import read

if TYPE_CHECKING:
    import edgespec

log = logging.getLogger(__name__)

_DRAFT_ENGINE = {
    "ctx_size_draft": "n_ctx",
    "n_gpu_layers_draft": "n_gpu_layers",
    "device_draft": "device",
}
FORMS = {  # options for the form of an answer, and the fields of SamplingParams that they set
    "json_schema": "schema",
    "json_schema_file": "schema",
    "grammar": "grammar",
    "grammar_file": "grammar",
    "regex": "regex",
    "choices": "choices",
}
_OTHERWISE = (  # settings whose options have a different name or form
    "method", "model", "options", "draft_corpus",
    "logit_bias", "stop", *CONSTRAINTS,
)  # fmt: skip


def _given(options: Mapping[str, Any], owner: type) -> dict[str, Any]:
    """Return the given options that are settings of the class `owner`, by name."""
    return {
        name: options[name]
        for name in settings_of(owner)
        if name not in _OTHERWISE and options.get(name) is not None
    }


def _warn_of_threads(engine: Mapping[str, Any]) -> None:
    """Warn if there are more threads than cores: such threads wait for each other at every step."""
    from edgespec.device import usable_cpus

    cores = usable_cpus()
    for field, option in (("n_threads", "-t"), ("n_threads_batch", "-tb")):
        n_threads = engine.get(field, 0)
        if n_threads > cores:
            log.warning(
                "%s %d is more than the %d cores that this process may use, which is slow; %s %d "
                "or less", option, n_threads, cores, option, cores,
            )  # fmt: skip


def engine_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `edgespec.load`, checked as far as possible without a model."""
    import edgespec

    engine = _given(options, edgespec.EngineConfig)
    draft_engine = {
        name: options[key] for key, name in _DRAFT_ENGINE.items() if options.get(key) is not None
    }
    edgespec.EngineConfig(**engine)
    edgespec.EngineConfig(**draft_engine)
    _warn_of_threads(engine)
    draft, method = _draft_and_method(options)
    speculation = _given(options, edgespec.SpeculativeConfig) | {"method": method}
    if paths := options.get("draft_corpus"):
        speculation["draft_corpus"] = () if paths == ("none",) else paths
    if given := options.get("spec_options"):
        speculation["options"] = {name: _literal(text) for name, text in given}
    # checked with "auto", because the name of the draft model is in `draft`
    edgespec.SpeculativeConfig(**(speculation | {"method": "auto"}))
    return engine | {
        "draft": draft,
        "draft_options": draft_engine or None,
        "speculative_config": speculation,
    }


def advised(command: str, *more: str) -> str:
    """Return a command to recommend, in backticks, with the models of the running command."""
    from edgespec.advice import command as worded

    context = click.get_current_context(silent=True)
    given = context.params if context else {}
    return worded(command, given.get("model"), given.get("draft_model") or "auto", *more)


def read_anew_by_default(options: dict[str, Any]) -> None:
    """Turn off the prompt cache unless the options ask for it, so that each prompt is read."""
    options["prompt_cache"] = options.get("prompt_cache") or "off"


def forget_by_default(options: dict[str, Any]) -> None:
    """Turn off drafts from documents and earlier answers unless the options ask for them."""
    options["draft_memory"] = options.get("draft_memory") or "off"
    options["draft_corpus"] = options.get("draft_corpus") or ("none",)


def _literal(text: str) -> Any:
    """Return the value of a text if it is JSON, such as a number, bool or list; else the text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def model_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments for functions that load models but do not speculate."""
    arguments = engine_arguments(options)
    del arguments["speculative_config"]
    return arguments


def _draft_and_method(options: Mapping[str, Any]) -> tuple[str | None, str]:
    """Return the draft model and the method; None means no draft model. Raises UsageError if they
    contradict each other.
    """
    import edgespec

    method = options.get("spec_type") or "auto"
    draft = options.get("draft_model") or "auto"
    using = [entry.name for entry in edgespec.drafters.chosen(method) if entry.uses_model]
    if not using and draft not in ("auto", "none"):
        ctx = click.get_current_context(silent=True)
        if ctx is None or not _overrides(ctx, "spec_type", "draft_model"):
            raise click.UsageError(
                f"--spec-type {method} uses no draft model, but -md {draft} was given; "
                "leave one out"
            )
    if using and draft == "none" and method != "auto":
        raise click.UsageError(
            f"--spec-type {using[0].replace('_', '-')} needs a draft model, but -md none was "
            "given; name one"
        )
    return (draft if using and draft != "none" else None), method


def sampling_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of SamplingParams that the options set, checked."""
    import edgespec

    sampling = _given(options, edgespec.SamplingParams)
    if sampling.get("max_tokens") == -1:
        del sampling["max_tokens"]
    if options.get("logit_bias"):
        sampling["logit_bias"] = dict(options["logit_bias"])
    if options.get("stop"):
        sampling["stop"] = tuple(options["stop"])
    sampling |= _form(options)
    edgespec.SamplingParams(**sampling)
    return sampling


def endless_repetition(ctx: click.Context) -> dict[str, Any]:
    """Return the field of SamplingParams that ends an answer which repeats itself without end.
    Return nothing if the user has set the largest number of tokens.
    """
    import edgespec

    if ctx.get_parameter_source("max_tokens") is not ParameterSource.DEFAULT:
        return {}
    return {"repetition_detection": edgespec.RepetitionDetection.endless()}


def reasoning_arguments(options: Mapping[str, Any], chat: edgespec.Chat) -> dict[str, Any]:
    """Return the setting for reasoning in a chat. By default, a model that can answer without
    reasoning does not reason. Raises UsageError for a budget below -1.
    """
    budget = options.get("reasoning_budget")
    if budget is None:
        return {"reasoning_budget": 0} if chat.may_skip_reasoning else {}
    if budget < -1:
        raise click.UsageError(
            f"--reasoning-budget {budget}: give a number of tokens, 0 for no reasoning or -1 for "
            "no limit"
        )
    return {} if budget == -1 else {"reasoning_budget": budget}


def _form(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the field of SamplingParams for the form of the answer, if an option sets one. Raises
    UsageError if several do.
    """
    given = {name: options[name] for name in FORMS if options.get(name)}
    if len(given) > 1:
        named = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise click.UsageError(f"{named} were given, and an answer has one form; leave one out")
    for name, value in given.items():
        text = read(value, value.name) if name.endswith("_file") else value
        return {FORMS[name]: text}
    return {}


def from_environment(ctx: click.Context, name: str) -> bool:
    """Return True if the value of an option comes from an environment variable."""
    return ctx.get_parameter_source(name) is ParameterSource.ENVIRONMENT


def is_typed(ctx: click.Context, name: str) -> bool:
    """Return True if an option or argument was given on the command line."""
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _overrides(ctx: click.Context, strong: str, weak: str) -> bool:
    """Return True if `strong` was typed and `weak` comes from the environment."""
    return is_typed(ctx, strong) and from_environment(ctx, weak)


def refuse_typed(ctx: click.Context, names: Iterable[str], why: str) -> None:
    """Raise UsageError if one of these options was typed, because it has no effect here.

    why: the rest of the message, after the option's flag. Options from the environment are ignored,
    because they are set for all commands.
    """
    for name in names:
        if is_typed(ctx, name):
            raise click.UsageError(f"{_flag(ctx, name)} {why}")


def exclusive(ctx: click.Context, first: str, second: str) -> None:
    """Raise UsageError if two options that contradict each other are given. But if one was typed
    and the other comes from the environment, the typed one wins.

    The losing option becomes None in `ctx.params`. cloup's `mutually_exclusive` cannot be used,
    because it ignores the source of a value.
    """
    if not ctx.params[first] or not ctx.params[second]:
        return
    for strong, weak in ((first, second), (second, first)):
        if _overrides(ctx, strong, weak):
            ctx.params[weak] = None
            return
    raise click.UsageError(
        f"{_flag(ctx, first)} and {_flag(ctx, second)} exclude each other; leave one out"
    )


def _flag(ctx: click.Context, name: str) -> str:
    return max(next(p for p in ctx.command.params if p.name == name).opts, key=len)
