"""Microseconds of growth alone: a draft from prompt lookup without a match and with 15 nodes, while
the CPU's caches are warm and after something has emptied them, as an evaluation does.

    python -m benchmarks.growth
"""

from __future__ import annotations

import random
import time

import numpy as np

from benchmarks.common import median
from edgespec import SamplingParams
from edgespec.bench.replay import shipped_profiles
from edgespec.costs.online import Costs
from edgespec.drafters.base import Role
from edgespec.drafters.suffix import SuffixDrafter
from edgespec.policies.base import Limits
from edgespec.policies.growth import Growth
from edgespec.sampling.base import Request
from edgespec.sampling.randomness import SeededRandomness
from edgespec.types import Budget

ROUNDS, NODES = 200, 15
COSTS = Costs(shipped_profiles()["cpu-f16-lookup"])
OTHER = np.zeros(64 << 20, np.uint8)  # larger than the caches


def microseconds(prompt, cold):
    drafter, times = SuffixDrafter(), []
    drafter.begin(Request(prompt, SamplingParams(), SeededRandomness(0)), Role.MATCHED)
    limits = Limits(NODES, price=30.0, costs=COSTS, margin=0.03)
    for _ in range(ROUNDS):
        if cold:
            OTHER[::64] += 1
        began = time.perf_counter()
        growth = Growth((drafter,), (), limits, Budget(NODES, len(prompt), 10, 100, 31))
        growth.next()
        times.append(time.perf_counter() - began)
    return round(1e6 * median(times)), len(growth.draft.tokens)


def main():
    phrase = random.Random(1).choices(range(5000), k=40)
    texts = {"no match": list(range(2000)), "a match": [*range(2000), *phrase * 6]}
    for name, prompt in texts.items():
        for cold in (False, True):
            us, n = microseconds(prompt, cold)
            print(f"{name}, {'cold' if cold else 'warm'} caches: {us} us, {n} nodes")


main()
