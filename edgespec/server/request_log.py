"""A log of requests in a file, for operators who ask for one: a JSON object for each request."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ..errors import ConfigError

logger = logging.getLogger("edgespec.server")

_BASE64 = re.compile(rb"(?:[A-Za-z0-9+/]|\\/){256,}=*")  # in JSON; no text of words is so long


class RequestLog:
    """Appends one line for each request to a file that only its owner can read.

    with_contents: lines also have the texts of requests and answers, without pictures. Raises
    ConfigError if the file cannot be opened.
    """

    def __init__(self, path: Path, *, with_contents: bool) -> None:
        self.with_contents = with_contents
        self._path = path
        self._fd = opened(path)

    def reopen(self) -> None:
        """Open the file anew, because it may have been moved away. Raises ConfigError."""
        fd = opened(self._path)
        os.close(self._fd)
        self._fd = fd

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def write(self, fields: Mapping[str, Any], request: bytes = b"", response: bytes = b"") -> None:
        """Append the line of a request. A file that cannot be written is reported in the log.

        request, response: the bodies, which are written only with contents.
        """
        when = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {"time": when, **fields}
        if self.with_contents:
            line |= {"request": _readable(request), "response": _readable(response)}
        try:
            os.write(self._fd, (json.dumps(line, ensure_ascii=False, default=str) + "\n").encode())
        except OSError as error:
            logger.error("the request log %s cannot be written: %s", self._path, error.strerror)


def opened(path: Path) -> int:
    """Return a descriptor that appends to a file. Raises ConfigError."""
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConfigError(
            f"the request log {path} cannot be opened: {error.strerror}; name a file in a folder "
            "that this user can write to"
        ) from None


def _readable(body: bytes) -> Any:
    """Return a body as JSON, or as text if it is not JSON; in both cases without pictures."""
    body = _BASE64.sub(lambda found: b"[%d characters left out]" % len(found[0]), body)
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body.decode("utf-8", "replace")
