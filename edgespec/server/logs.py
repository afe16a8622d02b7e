"""Log lines for machines: one JSON object each, about requests and never of their text."""

from __future__ import annotations

import json
import logging
import traceback
from datetime import datetime, timezone
from typing import Any

from ..errors import EdgeSpecError

logger = logging.getLogger("edgespec.server")


class JsonFormatter(logging.Formatter):
    """Time, level, logger, message, and the `fields` that a record carries."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        when = datetime.fromtimestamp(record.created, timezone.utc)
        line = {
            "time": when.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        return json.dumps(line | getattr(record, "fields", {}), default=str)


def is_news(record: logging.LogRecord) -> bool:
    """Not that a WebSocket was turned away with an answer of HTTP, which uvicorn calls an error and
    `request` has told.
    """
    return record.msg != "ASGI callable returned without completing handshake."


def request(fields: dict[str, Any]) -> None:
    """A request is over. What asks every few seconds is not worth a line."""
    routine = fields["endpoint"] in ("/health", "/metrics") and fields["status"] == 200
    logger.log(logging.DEBUG if routine else logging.INFO, "request", extra={"fields": fields})


def failure(error: BaseException, request_id: str) -> None:
    """Where something broke. The message of an exception may quote the request, so only those
    of the runtime's own errors, which speak about engines, are written.
    """
    frames = traceback.extract_tb(error.__traceback__)
    fields = {
        "request_id": request_id,
        "error": type(error).__name__,
        "where": [f"{f.filename.rpartition('/')[2]}:{f.lineno} {f.name}" for f in frames],
    }
    if isinstance(error, EdgeSpecError):
        fields["reason"] = str(error)
    logger.error("request failed", extra={"fields": fields})
