"""The contract of call forms: the form in which a model writes tool calls.

A form is a value. Both the grammar of an answer (grammar.py) and its reader (reader.py) are made
from the form, so that every call which the grammar generates can be read back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..markers import ID, ID_LENGTH, INDEX, ContentMarkers, ReasoningMarkers
from ..templates import TAG
from .arguments import Arguments
from .json_arguments import Json

_JSON = Json()


class NotUnderstood(Exception):
    """Raised for a template whose tool calls have no known form. The message says why."""


_MARKER = re.compile(rf"{TAG.pattern}|<[^<>\s=]+ [^<>\s=]+=")  # a tag, or one with an attribute


@dataclass(frozen=True, slots=True)
class CallForm:
    """The texts that a model writes around the parts of tool calls.

    A call is `opening` NAME `after_name` ARGUMENTS `closing`. `begin` comes before the first call,
    `between` between two calls, and `end` after the last one. In all of these texts, ID is a
    placeholder for the id of a call and INDEX for a number that counts calls (`markers`).
    arguments: the way in which arguments are written. is_parallel: True if an answer may have more
    than one call. is_in_template: True if the template writes the calls of earlier answers;
    otherwise calls are given to the template as part of the content. variants: further pairs of
    `opening` and `after_name` that the model may write. reasoning, content: the markers of
    reasoning and content, if they cannot be learned from the template.
    """

    opening: str
    after_name: str
    closing: str
    begin: str = ""
    between: str = ""
    end: str = ""
    arguments: Arguments = _JSON
    is_parallel: bool = True
    is_in_template: bool = True
    variants: tuple[tuple[str, str], ...] = ()
    reasoning: ReasoningMarkers | None = None
    content: ContentMarkers | None = None

    @property
    def heads(self) -> tuple[tuple[str, str], ...]:
        """The pairs of texts before and after the name of a call."""
        return (self.opening, self.after_name), *self.variants

    @property
    def prefix(self) -> str:
        """The text from the beginning of the first call to its name."""
        return (self.begin + self.opening).lstrip()

    @property
    def trigger(self) -> str:
        """The text that marks the beginning of a call."""
        tag = _MARKER.match(self.prefix)
        return tag[0] if tag else self.prefix

    @property
    def ends(self) -> tuple[str, ...]:
        """The texts that may follow arguments where an answer is read, `closing` first."""
        return (*self.closings, *filter(None, [self.end]))

    @property
    def closings(self) -> tuple[str, ...]:
        """The texts that are read as the end of a call: `closing`, and its tags without the first
        ones, because models leave tags out.
        """
        tails = (self.closing[tag.start() :] for tag in TAG.finditer(self.closing))
        return tuple(dict.fromkeys((self.closing, *tails)))

    @property
    def is_bare(self) -> bool:
        """True if calls have no marker and are recognised only at the beginning of an answer."""
        return not _MARKER.match(self.prefix)

    def message(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a message as the template takes it. Arguments of calls are as it wants them."""
        return message

    def variables(self, tools: Sequence[Any]) -> dict[str, Any]:
        """Return the variables in which the template takes tools."""
        return {"tools": tools}

    def instructed(self, messages: list[dict[str, Any]], tools: Sequence[Any]) -> list[Any]:
        """Return messages that tell the model its tools, for a template that ignores tools.

        The tools are in OpenAI's form.
        """
        return messages

    def write(self, calls: Sequence[Mapping[str, Any]]) -> str:
        """Return the text that the model writes for these calls, which are given as in messages."""
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
        yield from (self.closing, self.begin, self.between, self.end)
        yield from (text for head in self.heads for text in head)
        yield from self.arguments.texts()


def with_instructions(messages: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Return messages with a text at the end of the system message, which is added if need be."""
    first = messages[0] if messages else {}
    if first.get("role") not in ("system", "developer"):
        return [{"role": "system", "content": text}, *messages]
    content = first.get("content") or ""
    part = {"type": "text", "text": f"\n\n{text}"}
    joined = f"{content}\n\n{text}" if isinstance(content, str) else [*content, part]
    return [{**first, "content": joined}, *messages[1:]]


def with_one_text(message: dict[str, Any], key: str) -> dict[str, Any]:
    """Return a message with its content after its reasoning, if it has a call.

    It is for templates that write only one text before a call. key: the field with the reasoning.
    """
    content, thought = message.get("content"), message.get(key)
    if not message.get("tool_calls") or not content or not isinstance(content, str):
        return message
    return {**message, "content": "", key: f"{thought}\n\n{content}" if thought else content}
