"""Comparison of the files of one model in different formats: their speed and their quality.

A GGUF and an ONNX graph of the same model are rounded differently, and give different texts. Two
figures show what rounding has cost: the perplexity of a text, and how often the greedy token equals
that of the 16-bit weights, if those are on disk.
"""

from __future__ import annotations

import contextlib
import logging
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import hub
from ..backends import files
from ..backends.base import Model
from ..config import EngineConfig
from ..costs.measuring import fill, timed
from ..device import is_arm
from ..errors import Aborted, EdgeSpecError
from ..loading.models import open_model
from ..loading.tuned import tuned_options
from ..types import Abort
from .budget import Budget

logger = logging.getLogger("edgespec.measure.formats")

WORSE = 0.05  # a perplexity that is higher by more than this share is worth a warning
FASTER = 0.05
_ROWS = 32
_WIDE = 4  # tokens of an evaluation with a draft of three
_REFERENCES = (
    "F32",
    "BF16",
    "F16",
    "ONNX-FP32",
    "ONNX-FP16",
)  # quantisations that are taken as the original weights
_CACHED, _REPEATS = 64, 7

TEXT = """\
A bicycle that rolls is a stubborn thing. Push it sideways and it does not fall at once: the front
wheel turns into the fall, the frame follows, and the tyres are carried back under the weight. Two
effects are usually named. The wheels spin and resist being tilted, and the point where the front
tyre touches the road lies a little behind the line about which the fork turns, so that the wheel
trails as the castor of a trolley does. Neither is needed alone. In 2011 a machine was built that
had almost none of either, and it still stayed up when it was pushed fast enough.

def falls(angle, speed, steps=200, dt=0.01):
    rate = 0.0
    for _ in range(steps):
        steer = 2.0 * angle + 0.5 * rate
        rate += (9.81 * angle - speed * speed * steer / 1.1) * dt
        angle += rate * dt
        if abs(angle) > 1.0:
            return True
    return False

Question: What does the function return when the speed is zero and the angle is small?
Answer: True, because nothing but gravity acts on the angle, which grows until it is above 1.
"""


