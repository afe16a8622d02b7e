"""A checkpoint of a trained draft becomes a folder of ONNX graphs for one target."""

from __future__ import annotations

import contextlib
import importlib.util
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
from ...backends.base import HeadBackend, HiddenStates
from ...backends.files import has_folder
from ...config import EngineConfig
from ...errors import ConfigError, ConversionError, EngineMissing, ModelError, UnknownArchitecture
from ...loading.models import Reference, model_path, open_model
from .. import tools
from .checkpoint import HeadCheckpoint, check_target
from .reading import read_head
from .readings import agreement

logger = logging.getLogger("edgespec.convert")

HeadPrecision = Literal["fp32", "int8", "int4"]
_PRECISIONS = ("fp32", "int8", "int4")
_GRAPHS = Path(__file__).with_name("graphs.py")
_TARGET_WEIGHTS = Path(__file__).with_name("target_weights.py")
_PROMPT = "Explain in a few sentences how a bicycle stays upright while it is moving."
_LEAST_CTX = 8192  # positions turn relative to each other: longer texts than it was trained on work


@dataclass(frozen=True, slots=True)
class TargetSizes:
    """The sizes of a target, as a HiddenStates model has them: all that checks ask of one."""

    hidden_size: int
    vocab_size: int
    n_layer: int


@dataclass(frozen=True, slots=True)
class HeadConversion:
    """A converted head. layers: of the target, whose states it reads. candidates: other layers that
    may be meant, where the checkpoint does not say how it counts them. size: in bytes. license: of
    the checkpoint, as its card names it. seconds: of each stage.
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
    precision: HeadPrecision = "fp32",
    layers: Sequence[int] | None = None,
    python: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] = logger.info,
    offline: bool = False,
) -> HeadConversion:
    """Make an ONNX folder of a trained draft (EAGLE 1 to 3, Medusa, an MLP speculator).

    source: a checkpoint's folder or file, in any naming that `read_head` knows; none of its code is
    run. target: the model that it drafts for, whose embedding and output matrix it takes where it
    has none of its own. out: a folder that is not there yet; by default beside pulled models.
    precision: of the matrices. layers: whose inputs it reads (`HiddenStates.tap`); by default as
    the checkpoint says, and where that may mean two things, those with which it guesses more of the
    target's tokens. python: an interpreter that has onnx, and gguf for a GGUF; by default this one
    if it has, else one in an environment that is made for them, where not `offline`.

    Raises ModelError and its kinds, ConfigError where the head was made for another target, and
    ConversionError where a tool fails or is missing; nothing is left at `out` then.
    """
    if precision not in _PRECISIONS:
        raise ConfigError(f"unknown precision {precision!r}; known: {', '.join(_PRECISIONS)}")
    head, model = read_head(source), model_path(target)
    sizes = target_sizes(model)
    check_target(head, sizes.hidden_size, sizes.vocab_size, sizes.n_layer)
    _check_attention(head)
    candidates = head.layers(sizes.n_layer)
    chosen = tuple(layers) if layers is not None else candidates[0]
    if len(chosen) != len(candidates[0]):
        raise ConfigError(f"layers are {list(chosen)}; {len(candidates[0])} numbers are expected")
    folder = Path(out) if out else hub.models_dir() / f"{_name(head)}-head-{precision}"
    backends.get("onnx")  # checks the result, and may be missing
    if folder.exists():
        raise ConfigError(f"{folder} is there already; give another folder, or remove it")
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    (partial / "weights").mkdir(parents=True)
    times: dict[str, float] = {}
    warnings: tuple[str, ...] = ()
    try:
        lacking = _lacking(head)
        interpreter = _interpreter(
            python, bool(lacking) and not has_folder(model), progress, offline
        )
        _write_weights(head, partial / "weights", progress, times)
        if lacking:
            job = {"target": str(model), "out": str(partial / "weights"), "wanted": lacking}
            tools.run_worker(interpreter, job, partial, progress, times, _TARGET_WEIGHTS)
            _check_shapes(head, partial / "weights", lacking, model)
        job = _job(head, chosen, precision, partial)
        tools.run_worker(interpreter, job, partial, progress, times, _GRAPHS)
        shutil.rmtree(partial / "weights")
        _write_note(head, chosen, sizes, partial)
        progress("checking that it runs")
        check_runs(partial, sizes)
        if layers is None and len(candidates) > 1:
            progress("trying both readings of the layers with the target")
            chosen, warning = _better(partial, model, candidates)
            warnings = (warning,)
            _write_note(head, chosen, sizes, partial)
        size = sum(file.stat().st_size for file in partial.iterdir())
        partial.replace(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    others = tuple(each for each in candidates if each != chosen)
    return HeadConversion(
        folder, head.kind, chosen, others, precision, size, head.license,
        {step: round(s, 1) for step, s in times.items()}, warnings,
    )  # fmt: skip


def target_sizes(path: Path) -> TargetSizes:
    """Return the sizes of a target. Raises ModelError and its kinds."""
    known = backends.of(path).inspect_metadata(path)
    hidden = known.get("embedding_length") or _configured_width(path)
    if not hidden or not known.get("block_count"):
        raise ModelError(
            f"{path} does not say how wide its states are; a config.json with hidden_size beside "
            "the graph would"
        )
    return TargetSizes(int(hidden), int(known["vocab_size"]), int(known["block_count"]))


def check_runs(folder: Path, sizes: TargetSizes) -> None:
    """Raise ConversionError if the head in a folder does not give finite rows for a few tokens."""
    engine = backends.get("onnx")
    assert isinstance(engine, HeadBackend)
    config = EngineConfig(n_ctx=64, provider="cpu")
    head: Any = engine.open_head(folder, config, sizes)  # type: ignore[arg-type]
    with contextlib.closing(head):
        rows = [head.decode([0, 1, 2], 1).logits[0].copy()]
        if head.max_depth != 1:
            rows.append(head.grow([3], [-1]).logits[0].copy())
        for row in rows:
            if np.isnan(row).any() or not np.isfinite(row).any():
                raise ConversionError(f"{folder.name} gives rows that are no numbers")


def _name(head: HeadCheckpoint) -> str:
    return head.path.resolve().parent.name


def _check_attention(head: HeadCheckpoint) -> None:
    """Raise UnknownArchitecture for a layer that onnxruntime's attention does not take."""
    if head.decoder and head.decoder.head_dim % 16:
        raise UnknownArchitecture(
            f"{head.path} has attention heads of {head.decoder.head_dim} numbers; onnxruntime "
            "takes multiples of 16"
        )


