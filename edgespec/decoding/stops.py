"""Finds stop strings in the text of an answer, however it is cut into pieces.

They are not looked for in reasoning. In JSON they are looked for in texts that are values, as they
read without escapes; names and punctuation do not count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from ..constraints.texts import BLANKS, overlap
from ..types import Thought

_HEX = r"\\u[0-9a-fA-F]{4}"
_CHARACTER = re.compile(rf"\\u[dD][89abAB][0-9a-fA-F]{{2}}{_HEX}|{_HEX}|\\[^u]|[^\\]", re.DOTALL)
_MAY_GO_ON = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?|\\u[dD][89abAB].{0,2}(?:\\u?.{0,3})?")


class Stops:
    """Takes the text of one answer in pieces, and returns what may be shown of it.

    is_json: the answer is JSON. thought: the texts around the reasoning before the answer, None if
    there is none. found: the stop string that has ended the answer, None before.
    """

    def __init__(
        self, stops: Sequence[str], *, is_json: bool = False, thought: Thought | None = None
    ) -> None:
        self._stops = stops
        self._thought = thought
        self._is_inside = bool(thought and thought.is_open)
        self._json = _JsonTexts(stops) if is_json else None
        self._held = ""
        self.found: str | None = None

    def take(self, text: str) -> str:
        """Return the text to show after more of the answer."""
        self._held += text
        shown = self._take_reasoning() if self._thought else ""
        return shown if self._thought else shown + self._take_content()

    def end(self) -> str:
        """Return the text that was held back, at the end of an answer."""
        self._thought = self._thought if self._is_inside else None
        shown = "" if self._thought else self._take_content()
        rest = "" if self.found else (self._json.end() if self._json else "") + self._held
        self._held = ""
        return shown + rest

    def _take_reasoning(self) -> str:
        """Return the reasoning in the text held, as far as it is certain."""
        assert self._thought
        begin, end, _ = self._thought
        shown = ""
        if not self._is_inside:
            begun = self._held.lstrip(BLANKS)
            if begin.startswith(begun) and begun != begin:
                return ""
            if not begun.startswith(begin):
                self._thought = None
                return ""
            shown = self._cut(len(self._held) - len(begun) + len(begin))
            self._is_inside = True
        at = self._held.find(end)
        if at < 0:
            return shown + self._cut(len(self._held) - overlap(self._held, end))
        self._thought, self._is_inside = None, False
        return shown + self._cut(at + len(end))

    def _take_content(self) -> str:
        if self._json:
            held, self._held = self._held, ""
            shown = self._json.take(held)
            self.found = self._json.found
            return shown
        stops = [(self._held.index(stop), stop) for stop in self._stops if stop in self._held]
        if stops:
            at, self.found = min(stops)
            return self._cut(at)
        longest = max((overlap(self._held, stop) for stop in self._stops), default=0)
        return self._cut(len(self._held) - longest)

    def _cut(self, n: int) -> str:
        shown, self._held = self._held[:n], self._held[n:]
        return shown


class _JsonTexts:
    """Finds stop strings in the texts that are values of a JSON text.

    It holds back the characters of a text that may be the beginning of a stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._rest = ""  # the beginning of an escape
        self._open: list[str] = []  # the brackets that are open
        self._is_name = self._in_text = False
        self._read: list[str] = []  # the characters that may begin a stop string
        self._written: list[str] = []  # how they are written
        self.found: str | None = None

    def take(self, text: str) -> str:
        """Return the text to show after more of the JSON."""
        text, self._rest, at, shown = self._rest + text, "", 0, ""
        while at < len(text) and not self.found:
            if self._in_text and _MAY_GO_ON.fullmatch(text, at):
                self._rest = text[at:]
                break
            match = _CHARACTER.match(text, at) if self._in_text else None
            written = match[0] if match else text[at]
            at += len(written)
            shown += self._next(written)
        return shown

    def end(self) -> str:
        """Return what was held back."""
        return "".join(self._written) + self._rest

    def _next(self, written: str) -> str:
        """Return what may be shown after one more character."""
        if not self._in_text:
            self._punctuate(written)
            return written
        if written == '"':
            self._in_text = False
            return self._show(0) + written
        if self._is_name:
            return written
        self._read.append(_character(written))
        self._written.append(written)
        read = "".join(self._read)
        self.found = max((s for s in self._stops if read.endswith(s)), key=len, default=None)
        if self.found:
            return self._show(len(self.found))
        return self._show(max(overlap(read, stop) for stop in self._stops))

    def _show(self, n_held: int) -> str:
        """Return all that is held back but the last n characters."""
        n = len(self._read) - n_held
        shown = "".join(self._written[:n])
        del self._read[:n], self._written[:n]
        return shown

    def _punctuate(self, char: str) -> None:
        """Follow a character outside of texts."""
        if char == '"':
            self._in_text = True
        elif char in "{[":
            self._open.append(char)
        elif char in "}]" and self._open:
            self._open.pop()
        if char in "{,:[":
            self._is_name = char in "{," and self._open[-1:] == ["{"]


def _character(written: str) -> str:
    try:
        return str(json.loads(f'"{written}"'))
    except (ValueError, RecursionError):
        return written
