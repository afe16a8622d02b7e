"""A draft model that goes on while its last draft is being verified on another machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..sampling.base import Request
from ..sampling.trees import first_nodes
from ..types import NO_DRAFT, NO_THRESHOLDS, Draft, DraftEstimate, Thresholds, Verified
from .cascade import joined

if TYPE_CHECKING:
    from .draft_model import Guess, ModelDrafter


class AheadDrafter:
    """Drafts on from a draft whose verification is under way (SpecEdge, arXiv 2505.17052).

    It guesses that the whole draft is accepted (of a tree, its first path), and which token the
    target adds. If the guess comes true, the next draft, or its beginning, is there already;
    otherwise it drafts as the model does.
    """

    name = "draft_model"

    def __init__(self, model: ModelDrafter) -> None:
        self._model = model
        self._context: list[int] = []  # the text that the found tokens follow
        self._found: list[Guess] = []

    def begin(self, request: Request) -> None:
        """Begin a request, with nothing drafted ahead."""
        self._found = []
        self._model.begin(request)

    def draft_ahead(
        self, context: Sequence[int], draft: Draft, limit: int, until: Callable[[], bool]
    ) -> None:
        """Draft on after a draft that is being verified; after a tree's first path."""
        drafted = [*context, *first_nodes(draft, len(draft.tokens), 1).tokens]
        found = self._model.look_ahead(drafted, limit + 1, until)
        self._context = [*drafted, *(token for token, _ in found[:1])]
        self._found = found[1:]

    def estimate(self, context: Sequence[int], limit: int) -> DraftEstimate:
        """Return the model's estimate; its first tokens are known if the guess has come true."""
        estimate = self._model.estimate(context, limit)
        if not self._came_true(context):
            return estimate
        known = self._model.acceptance_probs(self._found[:limit])
        extension = self._model.extension(1 - len(known), len(context))  # it has read all but one
        rate = extension.conditional_acceptance_rate
        rest = (known[-1] * rate ** (i + 1) for i in range(limit - len(known)))
        return DraftEstimate(self.name, (*known, *rest), len(known), extension)

    def propose(
        self, context: Sequence[int], limit: int, thresholds: Thresholds = NO_THRESHOLDS
    ) -> Draft:
        """Draft the tokens found ahead, and those that the model adds after them."""
        if not self._came_true(context):
            return self._model.propose(context, limit, thresholds)
        probs = self._model.acceptance_probs(self._found[:limit])
        n = next((i for i, p in enumerate(probs) if not thresholds.keeps(i, p)), len(probs))
        tokens = tuple(token for token, _ in self._found[:n])
        prob = probs[n - 1] if n else 1.0
        tail = NO_DRAFT
        if n == len(self._found) < limit:
            tail = self._model.propose([*context, *tokens], limit - n, thresholds.after(n, prob))
        self._model.adopt(context, self._found[:n], continued=bool(tail.tokens))
        known = Draft(tokens, "ahead", None, prob, tail.evaluated)
        return joined(known, tail) if tail.tokens else known

    def accept(self, verified: Verified) -> None:
        """Tell the model what was emitted."""
        self._model.accept(verified)

    def close(self) -> None:
        """Free the model."""
        self._model.close()

    def _came_true(self, context: Sequence[int]) -> bool:
        return bool(self._found) and self._context == list(context)
