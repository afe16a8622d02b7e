"""Assembles the server: its routes, its middleware, and its life from start to shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

from ..advice import install
from ..engine import Engine
from ..errors import ConfigError, EdgeSpecError, EngineMissing
from . import systemd
from .settings import ServerSettings
from .verification.sessions import Sessions

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.middleware.cors import CORSMiddleware
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import BaseRoute, Route, WebSocketRoute

    from . import openapi
    from .answering import Answering
    from .apis.sampling import with_defaults
    from .base import ServedModel
    from .connections import TimedHTTP
    from .errors import as_api_error, instead_of
    from .filling import Filling
    from .limits import Limits
    from .metrics import Metrics
    from .middleware import AccessMiddleware, Keys
    from .models import Models
    from .preparation import Preparation
    from .request_log import RequestLog
    from .request_queue import RequestQueue
    from .tokenization import Tokenization
    from .verification import websocket
except ImportError as error:
    raise EngineMissing(
        f"the server needs the package {error.name}; install it with {install('server')}"
    ) from error

logger = logging.getLogger("edgespec.server")

Background = Callable[[Starlette], contextlib.AbstractAsyncContextManager[Any]]
"""Makes a context that is entered before the server is ready, and left when the server ends."""

_STUCK_S = 10.0  # an engine that still runs this long after it was told to stop is abandoned


def create_app(
    engine: Engine,
    settings: ServerSettings,
    *,
    sessions: Sessions | None = None,
    routes: Sequence[BaseRoute] = (),
    background: Sequence[Background] = (),
) -> Starlette:
    """Return an ASGI application that serves a loaded model.

    sessions: the verification service for devices, which runs as long as the application. routes:
    additional routes, WebSockets included; the same keys and limits apply to them. background:
    contexts that live as long as the server. `app.state.request_queue` is the queue for the engine:
    other code in this process that uses the engine must wait there with `acquire()`.
    """
    from .. import __version__

    settings = settings.for_model(sees=bool(engine.eyes))
    queue = RequestQueue(settings.max_queue, engine.n_slots)
    keys, limits = Keys(settings), Limits(settings)
    request_log = None
    if settings.request_log:
        request_log = RequestLog(settings.request_log, with_contents=settings.request_log_contents)
    filling = Filling(engine.tokenizer, is_trained=bool(engine.describe().get("fills_in")))
    preparation = Preparation(engine, settings, filling)
    metrics = Metrics(queue, preparation, sessions, engine.company, engine.prefixes)
    if sessions is not None:
        routes = [*routes, websocket.route(sessions)]
        background = [*background, sessions.running]
    operations = _Operations(queue, metrics, settings)
    serving = ServedModel(
        settings.model,
        engine.tokenizer,
        f"edgespec-{__version__}",
        lambda named: engine.sampling.params(with_defaults(settings.sampling, named)),
        filling,
    )
    endpoints = (
        operations,
        Models(engine, settings, preparation, filling),
        Answering(engine, serving, preparation, queue, metrics, limits),
        Tokenization(engine, settings, preparation),
    )
    served = [*itertools.chain(*(each.routes() for each in endpoints)), *routes]
    names = _names(served)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for live in background:
                await stack.enter_async_context(live(app))
            operations.ready = True
            yield
            queue.close()
            preparation.close()
            if request_log:
                request_log.close()

    app = Starlette(
        routes=served,
        middleware=_middleware(settings, metrics, names, keys, request_log),
        exception_handlers={HTTPException: _http_error},
        lifespan=lifespan,
    )
    app.state.request_queue = queue
    app.state.preparation = preparation
    app.state.keys, app.state.limits, app.state.request_log = keys, limits, request_log
    return app


class _Operations:
    """Endpoints for operators. ready: True once everything that the server needs has started."""

    def __init__(self, queue: RequestQueue, metrics: Metrics, settings: ServerSettings) -> None:
        self._queue = queue
        self._metrics = metrics
        self._settings = settings
        self.ready = False

    def routes(self) -> list[Route]:
        """Return the routes, which are not under `/v1`."""
        return [
            Route("/health", self.health, methods=["GET"]),
            Route("/metrics", self.metrics, methods=["GET"]),
            Route("/openapi.json", self.description, methods=["GET"]),
        ]

    async def health(self, request: Request) -> Response:
        """Tell, at `/health`, whether requests are taken. Only this endpoint needs no key."""
        status = "closing" if self._queue.closed else "ok" if self.ready else "loading"
        return JSONResponse({"status": status}, 200 if status == "ok" else 503)

    async def metrics(self, request: Request) -> Response:
        """Answer `/metrics`: metrics for Prometheus."""
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4")

    def description(self, request: Request) -> Response:
        """Answer `/openapi.json`. This runs in a thread, because making the document is slow."""
        return JSONResponse(self._document)

    @functools.cached_property
    def _document(self) -> dict[str, Any]:
        return openapi.document(self._settings)


def _middleware(
    settings: ServerSettings,
    metrics: Metrics,
    names: Mapping[Any, str],
    keys: Keys,
    request_log: RequestLog | None,
) -> list[Middleware]:
    access = Middleware(
        AccessMiddleware, settings=settings, metrics=metrics, names=names, keys=keys,
        request_log=request_log,
    )  # fmt: skip
    if not settings.cors_origins:
        return [access]
    cors = Middleware(
        CORSMiddleware,
        allow_origins=settings.cors_origins,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],  # clients send many of their own, such as x-stainless-lang
        expose_headers=["Retry-After", "X-Request-Id"],
    )
    return [cors, access]


def _names(routes: Sequence[BaseRoute]) -> dict[Any, str]:
    """Return the path of each endpoint function, which is its name in metrics and log."""
    named = (route for route in routes if isinstance(route, (Route, WebSocketRoute)))
    return {route.endpoint: route.path for route in named}


async def _http_error(request: Request, error: Exception) -> Response:
    request_id = request.scope["edgespec.log"]["request_id"]
    answer = as_api_error(error, request_id)
    if answer.status == 404 and (instead := instead_of(request.scope["path"])):
        answer.message = f"there is nothing under this path; here {instead}"
    body = answer.body_at(request.scope["path"], request_id)
    return JSONResponse(body, answer.status, answer.headers)


# --- listening ---------------------------------------------------------------------------------


def bind(settings: ServerSettings) -> socket.socket:
    """Return a socket bound to the server's port. Call this before loading a model.

    Raises ConfigError if the host has no address or the port cannot be used.
    """
    where = f"{settings.host}:{settings.port}"
    try:
        addresses = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise ConfigError(f"there is no address for the host {settings.host!r}: {error}") from None
    family, kind, protocol, _, address = addresses[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"{where} cannot be listened on: {error.strerror}; choose another host or port"
        ) from None
    return sock


def serve(
    engine: Engine,
    settings: ServerSettings,
    *,
    sock: socket.socket | None = None,
    on_ready: Callable[[str], None] = lambda url: None,
    on_finishing: Callable[[int], None] = lambda n_answers: None,
    sessions: Sessions | None = None,
    reread: Callable[[], ServerSettings] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM, then let running answers end within `grace_s`.

    sock: a socket from `bind`. on_ready: called with the server's URL once requests are taken.
    on_finishing: called with the number of running answers when the server is told to end, if
    there are any and `grace_s` is not 0. reread: returns the settings anew when SIGHUP comes; their
    keys and certificate are used from then on. The caller closes the engine.
    """
    app = create_app(engine, settings, sessions=sessions)
    server = Server(app, engine, settings, on_ready, sessions, on_finishing, reread)
    with sock or bind(settings) as listening:
        server.run([listening])


