"""The table of slots: it tells which session has which slot of the batched model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection

from ...backends.base import BatchedModel
from ...cache.prefixes import LEAST, Prefixes
from ...cache.token_cache import TokenCache, common_prefix
from ...costs.reading import ReadingTimes
from ...errors import CannotTruncate
from ...scheduling.sharing import SharedPrefixes
from .types import Counts, DeviceSession

_PATIENCE_S = 2.0  # a session that has waited longer may take the slot of a busy one


class SlotTable:
    """Gives slots to sessions and takes them back. Only the evaluating thread uses it.

    A session without a slot keeps its tokens; they are loaded or read again when the session goes
    on. prefixes: keeps what leaves the slots, None for no such store. reading: the times in which
    prompts are read.
    """

    def __init__(
        self,
        model: BatchedModel,
        counts: Counts,
        clock: Callable[[], float],
        prefixes: Prefixes | None = None,
        reading: ReadingTimes | None = None,
    ) -> None:
        self._model = model
        self._counts = counts
        self._clock = clock
        self._reading = reading or ReadingTimes()
        self._sessions: dict[int, DeviceSession] = {}
        self._caches = [TokenCache(each, prefixes=prefixes) for each in model.models]
        self._shared = SharedPrefixes(model)
        for slot, cache in enumerate(self._caches):
            self._shared.add(slot, cache, lambda: True)

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
        session.slot, session.cache = free, self._caches[free]
        self.reuse(session, needed)
        return True

    def reuse(self, session: DeviceSession, needed: Collection[int] = ()) -> None:
        """Keep what a session's cache has in common with its context. If another session's cache or
        the store has more of it, continue with that. needed: slots that are not freed for this.

        Only what has the same owner is used, because the speed of reading a prompt would reveal how
        the prompts of others begin.
        """
        slot, cache, wanted = session.slot, session.cache, session.context.tokens[:-1]
        if slot is None or cache is None:
            return
        cache.begin(session.owner)
        n = common_prefix(cache.tokens, wanted)
        if len(cache.tokens) - n >= LEAST:
            cache.save()
        self.truncate(session, n)
        if self._model.shares_prefixes:
            self._counts.shared_tokens += self._shared.take(slot, session.context.tokens)
        n = session.n_cached
        if not self._make_room(len(wanted) - n, [*needed, slot]):
            return
        n_loaded = cache.align(session.context.tokens, token_s=self._reading.token_s) - n
        if n_loaded:  # fewer than 0 if loading has failed
            self._model.unshare(slot, 0)
            self._counts.loaded_tokens += max(0, n_loaded)

    def _make_room(self, n_tokens: int, needed: Collection[int]) -> bool:
        """Free slots until so many tokens fit; return False if they cannot."""
        while self._model.n_free < n_tokens:
            if not self.evict(needed):
                return False
        return True

    def truncate(self, session: DeviceSession, n_past: int) -> None:
        """Keep the first `n_past` tokens of the session's cache, or none if the engine has dropped
        cells that these tokens attend to.
        """
        if session.slot is not None and session.cache is not None:
            with contextlib.suppress(CannotTruncate):  # the slot is empty then
                self._model.truncate(session.slot, n_past)
            session.cache.failed()

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
        """Free the session's slot; what it holds moves to the store, if there is one."""
        if session.cache is not None:
            session.cache.save()
        self.drop(session)

    def drop(self, session: DeviceSession) -> None:
        """Drop the session's cache and free its slot."""
        if session.slot is not None:
            self.truncate(session, 0)
            del self._sessions[session.slot]
            session.slot = session.cache = None

    def release_idle(self, idle_s: float) -> None:
        """Free the slots of forgotten sessions, and of sessions that were idle for `idle_s`."""
        now = self._clock()
        for session in list(self._sessions.values()):
            idle = not session.busy and now - session.last_used > idle_s
            if not session.token or idle:
                self.release(session)

    def release_all(self) -> None:
        """Free all slots."""
        for session in list(self._sessions.values()):
            self.release(session)

    def drop_all(self) -> None:
        """Drop all caches."""
        for session in list(self._sessions.values()):
            self.drop(session)
