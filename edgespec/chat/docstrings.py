"""Reads docstrings: their first paragraph, and the description of each argument."""

from __future__ import annotations

import inspect
import re
from typing import NamedTuple

_SPHINX = re.compile(r":param\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:\s*(.*)")
_GOOGLE = re.compile(r"(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_NUMPY = re.compile(r"(\w+)\s*(?::.*)?")
_SECTION = re.compile(r"(args|arguments|parameters|keyword args|keyword arguments)\s*:?", re.I)
_UNDERLINE = re.compile(r"-{3,}\s*")


class Described(NamedTuple):
    """The first paragraph of a docstring, and the descriptions of its arguments by name."""

    summary: str
    arguments: dict[str, str]


def read(text: str) -> Described:
    """Return the contents of a docstring in Google's, NumPy's or Sphinx's form."""
    lines = inspect.cleandoc(text).split("\n")
    first = []
    for line in lines:
        if not line.strip() or line.startswith(":") or _SECTION.fullmatch(line.strip()):
            break
        first.append(line.strip())
    return Described(" ".join(first), _of_sections(lines) or _of_fields(lines))


def _of_fields(lines: list[str]) -> dict[str, str]:
    descriptions: dict[str, str] = {}
    name = ""
    for line in lines:
        match = _SPHINX.match(line.strip())
        if match:
            name = match[1]
            descriptions[name] = match[2].strip()
        elif not line.strip() or line.lstrip().startswith(":"):
            name = ""
        elif name:
            descriptions[name] = f"{descriptions[name]} {line.strip()}".strip()
    return descriptions


def _of_sections(lines: list[str]) -> dict[str, str]:
    """Return the descriptions in the argument sections of Google's or NumPy's form."""
    descriptions: dict[str, str] = {}
    for at, line in enumerate(lines):
        if not _SECTION.fullmatch(line.strip()) or line.startswith(" "):
            continue
        below = lines[at + 1 :]
        if below and _UNDERLINE.fullmatch(below[0]):
            descriptions |= _entries(below[1:], _NUMPY, indent=0)
        elif line.rstrip().endswith(":"):
            descriptions |= _entries(below, _GOOGLE)
    return descriptions


def _entries(
    lines: list[str], pattern: re.Pattern[str], indent: int | None = None
) -> dict[str, str]:
    """Return the entries up to the next section. Lines that are indented more continue an entry."""
    entries: dict[str, str] = {}
    name = ""
    for at, line in enumerate(lines):
        depth = len(line) - len(line.lstrip())
        following = lines[at + 1] if at + 1 < len(lines) else ""
        if not line.strip():
            continue
        indent = depth if indent is None else indent
        if depth < indent or (indent == 0 and _UNDERLINE.fullmatch(following)):
            break
        match = pattern.fullmatch(line.strip()) if depth == indent else None
        if match:
            name = match[1]
            entries[name] = match[2].strip() if pattern.groups > 1 else ""
        elif depth == indent:
            break
        elif name:
            entries[name] = f"{entries[name]} {line.strip()}".strip()
    return entries
