"""Cascades: what one drafter drafts, continued by another, as one source."""

from __future__ import annotations

from collections.abc import Sequence

from ..sampling.trees import first_nodes, n_first_path
from ..types import NO_THRESHOLDS, Distribution, Draft, DraftEstimate, Thresholds
from .base import Source


class Cascade:
    """A source whose drafts come from `first` and are continued by `second`.

    `second` sees tokens that were drawn, and keeps all of them, so every acceptance rule stays
    exact.
    """

    def __init__(self, first: Source, second: Source) -> None:
        self._first, self._second = first, second
        self.name = f"{first.name}+{second.name}"

    def estimate(self, context: Sequence[int], limit: int) -> DraftEstimate:
        """Return the first one's estimate, extended by what a draft model may add after it.

        A draft model that comes first adds to its tokens itself, to those found ahead as well.
        """
        first = self._first.estimate(context, limit)._replace(source=self.name)
        if not first.n_known or first.extension:
            return first
        return first._replace(extension=self._second.estimate(context, limit).extension)

    def propose(
        self, context: Sequence[int], limit: int, thresholds: Thresholds = NO_THRESHOLDS
    ) -> Draft:
        """Return the first one's draft, continued by the second one's."""
        head = self._first.propose(context, limit, thresholds)
        n = len(head.tokens)
        end = n_first_path(head.parents) or n
        if not n or end == limit:
            return head
        after = thresholds.after(end, head.acceptance_prob)
        tail = self._second.propose([*context, *head.tokens[:end]], limit - end, after)
        evaluated = (*head.evaluated, *tail.evaluated)
        if not tail.tokens:
            return head._replace(evaluated=evaluated)
        if end < n:  # one tree in a draft: both might have more leaves than the target takes
            tail = first_nodes(tail, len(tail.tokens), 1)
            head = _with_room(head, end, end + len(tail.tokens), limit, thresholds)
        name = f"{head.source}+{tail.source}"
        return joined(head, tail)._replace(source=name, evaluated=evaluated)


def joined(head: Draft, tail: Draft) -> Draft:
    """Return a draft whose first path is continued by another draft."""
    n = len(head.tokens)
    end = n_first_path(head.parents) or n
    probs = None
    if head.probs is not None or tail.probs is not None:
        ours = _probs(head)
        probs = (*ours[:end], *_probs(tail), *ours[end:])
    return head._replace(
        tokens=(*head.tokens[:end], *tail.tokens, *head.tokens[end:]),
        probs=probs,
        acceptance_prob=head.acceptance_prob * tail.acceptance_prob,
        parents=_joined_parents(head, tail, end),
        path_probs=(),
    )


def _with_room(head: Draft, end: int, n_line: int, limit: int, thresholds: Thresholds) -> Draft:
    """Return a tree without the nodes beside its first path that pay no longer, or for which there
    is no room, now that this path of `end` nodes goes on to `n_line`.
    """
    probs = head.path_probs or range(0, -len(head.tokens), -1)
    others = sorted(range(end, len(head.tokens)), key=lambda node: (-probs[node], node))
    others = others[: limit - n_line]
    if head.path_probs:
        others = others[: thresholds.n_gaining([probs[node] for node in others], n_line)]
    kept = [*range(end), *sorted(others)]
    places = {node: place for place, node in enumerate(kept)} | {-1: -1}
    return head._replace(
        tokens=tuple([head.tokens[node] for node in kept]),
        parents=tuple([places[head.parents[node]] for node in kept]) if others else (),
        probs=head.probs and tuple([head.probs[node] for node in kept]),
        path_probs=(),
    )


def _joined_parents(head: Draft, tail: Draft, end: int) -> tuple[int, ...]:
    if not (head.parents or tail.parents):
        return ()
    ours = head.parents or range(-1, len(head.tokens) - 1)
    theirs = tail.parents or range(-1, len(tail.tokens) - 1)
    n = len(theirs)
    others = [parent + n if parent >= end else parent for parent in ours[end:]]
    return (*ours[:end], *(end + parent for parent in theirs), *others)


def _probs(draft: Draft) -> tuple[Distribution, ...]:
    """Return the distribution of each token; a token that was not drawn had probability one."""
    if draft.probs is not None:
        return draft.probs
    return tuple(Distribution([token], [1.0]) for token in draft.tokens)
