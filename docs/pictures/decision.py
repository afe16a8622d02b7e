"""Draw one real decision: `python docs/pictures/decision.py`.

It replays recorded answers on the profile cpu-f16 and draws, for one step, how likely the nodes of
a free draft are accepted, what the target's passes cost, and how many nodes gain most.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.ticker import MultipleLocator

from edgespec.bench.replay import Replay, shipped_profiles, shipped_traces

PROFILE, ANSWER, EMITTED, N_NODES = "cpu-f16", "261.1", 31, 16


def decision():
    """Return (draft, path probabilities, worth) of the draft after EMITTED tokens of ANSWER."""
    replay, seen = Replay(shipped_profiles()[PROFILE], "auto"), {}
    grow = replay.session._drafting.grow

    def watched(budget):
        growth = grow(budget)
        if growth and growth.draft.tokens:
            nodes = growth._guesses.nodes(N_NODES, (0.0,))
            seen[budget.n_emitted] = growth.draft, [node.prob for node in nodes], growth._worth
        return growth

    replay.session._drafting.grow = watched
    for trace in shipped_traces():
        seen.clear()
        replay.run(trace)
        if trace.id == ANSWER:
            return seen[EMITTED]
    raise SystemExit(f"{ANSWER} is not among the recorded answers")


def main() -> None:
    draft, probs, worth = decision()
    numbers, chosen = list(range(1, len(probs) + 1)), len(draft.tokens)
    extra_s = [worth.seconds[n + 1] - worth.seconds[1] for n in numbers]
    expected = [sum(probs[:n]) for n in numbers]
    cost = [worth.cost(n) for n in numbers]
    gain = [e - c for e, c in zip(expected, cost, strict=True)]

    plt.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "edgespec", "font.size": 11}
    plt.rcParams |= {"font.family": "sans-serif", "axes.spines.top": False}
    plt.rcParams |= {"axes.spines.right": False}
    figure, axes = plt.subplot_mosaic("AB;CC", figsize=(7.6, 5.4), layout="constrained")
    axes["A"].bar(numbers, probs, color="#9fa8da")
    axes["A"].set(title="path probability by node", xlabel="node", ylim=(0, 1))
    milliseconds = [1e3 * worth.seconds[n] for n in [1, *(n + 1 for n in numbers)]]
    axes["B"].plot([1, *(n + 1 for n in numbers)], milliseconds, color="#3949ab", marker=".")
    axes["B"].set(title="t(n): ms for n tokens in one pass", xlabel="n", ylim=(0, None))
    below = axes["C"]
    below.plot(numbers, expected, color="#2e7d32", label="expected accepted tokens")
    below.plot(numbers, cost, color="#c62828", label="price of the additional time, in tokens")
    below.bar(numbers, gain, color="#bdbdbd", label="gain: the difference")
    best = gain[chosen - 1]
    below.bar(chosen, best, color="#ef6c00", label=f"drafted: {chosen} nodes")
    below.set(title="gain by number of nodes, in tokens", xlabel="n", ylim=(0, 1.35 * expected[-1]))
    below.legend(frameon=False, ncols=2, loc="upper left")
    for axis in axes.values():
        axis.xaxis.set_major_locator(MultipleLocator(2))
    path = Path(__file__).with_suffix(".svg")
    figure.savefig(path, metadata={"Date": None})
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")
    print(f"{ANSWER}, {draft.source}, price {worth.price:.1f} tokens/s, {chosen} nodes of")
    for row in zip(numbers, probs, expected, extra_s, cost, gain, strict=True):
        print("  ".join(f"{value:.3f}" if value % 1 else f"{value:2d}" for value in row))


if __name__ == "__main__":
    main()
