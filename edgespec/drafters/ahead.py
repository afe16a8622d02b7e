"""A draft model that goes on while its last draft is on the way to a target far away."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..sampling.base import Request
from ..types import NO_THRESHOLDS, Draft, Offer, Rows, Thresholds

if TYPE_CHECKING:
    from .model import ModelDrafter


class AheadDrafter:
    """Guesses that the whole draft is accepted and which token the target adds, and drafts on
    from there (SpecEdge, arXiv 2505.17052). If that comes true its next draft is there already,
    or begins with what is; otherwise it drafts as the model does.
    """

    name = "draft_model"

    def __init__(self, model: ModelDrafter) -> None:
        self._model = model
        self._context: list[int] = []  # that the tokens stand behind
        self._found: list[tuple[int, int]] = []  # token, kind of its row

    def begin(self, request: Request) -> None:
        """Nothing is foreseen."""
        self._found = []
        self._model.begin(request)

    def draft_ahead(
        self, context: Sequence[int], draft: Draft, limit: int, until: Callable[[], bool]
    ) -> None:
        """Draft on behind a draft that is under way."""
        drafted = [*context, *draft.tokens]
        found = self._model.look_ahead(drafted, limit + 1, until)
        self._context = [*drafted, *(token for token, _ in found[:1])]
        self._found = found[1:]

    def offer(self, context: Sequence[int], limit: int) -> Offer:
        """The model's; its first tokens are known where the guess has come true."""
        offer = self._model.offer(context, limit)
        if not self._came_true(context):
            return offer
        known = self._model.survival(self._found[:limit])
        rest = (known[-1] * offer.follow ** (i + 1) for i in range(limit - len(known)))
        return offer._replace(survival=(*known, *rest), n_known=len(known), n_pending=1)

    def propose(
        self, context: Sequence[int], limit: int, thresholds: Thresholds = NO_THRESHOLDS
    ) -> Draft:
        """What is there, and what the model adds."""
        if not self._came_true(context):
            return self._model.propose(context, limit, thresholds)
        survival = self._model.survival(self._found[:limit])
        n = next((i for i, s in enumerate(survival) if not thresholds.keeps(i, s)), len(survival))
        tokens = tuple(token for token, _ in self._found[:n])
        sure = survival[n - 1] if n else 1.0
        tail = Draft()
        if n == len(self._found) < limit:
            tail = self._model.propose([*context, *tokens], limit - n, thresholds.behind(n, sure))
        self._model.adopt(len(context), self._found[:n], continued=bool(tail.tokens))
        return Draft((*tokens, *tail.tokens), "ahead", None, sure * tail.survival, tail.evaluated)

    def accept(self, tokens: Sequence[int], rows: Rows | None) -> None:
        """Tell the model."""
        self._model.accept(tokens, rows)

    def close(self) -> None:
        """Free the model."""
        self._model.close()

    def _came_true(self, context: Sequence[int]) -> bool:
        return bool(self._found) and self._context == list(context)
