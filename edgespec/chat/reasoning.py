"""Learns from a template how a model separates its reasoning from its answer."""

from __future__ import annotations

import re
from typing import Any

from . import templates
from .markers import ReasoningMarkers
from .probes import ANSWER, THOUGHT, Probe, answer_of

_KEYS = ("reasoning_content", "reasoning", "thinking")
_SWITCH = re.compile("think|reason")
_MOST_SWITCHES = 16  # variables that are tried
_OPENS = re.compile(r"[<\[][^<>\[\]/\s]*think[^<>\[\]/\s]*[>\]]", re.IGNORECASE)


def learn_reasoning(source: str, probe: Probe) -> ReasoningMarkers | None:
    """Return the markers of reasoning, or None for a template without reasoning."""
    prompt = probe.text(generation=True)
    if prompt is None:
        return None
    key, begin, end = _around_thought(probe) or ("", *_in_prompt(source, prompt))
    if not end:
        return None
    return ReasoningMarkers(
        begin,
        end,
        key=key,
        is_opened=bool(begin) and prompt.rstrip().endswith(begin),
        is_kept=_is_kept(probe, key),
        switch=_switch(source, probe),
    )


def _around_thought(probe: Probe) -> tuple[str, str, str] | None:
    """Return the field from which the template reads reasoning, and the markers around its text."""
    for key in _KEYS:
        text = probe.text(answer_of(ANSWER, **{key: THOUGHT}))
        if text is None or THOUGHT not in text:
            continue
        before, _, after = text.partition(THOUGHT)
        tags = templates.TAG.findall(before)
        begin = tags[-1] if tags and before.rstrip().endswith(tags[-1]) else ""
        answer = after.find(ANSWER)
        end = templates.TAG.search(after[:answer].strip()) if answer >= 0 else None
        if end:
            return key, begin, end[0]
    return None


def _in_prompt(source: str, prompt: str) -> tuple[str, str]:
    """Return the markers of a template that only opens reasoning, or removes it from answers."""
    opened = [tag for tag in _OPENS.findall(prompt) if prompt.rstrip().endswith(tag)]
    for begin in dict.fromkeys((*opened, "<think>", *_OPENS.findall(source))):
        end = f"{begin[0]}/{begin[1:]}"
        if end in source:
            return begin, end
    return "", ""


def _is_kept(probe: Probe, key: str) -> bool:
    fields = {key: THOUGHT} if key else {}
    text = probe.text(answer_of(ANSWER, **fields), answer_of(ANSWER))
    return text is not None and THOUGHT in text


def _switch(source: str, probe: Probe) -> tuple[str, Any] | None:
    """Return a variable that changes the prompt, and its value that turns reasoning off."""
    names = [name for name in templates.variables_of(source) if _SWITCH.search(name)]
    for name in names[:_MOST_SWITCHES]:
        off, on = (probe.text(generation=True, **{name: value}) for value in (False, True))
        if off != on and off is not None:
            return name, False
    return None
