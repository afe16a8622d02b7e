"""Reading the arguments of a call while they are generated."""

from __future__ import annotations

import json


class JsonReader:
    """Finds the end of a JSON object in text that comes in pieces."""

    def __init__(self) -> None:
        self.is_complete = False
        self._text = ""
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    @property
    def is_valid(self) -> bool:
        """True if what was taken is JSON."""
        try:
            return isinstance(json.loads(self._text), dict)
        except (ValueError, RecursionError):
            return False

    def take(self, text: str) -> tuple[str, str]:
        """Return what of `text` belongs to the object, and what stands behind it."""
        at = next((i + 1 for i, char in enumerate(text) if self._ends(char)), len(text))
        self._text += text[:at]
        return text[:at], text[at:]

    def _ends(self, char: str) -> bool:
        """Take a character; return True if it ends the object."""
        if self._in_string:
            if self._is_escaped:
                self._is_escaped = False
            else:
                self._is_escaped = char == "\\"
                self._in_string = char != '"'
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            self.is_complete = self._depth == 0
        return self.is_complete
