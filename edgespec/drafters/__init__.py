"""Drafters guess the target's next tokens: one file for each, which registers itself.

A file in this folder, or a module that another package names in the entry-point group
`edgespec.drafters`, calls `register` and is then known by its name to the configuration, the
command line, the replay and the docs (docs/how-to/write-a-drafter.md).
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ..config import did_you_mean
from ..errors import ConfigError

if TYPE_CHECKING:
    from .base import Drafter, DrafterContext
    from .trees import Branches

logger = logging.getLogger("edgespec.drafters")

Made = TypeVar("Made", bound="Drafter | Branches")
GROUP = "edgespec.drafters"
METHODS = ("auto", "none")  # besides the names of drafters


@dataclass(frozen=True, slots=True)
class Entry:
    """A drafter that can be asked for by name.

    make: returns the drafter, or `Branches` that are drafted from in one tree with those of others;
    its keyword arguments are the drafter's options. summary: what it drafts from, in a few words.
    uses_model: it needs a draft model. automatic: "auto" uses it, if it is one of edgespec's own.
    trees: it is for targets that evaluate trees, and "auto" leaves it out for others.
    """

    name: str
    make: Callable[..., Drafter | Branches]
    summary: str
    aliases: tuple[str, ...] = ()
    uses_model: bool = False
    automatic: bool = False
    trees: bool = False

    @property
    def options(self) -> list[str]:
        """Names of the options that `make` takes."""
        return [
            name
            for name, parameter in inspect.signature(self.make).parameters.items()
            if parameter.kind is parameter.KEYWORD_ONLY
        ]


_entries: dict[str, Entry] = {}


def register(
    name: str,
    summary: str,
    *,
    aliases: Iterable[str] = (),
    uses_model: bool = False,
    automatic: bool = False,
    trees: bool = False,
) -> Callable[[Callable[..., Made]], Callable[..., Made]]:
    """Register the decorated function, which makes a drafter or `Branches` from a DrafterContext.

    Options of the drafter are its keyword-only arguments. Raises ConfigError for a name that
    another drafter has, or that is not made of lower-case letters, digits and underscores.
    """

    def add(make: Callable[..., Made]) -> Callable[..., Made]:
        entry = Entry(name, make, summary, tuple(aliases), uses_model, automatic, trees)
        for known in (name, *entry.aliases):
            _check_name(known, make.__module__)
        _entries.update(dict.fromkeys((name, *entry.aliases), entry))
        return make

    return add


def _check_name(name: str, module: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ConfigError(
            f"{name!r} cannot name a drafter; take lower-case letters, digits and underscores"
        )
    holder = "edgespec" if name in METHODS else None
    if name in _entries and _entries[name].make.__module__ != module:
        holder = _entries[name].make.__module__
    if holder:
        raise ConfigError(
            f"there is a drafter {name!r} already, of {holder}; {module} has to choose another name"
        )


def names() -> list[str]:
    """Return the names of all drafters, those of other packages included."""
    _read_own_files()
    _read_entry_points()
    return sorted({entry.name for entry in _entries.values()})


def entry(name: str) -> Entry:
    """Return the drafter of a name or an alias. Raises ConfigError with the closest names.

    Packages of others are looked through only if this one has no such drafter.
    """
    _read_own_files()
    if name not in _entries:
        _read_entry_points()
    if name not in _entries:
        known = [*METHODS, *names()]
        hint = unregistered(name) or did_you_mean(name, known)
        raise ConfigError(f"unknown speculative method {name!r}; {hint}")
    return _entries[name]


def unregistered(name: str) -> str:
    """Return what to do if a file in this folder has that name but registers nothing, else ""."""
    module = sys.modules.get(f"{__name__}.{name}")
    if module is None or any(
        entry.make.__module__ == module.__name__ for entry in _entries.values()
    ):
        return ""
    return f"{module.__file__} registers no drafter: put @register({name!r}, …) above what makes it"


def chosen(method: str) -> list[Entry]:
    """Return the drafters that a `SpeculativeConfig.method` asks for: "auto", "none", or names
    separated by commas. Raises ConfigError for an unknown name.
    """
    if method == "none":
        return []
    _read_own_files()
    if method == "auto":
        own = f"{__name__}."
        # not named `entry`: Python 3.12 would then know no function of that name below
        automatic = [each for each in _entries.values() if each.automatic]
        found = [each for each in automatic if each.make.__module__.startswith(own)]
    else:
        asked = [name.strip() for name in method.split(",")]
        if len(asked) > 1 and set(asked) & set(METHODS):
            raise ConfigError(f"{method!r}: auto and none cannot be combined with other methods")
        found = [entry(name) for name in asked]
    return sorted(dict.fromkeys(found), key=lambda each: each.uses_model)


def make(found: Iterable[Entry], context: DrafterContext) -> list[Drafter]:
    """Make drafters, each with those of `context.config.options` that it takes.

    Those that are sources of trees become one drafter, in the place of the first. Raises
    ConfigError for an option that none of them takes.
    """
    from .trees import Branches, TreeDrafter

    found = list(found)
    options: dict[str, Any] = dict(context.config.options)
    known = [name for entry in found for name in entry.options]
    for name in options:
        if name not in known:
            raise ConfigError(_unknown_option(name, known, found))
    made: list[Drafter] = []
    sources: dict[str, Branches] = {}
    place = 0
    for entry in found:
        part = _made(entry, context, options)
        if isinstance(part, Branches):
            place = place if sources else len(made)
            sources[entry.name] = part
        else:
            made.append(part)
    if sources:
        made.insert(place, TreeDrafter.of(sources, context))
    return made


def _unknown_option(name: str, known: list[str], found: Iterable[Entry]) -> str:
    """Return the message for an option that none of the drafters `found` takes."""
    owner = next((entry for entry in _entries.values() if name in entry.options), None)
    if owner and owner.uses_model:
        return (
            f"the option {name!r} is for draft models and heads, and none is loaded; name one "
            "(draft=…, or -md on the command line), or leave the option out"
        )
    if owner:
        return f"the option {name!r} is for the method {owner.name!r}, which is not asked for"
    if known:
        return f"unknown option {name!r} of the drafters; {did_you_mean(name, known)}"
    names = ", ".join(entry.name for entry in found) or "none"
    return f"unknown option {name!r}: the drafters that are used ({names}) have no options"


def _made(entry: Entry, context: DrafterContext, options: dict[str, Any]) -> Drafter | Branches:
    given = {name: options[name] for name in entry.options if name in options}
    try:
        return entry.make(context, **given)
    except ConfigError:
        raise  # it says all
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the drafter {entry.name!r} cannot be made: {error}") from error


@functools.cache
def _read_own_files() -> None:
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")


@functools.cache
def _read_entry_points() -> None:
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP):
        try:
            point.load()
            _check_registered(point.module)
        except Exception as error:  # one package that is broken must not take the others along
            package = point.dist.name if point.dist else point.value
            logger.warning(
                "the drafter %s of the package %s is left out: %s: %s",
                point.name, package, type(error).__name__, error,
            )  # fmt: skip


def _check_registered(module: str) -> None:
    """Raise ConfigError if no drafter comes from the package of a module that was imported."""
    packages = {entry.make.__module__.partition(".")[0] for entry in _entries.values()}
    if module.partition(".")[0] not in packages:
        raise ConfigError(
            f"{module} registers no drafter; put @edgespec.drafters.register(NAME, SUMMARY) above "
            "what makes it"
        )
