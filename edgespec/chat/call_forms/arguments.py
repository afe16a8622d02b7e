"""The contract of argument forms: how the arguments of a tool call are written."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .. import argument_schemas
from ..tools import Tool

if TYPE_CHECKING:
    from ..grammar import AnswerGrammar


def as_object(arguments: Any) -> Any:
    """Return arguments as an object. arguments: an object, or the JSON text of one."""
    return json.loads(arguments) if isinstance(arguments, str) else arguments


class ArgumentsReader(ABC):
    """A reader that takes the arguments of one call in pieces and returns JSON.

    is_complete: True once the arguments have ended; `read` sets it.
    """

    is_complete = False
    _given = ""

    @property
    def is_valid(self) -> bool:
        """True if all that was returned is a JSON object."""
        try:
            return isinstance(json.loads(self._given), dict)
        except (ValueError, RecursionError):
            return False

    def take(self, text: str) -> tuple[str, str]:
        """Return what `read` returns for more text, and remember the JSON."""
        given, rest = self.read(text)
        self._given += given
        return given, rest

    @abstractmethod
    def read(self, text: str) -> tuple[str, str]:
        """Return new JSON that is certain, and the text after the arguments ("" before they end).

        The returned pieces of JSON together make one object. The text after the arguments begins
        with the `closing` of the call.
        """


@dataclass(frozen=True, slots=True)
class Arguments(ABC):
    """One way to write arguments: its markers, its grammar, and its reader.

    item_separator, key_separator: the separators in its JSON.
    """

    item_separator: str = field(default=", ", kw_only=True)
    key_separator: str = field(default=": ", kw_only=True)

    @abstractmethod
    def texts(self) -> Iterator[str]:
        """Yield the markers that occur in arguments."""

    @abstractmethod
    def begins(self, closing: str) -> tuple[str, ...]:
        """Return the texts that can begin the arguments. closing: the text that closes the call."""

    @abstractmethod
    def rule(self, grammar: AnswerGrammar, index: int, tool: Tool, ends: Sequence[str]) -> str:
        """Return the rule for a tool's arguments, and for the end of the call, in Lark's form.

        index: the number of the tool, which makes the names of rules unique. ends: the markers that
        may follow the arguments when an answer is read; the first one is the end to write.
        """

    @abstractmethod
    def write(self, arguments: Any) -> str:
        """Return arguments as the model writes them.

        arguments: an object, or the JSON text of one (`as_object`).
        """

    @abstractmethod
    def reader(self, tool: Tool, ends: Sequence[str]) -> ArgumentsReader:
        """Return a reader for the arguments of a call of this tool.

        ends: the markers that may follow the arguments.
        """

    def schemas(self, tool: Tool) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the schemas in the rule of a tool, each with its place in the tool's schema. By
        default, these are the schemas of all arguments.
        """
        for key in argument_schemas.properties(tool):
            schema = argument_schemas.of_argument(tool, key, self.guidance(tool))
            yield f"/properties/{key}", schema

    def check(self, tool: Tool) -> None:  # noqa: B027
        """Raise ConfigError, with the place, if a tool's arguments cannot be written this way."""

    @property
    def is_whole(self) -> bool:
        """True if all arguments are written as one value, which follows the tool's schema."""
        return False

    def guidance(self, tool: Tool) -> Mapping[str, Any]:
        """Return the options that llguidance gets with a schema, which say how JSON is written."""
        told: dict[str, Any] = {
            "whitespace_flexible": False,
            "item_separator": self.item_separator,
            "key_separator": self.key_separator,
        }
        return told if tool.strict else told | {"lenient": True}
