"""Trained heads of published quality as models over recorded answers, in virtual time."""

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
"""Probabilities that the second, third and fourth choice of a head are right where all likelier
ones are wrong. The recorded 0.5B model has 0.49, 0.33 and 0.24. Of Medusa's heads (arXiv
2401.10774), which are weaker, half of the tokens that the first choice misses are among the next
four; here it is 64% among the next three.
"""
_LEAST = 0.3  # confidence: with less the second choice would be likelier than the first
_CONCENTRATION = 1.3  # of confidences, as the recorded 0.5B model's (mean 0.83, variance 0.060)
_N_QUANTILES = 4096
_READING = 0.02  # of the target's time: a block head keeps keys and values of tokens, no more


@dataclass(frozen=True, slots=True)
class HeadQuality:
    """The published facts of a kind of head.

    accepted: probability that a token of depth 1, 2, … is accepted if all before it were; further
    ones as the last. step: seconds of an evaluation, as a share of the target's token. block:
    tokens that one evaluation guesses all at once; 0: one, and each is fed back.
    """

    accepted: tuple[float, ...]
    step: float = 0.05
    block: int = 0

    def curve(self, target: Curve) -> Curve:
        """Return the head's costs on a device: those of the target, so much smaller; what a block
        head reads beside its block is cheaper.
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
    "dflash": HeadQuality((0.84,), step=0.15, block=15),  # 4.9 times faster where t(16) is flat
}
"""Heads to replay: EAGLE-3 (arXiv 2503.01840) trained on much and on little, and DFlash (arXiv
2602.06036), whose rate gives the speedup that its authors have.
"""


class _States(Features):
    """The places of the hidden states of the last tokens that a target has evaluated."""

    def __init__(self, target: TraceModel) -> None:
        super().__init__()
        self._target = target

    @property
    def start(self) -> int:
        """The first position whose states are there."""
        return max(0, self.end - self.most)

    @property
    def end(self) -> int:
        """The position after the last one whose states are there."""
        return self._target.n_past


class HeadModel(TraceModel, Head):
    """A head that guesses recorded answers as often as its quality says, at every depth: a `Head`.

    What it guesses is drawn once for each position of an answer, whatever was drafted before: its
    first choice is the answer's token with a probability that it tells as its confidence; else it
    is the likeliest token that the target recorded beside it. Confidences are spread around the
    rate of that depth, and the deeper the lower. Depth is counted from the end of the text that
    `target` has: what is after it, lookups' tokens included, the head reads with its own states,
    and reads it again once it is accepted. Of a text that it begins later, its cache holds what was
    there before as well, which it did not read.
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
        """The position of its first token in the text."""
        return self._start

    @start.setter
    def start(self, start: int) -> None:
        self._start = start
        self._tokens = self._text[:start]
        self._same = self._n_true = start

    @property
    def n_past(self) -> int:
        """Tokens in the cache."""
        return len(self._tokens) - self._start

    def tell(self, trace: Trace) -> None:
        """Set the answer that comes next."""
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
        """Let the clock run for tokens, and for those to be read again with the target's states; a
        block head has guessed what is after the text already.
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
        """Return the confidence at a position, and which choice is right there."""
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
        """Return the choices of which the one of this rank is right, others the target's."""
        right, n = self._trace.output[position], len(OTHERS) + 1
        choices = [token for token, _ in self._trace.top[position] if token != right][:n]
        choices += range(n - len(choices))
        choices.insert(rank, right)
        return choices[:n]


@functools.cache
def _confidences(rate: float) -> npt.NDArray[np.float64]:
    """Return ascending confidences of equal shares, whose mean is `rate`."""
    mean = (rate - _LEAST) / (1 - _LEAST)
    rng = np.random.default_rng(0)
    drawn = rng.beta(_CONCENTRATION * mean, _CONCENTRATION * (1 - mean), _N_QUANTILES)
    drawn = np.sort(drawn) * (mean / drawn.mean())
    confidences: npt.NDArray[np.float64] = _LEAST + (1 - _LEAST) * np.minimum(drawn, 1)
    return confidences
