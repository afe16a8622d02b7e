"""The time of the controller itself: microseconds of `choose` and `observe` over the answers that
come with `edgespec bench replay`, with warm caches, and with caches emptied before each call, as
an evaluation of the target empties them. Estimates are not part of it.

    python -m benchmarks.controller
"""

import statistics
import time
from collections import defaultdict

import numpy as np

from benchmarks.common import save
from edgespec.bench.replay import Replay, shipped_profiles, shipped_traces
from edgespec.costs.online import Costs
from edgespec.policies.adaptive import Adaptive
from edgespec.types import DraftEstimate

A_CATEGORY = 3  # answers
PROFILES = "cpu-q4", "cpu-f16"
WEIGHTS = np.ones(12_000_000)  # more than any cache holds


class Timed(Adaptive):
    """Notes what it takes."""

    def __init__(self, costs: Costs, *, cold: bool) -> None:
        super().__init__(costs)
        self._cold = cold
        self.us: dict[str, list[float]] = defaultdict(list)

    def choose(self, sources, budget):
        asked = [_Asked(ask) for ask in sources]
        plan, seconds = self._timed(super().choose, asked, budget)
        asking = sum(ask.seconds for ask in asked)
        self.us["choose"].append(1e6 * (seconds - asking))
        self.us["estimates"].append(1e6 * asking)
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
    """A source that a policy can ask, and the seconds that its estimates took."""

    def __init__(self, ask):
        self._ask = ask
        self.seconds = 0.0

    def __call__(self) -> DraftEstimate:
        start = time.perf_counter()
        estimate = self._ask()
        self.seconds += time.perf_counter() - start
        return estimate


def measure(name: str, *, cold: bool) -> dict[str, dict[str, float]]:
    """Medians and means of one device."""
    profile = shipped_profiles()[name]
    replay = Replay(profile, "auto")
    timed = Timed(replay.policy.costs, cold=cold)
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
