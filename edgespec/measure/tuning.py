"""Tuning: the settings that are fastest on this device, kept for later loads."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import backends
from ..backends import files
from ..backends.base import FileModel
from ..config import EngineConfig, build
from ..costs.curves import Curve
from ..costs.measuring import READING, WIDTHS, measure
from ..costs.profiles import Profile, keep, store
from ..device import BUSY, LoadMeter, other_load
from ..loading.drafts import draft_path, load_draft
from ..loading.models import Reference, model_path, open_model
from ..loading.tuned import explicit, tuned_options, tuning_key
from .formats import Format, compare, formats, recommend
from .gains import SHORT_CACHE
from .results import Choice, Tuning
from .search import PROMPT_TOKENS, chosen_options, search

logger = logging.getLogger("edgespec.measure.tuning")

LONG_CACHES = (1024, 512, 256)  # tokens in the cache where t(n) is measured too, if time allows
_SEARCH = 0.8  # of the time is for loading and searching; the rest is for measuring


def tune(
    model: Reference,
    draft: Reference | None = "auto",
    *,
    draft_options: Mapping[str, Any] | None = None,
    budget_s: float = 25.0,
    keep_busy: bool = False,
    progress: Callable[[str], None] = logger.info,
    **options: Any,
) -> Tuning:
    """Search settings and measure t(n) on this device; `load` uses what is found.

    Arguments are those of `load`: an option that is given is kept and not searched. budget_s:
    about how long loading, searching and measuring may take; settings for which there is no time
    are not tried. progress: is told what is done now. A model of the catalogue that is on disk
    as GGUF and as ONNX has its files compared afterwards. Nothing is kept that was measured while
    other programs used the CPUs, unless keep_busy: they will go on, and the device is as it is.
    Raises as `load`.
    """
    start, meter = time.perf_counter(), LoadMeter()
    config = build(EngineConfig, options)
    path, wanted = model_path(model), draft_path(model, draft, config)
    fixed = explicit(options)
    if (busy := other_load() or 0.0) > BUSY:
        told = "it is kept all the same" if keep_busy else "nothing is kept until they have stopped"
        progress(f"other programs use {busy:.1f} cores: {told}")
    progress(f"loading {files.label(path)}")
    opening = time.perf_counter()
    target, draft_model = open_model(path, config), None
    loading_s = time.perf_counter() - opening
    try:
        if wanted:
            progress(f"loading {files.label(wanted)}")
        draft_model = load_draft(wanted, config, draft_options or {}, target, make_copy=True)
        choices = search(target, fixed, loading_s, start + _SEARCH * budget_s, progress)
        if chosen := chosen_options(choices, target):
            progress("loading again with the chosen settings")
            _close(target, draft_model)
            target = open_model(path, replace(config, **chosen))
            draft_model = load_draft(wanted, replace(config, **chosen), draft_options or {}, target)
        profile = _measure(target, draft_model, choices, start + budget_s, progress)
    finally:
        _close(target, draft_model)
    load = meter.look()
    others = load.others if load else None
    where = None
    if keep_busy or others is None or others <= BUSY:
        before = tuned_options(path, config)
        kept = {name: before[name] for name in before if name in fixed} | chosen
        where = _keep(profile, tuning_key(path, config), kept)
    taken = time.perf_counter() - start
    found = _compare_formats(model, config, progress, options)
    return Tuning(
        files.label(path), files.label(draft_model.path) if draft_model else None, tuple(choices),
        chosen, profile, taken, where, tuple(found), recommend(found) if found else "",
        others,
    )  # fmt: skip


def _keep(profile: Profile, key: Mapping[str, Any], options: Mapping[str, Any]) -> Path | None:
    """Keep what was measured and chosen; return the file of the choice, None without any."""
    for fingerprint, curve in zip(profile.kept_as, (profile.target, profile.draft), strict=False):
        assert curve
        store(fingerprint, curve)
    return keep(key, {"options": options})


def _close(*models: FileModel | None) -> None:
    for model in models:
        if model:
            model.close()


def _compare_formats(
    model: Reference,
    config: EngineConfig,
    progress: Callable[[str], None],
    given: Mapping[str, Any],
) -> list[Format]:
    """Measure every file of a model that is there both as GGUF and as ONNX."""
    there = formats(os.fspath(model))
    if len({backends.name_of(path) for _, path in there}) < 2:
        return []
    found = compare(there, config, progress, given)
    return found if len(found) > 1 else []


def _measure(
    target: FileModel,
    draft: FileModel | None,
    choices: Sequence[Choice],
    end: float,
    progress: Callable[[str], None],
) -> Profile:
    """Measure t(n) of both, also with the longest cache that there is time for."""
    progress(f"measuring {files.label(target.path)}")
    curve = measure(target, widths=WIDTHS, lengths=(SHORT_CACHE,))
    drafting = None
    if draft:
        progress(f"measuring {files.label(draft.path)}")
        drafting = measure(draft, widths=READING, lengths=(SHORT_CACHE,), budget_s=1)
    left = end - time.perf_counter()
    if length := _affordable(target.n_ctx, curve, seconds_per_prompt_token(choices, curve), left):
        progress(f"measuring {files.label(target.path)} after {length} tokens")
        more = measure(target, widths=WIDTHS, lengths=(length,), budget_s=left)
        curve = Curve((SHORT_CACHE, length), curve.widths, curve.seconds + more.seconds)
    kept_as = tuple(model.fingerprint() for model in (target, draft) if model)
    return Profile(curve, drafting, kept_as=kept_as)


def _affordable(n_ctx: int, curve: Curve, reading_s: float, left: float) -> int | None:
    """Return the longest cache that can be filled and measured once in the seconds left."""
    widths = 1.2 * sum(curve.seconds[0])
    fitting = (n for n in LONG_CACHES if 2 * n <= n_ctx and n * reading_s + widths < left)
    return next(fitting, None)


def seconds_per_prompt_token(choices: Sequence[Choice], curve: Curve) -> float:
    """Return the time of a prompt token, by what was tried or by the widest evaluation measured."""
    for choice in choices:
        tried = [c.ms for c in choice.candidates if c.n_repetitions]
        if choice.setting == "n_threads_batch" and tried:
            return min(tried) / 1e3 / PROMPT_TOKENS
    return curve.seconds[0][-1] / curve.widths[-1]
