"""The base class of the writers of OpenAI's chat and text completions."""

from __future__ import annotations

import codecs
import json
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...backends.base import Tokenizer
from ...types import Completion, Event, Logprob
from ..base import Answer, ServedModel, Writer, data_event, notes_of, stats_of
from ..errors import ApiError, bad_value
from .fields import Generation

_LEAST = -9999.0  # JSON has no infinity; OpenAI writes this for almost impossible tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """The fields of a response other than its answers, and the options for writing it.

    logprobs: report log-probabilities. ids_for_tokens: name tokens in log-probabilities as
    token_id:…. n: the number of answers to each prompt. with_usage: end a stream with a chunk that
    has the token counts. with_all_usage: give the counts so far in every chunk.
    """

    model: str
    tokenizer: Tokenizer
    fingerprint: str
    logprobs: bool = False
    ids_for_tokens: bool = False
    n: int = 1
    with_usage: bool = False
    with_all_usage: bool = False
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))


def envelope_of(given: Generation, serving: ServedModel, *, logprobs: bool) -> Envelope:
    """Return the envelope of the response to a request. Raises ApiError for stream_options
    without stream: true.
    """
    options = given.stream_options
    with_usage = bool(options and options.include_usage)
    if with_usage and not given.stream:
        raise bad_value("stream_options", "include_usage needs stream: true beside it")
    return Envelope(
        model=serving.model,
        tokenizer=serving.tokenizer,
        fingerprint=serving.fingerprint,
        logprobs=logprobs,
        ids_for_tokens=bool(given.return_tokens_as_token_ids),
        n=given.n or 1,
        with_usage=with_usage,
        with_all_usage=with_usage and bool(options and options.continuous_usage_stats),
    )


class Offsets:
    """Finds the offset in characters at which each token begins in the text of an answer.

    A token that continues a character which an earlier token has begun gets that character's
    offset.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._n = 0

    def take(self, token: int) -> int:
        """Return the offset of the next token."""
        begin = self._n
        self._n += len(self._decoder.decode(self._tokenizer.piece(token)))
        return begin


