"""Detection of markers in text that arrives in pieces."""

from __future__ import annotations

from typing import AnyStr, NamedTuple

BLANKS = " \t\n"
"""The characters that may come before a marker."""


class Thought(NamedTuple):
    """The texts before and after reasoning at the beginning of an answer.

    is_open: the prompt ends inside the reasoning.
    """

    begin: str
    end: str
    is_open: bool


def overlap(text: AnyStr, marker: AnyStr) -> int:
    """Return the length of the longest suffix of `text` that is a prefix of `marker`.

    The complete marker does not count as a prefix.
    """
    longest = min(len(text), len(marker) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(marker[:n])), 0)
