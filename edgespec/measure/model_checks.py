"""Checks of a model on this device: its size, its placement, its threads and its costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from .. import hub
from ..advice import command
from ..backends.base import FileModel, share_on_gpu
from ..config import EngineConfig
from ..costs.measuring import WIDTHS, timed
from ..device import available_memory, thread_counts
from ..errors import ConfigError, EdgeSpecError
from ..loading.drafts import draft_path
from ..loading.models import Reference, model_path, open_model
from ..loading.tuned import tuned_options
from ..types import Abort
from .budget import Budget
from .draft_checks import check_draft
from .findings import Finding, count, gib
from .inspection import ModelInfo, inspect
from .interleaving import decide, interleave
from .profile_checks import check_profile, check_verdict, check_widening

HOT = 0.7  # temperatures above this lower acceptance
_FAR = 3  # a number of threads 3 times as fast as the present one is used from then on
_READ_PER_S = 50_000_000  # bytes of a file that may be read, for each second of the budget
_THREADS_S = 3.0  # seconds that trying numbers of threads may take


def check_model(
    model: Reference,
    draft: Reference | None,
    config: EngineConfig,
    draft_options: Mapping[str, Any],
    given: Mapping[str, Any],
    temperature: float,
    budget: Budget,
    busy: bool,
) -> Iterator[Finding]:
    """Yield findings about a model and its draft. The finding with the subject VERDICT comes as
    soon as it is known.

    The arguments are those of `diagnose`. given: the options that the user gave, which override
    what `tune` has chosen. busy: other programs use the CPUs. Raises ConfigError for impossible
    options.
    """
    tune = command("tune", model, draft)
    try:
        info = inspect(model, config.mmproj)
        yield _check_file(info)
        yield from _check_known(Path(info.path), budget)
        yield from check_size(info, config, available_memory())
        path = model_path(model)
        config = replace(config, **tuned_options(path, config, given))
        target = open_model(path, config)
    except ConfigError:
        raise
    except EdgeSpecError as error:
        yield Finding("problem", "model", str(error), broken=True)
        return
    try:
        yield _check_placement(target)
        yield check_pictures(info, target)
        yield from check_single_tokens(target)
        if target.capabilities.threads:
            yield _check_threads(target, budget.part(_THREADS_S), tune, busy)
        finding, curve = check_profile(target, WIDTHS, budget, tune)
        yield check_verdict(curve)
        yield finding
        if curve:
            yield check_widening(curve, info, target)
            wanted = draft_path(model, draft, config)
            yield from check_draft(
                wanted, model, target, curve, config, draft_options, budget, tune
            )
        yield from check_temperature(temperature)
    except ConfigError:
        raise
    except EdgeSpecError as error:
        yield Finding("problem", "draft", str(error), broken=True)
    finally:
        target.close()


def _check_file(info: ModelInfo) -> Finding:
    size, layers = f"{info.file_size / 1e9:.2f} GB", count(info.n_layer, "layer")
    text = f"{info.name}, {info.architecture}, {info.quantisation}, {size}, {layers}"
    return Finding("ok", "model", text)


def _check_known(path: Path, budget: Budget) -> Iterator[Finding]:
    """Yield a finding that compares a file with the catalogue's file of the same size or name, if
    there is one. A large file is not read, because that would take much of the budget.
    """
    if not path.is_file() or path.stat().st_size > _READ_PER_S * budget.left:
        return
    text = hub.comparison(path)
    if text.startswith("same"):
        yield Finding("ok", "catalogue", text)
    elif text:
        remedy = f"if it answers badly, delete {path} and fetch it again with `edgespec pull`"
        yield Finding("note", "catalogue", text, remedy)


def check_size(info: ModelInfo, config: EngineConfig, free: int) -> Iterator[Finding]:
    """Yield a finding if the weights and the KV cache hardly fit into memory, and for a model that
    sees pictures in any case. free: bytes.
    """
    n_ctx = config.n_ctx or min(info.n_ctx_train, hub.N_CTX)
    needed = info.memory(n_ctx)
    what = "the model and its projector" if info.projector else "the model"
    text = f"{what} with a context of {n_ctx}: about {gib(needed)} needed, {gib(free)} free"
    if free < 1.2 * needed:
        quantised = "" if info.engine else "a quantised cache (-ctk q8_0 -ctv q8_0 -fa on) "
        blind = "no pictures (--mmproj none) " if info.projector else ""
        remedy = f"take a smaller context (-c), {quantised}{blind}or a smaller file"
        yield Finding("problem" if free < needed else "note", "memory", text, remedy)
    elif info.projector:
        yield Finding("ok", "memory", text)


def _check_placement(model: FileModel) -> Finding:
    went = ", ".join(f"{name} {size}" for name, size in model.placement.items())
    if 0 < share_on_gpu(model.placement) < 1:
        remedy = "free memory on the GPU, or take a smaller context or quantisation"
        return Finding("note", "placement", f"not all layers are on the GPU: {went}", remedy)
    return Finding("ok", "placement", went)


def check_pictures(info: ModelInfo, model: FileModel) -> Finding:
    """Return a finding that says whether the model sees pictures, and with which projector."""
    if model.eyes and info.projector:
        facts = replace(info.projector, most_tokens=model.eyes.most_tokens)
        text = f"it sees with {facts.in_words()}, {facts.size / 1e9:.2f} GB"
        return Finding("ok", "pictures", text)
    if not info.why_blind:
        return Finding("ok", "pictures", model.why_blind)
    remedy = "fetch the projector that was published with the model, or name it (--mmproj)"
    return Finding("problem", "pictures", model.why_blind, remedy)


def check_single_tokens(model: FileModel) -> Iterator[Finding]:
    """Yield a note if a single token is evaluated as two, to use the kernel that drafts use."""
    if model.capabilities.min_tokens < 2:
        return
    remedy = (
        "leave --batch-invariant out where drafts may decide near ties"
        if model.config.batch_invariant
        else "convert the model with --accuracy-level 1, or decode with --spec-type none"
    )
    yield Finding(
        "note", "kernels", f"single tokens are {model.placement['single tokens']}", remedy
    )


def _check_threads(model: FileModel, budget: Budget, tune: str, busy: bool) -> Finding:
    """Compare the present number of threads with those that `tune` tries. Advise a different number
    only if `tune` would choose it.

    A number that is far faster is used from now on, because further measurements would take many
    times as long with the others.
    """
    now = model.n_threads
    counts = [now, *(n for n in thread_counts(model.config.max_cores) if n != now)]

    def seconds(n: int, abort: Abort) -> float:
        model.set_threads(n, model.n_threads_batch)
        timed(model, 1, budget.clock, abort)
        return timed(model, 1, budget.clock, abort)

    times = interleave([partial(seconds, n) for n in counts], budget)
    model.set_threads(now, model.n_threads_batch)
    known = [(n, count(n, "thread")) for n in counts]
    choice = decide("n_threads", "one token", known, times, busy=busy)
    usual, *others = choice.candidates
    tried = [each for each in others if each.n_repetitions]
    best = min(tried, key=lambda each: each.ms, default=usual)
    if best.ms < usual.ms / _FAR:
        model.set_threads(best.value, best.value)
    if choice.chosen != now:
        chosen = next(each for each in tried if each.value == choice.chosen)
        return Finding(
            "problem",
            "threads",
            f"{usual.label}: a token takes {usual.ms:.1f} ms, with {chosen.value} "
            f"{chosen.ms:.1f} ms",
            f"give -t {chosen.value}, or leave -t out and run {tune}",
        )
    if len(counts) > 1 and not (tried and usual.n_repetitions):
        return Finding("note", "threads", f"{usual.label}: no time to try another number")
    return Finding("ok", "threads", f"{usual.label}: {choice.why}")


def check_temperature(temperature: float) -> Iterator[Finding]:
    """Yield a note if the temperature is so high that fewer drafts are accepted."""
    if temperature > HOT:
        yield Finding(
            "note",
            "temperature",
            f"at temperature {temperature:g} answers surprise more, and fewer drafts are accepted",
            f"where it does not matter, a temperature of at most {HOT:g} is faster",
        )
