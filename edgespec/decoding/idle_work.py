"""Work that an engine does for later answers while no request runs or waits."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from ..types import Abort, FinishReason
from .interrupt import Interrupt
from .kept import Kept
from .slots import Slots

logger = logging.getLogger("edgespec.idle")

PAUSE_S = 0.5  # seconds between a request and the work: the next request may follow at once
KEEP_EVERY = 8  # answers after which `kept` runs again
TURN_EVERY = 8  # answers in a row after which urgent work comes before the next answer
TURN_S = 1.0  # most seconds that the next answer then has to wait
MOST_TURNS = 10  # turns that are taken, or that were tried while requests ran
AGAIN_S = 5.0  # seconds until work that could not be done is tried again, if no request ends first


class Work(Protocol):
    """A piece of work to be done once. doing: a description of it, for messages."""

    doing: str

    @property
    def urgent(self) -> bool:
        """True if some model does not draft until this is done."""

    def run(self, abort: Abort) -> bool:
        """Do the work; return False if `abort` has ended it, or if it cannot be done now.

        If it returned False, it is called again later. The models that it uses are left as they
        were.
        """


class IdleWork:
    """Does pieces of work one after the other, in a thread of its own, shortly after a request.

    It holds all slots meanwhile, and gives way as soon as a request comes. If the next
    request always comes at once, urgent work gets the slots for at most TURN_S after every
    TURN_EVERY answers, at most MOST_TURNS times; even then it gives way to a request with a time
    limit. Work that fails is logged and not tried again. Nothing is done in a forked process,
    because the models belong to its parent.

    kept: work that is done again after every KEEP_EVERY answers. busy: returns True while other
    code uses the models; the work gives way to that as well.
    """

    def __init__(self, slots: Slots, works: Sequence[Work] = (), kept: Kept | None = None) -> None:
        self.busy: Callable[[], bool] = lambda: False
        self._slots = slots
        self._works = list(works)
        self._kept = kept
        self._n_answers = 0
        self._n_since = 0  # answers since some work was last done
        self._n_turns = 0
        self._changed = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def left(self) -> tuple[str, ...]:
        """Descriptions of the work that is left to be done."""
        return tuple(work.doing for work in self._works)

    @property
    def is_urgent(self) -> bool:
        """True while some model does not draft because the next piece of work is not done yet."""
        return bool(self._works) and self._works[0].urgent

    def add(self, work: Work) -> None:
        """Add a piece of work, to be done after the others."""
        self._works.append(work)

    def start(self, *, answered: bool = False) -> None:
        """Begin or continue work after a pause; call this when no request is expected.

        answered: a request has just been answered.
        """
        self._n_answers += answered
        self._n_since += answered
        if self._kept and answered and self._n_answers % KEEP_EVERY == 0:
            self._works += [self._kept] if self._kept not in self._works else []
        if not self._works or self._closed or not self._slots.is_open:
            return
        self._changed.set()
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._run, name="edgespec-idle", daemon=True)
                with contextlib.suppress(RuntimeError):  # no thread can start; answers need none
                    thread.start()
                    self._thread = thread

    def finish(self, interrupt: Interrupt) -> bool:
        """Do all work now, in the place of a request. Raises EngineBusy.

        Return False if some work is left, because `interrupt` has ended it or it could not be done.
        """
        if self._works:
            with self._slots.all_held(interrupt) as held:
                if held:
                    self._work(interrupt)
        return not self._works

    def close(self) -> None:
        """Stop the work, and wait until its present evaluation has ended."""
        self._closed = True
        self._changed.set()
        if self._thread and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while self._works and not self._closed:
            self._wait_until_quiet()
            is_turn = self._is_due
            held = self._slots.turn() if is_turn else self._slots.between_requests()
            with held as free:
                self._n_turns += is_turn
                if free:
                    self._n_since = 0
                    self._work(self._turn_abort() if is_turn else self._abort)
            if self._works and not self._closed:
                self._changed.wait(AGAIN_S)

    def _wait_until_quiet(self) -> None:
        """Wait until no request was answered for PAUSE_S, or urgent work has waited long enough."""
        self._changed.clear()
        while not self._closed and not self._is_due and self._changed.wait(PAUSE_S):
            self._changed.clear()

    @property
    def _is_due(self) -> bool:
        waits = self._n_since >= TURN_EVERY and self._n_turns < MOST_TURNS
        return waits and self.is_urgent

    def _turn_abort(self) -> Abort:
        """Return the `abort` of a turn that begins now."""
        end = time.monotonic() + TURN_S

        def abort() -> FinishReason | None:
            over = time.monotonic() >= end or not self.is_urgent
            wanted = self._closed or self._slots.wanted_soon or self.busy()
            return "cancelled" if over or wanted else None

        return abort

    def _abort(self) -> FinishReason | None:
        wanted = self._closed or self._slots.wanted or self.busy()
        return "cancelled" if wanted else None

    def _work(self, abort: Abort) -> None:
        while self._works:
            try:
                if abort() or not self._works[0].run(abort):
                    return
            except Exception as error:
                logger.warning("%s failed: %s", self._works[0].doing, error)
                logger.debug("its traceback", exc_info=True)
            del self._works[0]
