"""Draw one real decision of the controller: `python docs/pictures/decision.py`.

It replays a recorded answer on the profile cpu-f16 and draws, for one step, what prompt lookup
expected of its draft, what the target's passes cost, and which depth was worth most.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from edgespec.bench.replay import Replay, shipped_profiles, shipped_traces

PROFILE, ANSWER, EMITTED, DEEPEST = "cpu-f16", "261.1", 18, 16


def decision():
    """Return (estimate, budget, plan) of the first draft behind EMITTED tokens of ANSWER."""
    replay = Replay(shipped_profiles()[PROFILE], "auto")
    choose, found = replay.policy.choose, []

    def spy(sources, budget):
        plan = choose(sources, budget)
        if plan.depth and budget.n_emitted == EMITTED:
            found.append((sources[plan.offer], budget, plan))
        return plan

    replay.policy.choose = spy
    for trace in shipped_traces():
        replay.run(trace)
        if trace.id == ANSWER:
            return found[-1]
        found.clear()
    raise SystemExit(f"{ANSWER} is not among the recorded answers")


def main() -> None:
    estimate, budget, plan = decision()
    probs = estimate.survival[:DEEPEST]
    depths = list(range(1, len(probs) + 1))
    curve = shipped_profiles()[PROFILE].target
    extra_s = [curve(d + 1, budget.n_past) - curve(1, budget.n_past) for d in depths]
    expected = [sum(probs[:d]) for d in depths]
    price = (expected[plan.depth - 1] - plan.gain) / extra_s[plan.depth - 1]  # tokens a second
    cost = [price * s for s in extra_s]
    gain = [e - c for e, c in zip(expected, cost, strict=True)]

    plt.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "edgespec", "font.size": 10}
    plt.rcParams |= {"font.family": "sans-serif", "axes.spines.top": False}
    plt.rcParams |= {"axes.spines.right": False}
    figure, (one, two, three) = plt.subplots(1, 3, figsize=(10, 3.3), layout="constrained")
    one.bar(depths, probs, color="#9fa8da")
    one.set(title="acceptance probability", xlabel="depth", ylim=(0, 1))
    widths = [1, *(d + 1 for d in depths)]
    two.plot(widths, [1e3 * curve(n, budget.n_past) for n in widths], color="#3949ab")
    two.set(title="t(n), ms", xlabel="tokens in one pass", ylim=(0, None))
    three.plot(depths, expected, color="#2e7d32", label="expected accepted tokens")
    three.plot(depths, cost, color="#c62828", label="tokens that the time is worth")
    three.bar(depths, gain, color="#bdbdbd", label="gain")
    three.bar(plan.depth, gain[plan.depth - 1], color="#ef6c00", label=f"chosen: {plan.depth}")
    three.set(title="gain by depth", xlabel="depth")
    three.legend(fontsize="small", frameon=False)
    path = Path(__file__).with_suffix(".svg")
    figure.savefig(path, metadata={"Date": None})
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")
    print(f"{ANSWER}, {budget.n_past} tokens of context, price {price:.1f} tokens/s, {plan}")
    for row in zip(depths, probs, expected, extra_s, cost, gain, strict=True):
        print("  ".join(f"{value:.3f}" if value % 1 else f"{value:2d}" for value in row))


if __name__ == "__main__":
    main()
