"""Learns from a template how a model writes tool calls.

Method: conversations with one call, with two calls and with a call without arguments are rendered.
The names and arguments in them are known, so the texts around and between them are the markers.
llama.cpp does the same (docs/autoparser.md).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..markers import ID, INDEX, ReasoningMarkers
from ..probes import (
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
    ends_whole,
    starts_whole,
    without_reasoning,
)
from . import LEARNED, register
from .base import CallForm, NotUnderstood
from .json_arguments import Json
from .pair_arguments import Pairs

_LONGEST = 200  # characters of a marker; a longer text is part of another message


class _Call(NamedTuple):
    """One call as a template wrote it: the texts before the name, after the name, and at the end.

    arguments: the JSON of the arguments. pairs: for arguments that are written one by one, the text
    between a key and its value, and the text between a value and the next key. In this case
    `after_name` ends where a key begins, and `after` begins after a value.
    """

    before: str
    after_name: str
    arguments: str
    after: str
    pairs: tuple[str, str] | None = None


@register(LEARNED, "what is learned from the template itself")
def learned(probe: Probe, reasoning: ReasoningMarkers | None) -> CallForm | None:
    """Return the form of the calls that a template writes, or None if it cannot be learned.

    Raises NotUnderstood for a template that refuses or ignores tools.
    """
    without, with_tools = probe.text(generation=True), probe.text(generation=True, tools=TOOLS)
    if with_tools is None:
        raise NotUnderstood("its chat template refuses tools")
    if without == with_tools:
        raise NotUnderstood("its chat template ignores tools")
    for takes_text in (False, True):
        written = _Written(probe, reasoning, takes_text)
        form = written.learn()
        if form or not written.wants_text:
            return form
    return None


class _Written:
    """The calls that a template writes when it gets arguments as objects or as JSON text."""

    def __init__(self, probe: Probe, reasoning: ReasoningMarkers | None, takes_text: bool) -> None:
        self._probe = probe
        self._reasoning = reasoning
        self._takes_text = takes_text
        self.wants_text = False

    def learn(self) -> CallForm | None:
        """Return the form of the calls, or None if it is not recognised."""
        one = self._text([FIRST])
        self.wants_text = not one or str(ARGUMENTS) in one
        call = _split(one, FIRST) if one else None
        if not call:
            return None
        two = self._text([FIRST, SECOND])
        form: CallForm | None = _around(call, two)
        if form and call.pairs:
            empty = self._text([FIRST], {})
            form = _with_pairs(form, call.pairs, empty) if empty else None
        elif form:
            item, key = _separators(call.arguments)
            if (item + key).strip(" \n\t,:"):
                return None
            written = Json(item_separator=item, key_separator=key)
            form = dataclasses.replace(form, arguments=written)
        if not form or max(map(len, (form.closing, form.end))) > _LONGEST:
            return None
        return form

    def _text(self, names: Sequence[str], arguments: Mapping[str, Any] = ARGUMENTS) -> str | None:
        """Return the text of an answer with calls, with ID in place of each call id.

        Returns None if a call is missing in it.
        """
        given: Any = json.dumps(arguments) if self._takes_text else arguments
        calls = [call_of(name, index, given) for index, name in enumerate(names)]
        for content in ("", None):
            text = self._probe.answered(answer_of(content, calls), tools=TOOLS)
            if text is None or not all(name in text for name in names):
                continue
            for index in range(len(calls)):
                text = text.replace(call_id(index), ID)
            return without_reasoning(self._without_end(text), self._reasoning).strip()
        return None

    def _without_end(self, text: str) -> str:
        """Return an answer without the text that the template writes at the end of every answer."""
        answered = self._probe.answered(answer_of(ANSWER), tools=TOOLS) or ""
        end = answered.partition(ANSWER)[2]
        return text[: len(text) - len(end)] if end and text.endswith(end) else text


# --- one call ----------------------------------------------------------------------------------


def _split(text: str, name: str) -> _Call | None:
    """Return the parts of the first call in a text, a call of the tool `name`."""
    before, found, after = text.partition(name)
    if not found:
        return None
    decoder = json.JSONDecoder()
    for at, char in enumerate(after):
        if char != "{":
            continue
        try:
            value, end = decoder.raw_decode(after, at)
        except (ValueError, RecursionError):
            continue
        if value == ARGUMENTS:
            return _Call(before, after[:at], after[at:end], after[end:])
    return _split_pairs(before, after)


def _split_pairs(before: str, after: str) -> _Call | None:
    """Return the parts of a call whose arguments are written one by one."""
    parts, rest = [], after
    for word in (word for key, value in ARGUMENTS.items() for word in (key, str(value))):
        part, found, rest = rest.partition(word)
        if not found:
            return None
        parts.append(part)
    after_name, middle, between, other_middle = parts
    if not middle or middle != other_middle:
        return None
    return _Call(before, after_name, "", rest, (middle, between))


def _separators(arguments: str) -> tuple[str, str]:
    """Return the text between two arguments, and the text between a name and its value."""
    first, second = ARGUMENTS
    after = arguments.split(json.dumps(first))[1]
    key_separator, _, rest = after.partition(json.dumps(ARGUMENTS[first]))
    return rest.partition(json.dumps(second))[0], key_separator


def _with_pairs(form: CallForm, pairs: tuple[str, str], empty: str) -> CallForm | None:
    """Return a form with the markers of single arguments, or None if they are not recognised.

    empty: the text of a call without arguments, from which the markers are learned.
    """
    middle, between = pairs
    _, _, after = empty.partition(FIRST)
    after = after[: len(after) - len(form.end)]
    n = common_end(after, form.closing)
    closing = starts_whole(after[len(after) - n :])
    after_name = after[: len(after) - len(closing)]
    value_end = form.closing[: len(form.closing) - len(closing)]
    opening = form.after_name[len(after_name) :]
    if not value_end or not opening or value_end + opening != between:
        return None
    written = Pairs(opening, middle, value_end)
    return dataclasses.replace(form, after_name=after_name, closing=closing, arguments=written)


# --- several -----------------------------------------------------------------------------------


def _around(call: _Call, two: str | None) -> CallForm:
    """Return the form with the texts around and between calls.

    two: the text of two calls, from which the texts are learned. If there is none, or the calls are
    not recognised in it, the form allows only one call.
    """
    alone = CallForm(call.before, call.after_name, call.after, is_parallel=False)
    first = _split(two, FIRST) if two else None
    second = _split(first.after, SECOND) if first else None
    if not first or not second:
        return alone
    closing = ends_whole(call.after[: common(second.before, call.after)])
    rest, opening = _counted(second.before[len(closing) :], call.before)
    after_name = _counted(second.after_name, call.after_name)[1]
    n = len(starts_whole(opening[len(opening) - common_end(rest, opening) :]))
    return CallForm(
        opening[len(opening) - n :],
        after_name,
        closing,
        begin=opening[: len(opening) - n],
        between=rest[: len(rest) - n],
        end=call.after[len(closing) :],
    )


def _counted(second: str, first: str) -> tuple[str, str]:
    """Return the markers of the second and the first call, with INDEX in place of their numbers."""
    n = common_end(second, first)
    same = first[len(first) - n :]
    before = second.removesuffix(same), first.removesuffix(same)
    if before[0].endswith("1") and before[1].endswith("0"):
        return f"{before[0][:-1]}{INDEX}{same}", f"{before[1][:-1]}{INDEX}{same}"
    return second, first
