"""Makes ONNX folders from GGUF files or Hugging Face folders, and checks them."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .. import backends, hub
from ..backends import files
from ..backends.base import Model
from ..config import EngineConfig, build
from ..drafters.vocabulary import check_vocabulary
from ..errors import ConfigError, ConversionError, EngineMissing, ModelNotFound
from ..hub.known_files import is_gguf
from ..kept_files import free_disk
from ..loading.models import model_path, open_model
from ..named_files import expanded
from . import tools
from .upgrade import HIDDEN_OUTPUTS, TREE_INPUTS, check_layers

logger = logging.getLogger("edgespec.convert")

Precision = Literal["int4", "int8", "fp16", "fp32"]
LIMITS = {  # least agreement with the source's greedy tokens; most divergence, nats
    "fp32": (0.97, 1e-3), "fp16": (0.95, 1e-2), "int8": (0.9, 0.05), "int4": (0.6, 0.7),
}  # fmt: skip
_ROWS = 24  # of a call
_GGUF_SPACE, _FOLDER_SPACE = 14, 3  # disk space per source size: two copies as floats


@dataclass(frozen=True, slots=True)
class ConversionOptions:
    """Options of the graph that a conversion makes.

    precision: the precision of the weights. accuracy_level: how int4 and int8 products are
    computed, from 1 (float32) to 4 (int8 activations). On CPUs the default is 4, which is fast, but
    the logits row of a token that is evaluated alone then differs from its row in a batch.
    hidden_states: the layers whose hidden states become outputs of the graph, too; see
    `add_hidden_states`. builder_options: further options of onnxruntime-genai's builder.
    """

    precision: Precision = "int4"
    accuracy_level: int | None = None
    hidden_states: Sequence[int] = ()
    builder_options: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if self.precision not in LIMITS:
            raise ConfigError(f"unknown precision {self.precision!r}; known: {', '.join(LIMITS)}")
        if self.accuracy_level not in (None, 1, 2, 3, 4):
            raise ConfigError(f"accuracy_level must be 1, 2, 3 or 4, got {self.accuracy_level!r}")
        check_layers(self.hidden_states)

    @property
    def provider(self) -> str:
        """The execution provider that the graph is made for."""
        return "cuda" if self.precision == "fp16" else "cpu"


@dataclass(frozen=True, slots=True)
class Conversion:
    """A converted model, compared with its source.

    size: the size of the graph with its weights, in bytes. agreement: the share of the source's
    greedy tokens that are also the graph's greedy tokens, each after the source's own text.
    greedy_equal: the number of equal tokens before the first difference, when graph and source each
    continue their own text. n_greedy: the number of tokens that were compared. divergence: the mean
    Kullback-Leibler divergence in nats per token. max_difference: the largest difference of a
    logit. seconds: the time of each stage.
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
        """Return the fields for JSON."""
        return asdict(self) | {"path": str(self.path)}


