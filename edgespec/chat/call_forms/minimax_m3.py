"""Tool calls of MiniMax M3: arguments as nested elements, each tag after a token of its own.

A list is a sequence of `item` elements (MiniMaxAI/MiniMax-M3).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..alternatives import Alternatives
from ..markers import ReasoningMarkers
from ..probes import Probe
from ..tools import Tool
from . import nested_values, register
from .arguments import ArgumentsReader, as_object
from .base import CallForm

if TYPE_CHECKING:
    from ..grammar import AnswerGrammar

_NS = "]<]minimax[>["
_TAG = re.compile(re.escape(_NS) + r"<(/?)([^<>]+)>")
_END = re.compile(re.escape(_NS) + r"</(?:invoke|tool_call)>")
_ITEM = "item"
_NAME = r"/[^\s<>\/]+/"


class _Notation(nested_values.Notation):
    """MiniMax's notation of values; each value has the token before its closing tag at its end."""

    def anything(self) -> str:
        """Return the grammar of any value: a text, or elements with any names.

        A grammar cannot demand that a closing tag has the name of the element.
        """
        rule = self.grammar.rule
        begin, close = self.grammar.text(f"{_NS}<"), self.grammar.text("</")
        rule("any_name", f'{_NAME} ">"')
        rule("any_elements", f"({begin} any_name any_value {close} any_name)+ {self._token}")
        return rule("any_value", f"{self.text(0, None)} | any_elements")

    @property
    def _token(self) -> str:
        return self.grammar.text(_NS)

    def text(self, least: int, most: int | None) -> str:
        """Return the grammar of a text."""
        name = "leaf" if (least, most) == (0, None) else f"leaf_{least}_{most}"
        return self.grammar.until(_NS, name, lengths=(least, most))

    def known(self, value: Any) -> str:
        """Return the grammar of one value."""
        return self.grammar.text(_written(value) + _NS)

    def number(self, schema: Mapping[str, Any]) -> str:
        """Return the grammar of a number."""
        return f"{super().number(schema)} {self._token}"

    def array(self, item: str, least: int, most: int | None) -> str:
        """Return the grammar of a list."""
        begin, end = self.grammar.text(f"{_NS}<{_ITEM}>"), self.grammar.text(f"</{_ITEM}>")
        count = f"{{{least},{'' if most is None else most}}}"
        items = "" if most == 0 else f"({begin} ({item}) {end}){count}"
        return f"{items} {self._token}"

    def object(self, pairs: Sequence[tuple[str, str, bool]], is_open: bool) -> str:
        """Return the grammar of an object."""
        if is_open:
            self.anything()
            return f"(any_elements | {self._token})"
        return f"{self.elements(pairs)} {self._token}"

    def elements(self, pairs: Sequence[tuple[str, str, bool]]) -> str:
        """Return the grammar of the elements of an object."""
        text = self.grammar.text
        written = [
            (f"{text(f'{_NS}<{key}>')} {value} {text(f'</{key}>')}", is_required)
            for key, value, is_required in pairs
        ]
        return nested_values.separated(self, written)


@dataclass(frozen=True, slots=True)
class Elements(nested_values.NestedArguments):
    """Arguments as nested elements."""

    def texts(self) -> Iterator[str]:
        """Yield the token before tags."""
        yield _NS

    def begins(self, closing: str) -> tuple[str, ...]:
        """Return the token before tags."""
        return (_NS,)

    def rule(self, grammar: AnswerGrammar, index: int, tool: Tool, ends: Sequence[str]) -> str:
        """Return the rule for the arguments and the end of the call."""
        notation = _Notation(grammar, f"value_{index}")
        pairs = notation.arguments(tool)
        return f"{notation.elements(pairs)} {grammar.text(ends[0])}"

    def write(self, arguments: Any) -> str:
        """Return the arguments as the template writes them."""
        return _written(as_object(arguments))

    def reader(self, tool: Tool, ends: Sequence[str]) -> ArgumentsReader:
        """Return a reader that turns elements into JSON."""
        return ElementReader(tool)


