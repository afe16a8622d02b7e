"""What a draft model drafts while the last draft is on its way to a target far away."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..interfaces import Request
from ..types import NO_FLOORS, Draft, Floors, Offer, Rows

if TYPE_CHECKING:
    from .model import ModelDrafter


class Ahead:
    """Guesses that the whole draft is accepted and which token the target adds, and drafts on
    from there (SpecEdge, arXiv 2505.17052). If that comes true its tokens are there at once.

    The model belongs to another source, which begins, accepts and ends for it.
    """

    name = "ahead"

    def __init__(self, model: ModelDrafter) -> None:
        self._model = model
        self._context: list[int] = []  # that the tokens stand behind
        self._tokens: list[int] = []
        self._kinds: list[int] = []

    def begin(self, request: Request) -> None:
        """Nothing is foreseen."""
        self._forget()

    def foresee(
        self, context: Sequence[int], draft: Draft, limit: int, until: Callable[[], bool]
    ) -> None:
        """Draft on behind a draft that is under way."""
        self._forget()
        drafted = [*context, *draft.tokens]
        found = self._model.foresee(drafted, limit + 1, until)
        if len(found) > 1:
            self._context = [*drafted, found[0][0]]
            self._tokens = [token for token, _ in found[1:]]
            self._kinds = [kind for _, kind in found[1:]]

    def offer(self, context: Sequence[int], limit: int) -> Offer:
        """Its tokens, where the guess has come true."""
        if not self._tokens or self._context != list(context):
            return Offer(self.name, ())
        survival = self._model.survival(self._kinds[:limit])
        return Offer(self.name, survival, n_known=len(survival))

    def propose(self, context: Sequence[int], limit: int, floors: Floors = NO_FLOORS) -> Draft:
        """As many of them as are wanted."""
        if self._context != list(context):
            return Draft(source=self.name)
        survival = self._model.survival(self._kinds[:limit])
        n = next((i for i, s in enumerate(survival) if not floors.keeps(i, s)), len(survival))
        self._model.adopt(len(context), self._kinds[:n])
        return Draft(tuple(self._tokens[:n]), self.name, survival=survival[n - 1] if n else 1.0)

    def accept(self, tokens: Sequence[int], rows: Rows | None) -> None:
        """The model's own source tells it."""

    def close(self) -> None:
        """The model belongs to another source."""

    def _forget(self) -> None:
        self._context, self._tokens, self._kinds = [], [], []
