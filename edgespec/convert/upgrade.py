"""ONNX graphs that exist already, given what trees of tokens need."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy.typing as npt

from .. import backends
from ..config import EngineConfig
from ..errors import ConfigError, ConversionError
from ..loading.models import model_path, open_model
from . import tools

logger = logging.getLogger("edgespec.convert")

_N_TOKENS = 24


def add_tree_inputs(
    source: str | os.PathLike[str],
    *,
    python: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] = logger.info,
    offline: bool = False,
) -> Path:
    """Change an ONNX graph in place so that it evaluates trees of tokens; return its path.

    source: a graph, its folder or a catalogue name. Weights beside the graph are not touched.
    python: an interpreter that has onnx; by default this one if it has, else one in an
    environment that is made for it, where not `offline`. progress: is told what is done now.

    Raises ModelNotFound, ConfigError for what is no graph or evaluates trees already, and
    ConversionError where the tools are missing, the graph cannot take the inputs, or its rows
    would be others; it stays as it was then.
    """
    path = model_path(source)
    if backends.name_of(path) != "onnx":
        raise ConfigError(f"{path} is no ONNX graph; give one, or convert it first")
    expected, placement = _rows(path)
    if placement["trees"] == "yes":
        raise ConfigError(f"{path} evaluates token trees already")
    interpreter = Path(python) if python else _interpreter(progress, offline)
    partial = path.with_name(f"{path.stem}.partial.onnx")
    job = {"graph": str(path), "out": str(partial)}
    try:
        with tempfile.TemporaryDirectory() as folder:
            for warning in tools.run_worker(
                interpreter, job, Path(folder), progress, {}, tools.TREE_INPUTS
            ):
                raise ConversionError(f"{path}: {warning}")
        progress("checking that rows of logits are as before")
        found, placement = _rows(partial)
        if (found - expected).std() > 0.01 * expected.std():
            raise ConversionError(f"{path}: with the inputs of trees it would give other logits")
        if placement["trees"] != "yes":
            raise ConversionError(f"{path}: trees are not evaluated; {placement['trees']}")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def _interpreter(progress: Callable[[str], None], offline: bool) -> Path:
    if importlib.util.find_spec("onnx"):
        return Path(sys.executable)
    return tools.interpreter(progress, offline=offline)


def _rows(path: Path) -> tuple[npt.NDArray[Any], dict[str, str]]:
    """Return the rows of some tokens, and how the graph runs here."""
    config = EngineConfig(n_ctx=2 * _N_TOKENS, provider="cpu")
    with contextlib.closing(open_model(path, config)) as model:
        tokens = [(7 * i + 3) % model.vocab_size for i in range(_N_TOKENS)]
        return model.decode(tokens, n_logits=_N_TOKENS).logits.copy(), model.placement
