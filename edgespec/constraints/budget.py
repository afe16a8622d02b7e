"""A limit on the tokens of reasoning: once it is reached, only the closing text is allowed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..cache.token_cache import common_prefix
from ..sampling.base import Constraint, Matcher
from ..types import Thought
from .texts import BLANKS, overlap


class Budget(NamedTuple):
    """A limit on the tokens of reasoning, with everything needed to enforce it.

    most: most tokens of reasoning. begin, end: the markers around reasoning. is_open: True if the
    prompt has opened the reasoning. closing: the tokens that end reasoning. piece: a function that
    returns the bytes that a token adds to the answer.
    """

    most: int
    begin: bytes
    end: bytes
    is_open: bool
    closing: tuple[int, ...]
    piece: Callable[[int], bytes]


class _Place(NamedTuple):
    """The position of an answer relative to its reasoning.

    text: the last bytes, which may still become a marker. n: tokens of reasoning so far. state:
    "before" reasoning, "inside" or "after" it. n_given: how many closing tokens have come in a row.
    Only tokens after the limit count as closing; before the limit they are reasoning.
    """

    text: bytes
    n: int
    state: str
    n_given: int = 0


class BudgetedConstraint:
    """A constraint with a limit on the tokens of reasoning."""

    def __init__(self, inner: Constraint, budget: Budget) -> None:
        self._inner = inner
        self._budget = budget

    @property
    def shown(self) -> Mapping[int, bytes]:
        """The ids of control tokens that are read as text, and their texts."""
        return self._inner.shown

    @property
    def description(self) -> Mapping[str, bool | int | str]:
        """The description of the inner constraint, extended by the limit."""
        most, begin, end, is_open, *_ = self._budget
        limit: dict[str, bool | int | str] = {
            "reasoning_budget": most, "reasoning_begin": begin.decode(),
            "reasoning_end": end.decode(), "reasoning_open": is_open,
        }  # fmt: skip
        return {**self._inner.description, **limit}

    @property
    def thought(self) -> Thought | None:
        """The texts around the reasoning."""
        return self._inner.thought

    @property
    def notes(self) -> Sequence[str]:
        """The notes of the inner constraint."""
        return self._inner.notes

    def matcher(self) -> Matcher | None:
        """Return a matcher at the beginning of an answer."""
        inner = self._inner.matcher()
        return inner and _BudgetedMatcher(inner, self._budget)


class _BudgetedMatcher:
    """A matcher that counts tokens of reasoning.

    It stores the place after each of the drafted tokens `ahead` of the last call.
    """

    def __init__(self, inner: Matcher, budget: Budget) -> None:
        self._inner = inner
        self._budget = budget
        state = "inside" if budget.is_open else "before"
        self._places = [_Place(b"", 0, state)]
        self._ahead: list[int] = []

    @property
    def ends(self) -> Collection[int]:
        """The tokens that end an answer."""
        return self._inner.ends

    @property
    def has_ended(self) -> bool:
        """True if a token that ends the answer was emitted."""
        return self._inner.has_ended

    def mask(self, ahead: Sequence[int] = ()) -> npt.NDArray[np.bool_]:
        """Return a mask of the tokens allowed after the text and `ahead`, [vocab_size]."""
        token = self._due(ahead)
        mask = self._inner.mask(ahead)
        if token is None:
            return mask
        only = np.zeros_like(mask)
        only[token] = True
        return only

    def allows(self, token: int, ahead: Sequence[int] = ()) -> bool:
        """Return whether a token is allowed after the text and `ahead`."""
        due = self._due(ahead)
        return due in (None, token) and self._inner.allows(token, ahead)

    def forced(self, ahead: Sequence[int] = ()) -> Sequence[int]:
        """Return the tokens that must come next because nothing else is allowed."""
        if self._due(ahead) is None:
            return self._inner.forced(ahead)
        return self._budget.closing[self._at(ahead).n_given :]

    def accept(self, tokens: Sequence[int]) -> None:
        """Add emitted tokens to the text. Raises DecodeError if one is not allowed."""
        self._inner.accept(tokens)
        self._places, self._ahead = [self._at(tokens)], []

    def _due(self, ahead: Sequence[int]) -> int | None:
        """Return the closing token that has to come next, None if none has to.

        It is also None in the middle of a multi-byte character, because the inner constraint allows
        no closing token there.
        """
        token = self._closing(self._at(ahead))
        return token if token is not None and self._inner.allows(token, ahead) else None

    def _closing(self, place: _Place) -> int | None:
        """Return the closing token that is due at a place, None while the limit is not reached."""
        if place.state != "inside" or place.n < self._budget.most:
            return None
        return next(iter(self._budget.closing[place.n_given :]), None)

    def _at(self, ahead: Sequence[int]) -> _Place:
        """Return the place after `ahead`."""
        n = common_prefix(self._ahead, ahead)
        del self._ahead[n:], self._places[n + 1 :]
        for token in ahead[n:]:
            self._places.append(self._next(self._places[-1], int(token)))
            self._ahead.append(int(token))
        return self._places[-1]

    def _next(self, place: _Place, token: int) -> _Place:
        budget = self._budget
        if place.state == "after":
            return place
        text = place.text + budget.piece(token)
        if place.state == "before":
            begun = text.lstrip(BLANKS.encode())
            if begun.startswith(budget.begin):
                return self._inside(begun[len(budget.begin) :], 0)
            return _Place(text, 0, "before" if budget.begin.startswith(begun) else "after")
        n_given = place.n_given + 1 if token == self._closing(place) else 0
        return self._inside(text, place.n + 1, n_given)

    def _inside(self, text: bytes, n: int, n_given: int = 0) -> _Place:
        if self._budget.end in text:
            return _Place(b"", n, "after")
        size = overlap(text, self._budget.end)
        return _Place(text[len(text) - size :], n, "inside", n_given)
