"""How late a request with a time limit returns, and how late the next one can begin.

    python -m benchmarks.deadlines NAME [NAME-onnx-PRECISION] [--loops 0 2 4] [--share 1.0]

NAME: models in $EDGESPEC_TEST_MODELS. While so many endless loops run, limits of 0.5, 2 and 10 s
are given to 100, 50 and 10 requests (`--share`: of so many), in turn: a long new prompt, the
first and the second question of a chat, a new schema of many fields. The first form of an engine,
for which the vocabulary is read, is `engine.check`ed before; with `--unchecked` it comes within the
limits. Reported are the median, the 99th percentile and the latest of both, in seconds after the
limit, by loops and by kind; how many answers ended by themselves, and how many were cut before
their time (none should). It takes half an hour for each model.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from benchmarks.common import model, save
from edgespec import Chat, Completion, Engine, load

LIMITS = {0.5: 100, 2.0: 50, 10.0: 10}
FIELDS = (50, 200, 800, 1600)


class Seen(NamedTuple):
    """A request: its kind, seconds after its limit, and how it ended."""

    kind: str
    limit_s: float
    late_s: float
    free_s: float
    reason: str
    n_tokens: int


class Requests:
    """Requests of every kind, none like one before."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._rng = engine, random.Random(1)
        self._chat: Chat | None = None
        self.kinds: dict[str, Callable[[float], Completion]] = {
            "prefill": self.prefill,
            "decoding": self.decoding,
            "second of a chat": self.second,
            "schema": self.schema,
        }

    def prefill(self, limit_s: float) -> Completion:
        n = int(0.7 * self._engine.n_ctx)
        prompt = [self._rng.randrange(300, 8000) for _ in range(n)]
        return self._engine.generate(prompt, ignore_eos=True, time_limit_s=limit_s)

    def decoding(self, limit_s: float) -> Completion:
        self._chat = self._engine.chat()
        said = f"Tell me a long story about {self._rng.randrange(1000)} ships."
        return self._chat.send(said, ignore_eos=True, time_limit_s=limit_s)

    def second(self, limit_s: float) -> Completion:
        assert self._chat
        return self._chat.send("And then?", ignore_eos=True, time_limit_s=limit_s)

    def schema(self, limit_s: float) -> Completion:
        n, seed = self._rng.choice(FIELDS), self._rng.randrange(10**6)
        fields = {f"f{seed}_{i}": {"type": "string", "maxLength": 40} for i in range(n)}
        schema = {"type": "object", "properties": fields, "required": list(fields)}
        return self._engine.generate("JSON:", schema=schema, time_limit_s=limit_s)


@contextlib.contextmanager
def loops(n: int) -> Iterator[None]:
    """Let so many endless loops run meanwhile."""
    busy = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(n)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def measured(engine: Engine, share: float) -> list[Seen]:
    """Return what was seen of all requests."""
    requests, seen = Requests(engine), []
    for limit_s, n in LIMITS.items():
        kinds = itertools.cycle(requests.kinds.items())
        for kind, ask in itertools.islice(kinds, max(len(requests.kinds), round(share * n))):
            began = time.perf_counter()
            done = ask(limit_s)
            late_s = time.perf_counter() - began - limit_s
            events = engine.stream([1, 2], max_tokens=1)
            next(events)  # it has the engine
            free_s = time.perf_counter() - began - limit_s
            events.close()
            n_tokens = len(done.token_ids)
            seen.append(Seen(kind, limit_s, late_s, free_s, done.finish_reason, n_tokens))
    return seen


def summary(seen: list[Seen]) -> dict[str, float]:
    """Return the figures of some requests."""
    timed = [each for each in seen if each.reason == "time_limit"]
    row: dict[str, float] = {
        "requests": len(seen),
        "ended_by_themselves": len(seen) - len(timed),
        "cut_early": sum(each.late_s < 0 for each in timed),
        "without_a_token": sum(not each.n_tokens for each in timed),
    }
    for name in ("late_s", "free_s") if timed else ():
        values = [getattr(each, name) for each in timed]
        median, most = (float(np.quantile(values, q)) for q in (0.5, 0.99))
        row |= {f"{name}_p50": round(median, 3), f"{name}_p99": round(most, 3)}
        row[f"{name}_latest"] = round(max(values), 3)
    return row


def by(seen: list[Seen], name: str) -> dict[str, dict[str, float]]:
    """Return the figures of requests by one of their fields."""
    groups: dict[str, list[Seen]] = defaultdict(list)
    for each in seen:
        groups[str(getattr(each, name))].append(each)
    return {key: summary(group) for key, group in groups.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="+")
    parser.add_argument("--loops", type=int, nargs="*", default=[0, 2, 4])
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--unchecked", action="store_true")
    parser.add_argument("--save", default="deadlines")
    args = parser.parse_args()
    result: dict[str, dict] = {}
    for name in args.names:
        for n in args.loops:
            with loops(n), load(model(name), None, n_ctx=2048) as engine:
                if not args.unchecked:
                    engine.check(schema={"type": "object"})
                seen = measured(engine, args.share)
            row = {"all": summary(seen), "kinds": by(seen, "kind"), "limits": by(seen, "limit_s")}
            result.setdefault(name, {})[f"{n} loops"] = row
            print(name, f"{n} loops", row["all"], flush=True)
    save(args.save, {"share": args.share, "models": result})


if __name__ == "__main__":
    main()
