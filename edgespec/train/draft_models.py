"""Draft models that are changed for a target: their choice, and the plan for it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config import EngineConfig
from ..costs.curves import Curve
from ..device import LoadMeter
from ..engine import Engine
from ..errors import ConfigError
from ..loading.companions import found
from ..loading.load import load
from ..loading.models import is_head, model_path, open_model
from ..loading.trained import trained_for
from ..measure.gains import SHORT_CACHE, speedup
from .answers import N_CTX
from .planning import (
    GOOD,
    LONGER,
    WANTED_GAIN,
    TrainingPlan,
    answers_per_s,
    curve_of,
    free_disk,
    length_for,
    rate_of,
    reading_per_s,
)
from .serving import DEPTH
from .work import Work

PROBABILITIES = "probabilities"
"""The stage in which the target reads the answers."""

_N_QUESTIONS, _N_TOKENS = 3, 48  # for the acceptance length before anything is changed


def draft_model(work: Work, suffix: str, why: str) -> Path:
    """Return the draft model that the options name, or else the one on this disk that a load of
    the target would take, but none that was trained here. Its file has this suffix.

    why: why another file cannot be taken. Raises ConfigError for a head or a file with another
    suffix, and if there is none.
    """
    given = work.options.start
    if given is None:
        trained = set(trained_for(work.path))  # drafts that earlier trainings have made
        known = [each.path for each in found(work.target, work.path) if each.role == "sibling"]
        if fitting := [each for each in known if each.suffix == suffix and each not in trained]:
            return fitting[0]
        raise ConfigError(
            f"there is no draft model for {work.path.name} on this disk as {suffix} to begin with; "
            "name one: --from MODEL, or start=… in Python"
        )
    path = model_path(os.fspath(given))
    if is_head(path):
        raise ConfigError(f"{path} is a head, not a draft model; name a model of the same family")
    if path.suffix != suffix:
        raise ConfigError(f"{path} is no {suffix} file: {why}")
    return path


def make_plan(
    engine: Engine, work: Work, draft: Path, stages: Mapping[str, float], disk: int, memory: int,
    share: float = 1.0,
) -> TrainingPlan:  # fmt: skip
    """Measure this device and return the plan.

    engine: the target with slots, which answers. draft: a file of a draft model. stages: for each
    stage after the answers, the seconds; a stage named PROBABILITIES is measured. The expected
    acceptance length is the present one, which is measured with a few prompts. share: the expected
    time of a drafted token as a share of the present one.
    """
    meter = LoadMeter()
    answers = answers_per_s(engine)
    with contextlib.closing(open_model(work.path, EngineConfig(n_ctx=512))) as target:
        curve, reading = curve_of(target), reading_per_s(target)
    with contextlib.closing(open_model(draft, EngineConfig(n_ctx=512))) as model:
        own = Curve((0,), (1,), ((share * curve_of(model)(1, SHORT_CACHE),),))
    others = meter.look()
    length = present_length(work, draft)
    o, done = work.options, work.recordings.n_tokens
    seconds = {"answers": max(0, o.n_tokens - done) / answers} | dict(stages)
    if PROBABILITIES in seconds:
        seconds[PROBABILITIES] = LONGER * o.n_tokens / reading
    training = o.n_tokens / seconds["training"] if seconds.get("training") else 0.0
    return TrainingPlan(
        o.n_tokens, answers, reading, training, seconds, disk, free_disk(work.folder), memory,
        length_for(curve, own, 1.0 + 1e-9), length_for(curve, own, WANTED_GAIN), length,
        speedup(curve, own, rate_of(length, DEPTH))[0], speedup(curve, own, GOOD)[0],
        others.others if others else 0.0,
    )  # fmt: skip


def present_length(work: Work, draft: Path) -> float:
    """Measure the acceptance length of a draft model with a few of the prompts."""
    from ..chat.encoder import ConversationEncoder

    fixed = {"method": "draft_model", "num_speculative_tokens": DEPTH, "draft_p_min": 0.0}
    options: dict[str, Any] = {"n_ctx": N_CTX, "n_slots": 1, "prompt_cache": "off"}
    with load(work.path, draft, speculative_config=fixed, **options) as engine:
        encoder = ConversationEncoder(engine.tokenizer)
        steps = accepted = 0
        for messages in work.prompts[:_N_QUESTIONS]:
            prompt = encoder.encode(encoder.render(messages), continues=True)
            stats = engine.generate(prompt, max_tokens=_N_TOKENS, temperature=0.0).stats
            steps += stats.num_draft_steps
            accepted += sum(stats.accepted_per_position)
    return 1 + accepted / max(1, steps)
