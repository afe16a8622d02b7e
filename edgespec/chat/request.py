"""A request for an answer, in the form in which every API and program passes it on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..config import OnBusy, SamplingParams
from ..decoding.infill import Infill
from .messages import Message
from .options import AnswerOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A request for an answer, from any API or program.

    messages: a conversation in OpenAI's form, as the client sent it. prompts: used in place of
    messages; texts in which special tokens are read, token ids, or texts with a hole to fill.
    options: the options for tools and reasoning. prediction: text that the answer is likely to
    contain. parse_special: True reads the names of control tokens in messages as control tokens.
    continues: True if the last message is the assistant's and the answer continues it, False if the
    answer is a message of its own, None to continue such a message where that is possible. n: the
    number of answers to each prompt. on_busy: what to do if all slots are taken.
    """

    messages: Sequence[Message] = ()
    prompts: Sequence[str | list[int] | Infill] = ()
    params: SamplingParams = field(default_factory=SamplingParams)
    options: AnswerOptions = field(default_factory=AnswerOptions)
    prediction: str = ""
    parse_special: bool = False
    continues: bool | None = None
    n: int = 1
    on_busy: OnBusy = "wait"

    @property
    def why_whole(self) -> str:
        """The reason why the answer cannot continue the last message, "" if it may."""
        last = self.messages[-1]
        if last["role"] != "assistant":
            return "it is not the assistant's"
        if last.get("tool_calls"):
            return "it calls tools, so the results of these calls have to come next"
        if self.params.is_constrained:
            return "the answer has a form, which would apply only to the text that is added"
        return "a tool has to be called" if self.options.must_call else ""
