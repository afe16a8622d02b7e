"""Log lines on stderr: plain text for people, JSON for programs that read a server's log."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterable, Iterator

from .render import is_terminal, names, said_through, without_status
from .render import name as shown

OURS = ("edgespec", "edgespec_cli")


class PlainFormatter(logging.Formatter):
    """Formats log records as plain lines, in which names of files and models are escaped, so that
    they cannot control the terminal.

    with_module: include the name of the module that logs, for debugging.
    """

    def __init__(self, *, with_module: bool) -> None:
        super().__init__(f"edgespec: %(level)s: {'%(name)s: ' * with_module}%(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, followed by its traceback if it has one."""
        record.level = record.levelname.lower()
        return names(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the message of a record, followed by its fields."""
        fields = getattr(record, "fields", {})
        told = ", ".join(f"{name} {value}" for name, value in fields.items() if value is not None)
        return shown(super().formatMessage(record) + (f": {told}" if told else ""))


class AboveStatus(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes lines to stderr above the status line, if one is shown."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line of a record."""
        with without_status():
            super().emit(record)


def handle(handler: logging.Handler, loggers: Iterable[str] = OURS) -> None:
    """Make `handler` the only handler of these loggers."""
    for name in loggers:
        logging.getLogger(name).handlers[:] = [handler]


@contextlib.contextmanager
def of_a_server(*, quiet: bool, with_module: bool) -> Iterator[None]:
    """Log the messages of edgespec, and the warnings of the libraries that the server uses.

    If stderr is a terminal, its lines are plain text. Otherwise each line is a JSON object, also
    those that `say` writes to stderr. quiet: do not log every request.
    """
    from edgespec.server.logs import JsonFormatter, is_not_logged_yet, logger

    plain = is_terminal(sys.stderr)
    handler = AboveStatus()
    handler.setFormatter(PlainFormatter(with_module=with_module) if plain else JsonFormatter())
    handler.addFilter(is_not_logged_yet)
    handle(handler, (*OURS, "uvicorn", "asyncio"))
    for name in ("uvicorn", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
    if not quiet:
        logger.setLevel(logging.INFO)
    if plain:
        yield
        return

    def write(text: str) -> None:
        told = {"name": "edgespec_cli", "levelno": logging.INFO, "levelname": "INFO", "msg": text}
        handler.handle(logging.makeLogRecord(told))

    with said_through(write):
        yield
