"""Answers of gpt-oss, in OpenAI's harmony format: each part is a message with a channel.

Reasoning is a message in the channel `analysis`, an answer one in `final`, and a call one in
`commentary` whose recipient is the function. `<|end|>` ends a message, `<|return|>` and `<|call|>`
end the generation (github.com/openai/harmony).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..markers import ContentMarkers, ReasoningMarkers
from ..probes import Probe
from . import register
from .base import CallForm, with_one_text

_CHANNEL, _MESSAGE = "<|channel|>", "<|message|>"
_KINDS = (" <|constrain|>json", " json", "")  # how arguments are announced
_COMMENTARY = f"{_CHANNEL}commentary"
_HEADS = (  # the recipient is named after the channel, or after the role
    *((f"{_COMMENTARY} to=functions.", f"{kind}{_MESSAGE}") for kind in _KINDS),
    *((" to=functions.", f"{_COMMENTARY}{kind}{_MESSAGE}") for kind in _KINDS),
)


@dataclass(frozen=True, slots=True)
class Harmony(CallForm):
    """The form of gpt-oss."""

    def message(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a message as the template takes it: one with a call has a single text."""
        return with_one_text(message, "thinking")


@register("gpt_oss", "gpt-oss's messages in channels (harmony)")
def gpt_oss(probe: Probe, reasoning: ReasoningMarkers | None) -> CallForm | None:
    """Return the form for a template that writes the channels of harmony."""
    if f"{_CHANNEL}analysis{_MESSAGE}" not in probe.template:
        return None
    (opening, after_name), *variants = _HEADS
    return Harmony(
        opening,
        after_name,
        "<|call|>",
        is_parallel=False,
        variants=tuple(variants),
        reasoning=ReasoningMarkers(f"{_CHANNEL}analysis{_MESSAGE}", "<|end|>", key="thinking"),
        content=ContentMarkers(
            begin=f"{_CHANNEL}final{_MESSAGE}",
            end="<|end|>",
            aside=f"{_COMMENTARY}{_MESSAGE}",
            between="<|start|>assistant",
            others=(f"{_CHANNEL}final <|constrain|>json{_MESSAGE}",),
        ),
    )
