"""Prompts as token ids, of bounded size."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ..backends.base import Tokenizer
from ..backends.tiles import PictureToken
from ..errors import ConfigError, ContextFull

Prompt = str | Sequence[int]
"""Text or token ids. Special tokens are recognised in the text."""


def prompt_ids(tokenizer: Tokenizer, prompt: Prompt, limit: int) -> list[int]:
    """Return the token ids of a prompt, which is text or token ids.

    limit: most tokens that fit. Tokens of pictures that an engine has read are taken as they are.
    Raises ConfigError for an empty prompt or an unknown id, ContextFull for a text that cannot fit.
    """
    if isinstance(prompt, str):
        check_size(tokenizer, prompt, limit)
        ids = tokenizer.encode(prompt)
    else:
        ids = _token_ids(prompt)
    n = tokenizer.vocab_size
    odd = (token for token in ids if not 0 <= token < n)
    wrong = next((token for token in odd if not isinstance(token, PictureToken)), None)
    if wrong is not None:
        raise ConfigError(f"token id {wrong} is not in the vocabulary (0 … {n - 1})")
    if not ids:
        raise ConfigError("the prompt is empty; give text or at least one token id")
    return ids


def prediction_ids(tokenizer: Tokenizer, prediction: Prompt, limit: int) -> list[int]:
    """Return the first `limit` token ids of a predicted answer, [] for an empty prediction.

    Raises ConfigError if it is neither text nor token ids.
    """
    if not prediction:
        return []
    if not isinstance(prediction, str):
        return prompt_ids(tokenizer, prediction, limit)[:limit]
    pieces = tokenizer.encode_pieces(prediction, add_special=False, parse_special=False)
    return collect(pieces, limit)[:limit]


def _token_ids(prompt: Any) -> list[int]:
    """Return the token ids of a prompt as ints. Raises ConfigError if they are not token ids."""
    if isinstance(prompt, (bytes, bytearray)):
        raise ConfigError("a prompt is text or token ids, got bytes; decode them first")
    if not isinstance(prompt, Iterable):
        raise ConfigError(f"a prompt is text or token ids, got {prompt!r:.80}")
    ids = []
    for token in prompt:
        try:
            ids.append(token if isinstance(token, PictureToken) else operator.index(token))
        except TypeError:
            raise ConfigError(f"a prompt's token ids are ints, got {token!r:.80}") from None
    return ids


def check_size(
    tokenizer: Tokenizer,
    text: str,
    limit: int,
    advice: str = "shorten it or load the model with a larger n_ctx",
) -> None:
    """Raise ContextFull if `text` has so many bytes that it would exceed `limit` tokens even if
    each token were the longest of the vocabulary. Nothing is tokenized.

    advice: the end of the error message.
    """
    if len(text) <= limit:
        return
    size = len(text.encode("utf-8", "replace"))
    least = -(-size // tokenizer.longest_token)
    if least > limit:
        raise ContextFull(
            f"prompt is too long: {least} tokens > {limit} maximum (it has {size} bytes, which are "
            f"at least so many tokens): {advice}"
        )


def collect(
    pieces: Iterator[list[int]], limit: int, stopped: Callable[[], bool] = lambda: False
) -> list[int]:
    """Return the ids of `pieces` as one list.

    No more pieces are read beyond `limit` ids, or once `stopped` returns True.
    """
    ids: list[int] = []
    for piece in pieces:
        ids += piece
        if len(ids) > limit or stopped():
            break
    return ids
