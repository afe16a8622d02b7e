"""Makes a folder of ONNX graphs for one target from the checkpoint of a trained draft."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ... import backends, hub
from ...backends.files import has_folder, opened
from ...backends.heads import KINDS, TargetSizes
from ...errors import ConfigError, ConversionError, ModelNotFound, UnknownArchitecture
from ...loading.models import Reference, has_own_head, is_head, model_path
from ...named_files import expanded
from .. import tools
from .checkpoint import HeadCheckpoint, check_target
from .fitting import better_reading, check_runs, target_sizes
from .reading import read_head

logger = logging.getLogger("edgespec.convert")

HeadPrecision = Literal["fp32", "int8", "int4"]
_PRECISIONS = ("fp32", "int8", "int4")
_LEAST_CTX = 8192  # rotary positions are relative, so texts longer than those in training work


@dataclass(frozen=True, slots=True)
class HeadConversion:
    """A converted head.

    layers: the layers of the target whose states it reads. candidates: other layers that may be
    meant, if the checkpoint does not say how it counts layers. size: the size of the folder in
    bytes. license: the licence of the checkpoint, as its card names it. seconds: the time of each
    stage.
    """

    path: Path
    kind: str
    layers: tuple[int, ...]
    candidates: tuple[tuple[int, ...], ...]
    precision: HeadPrecision
    size: int
    license: str
    seconds: dict[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return asdict(self) | {"path": str(self.path)}


def convert_head(
    source: str | os.PathLike[str],
    target: Reference,
    out: str | os.PathLike[str] | None = None,
    *,
    precision: HeadPrecision = "int8",
    layers: Sequence[int] | None = None,
    python: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] = logger.info,
    offline: bool = False,
) -> HeadConversion:
    """Make an ONNX folder from a trained draft of one of the kinds in backends.heads.KINDS.

    source: a checkpoint's folder or file, in any naming that `read_head` knows; none of its code is
    run. For MTP it is the checkpoint of a target, which contains the MTP layer. target: the model
    that the head drafts for; a head without its own embedding or output matrix takes the target's.
    out: a folder that does not exist yet; by default it is next to pulled models. precision: the
    precision of the matrices; int8 takes a third of the time of fp32 (`benchmarks/head_costs.py`),
    and 8 bits guess as well (docs/benchmarks). layers: the layers whose inputs the head reads
    (`Model.tap`); by default those that the checkpoint names. If the checkpoint can be read in two
    ways, the layers are taken with which the head guesses more of the target's tokens. python: an
    interpreter that has onnx, and gguf for a GGUF; by default this one if it has them, else one in
    an environment that is made for them, unless `offline`.

    Raises ModelError and its subclasses, ConfigError if the head was made for a different target,
    and ConversionError if a tool fails or is missing. In these cases nothing is left at `out`.
    """
    if precision not in _PRECISIONS:
        raise ConfigError(f"unknown precision {precision!r}; known: {', '.join(_PRECISIONS)}")
    _refuse_gguf(source)
    head, model = read_head(source), model_path(target)
    sizes = target_sizes(model)
    candidates = _candidates(head, sizes, layers)
    chosen = candidates[0]
    folder = Path(out) if out else hub.models_dir() / f"{head.name}-head-{precision}"
    backends.get("onnx")  # it checks the result; raises if it is missing
    if folder.exists():
        raise ConfigError(f"{folder} is there already; give another folder, or remove it")
    work = _Work(folder.with_name(f"{folder.name}.partial"), progress)
    shutil.rmtree(work.folder, ignore_errors=True)
    try:
        work.weights.mkdir(parents=True)
        needed = ("onnx", "gguf") if head.lacking and not has_folder(model) else ("onnx",)
        work.python = tools.python_with(needed, python, progress, offline=offline)
        _write_weights(head, model, work)
        work.run(_job(head, chosen, precision, work) | {"n_layer": sizes.n_layer}, "graphs")
        shutil.rmtree(work.weights)
        noted = {"precision": precision, "target": target_name(target, model)}
        _write_note(head, chosen, sizes, work.folder, noted)
        progress("checking that it runs")
        check_runs(work.folder, sizes)
        if len(candidates) > 1:
            progress("trying both readings of the layers with the target")
            chosen, warning = better_reading(work.folder, model, candidates)
            work.warnings = (warning,)
            _write_note(head, chosen, sizes, work.folder, noted)
        size = sum(file.stat().st_size for file in work.folder.iterdir())
        work.folder.replace(folder)
    finally:
        shutil.rmtree(work.folder, ignore_errors=True)
    return HeadConversion(
        folder, head.kind, chosen, tuple(each for each in candidates if each != chosen), precision,
        size, head.license, {step: round(s, 1) for step, s in work.times.items()}, work.warnings,
    )  # fmt: skip


def _refuse_gguf(source: str | os.PathLike[str]) -> None:
    """Raise ConfigError if `source` is a GGUF, which needs no conversion or is not a head.

    Raises ModelError and its subclasses for a damaged GGUF.
    """
    path = expanded(source)
    try:
        with opened(path) as file:
            if file.read(4) != b"GGUF":
                return
    except ModelNotFound:
        return
    if not (is_head(path) or has_own_head(path)):
        raise ConfigError(f"{path} is a model and no trained head; give the checkpoint of a head")
    raise ConfigError(
        f"{path} is a GGUF, and a head in a GGUF drafts as it is, without a conversion: "
        f"name it as the draft of its target (-md {path}, draft=…)"
    )


@dataclass(slots=True)
class _Work:
    """A conversion in progress: the folder that is made, and the Python that runs the programs."""

    folder: Path
    progress: Callable[[str], None]
    python: Path = Path(sys.executable)
    times: dict[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def weights(self) -> Path:
        """The folder of the weights, which exists only during the conversion."""
        return self.folder / "weights"

    def run(self, job: dict[str, Any], program: str) -> None:
        """Run a program next to this file with a job. Raises ConversionError if it fails."""
        name = f"{__package__}.{program}"
        tools.run_worker(self.python, job, self.folder, self.progress, self.times, name)


def _candidates(
    head: HeadCheckpoint, sizes: TargetSizes, layers: Sequence[int] | None
) -> list[tuple[int, ...]]:
    """Return the layers that a head may read, as one tuple for each reading of the checkpoint.

    Raises ConfigError if the head does not fit its target, and UnknownArchitecture as
    `_check_attention` does.
    """
    check_target(head, sizes)
    _check_attention(head)
    readings = head.layers(sizes.n_layer)
    if layers is None:
        return readings
    if len(layers) != len(readings[0]):
        raise ConfigError(f"layers are {list(layers)}; {len(readings[0])} numbers are expected")
    return [tuple(layers)]


def _check_attention(head: HeadCheckpoint) -> None:
    """Raise UnknownArchitecture for a layer that onnxruntime's attention does not support.

    DFlash and Mixtures of Attentions have their own attention.
    """
    if head.decoder is None or head.kind in ("dflash", "moa"):
        return
    size, rotated = head.decoder.head_dim, 2 * len(head.decoder.rotation)
    if size % 16 or rotated % 16:
        raise UnknownArchitecture(
            f"{head.path} has attention heads of {size} numbers, {rotated} of them rotated; "
            "onnxruntime takes multiples of 16"
        )


def _write_weights(head: HeadCheckpoint, model: Path, work: _Work) -> None:
    """Write the head's weights as float32, one at a time, then the matrices of its target."""
    start, step = time.perf_counter(), "reading the checkpoint"
    work.progress(step)
    for name in head.weights:
        np.save(work.weights / f"{name}.npy", head.array(name))
    work.times[step] = time.perf_counter() - start
    if head.lacking:
        job = {"target": str(model), "out": str(work.weights), "wanted": head.lacking}
        work.run(job, "target_weights")
    for name in head.lacking:
        shape = np.load(work.weights / f"{name}.weight.npy", mmap_mode="r").shape
        if shape != (expected := (head.vocab_size, head.hidden_size)):
            raise ConversionError(f"{name} of {model} has the shape {shape}, expected {expected}")


