"""The texts with which a model marks reasoning and calls of tools in its answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from .templates import TAG

ID = "\0"
"""In a marker: where the id of a call stands."""
ID_LENGTH = 9  # letters and digits, as Mistral's templates insist on
INDEX = "\1"
"""In a marker: where a number stands that counts calls."""
INDEX_LENGTH = 4  # digits of it


@dataclass(frozen=True, slots=True)
class ReasoningMarkers:
    """The texts with which a model sets its reasoning apart.

    begin, end: the texts around it; begin may stand in the generation prompt. key: the field of a
    message in which the template reads it, "" if it reads none. is_opened: the generation prompt
    opens it if nothing else is said. is_kept: reasoning of earlier turns stays in the prompt.
    switch: a variable of the template with the value that turns reasoning off, None if none does.
    """

    begin: str
    end: str
    key: str = "reasoning_content"
    is_opened: bool = False
    is_kept: bool = False
    switch: tuple[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class PairMarkers:
    """The texts around arguments that are written one by one.

    One is `opening` KEY `middle` VALUE `closing`. Texts are written as they are, other values as
    JSON.
    """

    opening: str
    middle: str
    closing: str


@dataclass(frozen=True, slots=True)
class ToolMarkers:
    """The texts with which a model writes calls of tools.

    A call is `opening` NAME `after_name` ARGUMENTS `closing`. `begin` stands before the first call,
    `between` between two, `end` after the last. Arguments are a JSON object with these separators,
    or, with `pairs`, written one by one. is_parallel: the template takes more than one call.
    takes_text: the template wants arguments as JSON text, not as objects.
    """

    opening: str
    after_name: str
    closing: str
    begin: str = ""
    between: str = ""
    end: str = ""
    pairs: PairMarkers | None = None
    item_separator: str = ", "
    key_separator: str = ": "
    is_parallel: bool = True
    takes_text: bool = False

    @property
    def prefix(self) -> str:
        """The text from the first call's beginning to its name."""
        return (self.begin + self.opening).lstrip()

    @property
    def trigger(self) -> str:
        """The text that says that a call begins."""
        tag = TAG.match(self.prefix)
        return tag[0] if tag else self.prefix

    @property
    def is_bare(self) -> bool:
        """True if calls have no marker, and so are only found at the beginning of an answer."""
        return not TAG.match(self.prefix)


def texts_of(markers: Any) -> Iterator[str]:
    """Yield the texts of markers."""
    for field in fields(markers):
        value = getattr(markers, field.name)
        if isinstance(value, PairMarkers):
            yield from texts_of(value)
        elif isinstance(value, str):
            yield value
