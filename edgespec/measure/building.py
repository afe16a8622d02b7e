"""Compiles llama.cpp for this processor, and compares it with the library in use before."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import backends
from ..backends import compiled, files
from ..backends.compiled import VARIABLE
from ..errors import BuildError, ConfigError
from ..kept_files import one_line
from ..loading.models import Reference, model_path
from .probe import WIDTHS

_ROUNDS = 6
_MOST_PERPLEXITY, _LEAST_EQUAL = 0.02, 0.95
"""Two right libraries round differently: by less than this share of the perplexity, and with the
same likeliest token at this share of positions. A wrong kernel of another library changed one token
in ten.
"""


@dataclass(frozen=True, slots=True)
class Built:
    """A compiled library, and how it compares with the one before.

    path: the libllama. before: the name of the library before. model: the model that was evaluated.
    times: for each width, the milliseconds before and now. perplexities: before and now. equal: the
    share of positions with the same likeliest token. is_used: the library is faster, and is used
    from now on; if not, it was deleted again.
    """

    path: Path
    before: str
    model: str
    times: dict[int, tuple[float, float]]
    perplexities: tuple[float, float]
    equal: float

    @property
    def is_used(self) -> bool:
        """True if the geometric mean of all times is lower with the compiled library."""
        return math.prod(new / old for old, new in self.times.values()) < 1

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as data for JSON, rounded."""
        return {
            "path": str(self.path),
            "before": self.before,
            "model": self.model,
            "times_ms": {w: [round(ms, 2) for ms in pair] for w, pair in self.times.items()},
            "perplexities": [round(each, 3) for each in self.perplexities],
            "equal": round(self.equal, 3),
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
        built = _compared(library, before, path)
        if built.is_used:
            times = {built.model: {str(w): list(pair) for w, pair in built.times.items()}}
            compiled.choose(compiled.Chosen(path=str(library), arguments=options, times=times))
        return built
    finally:
        compiled.sweep()


def _compared(library: Path, before: str, path: Path) -> Built:
    """Return how a library compares with the one in use. Raises BuildError if it differs from it by
    more than rounding does.
    """
    with _probe(path) as old, _probe(path, library) as new:
        (perplexity, likeliest), (now, others) = old("read"), new("read")
        equal = float((np.array(likeliest) == np.array(others)).mean())
        if abs(now / perplexity - 1) > _MOST_PERPLEXITY or equal < _LEAST_EQUAL:
            raise BuildError(
                f"the compiled library computes something else than {before}: a perplexity of "
                f"{now:.3f}, not {perplexity:.3f}, and the same likeliest token at {equal:.0%} of "
                "the positions; it is not used"
            )
        rounds = [(old("time"), new("time")) for _ in range(_ROUNDS)]
    least = [
        [1e3 * min(times) for times in zip(*each, strict=True)]
        for each in zip(*rounds, strict=True)
    ]
    return Built(
        library,
        before,
        files.label(path),
        dict(zip(WIDTHS, zip(*least, strict=True), strict=True)),
        (perplexity, now),
        equal,
    )


def remove_build() -> bool:
    """Delete what `build` has compiled, and return whether there was anything. An installed
    library is used again from the next process on.
    """
    return compiled.discard()


@contextlib.contextmanager
def _probe(path: Path, library: Path | None = None) -> Iterator[Callable[[str], Any]]:
    """Yield a function that asks a process of its own, which evaluates a model with a libllama.

    library: the libllama; by default the one that would be used. Raises BuildError if the process
    ends.
    """
    environment = os.environ | ({VARIABLE: str(library)} if library else {})
    process = subprocess.Popen(
        [sys.executable, "-m", "edgespec.measure.probe", str(path)], env=environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin
    assert process.stdout
    assert process.stderr
    stdin, stdout, stderr = process.stdin, process.stdout, process.stderr

    def ask(what: str) -> Any:
        with contextlib.suppress(BrokenPipeError):
            stdin.write(f"{what}\n")
            stdin.flush()
        if answer := stdout.readline():
            return json.loads(answer)
        said = stderr.read().strip().splitlines() or [f"exit status {process.wait()}"]
        name, reason = library or "the library in use", said[-1].removeprefix("edgespec.errors.")
        raise BuildError(f"{name} cannot evaluate {files.label(path)}: {one_line(reason)}")

    try:
        yield ask
    finally:
        process.kill()
        process.communicate()