def _job(
    head: HeadCheckpoint, layers: tuple[int, ...], precision: str, work: _Work
) -> dict[str, Any]:
    """Return the job of the program that writes graphs, as an object for JSON."""
    left_out = ("weights", "path", "d2t", "layer_ids", "ids_count")
    known = {f.name: getattr(head, f.name) for f in fields(head) if f.name not in left_out}
    return known | {
        "decoder": asdict(head.decoder) if head.decoder else None,
        "parts": {name: asdict(layer) for name, layer in head.parts.items()},
        "head_vocab_size": head.head_vocab_size,
        "layers": layers,
        "out": str(work.folder.resolve()),
        "weights": str(work.weights.resolve()),
        "precision": precision,
        "n_ctx": max(head.n_ctx_train, _LEAST_CTX),
    }


def target_name(target: Reference, model: Path) -> str:
    """Return the name of a target for head.json: its name in the catalogue, or that of its file."""
    name = os.fspath(target).partition(":")[0].lower()
    return name if name in hub.entries() else hub.label(model)


def _write_note(
    head: HeadCheckpoint, layers: tuple[int, ...], sizes: TargetSizes, folder: Path,
    noted: dict[str, str],
) -> None:  # fmt: skip
    """Write head.json and, for a head with a part of the vocabulary, d2t.npy.

    noted: further values for head.json.
    """
    known = {name: size for name, size in asdict(sizes).items() if name != "cached_size"}
    if KINDS[head.kind].reads == "cache":
        known["cached_size"] = sizes.cached_size
    if head.inner_size:
        known["inner_size"] = head.inner_size
    note = {
        "format": 1, "kind": head.kind, "layers": layers, **known,
        "max_depth": head.n_heads, "n_ctx_train": head.n_ctx_train, "source": head.name,
        "license": head.license, **noted,
    }  # fmt: skip
    (folder / "head.json").write_text(json.dumps(note, indent=1), "utf-8")
    if head.d2t is not None:
        np.save(folder / "d2t.npy", head.d2t)
