"""Stores of the target's hidden states, from which a head reads them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

States = npt.NDArray[np.float32]
"""Hidden states of tokens, [n, n_layers, hidden_size]."""

MOST = 512  # tokens; the buffer has space for twice as many: 19 MB with 3 layers of 1,536 numbers


class Features:
    """The hidden states of the latest tokens in a target's cache, by position.

    It has the states of the positions from `start` to `end`. most: only the latest `most` tokens
    are sure to have states here. A head that has not read earlier tokens by then skips them. shape:
    the shape of one token's states, if it is known in advance. layers: the layers that the states
    come from; the code that fills this store sets `layers`, and empties the store if they change.
    """

    def __init__(self, most: int = MOST, shape: tuple[int, int] = (0, 0)) -> None:
        self._start = self._end = 0
        self.most = most
        self._states: States = np.empty((0, *shape), np.float32)
        self._first = 0  # the row of position `start` in `_states`
        self.layers: tuple[int, ...] = ()

    @property
    def start(self) -> int:
        """The first position that has states."""
        return self._start

    @property
    def end(self) -> int:
        """The position after the last one that has states."""
        return self._end

    def append(self, position: int, states: States | None) -> None:
        """Add the states of the tokens from `position` on. If that leaves a gap, the states before
        the gap are dropped. If `states` is None, nothing is added, so the next call leaves a gap.
        """
        if states is None:
            return
        if position != self._end:
            self._start = self._end = position
        if (left_out := len(states) - self.most) > 0:
            self._start = self._end = position + left_out
            states = states[left_out:]
        self._make_room(states)
        at = self._first + self._end - self._start
        self._states[at : at + len(states)] = states
        self._end += len(states)

    def truncate(self, n_past: int) -> None:
        """Forget the states from position `n_past` on."""
        self._end = min(self._end, n_past)
        self._start = min(self._start, self._end)

    def of(self, start: int, end: int) -> States:
        """Return a view of the states at the positions from `start` to `end`. Raises ValueError if
        some of them are missing.
        """
        self._check(start, end)
        at = self._first + start - self._start
        return self._states[at : at + end - start]

    def _check(self, start: int, end: int) -> None:
        if not self.start <= start <= end <= self.end:
            raise ValueError(
                f"hidden states of the tokens {start} to {end} were asked for, and there are those "
                f"of {self.start} to {self.end}"
            )

    def _make_room(self, states: States) -> None:
        """Make room for these states in the buffer, and drop the oldest rows if there are too
        many.
        """
        if not len(self._states) or self._states.shape[1:] != states.shape[1:]:
            self._states = np.empty((2 * self.most, *states.shape[1:]), np.float32)
            self._start = self._end
        if self._start == self._end:
            self._first = 0
        n = self._end - self._start
        if self._first + n + len(states) > len(self._states):
            n_kept = min(n, self.most - len(states))
            end = self._first + n
            self._states[:n_kept] = self._states[end - n_kept : end]
            self._first, self._start = 0, self._end - n_kept


class OfLayers(Features):
    """The hidden states of some layers, taken from a store that may hold more layers. Positions are
    those in the text without pictures.

    like: a store in which one token's states have the same shape as here. n_unseen: how many tokens
    of pictures the target's cache has. first: the first position after them. There are no states
    before it: those of pictures belong to no tokens that a head could read.
    """

    n_unseen = first = 0

    def __init__(self, store: Features, layers: Sequence[int], like: Features) -> None:
        super().__init__(store.most)
        self._store, self.layers = store, tuple(layers)
        self._states = like._states[:0]

    @property
    def start(self) -> int:
        """The first position that has states."""
        has_layers = set(self.layers) <= set(self._store.layers)
        return max(self.first, self._store.start - self.n_unseen) if has_layers else self.end

    @property
    def end(self) -> int:
        """The position after the last one that has states."""
        return max(self.first, self._store.end - self.n_unseen)

    def of(self, start: int, end: int) -> States:
        """Return the states at the positions from `start` to `end`. Raises ValueError if some of
        them are missing.
        """
        self._check(start, end)
        states = self._store.of(start + self.n_unseen, end + self.n_unseen)
        if self.layers == self._store.layers:
            return states
        return states[:, [self._store.layers.index(layer) for layer in self.layers]]


class Blank(Features):
    """Hidden states that are zero at every position, for measuring how long a head takes to read
    them.

    like: a store in which one token's states have the same shape as here. size: the count of
    numbers in the states of one token, 0 if the shape is unknown.
    """

    def __init__(self, like: Features) -> None:
        super().__init__(like.most)
        self._end = 1 << 40
        self._states = np.zeros((1, *like._states.shape[1:]), np.float32)
        self.size = self._states.size

    def of(self, start: int, end: int) -> States:
        """Return a view of zeros for the positions from `start` to `end`."""
        if len(self._states) < end - start:
            self._states = np.zeros((end - start, *self._states.shape[1:]), np.float32)
        return self._states[: end - start]
