"""Checks before each request (key, host, origin, size), and counts and logs it afterwards."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from . import clients, logs
from .errors import ApiError, as_api_error
from .metrics import Metrics
from .request_log import RequestLog
from .settings import ServerSettings, host_of, is_loopback

OPEN_PATHS = ("/health",)
OPERATOR_PATHS = ("/metrics",)
_CLIENT_LEFT = 499  # nginx's status for a client that left before it had its answer


class Keys:
    """The keys of a server, which are replaced when they are read again.

    api_keys: those of clients. metrics_key: the one for metrics, b"" if there is none.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.replace(settings)

    def replace(self, settings: ServerSettings) -> None:
        """Take the keys of these settings; later requests need one of them."""
        self.api_keys = [key.encode() for key in settings.api_keys]
        self.metrics_key = settings.metrics_key.encode()


class AccessMiddleware:
    """ASGI middleware that admits, limits, counts and logs HTTP requests and WebSockets.

    A request's key is compared with every key, in constant time. Without keys, a web page could use
    the server through the browser of a person who can reach the server. So an `Origin` must be
    allowed or be this machine. If only this machine can connect, the same holds for the `Host`.
    This refuses pages whose domain was pointed at this machine (DNS rebinding); their GET requests
    have no `Origin`. A key does not protect WebSockets from pages in a browser that knows the key,
    so the `Origin` of a WebSocket is always checked.

    names: the name of each endpoint function in metrics and log. keys: the keys, which may be
    replaced while the server runs; by default those of the settings. request_log: the file that
    lists requests, None for none.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: ServerSettings,
        metrics: Metrics,
        names: Mapping[Any, str],
        keys: Keys | None = None,
        request_log: RequestLog | None = None,
    ) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics
        self._names = names
        self._keys = keys or Keys(settings)
        self._request_log = request_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check and pass on one request, or one WebSocket from its opening to its end."""
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, send)
        scope["path"] = _plain_path(scope["path"])
        request_log = self._request_log
        exchange = _Exchange(scope, send, keeps=bool(request_log and request_log.with_contents))
        try:
            self._check(scope)
            await self._app(scope, self._limit_body(scope, exchange.noting(receive)), exchange.send)
        except ClientDisconnect:
            exchange.status = 408 if scope.get("state", {}).get("edgespec.late") else _CLIENT_LEFT
        except Exception as error:
            await exchange.refuse(as_api_error(error, exchange.id), receive)
        finally:
            endpoint = self._endpoint(scope)
            self._metrics.requests.labels(endpoint, exchange.status).inc()
            fields = exchange.log_fields(endpoint)
            logs.log_request(fields)
            if request_log and not logs.is_routine(fields):
                request_log.write(
                    {**fields, "key": clients.key_shown(scope)}, *map(bytes, exchange.bodies)
                )

    def _endpoint(self, scope: Scope) -> str:
        """Return the endpoint's name in metrics and log, also for a request that was refused."""
        asked = scope["path"] if scope["path"] in self._names.values() else "other"
        return self._names.get(scope.get("endpoint"), asked)

    def _check(self, scope: Scope) -> None:
        keys = self._keys
        if scope["type"] == "websocket" or not keys.api_keys:
            self._check_origin(scope)
        known = clients.remember(scope, keys.api_keys)
        if scope["path"] in OPEN_PATHS:
            return
        by_address = False
        if scope["path"] in OPERATOR_PATHS:
            operates = clients.is_operator(scope, keys.metrics_key)
            if known and not operates:
                raise _operator_only(bool(keys.metrics_key))
            known = operates and (known or bool(keys.metrics_key))
            by_address = not keys.metrics_key
        if not known:
            raise self._unknown_key(scope)
        if not keys.api_keys and (self._settings.loopback or by_address):
            self._check_host(scope)

    def _check_origin(self, scope: Scope) -> None:
        """Raise ApiError if the `Origin` of a request is neither local nor allowed."""
        for origin in Headers(scope=scope).getlist("origin"):
            scheme, _, host = origin.partition("://")
            local = scheme in ("http", "https") and is_loopback(host_of(host))
            if not local and origin not in self._settings.cors_origins:
                raise ApiError(
                    403,
                    f"web pages of {origin!r:.80} may not use this server; --cors-origin ORIGIN "
                    "allows an origin",
                    code="unknown_origin",
                )

    def _check_host(self, scope: Scope) -> None:
        """Raise ApiError if the `Host` of a request is neither local nor allowed."""
        hosts = Headers(scope=scope).getlist("host")
        name = host_of(hosts[0]) if len(hosts) == 1 else ""
        if not is_loopback(name) and name not in self._settings.known_hosts:
            raise ApiError(
                403,
                f"without an API key this server answers only to localhost, not to {name!r:.80}; "
                "start it with a key, or allow the name with --allowed-host NAME",
                code="unknown_host",
            )

    def _unknown_key(self, scope: Scope) -> ApiError:
        wrong = "wrong" if clients.sent_key(scope) else "missing"
        scope["edgespec.log"]["api_key"] = wrong
        return ApiError(
            401,
            f"the API key is {wrong}; send it as `Authorization: Bearer KEY` or `x-api-key: KEY`",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )

    def _limit_body(self, scope: Scope, receive: Receive) -> Receive:
        """Return a `receive` that raises a 413 once the body is larger than allowed."""
        most, total = self._settings.max_body_bytes, 0
        if scope["type"] != "http":
            return receive
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > most:
            raise _too_large(most)

        async def limited() -> Message:
            nonlocal total
            message = await receive()
            total += len(message.get("body", b""))
            if total > most:
                raise _too_large(most)
            return message

        return limited


