"""A request for an answer, in the form in which every API and program passes it on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..config import SamplingParams
from .messages import Message
from .options import AnswerOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A request for an answer, from any API or program.

    messages: a conversation as returned by `history.regular`. prompts: used in place of messages;
    texts in which special tokens are read, or token ids. options: the options for tools and
    reasoning. prediction: text that the answer is likely to contain. parse_special: True reads the
    names of control tokens in messages as control tokens.
    """

    messages: Sequence[Message] = ()
    prompts: Sequence[str | list[int]] = ()
    params: SamplingParams = field(default_factory=SamplingParams)
    options: AnswerOptions = field(default_factory=AnswerOptions)
    prediction: str = ""
    parse_special: bool = False
