"""The time of the controller itself: microseconds of setting the limits of a step, of growing its
draft and of learning from it, over the answers that come with `edgespec bench replay`, with warm
caches, and with caches emptied before each call, as an evaluation of the target empties them. What
drafters take is apart.

    python -m benchmarks.controller
"""

import statistics
import time
from collections import defaultdict

import numpy as np

from benchmarks.common import save
from edgespec.bench.replay import Replay, shipped_profiles, shipped_traces

A_CATEGORY = 3  # answers
PROFILES = "cpu-q4", "cpu-f16"
WEIGHTS = np.ones(12_000_000)  # more than any cache holds
ASKED = "root", "step", "children", "work", "forecast", "expand", "draw"  # methods of a drafter


class Watch:
    """Notes what calls take. cold: caches are emptied before each of them."""

    def __init__(self, replay: Replay, *, cold: bool) -> None:
        self._cold, self._asked_s, self._limits_s = cold, 0.0, 0.0
        self.us: dict[str, list[float]] = defaultdict(list)
        drafting, policy = replay.session._drafting, replay.policy
        for drafter in drafting.drafters:
            for name in ASKED:
                setattr(drafter, name, self._added_up(getattr(drafter, name)))
        policy.limits = self._noted("limits", policy.limits)
        policy.observe = self._noted("observe", policy.observe)
        drafting.grow = self._grown(drafting.grow)

    def _grown(self, grow):
        """Return `grow`, noted without what limits and drafters take."""

        def noted(budget):
            start, self._asked_s = time.perf_counter(), 0.0
            growth = grow(budget)
            seconds = time.perf_counter() - start - self._asked_s - self._limits_s
            if growth:
                self.us["growth"].append(1e6 * seconds)
                self.us["drafters"].append(1e6 * self._asked_s)
            return growth

        return noted

    def _noted(self, what, call):
        def noted(*arguments):
            began = time.perf_counter()
            if self._cold:
                WEIGHTS.sum()
            start = time.perf_counter()
            result = call(*arguments)
            end = time.perf_counter()
            self.us[what].append(1e6 * (end - start))
            self._limits_s = end - began if what == "limits" else 0.0
            return result

        return noted

    def _added_up(self, call):
        def added_up(*arguments):
            start = time.perf_counter()
            result = call(*arguments)
            self._asked_s += time.perf_counter() - start
            return result

        return added_up


def measure(name: str, *, cold: bool) -> dict[str, dict[str, float]]:
    """Medians and means of one device."""
    profile = shipped_profiles()[name]
    replay = Replay(profile, "auto")
    watch = Watch(replay, cold=cold)
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
        for what, us in watch.us.items()
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
