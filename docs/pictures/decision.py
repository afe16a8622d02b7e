"""Draw one real decision of the controller: `python docs/pictures/decision.py`.

It replays a recorded answer on the profile cpu-f16 and draws, for one step, what prompt lookup
expected of its draft, what the target's passes cost, and which depth was worth most.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.ticker import MultipleLocator

from edgespec.bench.replay import Replay, shipped_profiles, shipped_traces
from edgespec.policies.adaptive import RISK

PROFILE, ANSWER, EMITTED, DEEPEST = "cpu-f16", "261.1", 18, 16


def decision():
    """Return (estimate, budget, plan, target, rate) of the draft behind EMITTED tokens of ANSWER.

    target: seconds of evaluations of 0, 1, 2, … tokens. rate: tokens a second that the loop emits.
    """
    replay = Replay(shipped_profiles()[PROFILE], "auto")
    policy, found = replay.policy, []
    choose = policy.choose

    def spy(sources, budget):
        plan = choose(sources, budget)
        if plan.depth and budget.n_emitted == EMITTED:
            target = policy.costs.target(budget.n_past)
            rate = max(policy._price, 1 / target[1])
            found.append((sources[plan.source](), budget, plan, target, rate))
        return plan

    policy.choose = spy
    for trace in shipped_traces():
        replay.run(trace)
        if trace.id == ANSWER:
            return found[-1]
        found.clear()
    raise SystemExit(f"{ANSWER} is not among the recorded answers")


def main() -> None:
    estimate, budget, plan, target, rate = decision()
    probs = estimate.acceptance_probs[:DEEPEST]
    depths = list(range(1, len(probs) + 1))
    extra_s = [target[d + 1] - target[1] for d in depths]
    expected = [sum(probs[:d]) for d in depths]
    price = RISK * rate
    cost = [price * s for s in extra_s]
    gain = [e - c for e, c in zip(expected, cost, strict=True)]

    plt.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "edgespec", "font.size": 11}
    plt.rcParams |= {"font.family": "sans-serif", "axes.spines.top": False}
    plt.rcParams |= {"axes.spines.right": False}
    figure, axes = plt.subplot_mosaic("AB;CC", figsize=(7.6, 5.4), layout="constrained")
    axes["A"].bar(depths, probs, color="#9fa8da")
    axes["A"].set(title="acceptance probability", xlabel="depth", ylim=(0, 1))
    widths = [1, *(d + 1 for d in depths)]
    milliseconds = [1e3 * target[n] for n in widths]
    axes["B"].plot(widths, milliseconds, color="#3949ab", marker=".")
    axes["B"].set(title="t(n): ms for n tokens in one pass", xlabel="n", ylim=(0, None))
    below = axes["C"]
    below.plot(depths, expected, color="#2e7d32", label="expected accepted tokens")
    below.plot(depths, cost, color="#c62828", label="price of the additional time, in tokens")
    below.bar(depths, gain, color="#bdbdbd", label="gain: the difference")
    best = gain[plan.depth - 1]
    below.bar(plan.depth, best, color="#ef6c00", label=f"chosen: depth {plan.depth}")
    below.set(title="gain by depth, in tokens", xlabel="depth", ylim=(0, 6.5))
    below.legend(frameon=False, ncols=2, loc="upper left")
    for axis in axes.values():
        axis.xaxis.set_major_locator(MultipleLocator(2))
    path = Path(__file__).with_suffix(".svg")
    figure.savefig(path, metadata={"Date": None})
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")
    print(f"{ANSWER}, {budget.n_past} tokens of context, {rate:.1f} tokens/s, {plan}")
    for row in zip(depths, probs, expected, extra_s, cost, gain, strict=True):
        print("  ".join(f"{value:.3f}" if value % 1 else f"{value:2d}" for value in row))


if __name__ == "__main__":
    main()
