"""Measures answers of one loaded engine, with and without speculation in turns."""

from __future__ import annotations

import functools
import logging
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..config import SamplingParams
from ..engine import Engine
from ..errors import ContextFull
from .answers import Answer
from .energy import Meter
from .peers import Peer
from .workloads import Question, prompt_of

logger = logging.getLogger("edgespec.bench.runner")

MODES = ("plain", "auto")
# called with: questions done, number of questions, the next question, share of the work done
Progress = Callable[[float, int, Question, float], None]
_REPORT_S = 1.0  # seconds between two reports of progress during an answer


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a run.

    temperatures: the temperatures to measure; those above 0 sample with top-k 40 and top-p 0.95.
    max_tokens: the most tokens of an answer. repeats: the number of rounds over all questions.
    modes: the modes to measure, from MODES.
    """

    temperatures: Sequence[float] = (0.0,)
    max_tokens: int = 256
    repeats: int = 1
    modes: Sequence[str] = MODES


def run(
    engine: Engine,
    questions: Sequence[Question],
    options: RunOptions | None = None,
    *,
    progress: Progress = lambda done, total, question, share: None,
    peers: Sequence[Peer] = (),
) -> Iterator[Answer]:
    """Answer every turn of every question in each mode, and yield the answers. The order of the
    modes changes from turn to turn and from round to round.

    The prompt of a turn is read once, and is in the cache for every mode. The next turn continues
    the plain answer. A turn that does not fit the context ends its question. Peers answer the same
    prompts, at temperature 0. The costs of decoding are measured first if they are not known.

    progress: called about every second. The share of the work is estimated from the time that
    reading and answering have taken so far. The running answer is assumed to become as long as the
    one in the other mode, or else as long as the answers so far on average. The first answer is
    assumed to have max_tokens.
    """
    engine.measure()
    options = options or RunOptions()
    runner = _Runner(engine, options, peers)
    repeats, temperatures = range(options.repeats), options.temperatures
    jobs = [(q, t, r) for r in repeats for t in temperatures for q in questions]
    asked = [question for question, *_ in jobs]
    for done, (question, temperature, round_) in enumerate(jobs):
        runner.report = functools.partial(_report, progress, runner.pace, asked, done)
        runner.report(0.0)
        yield from runner.answers(question, temperature, done % len(questions) + round_)
    progress(len(jobs), len(jobs), questions[-1], 1.0)


def _report(
    progress: Progress, pace: Pace, asked: Sequence[Question], done: int, part: float
) -> None:
    """Report that `done` questions and a part of the next one are done."""
    progress(done + part, len(asked), asked[done], pace.share(asked, done, part))


class Pace:
    """Estimates the time for the remaining work from the time that reading and answering took so
    far.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._began = clock()
        self._n_turns = self._n_characters = 0
        self._reading_s = self._answering_s = 0.0

    def add(self, turn: str, reading_s: float, answering_s: float) -> None:
        """Add a turn: the seconds to read it, and the seconds of all answers to it."""
        self._n_turns += 1
        self._n_characters += len(turn)
        self._reading_s += reading_s
        self._answering_s += answering_s

    def share(self, asked: Sequence[Question], done: int, part: float) -> float:
        """Return the share of all the work that is done after `done` questions and a part of the
        next one.
        """
        own = self._seconds(asked[done])
        left = (1 - part) * own + sum(map(self._seconds, asked[done + 1 :]))
        if not self._n_turns:  # nothing was measured: assume equal times
            total = sum(map(self._seconds, asked))
            return 1 - left / total
        spent = self._clock() - self._began
        return spent / max(1e-9, spent + left)

    def _seconds(self, question: Question) -> float:
        """Return about how many seconds a question takes; before any measurement, its number of
        turns.
        """
        if not self._n_turns:
            return len(question.turns)
        reading = self._reading_s / max(1, self._n_characters) * sum(map(len, question.turns))
        return reading + self._answering_s / self._n_turns * len(question.turns)


class _Runner:
    """Asks one engine and its peers the same questions.

    report: called with the part of the current question that is done. pace: the times so far.
    """

    def __init__(self, engine: Engine, options: RunOptions, peers: Sequence[Peer]) -> None:
        self._engine = engine
        self._max_tokens = options.max_tokens
        self._modes = tuple(options.modes)
        self._peers = peers
        self._meter = Meter()
        self.pace = Pace()
        self._part = 0.0, 1.0  # parts of the question: before this answer, this answer
        self._lengths: list[int] = []  # number of tokens of each answer so far
        self.report: Callable[[float], None] = lambda part: None

    def answers(self, question: Question, temperature: float, n_before: int) -> Iterator[Answer]:
        """Yield the answers to all turns of a question. The parity of `n_before` decides which mode
        comes first.
        """
        messages: list[dict[str, str]] = []
        n_answers = len(self._modes) * len(question.turns)
        for i, turn in enumerate(question.turns):
            messages.append({"role": "user", "content": turn})
            prompt = prompt_of(self._engine.tokenizer, messages)
            began = time.perf_counter()
            try:
                read = self._engine.generate(prompt, max_tokens=1, disable_spec_decode=True)
            except ContextFull as error:
                logger.warning("question %s ends before turn %d: %s", question.id, i + 1, error)
                return
            id, texts, has_read = f"{question.id}.{i + 1}", {}, time.perf_counter()
            n_expected = statistics.mean(self._lengths or [self._max_tokens])
            modes = self._modes if (n_before + i) % 2 else self._modes[::-1]
            for j, mode in enumerate(modes):
                self._part = (len(modes) * i + j) / n_answers, 1 / n_answers
                ttft_s = read.stats.time_to_first_token_s
                fields = {"id": id, "category": question.category, "mode": mode, "ttft_s": ttft_s}
                answer = self._answer(prompt, temperature, fields, n_expected)
                texts[mode], n_expected = answer.text or "", answer.n_tokens
                self._lengths.append(answer.n_tokens)
                self.report(sum(self._part))
                yield answer
            for peer in self._peers if not temperature else ():
                yield peer.answer(prompt, question.category, id, self._max_tokens)
            self.pace.add(turn, has_read - began, time.perf_counter() - has_read)
            messages.append({"role": "assistant", "content": texts["plain"]})

    def _answer(
        self, prompt: Sequence[int], temperature: float, fields: dict[str, Any], n_expected: float
    ) -> Answer:
        """Generate one answer and return it with its measurements.

        fields: the fields of the Answer that are already known. n_expected: the number of tokens
        that it will probably have.
        """
        params = SamplingParams(
            temperature,
            top_k=40 if temperature else 0,
            top_p=0.95 if temperature else 1.0,
            max_tokens=self._max_tokens,
            disable_spec_decode=fields["mode"] == "plain",
        )
        gaps: list[float] = []
        before, completion = self._meter.joules(), None
        before_part, part = self._part
        began = last = reported = time.perf_counter()
        for event in self._engine.run(prompt, params):  # ignore the model's own sampling
            if event.type == "token":
                now = time.perf_counter()
                gaps.append(now - last)
                last = now
                if now - reported >= _REPORT_S:
                    reported = now
                    self.report(before_part + part * min(1.0, len(gaps) / max(1, n_expected)))
            completion = event.completion or completion
        seconds, after = time.perf_counter() - began, self._meter.joules()
        assert completion is not None
        return Answer(
            temperature=temperature,
            n_tokens=len(completion.token_ids),
            seconds=seconds,
            stats=completion.stats,
            gaps=gaps[1:],
            joules=None if before is None or after is None else after - before,
            text=completion.text,
            prompt=prompt,
            token_ids=completion.token_ids,
            **fields,
        )