class CompletionsWriter(Writer):
    """Base class of the writers of chat and text completions.

    A stream has a chunk for each part of an event, and [DONE] at the end. n_prompt_tokens: the
    number of tokens of each prompt.
    """

    prefix = kind = chunk_kind = ""

    def __init__(self, envelope: Envelope, n_prompt_tokens: Sequence[int] = ()) -> None:
        self._envelope = envelope
        self._offsets: dict[int, Offsets] = {}  # those of each answer that has begun
        self._n_prompt_tokens = n_prompt_tokens
        self._n_emitted = 0

    def begin(self, index: int) -> Iterable[str]:
        """Return the chunk that opens an answer, if this kind of response has one."""
        self._offsets[index] = Offsets(self._envelope.tokenizer)
        opening = self._opening()
        return [self._chunk({"index": index, **opening})] if opening else []

    def part(self, index: int, event: Event) -> Iterable[str]:
        """Return a chunk for each part of an event; the first has the log-probabilities."""
        self._n_emitted += event.token is not None
        logprobs = self._event_logprobs(event, self._offsets[index])
        parts = self._parts(event)
        if logprobs is not None and not parts:
            parts = [self._nothing()]
        chunks = []
        for part in parts:
            choice = dict(part) | {
                "index": index, "logprobs": logprobs, "finish_reason": None,
                "from_draft": event.from_draft,
            }  # fmt: skip
            chunks.append(self._chunk(choice))
            logprobs = None
        return chunks

    def end(self, index: int, answer: Answer) -> Iterable[str]:
        """Return the chunk that ends an answer, with its statistics."""
        choice = dict(self._last()) | {"index": index, "logprobs": None} | _ending(answer)
        return [self._chunk(choice, **statistics(answer.ended))]

    def close(self, answers: Sequence[Answer]) -> Iterable[str]:
        """Return the token counts, if they were asked for, and [DONE]."""
        if self._envelope.with_usage:
            yield data_event(self._response([], self.chunk_kind) | {"usage": self._usage(answers)})
        yield "data: [DONE]\n\n"

    def fail(self, error: ApiError, request_id: str) -> Iterable[str]:
        """Return an event with the error."""
        return [f"data: {json.dumps(error.body())}\n\n"]

    def whole(self, answers: Sequence[Answer]) -> Mapping[str, Any]:
        """Return the whole response. If there are several answers, each has its own statistics."""
        choices = [self._choice(index, answer) for index, answer in enumerate(answers)]
        more: dict[str, Any] = {}
        if len(answers) > 1:
            for choice, answer in zip(choices, answers, strict=True):
                choice |= statistics(answer.ended)
        else:
            more = statistics(answers[0].ended)
        return self._response(choices, self.kind) | {"usage": self._usage(answers)} | more

    def _opening(self) -> Mapping[str, Any]:
        """Return the fields of the choice that opens an answer."""
        return {}

    def _parts(self, event: Event) -> Sequence[Mapping[str, Any]]:
        """Return the fields of the choice for each part of an event."""
        raise NotImplementedError

    def _nothing(self) -> Mapping[str, Any]:
        """Return the fields of a choice without text."""
        raise NotImplementedError

    def _last(self) -> Mapping[str, Any]:
        """Return the fields of a stream's last choice."""
        raise NotImplementedError

    def _said(self, answer: Answer) -> Mapping[str, Any]:
        """Return the fields of a whole choice that hold its text."""
        raise NotImplementedError

    def _logprobs(self, tokens: Sequence[tuple[int, Logprob]], offsets: Offsets) -> dict[str, Any]:
        """Return the log-probabilities of tokens. offsets: has taken all earlier tokens."""
        raise NotImplementedError

    def _chunk(self, choice: Mapping[str, Any], **more: Any) -> str:
        usage: dict[str, Any] = {"usage": None} if self._envelope.with_usage else {}
        if self._envelope.with_all_usage:
            begun = {index // self._envelope.n for index in self._offsets}
            n_prompt = sum(self._n_prompt_tokens[prompt] for prompt in begun)
            usage["usage"] = _counts(n_prompt, self._n_emitted)
        return data_event(self._response([choice], self.chunk_kind) | more | usage)

    def _response(self, choices: Sequence[Mapping[str, Any]], kind: str) -> dict[str, Any]:
        """Return a response, or a chunk of one, with these choices."""
        return {
            "id": f"{self.prefix}-{self._envelope.id}",
            "object": kind,
            "created": self._envelope.created,
            "model": self._envelope.model,
            "system_fingerprint": self._envelope.fingerprint,
            "choices": list(choices),
        }

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        logprobs, completion = None, answer.ended
        if self._envelope.logprobs:
            pairs = zip(completion.token_ids, completion.logprobs or (), strict=True)
            shown = [pair for pair in pairs if not self._is_hidden_end(pair[0])]
            logprobs = self._logprobs(shown, Offsets(self._envelope.tokenizer))
        return dict(self._said(answer)) | {"index": index, "logprobs": logprobs} | _ending(answer)

    def _usage(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """Return the token counts of all answers together, which count each prompt once."""
        counted = stats_of(answers)
        first = counted[:: self._envelope.n]
        prompt = sum(s.num_prompt_tokens for s in first)
        emitted = sum(s.num_emitted_tokens for s in counted)
        return _counts(prompt, emitted) | {
            "prompt_tokens_details": {"cached_tokens": sum(s.num_cached_tokens for s in first)},
            "completion_tokens_details": {
                f"{what}_prediction_tokens": sum(
                    getattr(s, f"num_{what}_prediction_tokens") for s in counted
                )
                for what in ("accepted", "rejected")
            },
        }

    def _event_logprobs(self, event: Event, offsets: Offsets) -> dict[str, Any] | None:
        """Return the log-probabilities of an event's token, None if they are not to be shown."""
        token = event.token
        if token is None or not event.logprob or not self._envelope.logprobs:
            return None
        if self._is_hidden_end(token):
            return None
        return self._logprobs([(token, event.logprob)], offsets)

    def _is_hidden_end(self, token: int) -> bool:
        """Return True for end tokens without text, unless the client asked for token ids."""
        if self._envelope.ids_for_tokens:
            return False
        tokenizer = self._envelope.tokenizer
        return not tokenizer.piece(token) and tokenizer.is_eog(token)

    def _name(self, token: int) -> str:
        if self._envelope.ids_for_tokens:
            return f"token_id:{token}"
        return self._bytes(token).decode("utf-8", "replace")

    def _bytes(self, token: int) -> bytes:
        """Return the bytes that a token adds to a text, or its name if it adds none."""
        return self._envelope.tokenizer.piece(token) or self._envelope.tokenizer.token_text(token)


def _counts(n_prompt: int, n_emitted: int) -> dict[str, Any]:
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_emitted,
        "total_tokens": n_prompt + n_emitted,
    }


def shown(logprob: float) -> float:
    """Return a log-probability as a number that JSON can hold."""
    return max(logprob, _LEAST)


def statistics(completion: Completion) -> dict[str, Any]:
    """Return the statistics of an answer as the field `edgespec`, and as llama.cpp's `timings`."""
    stats = completion.stats.to_dict()
    timings = stats.pop("timings")
    told = stats | {"finish_reason": completion.finish_reason} | notes_of(completion)
    return {"timings": timings, "edgespec": told}


def _ending(answer: Answer) -> dict[str, Any]:
    """Return the fields of a choice that say why its answer ended."""
    repeated = answer.ended.finish_reason == "repetition"
    reason = "repetition_detected" if repeated else answer.ended.stop_reason  # vLLM's word
    return {"finish_reason": answer.finish_reason, "stop_reason": reason}
