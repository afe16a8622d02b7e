"""Models that ask a governor for their number of threads before every evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ..backends.base import BatchedModel, BatchItem, Model
from ..errors import Aborted
from ..types import Abort, FinishReason, Outputs
from .threads import WIDEST, ThreadGovernor

T = TypeVar("T")


def _own(name: str) -> Any:
    """Return a property that reads this attribute of the governed model."""
    return property(lambda governed: getattr(governed._model, name))


class _Governed:
    """A model that uses the number of threads that a governor chooses, and reports the time of each
    evaluation to it.

    An evaluation that tries more threads and takes too long is stopped and repeated.
    """

    def __init__(self, model: Any, governor: ThreadGovernor) -> None:
        self._model, self._governor = model, governor
        self._left_s: Callable[[], float] = lambda: math.inf
        self._lost_s = 0.0

    def clock(self) -> float:
        """Return the time in seconds by a clock that leaves out evaluations that were stopped and
        repeated. The difference between two such times is what evaluations cost.
        """
        return self._governor.clock() - self._lost_s

    def _evaluate(
        self,
        n: int,
        evaluate: Callable[[Abort | None], T],
        n_past: int = 0,
        abort: Abort | None = None,
    ) -> T:
        governor = self._governor
        governor.before(n, self._left_s())
        most_s, began = governor.may_take_s(n, n_past), governor.clock()
        try:
            outputs = evaluate(self._within(began + most_s, abort) if most_s < math.inf else abort)
        except Aborted:
            if most_s == math.inf or (abort and abort()):
                raise
            seconds = governor.clock() - began
            self._lost_s += seconds
            governor.stopped(seconds)
            self._model.truncate(n_past)
            return self._evaluate(n, evaluate, n_past, abort)
        governor.observe(n, n_past, governor.clock() - began)
        return outputs

    def _within(self, end: float, abort: Abort | None) -> Abort:
        """Return an abort function that stops an evaluation at time `end`, or when `abort` does."""

        def stop() -> FinishReason | None:
            reason = abort() if abort else None
            return reason or ("cancelled" if self._governor.clock() >= end else None)

        return stop


class GovernedModel(_Governed, Model):
    """A `Model` whose threads a governor chooses."""

    vocab_size, n_ctx, n_past = _own("vocab_size"), _own("n_ctx"), _own("n_past")
    capabilities, placement = _own("capabilities"), _own("placement")
    truncate, keep, close = _own("truncate"), _own("keep"), _own("close")
    checkpoint, restore = _own("checkpoint"), _own("restore")
    save_state, load_state = _own("save_state"), _own("load_state")
    hidden_size, n_layer, tap = _own("hidden_size"), _own("n_layer"), _own("tap")
    eyes, why_blind = _own("eyes"), _own("why_blind")
    restrict, expect_drafts = _own("restrict"), _own("expect_drafts")

    def begin(self, left_s: Callable[[], float]) -> None:
        """Begin a request that has to end within `left_s()` seconds; inf means no limit."""
        self._left_s = left_s
        self._governor.begin(left_s())

    def decode(
        self, tokens: Sequence[int], n_logits: int = 1, abort: Abort | None = None
    ) -> Outputs:
        """Append tokens, as the model's own `decode` does. The times of pictures are not reported:
        they say nothing about text.
        """
        if tokens and tokens[0] < 0:
            return self._model.decode(tokens, n_logits, abort)  # type: ignore[no-any-return]
        return self._evaluate_with(self._model.decode, tokens, n_logits, abort)

    def decode_tree(
        self, tokens: Sequence[int], parents: Sequence[int], abort: Abort | None = None
    ) -> Outputs:
        """Append tokens and a tree, as the model's own `decode_tree` does."""
        return self._evaluate_with(self._model.decode_tree, tokens, parents, abort)

    def grow(
        self, tokens: Sequence[int], parents: Sequence[int], abort: Abort | None = None
    ) -> Outputs:
        """Append nodes to a tree, as the model's own `grow` does. It is never stopped and repeated.
        If it fails, no node of the tree is left.
        """
        model: Model = self._model
        return self._evaluate(
            len(tokens), lambda _: model.grow(tokens, parents, abort), model.n_past, abort
        )

    def _evaluate_with(
        self, call: Callable[..., Outputs], tokens: Sequence[int], given: Any, abort: Abort | None
    ) -> Outputs:
        """Call a method of the model and return its outputs. given: its second argument."""
        n = _width(len(tokens), reads=given == 0)
        n_past = self._model.n_past
        return self._evaluate(n, lambda stop: call(tokens, given, stop), n_past, abort)


class GovernedSlots(_Governed, BatchedModel):
    """A `BatchedModel` whose threads a governor chooses. Its evaluations are never stopped."""

    models, add = _own("models"), _own("add")
    max_rows, max_batch = _own("max_rows"), _own("max_batch")
    shares_prefixes, n_parked = _own("shares_prefixes"), _own("n_parked")
    copy, close = _own("copy"), _own("close")

    def decode(self, items: Sequence[BatchItem]) -> list[Outputs]:
        """Append tokens to their slots, as the model's own `decode` does."""
        n_tokens = sum(len(item.tokens) for item in items)
        n = _width(n_tokens, reads=any(len(item.tokens) > item.n_logits for item in items))
        n_past = max(self.models[item.slot].n_past for item in items)
        return self._evaluate(n, lambda _: self._model.decode(items), n_past)


def _width(n_tokens: int, *, reads: bool) -> int:
    """Return the number of tokens that a governor is told. However few tokens of a prompt are read
    together, their time says little about steps, and no number of threads is tried with them.
    """
    return max(n_tokens, WIDEST + 1) if reads else n_tokens
