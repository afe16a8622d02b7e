"""Descriptions of projectors: the files with which models see pictures."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

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
