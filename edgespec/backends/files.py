"""Files of models: which belong together, how large they are, what they are called."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import ModelNotFound


def is_onnx(path: Path) -> bool:
    """Whether a model's file is an ONNX graph; else it is a GGUF."""
    return path.suffix == ".onnx"


def onnx_files(folder: Path) -> list[Path]:
    """The graphs in a folder, or in its folder onnx/ as repositories of the hub have it."""
    return sorted([*folder.glob("*.onnx"), *folder.glob("onnx/*.onnx")])


def only_graph(folder: Path) -> Path:
    """The one graph of a folder. Raises ModelNotFound where there are several."""
    found = onnx_files(folder)
    if len(found) > 1:
        names = ", ".join(str(path.relative_to(folder)) for path in found)
        raise ModelNotFound(f"{folder} has several .onnx files: {names}; give one of them")
    return found[0]


def parts(path: Path) -> list[Path]:
    """The files of a model: a GGUF, or a graph and its external data (model.onnx.data,
    model.onnx_data_1, …).
    """
    if not is_onnx(path):
        return [path]
    beside = re.compile(re.escape(path.name) + r"([._]data(_\d+)?)?")
    return sorted(p for p in path.parent.iterdir() if beside.fullmatch(p.name) and p.is_file())


def size_of(path: Path) -> int:
    """Bytes of a model on disk."""
    return sum(part.stat().st_size for part in parts(path))


def label(path: Path) -> str:
    """A short name; every graph is called model.onnx, so with its folder."""
    return f"{path.parent.name}/{path.name}" if is_onnx(path) else path.name
