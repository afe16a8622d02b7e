"""Limits on what one client may ask for: requests a minute, and tokens a day."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from .clients import Client, name_of
from .errors import ApiError
from .settings import KeyLimits, ServerSettings

_MINUTE_S, _DAY_S = 60.0, 86_400
_MOST_CLIENTS = 4096  # more than these are forgotten if they have used nothing lately


@dataclass(slots=True)
class _Used:
    """The requests and tokens of one client. times: of its requests in the last minute. day: the
    day (UTC) that n_tokens counts for.
    """

    times: deque[float] = field(default_factory=deque)
    day: int = 0
    n_tokens: int = 0


class Limits:
    """Counts requests and tokens of each client, and refuses requests beyond its limits.

    The counts live as long as the server. A day ends at midnight, UTC. clock: returns the time in
    seconds since 1970.
    """

    def __init__(self, settings: ServerSettings, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._used: dict[str, _Used] = {}
        self.replace(settings)

    def replace(self, settings: ServerSettings) -> None:
        """Take the limits of these settings; what clients have used stays counted."""
        self._common = KeyLimits(settings.requests_per_minute, settings.tokens_per_day)
        named = settings.key_limits.items()
        self._own = {name_of(key.encode()): limits for key, limits in named}

    def admit(self, client: Client) -> None:
        """Count a request of a client. Raises ApiError (429) if it is beyond one of its limits."""
        now, used = self._clock(), self._of(client)
        while used.times and used.times[0] <= now - _MINUTE_S:
            used.times.popleft()
        most = self._limit(client, "requests_per_minute")
        if most and len(used.times) >= most:
            wait_s = used.times[-most] + _MINUTE_S - now
            raise _exceeded(f"{most} requests a minute", wait_s)
        most = self._limit(client, "tokens_per_day")
        if most and used.n_tokens >= most:
            raise _exceeded(f"{most} tokens a day", _DAY_S - now % _DAY_S)
        used.times.append(now)

    def spend(self, client: Client, n_tokens: int) -> None:
        """Count tokens that a client's request has read or generated."""
        self._of(client).n_tokens += n_tokens

    def _of(self, client: Client) -> _Used:
        today = int(self._clock() // _DAY_S)
        if client.turn not in self._used and len(self._used) >= _MOST_CLIENTS:
            self._forget(today)
        used = self._used.setdefault(client.turn, _Used())
        if used.day != today:
            used.day, used.n_tokens = today, 0
        return used

    def _forget(self, today: int) -> None:
        """Forget the clients without a request in the last minute and without tokens today."""
        before = self._clock() - _MINUTE_S
        for name, used in list(self._used.items()):
            is_idle = not used.times or used.times[-1] <= before
            if is_idle and not (used.n_tokens and used.day == today):
                del self._used[name]

    def _limit(self, client: Client, name: str) -> int:
        """Return a limit of a client, 0 for none."""
        own: int | None = getattr(self._own.get(client.turn), name, None)
        common: int | None = getattr(self._common, name)
        return (own if own is not None else common) or 0


def _exceeded(limit: str, wait_s: float) -> ApiError:
    seconds = max(1, math.ceil(wait_s))
    return ApiError(
        429,
        f"this client has reached its limit of {limit}; try again in {seconds} s",
        code="rate_limit_exceeded",
        headers={"Retry-After": str(seconds)},
    )
