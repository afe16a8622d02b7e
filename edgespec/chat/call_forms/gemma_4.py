"""Answers of Gemma 4: a marked call with arguments in a notation like JSON, and a thought channel.

Texts are between `<|"|>`, and keys without quotes (google/gemma-4-31B-it).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...constraints.texts import BLANKS
from ..markers import ReasoningMarkers
from ..probes import Probe
from ..texts import until
from ..tools import Tool
from . import nested_values, register
from .arguments import ArgumentsReader, as_object
from .base import CallForm

if TYPE_CHECKING:
    from ..grammar import AnswerGrammar

_QUOTE = '<|"|>'
_WORDS = {"None": "null", "True": "true", "False": "false"}  # as templates write them
_KEY = r"/[^\s:,{}\[\]<>\"]+/"


class _Notation(nested_values.Notation):
    """Gemma's notation of values."""

    def anything(self) -> str:
        """Return the grammar of any value: the rule refers to itself."""
        words = " | ".join(map(self.grammar.text, ("true", "false", "null")))
        self.grammar.rule("any_list", '"[" (any_value ("," any_value)*)? "]"')
        pair = self.grammar.rule("any_pair", f'{_KEY} ":" any_value')
        self.grammar.rule("any_object", f'"{{" ({pair} ("," {pair})*)? "}}"')
        number = '%json {"type": "number"}'
        return self.grammar.rule(
            "any_value", f"{self.text(0, None)} | {number} | {words} | any_list | any_object"
        )

    def text(self, least: int, most: int | None) -> str:
        """Return the grammar of a text between its quotes."""
        name = f"quoted_{least}_{most}" if (least, most) != (0, None) else "quoted"
        rest = self.grammar.until(_QUOTE, f"{name}_text", lengths=(least, most))
        return self.grammar.rule(name, f"{self.grammar.text(_QUOTE)} {rest}")

    def known(self, value: Any) -> str:
        """Return the grammar of one value."""
        return self.grammar.text(_written(value))

    def array(self, item: str, least: int, most: int | None) -> str:
        """Return the grammar of a list."""
        if most == 0:
            return '"[]"'
        count = f"{{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
        several = f'{item} ("," {item}){count}'
        return f'"[" {several if least else f"({several})?"} "]"'

    def object(self, pairs: Sequence[tuple[str, str, bool]], is_open: bool) -> str:
        """Return the grammar of an object, with its keys in the order in which templates sort."""
        if is_open:
            self.anything()
            return "any_object"
        ordered = sorted(pairs, key=lambda pair: pair[0].lower())
        written = [
            (f"{self.grammar.text(key + ':')} {value}", is_required)
            for key, value, is_required in ordered
        ]
        return f'"{{" {nested_values.separated(self, written, ",")} "}}"'


@dataclass(frozen=True, slots=True)
class Gemma(nested_values.NestedArguments):
    """Arguments in Gemma's notation, with braces around all of them."""

    def texts(self) -> Iterator[str]:
        """Yield the quotes of texts."""
        yield _QUOTE

    def begins(self, closing: str) -> tuple[str, ...]:
        """Return the brace that opens the arguments."""
        return ("{",)

    def rule(self, grammar: AnswerGrammar, index: int, tool: Tool, ends: Sequence[str]) -> str:
        """Return the rule for the arguments and the end of the call."""
        notation = _Notation(grammar, f"value_{index}")
        pairs = notation.arguments(tool)
        return f"{notation.object(pairs, is_open=False)} {grammar.text(ends[0])}"

    def write(self, arguments: Any) -> str:
        """Return the arguments as the template writes them."""
        return _written(as_object(arguments))

    def reader(self, tool: Tool, ends: Sequence[str]) -> ArgumentsReader:
        """Return a reader that turns the notation into JSON."""
        return GemmaReader()


def _written(value: Any) -> str:
    if isinstance(value, str):
        return f"{_QUOTE}{value}{_QUOTE}"
    if isinstance(value, list):
        return f"[{','.join(map(_written, value))}]"
    if isinstance(value, dict):
        pairs = sorted(value.items(), key=lambda pair: pair[0].lower())
        return f"{{{','.join(f'{key}:{_written(each)}' for key, each in pairs)}}}"
    return json.dumps(value)


class GemmaReader(ArgumentsReader):
    """Reads Gemma's notation and returns the text of a JSON object."""

    def __init__(self) -> None:
        self._held = ""
        self._open: list[str] = []  # the brackets that are open
        self._in_text = self._in_key = False

    def read(self, text: str) -> tuple[str, str]:
        """Return new JSON that is certain, and the text after the arguments ("" until they end)."""
        self._held += text
        new = ""
        while self._held and not self.is_complete:
            part = self._text() if self._in_text else self._part()
            new += part or ""
            if part is None:
                break
        if not self.is_complete:
            return new, ""
        rest, self._held = self._held, ""
        return new, rest

    def _text(self) -> str | None:
        """Read a text up to its quote. Returns None if more text is needed."""
        text, self._held, ended = until(_QUOTE, self._held)
        self._in_text = not ended
        written = json.dumps(text, ensure_ascii=False)[1:-1]
        return f'{written}"' if ended else written or None

    def _part(self) -> str | None:
        """Read a quote, a key, a word or a bracket. Returns None if more text is needed."""
        char = self._held[0]
        if self._held.startswith(_QUOTE):
            self._in_text, self._held = True, self._held[len(_QUOTE) :]
            return '"'
        if _QUOTE.startswith(self._held):
            return None
        if char in "{}[]," + BLANKS:
            return self._sign(char)
        end = ":" if self._in_key else ",]}"
        n = next((i for i, each in enumerate(self._held) if each in end), None)
        if n is None:
            return None
        word, self._held = self._held[:n].strip(BLANKS), self._held[n:]
        if not self._in_key:
            return _WORDS.get(word, word)
        self._in_key, self._held = False, self._held[1:]
        return f"{json.dumps(word, ensure_ascii=False)}: "

    def _sign(self, char: str) -> str:
        self._held = self._held[1:]
        if char in "{[":
            self._open.append(char)
        elif char in "}]" and self._open:
            self._open.pop()
            self.is_complete = not self._open
        if char in "{,":
            self._in_key = self._open[-1:] == ["{"]
        return ", " if char == "," else "" if char in BLANKS else char


@register("gemma_4", "Gemma 4's marked calls in its own notation")
def gemma_4(probe: Probe, reasoning: ReasoningMarkers | None) -> CallForm | None:
    """Return the form for a template that writes Gemma 4's calls."""
    if "<|tool_call>call:" not in probe.template:
        return None
    return CallForm(
        opening="<|tool_call>call:",
        after_name="",
        closing="<tool_call|>",
        arguments=Gemma(),
        reasoning=ReasoningMarkers(
            "<|channel>thought", "<channel|>", switch=("enable_thinking", False)
        ),
    )
