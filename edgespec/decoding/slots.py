"""The slots of an engine: which requests run, which wait, and when the models are freed."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence

from ..backends.helper_threads import end_helper_threads
from ..config import OnBusy
from ..errors import EdgeSpecError, EngineBusy
from ..types import EngineStatus, RequestStatus, Stats
from .interrupt import Interrupt
from .session import Session

_POLL_S = 0.05  # seconds between two looks at whether a waiting request has ended
_SIMILAR = 0.1  # smallest part of a prompt for which a request prefers the slot that has it
_DRAIN_S = 1.0  # most seconds that `turn` keeps free slots from the requests that wait


class _Slot:
    """A session and the request that it runs. used: when it was used last, as a serial number."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.claim: _Claim | None = None
        self.promised: _Claim | None = None  # takes the slot as soon as it is free
        self.used = 0


class _Claim:
    """A request that waits for a slot, or for all slots, or that has them."""

    def __init__(
        self,
        interrupt: Interrupt,
        owner: str = "",
        prompt: Sequence[int] = (),
        stats: Stats | None = None,
        *,
        wants_all: bool = False,
    ) -> None:
        self.interrupt, self.owner, self.prompt = interrupt, owner, prompt
        self.stats, self.wants_all = stats or Stats(), wants_all
        self.thread = threading.get_ident()
        self.began_s = 0.0  # when it got its slot

    def status(self, slot: int) -> RequestStatus:
        """Return what the request has done so far in a slot."""
        stats, n_prompt = self.stats, len(self.prompt)
        n_emitted = stats.num_emitted_tokens
        n_read = stats.num_cached_tokens + stats.num_prefilled_tokens
        return RequestStatus(
            slot, "answering" if n_emitted else "reading", n_prompt, n_read, n_emitted,
            time.monotonic() - self.began_s,
        )  # fmt: skip


