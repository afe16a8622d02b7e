"""Reading the arguments of a call while they are generated."""

from __future__ import annotations

import json
from typing import Any

from . import argument_schemas
from .markers import PairMarkers
from .texts import matched, until
from .tools import Tool


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
        return _is_object(self._text)

    def take(self, text: str) -> tuple[str, str]:
        """Return what of `text` belongs to the object, and what stands after it."""
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


class PairReader:
    """Reads arguments that are written one by one, and gives them as the text of a JSON object."""

    def __init__(self, tool: Tool, markers: PairMarkers) -> None:
        self.is_complete = False
        self._tool = tool
        self._markers = markers
        self._held = ""
        self._text = ""
        self._given = ""
        self._n = 0
        self._key = ""
        self._choices: dict[str, Any] = {}
        self._step = self._between

    @property
    def is_valid(self) -> bool:
        """True if what was given is JSON."""
        return _is_object(self._text)

    def take(self, text: str) -> tuple[str, str]:
        """Return JSON that is certain now, and what stands after the arguments."""
        self._held += text
        while not self.is_complete and self._step():
            pass
        given, self._given = self._given, ""
        self._text += given
        if not self.is_complete:
            return given, ""
        rest, self._held = self._held, ""
        return given, rest

    # --- steps, as in the reader of answers ----------------------------------------------------

    def _between(self) -> bool:
        n = matched(self._markers.opening, self._held)
        if n is None:
            return False
        if n < 0:
            self._given += "}" if self._n else "{}"
            self.is_complete = True
            return False
        self._held = self._held[n:]
        self._step = self._in_key
        return True

    def _in_key(self) -> bool:
        key, middle, rest = self._held.partition(self._markers.middle)
        if not middle:
            return False
        self._held, self._key = rest, key
        self._given += f"{', ' if self._n else '{'}{json.dumps(key, ensure_ascii=False)}: "
        self._n += 1
        self._choices = argument_schemas.choices_of(self._tool, key)
        self._step = self._in_choice if self._choices else self._in_value
        if argument_schemas.is_text(self._tool, key):
            self._given += '"'
            self._step = self._in_text
        return True

    def _in_text(self) -> bool:
        text, rest, ended = until(self._markers.closing, self._held)
        self._held = rest
        self._given += json.dumps(text, ensure_ascii=False)[1:-1]
        if ended:
            self._given += '"'
            self._step = self._between
        return ended

    def _in_choice(self) -> bool:
        text, closing, rest = self._held.partition(self._markers.closing)
        if not closing:
            return False
        self._held = rest
        self._given += json.dumps(self._choices.get(text, text), ensure_ascii=False)
        self._step = self._between
        return True

    def _in_value(self) -> bool:
        text, rest, ended = until(self._markers.closing, self._held)
        self._held = rest
        self._given += text
        if ended:
            self._step = self._between
        return ended


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
