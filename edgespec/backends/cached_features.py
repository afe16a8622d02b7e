"""The features of a head that reads keys and values directly from its target's cache."""

from __future__ import annotations

from .base import Model
from .features import Features, States


class CachedFeatures(Features):
    """Keys and values of the tokens in a target's cache, [n, n_layer, cached_size]. Nothing is
    stored here, so `append` and `truncate` do nothing.
    """

    def __init__(self, target: Model) -> None:
        super().__init__(0, (target.n_layer, target.cached_size))
        self._target = target

    @property
    def start(self) -> int:
        """0, the first token: a target keeps the keys and values of all tokens."""
        return 0

    @property
    def end(self) -> int:
        """The number of tokens in the target's cache."""
        return self._target.n_cached

    def append(self, position: int, states: States | None) -> None:
        """Do nothing: the target's cache has the new tokens already."""

    def truncate(self, n_past: int) -> None:
        """Do nothing: the target truncates its cache itself."""

    def of(self, start: int, end: int) -> States:
        """Return a copy of the keys and values at the positions from `start` to `end`. Raises
        ValueError if some of them are missing.
        """
        self._check(start, end)
        return self._target.cached(start, end)
