"""References, by which users name models, and their files on this disk. No network is used.

A reference is one of these:

- a path, of a GGUF, an .onnx file or a folder with one,
- a catalogue name: `qwen3-4b`, or `qwen3-4b:Q8_0` for a different quantisation,
- a repository of the hub: `hf:org/repo`, or `hf:org/repo:Q8_0`,
- a file of the hub: `hf:org/repo/file.gguf` or `.onnx`.

Names of the hub may end in `@revision`. The address of a page of the hub means the repository or
file that the page shows.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote

from ..backends.files import (
    ANY_SUFFIX,
    SUFFIXES,
    has_folder,
    is_projector,
    only_graph,
    onnx_files,
    projectors,
    single_files,
    split_parts,
)
from ..errors import ConfigError, ModelNotFound
from ..named_files import expanded
from . import catalogue, hub_client, store
from .catalogue import HubSource, ModelFile
from .known_files import called_like, is_called_like, is_gguf
from .repositories import Repository
from .storage import has_size, models_dir

_ADDRESS = re.compile(
    r"(?:hf://|(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/)([\w.-]+/[\w.-]+)(:[\w.-]+)?"
    r"(?:/(?:blob|resolve|raw|tree)/([^/?#]+)(/[^?#]+?)?|(/[^?#]+?))?/?(?:[?#].*)?"
)
_accepted: set[Path] = set()  # files of our folder that are used although their size differs


def resolve(reference: str | os.PathLike[str], *, quantisation: str | None = None) -> Path | None:
    """Return the path of a model's file on disk, None if it is not there. No network is used.

    Raises ModelNotFound if the reference is neither a file nor a known name. Raises ConfigError if
    a quantisation is given twice, or together with a reference that already means one file.
    """
    place = locate(reference, quantisation)
    return place if isinstance(place, Path) else on_disk(place)


def locate(
    reference: str | os.PathLike[str], quantisation: str | None
) -> Path | ModelFile | Repository:
    """Return what a reference names: an existing path, a file of the catalogue, or a file or a
    repository of the hub.
    """
    if not isinstance(reference, (str, os.PathLike)):
        raise ConfigError(f"a model is a name or a file, got {reference!r:.80}")
    text = os.fspath(reference)
    if not isinstance(reference, str):
        return _existing(text, quantisation)
    text = _without_address(text)
    if text.startswith("hf:"):
        _refuse_quantisation(text, quantisation)
        return _in_hub(text)
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


def _without_address(text: str) -> str:
    """Convert an address of the hub's site to an hf: reference; return anything else unchanged."""
    match = _ADDRESS.fullmatch(text)
    if not match:
        return text
    repo, tag, revision, file, bare = match.groups()
    name = f"hf:{repo}{tag or ''}{unquote(file or bare or '')}"
    return name if revision in (None, "main") else f"{name}@{unquote(revision)}"


def names_model(text: str) -> bool:
    """Return True if a text has the form of a reference, whether such a model exists or not."""
    name = text.partition(":")[0].lower()
    if text.startswith("hf:") or _ADDRESS.fullmatch(text) or name in catalogue.load():
        return True
    return not re.search(r"\s", text) and (
        text.endswith(SUFFIXES) or bool(onnx_files(_guessed(text)))
    )


def _looks_like_path(text: str) -> bool:
    if "/" in text or os.sep in text or text.endswith(SUFFIXES):
        return True
    return bool(text) and os.path.exists(_guessed(text))


def _guessed(text: str) -> Path:
    """Return a reference as a path. It may be something else, such as a name."""
    return Path(os.path.expanduser(text))


def _existing(text: str, quantisation: str | None) -> Path:
    """Return the model at a path. Raises ModelNotFound if there is none."""
    path = expanded(text)
    if not os.path.isfile(path) and not onnx_files(path):
        raise ModelNotFound(_missing(text, path))
    _refuse_quantisation(text, quantisation)
    if os.path.isdir(path):
        return only_graph(Path(os.path.abspath(path)))
    return Path(os.path.abspath(path)) if has_folder(path) else path


