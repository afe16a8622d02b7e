"""ONNX folders from GGUF files or Hugging Face folders, checked against their source.

torch, transformers and onnxruntime-genai's model builder are tools: they live in a virtual
environment of their own, made at the first conversion, and the runtime never imports them.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .. import backends, hub
from ..backends import files
from ..config import EngineConfig
from ..drafters.model import check_vocabulary
from ..errors import ConfigError, ConversionError, EngineMissing, ModelNotFound
from ..loading.local import backend, model_path, open_model

logger = logging.getLogger("edgespec.convert")

Precision = Literal["int4", "int8", "fp16", "fp32"]
TOOLS = (
    "onnxruntime-genai==0.18.0", "onnxruntime", "onnx", "onnx-ir", "torch",
    "transformers==5.23.0", "accelerate", "gguf", "sentencepiece", "safetensors",
)  # fmt: skip
LIMITS = {  # greedy tokens that must agree, of the source's own; mean divergence in nats
    "fp32": (0.97, 1e-3), "fp16": (0.95, 1e-2), "int8": (0.9, 0.05), "int4": (0.6, 0.7),
}  # fmt: skip
_ROOM = 14  # times a quantised source's size: floats, twice, and the result
_ROWS = 24


@dataclass(frozen=True, slots=True)
class Conversion:
    """What was made, and how it compares with its source.

    agreement: share of the source's greedy tokens, each after the source's own text, that are
    the graph's as well. greedy_equal: how many come before the first difference when each
    writes on its own. divergence: mean Kullback-Leibler divergence, nats a token.
    max_difference: of any logit. seconds: of each stage.
    """

    path: Path
    precision: Precision
    size: int
    agreement: float
    greedy_equal: int
    n_greedy: int
    divergence: float
    max_difference: float
    seconds: dict[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"path": str(self.path)}


def convert(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    precision: Precision = "int4",
    accuracy_level: int | None = None,
    hidden_states: bool = False,
    builder_options: Mapping[str, str] | None = None,
    python: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] = logger.info,
) -> Conversion:
    """Make an ONNX folder of a model and check it against its source.

    source: a GGUF (a path or a catalogue name), whose weights are dequantised, or a folder in
    Hugging Face's layout. out: a folder that is not there yet; by default beside pulled models,
    where the catalogue finds it. accuracy_level: of int4 and int8 products, 1 (float32) to 4
    (int8 activations, the default on CPUs: fast, and single tokens give other rows).
    hidden_states: the graph gives those of the last layer as well. builder_options: more of
    onnxruntime-genai's own. python: an interpreter that has the tools; by default one in an
    environment that is made for them.

    Raises ConfigError, ModelNotFound, and ConversionError where a tool fails or the result is
    too far from the source; nothing is left at `out` then.
    """
    if precision not in LIMITS:
        raise ConfigError(f"unknown precision {precision!r}; known: {', '.join(LIMITS)}")
    if accuracy_level not in (None, 1, 2, 3, 4):
        raise ConfigError(f"accuracy_level must be 1, 2, 3 or 4, got {accuracy_level!r}")
    given = _source(source)
    target = Path(out) if out else _default_out(source, given, precision)
    backend(target / "model.onnx")  # checks the result, and may be missing
    if target.exists():
        raise ConfigError(f"{target} is there already; give another folder, or remove it")
    _need_room(given, target)
    times: dict[str, float] = {}
    start = time.perf_counter()
    interpreter = Path(python) if python else _tools(progress)
    times["tools"] = time.perf_counter() - start
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    job = {
        "source": str(given.resolve()),
        "out": str(partial.resolve()),
        "precision": precision,
        "provider": "cuda" if precision == "fp16" else "cpu",
        "accuracy_level": accuracy_level,
        "hidden_states": hidden_states,
        "builder_options": dict(builder_options or {}),
    }
    try:
        warnings = _build(interpreter, job, partial, progress, times)
        progress("checking the result against the source")
        start = time.perf_counter()
        found = _check(partial, given)
        times["checking"] = time.perf_counter() - start
        size = files.size_of(partial / "model.onnx")
        seconds = {step: round(s, 1) for step, s in times.items()}
        made = Conversion(target, precision, size, **found, seconds=seconds, warnings=warnings)
        _accept(made)
        (partial / "reference.npz").unlink()
        noted = made.to_dict() | {"source": _named(given), "accuracy_level": accuracy_level}
        del noted["path"]
        (partial / "edgespec.json").write_text(json.dumps(noted, indent=1), "utf-8")
        partial.replace(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return made


def _source(source: str | os.PathLike[str]) -> Path:
    """A GGUF, or a folder with a Hugging Face model. Raises ModelNotFound."""
    folder = Path(source).expanduser()
    if folder.is_dir():
        if (folder / "config.json").exists() and list(folder.glob("*.safetensors")):
            return folder
        raise ModelNotFound(
            f"{folder} is no Hugging Face folder: it needs config.json and .safetensors files"
        )
    path = model_path(source)
    if backends.name_of(path) == "onnx":
        raise ConfigError(f"{path} is an ONNX graph already; give a GGUF or a Hugging Face folder")
    return path


def _default_out(source: str | os.PathLike[str], given: Path, precision: str) -> Path:
    """Where `name:onnx-int4` of the catalogue is looked for; of other models by their own name."""
    name = os.fspath(source).partition(":")[0].lower()
    if name not in hub.entries():
        name = given.resolve().name.removesuffix(".gguf")
    return hub.models_dir() / f"{name}-onnx-{precision}"


def _need_room(source: Path, target: Path) -> None:
    weights = [source] if source.is_file() else list(source.glob("*.safetensors"))
    needed = (_ROOM if source.is_file() else 3) * sum(file.stat().st_size for file in weights)
    there = next(folder for folder in target.absolute().parents if folder.exists())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise ConversionError(
            f"converting needs about {needed / 1e9:.1f} GB in {there} for a while, "
            f"{free / 1e9:.1f} GB are free; make room, or give a folder on another disk"
        )


def _tools(progress: Callable[[str], None]) -> Path:
    """The interpreter of the converter's environment, which is made if need be."""
    folder = hub.models_dir() / ".convert"  # emptied if it is ours and of other tools
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    ready, wanted = folder / "tools.txt", "\n".join(TOOLS)
    if ready.exists() and ready.read_text() == wanted:
        return python
    progress(f"installing the converter's tools in {folder}: about 2 GB, once")
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", *TOOLS],
    ):
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise ConversionError(
                f"the converter's tools could not be installed: {_last_line(done.stderr)}; check "
                "the network and pip's settings, or give python=… (--python) that has "
                + " ".join(TOOLS)
            )
    ready.write_text(wanted)
    return python


