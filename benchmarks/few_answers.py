"""The most that the default can lose where answers are few, in replay on costs of this CPU.

It is the speedup over plain decoding for every recorded answer by itself, after all that were
before it, and for every five questions of a category, answered first thing after a load.

    python -m benchmarks.few_answers
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from benchmarks.common import save
from edgespec.bench.replay import Replay, rates, shipped_profiles, shipped_traces
from edgespec.bench.traces import Trace
from edgespec.costs.curves import Curve
from edgespec.costs.measuring import QUICK
from edgespec.costs.profiles import Profile

GROUP = 5
BOUND = 0.98
# measured on 2026-11-22, when a token of F16 took 89 to 105 ms
F16_S = (0.150, 0.168, 0.182, 0.199, 0.244, 0.289, 0.390, 0.525, 0.680)
DRAFT_WIDTHS = (1, 2, 4, 8, 16, 32, 128)
DRAFT_S = (0.0120, 0.0200, 0.0326, 0.0571, 0.0810, 0.1488, 0.4448)


def slow_f16(first_s: float) -> Profile:
    """Return that day's costs, with a plain token of so many seconds."""
    target = Curve((64,), QUICK, ((first_s, *F16_S),))
    return Profile(target, Curve((64,), DRAFT_WIDTHS, (DRAFT_S,)))


def groups() -> Iterator[list[Trace]]:
    """Answers to five questions of a category each; what is left over is not one."""
    asked: dict[str, dict[str, list[Trace]]] = defaultdict(lambda: defaultdict(list))
    for trace in shipped_traces():
        asked[trace.category][trace.id.rpartition(".")[0]].append(trace)
    for questions in asked.values():
        answers = list(questions.values())
        for i in range(0, len(answers) - GROUP + 1, GROUP):
            yield [trace for turns in answers[i : i + GROUP] for trace in turns]


def speedup(profile: Profile, traces: Sequence[Trace]) -> float:
    """Return the mean tokens a second of one category over plain decoding's, as in Spec-Bench."""
    category = traces[0].category
    auto, plain = (rates(traces, [profile], policy)[0][category] for policy in ("auto", "plain"))
    return auto / plain


def singles(profile: Profile) -> list[tuple[float, int]]:
    """(speedup, tokens) of every answer."""
    auto, plain = Replay(profile, "auto"), Replay(profile, "plain")
    return [
        (plain.run(trace).total_s / auto.run(trace).total_s, len(trace.output))
        for trace in shipped_traces()
        if len(trace.output) > 1
    ]


def measure(profile: Profile) -> dict[str, object]:
    answers = sorted(singles(profile))
    fives = sorted((speedup(profile, five), five[0].category) for five in groups())
    return {
        "answers": {
            "n": len(answers),
            "below_bound": sum(gain < BOUND for gain, _ in answers),
            "lowest": [{"speedup": round(gain, 3), "tokens": n} for gain, n in answers[:3]],
        },
        "fives": {
            "n": len(fives),
            "below_bound": sum(gain < BOUND for gain, _ in fives),
            "lowest": [{"speedup": round(gain, 3), "category": name} for gain, name in fives[:3]],
        },
    }


def main() -> None:
    shipped = shipped_profiles()
    profiles = {name: shipped[name] for name in ("cpu-q4", "cpu-f16")}
    profiles |= {f"F16, {ms} ms a token": slow_f16(ms / 1000) for ms in (89, 100, 105)}
    results = {name: measure(profile) for name, profile in profiles.items()}
    save("few_answers", {"bound": BOUND, "results": results})


if __name__ == "__main__":
    main()
