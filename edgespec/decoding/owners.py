"""Separation of what drafters and the policy have learned, by owner of the requests."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ..drafters.base import Learns

_MOST = 64  # owners whose rates are kept in addition to those of the current owner


_SHARED = None  # stands in place of an owner for the rates of the parts that all owners share


class _Stored(NamedTuple):
    """Rates, and the session that learned them."""

    rates: Mapping[str, Any]
    by: OwnRates


class RatesStore:
    """The rates that the sessions of one engine have learned, by owner.

    With several sessions a request begins with what its owner's last request to end has learned, in
    whichever session that was.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stored: OrderedDict[str | None, _Stored] = OrderedDict()
        self._n_sessions = 0

    @property
    def is_shared(self) -> bool:
        """True if several sessions use it."""
        return self._n_sessions > 1

    def add_session(self) -> None:
        """Count one more session that uses it."""
        self._n_sessions += 1

    def get(self, owner: str | None) -> _Stored | None:
        """Return the rates stored last for an owner, None if there are none."""
        return self._stored.get(owner)

    def put(self, owner: str | None, rates: Mapping[str, Any], by: OwnRates) -> None:
        """Store the rates of an owner; those of the owner without a request for longest go."""
        with self._lock:
            self._stored[owner] = _Stored(rates, by)
            self._stored.move_to_end(owner)
            named = [name for name in self._stored if name]
            for name in named[: max(0, len(named) - _MOST)]:
                del self._stored[name]


class OwnRates:
    """Gives every owner the rates learned from its own answers, and none of another owner's.

    Otherwise the number of drafted tokens would reveal something of other owners' texts. A new
    owner begins with what was known when the engine was loaded. Only what was learned from the
    owner "" is handed on to later processes. parts: the parts that learn for each owner separately.
    shared: the parts that learn from all owners; no answer depends on them. store: the store of an
    engine with several sessions, each of which has its own parts; by default one of its own.
    """

    def __init__(
        self,
        parts: Iterable[object],
        shared: Iterable[Learns] = (),
        store: RatesStore | None = None,
    ) -> None:
        self._own = [part for part in parts if isinstance(part, Learns)]
        self._shared = list(shared)
        self._owner = ""
        self._loaded: Mapping[str, Any] | None = None
        self._store = store or RatesStore()
        self._store.add_session()

    def begin(self, owner: str) -> None:
        """Begin a request of an owner; switch to its rates if the last request here had another
        owner, or if another session has learned from this owner since.
        """
        if self._loaded is None:
            self._loaded = _all_of(self._own)
        if owner != self._owner and not self._store.is_shared:
            self._store.put(self._owner, _all_of(self._own), self)
        stored = self._store.get(owner)
        if owner != self._owner or (stored and stored.by is not self):
            _take(self._own, stored.rates if stored else self._loaded)
        self._owner = owner
        stored = self._store.get(_SHARED)
        if stored and stored.by is not self:
            _take(self._shared, stored.rates)

    def end(self) -> None:
        """End the request: other sessions begin with what it has learned."""
        if self._store.is_shared:
            self._store.put(self._owner, _all_of(self._own), self)
            self._store.put(_SHARED, _all_of(self._shared), self)

    @property
    def learners(self) -> list[Learns]:
        """All parts that learn; what `learned` returns is given to them in a later process."""
        return [*self._own, *self._shared]

    def learned(self) -> dict[str, Any]:
        """Return the rates learned from the owner "", and those of the shared parts."""
        unowned, shared = self._store.get(""), self._store.get(_SHARED)
        if self._owner == "" and not (unowned and self._store.is_shared):
            own: Mapping[str, Any] = _all_of(self._own)
        else:
            own = unowned.rates if unowned else self._loaded or {}
        return {**own, **(shared.rates if shared else _all_of(self._shared))}


def _all_of(learners: Iterable[Learns]) -> dict[str, Any]:
    rates: dict[str, Any] = {}
    for learner in learners:
        rates |= learner.learned()
    return rates


def _take(learners: Iterable[Learns], rates: Mapping[str, Any]) -> None:
    for learner in learners:
        learner.relearn(rates)
