"""Loading a model that is on this machine."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import advice, backends
from ..backends import files
from ..backends.base import BatchedModel, FileModel, Head
from ..backends.helper_threads import end_helper_threads
from ..config import EngineConfig, SpeculativeConfig, build
from ..costs.learning import Costed, HeadTimes, ModelCurve, learning
from ..costs.measuring import READING, WIDTHS
from ..costs.online import Costs
from ..decoding.idle_work import Work
from ..decoding.kept import Kept
from ..device import LoadMeter, processor, seen_gpus
from ..engine import Engine
from ..errors import ConfigError
from . import recommendations
from .assembly import assemble, configured
from .companions import fills_in, is_new, suggestion
from .drafts import SAME, copying, draft_paths, ggufs_for_fork, is_same, load_first
from .library import choose
from .models import Reference, model_path, open_model, target_path
from .prefixes import prefix_store
from .tuned import tuned_options

logger = logging.getLogger("edgespec.loading")

_MOST_SLOTS = 4  # by default


def load(
    model: Reference,
    draft: Reference | None = "auto",
    *,
    speculative_config: SpeculativeConfig | Mapping[str, Any] | None = None,
    draft_options: Mapping[str, Any] | None = None,
    sampling: Mapping[str, float] | None = None,
    **options: Any,
) -> Engine:
    """Load a model from disk and return an engine that answers requests with it.

    model: a catalogue name, "hf:org/repo/file.gguf" that was pulled before, or the path of a GGUF,
    of an .onnx file, or of a folder with an .onnx file.
    draft: a draft model or trained head, named in the same way; None for none. "auto" takes the one
    on this disk with the largest measured or expected speedup for this model. On a GPU it may have
    any size; on CPUs, where time is proportional to bytes, it may read at most a fifth of the
    target's bytes. A larger one would only take memory.
    speculative_config: a SpeculativeConfig or its fields. draft_options: fields of
    EngineConfig for the draft model, by default those of the target. options: fields of
    EngineConfig; other fields have the values that `tune` chose for this file on this device.
    sampling: default settings of requests, in place of those that the model's authors recommend;
    {"temperature": 0} makes requests greedy.

    At the first load on a device, the costs of evaluations are not known. The engine decodes
    plainly until it has measured them between requests, once; Engine.measure does that immediately.
    In the same way, the engine makes a copy of the draft model that this device may evaluate
    faster. The next load uses the copy if it is faster.

    Raises ModelNotFound (see `hub.pull`), ConfigError, VocabularyMismatch, EngineMissing
    and the other ModelErrors. Nothing is downloaded.
    """
    config = build(EngineConfig, options)
    spec = configured(speculative_config, draft)
    path = target_path(model)
    choose(ggufs_for_fork(model, path, draft, config, spec))
    config = replace(config, **tuned_options(path, config, options))
    wanted, meter = draft_paths(model, draft, config, spec), LoadMeter()
    with contextlib.ExitStack() as stack:
        target = open_model(path, config)
        stack.callback(target.close)
        slots = slots_of(target, config.n_slots)  # before heads, which may look at their cache
        draft_file, draft_model = load_first(
            wanted, config, draft_options or {}, target, named=bool(spec.model)
        )
        if draft_model:
            stack.callback(draft_model.close)
        _warn(target, draft_model, model, draft)
        if draft_file and is_same(draft_file, path) and not isinstance(draft_model, Head):
            logger.warning("%s; name a smaller one, or none", SAME)
        times = HeadTimes(target, draft_model) if isinstance(draft_model, Head) else None
        costs, measuring = known_costs(ModelCurve(target, WIDTHS), draft_model, times)
        engine = assemble(
            target,
            target.tokenizer,
            draft_model,
            spec,
            profile=costs,
            kept=kept_for(spec, path, draft_file),
            loading=meter,
            slots=slots,
            prefixes=prefix_store(config),
            on_busy=config.on_busy,
            sampling=recommendations.defaults_of(target, model).replaced(sampling or {}),
            description=described(target, draft_model)
            | _suggested(model, draft, config, wanted)
            | {"fills_in": fills_in(model, path)},
            works=([] if spec.fixed else measuring) + copying(draft_model),
        )
        stack.pop_all()  # the engine closes them now
    end_helper_threads()
    return engine


def slots_of(target: FileModel, n_slots: int) -> BatchedModel | None:
    """Return a target with that many slots, 0 for as many as memory allows; None if it cannot have
    several. Raises OutOfMemory, and ConfigError if it cannot have as many as were asked for.
    """
    try:
        slots = target.batched()
    except ConfigError:
        if n_slots > 1:
            raise
        return None
    n = n_slots or 1 + target.n_more(_MOST_SLOTS - 1)
    if n > 1:
        slots.add(n - 1, target.n_ctx)
    return slots


def _suggested(
    model: Reference, draft: Reference | None, config: EngineConfig, wanted: list[Path]
) -> dict[str, Any]:
    """Return a field for `Engine.describe` that suggests a companion from the catalogue, {} if none
    is suggested.
    """
    if draft != "auto" or wanted:
        return {}
    advice = suggestion(model, model_path(model), config)
    return {"suggestion": advice} if advice else {}


def kept_for(
    spec: SpeculativeConfig, target: Path | Callable[[], str], draft: Path | None
) -> Kept | None:
    """Return a Kept that stores what is learned for later processes, None if nothing is to be
    stored.
    """
    if spec.fixed or spec.remember == "nothing":
        return None
    return Kept(target, draft, tokens=spec.remember == "all")


def known_costs(
    steps: Costed, draft: FileModel | None, times: HeadTimes | None = None
) -> tuple[Costs, list[Work]]:
    """Return the costs of steps and of a draft model as far as they are known, and the work that
    measures the rest. times: the times of a draft model that is a head.
    """
    drafting = ModelCurve(draft, READING, lengthens=True) if draft else None
    costs, missing = learning(steps, drafting, times)
    return costs, [missing] if missing else []


def _warn(
    target: FileModel, drafting: FileModel | None, name: Reference, draft: Reference | None
) -> None:
    """Log a warning for settings that have no effect. name, draft: the models as the user named
    them.
    """
    for model, whose in ((target, ""), (drafting, " of the draft model")):
        if model and backends.of(model.path).ignores_gpu_layers(model.config):
            logger.warning(
                "n_gpu_layers=%d%s has no effect: the engine sees no GPU, %s says more",
                model.config.n_gpu_layers, whose, advice.command("doctor", name),
            )  # fmt: skip
            break
    _warn_of_gpu(target, advice.command("tune", name, draft))
    config, trained = target.config, target.n_ctx_train
    if config.n_ctx > trained > 0:
        logger.warning(
            "n_ctx=%d is more than the %d tokens that %s was trained for; its context is %d",
            config.n_ctx, trained, files.label(target.path), target.n_ctx,
        )  # fmt: skip


def _warn_of_gpu(target: FileModel, tune: str) -> None:
    """Log a warning, once on a device, if it has a GPU that this installation does not use."""
    if backends.name_of(target.path) != "llama_cpp" or not {"NVIDIA", "AMD"} & set(seen_gpus()):
        return
    from ..backends import llama_cpp

    unused = llama_cpp.unused_gpu(tune) if target.config.n_gpu_layers else None
    if unused and is_new("GPU", unused[0]):
        logger.warning("%s; %s", *unused)


def described(target: FileModel | None, draft: FileModel | None) -> dict[str, Any]:
    """Return a description, for JSON, of the models on this machine and of its processor."""
    return {
        "model": _described(target) if target else None,
        "draft": _described(draft) if draft else None,
        "processor": processor(),
    }


def _described(model: FileModel) -> dict[str, Any]:
    return {
        "file": files.label(model.path),
        "versions": backends.of(model.path).versions(),
        "n_threads": model.n_threads,
        "placement": model.placement,
        "n_ctx": model.n_ctx,
    }
