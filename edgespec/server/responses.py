"""The two shapes of an answer: chat and completion, whole and in chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..backends.base import Tokenizer
from ..types import Completion, Event, Logprob, Stats

_LEAST = -9999.0  # JSON has no infinity; OpenAI writes this for what is as good as impossible
_REASONS = {"stop": "stop", "length": "length", "context_full": "length", "time_limit": "length"}


@dataclass(frozen=True, slots=True)
class Form:
    """What both shapes share. n_prompts: choices that the answer will have."""

    model: str
    tokenizer: Tokenizer
    fingerprint: str
    logprobs: bool = False
    ids_for_tokens: bool = False
    n_prompts: int = 1
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    prefix = kind = chunk_kind = ""

    def envelope(self, choices: Sequence[Mapping[str, Any]], *, chunk: bool) -> dict[str, Any]:
        """An answer or a chunk of one."""
        return {
            "id": f"{self.prefix}-{self.id}",
            "object": self.chunk_kind if chunk else self.kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": list(choices),
        }

    def opening(self, index: int) -> dict[str, Any] | None:
        """The first chunk of a choice, if the shape has one."""
        return None

    def piece(self, index: int, event: Event, offset: int) -> dict[str, Any] | None:
        """The chunk of an event; None where it says nothing. offset: characters before it."""
        shown = event.token is not None and not self._is_end(event.token)
        logprob = event.logprob if shown and self.logprobs else None
        if not event.text and logprob is None:
            return None
        told = None
        if logprob is not None and event.token is not None:
            told = self.told([(event.token, logprob)], offset)
        choice = self.part(event.text) | {
            "index": index, "logprobs": told, "finish_reason": None,
            "from_draft": event.from_draft,
        }  # fmt: skip
        return self.envelope([choice], chunk=True)

    def last(self, index: int, completion: Completion) -> dict[str, Any]:
        """The last chunk of a choice, with what it cost and gained."""
        choice = self.part("", last=True) | {"index": index, "logprobs": None} | _ending(completion)
        return self.envelope([choice], chunk=True) | figures(completion)

    def choice(self, index: int, completion: Completion) -> dict[str, Any]:
        """A choice of a whole answer."""
        told = None
        if self.logprobs:
            pairs = zip(completion.token_ids, completion.logprobs or (), strict=True)
            told = self.told([pair for pair in pairs if not self._is_end(pair[0])], 0)
        return self.said(completion.text) | {"index": index, "logprobs": told} | _ending(completion)

    def whole(self, completions: Sequence[Completion]) -> dict[str, Any]:
        """Everything at once. The figures of several choices stand in each of them."""
        choices = [self.choice(i, completion) for i, completion in enumerate(completions)]
        if len(completions) > 1:
            for choice, completion in zip(choices, completions, strict=True):
                choice |= figures(completion)
            more = {}
        else:
            more = figures(completions[0])
        counted = usage(completion.stats for completion in completions)
        return self.envelope(choices, chunk=False) | {"usage": counted} | more

    def part(self, text: str, *, last: bool = False) -> dict[str, Any]:
        """The text of a chunk."""
        raise NotImplementedError

    def said(self, text: str) -> dict[str, Any]:
        """The text of a whole choice."""
        raise NotImplementedError

    def told(self, tokens: Sequence[tuple[int, Logprob]], offset: int) -> dict[str, Any]:
        """Log-probabilities of tokens."""
        raise NotImplementedError

    def _is_end(self, token: int) -> bool:
        """End tokens are no part of the text: only who asks for ids sees them."""
        if self.ids_for_tokens:
            return False
        return not self.tokenizer.piece(token) and self.tokenizer.is_eog(token)

    def _name(self, token: int) -> str:
        if self.ids_for_tokens:
            return f"token_id:{token}"
        return self._bytes(token).decode("utf-8", "replace")

    def _bytes(self, token: int) -> bytes:
        """What a token writes; its name where that is nothing."""
        return self.tokenizer.piece(token) or self.tokenizer.token_text(token)


class ChatForm(Form):
    """`/v1/chat/completions`."""

    __slots__ = ()
    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def opening(self, index: int) -> dict[str, Any]:
        """Who speaks."""
        choice = {
            "index": index, "delta": {"role": "assistant", "content": ""},
            "logprobs": None, "finish_reason": None,
        }  # fmt: skip
        return self.envelope([choice], chunk=True)

    def part(self, text: str, *, last: bool = False) -> dict[str, Any]:
        """A delta."""
        return {"delta": {} if last else {"content": text}}

    def said(self, text: str) -> dict[str, Any]:
        """A message."""
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def told(self, tokens: Sequence[tuple[int, Logprob]], offset: int) -> dict[str, Any]:
        """One entry a token."""
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


class TextForm(Form):
    """`/v1/completions`."""

    __slots__ = ()
    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def part(self, text: str, *, last: bool = False) -> dict[str, Any]:
        """A piece of the text."""
        return {"text": text}

    said = part

    def told(self, tokens: Sequence[tuple[int, Logprob]], offset: int) -> dict[str, Any]:
        """Lists side by side. text_offset counts the characters of the tokens' own names."""
        names = [self._name(token) for token, _ in tokens]
        offsets = [offset]
        for token, _ in tokens[:-1]:
            offsets.append(offsets[-1] + len(self.tokenizer.piece(token).decode("utf-8", "ignore")))
        return {
            "tokens": names,
            "token_logprobs": [max(logprob.logprob, _LEAST) for _, logprob in tokens],
            "top_logprobs": [
                {self._name(token): max(value, _LEAST) for token, value in logprob.top}
                for _, logprob in tokens
            ],
            "text_offset": offsets[: len(tokens)],
        }


def usage(stats: Iterable[Stats]) -> dict[str, Any]:
    """Tokens of all choices together."""
    counted = list(stats)
    prompt = sum(s.num_prompt_tokens for s in counted)
    emitted = sum(s.num_emitted_tokens for s in counted)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": emitted,
        "total_tokens": prompt + emitted,
        "prompt_tokens_details": {"cached_tokens": sum(s.num_cached_tokens for s in counted)},
    }


def figures(completion: Completion) -> dict[str, Any]:
    """What the answer cost and gained, and llama.cpp's `timings`."""
    told = completion.stats.to_dict()
    timings = told.pop("timings")
    return {"timings": timings, "edgespec": told | {"finish_reason": completion.finish_reason}}


def _ending(completion: Completion) -> dict[str, Any]:
    return {
        "finish_reason": _REASONS[completion.finish_reason],
        "stop_reason": completion.stop_reason,
    }