def _written(value: Any) -> str:
    if isinstance(value, dict):
        inner = ((key, each) for key, each in value.items() if each is not None)
        return "".join(f"{_NS}<{key}>{_written(each)}{_NS}</{key}>" for key, each in inner)
    if isinstance(value, list):
        return "".join(f"{_NS}<{_ITEM}>{_written(each)}{_NS}</{_ITEM}>" for each in value)
    return value if isinstance(value, str) else json.dumps(value)


@dataclass(slots=True)
class _Element:
    """An element: its text, if it has no elements in it, and these elements with their names."""

    text: str = ""
    inner: list[tuple[str, _Element]] = field(default_factory=list)


class ElementReader(ArgumentsReader):
    """Reads elements, and returns the text of a JSON object when they have ended."""

    def __init__(self, tool: Tool) -> None:
        self._tool = tool
        self._held = ""

    def read(self, text: str) -> tuple[str, str]:
        """Return the JSON and the text after the arguments at their end; before it, nothing."""
        self._held += text
        match = _END.search(self._held)
        if not match:
            return "", ""
        self.is_complete = True
        element = _parsed(self._held[: match.start()])
        schema = {"type": "object", **self._tool.parameters}
        value = None if element is None else self._value(element, schema)
        return json.dumps(value, ensure_ascii=False), self._held[match.start() :]

    def _value(self, element: _Element, schema: Any) -> Any:
        """Return the value of an element that follows a schema, as far as it can."""
        try:
            alternatives = Alternatives(self._tool.parameters).of(schema)
        except ValueError:
            alternatives = [{}]
        kinds = {kind for each in alternatives for kind in each.get("type", _kinds_of(each))}
        if element.inner or (kinds and kinds <= {"array", "object"}):
            return self._inner(element, alternatives, kinds)
        is_text = "string" in kinds and not any("enum" in each for each in alternatives)
        texts = [value for each in alternatives for value in each.get("enum", ())]
        if is_text or element.text in texts:
            return element.text
        try:
            return json.loads(element.text)
        except (ValueError, RecursionError):
            return element.text

    def _inner(
        self, element: _Element, alternatives: Sequence[Mapping[str, Any]], kinds: set[str]
    ) -> Any:
        names = {name for name, _ in element.inner}
        if "array" in kinds and names <= {_ITEM} and (names or "object" not in kinds):
            items: Any = next((each["items"] for each in alternatives if "items" in each), {})
            return [self._value(inner, items) for _, inner in element.inner]
        properties = {
            key: schema
            for each in alternatives
            for key, schema in each.get("properties", {}).items()
        }
        return {name: self._value(inner, properties.get(name, {})) for name, inner in element.inner}


def _kinds_of(schema: Mapping[str, Any]) -> tuple[str, ...]:
    return () if "enum" in schema else nested_values.KINDS


def _parsed(text: str) -> _Element | None:
    """Return the element whose inner text is given, or None if not every element in it is closed.

    The name in a closing tag does not matter.
    """
    open_elements, at = [_Element()], 0
    for tag in _TAG.finditer(text):
        open_elements[-1].text += text[at : tag.start()]
        at = tag.end()
        if not tag[1]:
            inner = _Element()
            open_elements[-1].inner.append((tag[2], inner))
            open_elements.append(inner)
        elif len(open_elements) > 1:
            open_elements.pop()
        else:
            return None
    return open_elements[0] if len(open_elements) == 1 and not text[at:].strip() else None


@dataclass(frozen=True, slots=True)
class MiniMax(CallForm):
    """The form of MiniMax M3, whose marker does not look like a tag."""

    @property
    def trigger(self) -> str:
        """The token before tags."""
        return _NS

    @property
    def is_bare(self) -> bool:
        """False: calls have a marker."""
        return False


@register("minimax_m3", "MiniMax M3's nested elements")
def minimax_m3(probe: Probe, reasoning: ReasoningMarkers | None) -> CallForm | None:
    """Return the form for a template that writes MiniMax M3's token before tags."""
    if _NS not in probe.template:
        return None
    return MiniMax(
        opening=f'{_NS}<invoke name="',
        after_name='">',
        closing=f"{_NS}</invoke>\n",
        begin=f"{_NS}<tool_call>\n",
        end=f"{_NS}</tool_call>",
        arguments=Elements(),
        reasoning=ReasoningMarkers(
            "<mm:think>", "</mm:think>", is_kept=True, switch=("thinking_mode", "disabled")
        ),
    )
