"""One tree of what a draft model and lookups guess."""

from __future__ import annotations

from collections.abc import Sequence

from ..types import NO_THRESHOLDS, Draft, DraftEstimate, Thresholds
from .base import Drafter, Source
from .cascade import Cascade
from .heads import HeadDrafter
from .model_tree import ModelTreeDrafter
from .trees import TreeDrafter


class Merged:
    """A source of trees in which a draft model's choices and what lookups guess stand side by side.

    Where the model drafts chains, lookups continue them.
    """

    def __init__(self, model: ModelTreeDrafter, lookups: TreeDrafter) -> None:
        self._model, self._lookups = model, lookups
        self._chain = Cascade(model, lookups)
        self.name = self._chain.name

    def estimate(self, context: Sequence[int], limit: int) -> DraftEstimate:
        """Return the model's estimate, and that of the lookups beside it."""
        beside = None if self._model.is_chain else self._lookups.estimate(context, limit)
        return self._model.estimate(context, limit)._replace(source=self.name, beside=beside)

    def propose(
        self, context: Sequence[int], limit: int, thresholds: Thresholds = NO_THRESHOLDS
    ) -> Draft:
        """Draft the likeliest nodes of both, at most `limit`."""
        if self._model.is_chain:
            return self._chain.propose(context, limit, thresholds)
        found, evaluated = self._model.guess(context, limit, thresholds)
        tree, names = self._lookups.beside(context, limit, found)
        n = tree.n_best(thresholds)
        used = [names[i] or self._model.name for i in sorted(set(tree.sources[:n]))]
        return tree.draft(n, "+".join(used) or self.name)._replace(evaluated=evaluated)


def combined(lookups: Sequence[Drafter], model: Drafter | None) -> list[Source]:
    """Return the sources that a policy chooses from: each lookup alone, and the draft model and
    the first lookup, each continued by the other, or both as one tree.

    A draft model with lookups beside it takes no longer than the model alone, and so stands for it.
    A head continues nothing.
    """
    if model is None or not lookups:
        return [*lookups, *([model] if model else [])]
    first = lookups[0]
    both: Source = Cascade(model, first)
    if isinstance(model, ModelTreeDrafter) and isinstance(first, TreeDrafter):
        both = Merged(model, first)
    if isinstance(model, HeadDrafter):
        return [*lookups, both]
    return [*lookups, both, Cascade(first, model)]
