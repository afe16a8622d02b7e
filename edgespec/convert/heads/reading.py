"""Reads a checkpoint from disk; its description is the same for all projects that train heads."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from ...backends.files import read_json
from ...backends.heads import TITLES, Kind
from ...errors import ModelError, ModelNotFound, UnknownArchitecture
from ...named_files import expanded
from ...schema import convert
from .checkpoint import HeadCheckpoint
from .config import Config, read_config
from .dflash import read_dflash
from .eagle import read_eagle, read_eagle3
from .medusa import read_medusa
from .mlp_speculator import read_mlp_speculator
from .moa import read_moa
from .mtp import has_mtp, read_mtp
from .tensors import Tensor, Tensors, read_safetensors

_NAMES = (
    "model.safetensors", "model.safetensors.index.json", "medusa_lm_head.safetensors",
    "pytorch_model.bin", "medusa_lm_head.pt",
)  # fmt: skip
_LONGEST_NAME = 200  # characters
_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth")
_PREFIXES = ("model.", "module.", "medusa_head.", "speculator.")
_READERS: dict[Kind, Callable[[Path, Tensors, Config], HeadCheckpoint]] = {
    "eagle3": read_eagle3,
    "eagle": read_eagle,
    "medusa": read_medusa,
    "mlp_speculator": read_mlp_speculator,
    "dflash": read_dflash,
    "mtp": read_mtp,
    "moa": read_moa,
}


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
    return _READERS[_kind(file, config, tensors)](file, tensors, config)


def _find(path: Path) -> Path:
    """Return the file with the weights. Raises ModelNotFound."""
    if not path.is_dir():
        if path.is_file():
            return path
        raise ModelNotFound(
            f"there is no file or folder {path}; give a checkpoint's folder, or a file in it"
        )
    for name in _NAMES:
        if (path / name).is_file():
            return path / name
    for suffix in _SUFFIXES:
        if len(files := sorted(path.glob(f"*{suffix}"))) == 1:
            return files[0]
    there = "a config.json, but no weights" if (path / "config.json").is_file() else "neither"
    raise ModelNotFound(
        f"{path} holds no checkpoint of a head, which is a config.json beside weights in one of "
        f"{', '.join(_NAMES)}: there is {there}"
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


def _kind(path: Path, config: Config, tensors: Tensors) -> Kind:
    """Return the kind of a head, which its tensors show best. Raises UnknownArchitecture."""
    named = " ".join([*config.architectures, config.model_type, config.speculators_model_type])
    if "dflash" in named.lower() or {"fc.weight", "hidden_norm.weight"} <= tensors.keys():
        return "dflash"
    if any(re.fullmatch(r"\d+\.0\.linear\.weight", name) for name in tensors):
        return "medusa"
    if "proj.0.weight" in tensors and "emb.0.weight" in tensors:
        return "mlp_speculator"
    if "Ekv2E.weight" in tensors:
        return "moa"
    if has_mtp(tensors):
        return "mtp"
    if any(name.startswith(("midlayer.", "layers.0.hidden_norm")) for name in tensors):
        return "eagle3"
    if "fc.weight" in tensors and any(name.startswith("layers.0.") for name in tensors):
        return "eagle"
    shown = ", ".join(sorted(tensors)[:4]) or "no tensors"
    raise UnknownArchitecture(
        f"{path} is no head as edgespec knows them ({TITLES}): its config names "
        f"{named.strip()[:200] or 'nothing'}, and it holds {shown}"
    )
