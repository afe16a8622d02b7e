"""Inspection of a trained head: what it is, whose it is, and what it takes."""

from __future__ import annotations

import os

from .. import backends
from ..backends import files
from ..backends.base import FINAL
from ..backends.base import HeadFacts as HeadFacts
from ..errors import ConfigError
from ..loading.models import is_head, model_path


def inspect_head(reference: str | os.PathLike[str]) -> HeadFacts:
    """Return what the files of a head say; nothing is loaded.

    Raises ModelError and its kinds, and ConfigError for a model.
    """
    path = model_path(reference)
    backend = backends.of(path)
    if not is_head(path):
        raise ConfigError(f"{files.label(path)} is a model and no trained head; use inspect()")
    return backend.head_facts(path)


def in_words(facts: HeadFacts) -> dict[str, str]:
    """Return a description of a head by what each part is about."""
    sizes = facts.sizes
    layers = ", ".join("the last state" if i == FINAL else str(i) for i in facts.layers)
    target = [
        facts.target,
        f"{sizes.hidden_size} numbers a state" if sizes.hidden_size else "",
        f"{sizes.n_layer} layers" if sizes.n_layer else "",
        f"a vocabulary of {sizes.vocab_size} tokens",
    ]
    depth = f"at most {facts.max_depth} tokens" if facts.max_depth else "any number of tokens"
    part = "" if facts.n_drafted == sizes.vocab_size else f", {facts.n_drafted} of the vocabulary"
    return {
        "kind": facts.kind,
        "target": ", ".join(filter(None, target)),
        "reads": layers or "unknown",
        "drafts": depth + part,
        "precision": facts.precision,
        "licence": facts.license,
    }
