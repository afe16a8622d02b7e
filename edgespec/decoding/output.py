"""The text of an answer: where it ends, and which part of it can be shown already.

Neither depends on how the tokens were split into drafts: a stop string that begins in one draft and
ends in the next is still recognized.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence

from ..backends.base import Tokenizer
from ..config import SamplingParams
from ..constraints.texts import overlap
from ..types import FinishReason
from .repetition import Repetition


class Output:
    """Turns the tokens of one answer into text, and decides where the answer ends.

    Bytes of an incomplete character and text that may be the start of a stop string are held
    back. `text` is everything that may be shown so far, `token_ids` everything emitted.

    shown: the ids of control tokens that add text to this answer, and their texts; all other
    control tokens add none. n_repeated: the number of repeated tokens at the end, if they ended the
    answer, else 0.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        params: SamplingParams,
        shown: Mapping[int, bytes] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._params = params
        self._shown = shown or {}
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        rule = params.repetition_detection
        self._repetition = Repetition(rule) if rule and params.ends_repetition else None
        self._held = ""
        self.text = ""
        self.n_repeated = 0
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None

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
        rest = (
            ""
            if isinstance(self.stop_reason, str)
            else self._held + self._decoder.decode(b"", True)
        )
        self._held = ""
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
        self._held += self._decoder.decode(self._shown.get(token) or self._tokenizer.piece(token))
        if params.stop:
            shown = self._release()
        else:
            shown, self._held = self._held, ""
        self.text += shown
        if params.max_tokens is not None and len(self.token_ids) >= params.max_tokens:
            self.finish("length")
        if self._repetition and not self.finish_reason:
            self.n_repeated = self._repetition.take(token)
            if self.n_repeated:
                self.finish("repetition")
        return shown

    def _release(self) -> str:
        """Return the held text that is certain to be shown; end the answer at a stop string."""
        stops = [(self._held.index(stop), stop) for stop in self._params.stop if stop in self._held]
        if stops:
            at, self.stop_reason = min(stops)
            self.finish_reason = "stop"
        else:
            at = len(self._held) - max(
                (overlap(self._held, s) for s in self._params.stop), default=0
            )
        shown, self._held = self._held[:at], self._held[at:]
        return shown
