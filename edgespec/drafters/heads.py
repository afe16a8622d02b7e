"""Trained heads, which guess from the target's own hidden states.

What a head caches for its own guesses is always dropped: it reads the emitted tokens again with the
target's states (EAGLE, arXiv 2401.15077). The nodes to evaluate are chosen as for a draft model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..backends.base import Head
from ..backends.features import Features, OfLayers
from ..cache.token_cache import common_prefix
from ..sampling.base import Request
from ..types import Requires, Work
from .base import Forecast, Role
from .draft_model import ModelDrafter, Text
from .window import Window


class HeadDrafter(ModelDrafter):
    """Guesses a head's likeliest tokens, or with coupled sampling those that the shared random
    numbers rank first.

    It guesses only after tokens that the target has evaluated, so it does not continue the guesses
    of other drafters. It reads a text from the second token on, which is the first one with a
    hidden state before it; heads with `reads_first_token` read the first one, too. If the target's
    states of unread tokens are gone, the head's window begins after these tokens. It also begins
    after the last picture, whose tokens it could not read. states: the target's hidden states.
    """

    reads_states = True

    def __init__(
        self,
        head: Head,
        target_vocab_size: int,
        states: Features | None,
        *,
        window: Window | None = None,
        **options: Any,
    ) -> None:
        window = window or Window(0, head.n_ctx, n_sinks=0)
        super().__init__(head, target_vocab_size, window=window, **options)
        self.name = head.kind
        self._head = head
        store = states if head.layers else head.features
        self._features = OfLayers(store or head.features, head.layers, head.features)
        if store:
            head.features = self._features
        self._n_skipped = 0 if head.reads_first_token else 1
        self._before: list[int] = []  # tokens of the text before those in the cache

    def begin(self, request: Request, role: Role) -> Requires:
        """Begin a request; return the hidden states that the head needs from the target."""
        super().begin(request, role)
        self._draws, self._grows = False, True
        self._n_choices = 1 if role is Role.DRAWN else self._top_k
        prompt, start, features = request.prompt, self._head.start, self._features
        has_seen = request.n_unseen or features.n_unseen  # then states depend on pictures, too
        features.n_unseen, features.first = request.n_unseen, request.n_before
        if has_seen or list(prompt[:start]) != self._before or len(prompt) <= start + 1:
            self._begin_in(0)
        else:
            n = common_prefix(self._cache.tokens, prompt, offset=start)
            self._begin_at(start, min(n, len(prompt) - start - 1))
        return Requires(self._head.layers, self._head.n_states)

    def forecast(self) -> Forecast:
        """Return the expected outcome of the next draft, estimated from the last ones."""
        head = self._head
        return super().forecast()._replace(max_depth=head.max_depth, one_pass=head.one_pass)

    def work(self, states: Sequence[Text]) -> Work | None:
        """Return the work of evaluating these states.

        It is None if the target's hidden states are missing, or after guesses of other drafters.
        """
        if all(text.said for text in states):
            return Work(0, 0)
        if all(map(self._follows, states)):
            work = super().work(states)
            return work._replace(n_tokens=0) if work and self._head.one_pass else work
        return super().work(states) if states == [self._root] and self._can_read() else None

    def _can_read(self) -> bool:
        """Skip text whose hidden states are missing: begin the head's window at the first position
        from which all states that it has not read are available.

        Return True if the head can then read to the end of the text.
        """
        features, n, first = self._head.features, len(self._context), self._start
        if not self._known or first + self._known - 1 < features.start:
            first = max(first, features.start + self._n_skipped)
        known = self._known if first == self._start else 0
        start, _ = self._window.place(first, known, n, self._room)
        if start != first:
            start = max(start, features.start + self._n_skipped)
        if start != self._start:
            self._begin_in(start)
        return features.end >= n - 1 and n > start

    def _placed(self, n_ahead: int) -> tuple[int, int]:
        """Return where the window begins, and how many of its tokens are cached.

        `_can_read` has already moved the window.
        """
        return self._start, self._known

    def _begin_in(self, start: int) -> None:
        """Empty the cache and let the window begin with token `start` of the text."""
        self._cache.truncate(0)
        self._head.start = start
        self._before = self._context[:start]
        self._begin_at(start, 0)

    def _settle(self, tokens: Sequence[int]) -> None:
        """Drop what the head has cached for its own guesses."""
        if self._grown:
            self._end_tree(())

    def _still_true(self, tokens: Sequence[int]) -> Text:
        """Return a text without guesses: the old ones came from the head's own states."""
        return Text()
