"""Draft models that are changed for a target: their choice, and the plan for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..backends import files
from ..convert.conversion import holds_weights
from ..convert.heads.config import read_config
from ..costs.curves import Curve
from ..engine import Engine
from ..errors import ConfigError
from ..loading.companions import found
from ..loading.models import is_head, model_path
from ..loading.trained import trained_for
from ..measure.gains import SHORT_CACHE, speedup
from ..named_files import expanded
from .answers import prompt_ids
from .formats import acceptance
from .opening import loaded, opened
from .planning import Needs, TrainingPlan, curve_of, make_plan, rate_of
from .serving import DEPTH, FIXED, counted
from .work import Work

_MODELS = ("ForCausalLM", "ForConditionalGeneration")
_N_QUESTIONS, _N_TOKENS = 3, 48  # for the acceptance length before anything is changed


def draft_model(work: Work, suffix: str, why: str) -> Path:
    """Return the draft model that the options name, or else the one on this disk that a load of
    the target would take, but none that was trained here. Its file has this suffix.

    why: why another file cannot be taken. Raises ConfigError for a head or a file with another
    suffix, and if there is none.
    """
    given = work.options.start
    if given is None:
        if there := siblings(work, suffix):
            return there[0]
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


def checkpoint(work: Work) -> Path | None:
    """Return the folder of the checkpoint that the options name, None if they name none. Raises
    ConfigError for that of a head.
    """
    folder = expanded(work.options.start or "")
    if not work.options.start or not holds_weights(folder):
        return None
    names = read_config(folder).architectures
    if not any(each.endswith(_MODELS) for each in names):
        raise ConfigError(
            f"{folder} holds {', '.join(names) or 'no model that its config.json names'}; name the "
            f"checkpoint of a small model (…{_MODELS[0]}) with the target's tokenizer"
        )
    return folder


def siblings(work: Work, suffix: str = "") -> list[Path]:
    """Return the draft models on this disk that a load of the target would take, best first, but
    none that was trained here. suffix: of the file, "" for any.
    """
    trained = trained_for(work.path)
    known = [each.path for each in found(work.target, work.path) if each.role == "sibling"]
    return [each for each in known if suffix in ("", each.suffix) and each not in trained]


def plan_of_draft(
    engine: Engine, work: Work, draft: Path, needs: Needs, share: float = 1.0
) -> TrainingPlan:  # fmt: skip
    """Measure this device and return the plan. The expected acceptance length is the present one,
    which is measured with a few prompts.

    engine: the target with slots, which answers. draft: a file of a draft model. share: the
    expected time of a drafted token as a share of the present one.
    """
    return make_plan(
        engine, work, needs, lambda _: _tokens(draft, share), lambda: present_length(work, draft)
    )


def rival(work: Work, target: Curve) -> tuple[str, float, float] | None:
    """Return the name of the draft model with which a load of the target would draft now, its
    acceptance length for a few prompts, and its speedup; None if there is none.

    target: t(n) of the target.
    """
    if not (there := siblings(work)):
        return None
    length = present_length(work, there[0])
    gain, _ = speedup(target, _tokens(there[0]), rate_of(length, DEPTH))
    return files.label(there[0]), length, gain


def _tokens(draft: Path, share: float = 1.0) -> Curve:
    """Return the seconds of a drafted token, or a share of them."""
    with opened(draft) as model:
        return Curve((0,), (1,), ((share * curve_of(model)(1, SHORT_CACHE),),))


def present_length(work: Work, draft: Path) -> float:
    """Measure the acceptance length of a draft model with a few of the prompts."""
    with loaded(work.path, draft, **FIXED) as engine:
        prompts = [prompt_ids(engine.tokenizer, each) for each in work.prompts[:_N_QUESTIONS]]
        settings: dict[str, Any] = {"max_tokens": _N_TOKENS, "temperature": 0.0}
        return acceptance([counted(engine.generate(each, **settings)) for each in prompts])[0]
