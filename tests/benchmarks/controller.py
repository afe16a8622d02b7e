"""The time of the controller itself: microseconds of `choose` and `observe` over the answers that
come with `edgespec bench replay`, with warm caches, and with caches emptied before each call, as
an evaluation of the target empties them. Estimates are not part of it.

    python -m tests.benchmarks.controller
"""

import statistics
import time
from collections import defaultdict

import numpy as np

from edgespec.bench.replay import Replay, shipped_profiles, shipped_traces
from edgespec.costs.profiles import Profile
from edgespec.policies.adaptive import Adaptive
from edgespec.types import Offer
from tests.helpers.benchmarks import save

A_CATEGORY = 3  # answers
PROFILES = "cpu-q4", "cpu-f16"
WEIGHTS = np.ones(12_000_000)  # more than any cache holds


class Timed(Adaptive):
    """Notes what it takes."""

    def __init__(self, profile: Profile, *, cold: bool) -> None:
        super().__init__(profile)
        self._cold = cold
        self.us: dict[str, list[float]] = defaultdict(list)

    def choose(self, offers, budget):
        asked = _Asked(offers)
        plan, seconds = self._timed(super().choose, asked, budget)
        self.us["choose"].append(1e6 * (seconds - asked.seconds))
        self.us["offers"].append(1e6 * asked.seconds)
        return plan

    def observe(self, stats):
        _, seconds = self._timed(super().observe, stats)
        self.us["observe"].append(1e6 * seconds)

    def _timed(self, call, *arguments):
        if self._cold:
            WEIGHTS.sum()
        start = time.perf_counter()
        result = call(*arguments)
        return result, time.perf_counter() - start


class _Asked:
    """A step's offers; the time that they took to make."""

    def __init__(self, offers):
        self._offers = offers
        self.seconds = 0.0

    def __len__(self) -> int:
        return len(self._offers)

    def __getitem__(self, index: int) -> Offer:
        start = time.perf_counter()
        offer = self._offers[index]
        self.seconds += time.perf_counter() - start
        return offer


def measure(name: str, *, cold: bool) -> dict[str, dict[str, float]]:
    """Medians and means of one device."""
    profile = shipped_profiles()[name]
    replay, timed = Replay(profile, "auto"), Timed(profile, cold=cold)
    replay.session._policy = timed
    seen: dict[str, int] = defaultdict(int)
    for trace in shipped_traces():
        seen[trace.category] += 1
        if seen[trace.category] <= A_CATEGORY and len(trace.output) > 1:
            replay.run(trace)
    return {
        what: {
            "calls": len(us),
            "median_us": round(statistics.median(us), 1),
            "mean_us": round(statistics.mean(us), 1),
        }
        for what, us in timed.us.items()
    }


def main() -> None:
    results = {
        f"{name}, {'cold' if cold else 'warm'}": measure(name, cold=cold)
        for name in PROFILES
        for cold in (False, True)
    }
    save("controller", {"results": results})


if __name__ == "__main__":
    main()
