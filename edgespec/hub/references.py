"""The names that users give to models, and their files on this disk; no network is used.

A reference is a path (of a GGUF, an .onnx file or a folder with one), a catalogue name
(`qwen3-4b`, or `qwen3-4b:Q8_0` for another quantisation) or a file of the hub
(`hf:org/repo/file.gguf` or `.onnx`, with `@revision` if need be).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..backends.files import has_folder, only_graph, onnx_files
from ..errors import ConfigError, ModelNotFound
from . import catalogue, hub_client
from .catalogue import HubSource, ModelFile
from .storage import has_size, models_dir


def resolve(reference: str | os.PathLike[str], *, quantisation: str | None = None) -> Path | None:
    """Return the file on disk, without any network; None if a known model is not there.

    Raises ModelNotFound for what is neither a file nor a name, ConfigError for a
    quantisation given twice or beside a reference that is one file already.
    """
    found = locate(reference, quantisation)
    return found if isinstance(found, Path) else on_disk(found)


def locate(reference: str | os.PathLike[str], quantisation: str | None) -> Path | ModelFile:
    """Return a path that exists, or the file that a name or hf: reference stands for."""
    text = os.fspath(reference)
    if not isinstance(reference, str):
        return _existing(text, quantisation)
    if text.startswith("hf:"):
        _refuse_quantisation(text, quantisation)
        return _hub_file(text)
    name, _, suffix = text.partition(":")
    if name.lower() in catalogue.load():
        if suffix and quantisation and suffix.lower() != quantisation.lower():
            raise ConfigError(
                f"{text!r} asks for {suffix}, the quantisation option for {quantisation}; give one"
            )
        return catalogue.entry(name).file(suffix or quantisation)
    if not _looks_like_path(text):
        catalogue.entry(name)  # raises, with the closest names
    return _existing(text, quantisation)


def _looks_like_path(text: str) -> bool:
    if "/" in text or os.sep in text or text.endswith((".gguf", ".onnx")):
        return True
    return bool(text) and Path(text).expanduser().exists()


def _existing(text: str, quantisation: str | None) -> Path:
    """Return the model at a path. Raises ModelNotFound if there is none."""
    path = Path(text).expanduser()
    if not path.is_file() and not onnx_files(path):
        raise ModelNotFound(_missing(text, path))
    _refuse_quantisation(text, quantisation)
    if path.is_dir():
        return only_graph(Path(os.path.abspath(path)))
    return Path(os.path.abspath(path)) if has_folder(path) else path


def _refuse_quantisation(text: str, quantisation: str | None) -> None:
    if quantisation is not None:
        raise ConfigError(
            f"{text!r} is one file already, but the quantisation {quantisation} was asked for as "
            "well; leave it out, or use a name of the catalogue"
        )


def _missing(text: str, path: Path) -> str:
    """Return the message for a path where no model is, with what else would work."""
    if path.is_dir():
        inside = ", ".join(sorted(p.name for p in path.glob("*.gguf"))[:5])
        remedy = f"name a file: {inside}" if inside else "there is no .gguf file in it either"
        return f"{text!r} is a folder without an .onnx file; {remedy}"
    message = f"there is no file {text!r}; {catalogue.closest(text)}"
    if re.fullmatch(r"\w[\w.-]*/[\w.-]+/.*\.(gguf|onnx)(@.+)?", text):
        message += f" If it is a file of the hub: hf:{text}"
    return message


def _hub_file(text: str) -> ModelFile:
    """Return the file of an hf: reference; it has no quantisation. Raises ModelNotFound."""
    match = re.fullmatch(r"hf:([\w.-]+/[\w.-]+)/([^@\\]+\.(?:gguf|onnx))(?:@(.+))?", text)
    if not match or ".." in text:
        raise ModelNotFound(f"{text!r} is not of the form hf:org/repo/file.gguf[@revision]")
    if re.search(r"-\d{5}-of-\d{5}\.gguf", text):
        raise ModelNotFound(f"{text!r} is one part of a split model; choose a file that is whole")
    repo, file, revision = match.groups()
    source = HubSource(repo, file, revision or "main")
    return ModelFile(file.rsplit("/", 1)[-1], "", (source,))


def on_disk(file: ModelFile) -> Path | None:
    """Return the whole file if it is in our folder or in the hub's cache."""
    own = models_dir() / file.filename
    if file.quantisation and has_size(own, file.size):  # hf: references have none
        return own
    for source in file.sources:
        if isinstance(source, HubSource):
            cached = hub_client.cached(source)
            if cached is not None and has_size(cached, file.size):
                return cached
    return None
