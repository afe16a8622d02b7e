"""Test conversations with known contents, which show what a template writes around them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import TemplateError
from . import templates
from .markers import ID_LENGTH, ReasoningMarkers

_MOST_RENDERINGS, _MOST_SECONDS = 200, 10.0
ANSWER, THOUGHT = "An answer 4711.", "A thought 1147."
FIRST, SECOND = "probe_alpha", "probe_beta"
ARGUMENTS = {"probe_key": "probe value", "probe_other": 2718}
_ASKED = {"role": "user", "content": "A question 7141."}
_PARAMETERS = {
    "type": "object",
    "properties": {
        "probe_key": {"type": "string", "description": "A text."},
        "probe_other": {"type": "integer", "description": "A number."},
    },
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": "A function.", "parameters": _PARAMETERS},
    }
    for name in (FIRST, SECOND)
]


def call_id(index: int) -> str:
    """Return the id of the call with this index in a test conversation."""
    return f"pr0be{index:04}"[:ID_LENGTH]


class Probe:
    """Renders test conversations with a template; the result is None if the template refuses one.

    A template is a program that came with the model. After _MOST_RENDERINGS renderings, or
    _MOST_SECONDS of CPU time, it is no longer run.
    """

    def __init__(self, template: str, special: Mapping[str, str]) -> None:
        self.template = template
        self._special = special
        self._left = _MOST_RENDERINGS
        self._seconds = _MOST_SECONDS

    def text(
        self, *answers: Mapping[str, Any], generation: bool = False, **variables: Any
    ) -> str | None:
        """Return the rendering of a question and answers, with a question between two answers."""
        messages: list[Mapping[str, Any]] = [_ASKED]
        for answer in answers:
            messages += [answer, _ASKED]
        if answers:
            del messages[-1]
        return self.rendered(messages, generation, variables)

    def rendered(
        self, messages: Sequence[Mapping[str, Any]], generation: bool, variables: Mapping[str, Any]
    ) -> str | None:
        """Return the rendering of messages. generation: True to add the generation prompt."""
        self._left -= 1
        if self._left < 0 or self._seconds < 0:
            return None
        began = time.thread_time()
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
        finally:
            self._seconds -= time.thread_time() - began

    @property
    def ignores_tools(self) -> bool:
        """True if the template writes the same prompt with tools as without."""
        return self.text(generation=True) == self.text(generation=True, tools=TOOLS)

    def answered(self, answer: Mapping[str, Any], **variables: Any) -> str | None:
        """Return the text that a template writes after the generation prompt for an answer.

        If the rendered answer does not continue the prompt (which may open reasoning), the text
        begins where the two differ, moved back so that it does not begin inside a marker or word.
        """
        prompt = self.text(generation=True, **variables)
        whole = self.text(answer, **variables)
        if prompt is None or whole is None:
            return None
        n = common(prompt, whole)
        return whole[n if n == len(prompt) else boundary(whole[:n]) :]


def answer_of(content: str | None, calls: Sequence[Any] = (), **fields: Any) -> dict[str, Any]:
    """Return an assistant message with this content and these calls."""
    message: dict[str, Any] = {"role": "assistant", "content": content, **fields}
    return message | {"tool_calls": calls} if calls else message


def call_of(name: str, index: int, arguments: Any) -> dict[str, Any]:
    """Return a tool call in OpenAI's form."""
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
    """Return the index after the last whole marker, line or word of a text."""
    return max(text.rfind(end) + 1 for end in (">", "]", "\n", " "))


def ends_whole(text: str) -> str:
    """Return a text without an unfinished marker at its end."""
    at = text.rfind("<")
    return text[:at] if at > text.rfind(">") else text


def starts_whole(text: str) -> str:
    """Return a text without the end of a marker at its beginning."""
    at = text.find(">")
    return text[at + 1 :] if at >= 0 and "<" not in text[:at] else text


def without_reasoning(text: str, reasoning: ReasoningMarkers | None) -> str:
    """Return an answer without the empty reasoning that some templates write before it."""
    if reasoning:
        for marker in (reasoning.begin, reasoning.end):
            begun = text.lstrip()
            text = begun[len(marker) :] if marker and begun.startswith(marker) else text
    return text


def wrapping(probe: Probe, reasoning: ReasoningMarkers | None) -> str:
    """Return the text that a template writes between the generation prompt and an answer's text."""
    answered = probe.answered(answer_of(ANSWER)) or ANSWER
    before, found, _ = answered.partition(ANSWER)
    return without_reasoning(before, reasoning).strip() if found else ""
