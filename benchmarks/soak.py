"""Many clients of one engine for some minutes: are its answers right, does it leave anything?

    python -m benchmarks.soak NAME [--minutes N] [--clients N] [--slots N] [--save NAME]

NAME: a GGUF in $EDGESPEC_TEST_MODELS. The clients are threads with three owners. They ask greedy
and seeded questions, some with a schema, some with a time limit, some with on_busy "error" or
"replace". At random they cancel, or leave a stream without reading it to its end. Reported are the
number of answers by finish reason, the seconds until a cancelled request had ended, the texts that
differ from those of lone answers, and the threads, file descriptors and memory of the process: the
medians of the first and the last third, and the most. A text that differs is right if the two texts
part at a near-tie. If no request ends for two minutes, the stacks of all threads are printed and
the process exits.
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.common import GREEDY, median, model, save
from edgespec import Engine, EngineBusy, EngineConfig, load
from edgespec.loading.models import open_model
from tests.helpers.near_ties import NOISE, parting

STANDSTILL_S = 120
SCHEMA = {
    "type": "object",
    "properties": {"word": {"type": "string", "maxLength": 12}, "sure": {"type": "boolean"}},
    "required": ["word", "sure"],
    "additionalProperties": False,
}
QUESTIONS = [
    f"{begin} {topic}."
    for topic in ("the sea", "a robot", "Paris", "bread", "the moon", "music")
    for begin in ("Write one sentence about", "Name three things that belong to")
]
SAMPLING: Sequence[dict[str, Any]] = (
    {"temperature": 0}, {"temperature": 0.8, "seed": 7}, {"temperature": 0, "schema": SCHEMA},
)  # fmt: skip
Asked = tuple[str, int]


def loaded(path: Path, n_slots: int) -> Engine:
    """Return an engine that drafts trees at every step."""
    drafts = {"method": "recycling,suffix", "num_speculative_tokens": 3, "draft_p_min": 0.0}
    return load(path, None, n_ctx=512, n_slots=n_slots, speculative_config=drafts, sampling=GREEDY)


class Soak:
    """Clients of an engine, and what they have seen.

    lone: the tokens of each request when it is answered alone.
    """

    def __init__(self, engine: Engine, n_tokens: int = 24) -> None:
        self.engine = engine
        self.sampling = [{"max_tokens": n_tokens} | each for each in SAMPLING]
        self.lone = {
            (question, i): engine.generate(question, **sampling).token_ids
            for question in QUESTIONS
            for i, sampling in enumerate(self.sampling)
        }
        self.reasons: Counter[str] = Counter()
        self.cancel_s: list[float] = []
        self.others: set[tuple[Asked, tuple[int, ...]]] = set()
        self.errors: list[str] = []
        self.used: list[tuple[int, int, float]] = []
        self._ended = threading.Event()
        self._lock = threading.Lock()

    def run(self, n_clients: int, seconds: float) -> None:
        """Let clients ask for so many seconds, and wait until all have ended."""
        threads = [
            threading.Thread(target=self._client, args=(random.Random(i),))
            for i in range(n_clients)
        ]
        for thread in threads:
            thread.start()
        end, process, seen = time.monotonic() + seconds, psutil.Process(), -1
        while time.monotonic() < end or any(thread.is_alive() for thread in threads):
            if self.reasons.total() != seen or seen == 0:
                seen = self.reasons.total()
                faulthandler.dump_traceback_later(STANDSTILL_S, exit=True)
            if time.monotonic() >= end:
                self._ended.set()
            else:
                n_files = getattr(process, "num_fds", lambda: 0)()
                used = process.num_threads(), n_files, process.memory_info().rss / 2**20
                self.used.append(used)
            time.sleep(min(1.0, seconds / 20))
        faulthandler.cancel_dump_traceback_later()

    def _client(self, rng: random.Random) -> None:
        while not self._ended.is_set():
            try:
                reason = self._ask(rng)
            except EngineBusy:
                reason = "busy"
                time.sleep(0.1)
            except BaseException as error:
                reason = type(error).__name__
                self.errors.append(repr(error))
            with self._lock:
                self.reasons[reason] += 1

    def _ask(self, rng: random.Random) -> str:
        asked = question, i = rng.choice(list(self.lone))
        options = {"owner": rng.choice("abc"), "on_busy": rng.choice(["wait"] * 6 + ["error"])}
        if rng.random() < 0.1:
            options["on_busy"] = "replace"
        if rng.random() < 0.2:
            options["time_limit_s"] = rng.choice([0.05, 0.5, 2.0, 5.0])
        act, n = rng.choice(["read"] * 5 + ["cancel"] * 2 + ["leave"]), rng.randrange(20)
        with self.engine.stream(question, **self.sampling[i], **options) as stream:
            if act == "cancel":
                return self._cancelled(stream, rng.random())
            for at, event in enumerate(stream):
                if act == "leave" and at == n:
                    return "left"
                if (done := event.completion) is not None:
                    self._compare(asked, done)
                    return str(done.finish_reason)
        return "no end"

    def _cancelled(self, stream: Any, after_s: float) -> str:
        """Read a stream that another thread cancels."""
        began = [0.0]

        def cancel() -> None:
            began[0] = time.monotonic()
            stream.cancel()

        timer = threading.Timer(after_s, cancel)
        timer.start()
        *_, last = stream
        ended = time.monotonic()
        timer.cancel()
        timer.join()
        if last.completion.finish_reason == "cancelled" and began[0]:
            self.cancel_s.append(max(0.0, ended - began[0]))
        return str(last.completion.finish_reason)

    def _compare(self, asked: Asked, done: Any) -> None:
        if done.finish_reason in ("stop", "length") and done.token_ids != self.lone[asked]:
            self.others.add((asked, done.token_ids))

    def partings(self, target: Any) -> list[tuple[float, str, int]]:
        """Return, for each answer that differs from that of a lone request, by how many logits the
        target prefers one of the two tokens; the question, and the number of its sampling. The
        largest come first. target: the engine's target, loaded on its own.
        """
        gaps = [
            (
                parting(
                    target, self.engine.encode(question), self.sampling[i],
                    self.lone[question, i], tokens,
                ), question, i,
            )
            for (question, i), tokens in self.others
        ]  # fmt: skip
        return sorted(gaps, reverse=True)

    def figures(self) -> dict[str, Any]:
        """Return what is reported."""
        third = max(1, len(self.used) // 3)
        names = "threads", "files", "MiB"
        columns = dict(zip(names, zip(*self.used, strict=True), strict=True))
        company = self.engine.company
        assert company
        return {
            "requests": dict(self.reasons.most_common()),
            "errors": self.errors[:10],
            "cancel_s": {
                "median": round(median(self.cancel_s or [0.0]), 3),
                "most": round(max(self.cancel_s, default=0.0), 3),
            },
            "other_texts": len(self.others),
            "evaluations": {
                "all": company.counts.evaluations,
                "of several streams": company.counts.shared_evaluations,
                "with drafts of several streams": company.counts.shared_draft_evaluations,
            },
            "used": {
                name: {
                    "first third": round(median(column[:third])),
                    "last third": round(median(column[-third:])),
                    "most": round(max(column)),
                }
                for name, column in columns.items()
            },
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--save", default="soak")
    args = parser.parse_args()
    with loaded(model(args.name), args.slots) as engine:
        soak = Soak(engine)
        soak.run(args.clients, 60 * args.minutes)
        target = open_model(model(args.name), EngineConfig(n_ctx=512))
        partings = soak.partings(target)
        target.close()
        wrong = [each for each in partings if not each[0] < NOISE]
        gaps = [round(gap, 3) for gap, *_ in partings]
        save(
            args.save,
            {"minutes": args.minutes, "wrong": wrong, "partings": gaps} | soak.figures(),
        )
    raise SystemExit(bool(wrong or soak.errors))


if __name__ == "__main__":
    main()
