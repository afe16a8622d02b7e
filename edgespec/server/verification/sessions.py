"""The verification service: one target evaluates the drafts of many devices together.

Frames may arrive in any thread; one thread answers them. Each of its steps handles the frames that
have arrived, evaluates the tokens of all sessions that wait for the target in one batch, checks the
drafts, and sends the answers. A session's cache may be dropped at any time; its tokens are kept,
and are read again when the session goes on. The modules, each of which uses those above it:

    types      the limits, the counts, and the state of one device's session
    target     what devices are told about the target, and which devices it can serve
    registry   admits and resumes sessions, and limits their frames; has the lock
    slots      gives the cache's slots to sessions; evicts caches and shares prefixes
    answers    updates a session after an evaluation, and answers its device
    scheduler  chooses what is evaluated together
    frames     checks and carries out the frames of devices
    sessions   this file: the parts together, the evaluating thread, and the compiling threads
    websocket  the connections

The target is that of the engine: its slots are evaluated together with those of requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from ... import protocol
from ...backends.base import BatchedModel, FileModel, Tokenizer
from ...cache.prefixes import Prefixes
from ...constraints.compiler import Constraints, compiled_at_once
from ...costs.kept_curves import kept_curve
from ...costs.learning import Learning, ModelCurve
from ...costs.measuring import WIDTHS
from ...costs.online import Costs
from ...costs.reading import ReadingTimes
from ...engine import Engine
from ...errors import ConfigError
from ...scheduling.devices import DeviceSlots
from .answers import Answers
from .frames import FrameHandler
from .registry import SessionRegistry
from .scheduler import Scheduler
from .slots import SlotTable
from .target import ServedTarget
from .types import Counts, DeviceSession, Limits, Send

logger = logging.getLogger("edgespec.server")

_WAIT_S = 1.0  # the longest time between two searches for expired sessions


class Sessions:
    """All sessions of one target. Call `start` to answer in a thread, or call `step` yourself.

    name: the name under which devices may ask for the model. costs: returns pairs (number of
    tokens, microseconds to evaluate them), which are sent to devices; no pairs while the times are
    unknown. constraints: compiles the constraints on answers; by default a compiler that only
    devices use. clock: returns seconds and never goes back. prefixes, reading: as in `SlotTable`.

    `open`, `compile`, `receive`, `leave` and `close` may be called from any thread: the registry's
    lock guards what they change. Everything else belongs to the thread that calls `step`.
    """

    def __init__(
        self,
        model: BatchedModel,
        tokenizer: Tokenizer,
        *,
        name: str = "",
        costs: Callable[[], Sequence[tuple[int, int]]] = tuple,
        constraints: Constraints | None = None,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
        prefixes: Prefixes | None = None,
        reading: ReadingTimes | None = None,
    ) -> None:
        if not all(slot.capabilities.truncate for slot in model.models):
            raise ConfigError(
                "the memory of this model cannot be cut, so it cannot verify for others; take one "
                "without a recurrent state"
            )
        self.limits = limits or Limits()
        self.counts = Counts()
        self._model = model
        self._target = target = ServedTarget(model, tokenizer, name, costs, constraints)
        self._compiling = ThreadPoolExecutor(compiled_at_once(), "edgespec-constraints")
        self._registry = SessionRegistry(target, self.limits, self.counts, clock)
        self._prefixes = prefixes
        self._slots = SlotTable(model, self.counts, clock, prefixes, reading)
        self._answers = Answers(self._registry, self._slots, model.n_ctx)
        self._scheduler = Scheduler(model, self._registry, self._slots, self._answers)
        self._frames = FrameHandler(target, self._registry, self._slots, self._answers)
        self._closing = False
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._registry)

    @property
    def n_connected(self) -> int:
        """Number of sessions that have a connection to their device."""
        return sum(session.send is not None for session in self._registry.all())

    @property
    def n_waiting(self) -> int:
        """Number of sessions that wait for the target."""
        return sum(session.busy for session in self._registry.all())

    @property
    def n_parked(self) -> int:
        """Number of the cache's cells that rejected nodes of trees still occupy."""
        return self._model.n_parked

    # --- from any thread ---

    def open(self, data: bytes | str, send: Send, owner: str = "") -> DeviceSession | None:
        """Open or resume a session with a connection's first frame. Returns None if it is refused.
        The answer goes to `send`, which must not block. owner: only the owner that opened a session
        can resume it.
        """
        return self._registry.open(data, send, owner)

    def compile(self, options: protocol.Options, owner: str = "") -> Future[None]:
        """Compile the constraint that the options of a frame describe, in a separate thread. If the
        frame is received afterwards, other sessions need not wait for the compilation. The first
        compilation also reads the vocabulary. After `close` nothing is compiled.
        """
        try:
            return self._compiling.submit(self._try, options, owner)
        except RuntimeError:  # it is closed
            done: Future[None] = Future()
            done.set_result(None)
            return done

    def _try(self, options: protocol.Options, owner: str) -> None:
        with contextlib.suppress(ConfigError):  # handling the frame raises it again
            self._target.constraint(options, owner)

    def receive(self, session: DeviceSession, send: Send, data: bytes | str) -> bool:
        """Take a frame that came over the connection `send`. Returns False if the connection has to
        end, because a different one took the session over or the device exceeded a limit.
        """
        return self._registry.receive(session, send, data)

    def leave(self, session: DeviceSession, send: Send, *, forget: bool = False) -> None:
        """Record that the connection `send` is gone. forget: the device will not come back."""
        self._registry.leave(session, send, forget=forget)

    def start(self) -> None:
        """Start the thread that answers frames until `close`."""
        self._thread = threading.Thread(target=self._run, name="edgespec-sessions", daemon=True)
        self._thread.start()

    @contextlib.asynccontextmanager
    async def running(self, app: object) -> AsyncIterator[None]:
        """Answer frames as long as a web application runs."""
        self.start()
        try:
            yield
        finally:
            await asyncio.to_thread(self.close)

    def close(self) -> None:
        """End all connections and the thread, and free the caches. May be called repeatedly."""
        with self._registry.lock:
            self._closing = True
            self._registry.end_all(protocol.CLOSING, "the server is shutting down")
        self._compiling.shutdown()
        if self._thread:
            self._thread.join()
        if self._prefixes and self._prefixes.keeps_all:
            self._slots.release_all()
        self._model.close()

    # --- the thread that evaluates ---

    def step(self) -> bool:
        """Handle frames, evaluate once, and answer. Returns False if there was nothing to do."""
        with self._registry.lock:
            self._registry.expire()
            frames = self._registry.take_frames()
        self._slots.release_idle(self.limits.idle_s)
        for session, arrived, data in frames:
            with self._failing_alone(session):
                self._frames.handle(session, arrived, data)
        batch = self._scheduler.next_batch()
        if not batch:
            return bool(frames)
        for session, item, rows in self._scheduler.evaluate(batch):
            with self._failing_alone(session):
                self._answers.evaluated(session, item, rows)
        return True

    def _run(self) -> None:
        while not self._closing:
            try:
                worked = self.step()
            except Exception:
                logger.exception("a step failed; all sessions lose their caches")
                self._scheduler.start_anew()
                worked = True
            with self._registry.lock:
                if not worked and not self._closing:
                    self._registry.wait_for_frame(_WAIT_S)

    @contextlib.contextmanager
    def _failing_alone(self, session: DeviceSession) -> Iterator[None]:
        """End the connection of a session that fails unexpectedly, so that the others go on."""
        try:
            yield
        except Exception:
            logger.exception("a session failed")
            self._slots.drop(session)
            self._answers.fail(session, protocol.INTERNAL, "the server failed; its log says where")


