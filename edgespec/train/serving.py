"""Measures a head where it is used: acceptance and speed, served by edgespec itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..engine import Engine
from ..types import Completion
from .answers import LOOP
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
    was accepted; equal: whether its text is the same as without drafts.
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

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return asdict(self)


def serve(
    target: Path, head: Path, prompts: Sequence[tuple[Sequence[int], int]], pauses: Pauses
) -> ServedHead:
    """Answer prompts with a head and without it, and return how it did.

    prompts: the token ids of each, and the most tokens of its answer.
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
    with loaded(
        target, head, method="draft_model", remember="nothing", draft_memory="off"
    ) as engine:  # fmt: skip
        pauses.progress("measuring the costs of the draft")
        engine.measure()
        ratios = _ratios(engine, prompts, pauses)
    answers = [counted(each) for each in drafted]
    length, shares = acceptance(answers)
    equal = tuple(a.token_ids == b.token_ids for a, b in zip(plain, drafted, strict=True))
    return ServedHead(
        len(drafted), sum(len(each.token_ids) for each in drafted), length, shares,
        float(np.mean(equal)), *_interval(ratios), tuple(answers), equal,
    )  # fmt: skip


def counted(answer: Completion) -> tuple[int, ...]:
    """Return the number of steps with a draft, and how many of them accepted the token at each of
    its DEPTH places.
    """
    accepted = (*answer.stats.accepted_per_position, *[0] * DEPTH)[:DEPTH]
    return answer.stats.num_draft_steps, *accepted


def acceptance(counts: Sequence[Sequence[int]]) -> tuple[float, tuple[float, ...]]:
    """Return the mean acceptance length of some answers, and the acceptance at each place. counts:
    what `counted` returns for each answer.
    """
    steps, *accepted = np.array(counts).sum(0).tolist()
    shares = tuple(n / max(1, steps) for n in accepted)
    return 1 + sum(shares), shares


def _ratios(
    engine: Engine, prompts: Sequence[tuple[Sequence[int], int]], pauses: Pauses
) -> list[float]:  # fmt: skip
    """Return for each prompt how many times as fast it was answered with the head."""
    ratios = []
    for i, (prompt, n) in enumerate(prompts):
        pauses.wait()
        pauses.progress(f"speed with the draft: answer {i + 1} of {len(prompts)}")
        engine.generate(prompt, max_tokens=1)  # both find it in the cache, with hidden states
        rates = {}
        for plain in (True, False) if i % 2 else (False, True):
            began = time.perf_counter()
            done = engine.generate(prompt, max_tokens=n, disable_spec_decode=plain, **_SETTINGS)
            rates[plain] = len(done.token_ids) / (time.perf_counter() - began)
        ratios.append(rates[False] / rates[True])
    return ratios


def _interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Return the geometric mean of ratios, and its 95% interval."""
    means = np.exp(np.log(ratios)[resampled(len(ratios))].mean(1))
    low, high = np.percentile(means, (2.5, 97.5))
    return float(means[0]), float(low), float(high)


def resampled(n: int, seed: int = 0) -> npt.NDArray[np.int64]:
    """Return which of `n` answers a bootstrap takes, [resamples, n]; the first time all of them."""
    chosen = np.random.default_rng(seed).integers(n, size=(_RESAMPLES, n))
    chosen[0] = np.arange(n)
    return chosen