def convert(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    python: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] = logger.info,
    offline: bool = False,
    **options: Any,
) -> Conversion:
    """Make an ONNX folder from a model and check it against its source.

    source: a GGUF (a path or a catalogue name), whose weights are dequantised, or a folder in
    Hugging Face's layout. out: a folder that does not exist yet; by default it is next to pulled
    models, where the catalogue finds it. python: an interpreter that has the tools; by default that
    of an environment for the tools, which is made if it is missing, unless `offline`. progress:
    called with the name of each step when it begins. options: fields of ConversionOptions
    (precision, accuracy_level, hidden_states, builder_options).

    Raises ConfigError, ModelNotFound, and ConversionError if a tool fails or is missing, or if the
    result is too far from the source. In these cases nothing is left at `out`.
    """
    wanted = build(ConversionOptions, options)
    given = _source(source)
    target = Path(out) if out else default_folder(source, given, wanted.precision)
    backends.of(target / "model.onnx")  # raises if the engine that checks the result is missing
    if target.exists():
        raise ConfigError(f"{target} is there already; give another folder, or remove it")
    _check_space(given, target)
    start = time.perf_counter()
    interpreter = Path(python) if python else tools.interpreter(progress, offline=offline)
    times = {"tools": time.perf_counter() - start}
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        job = _job(given, partial, wanted)
        warnings: tuple[str, ...] = ()
        for program in _programs(wanted):
            warnings += tools.run_worker(interpreter, job, partial, progress, times, program)
        progress("checking the result against the source")
        start = time.perf_counter()
        compared = _compared(partial, given)
        times["checking"] = time.perf_counter() - start
        made = Conversion(
            target, wanted.precision, files.size_of(partial / "model.onnx"),
            **compared, seconds={step: round(s, 1) for step, s in times.items()},
            warnings=warnings,
        )  # fmt: skip
        _check_limits(made)
        _write_note(made, given, wanted.accuracy_level, partial)
        partial.replace(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return made


def is_graph(source: str | os.PathLike[str]) -> bool:
    """Return True if `source` is an ONNX graph or its folder, so that there is nothing to convert.

    Raises ModelNotFound.
    """
    folder = expanded(source)
    if holds_weights(folder):
        return False
    return backends.name_of(model_path(source)) == "onnx"


def holds_weights(folder: Path) -> bool:
    """Return True if a folder has Hugging Face's layout."""
    return (folder / "config.json").exists() and bool(list(folder.glob("*.safetensors")))


def _source(source: str | os.PathLike[str]) -> Path:
    """Return the path of a GGUF, or of a folder with a Hugging Face model. Raises ModelNotFound,
    and ConfigError for any other file.
    """
    folder = expanded(source)
    if folder.is_dir():
        if holds_weights(folder):
            return folder
        raise ModelNotFound(
            f"{folder} is no Hugging Face folder: it needs config.json and .safetensors files"
        )
    path = model_path(source)
    if not is_gguf(path):
        what = "an ONNX graph already" if is_graph(path) else "no GGUF"
        raise ConfigError(f"{path} is {what}; give a GGUF or a Hugging Face folder")
    return path


def default_folder(source: str | os.PathLike[str], given: Path, precision: str) -> Path:
    """Return the folder in which the catalogue looks for `name:onnx-int4`.

    `name` is the catalogue's name if `source` is in the catalogue, else the name of the file
    `given`.
    """
    name = os.fspath(source).partition(":")[0].lower()
    if name not in hub.entries():
        name = given.resolve().name.removesuffix(".gguf")
    return hub.models_dir() / f"{name}-onnx-{precision}"


def _check_space(source: Path, target: Path) -> None:
    """Raise ConversionError if the disk has too little space for the intermediate files."""
    gguf = source.is_file()
    weights = [source] if gguf else list(source.glob("*.safetensors"))
    times = _GGUF_SPACE if gguf else _FOLDER_SPACE
    needed = times * sum(file.stat().st_size for file in weights)
    there = target.absolute().parent
    free = free_disk(there)
    if free < needed:
        raise ConversionError(
            f"converting needs about {needed / 1e9:.1f} GB in {there} for a while, "
            f"{free / 1e9:.1f} GB are free; free some space, or give a folder on another disk"
        )


def _job(source: Path, folder: Path, wanted: ConversionOptions) -> dict[str, Any]:
    """Return the job of all programs: they write a graph, then change it, in a folder."""
    graph = str(folder.resolve() / "model.onnx")
    return {
        "source": str(source.resolve()),
        "folder": str(folder.resolve()),
        "graph": graph,
        "out": graph,
        "layers": list(wanted.hidden_states),
        "precision": wanted.precision,
        "provider": wanted.provider,
        "accuracy_level": wanted.accuracy_level,
        "builder_options": dict(wanted.builder_options or {}),
    }


def _programs(wanted: ConversionOptions) -> Iterator[str]:
    """Yield the programs that build the graph and add what the builder leaves out."""
    yield "edgespec.convert.worker"
    if wanted.hidden_states:
        yield HIDDEN_OUTPUTS
    if wanted.provider == "cpu":  # with a bias, CUDA's kernel is slower, also for chains
        yield TREE_INPUTS


def _check_limits(made: Conversion) -> None:
    """Raise ConversionError if the graph differs from its source by more than rounding explains."""
    agreement, divergence = LIMITS[made.precision]
    if made.agreement >= agreement and made.divergence <= divergence:
        return
    raise ConversionError(
        f"the {made.precision} graph is too far from its source: {made.agreement:.0%} of the "
        f"greedy tokens agree (at least {agreement:.0%} are expected), divergence "
        f"{made.divergence:.3g} nats (at most {divergence:g}); take a higher precision"
    )


def _write_note(made: Conversion, source: Path, accuracy_level: int | None, folder: Path) -> None:
    """Write edgespec.json next to the graph, and remove the file that only the check needed."""
    (folder / "reference.npz").unlink()
    named = {"folder": source.name}  # the path is left out
    if source.is_file():
        named = {"file": source.name, "size": source.stat().st_size}  # type: ignore[dict-item]
    noted = made.to_dict() | {"source": named, "accuracy_level": accuracy_level}
    del noted["path"]
    (folder / "edgespec.json").write_text(json.dumps(noted, indent=1), "utf-8")


def _compared(folder: Path, source: Path) -> dict[str, Any]:
    """Run the graph in a folder on the text that the source wrote; return the fields of Conversion
    that say how the results differ.

    The text and the source's logits are in the folder's reference.npz. Raises VocabularyMismatch if
    token ids mean something else than in the source.
    """
    known = np.load(folder / "reference.npz")
    prompt, greedy, logits = known["prompt"].tolist(), known["greedy"].tolist(), known["logits"]
    if source.is_file():
        _check_vocabulary(folder, source)
    config = EngineConfig(n_ctx=512, provider="cpu")
    with contextlib.closing(open_model(folder / "model.onnx", config)) as model:
        rows = _rows_along(model, prompt, greedy)
        own = _greedy(model, prompt, len(greedy))
    width = min(rows.shape[1], logits.shape[1])
    ours, expected = _log_softmax(rows[:, :width]), _log_softmax(logits[:, :width])
    differing = [i for i, pair in enumerate(zip(own, greedy, strict=True)) if pair[0] != pair[1]]
    return {
        "agreement": round(float(np.mean(ours.argmax(1) == greedy)), 4),
        "greedy_equal": differing[0] if differing else len(greedy),
        "n_greedy": len(greedy),
        "divergence": float((np.exp(expected) * (expected - ours)).sum(1).mean()),
        "max_difference": float(abs(rows[:, :width] - logits[:, :width]).max()),
    }


def _rows_along(model: Model, prompt: list[int], greedy: list[int]) -> npt.NDArray[np.float32]:
    """Return the graph's logits for each token of `greedy`, [len(greedy), vocab_size]."""
    model.decode(prompt[:-1], n_logits=0)
    text = [prompt[-1], *greedy[:-1]]
    chunks = (text[i : i + _ROWS] for i in range(0, len(text), _ROWS))
    return np.concatenate(
        [model.decode(chunk, n_logits=len(chunk)).logits.copy() for chunk in chunks]
    )


def _greedy(model: Model, prompt: list[int], n: int) -> list[int]:
    """Return the n greedy tokens that the graph generates after the prompt on its own."""
    model.truncate(0)
    tokens: list[int] = []
    token = int(model.decode(prompt).logits[0].argmax())
    while len(tokens) < n:
        tokens.append(token)
        token = int(model.decode([token]).logits[0].argmax())
    return tokens


def _check_vocabulary(folder: Path, source: Path) -> None:
    """Raise VocabularyMismatch if the graph's token ids mean something else than the GGUF's.

    The ids must mean the same because the two models may be used as target and draft model.
    """
    graph = folder / "model.onnx"
    with contextlib.ExitStack() as stack:
        try:
            ours = stack.enter_context(backends.of(source).vocabulary(source))
        except EngineMissing:
            return
        check_vocabulary(ours, stack.enter_context(backends.of(graph).vocabulary(graph)))


def _log_softmax(rows: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    rows = rows.astype(np.float64)
    rows -= rows.max(1, keepdims=True)
    result: npt.NDArray[np.float64] = rows - np.log(np.exp(rows).sum(1, keepdims=True))
    return result
