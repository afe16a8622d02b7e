"""Builders of the responses to chat and text completions, whole and in chunks."""

from __future__ import annotations

import codecs
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..backends.base import Tokenizer
from ..types import Completion, Event, Logprob, Stats

_LEAST = -9999.0  # JSON has no infinity; OpenAI writes this for what is as good as impossible
_REASONS = {
    "stop": "stop", "length": "length", "context_full": "length", "time_limit": "length",
    "repetition": "repetition",
}  # fmt: skip


class Offsets:
    """Finds where in the text of an answer its tokens begin, in characters.

    A token that goes on with a character which another has begun is at that character.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._n = 0

    def take(self, token: int) -> int:
        """Return where the next token begins."""
        begin = self._n
        self._n += len(self._decoder.decode(self._tokenizer.piece(token)))
        return begin


@dataclass(frozen=True, slots=True)
class ResponseBuilder:
    """Base of the builders of chat and text responses.

    logprobs: report log-probabilities. ids_for_tokens: name tokens as token_id:… there.
    """

    model: str
    tokenizer: Tokenizer
    fingerprint: str
    logprobs: bool = False
    ids_for_tokens: bool = False
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    prefix = kind = chunk_kind = ""

    def envelope(self, choices: Sequence[Mapping[str, Any]], *, chunk: bool) -> dict[str, Any]:
        """Return a response, or a chunk of one, with these choices."""
        return {
            "id": f"{self.prefix}-{self.id}",
            "object": self.chunk_kind if chunk else self.kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": list(choices),
        }

    def first_chunk(self, index: int) -> dict[str, Any] | None:
        """Return the chunk that opens a choice, or None if this kind of response has none."""
        return None

    def take(self, event: Event) -> None:
        """Follow an answer whose response will be sent whole."""

    def event_chunks(self, index: int, event: Event, offsets: Offsets) -> list[dict[str, Any]]:
        """Return the chunks of an event; offsets: those of the choice, up to the event."""
        logprobs = self.event_logprobs(event, offsets)
        if not event.text and logprobs is None:
            return []
        return [self.piece(index, self.chunk_text(event.text), event, logprobs)]

    def event_logprobs(self, event: Event, offsets: Offsets) -> dict[str, Any] | None:
        """Return the log-probabilities of an event's token, None where none are shown."""
        shown = event.token is not None and not self._is_hidden_end(event.token)
        if not (shown and self.logprobs and event.logprob) or event.token is None:
            return None
        return self.token_logprobs([(event.token, event.logprob)], offsets)

    def piece(
        self,
        index: int,
        part: Mapping[str, Any],
        event: Event,
        logprobs: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        """Return the chunk for a part of an event's text."""
        choice = dict(part) | {
            "index": index, "logprobs": logprobs, "finish_reason": None,
            "from_draft": event.from_draft,
        }  # fmt: skip
        return self.envelope([choice], chunk=True)

    def last_chunk(self, index: int, completion: Completion) -> dict[str, Any]:
        """Return the chunk that ends a choice, with its statistics."""
        choice = self.chunk_text("", last=True) | {"index": index, "logprobs": None}
        ended = [choice | self.ending(completion)]
        return self.envelope(ended, chunk=True) | statistics(completion)

    def choice(self, index: int, completion: Completion) -> dict[str, Any]:
        """Return a choice of a whole response."""
        logprobs = None
        if self.logprobs:
            pairs = zip(completion.token_ids, completion.logprobs or (), strict=True)
            shown = [pair for pair in pairs if not self._is_hidden_end(pair[0])]
            logprobs = self.token_logprobs(shown, Offsets(self.tokenizer))
        choice = self.choice_text(completion.text) | {"index": index, "logprobs": logprobs}
        return choice | self.ending(completion)

    def ending(self, completion: Completion) -> dict[str, Any]:
        """Return why an answer ended, as fields of its choice."""
        reason = completion.finish_reason
        repeated = "repetition_detected" if reason == "repetition" else None  # vLLM's word
        return {
            "finish_reason": _REASONS[reason],
            "stop_reason": repeated or completion.stop_reason,
        }

    def usage(self, stats: Iterable[Stats]) -> dict[str, Any]:
        """Return the token counts of all choices together."""
        counted = list(stats)
        prompt = sum(s.num_prompt_tokens for s in counted)
        emitted = sum(s.num_emitted_tokens for s in counted)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": emitted,
            "total_tokens": prompt + emitted,
            "prompt_tokens_details": {"cached_tokens": sum(s.num_cached_tokens for s in counted)},
            "completion_tokens_details": {
                f"{what}_prediction_tokens": sum(
                    getattr(s, f"num_{what}_prediction_tokens") for s in counted
                )
                for what in ("accepted", "rejected")
            },
        }

    def whole(self, completions: Sequence[Completion]) -> dict[str, Any]:
        """Return the whole response; of several choices, each has its own statistics."""
        choices = [self.choice(i, completion) for i, completion in enumerate(completions)]
        if len(completions) > 1:
            for choice, completion in zip(choices, completions, strict=True):
                choice |= statistics(completion)
            more = {}
        else:
            more = statistics(completions[0])
        counted = self.usage(completion.stats for completion in completions)
        return self.envelope(choices, chunk=False) | {"usage": counted} | more

    def chunk_text(self, text: str, *, last: bool = False) -> dict[str, Any]:
        """Return the part of a chunk's choice that holds its text."""
        raise NotImplementedError

    def choice_text(self, text: str) -> dict[str, Any]:
        """Return the part of a whole choice that holds its text."""
        raise NotImplementedError

    def token_logprobs(
        self, tokens: Sequence[tuple[int, Logprob]], offsets: Offsets
    ) -> dict[str, Any]:
        """Return the log-probabilities of tokens; offsets: those of all tokens before them."""
        raise NotImplementedError

    def _is_hidden_end(self, token: int) -> bool:
        """Return True for end tokens, unless the client asked for token ids."""
        if self.ids_for_tokens:
            return False
        return not self.tokenizer.piece(token) and self.tokenizer.is_eog(token)

    def _name(self, token: int) -> str:
        if self.ids_for_tokens:
            return f"token_id:{token}"
        return self._bytes(token).decode("utf-8", "replace")

    def _bytes(self, token: int) -> bytes:
        """Return what a token adds to a text, or its name if that is nothing."""
        return self.tokenizer.piece(token) or self.tokenizer.token_text(token)


