"""Descriptions of projectors: the files with which models see pictures."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


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

    def in_words(self) -> str:
        """Return a description for users without the size."""
        return f"{self.path.name} ({self.kind}), {tokens_in_words(self.most_tokens)}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as data for JSON."""
        return asdict(self) | {"path": str(self.path)}


def tokens_in_words(most: int) -> str:
    """Return a phrase that says how many tokens a picture has at most; 0 for an unknown number."""
    return f"at most {most} tokens a picture" if most else "an unknown number of tokens a picture"
