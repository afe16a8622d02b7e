"""Finds markers in text that arrives in pieces."""

from __future__ import annotations

from ..constraints.texts import BLANKS, overlap
from .markers import ID, ID_LENGTH, INDEX, INDEX_LENGTH

MOST_BLANKS = 4  # the most blanks before reasoning, a call or a form


def escaped(text: str) -> str:
    """Return a regular expression that matches a text, in Rust's syntax and without slashes."""
    return "".join(char if char.isalnum() else f"\\x{{{ord(char):x}}}" for char in text)


def until(marker: str, text: str) -> tuple[str, str, bool]:
    """Return the text before a marker, the text after it, and True if the marker was found.

    If it was not found, the second text is the end of `text` that may be the beginning of the
    marker.
    """
    before, separator, after = text.partition(marker)
    if separator:
        return before, after, True
    at = len(text) - overlap(text, marker)
    return text[:at], text[at:], False


def matched(marker: str, text: str) -> int | None:
    """Return the length of the marker at the beginning of `text`.

    Blanks of the marker match any number of blanks, also none: models leave out line breaks.
    Returns -1 if `text` does not begin with the marker, and None if more text is needed to decide.
    """
    at = 0
    for i, char in enumerate(marker):
        if char in BLANKS:
            at += len(text[at:]) - len(text[at:].lstrip(BLANKS))
            size = None if at == len(text) and i + 1 == len(marker) else 0
        else:
            size = _size(char, text[at:])
        if size is None or size < 0:
            return size
        at += size
    return at


def may_match(marker: str, text: str) -> bool:
    """Return True if `text` is the marker, as in `matched`, or the beginning of it."""
    n = matched(marker, text)
    return n is None or n == len(text)


def _size(char: str, text: str) -> int | None:
    """Return the length of one character of a marker in a text; -1 and None as in `matched`."""
    if not text:
        return None
    if char == ID:
        part = text[:ID_LENGTH]
        if not (part.isalnum() and part.isascii()):
            return -1
        return None if len(part) < ID_LENGTH else ID_LENGTH
    if char == INDEX:
        n = next((i for i, each in enumerate(text) if each not in "0123456789"), None)
        if n is None:
            return None if len(text) <= INDEX_LENGTH else -1
        return n if 0 < n <= INDEX_LENGTH else -1
    return 1 if text[0] == char else -1
