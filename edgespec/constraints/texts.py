"""Detection of markers in text that arrives in pieces."""

from __future__ import annotations

from typing import AnyStr

BLANKS = " \t\n"
"""The characters that may come before a marker."""


def overlap(text: AnyStr, marker: AnyStr) -> int:
    """Return the length of the longest suffix of `text` that is a prefix of `marker`.

    The complete marker does not count as a prefix.
    """
    longest = min(len(text), len(marker) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(marker[:n])), 0)
