"""Arguments that are written as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import argument_schemas
from ..tools import Tool
from .arguments import Arguments, ArgumentsReader

if TYPE_CHECKING:
    from ..grammar import AnswerGrammar


@dataclass(frozen=True, slots=True)
class Json(Arguments):
    """Arguments in the form of a JSON object with these separators."""

    def texts(self) -> Iterator[str]:
        """Yield nothing: a JSON object has no markers."""
        yield from ()

    def begins(self, closing: str) -> tuple[str, ...]:
        """Return the brace that opens the object."""
        return ("{",)

    def rule(self, grammar: AnswerGrammar, index: int, tool: Tool, ends: Sequence[str]) -> str:
        """Return the rule for an object that follows the tool's schema, and the end of the call."""
        schema = json.dumps(argument_schemas.of_tool(tool, self.guidance(tool)))
        return f"%json {schema} {grammar.text(ends[0])}"

    def write(self, arguments: Any) -> str:
        """Return the arguments as JSON, and JSON text unchanged."""
        if isinstance(arguments, str):
            return arguments
        separators = self.item_separator, self.key_separator
        return json.dumps(arguments, ensure_ascii=False, separators=separators)

    def reader(self, tool: Tool, ends: Sequence[str]) -> ArgumentsReader:
        """Return a reader that finds the end of the object."""
        return JsonReader()

    def schemas(self, tool: Tool) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the schema of all arguments, whose place is ""."""
        yield "", argument_schemas.of_tool(tool, self.guidance(tool))

    @property
    def is_whole(self) -> bool:
        """True: the object is one value."""
        return True


class JsonReader(ArgumentsReader):
    """Finds the end of a JSON object in text that arrives in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    def read(self, text: str) -> tuple[str, str]:
        """Return the part of `text` that belongs to the object, and the rest after it."""
        at = next((i + 1 for i, char in enumerate(text) if self._ends(char)), len(text))
        return text[:at], text[at:]

    def _ends(self, char: str) -> bool:
        """Read one character and return True if it ends the object."""
        if self._in_string:
            if self._is_escaped:
                self._is_escaped = False
            else:
                self._is_escaped = char == "\\"
                self._in_string = char != '"'
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            self.is_complete = self._depth == 0
        return self.is_complete
