"""The findings of the doctor."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

VERDICT = "verdict"  # the subject of the sentence that says whether speculation pays
Level = Literal["ok", "note", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked.

    text: what was found; remedy: what to do about it, "" if nothing; broken: nothing can run
    until this is repaired.
    """

    level: Level
    subject: str
    text: str
    remedy: str = ""
    broken: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return asdict(self)


def gib(n: int) -> str:
    """Return a number of bytes in GiB, for a text."""
    return f"{n / 2**30:.1f} GiB"


def count(n: int, word: str) -> str:
    """Return a number and its noun, in the plural where it is not 1."""
    return f"{n} {word}{'' if n == 1 else 's'}"
