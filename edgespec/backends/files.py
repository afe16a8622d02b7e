"""Model files on disk: their names, their sizes, and which files belong together. No engine is
needed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO

from .. import kept_files
from ..errors import ModelError, ModelNotFound

HEAD = "head.json"
"""The file next to a head's graphs that describes the head."""

ENGINES = {".gguf": "llama_cpp", ".onnx": "onnx"}
"""The engine for each suffix of model files."""

SUFFIXES = tuple(ENGINES)

CHECKPOINTS = (
    "model.safetensors", "model.safetensors.index.json", "medusa_lm_head.safetensors",
    "pytorch_model.bin", "medusa_lm_head.pt",
)  # fmt: skip
"""The usual names of a checkpoint's weights; if several are there, the first of them is read."""

_CHECKPOINT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth")
_MOST_JSON = 16 << 20  # bytes


def opened(path: Path) -> BinaryIO:
    """Open a file of a model for reading. Raises ModelNotFound if it cannot be read, or if it is a
    pipe, a device or a folder.
    """
    try:
        return kept_files.open_regular(path)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None


def read_bytes(path: Path, most: int) -> bytes:
    """Return the contents of a file of a model. Raises ModelNotFound if it cannot be read, and
    ModelError if it has more than `most` bytes.
    """
    try:
        return kept_files.read(path, most)
    except OSError as error:
        raise _unreadable(path, error) from None
    except ValueError as error:
        raise ModelError(f"{path} cannot be used: {error}; fetch it again") from None


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of a model. Raises the errors of `read_bytes`, and
    ModelError if the file holds anything else.
    """
    data = read_bytes(path, _MOST_JSON)
    try:
        content: Any = json.loads(data)
        if b"\\u" in data:
            json.dumps(content, ensure_ascii=False).encode()  # raises for a lone surrogate
    except RecursionError:
        raise ModelError(f"{path} is no JSON: it is nested too deeply; fetch it again") from None
    except ValueError as error:
        reason = kept_files.one_line(error)
        raise ModelError(f"{path} is no JSON: {reason}; fetch it again") from None
    if not isinstance(content, dict):
        raise ModelError(f"{path} holds no JSON object; fetch it again")
    return content


def _unreadable(path: Path, error: Exception) -> ModelNotFound:
    reason = getattr(error, "strerror", None) or error
    return ModelNotFound(f"cannot read {path}: {reason}; give a file that exists")


def checkpoint_among(names: Collection[str]) -> str:
    """Return which file of a folder has a checkpoint's weights: the one with a usual name, or else
    the only one with a suffix of weights; "" if there is none.
    """
    for name in CHECKPOINTS:
        if name in names:
            return name
    for suffix in _CHECKPOINT_SUFFIXES:
        if len(found := [name for name in names if name.endswith(suffix)]) == 1:
            return found[0]
    return ""


def stem_of(name: str) -> str:
    """Return the name of a model's file without its suffix."""
    return os.path.splitext(name)[0] if name.endswith(SUFFIXES) else name


def has_folder(path: str | Path) -> bool:
    """Return True if each model with this suffix has a folder of its own, with its companion files.
    ONNX graphs have one; a GGUF is a single file among others.
    """
    return Path(path).suffix == ".onnx"


def onnx_files(folder: Path) -> list[Path]:
    """Return the graphs in a folder and in its subfolder onnx/, which repositories on the hub
    use.
    """
    return sorted([*folder.glob("*.onnx"), *folder.glob("onnx/*.onnx")])


def only_graph(folder: Path) -> Path:
    """Return the only graph in a folder. In the folder of a head, return the first graph whose name
    begins with "head.", or else the first graph. Raises ModelNotFound if there are several to
    choose from.
    """
    graphs = onnx_files(folder)
    if os.path.isfile(folder / HEAD):
        graphs = [path for path in graphs if path.name.startswith("head.")][:1] or graphs[:1]
    if len(graphs) > 1:
        names = ", ".join(str(path.relative_to(folder)) for path in graphs)
        raise ModelNotFound(f"{folder} has several .onnx files: {names}; give one of them")
    return graphs[0]


def split_parts(name: str) -> list[str]:
    """Return the names of all parts of the split GGUF that the file `name` is a part of; [] if
    `name` is not such a part.
    """
    match = re.fullmatch(r"(.+-)\d{5}(-of-)(\d{5})(\.gguf)", name)
    if not match:
        return []
    stem, of, count, suffix = match.groups()
    return [f"{stem}{i:05}{of}{count}{suffix}" for i in range(1, int(count) + 1)]


def parts(path: Path) -> list[Path]:
    """Return the files of a model: a GGUF, the existing parts of a split GGUF, or a graph with its
    external data (model.onnx.data, model.onnx_data_1, …). A head in a folder consists of all files
    in that folder.
    """
    if not has_folder(path):
        split = [path.with_name(name) for name in split_parts(path.name)]
        return [part for part in split if os.path.isfile(part)] or [path]
    there = [p for p in kept_files.matching(path.parent, "*") if os.path.isfile(p)]
    if os.path.isfile(path.parent / HEAD):
        return there or [path]
    beside = re.compile(re.escape(path.name) + r"([._]data(_\d+)?)?")
    return [p for p in there if beside.fullmatch(p.name)] or [path]


def size_of(path: Path) -> int:
    """Return the size of a model on disk, in bytes."""
    return sum(part.stat().st_size for part in parts(path))


def label(path: Path) -> str:
    """Return a short name of a model: its file name, and for a graph also its folder, because every
    graph is called model.onnx.
    """
    return f"{path.parent.name}/{path.name}" if has_folder(path) else path.name


def folder_of_neighbours(path: Path) -> Path:
    """Return the folder in which other models lie next to this one."""
    return path.parent.parent if has_folder(path) else path.parent


def neighbours(path: Path) -> list[Path]:
    """Return a model and the models next to it: GGUF files, and graphs that are alone in their
    folders. Heads in folders are left out.
    """
    around = folder_of_neighbours(path)
    there = kept_files.matching(around, "*")
    folders = [f for f in there if os.path.isdir(f) and not os.path.isfile(f / HEAD)]
    graphs = [onnx_files(folder) for folder in folders]
    whole = [
        path
        for path in there
        if path.suffix == ".gguf" and os.path.isfile(path) and parts(path)[0] == path
    ]
    return [*whole, *(found[0] for found in graphs if len(found) == 1)]
