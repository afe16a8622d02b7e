"""The types of option values: what they accept, and what the shell completes."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from .habits import SPEC_TYPES
from .render import say


class ModelType(click.ParamType):  # type: ignore[type-arg]
    """A model reference; the shell completes names of the catalogue, or else paths."""

    name = "model"

    def __init__(self, *extra: str) -> None:
        self._extra = extra

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return matching names, or ask for files: bash shows only files if it gets both."""
        from edgespec import hub

        names = [*self._extra, *hub.entries()]
        items = [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return items or [CompletionItem(incomplete, type="file")]


class StopType(click.ParamType):  # type: ignore[type-arg]
    """A stop string; the environment variable holds one, or a JSON list of them."""

    name = "text"

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        """Return the strings of a JSON list, or the whole value: stop strings may hold blanks."""
        if rv.lstrip().startswith("["):
            try:
                values = json.loads(rv)
            except (ValueError, RecursionError):
                return [rv]
            if isinstance(values, list) and all(isinstance(v, str) for v in values):
                return values
        return [rv]


class PathsType(click.ParamType):  # type: ignore[type-arg]
    """A path; the environment variable holds several as PATH does."""

    name = "path"
    envvar_list_splitter = os.pathsep

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the path as it is; an empty one is no name of the current folder."""
        return value or self.fail("it is empty; name a file or a folder", param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Ask for files."""
        return [CompletionItem(incomplete, type="file")]


class GpuLayersType(click.ParamType):  # type: ignore[type-arg]
    """A number of layers; "all" and "auto", as llama.cpp has them, are as many as fit (-1)."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number."""
        if str(value).lower() in ("all", "auto"):
            return -1
        try:
            return int(value)
        except ValueError:
            self.fail(f"{value!r} is neither a number of layers nor all or auto", param, ctx)


class LogitBiasType(click.ParamType):  # type: ignore[type-arg]
    """A token id and what is added to its logit, as ID=VALUE; -inf forbids the token."""

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
    """A name and its text, as KEY=VALUE."""

    name = "key=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Return the key and the text after the first '='."""
        if isinstance(value, tuple):
            return value
        key, equals, text = str(value).partition("=")
        if not key or not equals:
            self.fail(f"{value!r} is not KEY=VALUE, for example block_size=64", param, ctx)
        return key, text


class NumbersType(click.ParamType):  # type: ignore[type-arg]
    """Numbers of one `kind`, separated by commas or blanks; `what` names them in messages."""

    name = "n,n"

    def __init__(self, kind: type[int] | type[float], what: str) -> None:
        self._kind, self._what = kind, what

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[Any]:
        """Return the numbers, none of which may be below 0."""
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
    """Numbers of layers separated by commas or blanks, "final" for the final hidden states."""

    name = "layers"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Return the numbers, FINAL for the final states."""
        if isinstance(value, tuple):
            return value
        from edgespec.convert.upgrade import FINAL

        words = str(value).replace(",", " ").split()
        if not words or not all(word == "final" or word.isdecimal() for word in words):
            self.fail(f"{value!r} is no list of layers, for example 2,15,final", param, ctx)
        return tuple(FINAL if word == "final" else int(word) for word in words)


def spec_types() -> dict[str, str]:
    """Return the values of --spec-type, each with the library's name of that method."""
    import edgespec

    known = edgespec.drafters
    entries = [known.entry(name) for name in known.names()]
    written = {name: entry.name for entry in entries for name in (entry.name, *entry.aliases)}
    methods = {method: method for method in known.METHODS} | written
    return {name.replace("_", "-"): method for name, method in methods.items()}


class SpecType(click.ParamType):  # type: ignore[type-arg]
    """A comma list of speculative methods; the value lists the library's names of them."""

    name = "spec_type"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return the methods for --help; asked for late, so that starting stays quick."""
        return f"[{'|'.join(spec_types())}],…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the library's names of the methods, if they can be used together."""
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
        """Return our methods for one, and say which they are for one of llama.cpp's."""
        if word in known or word not in SPEC_TYPES:
            return [word]
        ours, what = SPEC_TYPES[word]
        say(f"note: for llama.cpp's {word} edgespec takes {ours}, {what}", err=True)
        return ours.split(",")

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the methods, also for the last word of a comma list."""
        *before, word = incomplete.split(",")
        return [
            CompletionItem(",".join([*before, name]))
            for name in spec_types()
            if name.startswith(word)
        ]


class NameType(click.ParamType):  # type: ignore[type-arg]
    """A name of something that registers itself. names: returns those that are known; it is called
    late, so that starting stays quick.
    """

    def __init__(self, name: str, names: Callable[[], list[str]]) -> None:
        self.name, self._names = name, names

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return the names for --help."""
        return f"[{'|'.join(self._names())}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name, if it is known."""
        from edgespec.config import did_you_mean

        known, name = self._names(), str(value).replace("-", "_")
        if name not in known:
            self.fail(f"{value!r} is unknown; {did_you_mean(name, known)}", param, ctx)
        return name

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the names."""
        return [CompletionItem(name) for name in self._names() if name.startswith(incomplete)]


def policies() -> list[str]:
    """Return the values of --policy."""
    import edgespec

    return ["auto", *edgespec.policies.names()]


def acceptance_rules() -> list[str]:
    """Return the values of --acceptance."""
    import edgespec

    return edgespec.rules.names()
