"""Slots of one cache help each other: they share prefixes, and idle ones give way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..backends.base import BatchedModel
from ..backends.tiles import whole_tiles
from ..cache.token_cache import TokenCache, common_prefix
from ..errors import CannotTruncate, DecodeError

_LEAST = 64  # tokens: a shorter common prefix is read again


def _longest(
    wanted: Sequence[int], n_own: int, others: Iterable[tuple[int, Sequence[int]]]
) -> tuple[int, int | None]:
    """Return how many of the wanted tokens another slot has, and which slot; (n_own, None) if none
    has many more than the `n_own` that are there already. others: other slots and their tokens.
    """
    longest, source = n_own + _LEAST - 1, None
    for slot, tokens in others:
        n = whole_tiles(wanted, common_prefix(tokens, wanted))
        if n > longest:
            longest, source = n, slot
    return (n_own, None) if source is None else (longest, source)


class SharedPrefixes:
    """The caches of a target's slots. A slot may begin with what another slot of its owner holds.

    Prefixes of other owners are never shared, because the speed of reading a prompt would reveal
    how their prompts begin.
    """

    def __init__(self, model: BatchedModel) -> None:
        self._model = model
        self._caches: dict[int, TokenCache] = {}
        self._is_active: dict[int, Callable[[], bool]] = {}

    def add(self, slot: int, cache: TokenCache, is_active: Callable[[], bool]) -> None:
        """Let a slot share its cache with others. is_active: tells whether it has a request."""
        self._caches[slot], self._is_active[slot] = cache, is_active

    def begin(self, slot: int, context: Sequence[int]) -> None:
        """Prepare the slots for a request with this context in one of them.

        Attention reads all cells of a cache up to the last used one, also those of texts that it
        does not see. So the texts of slots without a request move to the store of prefixes.
        """
        if self._model.shares_prefixes:
            self.take(slot, context)
            for other, cache in self._caches.items():
                if other != slot and not self._is_active[other]():
                    cache.park()

    def take(self, slot: int, context: Sequence[int]) -> int:
        """Let a slot begin with the longest prefix of `context` that another slot has, if that is
        longer than what it has itself. Return how many tokens it was given, 0 for none. What it
        held before is saved, if there is a store for it.

        The context's last token is never taken, because it has to be evaluated.
        """
        own = self._caches[slot]
        others = (
            (other, cache.tokens[: self._model.models[other].n_past])
            for other, cache in list(self._caches.items())
            if other != slot and cache.owner == own.owner
        )
        n_own = common_prefix(own.tokens, context)
        longest, source = _longest(context[:-1], n_own, others)
        if source is None:
            return 0
        own.save()
        own.truncate(0)
        try:
            self._model.copy(source, slot, longest)
            own.adopt(context[:longest])
        except CannotTruncate:
            pass
        except DecodeError:
            self._caches[source].failed()  # it may have lost tokens
        return len(own.tokens)