def _plain_path(path: str) -> str:
    """Return a path without the slashes that too many clients add, at its end or in pairs."""
    return "/" + "/".join(filter(None, path.split("/")))


class _Exchange:
    """One request and its response, or one WebSocket, with its id, status and log fields.

    keeps: keep the bodies of request and response in `bodies`.
    """

    def __init__(self, scope: Scope, send: Send, *, keeps: bool = False) -> None:
        self.bodies = bytearray(), bytearray()
        self._keeps = keeps
        self.id = uuid.uuid4().hex
        self.status = 500
        self._began = time.monotonic()
        self._send = send
        self._started = False
        self._scope = scope
        scope["edgespec.log"] = {"request_id": self.id}

    async def send(self, message: Message) -> None:
        """Send a message, and remember the status of the response when it begins."""
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            self._started, self.status = True, message["status"]
            MutableHeaders(scope=message)["X-Request-Id"] = self.id
        elif message["type"] == "websocket.accept":
            self._started, self.status = True, 101
        elif message["type"] == "websocket.close" and not self._started:
            self._started, self.status = True, 403  # the status that the client gets
        if self._keeps and message["type"] == "http.response.body":
            self.bodies[1].extend(message.get("body", b""))
        await self._send(message)

    def noting(self, receive: Receive) -> Receive:
        """Return `receive`, which also keeps the body of the request if bodies are kept."""

        async def noted() -> Message:
            message = await receive()
            self.bodies[0].extend(message.get("body", b""))
            return message

        return noted if self._keeps else receive

    async def refuse(self, error: ApiError, receive: Receive) -> None:
        """Send an error as the response, unless a response has begun."""
        if self._started:
            return
        self.status = error.status
        body = error.body_at(self._scope["path"], self.id)
        response = JSONResponse(body, error.status, error.headers)
        if self._scope["type"] == "http":
            return await response(self._scope, receive, self.send)
        if "websocket.http.response" in self._scope.get("extensions", {}):
            socket = WebSocket(self._scope, receive, self.send)
            return await socket.send_denial_response(response)
        await self._send({"type": "websocket.close", "code": 1008, "reason": error.code or ""})

    def log_fields(self, endpoint: str) -> dict[str, Any]:
        """Return the log fields of the request: numbers and names, but none of its text."""
        fields: dict[str, Any] = self._scope["edgespec.log"]
        return fields | {
            "method": self._scope.get("method", "WEBSOCKET"),
            "endpoint": endpoint,
            "status": self.status,
            "ms": round(1e3 * (time.monotonic() - self._began), 1),
            "client": clients.address_of(self._scope),
        }


def _operator_only(has_key: bool) -> ApiError:
    need = (
        "they need the key of --metrics-key-file"
        if has_key
        else "they are for this machine alone; start the server with --metrics-key-file to read "
        "them elsewhere"
    )
    return ApiError(
        403,
        f"metrics tell of everybody's requests: {need}",
        code="operator_only",
    )


def _too_large(most: int) -> HTTPException:
    return HTTPException(413, f"the body is larger than the {most} bytes that this server takes")
