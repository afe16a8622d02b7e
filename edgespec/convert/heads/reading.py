"""Reads a checkpoint from disk; its description is the same for all projects that train heads."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import msgspec

from ... import kept_files
from ...backends.files import CHECKPOINTS, checkpoint_among, read_json
from ...backends.heads import TITLES
from ...errors import ModelError, ModelNotFound, UnknownArchitecture
from ...named_files import expanded
from ...schema import convert
from . import dflash, eagle, eagle3, medusa, mlp_speculator, moa, mtp
from .checkpoint import HeadCheckpoint
from .config import Config, license_of, read_config
from .tensors import Tensor, Tensors, read_safetensors

_LONGEST_NAME = 200  # characters
_PREFIXES = ("model.", "module.", "medusa_head.", "speculator.")


class Reader(Protocol):
    """A module that reads the checkpoints of one kind of head."""

    def recognises(self, tensors: Tensors, config: Config) -> bool:
        """Return True if a checkpoint is of this kind and of none of the kinds before it."""

    def read(self, path: Path, tensors: Tensors, config: Config) -> HeadCheckpoint:
        """Return the description of a checkpoint of this kind. Raises ModelError."""


_READERS: tuple[Reader, ...] = (dflash, medusa, mlp_speculator, moa, mtp, eagle3, eagle)
"""The readers of all kinds, in the order in which they are asked."""


class _Index(msgspec.Struct):
    """The index of a checkpoint in several files: the file of each tensor."""

    weight_map: dict[str, str]


def read_head(path: str | os.PathLike[str]) -> HeadCheckpoint:
    """Return the description of a checkpoint: a folder with its config.json, or a file in it.

    The weights are not read yet, and no code in a file is run. Raises ModelNotFound,
    TruncatedModel, UnknownArchitecture for other kinds of models, and ModelError for tensors that
    are missing or have the wrong shape.
    """
    file = _find(expanded(path))
    config = read_config(file.parent)
    tensors = {_plain(name): tensor for name, tensor in _read(file).items()}
    if odd := [n for n in tensors if len(n) > _LONGEST_NAME or not n.isprintable()]:
        raise ModelError(f"{file} is damaged: it has a tensor {odd[0]!r:.80}; fetch it again")
    for reader in _READERS:
        if reader.recognises(tensors, config):
            head = reader.read(file, tensors, config)
            return replace(head, license=license_of(file.parent, config))
    shown = ", ".join(sorted(tensors)[:4]) or "no tensors"
    raise UnknownArchitecture(
        f"{file} is no head as edgespec knows them ({TITLES}): its config names "
        f"{config.names.strip()[:200] or 'nothing'}, and it holds {shown}"
    )


def _find(path: Path) -> Path:
    """Return the file with the weights. Raises ModelNotFound."""
    if not path.is_dir():
        if path.is_file():
            return path
        raise ModelNotFound(
            f"there is no file or folder {path}; give a checkpoint's folder, or a file in it"
        )
    files = [each.name for each in kept_files.matching(path, "*") if os.path.isfile(each)]
    if name := checkpoint_among(files):
        return path / name
    there = "a config.json, but no weights" if (path / "config.json").is_file() else "neither"
    raise ModelNotFound(
        f"{path} holds no checkpoint of a head, which is a config.json beside weights in one of "
        f"{', '.join(CHECKPOINTS)}: there is {there}"
    )


def _read(path: Path) -> dict[str, Tensor]:
    if path.name.endswith(".index.json"):
        index = convert(read_json(path), _Index, str(path), ModelError)
        tensors: dict[str, Tensor] = {}
        for name in sorted(set(index.weight_map.values())):
            if not name.endswith(".safetensors") or name != Path(name).name:
                raise ModelError(
                    f"{path} names {name!r:.80}; expected is a .safetensors file in the same folder"
                )
            tensors |= read_safetensors(path.parent / name)
        return tensors
    from .pickles import read_pickle  # its modules take time to import

    return read_safetensors(path) if path.suffix == ".safetensors" else read_pickle(path)


def _plain(name: str) -> str:
    """Return a tensor's name without the names of the modules that contain the head."""
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name
