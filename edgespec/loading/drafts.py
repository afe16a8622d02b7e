"""Choosing and opening the draft model for a target."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from .. import backends, drafters
from ..backends import files
from ..backends.base import FileModel, Head
from ..backends.projectors import NONE
from ..cache.requantization import Copying, discard, discard_copy_of, fastest, is_copy, known
from ..config import EngineConfig, SpeculativeConfig, build
from ..decoding.idle_work import Work
from ..drafters.vocabulary import check_vocabulary
from ..errors import ConfigError, EdgeSpecError, ModelError, VocabularyMismatch
from . import companions, library
from .assembly import configured, uses_model
from .models import Reference, has_own_head, is_head, model_path, open_model, target_path
from .trained import is_private

__all__ = [
    "discard_copy_of",
    "draft_path",
    "draft_paths",
    "load_draft",
    "load_first",
    "open_draft",
    "pair",
]

logger = logging.getLogger("edgespec.loading")

SAME = (
    "the draft model is the target itself: a token of it takes as long as the target's own, so it "
    "never pays"
)


def draft_paths(
    model: Reference,
    draft: Reference | None,
    config: EngineConfig,
    speculative_config: SpeculativeConfig | None = None,
) -> list[Path]:
    """Return the files of draft models and heads that `load` may use with these arguments.

    These are the named file, or for "auto" the fitting files on this disk, best first. A head that
    was made of the user's own texts is among them only if documents of this user are drafted from
    as well (draft_corpus None). The list is empty if no draft model is to be used.
    """
    spec = configured(speculative_config, draft)
    if not uses_model(spec):
        return []
    if spec.model:
        return [model_path(spec.model)]
    needs_model = all(entry.uses_model for entry in drafters.chosen(spec.method))
    if not needs_model and draft != "auto":
        return []
    paths = companions.best(model, model_path(model), config, needed=needs_model)
    if spec.draft_corpus is None:
        return paths
    return [path for path in paths if not is_private(path)]


def ggufs_for_fork(
    model: Reference,
    path: Path,
    draft: Reference | None,
    config: EngineConfig,
    spec: SpeculativeConfig,
) -> list[Path]:
    """Return the GGUFs that ik_llama.cpp would evaluate if it was used for a load: the target's
    file `path` and possible draft models. The list is empty if it cannot be used: it evaluates no
    heads.
    """
    drafts: list[Path] = []
    if not library.comparable(path, config):
        return []
    if spec.model:
        drafts = [model_path(spec.model)]
    elif draft == "auto" and uses_model(spec):
        drafts = [companion.path for companion in companions.found(model, path)]
    if any(is_head(each) or each == path for each in drafts):
        return []
    return [path, *(each for each in drafts if backends.name_of(each) == "llama_cpp")]


def draft_path(
    model: Reference,
    draft: Reference | None,
    config: EngineConfig,
    speculative_config: SpeculativeConfig | None = None,
) -> Path | None:
    """Return the first file of `draft_paths`, None if there is none."""
    return next(iter(draft_paths(model, draft, config, speculative_config)), None)


def open_draft(path: Path, config: EngineConfig, *, make_copy: bool = False) -> FileModel:
    """Open a draft model, or its copy if this device evaluates that faster.

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


def is_same(draft: Path, target: Path) -> bool:
    """Return True if the draft model's file is the target's file."""
    return draft.resolve() == target.resolve()


def copying(draft: FileModel | None) -> list[Work]:
    """Return the work that makes a faster copy of a draft model, [] if none is to be made."""
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
    """Open a draft model or a head for a target, and check that it fits. Return None for no path.

    config: the target's settings. options: the fields that differ for the draft model. make_copy:
    as for `open_draft`. Raises VocabularyMismatch, ModelError and its subclasses, and ConfigError
    for a head that was made for a different target.
    """
    if path is None:
        return None
    settings = {field.name: getattr(config, field.name) for field in fields(config)}
    settings |= {"n_ctx": target.n_ctx, "mmproj": NONE}  # drafts see no pictures
    settings["batch_invariant"] = False  # a guess may depend on the shape of its evaluation
    config = build(EngineConfig, settings | dict(options))
    if (path == target.path and has_own_head(path)) or is_head(path):
        return backends.of(path).open_head(path, config, target)
    copies = make_copy and config.requantize
    if copies and not known(path, config):  # no copy is made of what cannot draft
        _checked(open_model(path, config), path, target).close()
    return _checked(open_draft(path, config, make_copy=make_copy), path, target)


def load_first(
    paths: Sequence[Path],
    config: EngineConfig,
    options: Mapping[str, Any],
    target: FileModel,
    *,
    named: bool,
) -> tuple[Path | None, FileModel | None]:
    """Open the first of several draft models and heads that fits a target; return its file and it.

    named: True if the user named the file; then errors are raised as by `load_draft`. Otherwise a
    file that does not fit is logged as a warning, and the next file is tried.
    """
    for path in paths:
        draft = None
        try:
            draft = load_draft(path, config, options, target)
            if isinstance(draft, Head) and not named:
                _try_tap(target, draft)
        except EdgeSpecError as error:
            if draft:
                draft.close()
            is_guess = path == target.path or is_head(path)
            if named or (isinstance(error, ConfigError) and not is_guess):
                raise  # settings that are wrong for every file
            logger.warning("%s is not drafted with: %s", files.label(path), error)
            continue
        return path, draft
    return None, None


def _try_tap(target: FileModel, head: Head) -> None:
    """Raise ConfigError if a target cannot give the hidden states that a head reads."""
    target.tap(head.layers)
    target.tap(())


def _checked(draft: FileModel, path: Path, target: FileModel) -> FileModel:
    """Return the draft model. Closes it and raises VocabularyMismatch if its vocabulary differs."""
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
    with contextlib.closing(open_model(target_path(model), config)) as target:
        drafting = load_draft(
            model_path(draft), config, draft_options or {}, target, make_copy=True
        )
        assert drafting is not None
        with contextlib.closing(drafting):
            yield target, drafting
