"""JSON over HTTP for verifiers: one request, one answer, with retries and edgespec's own errors.

httpx runs in an event loop of its own, in one thread. A request that is given up is cancelled
there, which closes its connection, so that the server stops working on it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import logging
import math
import re
import threading
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

from ..advice import install
from ..errors import (
    Aborted,
    EngineMissing,
    VerifierFault,
    VerifierRefused,
    VerifierUnavailable,
)
from ..types import Abort

try:
    import httpx
    import tenacity
except ImportError as error:
    raise EngineMissing(
        f"verifiers on other machines need httpx and tenacity, of which one cannot be imported "
        f"here ({error}); install them with {install('remote')}"
    ) from error

logger = logging.getLogger("edgespec.verifiers")

T = TypeVar("T")
MAX_BODY = 64 << 20  # bytes; prompt log-probabilities take about 100 bytes a token
_POLL_S = 0.02
_CONNECT_S = 5.0
_BUSY = (429, 502, 503, 504)
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,40}").fullmatch
_ABSENT = (400, 401, 403, 404, 405, 422, 501)


class Http:
    """A client of one server, for one thread at a time.

    api_key: sent as a bearer token. timeout_s: the seconds for one request with all its retries.
    retries: how often a request is repeated when the server cannot be reached, breaks off or says
    that it is busy. backoff_s: the seconds before the first retry, which double each time; a
    Retry-After header takes precedence. Whether to retry is decided before anything in the answer
    is looked at, so that a retry cannot favour one text over another.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        timeout_s: float = 60.0,
        retries: int = 2,
        backoff_s: float = 0.25,
    ) -> None:
        parts = urlsplit(url)
        self.host = parts.netloc
        self._timeout_s = timeout_s
        self._backoff_s = backoff_s
        self._retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(VerifierUnavailable),
            stop=tenacity.stop_after_attempt(retries + 1) | tenacity.stop_before_delay(timeout_s),
            wait=self._pause_s,
            reraise=True,
        )
        headers = {"Accept": "application/json"}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
            if parts.scheme == "http" and not _is_loopback(parts.hostname):
                logger.warning("the API key goes to %s unencrypted; use https", self.host)
        self._client = httpx.AsyncClient(
            base_url=url,
            headers=headers,
            timeout=httpx.Timeout(None, connect=_CONNECT_S),
            verify=parts.scheme == "https",  # certificates take 20 ms to read
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="edgespec-http", daemon=True
        )
        self._thread.start()

    def get(self, path: str, *, optional: bool = False) -> Any:
        """Return the JSON at `path`; with `optional`, None if the server has no such path."""
        return self._call("GET", path, None, None, optional)

    def post(
        self, path: str, body: Mapping[str, Any], abort: Abort | None = None, *,
        optional: bool = False,
    ) -> Any:  # fmt: skip
        """Return the JSON that `path` answers to `body`; `optional` as in `get`.

        Raises Aborted if `abort` stops the wait, and the subclasses of VerifierError.
        """
        return self._call("POST", path, body, abort, optional)

    def close(self) -> None:
        """End the thread and its connections. Closing twice is harmless."""
        if not self._loop.is_closed():
            asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _shut(self) -> None:
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await self._client.aclose()

    def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None, abort: Abort | None,
        optional: bool,
    ) -> Any:  # fmt: skip
        if abort and abort():
            raise Aborted("stopped by the caller")
        asked = self._asked(method, path, body, optional)
        future = asyncio.run_coroutine_threadsafe(asked, self._loop)
        try:
            while not concurrent.futures.wait([future], _POLL_S if abort else None).done:
                if abort and abort():
                    raise Aborted("stopped by the caller while the server was working")
            return future.result()
        finally:
            future.cancel()

    def _pause_s(self, state: tenacity.RetryCallState) -> float:
        error = state.outcome and state.outcome.exception()
        if isinstance(error, VerifierUnavailable) and error.retry_after_s is not None:
            return error.retry_after_s
        return self._backoff_s * 2.0 ** (state.attempt_number - 1)

    async def _asked(
        self, method: str, path: str, body: Mapping[str, Any] | None, optional: bool
    ) -> Any:
        try:
            return await asyncio.wait_for(
                self._retrying(self._once, method, path, body, optional), self._timeout_s
            )
        except asyncio.TimeoutError:
            raise VerifierUnavailable(
                f"{self.host} has not answered within {self._timeout_s:g} s; try again, or "
                "give it a longer timeout"
            ) from None

    async def _once(
        self, method: str, path: str, body: Mapping[str, Any] | None, optional: bool
    ) -> Any:
        data = bytearray()
        try:
            async with self._client.stream(method, path, json=body) as response:
                async for piece in response.aiter_bytes():
                    data += piece
                    if len(data) > MAX_BODY:
                        raise VerifierFault(
                            f"{self.host} sent more than {MAX_BODY >> 20} MiB for one answer"
                        )
        except httpx.DecodingError:
            raise VerifierFault(f"{self.host} sent a body that cannot be decompressed") from None
        except httpx.TransportError as error:
            raise VerifierUnavailable(
                f"{self.host} cannot be reached or broke off ({_reason(error)}); check the address "
                "and that the server runs"
            ) from None
        if optional and response.status_code in _ABSENT:
            return None
        self._check(response, path, data)
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise VerifierFault(
                f"{self.host} answered {path} with something that is not JSON; check that it is "
                "an inference server and not a proxy's page"
            ) from None

    def _check(self, response: httpx.Response, path: str, data: bytearray) -> None:
        """Raise the error that an HTTP status stands for, none for 200.

        The server's own message may repeat the prompt, so only the name of its error is passed on.
        """
        status = response.status_code
        if status == 200:
            return
        said = f"{self.host} answered {status}{_error_name(data)}"
        if status in (401, 403):
            raise VerifierRefused(f"{said}: the API key is missing or wrong; give the server's")
        if status == 404:
            raise VerifierRefused(
                f"{said}: it has no {path}, or not this model; check the address and the model"
            )
        if status in _BUSY:
            after = _retry_after(response.headers.get("Retry-After"))
            when = "" if after is None else f" in {after:g} s"
            raise VerifierUnavailable(f"{said}: it has no room now; try again{when}", after)
        if status >= 500:
            raise VerifierUnavailable(f"{said}: it failed; its own log says why")
        raise VerifierRefused(f"{said} to {path}: it does not take what it was asked")


def checked(host: str, value: Any, kind: type[T], what: str) -> T:
    """Return `value` if it is an instance of `kind`, else raise VerifierFault.

    what: a description of the expected value, for the error message.
    """
    if not isinstance(value, kind) or isinstance(value, bool):
        raise VerifierFault(
            f"{host}: expected {what}, got {type(value).__name__}; is it a server of this kind?"
        )
    return value


def _is_loopback(name: str | None) -> bool:
    return name in ("localhost", "::1") or bool(name and name.startswith("127."))


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _error_name(data: bytearray) -> str:
    """Return OpenAI's error.type or error.code in brackets if it is a name, not a sentence.

    Return "" otherwise.
    """
    try:
        error = json.loads(data)["error"]
        name = error.get("type") or error.get("code") or ""
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        return ""
    return f" ({name})" if isinstance(name, str) and _NAME(name) else ""


def _retry_after(value: str | None) -> float | None:
    """Return the seconds of a Retry-After header, None if there are none.

    The header holds seconds or a date.
    """
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
