"""Model files on disk: their names, their sizes, and which files belong together. No engine is
needed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from .. import kept_files
from ..errors import ModelError, ModelNotFound

HEAD = "head.json"
"""The file next to a head's graphs that describes the head."""

DRAFTED_IDS = "d2t.npy"
"""The file next to a graph that drafts only some tokens: the target's id of each of them."""

CHECKPOINTS = (
    "model.safetensors", "model.safetensors.index.json", "medusa_lm_head.safetensors",
    "pytorch_model.bin", "medusa_lm_head.pt",
)  # fmt: skip
"""The usual names of a checkpoint's weights; if several are there, the first of them is read."""

_CHECKPOINT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth")
_QUANTISATION = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d\w*|TQ\d\w*|MXFP\d\w*|BF16|FP?16|FP?32|INT\d))(?=[-./]|$)", re.I
)
EMBEDDING, VISION = "embed_tokens", "vision_encoder"
"""The stages of a vision-language model before its decoder, by the names of their graphs."""

_STAGE = re.compile(rf"(?:^|[/\\])(?:{EMBEDDING}|{VISION}|audio_encoder)(?:_\w+)?\.onnx$")
_DECODER = re.compile(r"decoder_model_merged(_\w+)?\.onnx$")
_PROJECTOR = re.compile(rf"mmproj[^/\\]*\.gguf$|(?:^|[/\\]){VISION}(?:_\w+)?\.onnx$", re.I)
_USUAL_BITS = 16  # of a weight, in files whose names do not tell
_MOST_JSON = 16 << 20  # bytes
_HASHED = 1 << 20  # bytes


@dataclass(frozen=True, slots=True)
class Format:
    """A format of model files.

    engine: the package in `edgespec.backends` that reads it. name: what users call it. has_folder:
    each model has a folder of its own, with its companion files; otherwise it is a single file
    among others.
    """

    engine: str
    name: str
    has_folder: bool = False


FORMATS = {".gguf": Format("llama_cpp", "GGUF"), ".onnx": Format("onnx", "ONNX", has_folder=True)}
"""The format for each suffix of model files. Nothing else declares an engine."""

SUFFIXES = tuple(FORMATS)
ANY_SUFFIX = f"(?:{'|'.join(map(re.escape, SUFFIXES))})"
"""A regular expression for the suffix of a model file."""

GRAPHS = ("*.onnx", "onnx/*.onnx")
"""The places of graphs in a folder; repositories on the hub use the subfolder."""

_SINGLE = tuple(f"*{suffix}" for suffix, each in FORMATS.items() if not each.has_folder)


def format_of(path: str | Path) -> Format:
    """Return the format of a model file. The suffix alone decides; nothing is read. A file with an
    unknown suffix is taken for a GGUF; the engine later checks that it is one.
    """
    return FORMATS.get(Path(path).suffix, FORMATS[".gguf"])


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


def quantisation_of(name: str) -> str:
    """Return the last quantisation named in the path of a GGUF or a graph, "" if there is none."""
    names = _QUANTISATION.findall(stem_of(name))
    return names[-1].upper() if names else ""


def is_projector(name: str) -> bool:
    """Return True for a file named like a projector, the part of a model that sees."""
    return bool(_PROJECTOR.search(name))


def is_stage(name: str) -> bool:
    """Return True for a graph that is no model but that a decoder needs, such as
    onnx/embed_tokens.onnx.
    """
    return bool(_STAGE.search(name))


def is_decoder(name: str) -> bool:
    """Return True for a graph named like a decoder that needs other stages next to it."""
    return bool(_DECODER.search(name))


def stage_names(decoder: str, stage: str) -> list[str]:
    """Return the file names that a stage ("embed_tokens", "vision_encoder") of a decoder may have:
    first that of the decoder's precision.
    """
    match = _DECODER.search(decoder)
    return list(dict.fromkeys([f"{stage}{(match and match[1]) or ''}.onnx", f"{stage}.onnx"]))


def stage(decoder: Path, name: str) -> Path | None:
    """Return the graph of a stage next to a decoder (`stage_names`), if need be of any precision;
    None if there is none.
    """
    named = [decoder.with_name(each) for each in stage_names(decoder.name, name)]
    others = kept_files.matching(decoder.parent, f"{name}*.onnx")
    return next((path for path in [*named, *others] if os.path.isfile(path)), None)


def nearest_projectors(model: str, names: Iterable[str]) -> list[str]:
    """Return the projectors among the files of a repository, the one to use with a GGUF first.

    That is the one with which the model shares the deepest folder; then the one with the most words
    in common with the model's name; then the one whose bits a weight are nearest to the model's.
    The paths have slashes.
    """
    *folders, stem = _words_of(model)

    def likeness(name: str) -> tuple[int, int, int, str]:
        *others, words = _words_of(name)
        least = min(len(folders), len(others))
        depth = next((i for i in range(least) if folders[i] != others[i]), least)
        return depth, len(stem & words), -abs(_bits_of(name) - _bits_of(model)), name

    there = [name for name in names if is_projector(name) and not has_folder(name)]
    return sorted(there, key=likeness, reverse=True)  # F16 before BF16


def _words_of(name: str) -> list[set[str]]:
    """Return the words in each part of a path, without the quantisation in the file's name."""
    *folders, file = stem_of(name).lower().split("/")
    return [{each} for each in folders] + [set(re.split("[-_.]", _QUANTISATION.sub("", file)))]


def _bits_of(name: str) -> int:
    digits = re.search(r"\d+", quantisation_of(name))
    return int(digits[0]) if digits else _USUAL_BITS