class Server(uvicorn.Server):
    """uvicorn with a shutdown that lets running answers end."""

    def __init__(
        self,
        app: Starlette,
        engine: Engine,
        settings: ServerSettings,
        on_ready: Callable[[str], None] = lambda url: None,
        sessions: Sessions | None = None,
        on_finishing: Callable[[int], None] = lambda n_answers: None,
        reread: Callable[[], ServerSettings] | None = None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=functools.partial(TimedHTTP, arrival_s=settings.arrival_s),  # type: ignore[arg-type]
                log_config=None,
                access_log=False,
                server_header=False,
                ssl_certfile=settings.tls_cert,
                ssl_keyfile=settings.tls_key,
                timeout_graceful_shutdown=5,
                ws="websockets-sansio",
                ws_max_size=settings.for_model(sees=False).max_body_bytes,
                ws_per_message_deflate=False,
            )
        )
        self._queue: RequestQueue = app.state.request_queue
        self._preparation: Preparation = app.state.preparation
        self._engine = engine
        self._settings = settings
        self._on_ready = on_ready
        self._on_finishing = on_finishing
        self._sessions = sessions
        self._keys: Keys = app.state.keys
        self._limits: Limits = app.state.limits
        self._request_log: RequestLog | None = app.state.request_log
        self._reread = reread
        self._terminals = [fd for fd in (0, 1, 2) if _is_terminal(fd)]
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reloading: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then call `on_ready` with the server's URL."""
        await asyncio.to_thread(self._engine.constraints.prepare)
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        if self.started and sockets:
            self._on_ready(self._url(sockets[0]))
            self._engine.idle_work.start()
            systemd.notify("READY=1")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting requests, let running ones finish for `grace_s`, then cancel them."""
        systemd.notify("STOPPING=1")
        self._queue.close()
        self._preparation.close()
        if self._queue.n_running and self._settings.grace_s and not self.force_exit:
            self._on_finishing(self._queue.n_running)
        deadline = time.monotonic() + self._settings.grace_s
        while self._busy() and time.monotonic() < deadline + _STUCK_S:
            if self.force_exit or time.monotonic() >= deadline:
                self._engine.cancel()
            await asyncio.sleep(0.05)
        if self._sessions is not None:
            await asyncio.to_thread(self._sessions.close)
        await super().shutdown(sockets)
        if self.force_exit:  # otherwise the application's lifespan is cancelled, with a traceback
            await self.lifespan.shutdown()

    def _busy(self) -> bool:
        return bool(self._queue.n_running or self._preparation.n_running)

    async def reload(self) -> None:
        """Use the keys, their limits and the certificate that the settings have now, and open the
        request log anew. If they cannot be used, log the reason and go on with those before.
        Connections that are open stay open.
        """
        if self._reread is None:
            return
        systemd.notify_of_reload()
        try:
            settings = await asyncio.to_thread(self._reread)
            if isinstance(self.config.ssl, ssl.SSLContext) and settings.tls_cert:
                self.config.ssl.load_cert_chain(settings.tls_cert, settings.tls_key)
            if self._request_log:
                self._request_log.reopen()
        except (EdgeSpecError, OSError) as error:
            logger.error("keys and certificate stay as they were: %s", error)
        else:
            self._keys.replace(settings)
            self._limits.replace(settings)
            logger.info(
                "keys and certificate were read again; API keys: %d", len(settings.api_keys)
            )
        systemd.notify("READY=1")

    def _hang_up(self, number: int, frame: FrameType | None) -> None:
        """Reload, or end as with SIGTERM if the terminal of this process was closed."""
        if any(not _is_terminal(fd) for fd in self._terminals):
            self.handle_exit(number, frame)
        elif self._loop is not None:
            self._loop.call_soon_threadsafe(self._begin_reload)

    def _begin_reload(self) -> None:
        self._reloading = asyncio.ensure_future(self.reload())

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Let SIGINT and SIGTERM end the server, without raising the signal again afterwards. Let
        SIGHUP reload it if it can.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers: dict[int, Callable[[int, FrameType | None], None]] = {
            signal.SIGINT: self.handle_exit, signal.SIGTERM: self.handle_exit
        }  # fmt: skip
        if self._reread is not None and hasattr(signal, "SIGHUP"):
            handlers[signal.SIGHUP] = self._hang_up
        before = {number: signal.signal(number, act) for number, act in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _url(self, sock: socket.socket) -> str:
        host, port = self._settings.host, sock.getsockname()[1]
        return f"{self._settings.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _is_terminal(fd: int) -> bool:
    try:
        return os.isatty(fd)
    except OSError:
        return False
