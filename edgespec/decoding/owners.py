"""Keeps what drafters and the policy have learned apart for each owner of requests."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

from ..drafters.base import Learns

_MOST = 64  # owners whose rates are kept besides those of the one that asked last


class OwnRates:
    """Gives every owner the rates that its own answers have taught, and nobody else's.

    Otherwise the number of drafted tokens would tell of other owners' texts. A new owner begins
    with what was known when the engine was loaded. Only what the owner "" has taught goes on in
    another process. shared: parts that learn from everybody, of which no answer depends.
    """

    def __init__(self, parts: Iterable[object], shared: Iterable[Learns] = ()) -> None:
        self._own = [part for part in parts if isinstance(part, Learns)]
        self._shared = list(shared)
        self._owner = ""
        self._loaded: Mapping[str, Any] | None = None
        self._kept: OrderedDict[str, Mapping[str, Any]] = OrderedDict()
        self._unowned: Mapping[str, Any] = {}  # those of the owner "", while another one asks

    def begin(self, owner: str) -> None:
        """Begin a request of an owner, which may be the last one's or another."""
        if self._loaded is None:
            self._loaded = self._now()
        if owner == self._owner:
            return
        if self._owner:
            self._kept[self._owner] = self._now()
        else:
            self._unowned = self._now()
        self._owner = owner
        self._take(self._kept.pop(owner, self._loaded) if owner else self._unowned)
        while len(self._kept) > _MOST:
            self._kept.popitem(last=False)

    @property
    def learners(self) -> list[Learns]:
        """All parts, which go on in another process with what `learned` returned in this one."""
        return [*self._own, *self._shared]

    def learned(self) -> dict[str, Any]:
        """Return what the owner "" and the parts that learn from everybody have learned."""
        return {**(self._unowned if self._owner else self._now()), **_all_of(self._shared)}

    def _now(self) -> dict[str, Any]:
        return _all_of(self._own)

    def _take(self, rates: Mapping[str, Any]) -> None:
        for learner in self._own:
            learner.relearn(rates)


def _all_of(learners: Iterable[Learns]) -> dict[str, Any]:
    rates: dict[str, Any] = {}
    for learner in learners:
        rates |= learner.learned()
    return rates
