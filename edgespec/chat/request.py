"""The request for an answer that every API and program passes on in the same form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..config import SamplingParams
from .messages import Message
from .options import AnswerOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A request for an answer, from any API or program.

    messages: a conversation as returned by `history.regular`. prompts: the alternative to messages,
    texts in which special tokens are read, or token ids. options: the options for tools and
    reasoning. prediction: text that the answer is likely to contain. parse_special: True reads
    control tokens that are written in messages as such.
    """

    messages: Sequence[Message] = ()
    prompts: Sequence[str | list[int]] = ()
    params: SamplingParams = field(default_factory=SamplingParams)
    options: AnswerOptions = field(default_factory=AnswerOptions)
    prediction: str = ""
    parse_special: bool = False
