"""Makes the arguments of a tool call, which may have been cut, an object."""

from __future__ import annotations

import json
import re
from collections import deque
from typing import Any

_TOKEN = re.compile(r'"(?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*("?)|[{}\[\],]', re.DOTALL)
_MOST_TRIED = 3  # places before the end at which the text is ended
_DEEPEST = 64  # brackets that are closed
_LONGEST = 1 << 18  # characters of a call that was cut


def whole(arguments: Any) -> str:
    """Return arguments as the JSON text of an object.

    arguments: an object, or the text that a model wrote. The text of an object is returned
    unchanged, and JSON that was cut is ended. Any other value, such as a list or a text that is not
    JSON, becomes the argument `arguments`; null and an empty text become no arguments.
    """
    if not isinstance(arguments, str):
        return _wrapped(arguments)
    for text in (arguments, *_ended(arguments[:_LONGEST])):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            continue
        return text if isinstance(value, dict) else _wrapped(value)
    return _wrapped(arguments.strip())


def _wrapped(value: Any) -> str:
    if not isinstance(value, dict):
        value = {} if value in (None, "", []) else {"arguments": value}
    return json.dumps(value, ensure_ascii=False)


def _ended(text: str) -> list[str]:
    """Return the beginning of an object, ended in ways that may make it whole, the longest first.

    Returns nothing for a text that is not the beginning of an object.
    """
    places: deque[tuple[int, str]] = deque(maxlen=_MOST_TRIED)  # with the brackets open there
    closing, longest = "", text
    for token in _TOKEN.finditer(text):
        if token[0] in ("{", "["):
            closing = ("}" if token[0] == "{" else "]") + closing
            if len(closing) > _DEEPEST:
                return []
            places.append((token.end(), closing))
        elif not closing:
            return []
        elif token[0] in ("}", "]"):
            closing = closing[1:]
        elif token[0] == ",":
            places.append((token.start(), closing))
        elif not token[1]:  # a string that is cut
            longest = text[: token.end()] + '"'
            break
    if not closing.endswith("}"):
        return []
    return [longest + closing, *(text[:at] + brackets for at, brackets in reversed(places))]
