"""Compiles llama.cpp for this processor, and compares it with the library in use before."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import backends
from ..backends import compiled, files
from ..backends.compiled import VARIABLE
from ..errors import BuildError, ConfigError
from ..loading.models import Reference, model_path
from .libraries import Comparison, compare

_ROUNDS = 6


@dataclass(frozen=True, slots=True)
class Built:
    """A compiled library, and how it compares with the one before.

    path: the libllama. before: the name of the library before. model: the model that was evaluated.
    comparison: of the library before with this one.
    """

    path: Path
    before: str
    model: str
    comparison: Comparison

    @property
    def is_used(self) -> bool:
        """True if the library is faster: it is used from now on. If not, it was deleted again."""
        return self.comparison.is_faster

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as data for JSON, rounded."""
        times = self.comparison.times
        return {
            "path": str(self.path),
            "before": self.before,
            "model": self.model,
            "times_ms": {w: [round(ms, 2) for ms in pair] for w, pair in times.items()},
            "difference": round(self.comparison.difference, 3),
            "is_used": self.is_used,
        }


def build(model: Reference, progress: Callable[[str], None] = lambda text: None) -> Built:
    """Compile llama.cpp for this processor, compare it with the library in use, and use it from
    the next process on if it is faster.

    model: a GGUF on this disk for the comparison. Raises BuildError if compiling fails or the
    results differ too much, ConfigError for a model that is no GGUF or if $EDGESPEC_LIBLLAMA names
    a library, and ModelNotFound. Nothing is changed then.
    """
    from ..backends import llama_cpp

    path = model_path(model)
    if backends.name_of(path) != "llama_cpp":
        raise ConfigError(f"{files.label(path)} is no GGUF, which llama.cpp could evaluate")
    if named := os.environ.get(VARIABLE):
        raise ConfigError(f"{VARIABLE} names {named}, which is used in any case; unset it first")
    before = llama_cpp.engine()
    options = compiled.arguments()
    progress("fetching llama.cpp's sources")
    library = compiled.compile_library(
        options, lambda percent: progress(f"compiling llama.cpp: {percent}%")
    )
    progress(f"comparing it with {before}")
    try:
        comparison = compare(path, library, _ROUNDS)
        if not comparison.is_right:
            raise BuildError(
                f"the compiled library computes something else than {before}: logits differ by up "
                f"to {comparison.difference:.2f} of their spread; it is not used"
            )
        built = Built(library, before, files.label(path), comparison)
        if built.is_used:
            times = {built.model: {str(w): list(ms) for w, ms in comparison.times.items()}}
            compiled.choose(compiled.Chosen(path=str(library), arguments=options, times=times))
        return built
    finally:
        compiled.sweep()


def remove_build() -> bool:
    """Delete what `build` has compiled, and return whether there was anything. An installed
    library is used again from the next process on.
    """
    return compiled.discard()
