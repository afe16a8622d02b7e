"""Checks of an inference server when connecting: its model, its context size, its token ids."""

from __future__ import annotations

from typing import Any

from ..backends.base import Tokenizer
from ..errors import VerifierRefused, VocabularyMismatch
from .http import Http, checked

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


def as_dict(value: Any) -> dict[str, Any]:
    """Return `value` if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def choose_model(http: Http, wanted: str) -> dict[str, Any]:
    """Return the entry of /v1/models to use.

    It is the model named `wanted` or, if that is "", the only one that is not an adapter. Raises
    VerifierRefused if there is none, or more than one.
    """
    entries = checked(http.host, http.get("/v1/models"), dict, "a list of models").get("data")
    served = [
        entry
        for entry in checked(http.host, entries, list, "a list of models")
        if isinstance(entry, dict) and isinstance(entry.get("id"), str)
    ]
    names = ", ".join(entry["id"] for entry in served) or "none"
    chosen = [e for e in served if (e["id"] == wanted if wanted else not e.get("parent"))]
    if len(chosen) != 1:
        raise VerifierRefused(
            f"{http.host} serves no model {wanted!r}; it has {names}"
            if wanted
            else f"{http.host} serves {len(served)} models, name one: {names}"
        )
    return chosen[0]


def smallest_context(http: Http, *sizes: Any) -> int:
    """Return the smallest of the known context sizes. Raises VerifierRefused if none is known."""
    known = [size for size in sizes if isinstance(size, int) and size > 1]
    if not known:
        raise VerifierRefused(
            f"{http.host} does not say how many tokens its context has; give n_ctx"
        )
    return min(known)


def probe_texts(tokenizer: Tokenizer) -> list[str]:
    """Return texts to compare vocabularies by, including one for each special token."""
    return [*PROBES, *(f"a{mark}b" for mark in tokenizer.special().values() if mark)]


def check_tokenizer(http: Http, tokenizer: Tokenizer, model: str) -> None:
    """Compare token ids of probe texts with the server's.

    A server without /tokenize is asked to continue each text by one token, because its answer says
    how many tokens the text has. Raises VocabularyMismatch, and VerifierRefused if nothing can be
    compared.
    """
    for text in probe_texts(tokenizer):
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
    """Return usage.prompt_tokens of an answer, None if the server does not give it."""
    counted = as_dict(as_dict(answer).get("usage")).get("prompt_tokens")
    return counted if isinstance(counted, int) else None


def check_vocab_size(http: Http, tokenizer: Tokenizer, n_vocab: Any) -> None:
    """Raise VocabularyMismatch if two vocabularies differ in size by more than padding."""
    if isinstance(n_vocab, int) and not (0.95 <= n_vocab / tokenizer.vocab_size <= 1 / 0.95):
        raise VocabularyMismatch(
            f"the vocabulary has {tokenizer.vocab_size} tokens here and {n_vocab} at {http.host}; "
            "load the tokenizer of the model that the server has"
        )
