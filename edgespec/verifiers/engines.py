"""Inference servers of others as targets: what all of them share.

Every round asks for the server's own token behind the context and behind each prefix of the
draft, and keeps drafted tokens while they are these (`acceptance.match`). That is exact whatever
proposed the draft, drawn or not: the first token emitted is the server's draw, whose law is the
target's because it is made without a look at the draft. Whether a second one follows depends on
the draft, but its law, given the first, is again the target's; where it does not follow, the
next round draws it. What it takes is that the draws of a round are independent of the draft and
of each other, hence never a common seed for the rows. A draft drawn from q survives with the
sum of q(x) p(x), less often than by rejection sampling, which would need the target's rows.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from ..backends.base import Tokenizer
from ..config import RemoteConfig, SamplingParams
from ..errors import ConfigError, ContextFull, VerifierFault, VerifierRefused, VocabularyMismatch
from ..sampling.acceptance import match
from ..sampling.base import Request
from ..types import Draft, Verdict
from .http import Http, part

PROBES = (
    "The quick brown fox jumps over the lazy dog.",
    "def area(r: float) -> float:\n    return 3.14159 * r ** 2\n",
    "1234567890 3.1415e-10 0xDEADBEEF 12:30",
    " leading,  double   and trailing spaces \n\n\n\ttab\r\n",
    "Grüße aus Zürich, naïve café, Ελληνικά, русский, 日本語, 한국어, العربية",
    "🙂👍🏽 ∑∫≠ €100",
    "don't WON'T it's I'LL {\"key\": [null, true]} </div> && || ==>",
)
SHORT = "The capital of France is"
_MOST_BIAS = 100.0


def split_url(url: str) -> tuple[str, str]:
    """Kind of server and base address, without /v1 at its end. Raises ConfigError."""
    kind, _, address = url.partition("+")
    try:
        parts = urlsplit(address)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if kind not in ("sglang", "vllm", "openai") or not good:
        raise ConfigError(
            f"{_without_credentials(url)!r} names no verifier; give sglang+http://host:port, "
            "vllm+http://host:port or openai+http://host:port, or https instead of http"
        )
    if parts.username is not None or parts.query or parts.fragment:
        raise ConfigError(
            "a verifier's URL has no user, password, query or fragment; give a key as api_key"
        )
    path = parts.path.rstrip("/").removesuffix("/v1")
    return kind, f"{parts.scheme}://{parts.netloc}{path}"


def _without_credentials(url: str) -> str:
    before, at, after = url.rpartition("@")
    return f"…@{after}" if at else before + after


class EngineVerifier(ABC):
    """A target on another machine, asked for its own tokens.

    It holds the ids of the context itself; the server keeps what its prefix cache keeps. A
    subclass finds out at its construction what the server can do, and sets n_ctx, the longest
    prompt that the server continues by one token.
    """

    name: str
    n_ctx: int
    max_draft: int

    def __init__(self, remote: RemoteConfig, tokenizer: Tokenizer, http: Http | None) -> None:
        self._http = http or Http(
            split_url(remote.url)[1], remote.api_key, timeout_s=remote.timeout_s
        )
        self._tokenizer = tokenizer

    def begin(self, request: Request) -> Iterator[int]:
        """Check what is asked for; nothing is sent before the first `verify`."""
        if not request.prompt:
            raise ValueError("the prompt is empty: the target needs at least one token")
        if len(request.prompt) > self.n_ctx:
            raise ContextFull(
                f"the prompt has {len(request.prompt)} tokens, {self.name} at {self._http.host} "
                f"takes {self.n_ctx}; shorten the prompt or start the server with more context"
            )
        self._check_sampling(request.params)
        self._params, self._abort = request.params, request.abort
        self._context = list(request.prompt)
        self._n_read = 0
        return iter((0,))

    def verify(self, draft: Draft) -> Verdict:
        """One round. `draft.probs` are not looked at: see the head of this file."""
        n_tokens = len(self._context) + len(draft.tokens)
        if n_tokens > self.n_ctx:
            raise ContextFull(
                f"{n_tokens} tokens, but {self.name} at {self._http.host} takes {self.n_ctx}"
            )
        began = time.perf_counter()
        own = self._own_tokens(draft.tokens)
        seconds = time.perf_counter() - began
        n_accepted, token = match(draft.tokens, own.__getitem__)
        return Verdict(
            (*draft.tokens[:n_accepted], token), n_accepted,
            n_evaluated=n_tokens - self._n_read, seconds=seconds,
        )  # fmt: skip

    def accept(self, tokens: Sequence[int]) -> None:
        """What was emitted: part of the next prompt, all but the last read by the server."""
        self._context.extend(tokens)
        self._n_read = len(self._context) - 1

    def close(self) -> None:
        """Close the connection. Twice is harmless."""
        self._http.close()

    @abstractmethod
    def _own_tokens(self, draft: Sequence[int]) -> list[int]:
        """The server's token behind the context and each prefix of the draft, one more than
        the draft has.
        """

    @abstractmethod
    def _check_sampling(self, params: SamplingParams) -> None:
        """Raises VerifierRefused for what the server cannot do exactly."""

    def _refuse(self, what: str, remedy: str) -> None:
        raise VerifierRefused(f"{self.name} at {self._http.host} cannot serve {what}; {remedy}")

    def _check_common(self, params: SamplingParams, coldest: float) -> None:
        """What no server can do exactly that is asked for one token at a time. coldest: the
        server takes lower temperatures above 0 for others.
        """
        if params.has_penalties:
            self._refuse(
                "penalties exactly: what was emitted is prompt to it, and penalised otherwise",
                "leave repetition, presence and frequency penalty out, or decode locally",
            )
        if params.logprobs is not None:
            self._refuse("logprobs", "leave them out, or decode locally")
        if params.temperature == 0:
            return
        if params.seed is not None:
            self._refuse(
                "a seed: tokens drawn with one seed in several rows depend on each other",
                "leave the seed out, or use an edgespec server, which honours it",
            )
        if params.temperature < coldest:
            self._refuse(
                f"temperature {params.temperature:g}: it uses another one below {coldest:g}",
                f"take 0 or at least {coldest:g}",
            )

    def _check_bias(self, params: SamplingParams) -> dict[str, float]:
        """logit_bias as servers take it: decimal ids, at most 100 either way."""
        wrong = next((b for b in params.logit_bias.values() if not abs(b) <= _MOST_BIAS), None)
        if wrong is not None:
            self._refuse(f"logit_bias {wrong:g}", "give values from -100 to 100")
        return {str(token): float(bias) for token, bias in params.logit_bias.items()}

    def _token(self, value: Any) -> int:
        """A token id from the server. Raises VerifierFault where it is none of ours."""
        token = part(self._http.host, value, int, "a token id")
        if not 0 <= token < self._tokenizer.vocab_size:
            raise VerifierFault(
                f"{self._http.host} sent token {token}; ids of this vocabulary are 0 … "
                f"{self._tokenizer.vocab_size - 1}"
            )
        return token


def as_dict(value: Any) -> dict[str, Any]:
    """An object of JSON; an empty one for anything else that a server may have there."""
    return value if isinstance(value, dict) else {}


def choose_model(http: Http, wanted: str) -> dict[str, Any]:
    """The entry of /v1/models to use: the wanted one, else the only one that is no adapter."""
    entries = part(http.host, http.get("/v1/models"), dict, "a list of models").get("data")
    found = [
        entry
        for entry in part(http.host, entries, list, "a list of models")
        if isinstance(entry, dict) and isinstance(entry.get("id"), str)
    ]
    names = ", ".join(entry["id"] for entry in found) or "none"
    chosen = [e for e in found if (e["id"] == wanted if wanted else not e.get("parent"))]
    if len(chosen) != 1:
        raise VerifierRefused(
            f"{http.host} serves no model {wanted!r}; it has {names}"
            if wanted
            else f"{http.host} serves {len(found)} models, name one: {names}"
        )
    return chosen[0]


def smallest(http: Http, *sizes: Any) -> int:
    """The smallest context of those that are told. Raises VerifierRefused where none is."""
    known = [size for size in sizes if isinstance(size, int) and size > 1]
    if not known:
        raise VerifierRefused(
            f"{http.host} does not say how many tokens its context has; give n_ctx"
        )
    return min(known)


def probes(tokenizer: Tokenizer) -> list[str]:
    """Texts to compare vocabularies by, the special tokens of this one among them."""
    return [*PROBES, *(f"a{mark}b" for mark in tokenizer.special().values() if mark)]


def check_tokenizer(http: Http, tokenizer: Tokenizer, model: str) -> None:
    """Compare token ids of probe texts with the server's. Raises VocabularyMismatch, and
    VerifierRefused where nothing can be compared.

    A server without /tokenize is asked to continue each text by one token: it says how many
    tokens the text has.
    """
    for text in probes(tokenizer):
        ours = tokenizer.encode(text, add_special=False)
        theirs = _tokenized(http, text, model)
        if theirs is None:
            _compare_counts(http, tokenizer, text, model)
        elif theirs != ours:
            raise VocabularyMismatch(
                f"{text!r} is {ours} here and {theirs} at {http.host}: another vocabulary; load "
                "the tokenizer of the model that the server has"
            )


def _tokenized(http: Http, text: str, model: str) -> list[int] | None:
    body = {
        "model": model, "prompt": text, "add_special_tokens": False,  # vLLM, SGLang
        "content": text, "add_special": False, "parse_special": True,  # llama-server
    }  # fmt: skip
    answer = http.post("/tokenize", body, optional=True)
    tokens = as_dict(answer).get("tokens")
    return tokens if isinstance(tokens, list) else None


def _compare_counts(http: Http, tokenizer: Tokenizer, text: str, model: str) -> None:
    body = {"model": model, "prompt": text, "max_tokens": 1, "temperature": 0}
    counted = prompt_tokens(http.post("/v1/completions", body))
    if counted is None:
        raise VerifierRefused(
            f"{http.host} has no /tokenize and does not count prompt tokens: whether its "
            "vocabulary is the target's cannot be checked; use a server that tells"
        )
    ours = [len(tokenizer.encode(text, add_special=special)) for special in (False, True)]
    if counted not in ours:
        raise VocabularyMismatch(
            f"{text!r} is {ours[0]} tokens here and {counted} at {http.host}: another vocabulary; "
            "load the tokenizer of the model that the server has"
        )


def prompt_tokens(answer: Any) -> int | None:
    """usage.prompt_tokens, where a server gives it."""
    counted = as_dict(as_dict(answer).get("usage")).get("prompt_tokens")
    return counted if isinstance(counted, int) else None


def check_vocab_size(http: Http, tokenizer: Tokenizer, n_vocab: Any) -> None:
    """Sizes may differ by padding. Raises VocabularyMismatch."""
    if isinstance(n_vocab, int) and not (0.95 <= n_vocab / tokenizer.vocab_size <= 1 / 0.95):
        raise VocabularyMismatch(
            f"the vocabulary has {tokenizer.vocab_size} tokens here and {n_vocab} at {http.host}; "
            "load the tokenizer of the model that the server has"
        )
