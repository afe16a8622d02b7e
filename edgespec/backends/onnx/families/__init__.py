"""Families of vision-language models: how the models of each prepare pictures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ....errors import UnknownArchitecture
from ..companions import read
from .base import Family
from .idefics3 import Idefics3
from .llava import Llava

_FAMILIES: dict[str, Callable[[Path, int], Family]] = {
    "idefics3": Idefics3, "smolvlm": Idefics3, "llava": Llava,
}  # fmt: skip


def family_of(folder: Path, most_tokens: int) -> Family:
    """Return the family that config.json names as model_type.

    folder: the folder of the graphs. most_tokens: the most tokens of a picture, for families that
    can scale pictures down. Raises UnknownArchitecture for another family, ModelError or a subclass
    for companion files that are missing or damaged, and ConfigError without Pillow.
    """
    kind = read(folder, "config.json").get("model_type")
    if not isinstance(kind, str) or kind not in _FAMILIES:
        raise UnknownArchitecture(
            f"{folder}: config.json says model_type {kind!r:.40}, and pictures are prepared for "
            f"the families {', '.join(_FAMILIES)}"
        )
    family = _FAMILIES[kind](folder, most_tokens)
    family.kind = kind
    return family
