"""Several sources: each alone, and each continued by the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..sampling.base import Request
from ..types import NO_THRESHOLDS, Distribution, Draft, Offer, Rows, Thresholds
from .base import Drafter, DraftsAhead


class Cascade:
    """What `first` drafts; behind it what `second` makes of the context with that draft.

    `second` sees tokens that were drawn, and keeps all of them, so every acceptance rule stays
    exact. A request begins, is accepted and ends here for the drafters that this one `owns`:
    each must be owned once, here or by being a source itself.
    """

    def __init__(self, first: Drafter, second: Drafter, owns: Sequence[Drafter] = ()) -> None:
        self._first, self._second = first, second
        self._owns = list(owns)
        self.name = f"{first.name}+{second.name}"

    def begin(self, request: Request) -> None:
        """Tell those that it owns."""
        for drafter in self._owns:
            drafter.begin(request)

    def offer(self, context: Sequence[int], limit: int) -> Offer:
        """The first one's; what a draft model may add behind it is only expected."""
        first = self._first.offer(context, limit)
        if not first.n_known:
            return first._replace(source=self.name)
        second = self._second.offer(context, limit)
        return second._replace(source=self.name, survival=first.survival, n_known=first.n_known)

    def propose(
        self, context: Sequence[int], limit: int, thresholds: Thresholds = NO_THRESHOLDS
    ) -> Draft:
        """The first one's draft with the second one's behind it."""
        head = self._first.propose(context, limit, thresholds)
        n = len(head.tokens)
        name = f"{head.source}+{self._second.name}"
        if not n or n == limit:
            return head._replace(source=name)
        behind = thresholds.behind(n, head.survival)
        tail = self._second.propose([*context, *head.tokens], limit - n, behind)
        evaluated = (*head.evaluated, *tail.evaluated)
        if not tail.tokens:
            return head._replace(source=self._first.name, evaluated=evaluated)
        probs = None
        if head.probs is not None or tail.probs is not None:
            probs = (*_probs(head), *_probs(tail))
        survival = head.survival * tail.survival
        return Draft((*head.tokens, *tail.tokens), name, probs, survival, evaluated)

    def accept(self, tokens: Sequence[int], rows: Rows | None) -> None:
        """Tell those that it owns."""
        for drafter in self._owns:
            drafter.accept(tokens, rows)

    def draft_ahead(
        self, context: Sequence[int], draft: Draft, limit: int, until: Callable[[], bool]
    ) -> None:
        """Those that it owns use the time, if they can."""
        for drafter in self._owns:
            if isinstance(drafter, DraftsAhead):
                drafter.draft_ahead(context, draft, limit, until)

    def close(self) -> None:
        """Free those that it owns."""
        for drafter in self._owns:
            drafter.close()


def _probs(draft: Draft) -> tuple[Distribution, ...]:
    """A token that was not drawn had probability one."""
    if draft.probs is not None:
        return draft.probs
    return tuple(Distribution([token], [1.0]) for token in draft.tokens)


def sources(lookup: Drafter | None, model: Drafter | None) -> list[Drafter]:
    """What a policy chooses from. A draft model continued by lookup takes no longer than the
    model alone, and so stands for it.
    """
    if lookup is None or model is None:
        return [drafter for drafter in (lookup, model) if drafter]
    return [lookup, Cascade(model, lookup, [model]), Cascade(lookup, model)]
