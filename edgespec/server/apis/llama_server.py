"""The API of llama.cpp's own server: `/infill` and `/completion`, with its native answers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from ...chat.request import GenerationRequest
from ...config import SamplingParams
from ...decoding.infill import Infill
from ...types import Event
from ..base import Answer, ParsedRequest, PreparedRequest, ServedModel, Writer, data_event
from ..errors import ApiError, bad_value
from .fields import Generation, TokenId, about, ignored, only, read
from .openai_writer import statistics
from .sampling import form_of, given_of

_EDITORS = ignored("llama.vim, llama.vscode and other clients of llama.cpp")
_NO_LOGPROBS = only("log-probabilities are those of /v1/completions")
_OFF = only("this sampler is not used")


class ExtraFile(Struct, frozen=True):
    """A piece of another file. Unknown fields are ignored: llama.vim adds a time."""

    text: str = ""
    filename: str = "tmp"


class NativeRequest(Generation, frozen=True, kw_only=True):
    """The fields of all requests to llama.cpp's own API."""

    n_predict: Annotated[
        Annotated[int, Meta(ge=-1)] | None,
        about("Most tokens to generate; 0: only read the prompt, -1: no limit of its own"),
    ] = None
    repeat_penalty: Annotated[
        Annotated[float, Meta(gt=0)] | None, about("llama.cpp's name of repetition_penalty")
    ] = None
    t_max_predict_ms: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        about("End an answer with a line break so many ms after its first token; 0: never"),
    ] = None
    response_fields: Annotated[
        Annotated[list[str], Meta(max_length=256)] | None,
        about('Fields of the answer to return; "timings/prompt_n" names one inside another'),
    ] = None
    return_tokens: Annotated[bool | None, about("Return the ids of the answer's tokens")] = None
    samplers: Annotated[Any, _EDITORS] = None
    n: Annotated[Literal[1] | None, only("one answer a request")] = None
    n_indent: Annotated[Any, _EDITORS] = None
    n_cmpl: Annotated[Any, _EDITORS] = None
    n_keep: Annotated[Any, _EDITORS] = None
    n_discard: Annotated[Any, _EDITORS] = None
    n_cache_reuse: Annotated[Any, _EDITORS] = None
    min_keep: Annotated[Any, _EDITORS] = None
    repeat_last_n: Annotated[Any, _EDITORS] = None
    t_max_prompt_ms: Annotated[Any, _EDITORS] = None
    post_sampling_probs: Annotated[Any, _EDITORS] = None
    sse_ping_interval: Annotated[Any, _EDITORS] = None
    n_probs: Annotated[Literal[0] | None, _NO_LOGPROBS] = None
    mirostat: Annotated[Literal[0] | None, _OFF] = None
    dry_multiplier: Annotated[Literal[0] | None, _OFF] = None
    xtc_probability: Annotated[Literal[0] | None, _OFF] = None
    typical_p: Annotated[Literal[1] | None, _OFF] = None
    dynatemp_range: Annotated[Literal[0] | None, _OFF] = None
    lora: Annotated[
        Annotated[list[Any], Meta(max_length=0)] | None, only("adapters are not applied")
    ] = None


class InfillRequest(NativeRequest, frozen=True, kw_only=True):
    """The body of `/infill`."""

    input_prefix: Annotated[str, about("The text before the hole")]
    input_suffix: Annotated[str | None, about("The text after the hole")] = None
    input_extra: Annotated[
        Annotated[list[ExtraFile], Meta(max_length=4096)] | None,
        about("Pieces of other files, the most important one last"),
    ] = None
    prompt: Annotated[str | None, about("The text with which the answer begins")] = None


class NativeCompletion(NativeRequest, frozen=True, kw_only=True):
    """The body of `/completion`."""

    prompt: Annotated[
        str | Annotated[list[TokenId], Meta(min_length=1)], about("Text or token ids to continue")
    ]


def parse_infill(body: bytes, serving: ServedModel) -> ParsedRequest:
    """Return the request in a body. Raises ApiError, and ConfigError for settings out of range."""
    given = read(body, InfillRequest)
    serving.filling.required("input_prefix")
    extra = [(each.filename, each.text) for each in given.input_extra or ()]
    hole = Infill(
        given.input_prefix, given.input_suffix or "", given.prompt or "", extra, cuts=True
    )
    return _parsed(given, serving, hole)


def parse_completion(body: bytes, serving: ServedModel) -> ParsedRequest:
    """Return the request in a body. Raises ApiError, and ConfigError for settings out of range."""
    given = read(body, NativeCompletion)
    return _parsed(given, serving, given.prompt)


def _parsed(given: NativeRequest, serving: ServedModel, prompt: Any) -> ParsedRequest:
    param, form = form_of(given)
    params = serving.params({**_settings(given), **form})
    params = serving.filling.ended(params, [prompt])
    limit_s = (given.t_max_predict_ms or 0) / 1e3
    return ParsedRequest(
        request=GenerationRequest(prompts=[prompt], params=params, on_busy=given.on_busy or "wait"),
        writer=lambda prepared: NativeWriter(given, serving, params, prepared),
        model=given.model,
        stream=bool(given.stream),
        form=param,
        watch=(lambda: _PredictLimit(limit_s)) if limit_s else None,
    )


