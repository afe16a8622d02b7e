"""The form of a question between those who ask and the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .messages import Message
from .options import AnswerOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A question, whichever API or program it comes from.

    messages: a conversation as `history.regular` returns it; or prompts: texts in which special
    tokens count, or token ids. sampling: fields of SamplingParams. options: tools and reasoning.
    prediction: text that the answer may well have. parse_special: control tokens that are written
    in messages are read as such.
    """

    messages: Sequence[Message] = ()
    prompts: Sequence[str | list[int]] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)
    options: AnswerOptions = field(default_factory=AnswerOptions)
    prediction: str = ""
    parse_special: bool = False
