"""The features of a head that reads its target's keys and values, where the target has them."""

from __future__ import annotations

from .base import Model
from .features import Features, States


class CachedFeatures(Features):
    """Keys and values of the tokens in a target's cache, [n, n_layer, cached_size]. Nothing is kept
    here, so appending and forgetting say nothing.
    """

    def __init__(self, target: Model) -> None:
        super().__init__(0, (target.n_layer, target.cached_size))
        self._target = target

    @property
    def start(self) -> int:
        """The first token: a target keeps all of them."""
        return 0

    @property
    def end(self) -> int:
        """The number of tokens in the target's cache."""
        return self._target.n_cached

    def append(self, position: int, states: States | None) -> None:
        """Do nothing."""

    def truncate(self, n_past: int) -> None:
        """Do nothing."""

    def of(self, start: int, end: int) -> States:
        """Return keys and values of the positions from `start` to `end`, a copy. Raises ValueError
        where some are not there.
        """
        self._check(start, end)
        return self._target.cached(start, end)