def projectors(path: Path) -> list[Path]:
    """Return the projectors on this disk for a model, the one to use first (`nearest_projectors`).

    They lie in the model's folder, or in the hub's cache anywhere in its repository. An ONNX model
    has its vision encoder next to it.
    """
    if has_folder(path):
        encoder = stage(path, VISION)
        return [encoder] if encoder else []
    home = _home_in_cache(path)
    root, pattern = (home, "**/*.gguf") if home else (path.parent, "*.gguf")
    there = {
        file.relative_to(root).as_posix(): file
        for file in kept_files.matching(root, pattern)
        if os.path.isfile(file)
    }
    return [there[name] for name in nearest_projectors(path.relative_to(root).as_posix(), there)]


def repository_of(path: Path) -> str:
    """Return the repository of a file in the hub's cache, as org/name; "" for any other file."""
    home = _home_in_cache(path)
    return home.parents[1].name.removeprefix("models--").replace("--", "/") if home else ""


def to_fetch_again(path: Path) -> str:
    """Return advice on how to get the files that belong to a model and are missing."""
    home = _home_in_cache(path)
    if home is None:
        return "fetch it from the same repository"
    name = f"{repository_of(path)}/{path.relative_to(home).as_posix()}"
    return f"fetch it with `edgespec pull hf:{name}`"


def _home_in_cache(path: Path) -> Path | None:
    """Return the folder of a file's repository in the hub's cache, None if it lies elsewhere."""
    for folder in path.parents:
        of = folder.parent
        if of.name == "snapshots" and of.parent.name.startswith("models--"):
            return folder
    return None


def has_folder(path: str | Path) -> bool:
    """Return True if models of this format have a folder each (`Format`)."""
    return format_of(path).has_folder


def single_files(folder: Path) -> list[Path]:
    """Return the files in a folder that are named like models without a folder of their own."""
    return kept_files.matching(folder, *_SINGLE)


def onnx_files(folder: Path) -> list[Path]:
    """Return the models among the graphs in a folder (`GRAPHS`)."""
    graphs = sorted(path for pattern in GRAPHS for path in folder.glob(pattern))
    return [path for path in graphs if not is_stage(path.name)]


def folders_of(graph: Path) -> list[Path]:
    """Return the folders of the files next to a graph: its own, and if that is onnx/ the one above,
    as in repositories on the hub.
    """
    return [graph.parent, *([graph.parents[1]] if graph.parent.name == "onnx" else [])]


def find(folder: Path, name: str) -> Path | None:
    """Return the path of a file next to a graph in a folder (`folders_of`), None if there is
    none.
    """
    there = (each / name for each in folders_of(folder / Path(name).name))
    return next((path for path in there if path.is_file()), None)


def only_graph(folder: Path) -> Path:
    """Return the only graph in a folder. For a head, return the first graph whose name begins with
    "head.", or else the first graph. Raises ModelNotFound if there is none, or if there are several
    to choose from.
    """
    graphs = onnx_files(folder)
    if graphs and all(os.path.isfile(path.with_name(HEAD)) for path in graphs):
        graphs = [path for path in graphs if path.name.startswith("head.")][:1] or graphs[:1]
    if not graphs:
        raise ModelNotFound(f"{folder} has no .onnx file")
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
    external data (model.onnx.data, model.onnx_data_1, …), and with its embedding, if that is a
    graph of its own. A head in a folder consists of all files in that folder.
    """
    if not has_folder(path):
        split = [path.with_name(name) for name in split_parts(path.name)]
        return [part for part in split if os.path.isfile(part)] or [path]
    there = [p for p in kept_files.matching(path.parent, "*") if os.path.isfile(p)]
    if os.path.isfile(path.parent / HEAD):
        return there or [path]
    embedding = stage(path, EMBEDDING) if is_decoder(path.name) else None
    names = "|".join(re.escape(graph.name) for graph in (path, embedding) if graph)
    weights = re.compile(rf"(?:{names})([._]data(_\d+)?)?")
    return [p for p in there if weights.fullmatch(p.name)] or [path]


def size_of(path: Path) -> int:
    """Return the size of a model on disk, in bytes."""
    return sum(part.stat().st_size for part in parts(path))


def identity(path: Path) -> list[Any]:
    """Return what identifies a model's file, as JSON values: its label, its size in bytes and a
    hash of its beginning. Raises ModelNotFound.
    """
    with opened(path) as file:
        start = hashlib.sha256(file.read(_HASHED)).hexdigest()[:16]
    return [label(path), size_of(path), start]


def stamps(path: Path) -> list[list[Any]]:
    """Return the name, the size and the time of change of each file of a model, for JSON. Raises
    OSError.
    """
    stats = [(part.name, part.stat()) for part in parts(path)]
    return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]


def label(path: Path) -> str:
    """Return a short name of a model: its file name, and for a graph also its folder, because every
    graph is called model.onnx.
    """
    return f"{path.parent.name}/{path.name}" if has_folder(path) else path.name


def folder_of_neighbours(path: Path) -> Path:
    """Return the folder in which other models lie next to this one."""
    return path.parent.parent if has_folder(path) else path.parent


def neighbours(path: Path) -> list[Path]:
    """Return a model and the models next to it: single files, and graphs that are alone in their
    folders. Projectors, and heads in folders, are left out.
    """
    around = folder_of_neighbours(path)
    there = kept_files.matching(around, "*")
    folders = [f for f in there if os.path.isdir(f) and not os.path.isfile(f / HEAD)]
    graphs = [onnx_files(folder) for folder in folders]
    single = [f for f in single_files(around) if os.path.isfile(f) and not is_projector(f.name)]
    whole = [f for f in single if parts(f)[0] == f]
    return [*whole, *(found[0] for found in graphs if len(found) == 1)]
