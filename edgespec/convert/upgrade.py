"""Adds inputs for trees of tokens, or outputs of hidden states, to existing ONNX graphs."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import backends
from ..backends.base import FINAL as FINAL
from ..backends.base import FileModel, Model
from ..config import EngineConfig
from ..errors import ConfigError, ConversionError, DecodeError, ModelError
from ..loading.models import model_path, open_model
from . import tools

logger = logging.getLogger("edgespec.convert")

TREE_INPUTS, HIDDEN_OUTPUTS = "edgespec.convert.tree_inputs", "edgespec.convert.hidden_outputs"
_N_TOKENS = 24
MOST_APART = 0.01  # the most by which the logits of a changed graph may differ (see `apart`)


def add_tree_inputs(
    source: str | os.PathLike[str],
    *,
    python: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] = logger.info,
    offline: bool = False,
) -> Path:
    """Change an ONNX graph in place so that it evaluates trees of tokens; return its path.

    source: a graph, its folder or a catalogue name. Weight files next to the graph are not touched.
    python: an interpreter that has onnx. The default is the running interpreter if it has onnx,
    else that of an environment for the converter's tools, which is made if it is missing, unless
    `offline`. progress: called with the name of each step when it begins.

    Raises ModelNotFound; ConfigError if `source` is not a graph or already evaluates trees; and
    ConversionError if the tools are missing, the graph cannot take the inputs, or its logits would
    change. After an error the graph is unchanged.
    """
    path = _graph(source)
    before = _Probe.of(path)
    if before.trees == "yes":
        raise ConfigError(f"{path} evaluates token trees already")
    interpreter = tools.python_with(["onnx"], python, progress, offline=offline)
    with _changed(path, TREE_INPUTS, {}, interpreter, progress) as changed:
        after = before.compare(path, changed, "the inputs of trees")
        if after.trees != "yes":
            raise ConversionError(f"{path}: trees are not evaluated; {after.trees}")
    return path


def add_hidden_states(
    source: str | os.PathLike[str],
    layers: Sequence[int],
    *,
    python: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] = logger.info,
    offline: bool = False,
) -> Path:
    """Change an ONNX graph in place so that it also outputs the hidden states of these layers.

    layers: 0 means the input of the first layer, the number of layers means the output of the last
    layer, and -1 means the final states. Returns the graph's path. The other arguments and the
    errors are those of `add_tree_inputs`.
    """
    path = _graph(source)
    check_layers(layers)
    before = _Probe.of(path, layers)
    if not before.missing:
        raise ConfigError(f"{path} gives these hidden states already")
    job = {"layers": before.missing}
    interpreter = tools.python_with(["onnx"], python, progress, offline=offline)
    with _changed(path, HIDDEN_OUTPUTS, job, interpreter, progress) as changed:
        after = before.compare(path, changed, "outputs of hidden states", layers)
        if after.missing:
            raise ConversionError(f"{path}: hidden states {after.missing} are not given")
    return path


def check_layers(layers: Sequence[int]) -> None:
    """Raise ConfigError if `layers` is not a list of layer numbers."""
    right = isinstance(layers, (list, tuple)) and all(
        isinstance(layer, int) and not isinstance(layer, bool) and layer >= FINAL
        for layer in layers
    )
    if not right:
        raise ConfigError(
            f"hidden_states are numbers of layers from 0 on, {FINAL} for the final states, "
            f"got {layers!r}"
        )


def _graph(source: str | os.PathLike[str]) -> Path:
    path = model_path(source)
    if backends.name_of(path) != "onnx":
        raise ConfigError(f"{path} is no ONNX graph; give one, or convert it first")
    return path


@contextlib.contextmanager
def _changed(
    path: Path, program: str, job: dict[str, Any], python: Path, progress: Callable[[str], None]
) -> Iterator[Path]:
    """Yield the path of a changed graph. It replaces the original afterwards, unless an error is
    raised.
    """
    partial = path.with_name(f"{path.stem}.partial.onnx")
    job |= {"graph": str(path), "out": str(partial)}
    try:
        with tempfile.TemporaryDirectory() as folder:
            for warning in tools.run_worker(python, job, Path(folder), progress, {}, program):
                raise ConversionError(f"{path}: {warning}")
        progress("checking that rows of logits are as before")
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


class _Probe(NamedTuple):
    """The results of a graph for some tokens.

    rows: the logits rows of the tokens. trees: "yes", or the reason why the graph evaluates no
    trees. missing: the wanted layers whose hidden states the graph does not output.
    """

    rows: npt.NDArray[np.float32]
    trees: str
    missing: list[int]

    @classmethod
    def of(cls, path: Path, layers: Sequence[int] = ()) -> _Probe:
        """Evaluate some tokens with a graph. layers: the layers whose hidden states are wanted."""
        config = EngineConfig(n_ctx=2 * _N_TOKENS, provider="cpu")
        with contextlib.closing(open_model(path, config)) as model:
            given = [layer for layer in layers if _gives(model, layer)]
            model.tap(given)
            return cls(
                rows_of(model), model.placement["trees"], [i for i in layers if i not in given]
            )

    def compare(self, path: Path, changed: Path, what: str, layers: Sequence[int] = ()) -> _Probe:
        """Probe a changed graph. Raises ConversionError if it does not run or its rows differ."""
        try:
            after = self.of(changed, layers)
        except (ModelError, DecodeError) as error:
            raise ConversionError(f"{path}: with {what} it cannot be run: {error}") from error
        if not apart(self.rows, after.rows) <= MOST_APART:
            raise ConversionError(f"{path}: with {what} it would give other logits")
        return after


def rows_of(model: Model) -> npt.NDArray[np.float32]:
    """Return the logits of a model for some tokens, [n, vocab_size]."""
    tokens = [(7 * i + 3) % model.vocab_size for i in range(_N_TOKENS)]
    return np.array(model.decode(tokens, n_logits=_N_TOKENS).logits)


def apart(before: npt.NDArray[np.float32], after: npt.NDArray[np.float32]) -> float:
    """Return the difference of logits, in standard deviations of those before."""
    return float((after - before).std() / before.std())


def _gives(model: FileModel, layer: int) -> bool:
    try:
        model.tap([layer])
    except ConfigError:
        return False
    return True
