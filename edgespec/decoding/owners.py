"""Separation of what drafters and the policy have learned, by owner of the requests."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

from ..drafters.base import Learns

_MOST = 64  # owners whose rates are kept in addition to those of the current owner


class OwnRates:
    """Gives every owner the rates learned from its own answers, and none of another owner's.

    Otherwise the number of drafted tokens would reveal something of other owners' texts. A new
    owner begins with what was known when the engine was loaded. Only what was learned from the
    owner "" is handed on to later processes. parts: the parts that learn for each owner separately.
    shared: the parts that learn from all owners; no answer depends on them.
    """

    def __init__(self, parts: Iterable[object], shared: Iterable[Learns] = ()) -> None:
        self._own = [part for part in parts if isinstance(part, Learns)]
        self._shared = list(shared)
        self._owner = ""
        self._loaded: Mapping[str, Any] | None = None
        self._kept: OrderedDict[str, Mapping[str, Any]] = OrderedDict()
        self._unowned: Mapping[str, Any] = {}  # rates of the owner "", while another is served

    def begin(self, owner: str) -> None:
        """Begin a request of an owner; switch to its rates if the last one had another owner."""
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
        """All parts that learn; what `learned` returns is given to them in a later process."""
        return [*self._own, *self._shared]

    def learned(self) -> dict[str, Any]:
        """Return the rates learned from the owner "", and those of the shared parts."""
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