def serving(
    engine: Engine,
    *,
    name: str = "",
    n_slots: int = 64,
    n_ctx: int = 0,
    limits: Limits | None = None,
) -> Sessions:
    """Return sessions over an engine's own target; they share its weights but not its cache.

    n_slots: how many sessions can have a cache at the same time. n_ctx: the size of the cache in
    tokens, for all slots together if they can share one cache, else for each slot; 0 for the size
    of the engine's cache, or less if memory is short. Raises ConfigError if the target cannot keep
    several sequences, and OutOfMemory.
    """
    target, company = engine.target, engine.company
    if not isinstance(target, FileModel) or company is None:
        raise ConfigError("this target keeps one sequence only, so it cannot verify for others")
    model = DeviceSlots(company, company.model.n_slots)
    model.add(n_slots, n_ctx, together=True)
    measured = ModelCurve(target, WIDTHS)
    if measured.curve is None:
        engine.idle_work.add(Learning([measured], lambda: None, Costs(None)))

    def costs() -> list[tuple[int, int]]:
        curve = measured.curve or kept_curve(target)
        return [(n, int(1e6 * curve(n))) for n in curve.widths] if curve else []

    sessions = Sessions(
        model,
        engine.tokenizer,
        name=name,
        costs=costs,
        constraints=engine.constraints,
        limits=limits,
        prefixes=company.kept,
        reading=company.reading,
    )
    engine.idle_work.busy = lambda: sessions.n_waiting > 0
    return sessions
