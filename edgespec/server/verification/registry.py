"""The registry of sessions: it admits, resumes and forgets them, and limits their frames."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable

from ... import protocol
from ...errors import VerifierFault
from .target import ServedTarget
from .types import Counts, DeviceSession, Limits, Send

_BYTES_PER_ID, _BYTES_OF_FIELDS = 5, 1 << 17  # they bound the size of a BEGIN
_MAX_INBOX = 8  # most frames of one session that may wait
_BURST_S = 10  # the rate of frames is averaged over this time
_FULL_RETRY_MS = 5000


class SessionRegistry:
    """All sessions of one server, and their connections.

    Every method may be called from any thread; methods that change something take `lock`. The lock
    is re-entrant: a caller that needs several calls to be one atomic change holds it around them.
    """

    def __init__(
        self,
        target: ServedTarget,
        limits: Limits,
        counts: Counts,
        clock: Callable[[], float],
    ) -> None:
        self.lock = threading.Condition()
        self.limits = limits
        self.counts = counts
        self.clock = clock
        self._target = target
        self._sessions: dict[bytes, DeviceSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def all(self) -> list[DeviceSession]:
        """Return the sessions in the order in which they were opened."""
        return list(self._sessions.values())

    # --- what connections call ---

    def open(self, data: bytes | str, send: Send, owner: str) -> DeviceSession | None:
        """Return the session for a connection whose first frame is `data`, None if the device is
        refused. The answer goes to `send` in both cases.
        """
        try:
            asked = protocol.expect(protocol.Open, protocol.decode(data))
            refusal = self._target.refusal(asked)
        except VerifierFault as error:
            refusal = protocol.Error(protocol.PROTOCOL, str(error))
        if refusal:
            self.counts.refused += 1
            send(protocol.encode(refusal))
            return None
        with self.lock:
            session = self._admit(asked.token, owner)
            if session:
                session.send = send
                session.last_used = session.last_frame = self.clock()
                session.allowance = _BURST_S * self.limits.frames_per_s
                send(protocol.encode(self._target.opened(session, self.limits.max_ahead)))
                return session
        self.counts.refused += 1
        full = f"all {self.limits.max_sessions} sessions are taken"
        send(protocol.encode(protocol.Busy(_FULL_RETRY_MS, full)))
        return None

    def receive(self, session: DeviceSession, send: Send, data: bytes | str) -> bool:
        """Put a frame into the session's inbox. Returns False if the connection has to end, because
        a different connection took the session over or the device exceeded a limit.
        """
        with self.lock:
            if session.send != send:
                return False
            now, most = self.clock(), _BURST_S * self.limits.frames_per_s
            earned = self.limits.frames_per_s * (now - session.last_frame)
            session.allowance = min(session.allowance + earned, most) - 1
            session.last_used = session.last_frame = now
            too_long = len(data) > _BYTES_PER_ID * self._target.n_ctx + _BYTES_OF_FIELDS
            if session.allowance < 0 or len(session.inbox) >= _MAX_INBOX or too_long:
                self.end(session, protocol.LIMIT, "more frames came than this server takes")
                return False
            session.inbox.append((now, data))
            self.lock.notify()
            return True

    def leave(self, session: DeviceSession, send: Send, *, forget: bool) -> None:
        """Detach the connection `send` from its session. forget: forget the session at once."""
        with self.lock:
            if session.send != send:
                return
            session.send, session.last_used = None, self.clock()
            session.inbox.clear()
            if forget:
                self._forget(session)
            self.lock.notify()

    # --- what the evaluating thread calls ---

    def send(self, session: DeviceSession, frame: protocol.Frame | bytes) -> None:
        """Send a frame, encoded or not, if the session has a connection."""
        data = frame if isinstance(frame, bytes) else protocol.encode(frame)
        with self.lock:
            if session.send:
                session.send(data)

    def end(self, session: DeviceSession, code: int, message: str) -> None:
        """End the session's connection with an error. The device may resume the session."""
        with self.lock:
            if session.send:
                session.send(protocol.encode(protocol.Error(code, message)))
                session.send = None

    def end_all(self, code: int, message: str) -> None:
        """End all connections with an error, and wake the thread that waits for a frame."""
        with self.lock:
            for session in self._sessions.values():
                self.end(session, code, message)
            self.lock.notify()

    def expire(self) -> None:
        """Stop sessions that have no connection, and forget those that were not resumed in time."""
        with self.lock:
            now = self.clock()
            for session in self.all():
                if session.send is None:
                    session.stop()
                    if now - session.last_used > self.limits.resume_s:
                        self._forget(session)

    def take_frames(self) -> list[tuple[DeviceSession, float, bytes | str]]:
        """Remove the oldest frame of each inbox; return (session, arrival time, frame) of each."""
        with self.lock:
            return [(one, *one.inbox.popleft()) for one in self.all() if one.inbox]

    def wait_for_frame(self, timeout_s: float) -> None:
        """Wait until a frame is there or a device has left, but at most `timeout_s` seconds."""
        with self.lock:
            if not any(session.inbox for session in self._sessions.values()):
                self.lock.wait(timeout_s)

    # --- admission ---

    def _admit(self, token: bytes, owner: str) -> DeviceSession | None:
        """Return the session to resume, else a new one, or None if there are too many."""
        found = self._sessions.get(token)
        if found and found.owner == owner:
            self.end(found, protocol.CLOSING, "the session goes on over another connection")
            found.inbox.clear()
            found.inbox.append((self.clock(), protocol.encode(protocol.Cancel())))
            self.counts.sessions_resumed += 1
            return found
        if len(self._sessions) >= self.limits.max_sessions and not self._forget_one():
            return None
        self.counts.sessions_opened += 1
        session = DeviceSession(secrets.token_bytes(16), owner)
        self._sessions[session.token] = session
        return session

    def _forget_one(self) -> bool:
        """Forget the session that was disconnected longest. Returns False if all are connected."""
        gone = [session for session in self._sessions.values() if session.send is None]
        if not gone:
            return False
        self._forget(min(gone, key=lambda session: session.last_used))
        return True

    def _forget(self, session: DeviceSession) -> None:
        self._sessions.pop(session.token, None)
        session.token = b""  # tells the evaluating thread to free the slot
