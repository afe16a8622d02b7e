"""The text of an answer: where it ends, and which part of it can be shown already.

Neither depends on how the tokens were split into drafts: a stop string that begins in one draft and
ends in the next is still recognized.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence

from ..backends.base import Tokenizer
from ..config import SamplingParams
from ..types import FinishReason, Thought
from .repetition import Repetition
from .stops import Stops


class Output:
    """Turns the tokens of one answer into text, and decides where the answer ends.

    Bytes of an incomplete character and text that may be the start of a stop string are held
    back. `text` is everything that may be shown so far, `token_ids` everything emitted.

    shown: the ids of control tokens that add text to this answer, and their texts; all other
    control tokens add none. thought: the texts around the reasoning in this answer, in which stop
    strings do not count. n_repeated: the number of repeated tokens at the end, if they ended the
    answer, else 0.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        params: SamplingParams,
        shown: Mapping[int, bytes] | None = None,
        thought: Thought | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._params = params
        self._shown = shown or {}
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        rule = params.repetition_detection
        self._repetition = Repetition(rule) if rule and params.ends_repetition else None
        is_json = params.schema is not None
        self._stops = Stops(params.stop, is_json=is_json, thought=thought) if params.stop else None
        self.text = ""
        self.n_repeated = 0
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None

    @property
    def is_whole(self) -> bool:
        """True if the model itself ended the answer, rather than a stop string or a limit."""
        return self.finish_reason == "stop" and not isinstance(self.stop_reason, str)

    def cut(self, tokens: Sequence[int]) -> list[tuple[int, str]]:
        """Take tokens up to the end of the answer; return each one with the text to show now."""
        taken = []
        for token in tokens:
            taken.append((token, self._take(token)))
            if self.finish_reason:
                break
        return taken

    def finish(self, reason: FinishReason) -> None:
        """End the answer for a reason, unless it has already ended for another reason."""
        self.finish_reason = self.finish_reason or reason

    def flush(self) -> str:
        """Return the text that was held back. Call it once, at the end."""
        rest = self._decoder.decode(b"", True)
        if self._stops:
            rest = self._stops.take(rest) + self._stops.end()
            self.stop_reason = self._stops.found or self.stop_reason
        self.text += rest
        return rest

    def _take(self, token: int) -> str:
        self.token_ids.append(token)
        params = self._params
        if token in params.stop_token_ids or (
            not params.ignore_eos and self._tokenizer.is_eog(token)
        ):
            self.finish_reason, self.stop_reason = "stop", token
            return ""
        shown = self._decoder.decode(self._shown.get(token) or self._tokenizer.piece(token))
        if self._stops:
            shown = self._stops.take(shown)
            if self._stops.found:
                self.finish_reason, self.stop_reason = "stop", self._stops.found
        self.text += shown
        if params.max_tokens is not None and len(self.token_ids) >= params.max_tokens:
            self.finish("length")
        if self._repetition and not self.finish_reason:
            self.n_repeated = self._repetition.take(token)
            if self.n_repeated:
                self.finish("repetition")
        return shown
