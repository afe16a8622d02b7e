"""The comparison of two libllamas: whether both compute the same, and how long evaluations take."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..backends import files, fork
from ..backends.compiled import VARIABLE
from ..errors import BuildError
from ..kept_files import one_line
from ..loading import library
from .budget import Budget
from .probe import WIDTHS
from .results import Candidate, Choice

logger = logging.getLogger("edgespec.measure.libraries")

_FORK_ROUNDS = 3
_START_S, _S_PER_BYTE = 6.0, 25e-9  # of a comparison, on two cores

MOST_DIFFERENCE = 0.25
"""Right libraries differ by rounding: the logits of each row by at most 0.10 of their standard
deviation, with four models in five formats. A wrong kernel of ik_llama.cpp gave 0.97.
"""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two libraries, evaluating one model.

    times: for each width, the milliseconds of the first library and of the second. difference: the
    root mean square of the difference between both libraries' logits, divided by the logits'
    standard deviation, in the row where it is largest.
    """

    times: dict[int, tuple[float, float]]
    difference: float

    @property
    def is_right(self) -> bool:
        """True if both libraries compute the same, apart from rounding."""
        return self.difference <= MOST_DIFFERENCE

    @property
    def is_faster(self) -> bool:
        """True if the second library has the lower geometric mean of all times."""
        return math.prod(new / old for old, new in self.times.values()) < 1


def compare(path: Path, library: Path, rounds: int) -> Comparison:
    """Compare the library that a new process would use with another one, in two processes that
    evaluate a GGUF in turns.

    rounds: how many times each width is evaluated; the least time counts. If the results differ,
    nothing is timed. Raises BuildError if a process ends.
    """
    with probe(path) as old, probe(path, library) as new:
        difference = _difference(old("read"), new("read"))
        if not difference <= MOST_DIFFERENCE:
            return Comparison({}, difference)
        times = [(old("time"), new("time")) for _ in range(rounds)]
    least = [
        [1e3 * min(each) for each in zip(*seconds, strict=True)]
        for seconds in zip(*times, strict=True)
    ]
    return Comparison(dict(zip(WIDTHS, zip(*least, strict=True), strict=True)), difference)


def compare_fork(
    ggufs: Sequence[Path], budget: Budget, progress: Callable[[str], None]
) -> Choice | None:
    """Compare ik_llama.cpp with the other library for these GGUFs, the target first, and keep the
    results. Return the choice for the target, None if it is not known.
    """
    path = fork.library()
    for file in ggufs if path else ():
        assert path
        seconds = _START_S + _S_PER_BYTE * files.size_of(file)
        if library.compared(file) or not budget.fits(f"comparing {fork.NAME}", seconds):
            continue
        progress(f"comparing {fork.NAME} for {files.label(file)}")
        try:
            new = compare(file, path, _FORK_ROUNDS)
        except BuildError as error:
            logger.info("%s", error)
            library.keep_compared(file, is_right=False)
            continue
        ms = [sum(each) for each in zip(*new.times.values(), strict=True)]
        library.keep_compared(file, is_right=new.is_right, is_faster=new.is_faster, ms=ms)
    is_used = library.choose(ggufs)
    return _choice(library.compared(ggufs[0]), is_used) if ggufs else None


def _choice(known: library.Compared | None, is_used: bool) -> Choice | None:
    """Return a comparison as a choice of `tune`."""
    from ..backends import llama_cpp

    if known is None:
        return None
    names = (llama_cpp.first(), fork.NAME)
    timed = zip(names, known.ms, strict=False)
    tried = [Candidate(name, name, ms, 0.0, _FORK_ROUNDS) for name, ms in timed]
    default = Candidate(names[0], names[0], 0.0, 0.0, 0)
    why = (
        "it computes something else" if not known.is_right
        else "it is not faster" if not known.is_faster
        else "it computes the same, and is faster" if is_used
        else "it was not found right for the draft model"
    )  # fmt: skip
    measured = f"{', '.join(map(str, WIDTHS[:-1]))} and {WIDTHS[-1]} tokens at once"
    return Choice(
        "libllama", measured, tuple(tried) or (default,), names[is_used], f"{fork.NAME}: {why}"
    )


def _difference(rows: list[list[float]], others: list[list[float]]) -> float:
    """Return the largest difference of a row, as in `Comparison`; infinity if there is a NaN."""
    first, second = _centred(rows), _centred(others)
    squares = ((first - second) ** 2).mean(axis=1) / (first**2).mean(axis=1)
    worst = float(np.sqrt(squares).max())
    return worst if math.isfinite(worst) else math.inf


def _centred(rows: list[list[float]]) -> npt.NDArray[np.float64]:
    """Return rows of logits, each with the mean 0: softmax ignores the mean."""
    logits = np.array(rows, np.float64)
    centred: npt.NDArray[np.float64] = logits - logits.mean(axis=1, keepdims=True)
    return centred


@contextlib.contextmanager
def probe(path: Path, library: Path | None = None) -> Iterator[Callable[[str], Any]]:
    """Yield a function that asks a process of its own, which evaluates a model with a libllama.

    library: the libllama; by default the one that would be used. Raises BuildError if the process
    ends.
    """
    environment = os.environ | ({VARIABLE: str(library)} if library else {})
    process = subprocess.Popen(
        [sys.executable, "-m", "edgespec.measure.probe", str(path)], env=environment,
        encoding="utf-8", errors="replace",
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