@dataclass(frozen=True, slots=True)
class Format:
    """One measured file of a model.

    size: bytes. ms, ms_wide: milliseconds of one token and of four at once, after a short text.
    perplexity: the perplexity of a short text. agreement: the share of the text's positions where
    the likeliest token equals that of the 16-bit weights; None if those are not on disk.
    """

    path: Path
    quantisation: str
    size: int
    ms: float
    ms_wide: float
    perplexity: float
    agreement: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as data for JSON, rounded."""
        return {
            "file": files.label(self.path),
            "quantisation": self.quantisation,
            "size": self.size,
            "ms": round(self.ms, 2),
            "ms_wide": round(self.ms_wide, 2),
            "perplexity": round(self.perplexity, 3),
            "agreement": None if self.agreement is None else round(self.agreement, 3),
        }


def formats(name: str) -> list[tuple[str, Path]]:
    """Return (quantisation, path) of every file of a catalogue model that is on disk.

    The list is empty for a name that the catalogue does not have. 16-bit graphs are left out on
    ARM, where their logits change by up to 2.7 with the number of tokens evaluated at once.
    """
    entry = hub.entries().get(name.partition(":")[0].lower())
    files = []
    for file in entry.files if entry else ():
        path = hub.resolve(name.partition(":")[0], quantisation=file.quantisation)
        if path and not (is_arm() and file.quantisation == "ONNX-FP16"):
            files.append((file.quantisation, path))
    return files


def compare(
    found: Sequence[tuple[str, Path]],
    config: EngineConfig | None = None,
    progress: Callable[[str], None] = logger.info,
    given: Iterable[str] = (),
    budget: Budget | None = None,
) -> list[Format]:
    """Measure the files of one model, given as (quantisation, path). Files that do not load, or for
    which there is no time, are left out.

    The text is tokenized once, by the first file. given: the names of settings that the user gave,
    which override what `tune` has chosen. budget: the time for all files, unlimited by default.
    """
    config, budget = config or EngineConfig(), budget or Budget(math.inf)
    longest_s = 0.0
    tokens: list[int] = []
    measured: list[tuple[Format, npt.NDArray[np.int64]]] = []
    for quantisation, path in found:
        start = budget.spent
        if not budget.fits(f"measuring {files.label(path)} for comparison", longest_s):
            continue
        progress(f"measuring {files.label(path)}: speed and perplexity")
        try:
            settings = replace(config, n_ctx=1024, **tuned_options(path, config, given))
            with contextlib.closing(open_model(path, settings)) as model:
                tokens = tokens or model.tokenizer.encode(TEXT)
                perplexity, likeliest = read(model, tokens, budget.abort)
                times = times_of(model, budget)
        except Aborted:
            budget.left_out.append(f"measuring {files.label(path)} for comparison")
            continue
        except EdgeSpecError as error:
            progress(f"left out: {error}")
            continue
        one = Format(path, quantisation, files.size_of(path), *times, perplexity)
        measured.append((one, likeliest))
        longest_s = max(longest_s, budget.spent - start)
    return _with_agreement(measured)


def read(
    model: Model, tokens: Sequence[int], abort: Abort | None = None
) -> tuple[float, npt.NDArray[np.int64]]:
    """Return the perplexity of the tokens after the first, and the likeliest token at each of these
    positions, shape [n - 1]. Raises Aborted.
    """
    model.truncate(0)
    lost, likeliest = 0.0, []
    for start in range(0, len(tokens) - 1, _ROWS):
        chunk = tokens[start : min(start + _ROWS, len(tokens) - 1)]
        rows = model.decode(chunk, len(chunk), abort).logits.astype(np.float64)
        following = tokens[start + 1 : start + 1 + len(chunk)]
        top = rows.max(1)
        total = top + np.log(np.exp(rows - top[:, None]).sum(1))
        lost += float((total - rows[np.arange(len(chunk)), following]).sum())
        likeliest.append(rows.argmax(1))
    model.truncate(0)
    return float(np.exp(lost / (len(tokens) - 1))), np.concatenate(likeliest)


def times_of(model: Model, budget: Budget) -> tuple[float, float]:
    """Return the median milliseconds of one token and of four at once, measured in turns. Raises
    Aborted.
    """

    def seconds(width: int) -> float:
        return timed(model, width, budget.clock, budget.abort)

    fill(model, _CACHED, budget.abort)
    seconds(_WIDE)
    pairs = [(seconds(1), seconds(_WIDE)) for _ in range(_REPEATS)]
    model.truncate(0)
    one, several = (1e3 * statistics.median(times) for times in zip(*pairs, strict=True))
    return one, several


def _with_agreement(measured: list[tuple[Format, npt.NDArray[np.int64]]]) -> list[Format]:
    """Return the formats with their agreement with 16-bit weights, if those were measured."""
    reference = next((rows for one, rows in measured if one.quantisation in _REFERENCES), None)
    if reference is None:
        return [one for one, _ in measured]
    return [replace(one, agreement=float((rows == reference).mean())) for one, rows in measured]


def recommend(found: Sequence[Format]) -> str:
    """Return a sentence that says which file to use, and why.

    The fastest file has the least mean time of a plain evaluation and one with a draft. The
    sentence recommends it, or the file of the lowest perplexity if no other is much faster. It
    names both if the perplexity of the fastest file is more than 5% higher.
    """
    fastest = min(found, key=lambda one: one.ms + one.ms_wide)
    best = min(found, key=lambda one: one.perplexity)
    gain = (best.ms + best.ms_wide) / (fastest.ms + fastest.ms_wide)
    cost = fastest.perplexity / best.perplexity - 1
    if gain < 1 + FASTER:
        return f"{best.quantisation}: its perplexity is the lowest, and none is much faster"
    lead = f"{gain:.1f} times as fast as {best.quantisation}"
    if cost <= WORSE:
        return f"{fastest.quantisation}: {lead}, at a perplexity that is {cost:.1%} higher"
    return (
        f"{fastest.quantisation} where speed matters: {lead}; {best.quantisation} where answers "
        f"do: the perplexity of the other is {cost:.0%} higher"
    )
