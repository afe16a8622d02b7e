"""Conversations with known contents, by which templates are asked for what they write."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import TemplateError
from . import templates
from .markers import ID_LENGTH, ReasoningMarkers
from .tools import Tool

_MOST_RENDERINGS, _MOST_SECONDS = 200, 10.0
ANSWER, THOUGHT = "An answer 4711.", "A thought 1147."
FIRST, SECOND = "probe_alpha", "probe_beta"
ARGUMENTS = {"probe_key": "probe value", "probe_other": 2718}
_ASKED = {"role": "user", "content": "A question 7141."}
TOOLS = [
    Tool(
        name,
        "A function.",
        {
            "type": "object",
            "properties": {
                "probe_key": {"type": "string", "description": "A text."},
                "probe_other": {"type": "integer", "description": "A number."},
            },
        },
    ).to_dict()
    for name in (FIRST, SECOND)
]


def call_id(index: int) -> str:
    """Return the id of a call in a probe."""
    return f"pr0be{index:04}"[:ID_LENGTH]


class Probe:
    """A template that is asked what it writes; None where it refuses.

    It is a program of the model's: after so many renderings, or seconds that this thread worked, it
    is not asked again.
    """

    def __init__(self, template: str, special: Mapping[str, str]) -> None:
        self.template = template
        self._special = special
        self._left = _MOST_RENDERINGS
        self._deadline = time.thread_time() + _MOST_SECONDS

    def text(
        self, *answers: Mapping[str, Any], generation: bool = False, **variables: Any
    ) -> str | None:
        """Return the rendering of a question and answers, each but the last with a question."""
        messages: list[Mapping[str, Any]] = [_ASKED]
        for answer in answers:
            messages += [answer, _ASKED]
        if answers:
            del messages[-1]
        return self._rendered(messages, generation, variables)

    def _rendered(
        self, messages: Sequence[Mapping[str, Any]], generation: bool, variables: Mapping[str, Any]
    ) -> str | None:
        self._left -= 1
        if self._left < 0 or time.thread_time() > self._deadline:
            return None
        try:
            return templates.render(
                self.template,
                messages,
                self._special,
                add_generation_prompt=generation,
                variables=variables,
            )
        except TemplateError:
            return None

    def answered(self, answer: Mapping[str, Any], **variables: Any) -> str | None:
        """Return what stands after the generation prompt for an answer.

        Where an answer does not continue the prompt (which may open reasoning), it is what follows
        the common beginning, but never less than a whole marker.
        """
        prompt = self.text(generation=True, **variables)
        whole = self.text(answer, **variables)
        if prompt is None or whole is None:
            return None
        n = common(prompt, whole)
        return whole[n if n == len(prompt) else boundary(whole[:n]) :]


def answer_of(content: str | None, calls: Sequence[Any] = (), **fields: Any) -> dict[str, Any]:
    """Return an assistant's message with calls of these functions."""
    message: dict[str, Any] = {"role": "assistant", "content": content, **fields}
    return message | {"tool_calls": calls} if calls else message


def call_of(name: str, index: int, arguments: Any) -> dict[str, Any]:
    """Return a call in OpenAI's form."""
    function = {"name": name, "arguments": arguments}
    return {"id": call_id(index), "type": "function", "function": function}


def common(first: str, second: str) -> int:
    """Return the length of the common beginning of two texts."""
    n = min(len(first), len(second))
    return next((i for i in range(n) if first[i] != second[i]), n)


def common_end(first: str, second: str) -> int:
    """Return the length of the common end of two texts."""
    return common(first[::-1], second[::-1])


def boundary(text: str) -> int:
    """Return where the last whole marker, line or word of a text ends."""
    return max(text.rfind(end) + 1 for end in (">", "]", "\n", " "))


def ends_whole(text: str) -> str:
    """Return a text without the beginning of a marker at its end."""
    at = text.rfind("<")
    return text[:at] if at > text.rfind(">") else text


def starts_whole(text: str) -> str:
    """Return a text without the end of a marker at its beginning."""
    at = text.find(">")
    return text[at + 1 :] if at >= 0 and "<" not in text[:at] else text


def without_reasoning(text: str, reasoning: ReasoningMarkers | None) -> str:
    """Return an answer without the empty reasoning that templates put before it."""
    if reasoning:
        for marker in (reasoning.begin, reasoning.end):
            begun = text.lstrip()
            text = begun[len(marker) :] if marker and begun.startswith(marker) else text
    return text


def wrapping(probe: Probe, reasoning: ReasoningMarkers | None) -> str:
    """Return what a template writes between the generation prompt and the text of an answer."""
    answered = probe.answered(answer_of(ANSWER)) or ANSWER
    before, found, _ = answered.partition(ANSWER)
    return without_reasoning(before, reasoning).strip() if found else ""