def _refuse_quantisation(text: str, quantisation: str | None) -> None:
    if quantisation is not None:
        raise ConfigError(
            f"{text!r} is one file already, but the quantisation {quantisation} was asked for as "
            "well; leave it out, or use a name of the catalogue"
        )


def _missing(text: str, path: Path) -> str:
    """Return the message for a path without a model, which says what else would work."""
    if os.path.isdir(path):
        inside = ", ".join([p.name for p in single_files(path) if not is_projector(p.name)][:5])
        remedy = f"name a file: {inside}" if inside else "there is no .gguf file in it either"
        if os.path.isfile(path / "config.json") and not inside:
            remedy += (
                "; a published checkpoint is converted first: `edgespec convert FOLDER OUT` a "
                "model, with --head --target MODEL a trained head"
            )
        return f"{text!r} is a folder without an .onnx file; {remedy}"
    message = f"there is no file {text!r}; {catalogue.closest(text)}"
    if re.fullmatch(rf"\w[\w.-]*/[\w.-]+/.*{ANY_SUFFIX}(@.+)?", text):
        message += f" If it is a file of the hub: hf:{text}"
    elif re.fullmatch(r"\w[\w.-]*/\w[\w.-]*(:[\w.-]+)?", text):
        message += f" If it is a repository of the hub: hf:{text}"
    return message


def _in_hub(text: str) -> ModelFile | Repository:
    """Return the file or the repository of an hf: reference. Raises ModelNotFound."""
    match = re.fullmatch(
        rf"hf:([\w.-]+/[\w.-]+)(?:/([^@\\]+{ANY_SUFFIX})|:([\w.-]+))?(?:@(.+))?", text
    )
    if not match or ".." in text:
        raise ModelNotFound(
            f"{text!r} is none of hf:org/repo, hf:org/repo:Q4_K_M and hf:org/repo/file.gguf, each "
            "with @revision if need be"
        )
    repo, file, tag, revision = match.groups()
    revision = revision or "main"
    if file is None:
        return Repository(repo, tag or "", revision)
    if (parts := split_parts(file)) and parts[0] != file:
        raise ModelNotFound(f"{text!r} is one part of a split model; name the first: {parts[0]}")
    return ModelFile(file.rsplit("/", 1)[-1], "", (HubSource(repo, file, revision),))


def on_disk(file: ModelFile | Repository) -> Path | None:
    """Return the path of a complete file in our folder or the hub's cache, None if it is in
    neither. For a repository, choose among its models in the cache, or else return the head that
    was converted from its checkpoint.
    """
    if isinstance(file, Repository):
        return store.cached_model(file) or store.converted(file)
    for own in _own(file):
        if own in _accepted or has_size(own, file.size, "it is used if that cannot be fetched"):
            return own
    for source in file.sources:
        if isinstance(source, HubSource):
            cached = hub_client.cached(source)
            if cached is not None and has_size(cached, file.size):
                return cached
    return None


def missing_projector(path: Path) -> tuple[str, ModelFile] | None:
    """Return the name of a model of the catalogue and its projector, if the model's file is on disk
    without one; None for any other file.
    """
    if projectors(path):
        return None
    for entry in catalogue.load().values():
        for file in entry.files:
            if file.projector and is_called_like(path, file) and on_disk(file) == path:
                return entry.reference(file), file.projector
    return None


def accept_another_version(file: ModelFile) -> Path | None:
    """Return a file of our folder that has the catalogue's name, but a different size; None if
    there is none. From now on this process uses that file.
    """
    for path in _own(file):
        if is_gguf(path):
            _accepted.add(path)
            return path
    return None


def _own(file: ModelFile) -> list[Path]:
    """Return the paths that a file of the catalogue may have in our folder; [] for an hf: file."""
    if not file.quantisation:
        return []
    return list(dict.fromkeys((models_dir() / file.filename, *called_like(file))))