def _settings(given: NativeRequest) -> dict[str, Any]:
    """Return the settings of SamplingParams that a request gives, under our names."""
    fields = given_of(given)
    if getattr(given, "seed", None) == -1:  # llama.cpp's word for a new one every time
        del fields["seed"]
    if given.repeat_penalty is not None:
        fields["repetition_penalty"] = given.repeat_penalty
    if given.n_predict is not None and "max_tokens" in fields:
        raise bad_value("n_predict", "max_tokens and n_predict are one thing; give one")
    if given.n_predict is not None and given.n_predict >= 0:
        fields["max_tokens"] = max(1, given.n_predict)  # the prompt is read for a first token
    return fields


class _PredictLimit:
    """Tells when an answer has lasted long enough: at the first token at which `seconds` have
    passed since the first one and the answer has a line break.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began: float | None = None
        self._has_line = False

    def __call__(self, event: Event) -> bool:
        now = time.monotonic()
        self._began = now if self._began is None else self._began
        self._has_line = self._has_line or "\n" in event.text
        return self._has_line and now - self._began >= self._seconds


class NativeWriter(Writer):
    """Writes an answer in the form of llama.cpp's own API.

    given: the request. params: its settings. prepared: its prompt as token ids.
    """

    def __init__(
        self,
        given: NativeRequest,
        serving: ServedModel,
        params: SamplingParams,
        prepared: PreparedRequest,
    ) -> None:
        self._given, self._serving, self._params = given, serving, params
        (self._prompt,) = prepared.prompts
        self._is_hidden = given.n_predict == 0
        self._n_predicted = 0

    def begin(self, index: int) -> Iterable[str]:
        """Return nothing: an answer begins with its first text."""
        return ()

    def part(self, index: int, event: Event) -> Iterable[str]:
        """Return an event with the text of a token."""
        if event.token is None or self._is_hidden:
            return ()
        self._n_predicted += 1
        return [
            data_event({
                "index": index, "content": event.text, "tokens": [event.token], "stop": False,
                "id_slot": 0, "tokens_predicted": self._n_predicted,
                "tokens_evaluated": len(self._prompt),
            })
        ]  # fmt: skip

    def end(self, index: int, answer: Answer) -> Iterable[str]:
        """Return the last event, without the text that has been sent."""
        return [data_event(self._chosen(self._told(answer, is_stream=True)))]

    def close(self, answers: Sequence[Answer]) -> Iterable[str]:
        """Return nothing: there is only one answer, and `end` has ended it."""
        return ()

    def fail(self, error: ApiError, request_id: str) -> Iterable[str]:
        """Return an event with the error."""
        return [f"data: {json.dumps(error.body())}\n\n"]

    def whole(self, answers: Sequence[Answer]) -> Mapping[str, Any]:
        """Return the whole answer."""
        return self._chosen(self._told(answers[0], is_stream=False))

    def _told(self, answer: Answer, *, is_stream: bool) -> dict[str, Any]:
        completion, stats = answer.ended, answer.ended.stats
        content = "" if self._is_hidden else answer.content
        tokens = [] if self._is_hidden else list(completion.token_ids)
        stopped, word = completion.finish_reason == "stop", completion.stop_reason
        stop_type = "limit" if not stopped else "word" if isinstance(word, str) else "eos"
        return {
            "index": 0,
            "content": "" if is_stream else content,
            "tokens": tokens if self._given.return_tokens and not is_stream else [],
            "id_slot": 0,
            "stop": True,
            "model": self._serving.model,
            "tokens_predicted": len(tokens),
            "tokens_evaluated": stats.num_prompt_tokens,
            "generation_settings": self._generation_settings(),
            "prompt": self._prompt_text(),
            "has_new_line": "\n" in content,
            "truncated": completion.finish_reason == "context_full",
            "stop_type": stop_type,
            "stopping_word": word if isinstance(word, str) else "",
            "tokens_cached": stats.num_cached_tokens,
        } | statistics(completion)

    def _generation_settings(self) -> dict[str, Any]:
        params, given = self._params, self._given
        names = ("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty")
        limit = params.max_tokens if given.n_predict is None else given.n_predict
        return {name: getattr(params, name) for name in names} | {
            "repeat_penalty": params.repetition_penalty,
            "seed": params.seed,
            "stop": list(params.stop),
            "n_predict": -1 if limit is None else limit,
            "stream": bool(given.stream),
        }

    def _prompt_text(self) -> str:
        """Return the prompt as text, with its markers."""
        tokenizer = self._serving.tokenizer
        pieces = (tokenizer.piece(token) or tokenizer.token_text(token) for token in self._prompt)
        return b"".join(pieces).decode("utf-8", "replace")

    def _chosen(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of an answer that the request wants, each under the name it has there.
        Fields that do not exist are left out.
        """
        wanted = self._given.response_fields
        if not wanted:
            return answer
        chosen: dict[str, Any] = {}
        for name in wanted:
            value: Any = answer
            for part in name.split("/"):
                value = value.get(part) if isinstance(value, dict) else None
            if value is not None:
                chosen[name] = value
        return chosen
