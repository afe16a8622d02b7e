"""Checks of a model on this device: its size, its placement, its threads and what it costs."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..backends.base import FileModel, Threaded
from ..config import EngineConfig
from ..costs.measuring import QUICK, timed
from ..device import available_memory, thread_counts
from ..errors import ConfigError, EdgeSpecError
from ..loading.drafts import draft_path
from ..loading.models import Reference, model_path, open_model
from ..loading.tuned import tuned_options
from .draft_checks import check_draft
from .findings import Finding, count, gib
from .inspection import ModelInfo, inspect
from .interleaving import interleave
from .profile_checks import check_profile, check_widening

HOT = 0.7  # temperatures above this lower acceptance
_FASTER = 0.9  # another number of threads is named if it takes less than this share of the time


def check_model(
    model: Reference,
    draft: Reference | None,
    config: EngineConfig,
    draft_options: Mapping[str, Any],
    given: Mapping[str, Any],
    temperature: float,
) -> Iterator[Finding]:
    """Yield findings about a model and its draft; the arguments are those of `diagnose`.

    given: the options that the user gave, which hold whatever `tune` has found. Raises ConfigError
    for impossible options.
    """
    try:
        info = inspect(model)
        yield _check_file(info)
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
        yield from check_single_tokens(target)
        if isinstance(target, Threaded):
            yield _check_threads(target)
        finding, curve = check_profile(target, QUICK)
        yield finding
        yield check_widening(curve, info, target)
        wanted = draft_path(model, draft, config)
        yield from check_draft(wanted, model, target, curve, config, draft_options)
        yield from check_temperature(temperature)
    except ConfigError:
        raise
    except EdgeSpecError as error:
        yield Finding("problem", "draft", str(error), broken=True)
    finally:
        target.close()


def _check_file(info: ModelInfo) -> Finding:
    size = f"{info.file_size / 1e9:.2f} GB"
    text = f"{info.name}, {info.architecture}, {info.quantisation}, {size}, {info.n_layer} layers"
    return Finding("ok", "model", text)


def check_size(info: ModelInfo, config: EngineConfig, free: int) -> Iterator[Finding]:
    """Yield a finding if the weights and the cache hardly fit the free memory (in bytes)."""
    n_ctx = config.n_ctx or min(info.n_ctx_train, 8192)
    needed = info.file_size + info.kv_bytes(n_ctx)
    if free < 1.2 * needed:
        quantised = "" if info.engine else "a quantised cache (-ctk q8_0 -ctv q8_0 -fa on) "
        yield Finding(
            "problem" if free < needed else "note",
            "memory",
            f"the model with a context of {n_ctx} needs about {gib(needed)}, {gib(free)} are free",
            f"take a smaller context (-c), {quantised}or a smaller file",
        )


def _check_placement(model: FileModel) -> Finding:
    went = ", ".join(f"{name} {size}" for name, size in model.placement.items())
    layers = model.placement.get("layers", "").split()  # offloaded 20/29 layers to GPU
    some, _, every = layers[1].partition("/") if len(layers) > 1 else ("", "", "")
    if some != every:
        remedy = "free memory on the GPU, or take a smaller context or quantisation"
        return Finding("note", "placement", f"not all layers are on the GPU: {went}", remedy)
    return Finding("ok", "placement", went)


def check_single_tokens(model: FileModel) -> Iterator[Finding]:
    """Yield a note if a single token takes as long as two, so that rows are of one kernel."""
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


def _check_threads(model: Threaded) -> Finding:
    """Compare the present number of threads with those that `tune` tries."""
    now = model.n_threads
    counts = [now, *(n for n in thread_counts(model.config.max_cores) if n != now)]

    def seconds(n: int) -> float:
        model.set_threads(n, model.n_threads_batch)
        timed(model, 1)
        return timed(model, 1)

    times = interleave([lambda n=n: seconds(n) for n in counts], budget_s=3.0)  # type: ignore[misc]
    model.set_threads(now, model.n_threads_batch)
    medians = [1e3 * statistics.median(t) for t in times if t]
    best = min(range(len(medians)), key=medians.__getitem__, default=0)
    if medians and medians[best] < _FASTER * medians[0]:
        return Finding(
            "problem",
            "threads",
            f"{count(now, 'thread')} a token takes {medians[0]:.1f} ms, with "
            f"{counts[best]} {medians[best]:.1f} ms",
            f"give -t {counts[best]}, or leave -t out and run `edgespec tune`",
        )
    return Finding("ok", "threads", f"{count(now, 'thread')}: no other number is faster")


def check_temperature(temperature: float) -> Iterator[Finding]:
    """Yield a note if the temperature is so high that fewer drafts are accepted."""
    if temperature > HOT:
        yield Finding(
            "note",
            "temperature",
            f"at temperature {temperature:g} answers surprise more, and fewer drafts are accepted",
            f"where it does not matter, a temperature of at most {HOT:g} is faster",
        )
