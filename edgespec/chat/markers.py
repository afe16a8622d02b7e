"""The texts that a model writes around its reasoning, and placeholders in the markers of calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

ID = "\0"
"""The placeholder in a marker for the id of a call."""
ID_LENGTH = 9  # letters and digits; Mistral's templates demand this length
INDEX = "\1"
"""The placeholder in a marker for a number that counts calls."""
INDEX_LENGTH = 4  # digits of that number


@dataclass(frozen=True, slots=True)
class ReasoningMarkers:
    """The texts that a model writes around its reasoning.

    begin, end: the text before and the text after reasoning; `begin` may already be in the
    generation prompt. key: the field of a message from which the template reads reasoning, "" if it
    reads none. is_opened: True if the generation prompt opens reasoning by default. is_kept: True
    if reasoning of earlier turns stays in the prompt. switch: a template variable and the value of
    it that turns reasoning off, or None if there is none.
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


@dataclass(frozen=True, slots=True)
class ContentMarkers:
    """The texts around content, for a model that marks each part of an answer.

    begin, end: the text before and the text after content; `begin` may already be in the generation
    prompt, and `end` may be missing at the end of the answer. aside: the text before content that a
    call follows, "" if there is none. between: the text before each part but the first one. others:
    further texts before content that are read, but not allowed where the form of answers is
    enforced.
    """

    begin: str
    end: str
    aside: str = ""
    between: str = ""
    others: tuple[str, ...] = ()

    def texts(self) -> Iterator[str]:
        """Yield all these texts."""
        yield from (self.begin, self.end, self.aside, self.between, *self.others)