def _lacking(head: HeadCheckpoint) -> list[str]:
    """Return the matrices that a head takes from its target."""
    if head.decoder is None:
        return []
    return [n for n in ("embed_tokens", "lm_head") if f"{n}.weight" not in head.weights]


def _interpreter(
    python: str | os.PathLike[str] | None, gguf: bool, progress: Callable[[str], None],
    offline: bool,
) -> Path:  # fmt: skip
    """Return a Python that has what the programs need."""
    if python:
        return Path(python)
    needed = ("onnx", "gguf") if gguf else ("onnx",)
    if all(importlib.util.find_spec(name) for name in needed):
        return Path(sys.executable)
    return tools.interpreter(progress, offline=offline)


def _write_weights(
    head: HeadCheckpoint, folder: Path, progress: Callable[[str], None], times: dict[str, float]
) -> None:
    """Write each weight as float32, one at a time."""
    start, step = time.perf_counter(), "reading the checkpoint"
    progress(step)
    for name in head.weights:
        np.save(folder / f"{name}.npy", head.array(name))
    times[step] = time.perf_counter() - start


def _check_shapes(head: HeadCheckpoint, folder: Path, names: list[str], target: Path) -> None:
    """Raise ConversionError if the target's matrices are not what its sizes say."""
    assert head.decoder
    for name in names:
        found = np.load(folder / f"{name}.weight.npy", mmap_mode="r").shape
        if found != (expected := (head.vocab_size, head.decoder.width)):
            raise ConversionError(f"{name} of {target} has the shape {found}, expected {expected}")


def _job(
    head: HeadCheckpoint, layers: tuple[int, ...], precision: str, folder: Path
) -> dict[str, Any]:
    """Return what the program that writes graphs is told."""
    left_out = ("weights", "path", "d2t", "layer_ids", "ids_count")
    known = {f.name: getattr(head, f.name) for f in fields(head) if f.name not in left_out}
    return known | {
        "decoder": asdict(head.decoder) if head.decoder else None,
        "head_vocab_size": head.head_vocab_size,
        "layers": layers,
        "out": str(folder.resolve()),
        "weights": str((folder / "weights").resolve()),
        "precision": precision,
        "n_ctx": max(head.n_ctx_train, _LEAST_CTX),
    }


def _write_note(
    head: HeadCheckpoint, layers: tuple[int, ...], sizes: TargetSizes, folder: Path
) -> None:
    """Write head.json, and d2t.npy for a head of a part of the vocabulary."""
    note = {
        "format": 1, "kind": head.kind, "layers": layers, **asdict(sizes),
        "max_depth": head.n_heads, "n_ctx_train": head.n_ctx_train, "source": _name(head),
        "license": head.license,
    }  # fmt: skip
    (folder / "head.json").write_text(json.dumps(note, indent=1), "utf-8")
    if head.d2t is not None:
        np.save(folder / "d2t.npy", head.d2t)


def _configured_width(path: Path) -> Any:
    """Return the width of states as a file beside a graph says, None where none does."""
    for name in ("config.json", "genai_config.json"):
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            found = json.loads((path.parent / name).read_text("utf-8"))
            found = found | found.get("text_config", {})
            decoder = found.get("model", {}).get("decoder", {})
            if width := found.get("hidden_size") or decoder.get("hidden_size"):
                return width
    return None


def _better(
    folder: Path, model: Path, candidates: Sequence[tuple[int, ...]]
) -> tuple[tuple[int, ...], str]:
    """Return the layers whose states let a head guess more of its target's tokens, and what is to
    be said of it. Where the target cannot be asked it is the first candidate.
    """
    try:
        shares = _agreements(folder, model, candidates)
        found = " and ".join(f"{share:.0%}" for share in shares)
    except (EngineMissing, ModelError, ConfigError) as error:
        shares, found = [], f"an unknown share ({error})"
    chosen = candidates[max(range(len(shares)), key=shares.__getitem__, default=0)]
    readings = " or ".join(str(list(each)) for each in candidates)
    return chosen, (
        f"the checkpoint does not say if it counts layers by inputs or outputs: read as {readings} "
        f"it guesses {found} of the target's tokens; {list(chosen)} is taken, and layers=… takes "
        "another"
    )


def _agreements(folder: Path, model: Path, candidates: Sequence[tuple[int, ...]]) -> list[float]:
    """Return the share of a target's tokens that a head guesses, by the layers that it reads.
    Raises ConfigError for a target that gives no states.
    """
    engine = backends.get("onnx")
    assert isinstance(engine, HeadBackend)
    config = EngineConfig(n_ctx=512)
    with contextlib.closing(open_model(model, config)) as target:
        if not isinstance(target, HiddenStates):
            raise ConfigError(f"{model.name} gives no hidden states")
        prompt = target.tokenizer.encode(_PROMPT)
        with contextlib.closing(engine.open_head(folder, config, target)) as head:
            return [agreement(head, target, layers, prompt) for layers in candidates]
