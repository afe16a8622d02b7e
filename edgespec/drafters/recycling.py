"""Token recycling: guess the tokens that the target ranked highest after this token the last time.

It follows Luo et al. 2024 (arXiv 2408.08696), and learns from all logits rows of a step: those of
emitted tokens and those of rejected drafted tokens.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..cache.token_cache import common_prefix
from ..sampling.base import Request
from ..sampling.sampler import candidates
from ..types import Row, Verified
from . import register
from .base import TRUST, Children, DrafterContext, Role, Tokens
from .calibration import CalibratedDrafter

_N_TOP = 8
_LIKELY = (-4.0, -2.5, -1.5, -0.7, -0.01)  # bounds of classes: logit minus the row's largest logit
_PRIORS = (0.3, 0.1)  # prior acceptance probability of the first guess and of other guesses
_REJECTED = 8  # most rows of rejected tokens that are read in each step, 50 µs each
_RANKS = tuple(range(0, 8 * _N_TOP, 8))  # rank of a guess, times 8; its class is added


class Successors:
    """The likeliest successors of each token, by the last logits row after it.

    It is a table [vocab_size, 8] of packed guesses, the likeliest first. A packed guess is a token
    id, with the class of its distance to the largest logit in the lowest three bits. Memory is only
    taken for tokens that were seen.
    """

    def __init__(self, vocab_size: int) -> None:
        self._table = np.zeros((vocab_size, _N_TOP), np.int32)  # zero: no guess
        self._least: float | None = None  # estimated bound, so that `candidates` sorts few logits

    def of(self, token: int) -> list[int]:
        """Return the packed guesses after a token; an entry of 0 is no guess."""
        successors: list[int] = self._table[token].tolist() if token < len(self._table) else []
        return successors

    def see(self, token: int, row: Row) -> None:
        """Replace the successors of a token by the likeliest ones in `row`, the logits after it."""
        if token >= len(self._table):
            return
        ids, logits, self._least = candidates(row, min(_N_TOP, len(row)), self._least)
        below = [logit - logits[0] for logit in logits if math.isfinite(logit)]
        packed = [
            guess << 3 | 1 + bisect.bisect(_LIKELY, how)
            for guess, how in zip(ids, below, strict=False)
        ]
        self._table[token] = packed + [0] * (_N_TOP - len(packed))

    def forget(self) -> None:
        """Forget the successors of all tokens."""
        self._table[:] = 0

    def known(self) -> Tokens:
        """Return the known successors, int32 [n, 9]: in each row a token and its packed guesses."""
        tokens = self._table[:, 0].nonzero()[0].astype(np.int32)
        return np.column_stack([tokens, self._table[tokens]])

    def learn(self, known: Tokens) -> None:
        """Take what `known` returned.

        Raises ValueError for a wrong dtype or shape, and for tokens or classes that do not exist.
        """
        n = len(self._table)
        if known.dtype != np.int32 or known.ndim != 2 or known.shape[1] != 1 + _N_TOP:
            raise ValueError(f"successors of tokens: {known.dtype} {known.shape}")
        tokens, guesses = known[:, 0], known[:, 1:]
        ids, classes = guesses >> 3, guesses & 7
        if (tokens < 0).any() or (tokens >= n).any() or (ids < 0).any() or (ids >= n).any():
            raise ValueError(f"successors of tokens beyond a vocabulary of {n}")
        if ((classes > 1 + len(_LIKELY)) | ((classes == 0) & (guesses != 0))).any():
            raise ValueError("successors of tokens of unknown classes")
        self._table[tokens] = guesses


class RecyclingDrafter(CalibratedDrafter):
    """Guesses from the likeliest successors of each token, which are kept between requests.

    They are dropped when the owner changes: no guess comes from an answer to another owner. Only
    those of requests without an owner are handed on to later processes. vocab_size: the target's
    vocabulary size. shares: a request uses the successors from all earlier requests of its owner;
    if False, only from requests whose text it continues.
    """

    name, wide = "recycling", True

    def __init__(self, vocab_size: int, *, shares: bool = True) -> None:
        super().__init__()
        self._successors = Successors(vocab_size)
        self._shares = shares
        self._text: Sequence[int] = ()  # the last request's prompt, kept if `shares` is False
        self._owner = ""
        self._last = -1
        self._probs = [0.0] * (8 * _N_TOP)  # acceptance probabilities, by rank and class
        self._refresh(range(len(self._probs)))

    def begin(self, request: Request, role: Role) -> None:
        """Begin a request after the prompt's last token."""
        self._last = request.prompt[-1]
        goes_on = self._shares or common_prefix(self._text, request.prompt) == len(self._text)
        if request.owner != self._owner or not goes_on:
            self._successors.forget()
        self._owner = request.owner
        self._text = () if self._shares else request.prompt

    def root(self) -> int:
        """Return the last token."""
        return self._last

    def step(self, state: int, token: int) -> int:
        """Return `token`: the tokens before it do not matter."""
        return token

    def children(self, state: int, least: float = 0.0) -> Children:
        """Return the likeliest successors of the token."""
        probs = self._probs
        packed = zip(_RANKS, self._successors.of(state), strict=False)
        return [(guess >> 3, probs[rank | guess & 7]) for rank, guess in packed if guess]

    def accept(self, verified: Verified) -> None:
        """Learn which guesses were right, and take new ones from the rows of this step."""
        seen = set()
        for token, row in itertools.zip_longest(verified.tokens, verified.rows):
            self._learn(token)
            if row is not None:
                self._successors.see(self._last, row)
                seen.add(self._last)
            self._last = token
        n_left = _REJECTED
        for token, row in zip(verified.drafted, verified.drafted_rows, strict=False):
            if n_left and token not in seen:
                self._successors.see(token, row)
                seen.add(token)
                n_left -= 1

    def _learn(self, token: int) -> None:
        kinds = []
        for rank, guess in zip(_RANKS, self._successors.of(self._last), strict=False):
            if guess:
                kinds.append(rank | guess & 7)
                self._calibration.observe(kinds[-1], guess >> 3 == token)
        self._refresh(kinds)

    def _refresh(self, kinds: Sequence[int]) -> None:
        for kind in kinds:
            prob = self._calibration.estimate(kind, _PRIORS[kind >= 8])
            self._probs[kind] = TRUST * prob

    def relearn(self, state: Mapping[str, Any]) -> None:
        """Take what `learned` returned."""
        super().relearn(state)
        self._refresh(range(len(self._probs)))

    def learned_tokens(self) -> dict[str, Tokens]:
        """Return the successors of tokens, int32 [n, 9]; nothing if they belong to an owner."""
        return {} if self._owner else {"recycling": self._successors.known()}

    def relearn_tokens(self, state: Mapping[str, Tokens]) -> None:
        """Take what `learned_tokens` returned. Raises ValueError for impossible values."""
        if "recycling" in state:
            self._successors.learn(state["recycling"])


@register("recycling", "token recycling", automatic=True, trees=True)
def make(context: DrafterContext) -> RecyclingDrafter:
    """Make the drafter of method "recycling"."""
    return RecyclingDrafter(context.vocab_size, shares=context.config.remember == "all")
