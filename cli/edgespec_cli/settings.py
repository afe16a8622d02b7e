"""The command /set of a chat, which changes sampling settings. They are named like the options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .arguments import sampling_arguments
from .habits import SPELLINGS
from .options import SAMPLING

if TYPE_CHECKING:
    import edgespec

_KINDS = {  # for each type of value, its name in messages and an example
    "float": ("a number", "0.7"),
    "float range": ("a number of seconds", "30"),
    "integer": ("a whole number", "40"),
    "boolean": ("on or off", "on"),
}


def listed(sampling: dict[str, Any], defaults: edgespec.SamplingParams) -> list[str]:
    """Return a line with the name and the value of each setting."""
    return [line(param, sampling, defaults) for param in _options()]


def line(param: click.Option, sampling: dict[str, Any], defaults: edgespec.SamplingParams) -> str:
    """Return a line with the name and the value of a setting.

    defaults: the sampling of requests that set nothing.
    """
    value = sampling.get(str(param.name))
    default = getattr(defaults, str(param.name))
    if value is None and isinstance(default, float | int) and not isinstance(default, bool):
        value = f"{default:g}, the default"
    elif value is None:
        default = param.show_default if isinstance(param.show_default, str) else ""
        value = "the default" + (f", {default}" if default else "")
    return f"{_name(param):<18} {value}"


def change(
    sampling: dict[str, Any], text: str, defaults: edgespec.SamplingParams
) -> tuple[dict[str, Any], str]:
    """Return the settings after a change, and a line with the setting that was changed.

    text: the name of a setting and its new value, or "default" to remove the user's value. A name
    alone changes nothing. Raises UsageError.
    """
    name, _, value = text.partition(" ")
    param, value = _option(name), value.strip()
    if not value:
        return sampling, line(param, sampling, defaults)
    changed = {key: each for key, each in sampling.items() if key != param.name}
    if value != "default":
        changed |= sampling_arguments({str(param.name): _value(param, value)})
    return changed, line(param, changed, defaults)


def _value(param: click.Option, text: str) -> Any:
    given = param.type.split_envvar_value(text) if param.multiple else text
    try:
        return param.type_cast_value(click.get_current_context(), given)
    except click.BadParameter as error:
        words = getattr(param.type, "name", "")
        if words in _KINDS and "is not a valid" in error.message:
            kind, example = _KINDS[words]
            raise click.UsageError(
                f"/set {_name(param)} takes {kind}, got {text!r}; type for example "
                f"/set {_name(param)} {example}, or /set {_name(param)} default"
            ) from None
        raise click.UsageError(f"/set {_name(param)}: {error.message}") from None


def _options() -> list[click.Option]:
    params = click.get_current_context().command.params
    return [each for each in params if isinstance(each, click.Option) and each.name in SAMPLING]


def _name(param: click.Option) -> str:
    """Return the name of a setting for users: its long option without the dashes."""
    return next(opt for opt in param.opts if opt.startswith("--"))[2:]


def _option(name: str) -> click.Option:
    """Return the option with this name, or with this name in other programs. Raises UsageError."""
    from edgespec.config import did_you_mean

    word = name.lstrip("-").replace("_", "-").lower()
    options = _options()
    known = {opt.lstrip("-"): each for each in options for opt in each.opts}
    ours = SPELLINGS.get(f"--{word}", "").lstrip("-")
    if option := known.get(word) or known.get(ours):
        return option
    raise click.UsageError(
        f"there is no setting {name!r}; {did_you_mean(word, [_name(each) for each in options])}"
    )
