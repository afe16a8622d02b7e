r"""Reads `\/`, JSON's other way to write a slash, which llguidance does not know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .vocabulary import Words

if TYPE_CHECKING:
    import llguidance


class SlashMatcher:
    r"""The position of a text in a grammar.

    A token with `\/` in it that is not allowed is read as if that backslash were not there. If the
    backslash was the end of the token before, llguidance is first moved back over that token and
    reads it without the backslash. Only the form of JSON's texts makes this right, so it is done
    only if reads_slashes is True.
    """

    def __init__(self, matcher: llguidance.LLMatcher, words: Words, *, reads_slashes: bool) -> None:
        self.inner = matcher
        self._words = words
        self._reads_slashes = reads_slashes
        self._read_as: list[list[int]] = []  # for each token the tokens that llguidance has read
        self._last: list[list[int]] = []  # the same, while the token is the last one
        self._bits = np.zeros((len(words.tokens) + 31) // 32, np.int32)

    def read(self, tokens: Sequence[int]) -> bool:
        """Read tokens and return True; if one is not allowed, read none and return False."""
        n = 0
        while n < len(tokens):
            end = n + self.n_valid(tokens[n:])
            if end < len(tokens) and not self._may_be_slash(tokens[n:end], tokens[end]):
                self.unread(n)
                return False
            self._read([[int(token)] for token in tokens[n:end]])
            if end < len(tokens) and not self._read_slash(int(tokens[end])):
                self.unread(end)
                return False
            n = end + 1
        return True

    def unread(self, n: int) -> None:
        """Go back over the last n tokens."""
        if n == 0:
            return
        kept = len(self._last) - n
        self.inner.rollback(sum(map(len, self._read_as[kept:])))
        del self._last[kept:], self._read_as[kept:]
        if self._last and self._read_as[-1] != self._last[-1]:
            self._replace_last(self._last[-1])

    def n_valid(self, tokens: Sequence[int]) -> int:
        r"""Return how many of the tokens may follow, apart from `\/`.

        Ids outside the vocabulary count as forbidden: rows can be longer than the vocabulary, and
        such an id would leave llguidance in an error state permanently.
        """
        n = len(self._words.tokens)
        known = next((i for i, token in enumerate(tokens) if not 0 <= token < n), len(tokens))
        return self.inner.validate_tokens([int(token) for token in tokens[:known]])

    def mask(self) -> npt.NDArray[np.bool_]:
        """Return a mask of the tokens that may follow, [vocab_size]."""
        mask, slashes = self._mask(), self._words.slashes
        shortened = self._shortened()
        if shortened is not None and not mask[slashes].any():
            self._replace_last(shortened)
            mask[slashes] |= self._mask()[slashes]
            self._replace_last(self._last[-1])
        return mask

    def _may_be_slash(self, before: Sequence[int], token: int) -> bool:
        """Return True if a token that is not allowed otherwise may be a part of an escaped slash.

        llguidance cannot go back behind a token that ends answers.
        """
        if not self._reads_slashes or not 0 <= token < len(self._words.tokens):
            return False
        has_slash = token in self._words.slashes or token in self._words.with_slashes
        return has_slash and not {*self._words.ends} & {*before}

    def _read_slash(self, token: int) -> bool:
        r"""Read a token that is only allowed as a part of `\/`; return False if it is not."""
        if plain := self._plain(token):
            self._read([plain])
            return True
        shortened = self._shortened()
        if shortened is None or token not in self._words.slashes:
            return False
        self._replace_last(shortened)
        if tokens := [token] if self.n_valid([token]) else self._plain(token):
            self._read([tokens])
            return True
        self._replace_last(self._last[-1])
        return False

    def _plain(self, token: int) -> list[int]:
        r"""Return what stands for a token with `\/` in it, without the backslash. The list is empty
        if there is no `\/` in it, or if it is not allowed here.
        """
        begun, plain = self._words.with_slashes.get(token, ([], []))
        is_text = self.n_valid(begun) == len(begun)  # where a backslash may come, there is a text
        return plain if is_text and self.n_valid(plain) == len(plain) else []

    def _shortened(self) -> list[int] | None:
        """Return the last token without the backslash at its end; None if it has none."""
        last = self._words.text(self._last[-1]) if self._last and self._reads_slashes else b""
        return self._words.longest_tokens(last[:-1]) if last.endswith(b"\\") else None

    def _replace_last(self, tokens: list[int]) -> None:
        """Let llguidance read other tokens in place of what it has read for the last token."""
        self.inner.rollback(len(self._read_as[-1]))
        self.inner.consume_tokens(tokens)
        self._read_as[-1] = tokens

    def _read(self, parts: list[list[int]]) -> None:
        """Let llguidance read what stands for each of some tokens."""
        self.inner.consume_tokens([token for part in parts for token in part])
        self._last += parts
        self._read_as += parts

    def _mask(self) -> npt.NDArray[np.bool_]:
        self.inner.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        bits = np.unpackbits(self._bits.view(np.uint8), bitorder="little")
        mask = bits[: len(self._words.tokens)].view(bool)
        if self._reads_slashes and mask[self._words.slashes].any():
            for token in self._words.with_slashes:
                mask[token] = mask[token] or bool(self._plain(token))
        return mask
