"""The contract of how arguments of calls are written."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..tools import Tool

if TYPE_CHECKING:
    from ..grammar import AnswerGrammar


class ArgumentsReader(ABC):
    """A reader that takes the arguments of one call in pieces and returns JSON.

    is_complete: True once the arguments have ended; `read` sets it.
    """

    is_complete = False
    _given = ""

    @property
    def is_valid(self) -> bool:
        """True if what was given is a JSON object."""
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
        """Return JSON that is certain now, and the text after the arguments, empty until they end.

        All JSON that was returned makes one object. The text after the arguments begins with the
        `closing` of the call.
        """


@dataclass(frozen=True, slots=True)
class Arguments(ABC):
    """One way in which arguments are written: what may be, its grammar and what reads it.

    item_separator, key_separator: of the JSON in it.
    """

    item_separator: str = field(default=", ", kw_only=True)
    key_separator: str = field(default=": ", kw_only=True)

    @abstractmethod
    def texts(self) -> Iterator[str]:
        """Yield the markers that stand in arguments."""

    @abstractmethod
    def begins(self, closing: str) -> tuple[str, ...]:
        """Return the texts of which one stands where arguments begin. closing: of the call."""

    @abstractmethod
    def rule(self, grammar: AnswerGrammar, index: int, tool: Tool) -> str:
        """Return the arguments of a tool in Lark's form. index: of the tool, to name rules."""

    @abstractmethod
    def write(self, arguments: Any) -> str:
        """Return arguments as the model writes them: an object, or the text of a cut call."""

    @abstractmethod
    def reader(self, tool: Tool) -> ArgumentsReader:
        """Return what reads the arguments of a call of a tool."""

    @abstractmethod
    def schemas(self, tool: Tool) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the schemas that stand in the rule of a tool, each with its place in the tool's."""

    def check(self, tool: Tool) -> None:  # noqa: B027
        """Raise ConfigError, with the place, for a tool whose arguments cannot be written so."""

    @property
    def is_whole(self) -> bool:
        """True if all arguments are one value, whose schema is that of the tool."""
        return False

    def guidance(self, tool: Tool) -> Mapping[str, Any]:
        """Return what llguidance is told with a schema: how JSON is written in it."""
        told: dict[str, Any] = {
            "whitespace_flexible": False,
            "item_separator": self.item_separator,
            "key_separator": self.key_separator,
        }
        return told if tool.strict else told | {"lenient": True}
