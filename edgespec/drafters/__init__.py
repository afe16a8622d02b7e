"""Drafters, which guess the target's next tokens. Each has a file here and registers itself.

docs/how-to/write-a-drafter.md says what a drafter has to do. Other packages name their drafters in
the entry-point group `edgespec.drafters`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from .. import registry
from ..config import did_you_mean
from ..errors import ConfigError

if TYPE_CHECKING:
    from .base import Drafter, DrafterContext

Made = TypeVar("Made", bound="Drafter")
METHODS = ("auto", "none")  # methods in addition to the names of drafters


@dataclass(frozen=True, slots=True)
class Entry(registry.Entry):
    """A registered drafter.

    uses_model: the drafter needs a draft model. automatic: the method "auto" uses the drafter; only
    for drafters of edgespec itself. trees: the drafter is made for targets that evaluate trees;
    "auto" leaves it out for other targets.
    """

    uses_model: bool = False
    automatic: bool = False
    trees: bool = False


known: registry.Registry[Entry] = registry.Registry(
    "drafter", __name__, "write-a-drafter.md", METHODS
)
names, entry, unregistered = known.names, known.entry, known.unregistered


def register(
    name: str,
    summary: str,
    *,
    aliases: Iterable[str] = (),
    uses_model: bool = False,
    automatic: bool = False,
    trees: bool = False,
) -> Callable[[Callable[..., Made]], Callable[..., Made]]:
    """Register the decorated function, which makes a drafter from a DrafterContext.

    The function's keyword-only arguments are the drafter's options. summary: what it drafts from,
    in a few words. Raises ConfigError for a name that is invalid or already taken.
    """

    def add(make: Callable[..., Made]) -> Callable[..., Made]:
        known.add(Entry(name, make, summary, tuple(aliases), uses_model, automatic, trees))
        return make

    return add


def chosen(method: str) -> list[Entry]:
    """Return the drafters that a `SpeculativeConfig.method` names.

    method: "auto", "none", or names separated by commas. Raises ConfigError for an unknown name.
    """
    if method == "none":
        return []
    if method == "auto":
        entries = [each for each in known.own() if each.automatic]
    else:
        asked = [name.strip() for name in method.split(",")]
        if len(asked) > 1 and set(asked) & set(METHODS):
            raise ConfigError(f"{method!r}: auto and none cannot be combined with other methods")
        entries = [entry(name) for name in asked]
    return sorted(dict.fromkeys(entries), key=lambda each: each.uses_model)


def make(entries: Iterable[Entry], context: DrafterContext) -> list[Drafter]:
    """Make the drafters. Each of them gets those of `context.config.options` that it takes."""
    from .base import Drafter

    options = context.config.options
    return [known.make(entry, context, options, Drafter) for entry in entries]


def check_options(
    options: Mapping[str, Any], entries: Iterable[Entry], others: Iterable[str] = ()
) -> None:
    """Raise ConfigError for an option that none of these drafters takes.

    others: the names of the policy's options, which are allowed as well.
    """
    entries = list(entries)
    taken = [name for entry in entries for name in entry.options] + list(others)
    for name in options:
        if name not in taken:
            raise ConfigError(_unknown_option(name, taken, entries))


def _unknown_option(name: str, taken: list[str], entries: Iterable[Entry]) -> str:
    owner = known.owner_of(name)
    if owner and owner.uses_model:
        return (
            f"the option {name!r} is for draft models and heads, and none is loaded; name one "
            "(draft=…, or -md on the command line), or leave the option out"
        )
    if owner:
        return f"the option {name!r} is for the method {owner.name!r}, which is not asked for"
    if taken:
        return f"unknown option {name!r} of the drafters; {did_you_mean(name, taken)}"
    used = ", ".join(entry.name for entry in entries) or "none"
    return f"unknown option {name!r}: the drafters that are used ({used}) have no options"
