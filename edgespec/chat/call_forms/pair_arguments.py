"""Arguments that are written one by one, between markers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import argument_schemas
from ..texts import matched, until
from ..tools import Tool
from .arguments import Arguments, ArgumentsReader

if TYPE_CHECKING:
    from ..grammar import AnswerGrammar

_MOST_COUNTED = 50  # the most characters that a grammar counts in a text; 100 were too many


@dataclass(frozen=True, slots=True)
class Pairs(Arguments):
    """Arguments in the form `opening` KEY `middle` VALUE `closing`, one after the other.

    Their order is that of the schema. Texts are written without quotes, also where a schema lists
    the allowed values; other values are written as JSON.
    """

    opening: str
    middle: str
    closing: str

    def texts(self) -> Iterator[str]:
        """Yield the markers around keys and values."""
        yield from (self.opening, self.middle, self.closing)

    def begins(self, closing: str) -> tuple[str, ...]:
        """Return the marker that opens an argument, and the end of a call without arguments."""
        return self.opening, closing

    def check(self, tool: Tool) -> None:
        """Raise ConfigError, with the place, if some arguments cannot be written one by one."""
        argument_schemas.check(tool, self.closing)

    def schemas(self, tool: Tool) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the schemas of those arguments that are written as JSON."""
        for key in argument_schemas.properties(tool):
            if not argument_schemas.is_text(tool, key) and not argument_schemas.choices_of(
                tool, key
            ):
                yield f"/properties/{key}", self._schema(tool, key)

    def _schema(self, tool: Tool, key: str) -> dict[str, Any]:
        return argument_schemas.of_argument(tool, key, self.guidance(tool))

    # --- grammar -------------------------------------------------------------------------------

    def rule(self, grammar: AnswerGrammar, index: int, tool: Tool) -> str:
        """Return the rule for the arguments, one after the other."""
        arguments = []
        for number, key in enumerate(argument_schemas.properties(tool)):
            opening = grammar.text(self.opening + key + self.middle)
            value = self._value(grammar, f"value_{index}_{number}", tool, key)
            rule = grammar.rule(f"pair_{index}_{number}", f"{opening} {value}")
            arguments.append(rule if argument_schemas.is_required(tool, key) else f"{rule}?")
        return " ".join(arguments)

    def _value(self, grammar: AnswerGrammar, name: str, tool: Tool, key: str) -> str:
        """Return the grammar of the value of an argument and of the marker that closes it."""
        choices = argument_schemas.choices_of(tool, key)
        if choices:
            return f"({' | '.join(grammar.text(choice + self.closing) for choice in choices)})"
        if not argument_schemas.is_text(tool, key):
            return f"%json {json.dumps(self._schema(tool, key))} {grammar.text(self.closing)}"
        is_control = grammar.is_control(self.closing)
        return grammar.until(self.closing, name, lengths=self._lengths(tool, key, is_control))

    def _lengths(self, tool: Tool, key: str, is_control: bool) -> tuple[int, int | None]:
        """Return the least and most characters of a text, as far as a grammar can count them.

        is_control: True if a control token ends the text. Raises ConfigError if the tool is strict
        and the lengths cannot be counted.
        """
        least, most = argument_schemas.lengths_of(tool, key)
        n = max(least, most or 0) if is_control else least
        if n <= _MOST_COUNTED:
            return least, most
        if tool.strict:
            name = "minLength" if n == least else "maxLength"
            why = f"{name} of a text without quotes may be {_MOST_COUNTED}, got {n}"
            raise argument_schemas.refused(tool, why, f"/properties/{key}", is_broken=False)
        return 0, None if is_control else most

    def write(self, arguments: Any) -> str:
        """Return the arguments one after the other. Text is returned unchanged."""
        if isinstance(arguments, str):
            return arguments
        values = {
            key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for key, value in arguments.items()
        }
        return "".join(
            f"{self.opening}{key}{self.middle}{value}{self.closing}"
            for key, value in values.items()
        )

    def reader(self, tool: Tool) -> ArgumentsReader:
        """Return a reader for arguments that are written one after the other."""
        return PairReader(tool, self)


class PairReader(ArgumentsReader):
    """Reads arguments that are written one by one and returns the text of a JSON object."""

    def __init__(self, tool: Tool, pairs: Pairs) -> None:
        self._tool = tool
        self._pairs = pairs
        self._held = ""
        self._new = ""  # JSON that is not returned yet
        self._n = 0
        self._choices: dict[str, Any] = {}
        self._step = self._between

    def read(self, text: str) -> tuple[str, str]:
        """Return new JSON that is certain, and the text after the arguments ("" until they end)."""
        self._held += text
        while not self.is_complete and self._step():
            pass
        new, self._new = self._new, ""
        if not self.is_complete:
            return new, ""
        rest, self._held = self._held, ""
        return new, rest

    # --- steps, as in the reader of answers ----------------------------------------------------

    def _between(self) -> bool:
        n = matched(self._pairs.opening, self._held)
        if n is None:
            return False
        if n < 0:
            self._new += "}" if self._n else "{}"
            self.is_complete = True
            return False
        self._held = self._held[n:]
        self._step = self._in_key
        return True

    def _in_key(self) -> bool:
        key, middle, rest = self._held.partition(self._pairs.middle)
        if not middle:
            return False
        self._held = rest
        self._new += f"{', ' if self._n else '{'}{json.dumps(key, ensure_ascii=False)}: "
        self._n += 1
        self._choices = argument_schemas.choices_of(self._tool, key)
        self._step = self._in_choice if self._choices else self._in_value
        if argument_schemas.is_text(self._tool, key):
            self._new += '"'
            self._step = self._in_text
        return True

    def _in_text(self) -> bool:
        text, rest, ended = until(self._pairs.closing, self._held)
        self._held = rest
        self._new += json.dumps(text, ensure_ascii=False)[1:-1]
        if ended:
            self._new += '"'
            self._step = self._between
        return ended

    def _in_choice(self) -> bool:
        text, closing, rest = self._held.partition(self._pairs.closing)
        if not closing:
            return False
        self._held = rest
        self._new += json.dumps(self._choices.get(text, text), ensure_ascii=False)
        self._step = self._between
        return True

    def _in_value(self) -> bool:
        text, rest, ended = until(self._pairs.closing, self._held)
        self._held = rest
        self._new += text
        if ended:
            self._step = self._between
        return ended
