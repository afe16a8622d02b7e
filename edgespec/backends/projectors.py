"""Projectors, the files with which models see pictures: their descriptions, and which is used."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..errors import EdgeSpecError
from . import files

logger = logging.getLogger("edgespec.projectors")
E = TypeVar("E")

NONE = "none"
"""The value of the setting `mmproj` for a model that is to read text alone."""


@dataclass(frozen=True, slots=True)
class ProjectorFacts:
    """The description of a projector, read from the header of its file.

    kind: its way to make tokens of a picture, such as "gemma3". size: bytes. width: the count of
    numbers in an embedding that it makes. most_tokens: the most tokens that it makes of a picture,
    with the default of `image_max_tokens`. Both are 0 if they are not known.
    """

    path: Path
    kind: str
    size: int
    width: int = 0
    most_tokens: int = 0

    @property
    def tokens(self) -> str:
        """A phrase that says how many tokens a picture has at most."""
        most = self.most_tokens
        number = f"at most {most} tokens" if most else "an unknown number of tokens"
        return f"{number} a picture"

    def in_words(self) -> str:
        """Return a description for users without the size."""
        return f"{self.path.name} ({self.kind}), {self.tokens}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as data for JSON."""
        return asdict(self) | {"path": str(self.path)}


def open_eyes(
    model: Path, mmproj: str, lacks: str, opened: Callable[[Path], E]
) -> tuple[E | None, str]:
    """Open the projector that the setting `mmproj` names, or else the one that lies with a model.
    Return the eyes, or None and the reason why the model reads text alone.

    A projector that was not named and does not fit is left out, with a warning. lacks: the reason
    if there is no projector. opened: opens a projector; its errors are raised for one that is
    named.
    """
    blind = f"{files.label(model)} reads text alone: "
    if mmproj == NONE:
        return None, f"{blind}its projector is left out, because mmproj is none"
    path = Path(mmproj) if mmproj else next(iter(files.projectors(model)), None)
    if path is None:
        return None, blind + lacks
    try:
        return opened(path), ""
    except EdgeSpecError as error:
        if mmproj:
            raise
        logger.warning("pictures cannot be shown: %s", error)
        return None, f"{blind}{error}"
