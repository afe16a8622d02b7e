"""Measures a head where it is used: acceptance and speed, served by edgespec itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..config import RepetitionDetection
from ..engine import Engine
from ..loading.load import load
from ..types import Completion
from .gently import Pauses

DEPTH = 3  # tokens of a draft whose acceptance is measured
_RESAMPLES = 2000
_N_CTX = 1024


@dataclass(frozen=True, slots=True)
class ServedHead:
    """The acceptance and the speed of a head, measured with its target.

    n_answers, n_tokens: the greedy answers that were made with drafts of DEPTH tokens, fewer at the
    end of an answer, as acceptance_length and acceptance: the share of drafts of which the token at
    each place was accepted. texts_equal: the share of answers that are the same as without drafts.
    gain: the speedup with the adaptive policy over plain decoding, for the same prompts in turns,
    and gain_low, gain_high: its 95% interval from a bootstrap over prompts (percentiles). answers:
    for each answer with these drafts, the number of steps and of accepted tokens.
    """

    n_answers: int
    n_tokens: int
    acceptance_length: float
    acceptance: tuple[float, ...]
    texts_equal: float
    gain: float
    gain_low: float
    gain_high: float
    answers: tuple[tuple[int, int], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return asdict(self)


def serve(
    target: Path,
    head: Path,
    prompts: Sequence[tuple[Sequence[int], int]],
    pauses: Pauses,
    *,
    loop: RepetitionDetection,
) -> ServedHead:
    """Answer prompts with a head and without it, and return how it did.

    prompts: the token ids of each, and the most tokens of its answer. loop: the rule that ends
    answers that repeat themselves.
    """
    settings = {"temperature": 0.0, "repetition_detection": loop}
    common: dict[str, Any] = {"n_ctx": _N_CTX, "n_slots": 1, "prompt_cache": "off"}
    fixed = {
        "method": "draft_model", "num_speculative_tokens": DEPTH, "draft_p_min": 0.0,
        "draft_memory": "off",
    }  # fmt: skip
    with load(target, head, speculative_config=fixed, **common) as engine:
        plain, drafted = [], []
        for i, (prompt, n) in enumerate(prompts, 1):
            pauses.wait()
            pauses.progress(f"acceptance of the draft: answer {i} of {len(prompts)}")
            # the head's answer comes first: a prompt that the cache has may lack hidden states
            drafted.append(engine.generate(prompt, max_tokens=n, **settings))
            plain.append(
                engine.generate(prompt, max_tokens=n, disable_spec_decode=True, **settings)
            )
    adaptive = {"method": "draft_model", "remember": "nothing", "draft_memory": "off"}
    with load(target, head, speculative_config=adaptive, **common) as engine:
        pauses.progress("measuring the costs of the draft")
        engine.measure()
        ratios = _ratios(engine, prompts, settings, pauses)
    steps, accepted = _counted(drafted)
    gain, low, high = _interval(ratios)
    equal = [a.token_ids == b.token_ids for a, b in zip(plain, drafted, strict=True)]
    return ServedHead(
        len(drafted), sum(len(each.token_ids) for each in drafted), 1 + sum(accepted) / steps,
        tuple(n / steps for n in accepted), float(np.mean(equal)), gain, low, high,
        tuple((steps, sum(accepted)) for steps, accepted in map(_counted, ([a] for a in drafted))),
    )  # fmt: skip


def _counted(answers: Sequence[Completion]) -> tuple[int, list[int]]:
    """Return the number of steps with a draft, and how many of them accepted the token at each
    place of it.
    """
    steps, accepted = 0, [0] * DEPTH
    for each in answers:
        steps += each.stats.num_draft_steps
        for place, n in enumerate(each.stats.accepted_per_position[:DEPTH]):
            accepted[place] += n
    return max(1, steps), accepted


def _ratios(
    engine: Engine, prompts: Sequence[tuple[Sequence[int], int]], settings: dict[str, Any],
    pauses: Pauses,
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
            done = engine.generate(prompt, max_tokens=n, disable_spec_decode=plain, **settings)
            rates[plain] = len(done.token_ids) / (time.perf_counter() - began)
        ratios.append(rates[False] / rates[True])
    return ratios


def _interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Return the geometric mean of ratios, and its 95% interval."""
    logs, random = np.log(ratios), np.random.default_rng(0)
    means = random.choice(logs, (_RESAMPLES, len(logs))).mean(1)
    low, high = np.exp(np.percentile(means, (2.5, 97.5)))
    return float(np.exp(logs.mean())), float(low), float(high)