def _build(
    python: Path,
    job: dict[str, Any],
    folder: Path,
    progress: Callable[[str], None],
    times: dict[str, float],
) -> tuple[str, ...]:
    """Run the worker; its warnings. times: seconds of each of its steps."""
    worker = Path(__file__).with_name("worker.py")
    warnings, step, start = [], "starting", time.perf_counter()
    log = folder / "convert.log"
    with log.open("w") as errors:
        try:
            process = subprocess.Popen(
                [str(python), "-I", str(worker), json.dumps(job)],
                stdout=subprocess.PIPE,
                stderr=errors,
                stdin=subprocess.DEVNULL,
                text=True,
            )
        except OSError as error:
            raise ConfigError(f"{python} cannot be started: {error.strerror}") from error
        try:
            assert process.stdout
            for line in process.stdout:
                if not line.startswith("{"):  # a native library's own words
                    continue
                told = json.loads(line)
                if warning := told.get("warning"):
                    warnings.append(warning)
                    continue
                now = time.perf_counter()
                times[step], step, start = now - start, told["step"], now
                progress(step)
            status = process.wait()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    times[step] = time.perf_counter() - start
    if status:
        said = _last_line(log.read_text(errors="replace"))
        raise ConversionError(f"{step} failed: {said}; a model that the tools know is needed")
    log.unlink()
    return tuple(warnings)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:500] if lines else "no reason given"


def _check(folder: Path, source: Path) -> dict[str, Any]:
    """The graph beside what the source said: fields of Conversion."""
    known = np.load(folder / "reference.npz")
    prompt, greedy, logits = known["prompt"].tolist(), known["greedy"].tolist(), known["logits"]
    if source.is_file():
        _check_vocabulary(folder, source)
    model = open_model(folder / "model.onnx", EngineConfig(n_ctx=512, provider="cpu"))
    try:
        model.decode(prompt[:-1], n_logits=0)
        text = [prompt[-1], *greedy[:-1]]
        rows = np.concatenate(
            [
                model.decode(part, n_logits=len(part)).logits.copy()
                for part in (text[i : i + _ROWS] for i in range(0, len(text), _ROWS))
            ]
        )
        model.truncate(0)
        own: list[int] = []
        token = int(model.decode(prompt).logits[0].argmax())
        while len(own) < len(greedy):
            own.append(token)
            token = int(model.decode([token]).logits[0].argmax())
    finally:
        model.close()
    width = min(rows.shape[1], logits.shape[1])
    found, expected = _log_softmax(rows[:, :width]), _log_softmax(logits[:, :width])
    differing = [i for i, pair in enumerate(zip(own, greedy, strict=True)) if pair[0] != pair[1]]
    return {
        "agreement": round(float(np.mean(found.argmax(1) == greedy)), 4),
        "greedy_equal": differing[0] if differing else len(greedy),
        "n_greedy": len(greedy),
        "divergence": float((np.exp(expected) * (expected - found)).sum(1).mean()),
        "max_difference": float(abs(rows[:, :width] - logits[:, :width]).max()),
    }


def _check_vocabulary(folder: Path, source: Path) -> None:
    """Ids must mean what they mean in the GGUF: the two may become a pair."""
    try:
        engine = backend(source)
    except EngineMissing:
        return
    graph = folder / "model.onnx"
    with engine.vocabulary(source) as ours, backend(graph).vocabulary(graph) as theirs:
        check_vocabulary(ours, theirs)


def _log_softmax(rows: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    rows = rows.astype(np.float64)
    rows -= rows.max(1, keepdims=True)
    result: npt.NDArray[np.float64] = rows - np.log(np.exp(rows).sum(1, keepdims=True))
    return result


def _accept(made: Conversion) -> None:
    """Raises ConversionError for a graph that is not its source in another rounding."""
    agreement, divergence = LIMITS[made.precision]
    if made.agreement >= agreement and made.divergence <= divergence:
        return
    raise ConversionError(
        f"the {made.precision} graph is too far from its source: {made.agreement:.0%} of the "
        f"greedy tokens agree (at least {agreement:.0%} are expected), divergence "
        f"{made.divergence:.3g} nats (at most {divergence:g}); take a higher precision"
    )


def _named(source: Path) -> dict[str, Any]:
    """Which source it was, without saying where it lay."""
    if source.is_dir():
        return {"folder": source.name}
    return {"file": source.name, "size": source.stat().st_size}
