"""The findings that the doctor reports."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

VERDICT = "verdict"  # the subject of the finding that says whether speculation is faster
Level = Literal["ok", "note", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    text: the result as a sentence. remedy: what to do about it, "" if nothing. broken: nothing can
    run until this is repaired.
    """

    level: Level
    subject: str
    text: str
    remedy: str = ""
    broken: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as data for JSON."""
        return asdict(self)


def gib(n: int) -> str:
    """Return a number of bytes as text in GiB."""
    return f"{n / 2**30:.1f} GiB"


def count(n: int, word: str) -> str:
    """Return a number and its noun, in the plural unless the number is 1."""
    return f"{n} {word}{'' if n == 1 else 's'}"
