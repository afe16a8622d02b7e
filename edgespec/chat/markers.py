"""The texts with which a model sets its reasoning apart, and what stands for ids in markers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

ID = "\0"
"""In a marker: where the id of a call stands."""
ID_LENGTH = 9  # letters and digits, as Mistral's templates insist on
INDEX = "\1"
"""In a marker: where a number stands that counts calls."""
INDEX_LENGTH = 4  # digits of it


@dataclass(frozen=True, slots=True)
class ReasoningMarkers:
    """The texts with which a model sets its reasoning apart.

    begin, end: the texts around it; begin may stand in the generation prompt. key: the field of a
    message in which the template reads it, "" if it reads none. is_opened: the generation prompt
    opens it if nothing else is said. is_kept: reasoning of earlier turns stays in the prompt.
    switch: a variable of the template with the value that turns reasoning off, None if none does.
    """

    begin: str
    end: str
    key: str = "reasoning_content"
    is_opened: bool = False
    is_kept: bool = False
    switch: tuple[str, Any] | None = None

    def texts(self) -> Iterator[str]:
        """Yield the texts around reasoning."""
        yield from (self.begin, self.end)
