"""The table of slots: it tells which session's cache is in which slot of the batched model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ...backends.base import BatchedModel
from ...errors import CannotTruncate, DecodeError
from ...scheduling.sharing import longest_shared
from .types import Counts, DeviceSession

_PATIENCE_S = 2.0  # a session that has waited longer may take the slot of a busy one


class SlotTable:
    """Gives slots to sessions and takes them back. Only the evaluating thread uses it.

    A session without a slot keeps its tokens; they are read again when the session goes on.
    """

    def __init__(self, model: BatchedModel, counts: Counts, clock: Callable[[], float]) -> None:
        self._model = model
        self._counts = counts
        self._clock = clock
        self._sessions: dict[int, DeviceSession] = {}

    def take(self, session: DeviceSession, needed: Collection[int]) -> bool:
        """Give the session a slot if it has none. Returns False if all are taken. A slot may be
        taken from a different session for this, but never a slot in `needed`.
        """
        if session.slot is not None:
            return True
        free = next((i for i in range(self._model.n_slots) if i not in self._sessions), None)
        if free is None:
            waited = self._clock() - session.waiting_since
            evicted = self.evict(needed, also_busy=waited > _PATIENCE_S)
            return evicted and self.take(session, needed)
        self._sessions[free] = session
        session.slot = free
        self.share_prefix(session)
        return True

    def truncate(self, session: DeviceSession, n_past: int) -> None:
        """Keep the first `n_past` tokens of the session's cache, or none if the engine has dropped
        cells that these tokens attend to.
        """
        session.n_cached = n_past
        if session.slot is not None:
            try:
                self._model.truncate(session.slot, n_past)
            except CannotTruncate:
                session.n_cached = 0

    def keep(self, session: DeviceSession, path: Sequence[int]) -> None:
        """Drop the nodes of the tree just evaluated from the session's cache, except `path`."""
        assert session.slot is not None
        self._model.keep(session.slot, path)

    def share_prefix(self, session: DeviceSession) -> None:
        """Copy the longest common prefix from the cache of another session of the same owner, if
        the model can share prefixes. Prefixes of other owners are never shared, because the speed
        of reading a prompt would reveal how their prompts begin.
        """
        if session.slot is None or not self._model.shares_prefixes:
            return
        others = (
            (slot, other.context.tokens[: other.n_cached])
            for slot, other in self._sessions.items()
            if other is not session and other.owner == session.owner
        )
        wanted = session.context.tokens[:-1]
        longest, source = longest_shared(wanted, session.n_cached, others)
        if source is not None:
            self.truncate(session, 0)
            try:
                self._model.copy(source, session.slot, longest)
            except CannotTruncate:
                return
            except DecodeError:
                self.release(self._sessions[source])
                return
            session.n_cached = longest
            self._counts.shared_tokens += longest

    def evict(self, needed: Collection[int], *, also_busy: bool = False) -> bool:
        """Free the slot of the idle session that was last used longest ago. If none is idle and
        `also_busy` is True, free that of the busy session that was last used longest ago. Slots in
        `needed` are not freed. Returns False if no slot could be freed.
        """
        held = [session for slot, session in self._sessions.items() if slot not in needed]
        idle = [session for session in held if not session.busy]
        candidates = idle or (held if also_busy else [])
        if not candidates:
            return False
        self.release(min(candidates, key=lambda session: session.last_used))
        self._counts.evictions += 1
        return True

    def release(self, session: DeviceSession) -> None:
        """Drop the session's cache and free its slot."""
        if session.slot is not None:
            self.truncate(session, 0)
            del self._sessions[session.slot]
            session.slot = None

    def release_idle(self, idle_s: float) -> None:
        """Free the slots of forgotten sessions, and of sessions that were idle for `idle_s`."""
        now = self._clock()
        for session in list(self._sessions.values()):
            idle = not session.busy and now - session.last_used > idle_s
            if not session.token or idle:
                self.release(session)

    def release_all(self) -> None:
        """Drop all caches."""
        for session in list(self._sessions.values()):
            self.release(session)
