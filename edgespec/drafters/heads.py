"""Trained heads, which guess on from the target's own hidden states.

What a head makes of its guesses never stays: emitted tokens are read again with the target's
states (EAGLE, arXiv 2401.15077). Which nodes it evaluates is decided as for a draft model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..backends.base import Trained
from ..cache.token_cache import common_prefix
from ..sampling.base import Request
from ..types import DraftEstimate, Extension, Thresholds, Verified
from .model_tree import GuessTree, ModelTreeDrafter, TreeOptions
from .window import Window

_WITHOUT_STATE = ("moa",)  # kinds that read a text's first token, though no state is before it
_PATIENCE = 32  # steps of an answer behind which a head that was not used is worth nothing
_LOST = -1.0  # tokens lost in an answer by a head and its states, after which it rests as well
_REST = 8  # answers for which it is left alone then


class HeadDrafter(ModelTreeDrafter):
    """Drafts trees of a head's likeliest tokens; by coupled sampling, of those that win their races
    first. Where only one choice can pay, the trees are chains.

    It drafts behind tokens that the target has evaluated, so it continues nobody else's draft. It
    reads a text from its second token on, the first that has a state before it, but for kinds that
    look at tokens by themselves as well; if the target's states of tokens that it has not read are
    gone, it begins behind them. Where a long answer had no use for it, or it won less than the
    target's states cost, some answers do without them.
    """

    def __init__(self, head: Trained, target_vocab_size: int, tree: TreeOptions, **options: Any):
        super().__init__(head, target_vocab_size, tree, **options)
        self.name = head.kind
        self._window = Window(options.get("window"), head.n_ctx, options.get("costs"), n_sinks=0)
        self._trained = head
        self._grows = True
        self._max_depth = head.max_depth
        self._n_skipped = 0 if head.kind in _WITHOUT_STATE else 1
        self._choices = tree.top_k
        if self._costs:
            self._costs.features = head.features
        self._before: list[int] = []  # tokens of the text before those in the cache
        self._n_unused = 0  # steps of this answer with states, -1 once the head has drafted
        self._rest = 0  # answers without states to come

    def begin(self, request: Request) -> None:
        """Begin a request."""
        super().begin(request)
        self._greedy, self.is_chain = not self._coupled, False
        self._shape = self._shape._replace(top_k=1 if self._is_narrow else self._choices)
        self._n_unused, self._rest = 0, max(0, self._rest - 1)
        if self._costs:
            self._rest = self._rest or _REST * (self._costs.won_by_head < _LOST)
            self._costs.won_by_head = 0.0
        self._trained.features.wanted = not self._rest
        prompt, start = request.prompt, self._trained.start
        if list(prompt[:start]) != self._before or len(prompt) <= start + 1:
            self._begin_in(0, prompt)
            return
        n = common_prefix(self._cache.tokens, prompt, offset=start)
        self._begin_at(start, min(n, len(prompt) - start - 1))

    def estimate(self, context: Sequence[int], limit: int) -> DraftEstimate:
        """Return an estimate by its last drafts; none where the target's states are not there."""
        if not self._can_read(context, limit):
            return DraftEstimate(self.name)
        return super().estimate(context, limit)

    def guess(
        self, context: Sequence[int], limit: int, thresholds: Thresholds
    ) -> tuple[GuessTree, tuple[int, ...]]:
        """Return what is worth to be guessed, and how many tokens each evaluation took."""
        self._n_unused = -1
        return super().guess(context, limit, thresholds)

    def relearn(self, state: Mapping[str, Any]) -> None:
        """Take what `learned` returned, and draft in the next answer whatever the last one won."""
        super().relearn(state)
        self._rest = 0
        self._trained.features.wanted = True

    def accept(self, verified: Verified) -> None:
        """Learn from all that was emitted, drafted or not."""
        super().accept(verified)
        features = self._trained.features
        self._n_unused += self._n_unused >= 0 and features.end >= self._n_context - 1
        if self._n_unused == _PATIENCE and not self._rest:
            self._rest = _REST
            features.wanted = False

    def extension(self, n_unread: int, n_context: int) -> Extension:
        """Return the gains and costs of guessing on, with `n_unread` tokens to read."""
        found = super().extension(n_unread, n_context)
        if self._costs and found.further_s is None:
            found = found._replace(further_s=self._costs.further_s)
        return found

    def _catch_up(self, context: Sequence[int], limit: int) -> list[int] | None:
        """Align the cache with the context and return the tokens still to be read."""
        return super()._catch_up(context, limit) if self._can_read(context, limit) else None

    def _can_read(self, context: Sequence[int], limit: int) -> bool:
        """Let its cache begin where all that it has not read can be read, and return whether that
        is so for the end of the context.
        """
        features, n, first = self._trained.features, len(context), self._start
        if not self._known or first + self._known - 1 < features.start:
            first = max(first, features.start + self._n_skipped)
        known = self._known if first == self._start else 0
        start, _ = self._window.place(first, known, n, limit)
        if start != first:
            start = max(start, features.start + self._n_skipped)
        if start != self._start:
            self._begin_in(start, context)
        return features.end >= n - 1 and n > start

    def _placed(self, context: Sequence[int], limit: int) -> tuple[int, int]:
        """Return where the view of the text begins already: `_can_read` has seen to it."""
        return self._start, self._known

    def _begin_in(self, start: int, context: Sequence[int]) -> None:
        """Empty the cache, which begins with this token of the text from now on."""
        self._cache.truncate(0)
        self._trained.start = start
        self._before = list(context[:start])
        self._begin_at(start, 0)

    def _keep(self, tokens: Sequence[int]) -> None:
        """Drop what the head has made of its guesses."""
        tree, self._waiting = self._waiting, None
        if tree and tree.evaluated:
            self._cache.keep(())
