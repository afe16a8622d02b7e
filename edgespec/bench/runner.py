"""Questions answered plainly and by speculation in turns, on the same loaded engine."""

from __future__ import annotations

import logging
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..decoding.engine import Engine
from ..errors import ContextFull
from ..types import Stats
from .energy import Meter
from .workloads import Question, prompt_of

logger = logging.getLogger("edgespec.bench")

MODES = ("plain", "auto")
RESAMPLES = 2000  # of the answers, for an interval


class Peer(Protocol):
    """Another runtime that answers the same prompts."""

    def answer(self, prompt: Sequence[int], question: Question, id: str, n: int) -> Answer:
        """A greedy answer of at most n tokens."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer in one mode.

    seconds: from a prompt that is in the target's cache to the last token, whatever a draft
    model had to read included. ttft_s: to the first token of the prompt when it was new.
    gaps: seconds between one arrival of tokens and the next, a value a token.
    joules: of the whole device, None where it does not tell.
    """

    id: str
    category: str
    temperature: float
    mode: str
    n_tokens: int
    seconds: float
    ttft_s: float
    stats: Stats
    gaps: list[float] = field(repr=False)
    joules: float | None = None

    @property
    def tokens_per_second(self) -> float:
        return self.n_tokens / self.seconds


def run(
    engine: Engine,
    questions: Sequence[Question],
    *,
    temperatures: Sequence[float] = (0.0,),
    max_tokens: int = 256,
    repeats: int = 1,
    progress: Callable[[int, int, Question], None] = lambda done, total, question: None,
    peers: Sequence[Peer] = (),
) -> Iterator[Answer]:
    """Both modes of every turn, one after the other, the order changing from turn to turn, and for
    each turn from round to round.

    The prompt of each turn is read once and is in the cache for both; the next turn continues
    the plain answer. A turn that does not fit the context ends its question. Peers answer the
    same prompts at temperature 0.
    """
    meter = Meter()
    total = len(questions) * len(temperatures) * repeats
    jobs = [(q, t, r) for r in range(repeats) for t in temperatures for q in questions]
    for done, (question, temperature, round_) in enumerate(jobs):
        progress(done, total, question)
        sampling: dict[str, Any] = {
            "temperature": temperature,
            "max_tokens": max_tokens,
        }
        if temperature:
            sampling |= {"top_k": 40, "top_p": 0.95}
        messages: list[dict[str, str]] = []
        for i, turn in enumerate(question.turns):
            messages.append({"role": "user", "content": turn})
            prompt = prompt_of(engine.tokenizer, messages)
            try:
                ttft = engine.generate(
                    prompt, max_tokens=1, disable_spec_decode=True
                ).stats.time_to_first_token_s
            except ContextFull as error:
                logger.warning("question %s ends before turn %d: %s", question.id, i + 1, error)
                break
            modes = MODES if (done % len(questions) + i + round_) % 2 else MODES[::-1]
            texts = {}
            for mode in modes:
                text, answer = _answer(
                    engine, prompt, question, i, mode, ttft, sampling, meter
                )  # fmt: skip
                texts[mode] = text
                yield answer
            for peer in peers if not temperature else ():
                yield peer.answer(prompt, question, answer.id, max_tokens)
            messages.append({"role": "assistant", "content": texts["plain"]})
    progress(total, total, questions[-1])


def _answer(
    engine: Engine, prompt: Sequence[int], question: Question, turn: int, mode: str,
    ttft: float, sampling: dict[str, Any], meter: Meter,
) -> tuple[str, Answer]:  # fmt: skip
    gaps: list[float] = []
    before, completion = meter.joules(), None
    began = last = time.perf_counter()
    for event in engine.stream(prompt, disable_spec_decode=mode == "plain", **sampling):
        if event.type == "token":
            now = time.perf_counter()
            gaps.append(now - last)
            last = now
        completion = event.completion or completion
    seconds, after = time.perf_counter() - began, meter.joules()
    assert completion is not None
    return completion.text, Answer(
        f"{question.id}.{turn + 1}", question.category, sampling["temperature"], mode,
        len(completion.token_ids), seconds, ttft, completion.stats, gaps[1:],
        None if before is None or after is None else after - before,
    )  # fmt: skip


