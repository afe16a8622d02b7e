"""The form in which a model writes calls of tools: the contract.

A form is a value. What an answer may be (grammar.py) and what reads it (reader.py) are both made
from it, so that every call that the grammar generates is read back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..markers import ID, ID_LENGTH, INDEX
from ..templates import TAG
from .arguments import Arguments
from .json_arguments import Json

_JSON = Json()


class NotUnderstood(Exception):
    """A template whose calls of tools have no form that is known here, in a sentence."""


@dataclass(frozen=True, slots=True)
class CallForm:
    """The texts with which a model writes calls of tools.

    A call is `opening` NAME `after_name` ARGUMENTS `closing`. `begin` stands before the first call,
    `between` between two, `end` after the last. In all of them ID stands for an id of a call and
    INDEX for a number that counts calls (`markers`). is_parallel: an answer may have more than one
    call. takes_text: the template wants arguments as JSON text, not as objects. is_in_template: the
    template writes the calls of earlier answers; if not, they are given to it as their content.
    """

    opening: str
    after_name: str
    closing: str
    begin: str = ""
    between: str = ""
    end: str = ""
    arguments: Arguments = _JSON
    is_parallel: bool = True
    takes_text: bool = False
    is_in_template: bool = True

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

    def write(self, calls: Sequence[Mapping[str, Any]]) -> str:
        """Return calls, as messages have them, as the model writes them."""
        written = [self._written(number, call) for number, call in enumerate(calls)]
        return self.begin + self.between.join(written) + self.end

    def _written(self, number: int, call: Mapping[str, Any]) -> str:
        holes = {ID: str(call["id"])[:ID_LENGTH], INDEX: str(number)}
        before, between, after = self.opening, self.after_name, self.closing
        for hole, text in holes.items():
            before, between, after = (each.replace(hole, text) for each in (before, between, after))
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        return f"{before}{name}{between}{self.arguments.write(arguments)}{after}"

    def texts(self) -> Iterator[str]:
        """Yield the texts of all markers."""
        yield from (self.opening, self.after_name, self.closing, self.begin, self.between, self.end)
        yield from self.arguments.texts()
