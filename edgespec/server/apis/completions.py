"""OpenAI's `/v1/completions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta

from ...chat.request import GenerationRequest
from ...decoding.infill import Infill
from ...types import Event, Logprob
from ..base import Answer, ParsedRequest, ServedModel, parts_of
from ..errors import bad_value
from .fields import Generation, TokenId, Top, about, only, read
from .openai_writer import CompletionsWriter, Offsets, envelope_of, shown
from .sampling import form_of, given_of

_TOKENS = 16  # default length of an answer, as in OpenAI's API: base models rarely end their text

Prompt = Annotated[
    str
    | Annotated[
        list[TokenId | str | Annotated[list[TokenId], Meta(min_length=1)]], Meta(min_length=1)
    ],
    about("Text or token ids; of several prompts each gets a choice, in this order"),
]


class CompletionRequest(Generation, frozen=True, kw_only=True):
    """The body of `/v1/completions`."""

    prompt: Prompt
    logprobs: Annotated[
        Top | bool | None,
        about("Log-probabilities, and so many of the likeliest tokens beside each"),
    ] = None
    best_of: Annotated[Literal[1] | None, only("one answer a request")] = None
    echo: Annotated[bool | None, only("prompts are not repeated", enum=[False, None])] = None
    suffix: Annotated[
        str | None, about("The text after the hole that the answer fills; the prompt comes before")
    ] = None


def parse(body: bytes, serving: ServedModel) -> ParsedRequest:
    """Return the request in a body. Raises ApiError, and ConfigError for settings out of range."""
    given = read(body, CompletionRequest)
    fields = given_of(given)
    if given.echo:
        raise bad_value("echo", "echo must be false: prompts are not repeated")
    param, form = form_of(given)
    if given.logprobs is True:
        raise bad_value("logprobs", "logprobs must be a number: of so many tokens beside each")
    if given.logprobs is not None and given.logprobs is not False:
        fields["logprobs"] = given.logprobs
    params = serving.params({"max_tokens": _TOKENS, **fields, **form})
    prompts = _prompts(given.prompt)
    if given.suffix:
        serving.filling.required("suffix")
        prompts = [_hole(prompt, given.suffix) for prompt in prompts]
    params = serving.filling.ended(params, prompts)
    envelope = envelope_of(given, serving, logprobs=params.logprobs is not None)
    return ParsedRequest(
        request=GenerationRequest(
            prompts=prompts, params=params, n=given.n or 1, on_busy=given.on_busy or "wait"
        ),
        writer=lambda prepared: TextWriter(envelope, [*map(len, prepared.prompts)]),
        model=given.model,
        stream=bool(given.stream),
        form=param,
    )


def _prompts(prompt: Any) -> list[Any]:
    """Return the prompts of a request as a list. Raises ApiError if it mixes types of prompts."""
    each = prompt if isinstance(prompt, list) else [prompt]
    kinds = {type(item) for item in each}
    if len(kinds) > 1:
        raise bad_value("prompt", "prompt mixes texts, token ids and lists; give one kind")
    return [prompt] if kinds == {int} else each


def _hole(prompt: Any, suffix: str) -> Infill:
    """Return a prompt and a suffix as a text with a hole. Raises ApiError for token ids."""
    if not isinstance(prompt, str):
        raise bad_value("suffix", "suffix needs a prompt that is text, not token ids")
    return Infill(prompt, suffix)


class TextWriter(CompletionsWriter):
    """Writes continuations of texts."""

    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def _parts(self, event: Event) -> Sequence[Mapping[str, Any]]:
        return [{"text": part.text} for part in parts_of(event)]

    def _nothing(self) -> Mapping[str, Any]:
        return {"text": ""}

    _last = _nothing

    def _said(self, answer: Answer) -> Mapping[str, Any]:
        return {"text": answer.content}

    def _logprobs(self, tokens: Sequence[tuple[int, Logprob]], offsets: Offsets) -> dict[str, Any]:
        """Return parallel lists; text_offset says where in the text each token begins."""
        return {
            "tokens": [self._name(token) for token, _ in tokens],
            "token_logprobs": [shown(logprob.logprob) for _, logprob in tokens],
            "top_logprobs": [self._likeliest(token, logprob) for token, logprob in tokens],
            "text_offset": [offsets.take(token) for token, _ in tokens],
        }

    def _likeliest(self, token: int, logprob: Logprob) -> dict[str, float]:
        """Return the log-probabilities of the likeliest tokens and of the sampled one, which is the
        last if it is not among them.

        Of tokens with the same text the sampled one, or else the likeliest, has this text as its
        name, and the others have their ids.
        """
        values = dict(logprob.top) | {token: logprob.logprob}
        owners: dict[str, int] = {}
        for each in (token, *values):
            owners.setdefault(self._name(each), each)
        names = {each: name for name, each in owners.items()}
        return {names.get(each, f"token_id:{each}"): shown(value) for each, value in values.items()}

    def _name(self, token: int) -> str:
        """Return the text of a token; bytes that are no text are written as OpenAI writes them."""
        name = super()._name(token)
        if "\ufffd" not in name:
            return name
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in self._bytes(token))