def summary(answers: Iterable[Answer]) -> list[dict[str, Any]]:
    """A row for every temperature, category and mode, and one for all categories.

    speedup is Spec-Bench's: mean tokens a second over answers, divided by that of plain ones
    to the same questions (a run that was stopped may lack some); of all categories the
    geometric mean. speedup_low and speedup_high: the interval that holds it
    with 95% by a bootstrap over answers (Efron & Tibshirani 1993, percentiles), None of fewer
    than three: a machine's noise and how few they are both widen it. Times in milliseconds.
    """
    groups: dict[tuple[float, str, str], list[Answer]] = defaultdict(list)
    for answer in answers:
        groups[answer.temperature, answer.category, answer.mode].append(answer)
    rows: list[dict[str, Any]] = []
    drawn: dict[tuple[float, str], list[npt.NDArray[np.float64]]] = defaultdict(list)
    random = np.random.default_rng(0)
    for (temperature, category, mode), group in groups.items():
        pairs = _pairs(group, groups.get((temperature, category, "plain"), []))
        resampled = _resampled(pairs, random) if mode != "plain" else None
        if resampled is not None:
            drawn[temperature, mode].append(resampled)
        rows.append(
            {"category": category, "temperature": temperature, "mode": mode}
            | _row(group)
            | {"speedup": round(float(_speedup(pairs)), 3) if len(pairs) else None}
            | _interval(resampled)
        )
    for temperature, mode in {(row["temperature"], row["mode"]): None for row in rows}:
        own = [r for r in rows if r["temperature"] == temperature and r["mode"] == mode]
        members = [
            a for (t, _, m), group in groups.items() if (t, m) == (temperature, mode) for a in group
        ]
        speedups = [row["speedup"] for row in own if row["speedup"]]
        every = drawn[temperature, mode]
        whole = np.exp(np.log(every).mean(axis=0)) if len(every) == len(speedups) > 0 else None
        rows.append(
            {"category": "all", "temperature": temperature, "mode": mode}
            | _row(members)
            | {"speedup": round(statistics.geometric_mean(speedups), 3) if speedups else None}
            | _interval(whole)
        )
    return rows


def _pairs(own: Sequence[Answer], plain: Sequence[Answer]) -> npt.NDArray[np.float64]:
    """Tokens a second [n, 2] of answers and the plain ones beside them."""
    beside: dict[str, list[float]] = defaultdict(list)
    for answer in plain:
        beside[answer.id].append(answer.tokens_per_second)
    pairs = [(a.tokens_per_second, beside[a.id].pop(0)) for a in own if beside[a.id]]
    return np.array(pairs).reshape(-1, 2)


def _speedup(pairs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Of pairs [..., n, 2]."""
    ours, theirs = pairs.mean(axis=-2).T
    return np.asarray(ours / theirs)


def _resampled(
    pairs: npt.NDArray[np.float64], random: np.random.Generator
) -> npt.NDArray[np.float64] | None:
    """Speedups [RESAMPLES] of pairs drawn with replacement."""
    if len(pairs) < 3:
        return None
    return _speedup(pairs[random.integers(len(pairs), size=(RESAMPLES, len(pairs)))])


def _interval(speedups: npt.NDArray[np.float64] | None) -> dict[str, float | None]:
    if speedups is None:
        return {"speedup_low": None, "speedup_high": None}
    low, high = np.percentile(speedups, (2.5, 97.5))
    return {"speedup_low": round(float(low), 3), "speedup_high": round(float(high), 3)}


def _row(answers: Sequence[Answer]) -> dict[str, Any]:
    stats = [answer.stats for answer in answers]
    n_steps = sum(s.num_spec_steps for s in stats)
    n_drafted = sum(s.num_draft_tokens for s in stats)
    n_accepted = sum(s.num_accepted_draft_tokens for s in stats)
    gaps = sorted(gap for answer in answers for gap in answer.gaps)
    seconds = sum(answer.seconds for answer in answers)
    joules = [answer.joules for answer in answers if answer.joules is not None]
    n_tokens = sum(answer.n_tokens for answer in answers)
    return {
        "answers": len(answers),
        "tokens": n_tokens,
        "tokens_per_second": round(statistics.mean(a.tokens_per_second for a in answers), 2),
        "mean_acceptance_length": round(1 + n_accepted / max(1, n_steps), 3),
        "draft_acceptance_rate": round(n_accepted / n_drafted, 3) if n_drafted else None,
        "draft_steps_share": round(sum(s.num_draft_steps for s in stats) / max(1, n_steps), 3),
        "ttft_ms": round(1e3 * statistics.median(answer.ttft_s for answer in answers), 1),
        **{f"itl_p{p}_ms": _percentile(gaps, p) for p in (50, 95, 99)},
        "draft_share": round(sum(s.draft_s for s in stats) / seconds, 3),
        "verify_share": round(sum(s.verify_s for s in stats) / seconds, 3),
        "joules_per_token": round(sum(joules) / n_tokens, 3) if len(joules) == len(stats) else None,
        "acceptance_histogram": _added(s.acceptance_histogram for s in stats),
        "sources": _sources(stats),
    }


def _percentile(ordered: Sequence[float], percent: int) -> float | None:
    if not ordered:
        return None
    return round(1e3 * ordered[min(len(ordered) - 1, len(ordered) * percent // 100)], 2)


def _added(histograms: Iterable[Sequence[int]]) -> list[int]:
    total: list[int] = []
    for histogram in histograms:
        total.extend([0] * (len(histogram) - len(total)))
        for i, n in enumerate(histogram):
            total[i] += n
    return total


def _sources(stats: Iterable[Stats]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for each in stats:
        for name, counts in each.drafts_by_source.items():
            own = found.setdefault(name, dict.fromkeys(counts, 0))
            for key, n in counts.items():
                own[key] += n
    return found
