"""A stream of the events of one request, for use in `for` and `with`."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from ..types import Event
from .interrupt import Interrupt


class Stream(Generator[Event, None, None]):
    """Yields the events of one request; leaving a `with` block ends the request."""

    def __init__(self, events: Generator[Event, None, None], interrupt: Interrupt) -> None:
        self._events, self._interrupt = events, interrupt

    def cancel(self) -> None:
        """Cancel the request, from any thread, before or after its first event.

        The stream then ends with its completion, which has the finish reason "cancelled" and the
        text generated so far. After the end of the request this does nothing.
        """
        self._interrupt.cancel()

    def send(self, value: None, /) -> Event:
        """Return the next event."""
        return self._events.send(value)

    def throw(self, *error: Any) -> Event:
        """Raise an error at the request's present point, which ends the request."""
        return self._events.throw(*error)

    def close(self) -> None:
        """End the request."""
        self._events.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
