"""Simulated trained heads for recorded answers, in virtual time.

Their acceptance rates and costs are those that were published for real heads, or measured here.
"""

from __future__ import annotations

import functools
import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..backends.base import Head
from ..backends.features import Features
from ..costs.curves import Curve
from .trace_model import Clock, TraceModel
from .traces import Ranked, Trace

OTHERS = (0.4, 0.25, 0.2)
"""The probabilities that the second, third and fourth choice of a head is right if all likelier
choices are wrong. The recorded 0.5B model has 0.49, 0.33 and 0.24. Medusa's heads (arXiv
2401.10774) are weaker: if their first choice is wrong, the right token is among the next four in
half of the cases. Here it is among the next three in 64%.
"""
_LEAST = 0.3  # least confidence; below it the second choice would be likelier than the first
# beta distribution of confidences: fits the recorded 0.5B model (mean 0.83, variance 0.060)
_CONCENTRATION = 1.3
_N_QUANTILES = 4096
# time of a block head to read a token, as a share of the target's: it only keeps keys and values
_READING = 0.02


@dataclass(frozen=True, slots=True)
class HeadQuality:
    """The properties of a kind of head.

    accepted: the probabilities that a token of depth 1, 2, … is accepted if all before it were;
    the last one also holds for deeper tokens. step: the time of an evaluation, as a share of the
    target's. block: the number of tokens that one evaluation guesses at once; 0 if an evaluation
    guesses one token, which is then fed back.
    """

    accepted: tuple[float, ...]
    step: float = 0.05
    block: int = 0

    def curve(self, target: Curve) -> Curve:
        """Return the head's costs on a device: `step` times those of the target. Tokens that a
        block head reads in addition to its block cost less.
        """
        if not self.block:
            return target.scaled(self.step)
        rows = [
            tuple(self.step * row[0] + _READING * (seconds - row[0]) for seconds in row)
            for row in target.seconds
        ]
        return Curve(target.lengths, target.widths, tuple(rows))


HEADS = {
    "head": HeadQuality((0.75, 0.70, 0.68)),
    "weak-head": HeadQuality((0.65, 0.55, 0.50)),
    "own-head": HeadQuality((0.35, 0.37, 0.42), step=0.13),
    "dflash": HeadQuality((0.84,), step=0.15, block=15),  # 4.9 times faster where t(16) is flat
}
"""Heads to replay: EAGLE-3 (arXiv 2503.01840), trained on much and on little data, and by
`edgespec train` on 300,000 tokens (docs/results/train_smollm2.json, questions of Spec-Bench); and
DFlash (arXiv 2602.06036), with the acceptance rate that gives the speedup its authors report.
"""


class _States(Features):
    """Features that have positions but no hidden states. The positions are those of the latest
    tokens that the target has evaluated.
    """

    def __init__(self, target: TraceModel) -> None:
        super().__init__()
        self._target = target

    @property
    def start(self) -> int:
        """The first position that has states."""
        return max(0, self.end - self.most)

    @property
    def end(self) -> int:
        """The position after the last one that has states."""
        return self._target.n_past