class ChatResponseBuilder(ResponseBuilder):
    """Builds responses of `/v1/chat/completions`."""

    __slots__ = ()
    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def first_chunk(self, index: int) -> dict[str, Any]:
        """Return a chunk that says who speaks."""
        choice = {
            "index": index, "delta": {"role": "assistant", "content": ""},
            "logprobs": None, "finish_reason": None,
        }  # fmt: skip
        return self.envelope([choice], chunk=True)

    def chunk_text(self, text: str, *, last: bool = False) -> dict[str, Any]:
        """Return a delta, which is empty in the last chunk."""
        return {"delta": {} if last else {"content": text}}

    def choice_text(self, text: str) -> dict[str, Any]:
        """Return a message of the assistant."""
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def token_logprobs(
        self, tokens: Sequence[tuple[int, Logprob]], offsets: Offsets
    ) -> dict[str, Any]:
        """Return one entry for each token."""
        content = [
            self._entry(token, logprob.logprob)
            | {"top_logprobs": [self._entry(*top) for top in logprob.top]}
            for token, logprob in tokens
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        return {
            "token": self._name(token),
            "logprob": max(logprob, _LEAST),
            "bytes": list(self._bytes(token)),
        }


class TextResponseBuilder(ResponseBuilder):
    """Builds responses of `/v1/completions`."""

    __slots__ = ()
    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def chunk_text(self, text: str, *, last: bool = False) -> dict[str, Any]:
        """Return the text as it is."""
        return {"text": text}

    choice_text = chunk_text

    def token_logprobs(
        self, tokens: Sequence[tuple[int, Logprob]], offsets: Offsets
    ) -> dict[str, Any]:
        """Return parallel lists; text_offset says where in the text each token begins."""
        return {
            "tokens": [self._name(token) for token, _ in tokens],
            "token_logprobs": [max(logprob.logprob, _LEAST) for _, logprob in tokens],
            "top_logprobs": [
                {self._name(token): max(value, _LEAST) for token, value in logprob.top}
                for _, logprob in tokens
            ],
            "text_offset": [offsets.take(token) for token, _ in tokens],
        }


def statistics(completion: Completion) -> dict[str, Any]:
    """Return the statistics of an answer as `edgespec`, and llama.cpp's `timings`."""
    stats = completion.stats.to_dict()
    timings = stats.pop("timings")
    return {"timings": timings, "edgespec": stats | {"finish_reason": completion.finish_reason}}
