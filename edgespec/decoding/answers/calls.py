"""Learning from a template how a model writes calls of tools."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from .markers import ID, ReasoningMarkers, ToolMarkers
from .probes import (
    ANSWER,
    ARGUMENTS,
    FIRST,
    SECOND,
    TOOLS,
    Probe,
    answer_of,
    call_id,
    call_of,
    common,
    common_end,
)


class NotUnderstood(Exception):
    """A template whose calls of tools cannot be learned, in a sentence."""


class _Call(NamedTuple):
    """One call as it was written: what stands before the name, the name's end, the arguments."""

    before: str
    after_name: str
    arguments: str
    behind: str


def learn_tools(probe: Probe, reasoning: ReasoningMarkers | None) -> ToolMarkers:
    """Return the markers of calls. Raises NotUnderstood."""
    without, with_tools = probe.text(generation=True), probe.text(generation=True, tools=TOOLS)
    if with_tools is None:
        raise NotUnderstood("the model's chat template refuses tools")
    if without == with_tools:
        raise NotUnderstood("the model's chat template ignores tools")
    for takes_text in (False, True):
        found = _learn(probe, reasoning, takes_text)
        if found:
            return found
    raise NotUnderstood(
        "the form in which the model's chat template writes calls is not understood"
    )


def _learn(
    probe: Probe, reasoning: ReasoningMarkers | None, takes_text: bool
) -> ToolMarkers | None:
    arguments: Any = json.dumps(ARGUMENTS) if takes_text else ARGUMENTS
    one = _written(probe, reasoning, [call_of(FIRST, 0, arguments)])
    call = _split(one, FIRST) if one else None
    if not call:
        return None
    separators = _separators(call.arguments)
    markers = ToolMarkers(
        call.before,
        call.after_name,
        call.behind,
        item_separator=separators[0],
        key_separator=separators[1],
        is_parallel=False,
        takes_text=takes_text,
    )
    two = _written(probe, reasoning, [call_of(FIRST, 0, arguments), call_of(SECOND, 1, arguments)])
    return _of_two(markers, two) if two else markers


def _written(
    probe: Probe, reasoning: ReasoningMarkers | None, calls: list[dict[str, Any]]
) -> str | None:
    """Return an answer of calls as the model writes it, ids as ID; None if they are not in it."""
    name = calls[0]["function"]["name"]
    for content in ("", None):
        text = probe.answered(answer_of(content, calls), tools=TOOLS)
        if text is None or name not in text:
            continue
        for index in range(len(calls)):
            text = text.replace(call_id(index), ID)
        return _without_reasoning(_without_end(text, probe), reasoning).strip()
    return None


def _without_end(text: str, probe: Probe) -> str:
    """Return an answer without what ends every answer."""
    answered = probe.answered(answer_of(ANSWER), tools=TOOLS) or ""
    end = answered.partition(ANSWER)[2]
    return text[: len(text) - len(end)] if end and text.endswith(end) else text


def _without_reasoning(text: str, reasoning: ReasoningMarkers | None) -> str:
    """Return an answer without the empty reasoning that templates put before it."""
    if reasoning:
        for marker in (reasoning.begin, reasoning.end):
            text = text.lstrip()
            text = text[len(marker) :] if marker and text.startswith(marker) else text
    return text


def _split(text: str, name: str) -> _Call | None:
    """Return the parts of the first call of `name` in a text."""
    before, found, behind = text.partition(name)
    if not found:
        return None
    decoder = json.JSONDecoder()
    for at, char in enumerate(behind):
        if char != "{":
            continue
        try:
            value, end = decoder.raw_decode(behind, at)
        except ValueError:
            continue
        if value == ARGUMENTS:
            return _Call(before, behind[:at], behind[at:end], behind[end:])
    return None


def _separators(arguments: str) -> tuple[str, str]:
    """Return what stands between two arguments, and between a name and its value."""
    keys = list(ARGUMENTS)
    value = json.dumps(ARGUMENTS[keys[0]])
    behind = arguments.split(f'"{keys[0]}"')[1]
    key_separator, _, rest = behind.partition(value)
    return rest.partition(f'"{keys[1]}"')[0], key_separator


def _of_two(one: ToolMarkers, text: str) -> ToolMarkers | None:
    """Return the markers with what stands around and between calls, learned from two of them."""
    first = _split(text, FIRST)
    second = _split(first.behind, SECOND) if first else None
    if not first or not second or one.opening != first.before:
        return one
    closing = second.before[: common(second.before, one.closing)]
    rest = second.before[len(closing) :]
    n = common_end(rest, one.opening)
    opening, begin = rest[len(rest) - n :], one.opening[: len(one.opening) - n]
    return ToolMarkers(
        opening,
        one.after_name,
        closing,
        begin=begin,
        between=rest[: len(rest) - n],
        end=one.closing[len(closing) :],
        item_separator=one.item_separator,
        key_separator=one.key_separator,
        takes_text=one.takes_text,
    )
