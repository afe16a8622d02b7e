"""The choice of the draft model for a target, and opening it."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from .. import backends, drafters, hub
from ..backends import files
from ..backends.base import FileModel, Head, HeadBackend, HiddenStates
from ..cache.requantization import Copying, discard, discard_copy_of, fastest, is_copy, known
from ..config import EngineConfig, SpeculativeConfig, build
from ..decoding.idle_work import Work
from ..drafters.vocabulary import check_vocabulary
from ..errors import ConfigError, ModelError, VocabularyMismatch
from .assembly import configured, uses_model
from .models import Reference, has_own_head, is_head, is_installed, model_path, open_model

__all__ = ["discard_copy_of", "draft_path", "load_draft", "open_draft", "pair"]

logger = logging.getLogger("edgespec.loading")

_CPU_SHARE = 5  # on CPUs a draft model of more than a fifth of the target's bytes hardly pays


def draft_path(
    model: Reference,
    draft: Reference | None,
    config: EngineConfig,
    speculative_config: SpeculativeConfig | None = None,
) -> Path | None:
    """Return the file of the draft model that `load` takes for these, the model's own if that has a
    head in it; None for none.
    """
    spec = configured(speculative_config, draft)
    if not uses_model(spec):
        return None
    if spec.model:
        return model_path(spec.model)
    needs_model = all(entry.uses_model for entry in drafters.chosen(spec.method))
    if not needs_model and draft != "auto":
        return None
    path = model_path(model)
    if has_own_head(path):
        return path
    there = _suggested(os.fspath(model), path)
    wants_gpu = config.n_gpu_layers != 0 and config.provider.lower() != "cpu"
    on_gpu = wants_gpu and backends.of(path).supports_gpu_offload()
    if not needs_model and not on_gpu:
        largest = files.size_of(path) / _CPU_SHARE
        there = [path for path in there if files.size_of(path) <= largest]
    return there[0] if there else None


def _suggested(reference: str, path: Path) -> list[Path]:
    """Return the files on disk of the draft models that the catalogue suggests for a model."""
    name = reference.partition(":")[0].lower()
    suggested = hub.entries()[name].drafts if name in hub.entries() else ()
    return [found for draft in suggested if (found := _file_like(path, draft))]


def _file_like(path: Path, name: str) -> Path | None:
    """Return the file of a catalogue model that is on disk, None if there is none.

    One in the same format as `path` is preferred: two engines in one process take more memory.
    """
    listed = hub.entry(name).files
    found = [hub.resolve(name, quantisation=file.quantisation) for file in listed]
    there = [file for file in found if file and is_installed(file)]
    alike = (file for file in there if backends.name_of(file) == backends.name_of(path))
    return next(alike, there[0] if there else None)


def open_draft(path: Path, config: EngineConfig, *, make_copy: bool = False) -> FileModel:
    """Open a draft model, or a copy of it that this device evaluates faster.

    make_copy: make the copy if there is none yet, which takes some seconds.
    """
    if config.requantize:
        copy = fastest(path, config) if make_copy else known(path, config) or path
        if copy != path:
            try:
                return open_model(copy, config)
            except ModelError as error:
                logger.warning("%s is left for the file itself: %s", copy, error)
                discard(copy)
    return open_model(path, config)


def copying(draft: FileModel | None) -> list[Work]:
    """Return the work that makes a faster copy of a draft model, if there may be one."""
    if draft is None or isinstance(draft, Head):
        return []
    if not draft.config.requantize or is_copy(draft.path):
        return []
    return [] if known(draft.path, draft.config) else [Copying(draft.path, draft.config)]


def load_draft(
    path: Path | None,
    config: EngineConfig,
    options: Mapping[str, Any],
    target: FileModel,
    *,
    make_copy: bool = False,
) -> FileModel | None:
    """Open a draft model or a head for a target and check that it fits; None where `path` is None.

    config: the target's. options: fields that differ. make_copy: as for `open_draft`.
    Raises VocabularyMismatch, ModelError and its kinds, and ConfigError for a head of another
    target.
    """
    if path is None:
        return None
    settings = {field.name: getattr(config, field.name) for field in fields(config)}
    settings["n_ctx"] = target.n_ctx
    settings["batch_invariant"] = False  # a guess may depend on how it was made
    config = build(EngineConfig, settings | dict(options))
    if (path == target.path and has_own_head(path)) or is_head(path):
        return _open_head(path, config, target)
    copies = make_copy and config.requantize
    if copies and not known(path, config):  # no copy is made of what cannot draft
        _checked(open_model(path, config), path, target).close()
    return _checked(open_draft(path, config, make_copy=make_copy), path, target)


def _open_head(path: Path, config: EngineConfig, target: FileModel) -> Head:
    backend = backends.of(path)
    assert isinstance(backend, HeadBackend)
    if not isinstance(target, HiddenStates):
        raise ConfigError(
            f"{files.label(path)} is a head, which reads hidden states, and the engine of "
            f"{files.label(target.path)} gives none; take a draft model"
        )
    return backend.open_head(path, config, target)


def _checked(draft: FileModel, path: Path, target: FileModel) -> FileModel:
    """Return the draft model, or close and refuse it if its vocabulary is another."""
    try:
        check_vocabulary(target.tokenizer, draft.tokenizer)
    except VocabularyMismatch as error:
        draft.close()
        raise VocabularyMismatch(
            f"{files.label(path)} cannot draft for {files.label(target.path)}: {error}"
        ) from None
    return draft


@contextlib.contextmanager
def pair(
    model: Reference,
    draft: Reference,
    *,
    draft_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Iterator[tuple[FileModel, FileModel]]:
    """Open target and draft model without an engine around them; close them at the end."""
    config = build(EngineConfig, options)
    with contextlib.closing(open_model(model_path(model), config)) as target:
        drafting = load_draft(
            model_path(draft), config, draft_options or {}, target, make_copy=True
        )
        assert drafting is not None
        with contextlib.closing(drafting):
            yield target, drafting
