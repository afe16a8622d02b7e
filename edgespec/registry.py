"""Registries: each holds the implementations of one kind by name, such as all drafters.

Each implementation is one file that registers itself. It is in the folder of its kind, or is a
module that another package names in the kind's entry-point group. The configuration, the command
line, the replay and the docs then know its name. Other packages are searched only if a name is
unknown or all names are listed.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from .config import did_you_mean
from .errors import ConfigError

logger = logging.getLogger("edgespec.registry")


@dataclass(frozen=True, slots=True)
class Entry:
    """An implementation that can be selected by name.

    make: a function that returns the object; its keyword-only arguments are options. summary: a
    description in a few words. aliases: other names of the entry.
    """

    name: str
    make: Callable[..., Any]
    summary: str
    aliases: tuple[str, ...] = ()

    @property
    def options(self) -> list[str]:
        """The names of the options that `make` takes."""
        parameters = inspect.signature(self.make).parameters.items()
        return [name for name, each in parameters if each.kind is each.KEYWORD_ONLY]

    @property
    def is_own(self) -> bool:
        """True if edgespec implements the entry, not another package."""
        return self.make.__module__.startswith("edgespec.")


E = TypeVar("E", bound=Entry)


class Registry(Generic[E]):
    """The entries of one kind.

    kind: a word for one entry, such as "drafter". package: the package whose files register
    entries. page: the page in docs/how-to about writing one. reserved: names that no entry may
    have, because they mean something else where the user names an entry.
    """

    def __init__(self, kind: str, package: str, page: str, reserved: Iterable[str] = ()) -> None:
        self._kind, self._package, self._page = kind, package, page
        self._reserved = tuple(reserved)
        self._entries: dict[str, E] = {}
        self._own = functools.cache(self._read_own_files)
        self._others = functools.cache(self._read_entry_points)

    def add(self, entry: E) -> None:
        """Add an entry. Raises ConfigError if its name is taken, or is not made of lower-case
        letters, digits and underscores.
        """
        names = entry.name, *entry.aliases
        for name in names:
            self._check_name(name, entry.make.__module__)
        self._entries.update(dict.fromkeys(names, entry))

    def remove(self, name: str) -> None:
        """Remove a name from the registry."""
        del self._entries[name]

    def own(self) -> list[E]:
        """Return edgespec's own entries, sorted by name."""
        self._own()
        own = {entry.name: entry for entry in self._entries.values() if entry.is_own}
        return [own[name] for name in sorted(own)]

    def names(self) -> list[str]:
        """Return the names of all entries, including those of other packages."""
        self._own()
        self._others()
        return sorted({entry.name for entry in self._entries.values()})

    def entry(self, name: str) -> E:
        """Return the entry with this name or alias. Raises ConfigError if there is none, naming the
        closest one.
        """
        self._own()
        if name not in self._entries:
            self._others()
        if name not in self._entries:
            hint = self.unregistered(name) or did_you_mean(name, [*self._reserved, *self.names()])
            raise ConfigError(f"unknown {self._kind} {name!r}; {hint}")
        return self._entries[name]

    def unregistered(self, name: str) -> str:
        """Return advice if the package has a file of this name that registers nothing, else ""."""
        module = sys.modules.get(f"{self._package}.{name}")
        if module is None or module.__name__ in self._modules():
            return ""
        return (
            f"{module.__file__} registers no {self._kind}: put @register({name!r}, …) above what "
            "makes it"
        )

    def make(self, entry: E, context: Any, options: Mapping[str, Any], kind: type) -> Any:
        """Return the object that an entry makes from `context` and the `options` that it takes.

        Raises ConfigError if it cannot be made, or is not an instance of `kind`.
        """
        given = {name: options[name] for name in entry.options if name in options}
        try:
            made = entry.make(context, **given)
        except ConfigError:
            raise  # its message needs no addition
        except (TypeError, ValueError) as error:
            raise ConfigError(f"the {self._kind} {entry.name!r} cannot be made: {error}") from error
        if not isinstance(made, kind):
            raise ConfigError(
                f"the {self._kind} {entry.name!r} is a {type(made).__name__}, and no subclass of "
                f"{kind.__module__}.{kind.__qualname__}; "
                f"docs/how-to/{self._page} says what it has to do"
            )
        return made

    def owner_of(self, option: str) -> E | None:
        """Return the entry that takes an option, None if none does."""
        return next((entry for entry in self._entries.values() if option in entry.options), None)

    def _modules(self) -> set[str]:
        return {entry.make.__module__ for entry in self._entries.values()}

    def _check_name(self, name: str, module: str) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise ConfigError(
                f"{name!r} cannot name a {self._kind}; take lower-case letters, digits and "
                "underscores"
            )
        holder = "edgespec" if name in self._reserved else None
        if name in self._entries and self._entries[name].make.__module__ != module:
            holder = self._entries[name].make.__module__
        if holder:
            raise ConfigError(
                f"there is a {self._kind} {name!r} already, of {holder}; {module} has to choose "
                "another name"
            )

    def _read_own_files(self) -> None:
        for module in pkgutil.iter_modules(sys.modules[self._package].__path__):
            importlib.import_module(f"{self._package}.{module.name}")

    def _read_entry_points(self) -> None:
        from importlib.metadata import entry_points

        for point in entry_points(group=self._package):
            try:
                point.load()
                self._check_registered(point.module)
            except Exception as error:  # one broken package must not hide the others
                package = point.dist.name if point.dist else point.value
                logger.warning(
                    "the %s %s of the package %s is left out: %s: %s",
                    self._kind, point.name, package, type(error).__name__, error,
                )  # fmt: skip

    def _check_registered(self, module: str) -> None:
        """Raise ConfigError if the package of this imported module has registered no entry."""
        if module.partition(".")[0] not in {name.partition(".")[0] for name in self._modules()}:
            raise ConfigError(
                f"{module} registers no {self._kind}; put @{self._package}.register(NAME, SUMMARY) "
                "above what makes it"
            )
