"""Types of option values. Each one parses values, and may complete them in the shell."""

from __future__ import annotations

import contextlib
import difflib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from .habits import SPEC_TYPES
from .render import say


class ModelType(click.ParamType):  # type: ignore[type-arg]
    """A model reference. The shell completes the names of the catalogue, or paths if no name fits.

    extra: further words that the option accepts, which are completed as well.
    """

    name = "model"

    def __init__(self, *extra: str) -> None:
        self._extra = extra

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the names that fit, or else ask for files. They are not combined, because bash
        would show only the files.
        """
        from edgespec import hub

        names = [*self._extra, *hub.entries()]
        items = [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return items or [CompletionItem(incomplete, type="file")]


class ExistingPathType(click.Path):
    """A file or a folder that must exist. The error names the most similar one next to it.

    kinds: as for click.Path.
    """

    def __init__(self, **kinds: bool) -> None:
        super().__init__(exists=True, path_type=Path, **kinds)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path. Raises BadParameter."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            from edgespec import kept_files

            path = Path(value)
            with contextlib.suppress(OSError):  # such as a name that is too long
                there = [each.name for each in kept_files.matching(path.parent, "*")]
                near = difflib.get_close_matches(path.name, there, n=1)
                if near and not path.exists():
                    error.message += f" Did you mean {str(path.with_name(near[0]))!r}?"
            raise


class StopType(click.ParamType):  # type: ignore[type-arg]
    """A stop string. The environment variable holds one stop string, or a JSON list of them."""

    name = "text"

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        """Return the strings of a JSON list, or else the value as one string: it is not split at
        blanks, because stop strings may contain them.
        """
        if rv.lstrip().startswith("["):
            try:
                values = json.loads(rv)
            except (ValueError, RecursionError):
                return [rv]
            if isinstance(values, list) and all(isinstance(v, str) for v in values):
                return values
        return [rv]


class PathsType(click.ParamType):  # type: ignore[type-arg]
    """A path. The environment variable holds several paths, separated as in PATH."""

    name = "path"
    envvar_list_splitter = os.pathsep

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the path unchanged. Fail for an empty one: it does not mean the current folder."""
        return value or self.fail("it is empty; name a file or a folder", param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Ask the shell to complete files."""
        return [CompletionItem(incomplete, type="file")]


class GpuLayersType(click.ParamType):  # type: ignore[type-arg]
    """A number of layers. "all" and "auto" are allowed too, as in llama.cpp; both become -1, which
    means as many as fit.
    """

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of layers, -1 for as many as fit."""
        if str(value).lower() in ("all", "auto"):
            return -1
        try:
            return int(value)
        except ValueError:
            self.fail(f"{value!r} is neither a number of layers nor all or auto", param, ctx)


class LogitBiasType(click.ParamType):  # type: ignore[type-arg]
    """A token id and the value to add to its logit, as ID=VALUE; -inf forbids the token."""

    name = "id=value"

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        """Return the pairs of an environment variable, separated by commas or blanks."""
        return rv.replace(",", " ").split()

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, float]:
        """Return the token id and the bias as numbers."""
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


class KeyValueType(click.ParamType):  # type: ignore[type-arg]
    """A name and its value, as KEY=VALUE."""

    name = "key=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Return the key and the text after the first "="."""
        if isinstance(value, tuple):
            return value
        key, equals, text = str(value).partition("=")
        if not key or not equals:
            self.fail(f"{value!r} is not KEY=VALUE, for example block_size=64", param, ctx)
        return key, text


class NumbersType(click.ParamType):  # type: ignore[type-arg]
    """A list of numbers, separated by commas or blanks.

    kind: int or float. what: a description of the numbers for error messages.
    """

    name = "n,n"

    def __init__(self, kind: type[int] | type[float], what: str) -> None:
        self._kind, self._what = kind, what

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[Any]:
        """Return the numbers. Fail if one of them is negative."""
        if isinstance(value, list):
            return value
        try:
            numbers = [self._kind(part) for part in str(value).replace(",", " ").split()]
        except ValueError:
            numbers = [-1]
        if not all(number >= 0 for number in numbers):
            self.fail(f"{value!r} is not a list of {self._what}", param, ctx)
        return numbers


