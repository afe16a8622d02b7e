"""Token recycling: guess the tokens that the target ranked highest after this token the last time.

It follows Luo et al. 2024 (arXiv 2408.08696), and learns from all logits rows of a step: those of
emitted tokens and those of rejected drafted tokens.
"""

from __future__ import annotations

import bisect
import itertools
import math
import threading
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

    def copy_from(self, other: Successors) -> None:
        """Take all successors of another table, which another thread may change meanwhile.

        A row may then mix guesses of two steps, which are wrong at worst.
        """
        np.copyto(self._table, other._table)

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


class _Table(Successors):
    """Successors from the requests of one owner.

    text: the last request's prompt, () if it does not matter. used: when the table was taken last,
    as a serial number; 0 if it is empty. taken: a request uses it now.
    """

    def __init__(self, vocab_size: int) -> None:
        super().__init__(vocab_size)
        self.owner, self.used, self.taken = "", 0, False
        self.text: Sequence[int] = ()


class Tables:
    """The tables of successors that the drafters of several sessions share, one for each drafter.

    A table serves one request at a time. An owner's request gets the table that this owner used
    last, in whichever session that was. If that one is taken, it gets a copy. If there is none, the
    table that was used least recently is emptied.
    """

    def __init__(self) -> None:
        self._tables: list[_Table] = []
        self._lock = threading.Lock()
        self._n_used = 0

    def add(self, vocab_size: int) -> _Table:
        """Add an empty table for one more drafter."""
        with self._lock:
            self._tables.append(_Table(vocab_size))
            return self._tables[-1]

    def take(self, owner: str, prompt: Sequence[int], shares: bool) -> _Table:
        """Return a table for a request; `shares` as in RecyclingDrafter."""
        with self._lock:
            by_use = sorted(self._tables, key=lambda table: table.used)
            own = [table for table in by_use if table.used and table.owner == owner]
            free = [table for table in by_use if not table.taken]
            usable = [t for t in own if shares or common_prefix(t.text, prompt) == len(t.text)]
            table = next((table for table in reversed(usable) if not table.taken), free[0])
            if table not in usable:
                table.forget()
                if shares and own:
                    table.copy_from(own[-1])
            self._n_used += 1
            table.owner, table.used, table.taken = owner, self._n_used, True
            table.text = () if shares else prompt
            return table

    def known(self) -> Tokens | None:
        """Return the successors from the latest request without an owner, None if another owner has
        used its table since.
        """
        with self._lock:
            own = [table for table in self._tables if not table.owner]
            return max(own, key=lambda table: table.used).known() if own else None

    def learn(self, known: Tokens) -> None:
        """Take what `known` returned in an earlier process. Raises ValueError as `learn` does."""
        with self._lock:
            self._tables[0].learn(known)
            self._n_used += 1
            self._tables[0].used = self._n_used


class RecyclingDrafter(CalibratedDrafter):
    """Guesses from the likeliest successors of each token, which are kept between requests.

    No guess comes from an answer to another owner. Only successors from requests without an owner
    are handed on to later processes. vocab_size: the target's vocabulary size. shares: a request
    uses the successors from all earlier requests of its owner; if False, only from requests whose
    text it continues. tables: those of several sessions; by default the drafter has one of its own,
    which is emptied when the owner changes.
    """

    name, wide = "recycling", True

    def __init__(
        self, vocab_size: int, *, shares: bool = True, tables: Tables | None = None
    ) -> None:
        super().__init__()
        self._tables = tables or Tables()
        self._successors = self._tables.add(vocab_size)
        self._shares = shares
        self._last = -1
        self._probs = [0.0] * (8 * _N_TOP)  # acceptance probabilities, by rank and class
        self._refresh(range(len(self._probs)))

    def begin(self, request: Request, role: Role) -> None:
        """Begin a request after the prompt's last token."""
        self.end()
        self._last = request.prompt[-1]
        self._successors = self._tables.take(request.owner, request.prompt, self._shares)

    def end(self) -> None:
        """End the request: another session may use the successors."""
        self._successors.taken = False

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
        known = self._tables.known()
        return {} if known is None else {"recycling": known}

    def relearn_tokens(self, state: Mapping[str, Tokens]) -> None:
        """Take what `learned_tokens` returned. Raises ValueError for impossible values."""
        if "recycling" in state:
            self._tables.learn(state["recycling"])


@register("recycling", "token recycling", automatic=True, trees=True)
def make(context: DrafterContext) -> RecyclingDrafter:
    """Make the drafter of method "recycling"."""
    shares, tables = context.config.remember == "all", context.shared.part("tables", Tables)
    return RecyclingDrafter(context.vocab_size, shares=shares, tables=tables)
