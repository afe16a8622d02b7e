"""Adding documents to draft from; listing and deleting the texts kept on this disk for drafting."""

from __future__ import annotations

import os
from collections.abc import Sequence

from .. import backends, kept_files
from ..backends import files
from ..corpus import collection
from ..corpus import stored as texts
from ..corpus.collection import Made, Progress, listed
from ..corpus.documents import located
from ..corpus.folder import folder
from ..corpus.stored import Stored
from ..decoding.kept import forget_tokens, stored_tokens
from .models import Reference, model_path

__all__ = ["Made", "Stored", "add", "clear", "listed", "located", "stored"]


def add(
    paths: Sequence[str | os.PathLike[str]],
    model: Reference,
    *,
    progress: Progress = lambda done, total: None,
) -> Made:
    """Add files and folders to draft from with this model, and with all models of its vocabulary.

    Raises ConfigError for a path that does not exist, for too much text and for no text;
    ModelNotFound and the other ModelErrors; OSError, with advice, if the corpus cannot be written.
    """
    path = model_path(model)
    with backends.of(path).vocabulary(path) as tokenizer:
        try:
            return collection.add(tokenizer, paths, model=files.label(path), progress=progress)
        except OSError as error:  # from our own folder: files that cannot be read are left out
            raise OSError(
                "nothing can be kept: " + kept_files.unwritten(error, folder(), "EDGESPEC_CORPUS")
            ) from error


def stored() -> list[Stored]:
    """Return all that is kept to draft from: documents, answers, tables of likely next tokens."""
    return [*texts.stored(), *stored_tokens()]


def clear() -> int:
    """Delete everything kept to draft from, and return the number of bytes freed."""
    return texts.clear() + forget_tokens()
