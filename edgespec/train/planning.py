"""The plan of a training: what it takes on this device, and whether the head can pay there."""

from __future__ import annotations

import bisect
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .. import kept_files
from ..backends import files
from ..backends.base import FileModel
from ..backends.heads import FINAL
from ..costs.curves import Curve
from ..costs.kept_curves import keep_curve, kept_curve
from ..costs.measuring import QUICK, measure
from ..device import BUSY, LoadMeter
from ..engine import Engine
from ..measure.gains import SHORT_CACHE, speedup
from .features import likeliest_after
from .opening import opened
from .serving import DEPTH, disturbed
from .work import Work

LENGTHS = ((3e3, 1.1), (3e4, 1.46), (1e5, 1.77), (3e5, 1.94), (1.5e8, 2.5))
"""The mean acceptance length to expect after training on so many answer tokens, for prompts of the
same kind and drafts of three tokens: 1.46, 1.77 and 1.94 were measured with SmolLM2-135M
(docs/results/train_smollm2.json), the last one is what others report of 500,000 conversations."""

GOOD = 0.75
"""The share of guesses after right ones that a good head gets right: an acceptance length of 3.2
with drafts of five tokens, more than most published heads reach."""

WANTED_GAIN = 1.15
_GAINS = (1.0 + 1e-9, WANTED_GAIN)
PASS_FLOPS = 6  # operations for each weight, token and step of the training-time test
TRAINED_BYTES = 16  # for each weight: itself, its gradient, and two moments
_HEAD_BYTES = 1.07  # for each weight of a head of 8 bits
_SPEED_PROMPT = "List some things that one can see in a harbour, and say what each is for."
_SPEED_TOKENS = 64


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """The needs of a training on this device, and what to expect of the head.

    n_tokens: the answer tokens to train with. answers_per_s: tokens a second of answers, all slots
    together, while prompts are read as well; features_per_s: of answers, when they are read again;
    training_per_s: of training, an estimate. seconds: the time of each stage. disk, free_disk,
    memory: bytes. break_even, wanted: the mean acceptance length at which drafting is as fast as
    plain decoding, and WANTED_GAIN times as fast; None where no head reaches it. expected: the
    length to expect. good_gain: the speedup with a good head (GOOD). expected_gain: with the
    expected length. others: the cores that other programs used during the measurements, 0 if the
    system does not show it. draft_model: the name of the draft model on this disk with which a load
    of the target would draft, "" for none; draft_length, draft_gain: its acceptance length for a
    few prompts, and its speedup. as_draft, above_draft: the acceptance length at which a head is as
    fast as it, and WANTED_GAIN times as fast.
    """

    n_tokens: int
    answers_per_s: float
    features_per_s: float
    training_per_s: float
    seconds: dict[str, float]
    disk: int
    free_disk: int
    memory: int
    break_even: float | None
    wanted: float | None
    expected: float
    expected_gain: float
    good_gain: float
    others: float = 0.0
    draft_model: str = ""
    draft_length: float = 0.0
    draft_gain: float = 0.0
    as_draft: float | None = None
    above_draft: float | None = None

    @property
    def warning(self) -> str:
        """Say that other programs disturbed the measurements, "" if they did not."""
        return disturbed(self.others, "the plan", "plan again")

    @property
    def wanted_gain(self) -> float:
        """The speedup that `wanted` gives."""
        return WANTED_GAIN

    @property
    def pays(self) -> bool:
        """True if a good head makes this device faster with this target."""
        return self.good_gain > 1

    @property
    def fits(self) -> bool:
        """True if the disk has room for the recordings and hidden states."""
        return self.disk < self.free_disk

    @property
    def sentence(self) -> str:
        """The plan in one sentence."""
        if not self.fits:
            return (
                f"It does not fit: {self.disk / 1e9:.1f} GB of hidden states are needed, and the "
                f"disk has {self.free_disk / 1e9:.1f} GB; give fewer --tokens or another folder."
            )
        if not self.pays:
            return (
                "It does not pay here: even with a good draft, drafting would be "
                f"{self.good_gain:.2f} times as fast as plain decoding on this device."
            )
        minutes, needed = sum(self.seconds.values()) / 60, f"{self.break_even:.2f}"
        hours = f"{minutes / 60:.1f} hours"
        how_long = hours if minutes > 90 else f"{max(1.0, minutes):.0f} minutes"
        return (
            f"In about {how_long} it makes a draft with an expected acceptance length of "
            f"{self.expected:.2f}; this device needs {needed} to be as fast as plain decoding."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the plan for JSON."""
        derived = ("pays", "fits", "sentence", "warning")
        return asdict(self) | {name: getattr(self, name) for name in derived}


class Needs(NamedTuple):
    """The needs of a kind of draft, besides the answers.

    disk, memory: bytes. reading: the name of the stage in which the target reads the answers, ""
    for none. flops: the operations for each token of an answer in one pass of the training, 0 if
    nothing is trained; once: those before the first pass. likeliest: the tokens that the target
    finds likeliest are recorded.
    """

    disk: int
    memory: int
    reading: str = ""
    flops: float = 0.0
    once: float = 0.0
    likeliest: bool = False


def expected_length(n_tokens: float) -> float:
    """Return the mean acceptance length to expect after training on so many answer tokens."""
    x, xs = math.log10(max(n_tokens, 1.0)), [math.log10(n) for n, _ in LENGTHS]
    i = min(max(bisect.bisect(xs, x), 1), len(xs) - 1)
    (x0, x1), (y0, y1) = xs[i - 1 : i + 1], (LENGTHS[i - 1][1], LENGTHS[i][1])
    return max(1.0, y0 + (y1 - y0) * (x - x0) / (x1 - x0))


def length_for(target: Curve, draft: Curve, gain: float) -> float | None:
    """Return the least mean acceptance length of drafts of DEPTH tokens with which drafting is
    `gain` times as fast as plain decoding, at the depth that is best then; None if it is slower
    even if every drafted token is accepted.

    draft: the seconds of the head's guesses.
    """
    for percent in range(1, 101):
        rate = percent / 100
        best, depth = speedup(target, draft, rate)
        if depth and best >= gain:
            return length_of(rate, DEPTH)
    return None


def length_of(rate: float, depth: int) -> float:
    """Return the mean acceptance length of drafts of `depth` tokens if each is accepted with this
    probability after an accepted one.
    """
    return sum(rate**i for i in range(depth + 1))


def rate_of(length: float, depth: int) -> float:
    """Return the acceptance rate that gives drafts of `depth` tokens this acceptance length."""
    rates = [percent / 1000 for percent in range(1001)]
    return next((rate for rate in rates if length_of(rate, depth) >= length), 1.0)


def head_curve(target: Curve, path: Path, n_read: float) -> Curve:
    """Return the expected seconds of a head's guess. Reading weights is what takes time, so a guess
    takes the same share of the target's time for a token as of its bytes.

    target: t(n) of the target in seconds. path: its file. n_read: the weights that a guess reads.
    """
    share = n_read * _HEAD_BYTES / files.size_of(path)
    return Curve((0,), (1,), ((share * target(1, SHORT_CACHE),),))


def make_plan(
    engine: Engine, work: Work, needs: Needs, drafting: Callable[[Curve], Curve],
    expected: Callable[[], float], layers: Sequence[int] | None = None,
    rival: Callable[[Curve], tuple[str, float, float] | None] = lambda _: None,
) -> TrainingPlan:  # fmt: skip
    """Measure this device and return the plan of a training.

    engine: the target with slots, which answers. drafting: returns the expected seconds of a
    drafted token, given t(n) of the target. expected: returns the acceptance length to expect.
    layers: those whose hidden states are recorded; None if none are. rival: given t(n), returns the
    `draft_model` that is there, its length and its gain.

    Raises ConfigError for a target that does not give these states.
    """
    work.progress("measuring what this device needs and takes")
    meter, o, longer = LoadMeter(), work.options, work.longer(engine.tokenizer)
    target, reading, reading_answers = target_speed(work.path, layers, needs.likeliest)
    answers = 1 / (1 / answers_per_s(engine) + (longer - 1) / reading)  # prompts are read as well
    draft, load, n = drafting(target), meter.look(), o.n_tokens
    length, there = expected(), rival(target)
    least = [length_for(target, draft, each * there[2]) if there else None for each in _GAINS]
    seconds = {"answers": max(0, n - work.recordings.n_tokens) / answers}
    if needs.reading:
        seconds[needs.reading] = n * ((longer - 1) / reading + 1 / reading_answers)
    if needs.flops:
        flops = matrix_flops()
        training = flops / needs.flops
        passes_s = 60 * o.minutes or o.passes * n / training
        seconds["training"] = n * needs.once / flops + passes_s
    return TrainingPlan(
        n, answers, reading_answers, training if needs.flops else 0.0, seconds, needs.disk,
        kept_files.free_disk(work.folder), needs.memory,
        length_for(target, draft, _GAINS[0]), length_for(target, draft, _GAINS[1]), length,
        speedup(target, draft, rate_of(length, DEPTH))[0], speedup(target, draft, GOOD)[0],
        load.others if load else 0.0, *(there or ("", 0.0, 0.0)), *least,
    )  # fmt: skip


def answers_per_s(engine: Engine) -> float:
    """Measure how many tokens of answers an engine makes in a second with all its slots."""
    from concurrent.futures import ThreadPoolExecutor

    def answer(number: int) -> int:
        completion = engine.generate(
            _SPEED_PROMPT, max_tokens=_SPEED_TOKENS, seed=number, temperature=1.0
        )
        return len(completion.token_ids)

    with ThreadPoolExecutor(engine.n_slots) as pool:
        began = time.monotonic()
        n = sum(pool.map(answer, range(engine.n_slots)))
        return n / (time.monotonic() - began)


def target_speed(
    path: Path, layers: Sequence[int] | None, likeliest: bool
) -> tuple[Curve, float, float]:  # fmt: skip
    """Return t(n) of a target, measured now unless it is known, and the tokens a second at which it
    reads prompts and answers, giving the hidden states of these layers and the final ones, or none.

    likeliest: of answers it also gives the likeliest tokens.

    Raises ConfigError for a target that does not give these states.
    """
    wanted = () if layers is None else (*layers, FINAL)
    with opened(path) as target:
        target.tap(wanted)  # raises before anything takes time
        target.tap(())
        curve = curve_of(target)
        target.tap(wanted)
        reading = reading_per_s(target, 256, target.decode)
        if not likeliest:
            return curve, reading, reading
        return curve, reading, reading_per_s(target, 64, lambda ids: likeliest_after(target, ids))


def curve_of(model: FileModel) -> Curve:
    """Return t(n) of a model, measured now unless it is known.

    Times that were measured while other programs ran are neither used nor kept.
    """
    curve = kept_curve(model, quiet=True)
    if curve is None:
        meter = LoadMeter()
        curve = measure(model, widths=QUICK)
        load = meter.look()
        if load is None or load.others <= BUSY:
            keep_curve(model, curve)
    return curve


def reading_per_s(model: FileModel, n: int, read: Callable[[list[int]], object]) -> float:
    """Measure how many tokens a second a model reads, with `n` tokens. read: evaluates them."""
    model.truncate(0)
    began = time.monotonic()
    read([5] * n)
    return n / (time.monotonic() - began)


def matrix_flops() -> float:
    """Measure how many operations a second this device does in products of float32 matrices."""
    a, b = np.ones((512, 576), np.float32), np.ones((576, 4096), np.float32)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        a @ b
        times.append(time.perf_counter() - began)
    return float(2 * a.size * b.shape[1] / min(times))
