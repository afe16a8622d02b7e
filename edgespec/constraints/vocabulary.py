"""The vocabulary of a model in the form that llguidance reads."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from ..backends.base import Tokenizer
from ..errors import ConfigError

_ESCAPED = re.compile(rb"((?:\\[^/]|[^\\])*)\\(?=/)", re.DOTALL)  # text before an escaped slash


class Words:
    r"""A vocabulary as llguidance reads it.

    tokens: the bytes of each token. ends: the tokens that end an answer. usual_end: the one that
    ended the last answer; before any answer has ended, the first of `ends`. slashes: the
    ids of the tokens that begin with a slash. with_slashes: for each token with `\/` in it, as
    tokens, its text up to the first of these backslashes, and its text without them.
    """

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        ids = range(tokenizer.vocab_size)
        self.tokens = [tokenizer.piece(token) for token in ids]
        self.ends = [token for token in ids if tokenizer.is_eog(token)]
        if not self.ends:
            raise ConfigError("the model has no token that ends an answer, as constraints need")
        self.special_token_ids = [token for token in ids if not self.tokens[token]]
        for token in self.special_token_ids:
            self.tokens[token] = tokenizer.token_text(token) or b"<%d>" % token
        self.eos_token_id = self.usual_end = self.ends[0]
        special = set(self.special_token_ids)
        self._of_bytes = {self.tokens[token]: token for token in ids if token not in special}
        self._longest = max(map(len, self._of_bytes), default=1)
        self._first = np.array([token[0] for token in self.tokens], np.uint8)
        self.slashes = np.flatnonzero(self._first == ord("/"))
        self.with_slashes = {
            token: (self.longest_tokens(begun[0]), self.longest_tokens(_ESCAPED.sub(rb"\1", text)))
            for text, token in self._of_bytes.items()
            if b"\\/" in text and (begun := _ESCAPED.match(text))
        }

    def __call__(self, text: bytes) -> list[int]:
        """Return the tokens of a text that begins in the middle of another text.

        A tokenizer that puts a space before each text gets the text after a newline. Text that the
        tokenizer cannot read is split into the longest possible tokens.
        """
        words = text.decode("utf-8", "replace")
        for before in ("", "\n"):
            ids = self._encode(before + words)[len(self._encode(before)) :]
            if self.text(ids) == text:
                return ids
        return self.longest_tokens(text)

    def begin_alike(self, allowed: npt.NDArray[np.bool_]) -> bool:
        """Return True if all tokens that a mask allows, [vocab_size], begin with the same byte."""
        first = self._first[allowed]
        return bool(first.size) and bool((first == first[0]).all())

    def text(self, ids: list[int]) -> bytes:
        """Return the bytes that the tokens stand for."""
        return b"".join(self.tokens[token] for token in ids)

    def _encode(self, text: str) -> list[int]:
        try:
            return self._tokenizer.encode(text, add_special=False, parse_special=False)
        except ConfigError:
            return []

    def longest_tokens(self, text: bytes) -> list[int]:
        """Return a text as the longest possible tokens, up to bytes of which there is no token."""
        tokens, at = [], 0
        while at < len(text):
            parts = (text[at : at + n] for n in range(self._longest, 0, -1))
            part = next((part for part in parts if part in self._of_bytes), None)
            if part is None:
                break
            tokens.append(self._of_bytes[part])
            at += len(part)
        return tokens
