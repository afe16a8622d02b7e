"""Measures a head where it is used: acceptance and speed, served by edgespec itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..decoding.kept import forget_learned, keep_acceptance
from ..device import BUSY, LoadMeter
from ..engine import Engine
from ..loading.models import model_path
from ..types import Completion
from .answers import LOOP
from .formats import acceptance
from .gently import Pauses
from .opening import loaded

DEPTH = 3  # tokens of a draft whose acceptance is measured
FIXED: dict[str, Any] = {
    "method": "draft_model", "num_speculative_tokens": DEPTH, "draft_p_min": 0.0,
    "draft_memory": "off",
}  # fmt: skip
"""The settings with which each step drafts as many tokens, as in the simulation."""

_RESAMPLES = 2000
_SETTINGS: dict[str, Any] = {"temperature": 0.0, "repetition_detection": LOOP}


@dataclass(frozen=True, slots=True)
class ServedHead:
    """The acceptance and the speed of a head, measured with its target.

    n_answers, n_tokens: the greedy answers that were made with drafts of DEPTH tokens, fewer at the
    end of an answer, as acceptance_length and acceptance: the share of drafts of which the token at
    each place was accepted. texts_equal: the share of answers that are the same as without drafts.
    gain: the speedup with the adaptive policy over plain decoding, for the same prompts in turns,
    and gain_low, gain_high: its 95% interval from a bootstrap over prompts (percentiles). answers:
    for each answer with these drafts, the number of drafts and how often the token at each place
    was accepted; equal: whether its text is the same as without drafts. intervals: the 95% interval
    of the acceptance at each place, from a bootstrap over answers. others: the cores that other
    programs used while the speed was measured, 0 if the system does not show it.
    """

    n_answers: int
    n_tokens: int
    acceptance_length: float
    acceptance: tuple[float, ...]
    texts_equal: float
    gain: float
    gain_low: float
    gain_high: float
    answers: tuple[tuple[int, ...], ...] = ()
    equal: tuple[bool, ...] = ()
    intervals: tuple[tuple[float, float], ...] = ()
    others: float = 0.0

    @property
    def warning(self) -> str:
        """Say that other programs disturbed the measurement of the speed, "" if they did not."""
        return disturbed(self.others, "the speed", "measure it again (--check)")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and the warning for JSON."""
        return asdict(self) | {"warning": self.warning}


def disturbed(others: float, what: str, again: str) -> str:
    """Say that a measurement is not reliable, and how to repeat it. Return "" if it is reliable.

    others: the cores that other programs used meanwhile. what: the thing that was measured.
    """
    if others <= BUSY:
        return ""
    return (
        f"Other programs used {others:.1f} cores meanwhile, so {what} is not reliable: {again} "
        "while nothing else runs."
    )


def serve(
    target: Path,
    head: Path,
    prompts: Sequence[tuple[Sequence[int], int]],
    pauses: Pauses,
    *,
    is_new: bool = False,
) -> ServedHead:
    """Answer prompts with a head and without it, and return how it did.

    prompts: the token ids of each, and the most tokens of its answer. is_new: forget what was
    learned of the head before; later loads begin with the acceptance that is learned here.
    """
    with loaded(target, head, **FIXED) as engine:
        plain, drafted = [], []
        for i, (prompt, n) in enumerate(prompts, 1):
            pauses.wait()
            pauses.progress(f"acceptance of the draft: answer {i} of {len(prompts)}")
            # the head's answer comes first: a prompt that the cache has may lack hidden states
            drafted.append(engine.generate(prompt, max_tokens=n, **_SETTINGS))
            plain.append(
                engine.generate(prompt, max_tokens=n, disable_spec_decode=True, **_SETTINGS)
            )
    remember, path = "rates" if is_new else "nothing", model_path(head)
    if is_new:
        forget_learned(path)
    with loaded(
        target, head, method="draft_model", remember=remember, draft_memory="off"
    ) as engine:  # fmt: skip
        pauses.progress("measuring the costs of the draft")
        engine.measure()
        ratios, others = _ratios(engine, prompts, pauses)
    if is_new:
        keep_acceptance(target, path, path)
    gains = np.exp(np.log(ratios)[resampled(len(ratios))].mean(1))  # geometric means
    answers = [counted(each) for each in drafted]
    length, shares = acceptance(answers)
    equal = tuple(a.token_ids == b.token_ids for a, b in zip(plain, drafted, strict=True))
    return ServedHead(
        len(drafted), sum(len(each.token_ids) for each in drafted), length, shares,
        float(np.mean(equal)), float(gains[0]), *interval(gains), tuple(answers), equal,
        tuple(map(interval, shares_of(answers).T)), others,
    )  # fmt: skip


def counted(answer: Completion) -> tuple[int, ...]:
    """Return the number of steps with a draft, and how many of them accepted the token at each of
    its DEPTH places.
    """
    accepted = (*answer.stats.accepted_per_position, *[0] * DEPTH)[:DEPTH]
    return answer.stats.num_draft_steps, *accepted


def _ratios(
    engine: Engine, prompts: Sequence[tuple[Sequence[int], int]], pauses: Pauses
) -> tuple[list[float], float]:  # fmt: skip
    """Return for each prompt how many times as fast it was answered with the head, and how many
    cores other programs used meanwhile.
    """
    ratios, meter, used, watched = [], LoadMeter(), 0.0, 0.0  # core seconds, seconds
    for i, (prompt, n) in enumerate(prompts):
        pauses.wait()
        pauses.progress(f"speed with the draft: answer {i + 1} of {len(prompts)}")
        engine.generate(prompt, max_tokens=1)  # both find it in the cache, with hidden states
        rates, seconds = {}, 0.0
        meter.look()
        for plain in (True, False) if i % 2 else (False, True):
            began = time.perf_counter()
            done = engine.generate(prompt, max_tokens=n, disable_spec_decode=plain, **_SETTINGS)
            took = time.perf_counter() - began
            rates[plain], seconds = len(done.token_ids) / took, seconds + took
        ratios.append(rates[False] / rates[True])
        if load := meter.look():
            used, watched = used + load.others * seconds, watched + seconds
    return ratios, used / watched if watched else 0.0


def interval(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the 95% interval of a value, which is known for each time of a bootstrap."""
    low, high = np.percentile(values[np.isfinite(values)], (2.5, 97.5))
    return float(low), float(high)


def shares_of(
    answers: Sequence[Sequence[int]] | npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    """Return the acceptance at each place each time of a bootstrap, [resamples, places]. answers:
    what `counted` returns for each.
    """
    sums = np.array(answers, float)[resampled(len(answers))].sum(1)
    return np.asarray(sums[:, 1:] / np.maximum(sums[:, :1], 1))


def resampled(n: int, seed: int = 0) -> npt.NDArray[np.int64]:
    """Return which of `n` answers a bootstrap takes, [resamples, n]; the first time all of them."""
    chosen = np.random.default_rng(seed).integers(n, size=(_RESAMPLES, n))
    chosen[0] = np.arange(n)
    return chosen