class Slots:
    """Lets as many requests run at once as there are sessions, in the order of their arrival.

    Once it is closed and no request runs, it frees the models.

    on_busy: as in EngineConfig. free: frees the models; it may be called more than once.
    """

    def __init__(
        self, sessions: Sequence[Session], on_busy: OnBusy, free: Callable[[], None]
    ) -> None:
        self._slots = [_Slot(session) for session in sessions]
        self._on_busy = on_busy
        self._free_models = free
        # its lock can be taken twice by a thread, because a stream may be closed by the garbage
        # collection at any point
        self._changed = threading.Condition()
        self._waiting: list[_Claim] = []
        self._begun: set[weakref.ref[Interrupt]] = set()  # requests that have begun and not ended
        self._all_held = False  # by idle work, by a request for all slots, or while freeing
        self._is_draining = False  # `turn` waits until all slots are free
        self._n_used = 0
        self._closed = False
        self._process = os.getpid()

    def begin(self, time_limit_s: float | None) -> Interrupt:
        """Return the interrupt of a request that begins now; its turn may come much later.

        `Slots.cancel` also reaches a request that waits.
        """
        interrupt = Interrupt(time_limit_s)
        self._begun.add(weakref.ref(interrupt, self._begun.discard))
        return interrupt

    @contextlib.contextmanager
    def held(
        self,
        interrupt: Interrupt,
        owner: str = "",
        prompt: Sequence[int] = (),
        on_busy: OnBusy | None = None,
        stats: Stats | None = None,
    ) -> Iterator[Session | None]:
        """Hold a slot for one request; yield its session when the request's turn comes.

        Among several free slots it takes the one that has most of the prompt's beginning, or else
        the one used least recently. on_busy: in place of the engine's own. stats: the request's
        statistics, which `status` reads while the request runs. Yield None if the request was
        cancelled or ran out of time before its turn. Raises EngineBusy, and EdgeSpecError as
        `check_open` does.
        """
        claim = _Claim(interrupt, owner, prompt, stats)
        with self._claimed(claim, on_busy) as slot:
            yield slot.session if slot else None

    @contextlib.contextmanager
    def all_held(self, interrupt: Interrupt) -> Iterator[bool]:
        """Hold all slots in the place of a request; yield as `held` does, but True or False."""
        with self._claimed(_Claim(interrupt, wants_all=True)) as slot:
            yield slot is not None

    @property
    def n(self) -> int:
        """The number of slots."""
        return len(self._slots)

    def status(self, owner: str | None = None) -> EngineStatus:
        """Return which requests run, of one owner or of all, and how many wait."""
        claims = [(number, each.claim) for number, each in enumerate(self._slots)]
        running = [
            claim.status(number)
            for number, claim in claims
            if claim and not claim.wants_all and owner in (None, claim.owner)
        ]
        return EngineStatus(len(self._slots), len(self._waiting), tuple(running))

    @property
    def wanted(self) -> bool:
        """True if a request waits for a slot, or the engine is closed."""
        return bool(self._waiting) or self._closed

    @property
    def wanted_soon(self) -> bool:
        """True if a request with a time limit waits for a slot, or the engine is closed."""
        waiting = tuple(self._waiting)
        return self._closed or any(math.isfinite(each.interrupt.left_s()) for each in waiting)

    @property
    def is_open(self) -> bool:
        """True before `close`, in the process that has loaded the models."""
        return not self._closed and os.getpid() == self._process

    @contextlib.contextmanager
    def between_requests(self) -> Iterator[bool]:
        """Hold all slots and yield True if no request runs or waits and the engine is open.

        Else yield False.
        """
        if self.wanted or not self._take_all():
            yield False
            return
        try:
            yield not self.wanted
        finally:
            self._give_all()

    @contextlib.contextmanager
    def turn(self) -> Iterator[bool]:
        """Hold all slots once the running requests have ended, even if others wait; yield True.

        Yield False if the engine is closed, or if requests still run after the second that others
        wait for this at most. With one slot nobody waits for this, so it takes as long as needed.
        """
        end = time.monotonic() + (_DRAIN_S if len(self._slots) > 1 else math.inf)
        with self._changed:
            self._is_draining = True
            try:
                while not (taken := self._take_all()) and self.is_open:
                    if len(self._slots) > 1 and (time.monotonic() >= end or self.wanted_soon):
                        break
                    self._changed.wait(_POLL_S)
            finally:
                self._is_draining = False
                self._changed.notify_all()
        if not taken:
            yield False
            return
        try:
            yield self.is_open
        finally:
            self._give_all()

    def cancel(self) -> None:
        """Cancel all running requests; if none runs, cancel all that wait for their turn.

        It may be called from any thread and from a signal handler.
        """
        running = [claim.interrupt for each in self._slots if (claim := each.claim)]
        begun = [each() for each in tuple(self._begun)]
        for interrupt in running or filter(None, begun):
            interrupt.cancel()

    def close(self) -> None:
        """Cancel the running requests, and free the models as soon as no request runs.

        Nothing is freed in a forked process, because the models belong to its parent.
        """
        self._closed = True
        if os.getpid() == self._process:
            self.cancel()
            self._free()

    def check_open(self) -> None:
        """Raise EdgeSpecError after `close`, and in a fork of the process that loaded models."""
        self._check_process()
        if self._closed:
            raise EdgeSpecError("this engine is closed; load the model again")

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise EdgeSpecError(
                f"this engine was loaded in process {self._process} and this is process "
                f"{os.getpid()}, forked from it: the threads of an engine do not survive a fork. "
                'Load the model after the fork, or start processes with the method "spawn"'
            )

    # --- taking and giving back ----------------------------------------------------------------

    @contextlib.contextmanager
    def _claimed(self, claim: _Claim, on_busy: OnBusy | None = None) -> Iterator[_Slot | None]:
        """Hold what a claim wants; yield one of its slots, None if its request ended before."""
        self._check_process()
        try:
            slot = self._take(claim, on_busy or self._on_busy)
            if slot:
                self.check_open()  # after the claim is known, so that `close` cancels it
            yield slot
        finally:
            self._give_back(claim)
            self._begun.discard(weakref.ref(claim.interrupt))

    def _take(self, claim: _Claim, on_busy: OnBusy) -> _Slot | None:
        """Wait for the claim's turn; return None if its request ends before."""
        with self._changed:
            self._waiting.append(claim)
            try:
                while not (slot := self._slot_for(claim)):
                    self._refuse(claim, on_busy)
                    if on_busy == "replace":
                        self._replace(claim)
                    self._changed.wait(_POLL_S)
                    if claim.interrupt():
                        return None
                for each in self._slots if claim.wants_all else (slot,):
                    each.claim = claim
                self._all_held, claim.began_s = claim.wants_all, time.monotonic()
                self._n_used += 1
                slot.used = self._n_used
            finally:
                self._waiting.remove(claim)
                for each in self._slots:
                    if each.promised is claim:
                        each.promised = None
                self._changed.notify_all()  # the next one may have its turn already
        return slot

    def _slot_for(self, claim: _Claim) -> _Slot | None:
        """Return the slot that a claim may take now, None if it has to wait."""
        if self._all_held:
            return None
        promised = self._promised_to(claim)
        if promised:
            return None if promised.claim else promised
        free = [each for each in self._slots if not each.claim and not each.promised]
        if claim.wants_all:
            return free[0] if self._is_first(claim) and len(free) == len(self._slots) else None
        if not free or not self._is_first(claim):
            return None
        if self._is_draining and not self._holds_one(claim.thread):
            return None  # a thread that reads a stream must not wait for that stream's end
        return free[0] if len(free) == 1 else _best(free, claim)

    def _is_first(self, claim: _Claim) -> bool:
        """Return whether the claim came before all others that wait and have no slot promised."""
        return claim is next(each for each in self._waiting if not self._promised_to(each))

    def _promised_to(self, claim: _Claim) -> _Slot | None:
        return next((each for each in self._slots if each.promised is claim), None)

    def _holds_one(self, thread: int) -> bool:
        return any(each.claim and each.claim.thread == thread for each in self._slots)

    def _refuse(self, claim: _Claim, on_busy: OnBusy) -> None:
        """Raise EngineBusy if a claim must not wait for the running requests.

        Work between requests does not count as a request, because it gives way at once.
        """
        n_running = sum(each.claim is not None for each in self._slots)
        if not n_running or (n_running < len(self._slots) and not claim.wants_all):
            return
        if on_busy == "error":
            what = "a request is" if n_running == 1 else f"{n_running} requests are"
            raise EngineBusy(f"{what} running on this engine; wait or cancel() it")
        if self._holds_one(claim.thread):
            raise EngineBusy(
                "this thread is still reading a stream of this engine; exhaust it or close() it"
            )

    def _replace(self, claim: _Claim) -> None:
        """Cancel the owner's running request that began first, and promise its slot to the claim.

        Do nothing if a slot is promised already or free, or if no request of this owner runs.
        """
        if self._promised_to(claim) or not all(each.claim for each in self._slots):
            return
        for slot in sorted(self._slots, key=lambda each: each.used):
            running = slot.claim
            if slot.promised or running is None or running.wants_all:
                continue
            if running.owner == claim.owner:
                running.interrupt.cancel()
                slot.promised = claim
                return

    def _give_back(self, claim: _Claim) -> None:
        if os.getpid() != self._process:
            return  # another thread of the parent may have held the lock when it forked
        end_helper_threads()
        with self._changed:
            held = [each for each in self._slots if each.claim is claim]
            for each in held:
                each.claim = None
            if held and claim.wants_all:
                self._all_held = False
            self._changed.notify_all()
        if held and self._closed:
            self._free()

    def _take_all(self) -> bool:
        """Hold all slots without a request and return True, if all are free now."""
        with self._changed:
            if self._all_held or any(each.claim for each in self._slots):
                return False
            self._all_held = True
            return True

    def _give_all(self) -> None:
        if os.getpid() != self._process:
            return
        end_helper_threads()
        with self._changed:
            self._all_held = False
            self._changed.notify_all()
        if self._closed:
            self._free()

    def _free(self) -> None:
        """Free the models, unless a request is running; they are then freed when it ends."""
        if self._take_all():
            try:
                self._free_models()
            finally:
                with self._changed:
                    self._all_held = False
                    self._changed.notify_all()


def _best(free: Sequence[_Slot], claim: _Claim) -> _Slot:
    """Return the slot that has most of a prompt's beginning, if that is a tenth of it or more, or
    else the one used least recently.

    All chats begin with the same few tokens. For them no other conversation should be dropped.
    """
    reusable = [each.session.n_reusable(claim.owner, claim.prompt) for each in free]
    least = max(1, _SIMILAR * len(claim.prompt))
    reusable = [n if n >= least else 0 for n in reusable]
    places = range(len(free))
    return free[max(places, key=lambda place: (reusable[place], -free[place].used))]