class HeadModel(TraceModel, Head):
    """A simulated `Head`, whose guesses are right as often as its quality says, at every depth.

    The random numbers for a guess are drawn once for each position of an answer, so they do not
    depend on earlier drafts. The head's first choice is the answer's token with a probability that
    equals the head's confidence. Otherwise it is the likeliest other token in the target's recorded
    row. Confidences vary around the acceptance rate of the depth, and are lower at greater depth.

    The depth counts from the end of the text that `target` has evaluated. Tokens after that end,
    also those from lookups, are read with the head's own states, and are read again once they are
    accepted. If `start` is not 0, `_tokens` also has the text before it, which was not read.
    """

    layers = ()
    n_states = 0

    def __init__(
        self, clock: Clock, curve: Curve, quality: HeadQuality, target: TraceModel, seed: int = 0
    ) -> None:
        super().__init__(clock, curve)
        self.kind = "dflash" if quality.block else "eagle3"
        self._quality, self._target, self._seed = quality, target, seed
        self.max_depth, self.features = quality.block, _States(target)
        self._start = 0
        self._n_true = 0  # tokens that it has read with the target's states

    @property
    def start(self) -> int:
        """The position in the text of the first token in the cache."""
        return self._start

    @start.setter
    def start(self, start: int) -> None:
        self._start = start
        self._tokens = self._text[:start]
        self._same = self._n_true = start

    @property
    def n_past(self) -> int:
        """The number of tokens in the cache."""
        return len(self._tokens) - self._start

    def tell(self, trace: Trace) -> None:
        """Set the trace of the next answer."""
        super().tell(trace)
        rng = np.random.default_rng([self._seed, zlib.crc32(trace.id.encode())])
        self._drawn = rng.random((3, len(trace.output)))

    def truncate(self, n_past: int) -> None:
        """Forget the tokens after the first `n_past`."""
        self._cut(self._start + n_past)

    def _cut(self, n: int) -> None:
        super()._cut(n)
        self._n_true = min(self._n_true, n)

    def _take_time(self, n_tokens: int) -> None:
        """Advance the clock by the time to read tokens, some of them again with the target's
        states. Guessed tokens cost a block head nothing, because one evaluation guesses them all.
        """
        n_past, n_text = len(self._tokens), self._target.n_past + 1
        n_new = min(n_past + n_tokens, n_text) - self._n_true
        n_timed = max(0, n_new) if self._quality.block else n_tokens + max(0, n_new - n_tokens)
        self._n_true += max(0, n_new)
        if n_timed:
            self.evaluated.append((n_timed, n_past))
            self._clock.now += self._curve(n_timed, n_past)

    def _known_row(self) -> Ranked:
        position, wrong = self._same - len(self._trace.prompt), self._tokens[self._same :]
        depth = max(1, len(self._tokens) - self._target.n_past)
        at = position + len(wrong)
        if not 0 <= position <= at < len(self._trace.output) or 0 < self._quality.block < depth:
            return [(0, _LEAST)]
        sure, rank = self._guess(at, depth)
        probs, left = [sure], 1 - sure
        for share in OTHERS:
            probs.append(left * share)
            left -= probs[-1]
        tokens = list(range(len(probs))) if wrong else self._choices(position, rank)
        return list(zip(tokens, probs, strict=True))

    def _guess(self, position: int, depth: int) -> tuple[float, int]:
        """Return the confidence at a position, and the rank of the right token among the choices: 0
        for the first choice, len(OTHERS) + 1 if no choice is right.
        """
        hit, other, spread = self._drawn[:, position]
        rates = self._quality.accepted
        quantiles = _confidences(rates[min(depth, len(rates)) - 1])
        sure = float(quantiles[int(spread * len(quantiles))])
        rank, missing = int(hit >= sure), 1.0
        while 0 < rank <= len(OTHERS):
            missing *= 1 - OTHERS[rank - 1]
            if other >= missing:  # the draw lies in the share of this choice
                break
            rank += 1
        return sure, rank

    def _choices(self, position: int, rank: int) -> list[int]:
        """Return the choices at a position: the right token at this rank, and other likely tokens
        of the target.
        """
        right, n = self._trace.output[position], len(OTHERS) + 1
        choices = [token for token, _ in self._trace.top[position] if token != right][:n]
        choices += range(n - len(choices))
        choices.insert(rank, right)
        return choices[:n]


@functools.cache
def _confidences(rate: float) -> npt.NDArray[np.float64]:
    """Return equally likely confidences in ascending order, with mean `rate`."""
    mean = (rate - _LEAST) / (1 - _LEAST)
    rng = np.random.default_rng(0)
    drawn = rng.beta(_CONCENTRATION * mean, _CONCENTRATION * (1 - mean), _N_QUANTILES)
    drawn = np.sort(drawn) * (mean / drawn.mean())
    confidences: npt.NDArray[np.float64] = _LEAST + (1 - _LEAST) * np.minimum(drawn, 1)
    return confidences
