"""The controller of a company: one growth over all its streams, priced by measured costs."""

from __future__ import annotations

from collections.abc import Sequence

from ..costs.online import Costs
from ..policies.together import grow_together
from .turns import Evaluation, Step, Turn


class Together:
    """Decides what the streams of a company draft, and learns from the times of its evaluations.

    costs: the costs of evaluations, None if no policy decides by them.
    """

    def __init__(self, costs: Costs | None) -> None:
        self._costs = costs

    def grow(self, turns: Sequence[Turn], reading_s: float) -> float:
        """Make the drafts of streams, as `company.Controller` says."""
        streams = [turn for turn in turns if isinstance(turn, Step)]
        if not streams:
            return 0.0
        n_rows = sum(turn.n_rows for turn in turns if not isinstance(turn, Step))
        n_readers = sum(turn.reads for turn in turns)
        return grow_together(streams, self._costs, n_rows, n_readers, reading_s)

    def observe(self, turns: Sequence[Turn], evaluation: Evaluation) -> None:
        """Correct the costs with the time of an evaluation."""
        streams = [turn for turn in turns if isinstance(turn, Step)]
        if self._costs and self._costs.known and streams:
            n_past = sum(stream.budget.n_past for stream in streams) // len(streams)
            self._costs.observe_rows(evaluation.n_rows, evaluation.verify_s, n_past)
