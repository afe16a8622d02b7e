"""Log lines for machines: each is one JSON object, which never contains text of a request."""

from __future__ import annotations

import json
import logging
import traceback
from datetime import datetime, timezone
from typing import Any

from ..errors import EdgeSpecError

logger = logging.getLogger("edgespec.server")


class JsonFormatter(logging.Formatter):
    """Writes time, level, logger, message and the `fields` that a record carries."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        when = datetime.fromtimestamp(record.created, timezone.utc)
        line = {
            "time": when.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        return json.dumps(line | getattr(record, "fields", {}), default=str)


def is_not_logged_yet(record: logging.LogRecord) -> bool:
    """Return False for uvicorn's record about a WebSocket that was refused with an HTTP response.

    uvicorn logs it as an error, but `log_request` has logged the refusal already.
    """
    return record.msg != "ASGI callable returned without completing handshake."


def is_routine(fields: dict[str, Any]) -> bool:
    """Return True for successful requests that monitoring repeats every few seconds."""
    return fields["endpoint"] in ("/health", "/metrics") and fields["status"] == 200


def log_request(fields: dict[str, Any]) -> None:
    """Log a request that has ended. The level is info, but debug for successful requests that
    monitoring repeats every few seconds, and warning for requests without a valid key.
    """
    level, message = logging.DEBUG if is_routine(fields) else logging.INFO, "request"
    if fields["status"] == 401:
        level, message = logging.WARNING, f"request refused: its API key is {fields['api_key']}"
    logger.log(level, message, extra={"fields": fields})


def log_failure(error: BaseException, request_id: str) -> None:
    """Log the type of an exception and the lines of code in its traceback.

    The message is logged only for edgespec's own errors, because these are about the engine.
    Messages of other exceptions may quote the request.
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