class LayersType(click.ParamType):  # type: ignore[type-arg]
    """A list of layer numbers, separated by commas or blanks; "final" means the final hidden
    states.
    """

    name = "layers"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Return the layer numbers, with FINAL for the final hidden states."""
        if isinstance(value, tuple):
            return value
        from edgespec.convert.upgrade import FINAL

        words = str(value).replace(",", " ").split()
        if not words or not all(word == "final" or word.isdecimal() for word in words):
            self.fail(f"{value!r} is no list of layers, for example 2,15,final", param, ctx)
        return tuple(FINAL if word == "final" else int(word) for word in words)


def spec_types() -> dict[str, str]:
    """Return a dict from each value of --spec-type to the library's name of that method."""
    import edgespec

    known = edgespec.drafters
    entries = [known.entry(name) for name in known.names()]
    written = {name: entry.name for entry in entries for name in (entry.name, *entry.aliases)}
    methods = {method: method for method in known.METHODS} | written
    return {name.replace("_", "-"): method for name, method in methods.items()}


class SpecType(click.ParamType):  # type: ignore[type-arg]
    """A list of speculative methods, separated by commas. The parsed value has the library's names
    of the methods.
    """

    name = "spec_type"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return the methods for --help. They are imported only now, so that the program starts
        quickly.
        """
        return f"[{'|'.join(spec_types())}],…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the library's names of the methods. Fail if they cannot be used together."""
        known = spec_types()
        given = [word.strip().replace("_", "-") for word in str(value).split(",")]
        words = [ours for word in given for ours in self._ours(word, known)]
        for word in words:
            if word not in known:
                import edgespec
                from edgespec.config import did_you_mean

                hint = edgespec.drafters.unregistered(word.replace("-", "_"))
                hint = hint or did_you_mean(word, list(known))
                self.fail(f"{word!r} is unknown; {hint}", param, ctx)
        methods = dict.fromkeys(known[word] for word in words)
        if len(methods) > 1 and methods.keys() & {"none", "auto"}:
            self.fail(f"{value!r}: auto and none cannot be combined with other methods", param, ctx)
        return ",".join(methods)

    @staticmethod
    def _ours(word: str, known: Mapping[str, str]) -> list[str]:
        """Return the methods that a word means. For a method of llama.cpp, return the methods of
        edgespec that replace it, and show a note that names them.
        """
        if word in known or word not in SPEC_TYPES:
            return [word]
        ours, what = SPEC_TYPES[word]
        say(f"note: for llama.cpp's {word} edgespec takes {ours}, {what}", err=True)
        return ours.split(",")

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the methods that complete the last word of the list."""
        *before, word = incomplete.split(",")
        return [
            CompletionItem(",".join([*before, name]))
            for name in spec_types()
            if name.startswith(word)
        ]


class NameType(click.ParamType):  # type: ignore[type-arg]
    """A name from a registry, such as a policy.

    names: returns the registered names. It is called only when they are needed, so that the program
    starts quickly.
    """

    def __init__(self, name: str, names: Callable[[], list[str]]) -> None:
        self.name, self._names = name, names

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return the names for --help."""
        return f"[{'|'.join(self._names())}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name, with "_" for "-". Fail if it is not registered."""
        from edgespec.config import did_you_mean

        known, name = self._names(), str(value).replace("-", "_")
        if name not in known:
            self.fail(f"{value!r} is unknown; {did_you_mean(name, known)}", param, ctx)
        return name

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the registered names that fit."""
        return [CompletionItem(name) for name in self._names() if name.startswith(incomplete)]


def policies() -> list[str]:
    """Return the values of --policy."""
    import edgespec

    return ["auto", *edgespec.policies.names()]


def kinds() -> list[str]:
    """Return the values of --kind."""
    import edgespec

    return ["auto", *edgespec.train_kinds.names()]


def acceptance_rules() -> list[str]:
    """Return the values of --acceptance."""
    import edgespec

    return edgespec.rules.names()
