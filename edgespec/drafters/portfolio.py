"""Several sources: each alone, and each continued by the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..interfaces import Drafter, Request
from ..types import NO_FLOORS, Distribution, Draft, Floors, Offer, Rows


class Extended:
    """What `first` drafts; behind it what `second` makes of the context with that draft.

    Both keep their own state: the session must know them beside this one, and tells them what
    begins and what is accepted. `second` sees tokens that were drawn, and keeps all of them, so
    every acceptance rule stays exact.
    """

    def __init__(self, first: Drafter, second: Drafter) -> None:
        self._first, self._second = first, second
        self.name = f"{first.name}+{second.name}"

    def begin(self, request: Request) -> None:
        """Nothing of its own."""

    def offer(self, context: Sequence[int], limit: int) -> Offer:
        """The first one's: what the second would add is not known before there is a draft."""
        return replace(self._first.offer(context, limit), source=self.name)

    def propose(self, context: Sequence[int], limit: int, floors: Floors = NO_FLOORS) -> Draft:
        """The first one's draft with the second one's behind it."""
        head = self._first.propose(context, limit, floors)
        n = len(head.tokens)
        if not n or n == limit:
            return replace(head, source=self.name)
        behind = floors.behind(n, head.survival)
        tail = self._second.propose([*context, *head.tokens], limit - n, behind)
        probs = None
        if head.probs is not None or tail.probs is not None:
            probs = (*_probs(head), *_probs(tail))
        survival = head.survival * tail.survival
        return Draft((*head.tokens, *tail.tokens), self.name, probs, survival)

    def accept(self, tokens: Sequence[int], rows: Rows | None) -> None:
        """Nothing of its own."""

    def close(self) -> None:
        """Nothing of its own."""


def _probs(draft: Draft) -> tuple[Distribution, ...]:
    """A token that was not drawn had probability one."""
    if draft.probs is not None:
        return draft.probs
    return tuple(Distribution([token], [1.0]) for token in draft.tokens)


def sources(lookup: Drafter | None, model: Drafter | None) -> list[Drafter]:
    """What a policy chooses from. A draft model continued by lookup costs no more than the
    model alone, and so stands for it.
    """
    if lookup is None or model is None:
        return [drafter for drafter in (lookup, model) if drafter]
    return [lookup, model, Extended(model, lookup), Extended(lookup, model)]
