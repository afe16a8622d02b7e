"""The form of a question between those who ask and the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..config import SamplingParams
from .messages import Message
from .options import AnswerOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A question, whichever API or program it comes from.

    messages: a conversation as `history.regular` returns it; or prompts: texts in which special
    tokens count, or token ids. options: tools and reasoning.
    prediction: text that the answer may well have. parse_special: control tokens that are written
    in messages are read as such.
    """

    messages: Sequence[Message] = ()
    prompts: Sequence[str | list[int]] = ()
    params: SamplingParams = field(default_factory=SamplingParams)
    options: AnswerOptions = field(default_factory=AnswerOptions)
    prediction: str = ""
    parse_special: bool = False
