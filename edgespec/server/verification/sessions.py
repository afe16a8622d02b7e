"""Verification sessions: many devices, one target, evaluated together.

Frames arrive from any thread; one thread answers them. A step of it takes in what has arrived,
puts the tokens of all sessions that have something to do into one evaluation, judges drafts, and
sends the answers. A session's cache may be dropped at any time: its tokens are kept, and read
again when it goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from ... import protocol as wire
from ...backends.base import Batchable, BatchedModel, BatchItem, Tokenizer
from ...cache.token_cache import common_prefix
from ...costs.profile import curve_of
from ...decoding.engine import Engine
from ...errors import ConfigError, ContextFull, DecodeError, VerifierFault
from ...sampling.randomness import SeededRandomness
from ...sampling.verification import Verification
from ...types import Draft, Rows

logger = logging.getLogger("edgespec.server")

Send = Callable[[bytes], None]
_SHARED = 64  # tokens: a shorter common beginning is read anew
_SHORT = 128  # tokens of a prompt that are read at once while others wait for verdicts
_BYTES_AN_ID, _BYTES_BESIDE = 5, 1 << 16  # of the longest BEGIN that may come
_INBOX = 8  # frames of one session that wait
_RETRY_MS = 250
_HASHES = 8  # vocabulary sizes of devices that are remembered
_LAST_ROUND = 1 << 62
_PATIENCE_S = 2.0  # so long a session waits for others to rest


@dataclass(frozen=True, slots=True)
class Limits:
    """What one server gives. Times in seconds.

    max_sessions: connected or waiting to be resumed. max_prompt_tokens: 0 for the context.
    max_ahead: tokens that the target emits by itself before a device has to ask again.
    frames_per_s: of one session, as a mean over ten seconds. idle_s: until the cache of a silent
    session is dropped; resume_s: until a session whose connection was lost is forgotten.
    """

    max_sessions: int = 256
    max_prompt_tokens: int = 0
    max_ahead: int = 32
    frames_per_s: float = 200.0
    idle_s: float = 600.0
    resume_s: float = 300.0


@dataclass(slots=True, eq=False)
class Session:
    """One device: what it said last, and where its cache is.

    cached: so many tokens of the context are in the cache of `sequence`. round: the last one
    answered; until: up to which one the target goes on by itself.
    """

    token: bytes
    owner: str
    send: Send | None = None
    context: wire.Context = field(default_factory=wire.Context)
    n_prompt: int = 0
    begun: wire.Begin | None = None
    verification: Verification | None = None
    slot: int | None = None
    cached: int = 0
    reading: bool = False
    verify: wire.Verify | None = None
    came: float = 0.0
    round: int = -1
    until: int = -1
    answer: bytes = b""
    used: float = 0.0
    inbox: deque[tuple[float, bytes | str]] = field(default_factory=deque)
    heard: float = 0.0
    allowance: float = 0.0

    @property
    def busy(self) -> bool:
        """Whether it waits for the target."""
        return self.reading or self.verify is not None

    def rest(self) -> None:
        """Nothing more is asked for."""
        self.reading, self.verify, self.until = False, None, self.round


@dataclass(slots=True)
class Counts:
    """What was done since the start."""

    sessions_opened: int = 0
    sessions_resumed: int = 0
    verifications: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    emitted_tokens: int = 0
    prompt_tokens: int = 0
    shared_tokens: int = 0
    evaluations: int = 0
    evaluated_sequences: int = 0
    evictions: int = 0
    refused: int = 0


class Sessions:
    """All sessions of one target.

    tokenizer: the target's; name: what devices may ask for; costs: microseconds of an evaluation
    by number of tokens, told to devices. Call `start`, or `step` yourself.
    """

    def __init__(
        self,
        sequences: BatchedModel,
        tokenizer: Tokenizer,
        *,
        name: str = "",
        costs: Sequence[tuple[int, int]] = (),
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits or Limits()
        self.counts = Counts()
        self.name = name
        self.n_ctx = sequences.n_ctx
        self.max_draft = sequences.max_draft_rows - 1
        self._sequences = sequences
        self._tokenizer = tokenizer
        self._costs = tuple(costs)
        self._clock = clock
        self._hashes: dict[int, bytes] = {}
        self._hash(tokenizer.vocab_size)
        self._sessions: dict[bytes, Session] = {}
        self._seated: dict[int, Session] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def n_connected(self) -> int:
        """Sessions with a device at the other end."""
        return sum(session.send is not None for session in list(self._sessions.values()))

    @property
    def n_waiting(self) -> int:
        """Sessions that wait for the target."""
        return sum(session.busy for session in list(self._sessions.values()))

    # --- from any thread ---

    def start(self) -> None:
        """Answer in a thread of its own, until `close`."""
        self._thread = threading.Thread(target=self._run, name="edgespec-sessions", daemon=True)
        self._thread.start()

    def open(self, data: bytes | str, send: Send, owner: str = "") -> Session | None:
        """A connection's first frame. The answer goes to `send`, which must not block; None
        where it is a refusal. owner: whoever the key belongs to; only they can resume.
        """
        try:
            asked = wire.expect(wire.Open, wire.decode(data))
            refused = self._refusal(asked)
        except VerifierFault as error:
            refused = wire.Error(wire.PROTOCOL, str(error))
        if refused:
            self.counts.refused += 1
            send(wire.encode(refused))
            return None
        with self._changed:
            session = self._admit(asked.token, owner)
            if session:
                session.send = send
                session.used = session.heard = self._clock()
                session.allowance = 10 * self.limits.frames_per_s
                send(wire.encode(self._opened(session)))
                return session
        self.counts.refused += 1
        send(wire.encode(wire.Busy(5000, f"all {self.limits.max_sessions} sessions are taken")))
        return None

    def receive(self, session: Session, send: Send, data: bytes | str) -> bool:
        """A frame of a session; False where the connection has to end, because another one has
        taken the session over or too much came.
        """
        with self._changed:
            if session.send != send:
                return False
            now, most = self._clock(), 10 * self.limits.frames_per_s
            earned = self.limits.frames_per_s * (now - session.heard)
            session.allowance = min(session.allowance + earned, most) - 1
            session.used = session.heard = now
            too_much = len(data) > _BYTES_AN_ID * self.n_ctx + _BYTES_BESIDE
            if session.allowance < 0 or len(session.inbox) >= _INBOX or too_much:
                self._refuse(session, wire.LIMIT, "more frames came than this server takes")
                return False
            session.inbox.append((now, data))
            self._changed.notify()
            return True

    def leave(self, session: Session, send: Send, *, forget: bool = False) -> None:
        """The connection is gone. forget: the device said that it will not come back."""
        with self._changed:
            if session.send != send:
                return
            session.send, session.used = None, self._clock()
            session.inbox.clear()
            if forget:
                session.token, token = b"", session.token
                self._sessions.pop(token, None)
            self._changed.notify()

    @contextlib.asynccontextmanager
    async def running(self, app: object) -> AsyncIterator[None]:
        """As long as a server."""
        self.start()
        try:
            yield
        finally:
            await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Tell everybody, end the thread, free the caches. Twice is harmless."""
        with self._changed:
            self._closing = True
            for session in self._sessions.values():
                self._refuse(session, wire.CLOSING, "the server is shutting down")
            self._changed.notify()
        if self._thread:
            self._thread.join()
        self._sequences.close()

    # --- admission ---

    def _refusal(self, asked: wire.Open) -> wire.Error | None:
        if asked.version != wire.VERSION:
            return wire.Error(
                wire.VERSION_UNKNOWN,
                f"this server speaks version {wire.VERSION} of the protocol, not {asked.version}",
            )
        if asked.model and asked.model != self.name:
            return wire.Error(
                wire.MODEL, f"this server has {self.name!r}, not {asked.model[:200]!r}"
            )
        ours, theirs = self._tokenizer.vocab_size, asked.vocab_size
        if not 0.95 * ours <= theirs <= ours / 0.95:  # more than padding
            return wire.Error(
                wire.VOCABULARY,
                f"the device's vocabulary has {theirs} tokens, the target's {ours}: take a "
                "tokenizer of the target's own family",
            )
        if theirs <= ours and asked.vocab_hash != self._hash(theirs):
            return wire.Error(
                wire.VOCABULARY,
                "the device's vocabulary is not the target's: take a tokenizer of its own family",
            )
        return None

    def _hash(self, n: int) -> bytes:
        if n not in self._hashes:
            if len(self._hashes) >= _HASHES:
                del self._hashes[next(reversed(self._hashes))]
            self._hashes[n] = wire.vocabulary_hash(self._tokenizer, n)
        return self._hashes[n]

    def _admit(self, token: bytes, owner: str) -> Session | None:
        found = self._sessions.get(token)
        if found and found.owner == owner:
            self._refuse(found, wire.CLOSING, "the session goes on over another connection")
            found.inbox.clear()
            found.inbox.append((self._clock(), wire.encode(wire.Cancel())))
            self.counts.sessions_resumed += 1
            return found
        if len(self._sessions) >= self.limits.max_sessions and not self._forget_one():
            return None
        self.counts.sessions_opened += 1
        session = Session(secrets.token_bytes(16), owner)
        self._sessions[session.token] = session
        return session

    def _opened(self, session: Session) -> wire.Opened:
        n = self._tokenizer.vocab_size
        return wire.Opened(
            wire.VERSION, session.token, self.n_ctx, self.max_draft, self.limits.max_ahead,
            n, self._hash(n), self.name, self._costs,
        )  # fmt: skip

    def _forget_one(self) -> bool:
        """Make room: of the sessions without a connection the one that left first."""
        gone = [session for session in self._sessions.values() if session.send is None]
        if not gone:
            return False
        self._forget(min(gone, key=lambda session: session.used))
        return True

    def _forget(self, session: Session) -> None:
        self._sessions.pop(session.token, None)
        session.token = b""  # its cache is given back by the thread that evaluates

    def _refuse(self, session: Session, code: int, message: str) -> None:
        """The last that a connection hears; its session can be resumed."""
        if session.send:
            session.send(wire.encode(wire.Error(code, message)))
            session.send = None

    # --- the thread that evaluates ---

    def _run(self) -> None:
        while not self._closing:
            try:
                worked = self.step()
            except Exception:
                logger.exception("a step failed; all sessions lose their caches")
                self._start_anew()
                worked = True
            with self._changed:
                if not worked and not self._closing and not self._any_frame():
                    self._changed.wait(1.0)

    def _any_frame(self) -> bool:
        return any(session.inbox for session in self._sessions.values())

    def step(self) -> bool:
        """Take in frames, evaluate once, answer. False where there was nothing to do."""
        with self._changed:
            self._tidy()
            arrived = [
                (session, *session.inbox.popleft())
                for session in list(self._sessions.values())
                if session.inbox
            ]
        for session, came, data in arrived:
            with self._failing_alone(session):
                self._take(session, came, data)
        parts = self._parts()
        if not parts:
            return bool(arrived)
        rows = self._evaluate(parts)
        for (session, part), found in zip(parts, rows, strict=False):
            with self._failing_alone(session):
                self._advance(session, part, found)
        return True

    @contextlib.contextmanager
    def _failing_alone(self, session: Session) -> Iterator[None]:
        """A bug met by one session is not the others' loss."""
        try:
            yield
        except Exception:
            logger.exception("a session failed")
            self._unseat(session)
            self._fail(session, wire.INTERNAL, "the server failed; its log says where")

    def _tidy(self) -> None:
        """Sessions that left rest; what nobody came back for is given up."""
        now, limits = self._clock(), self.limits
        for session in list(self._sessions.values()):
            if session.send is None:
                session.rest()
                if now - session.used > limits.resume_s:
                    self._forget(session)
        for session in list(self._seated.values()):
            idle = not session.busy and now - session.used > limits.idle_s
            if not session.token or idle:
                self._unseat(session)

    def _take(self, session: Session, came: float, data: bytes | str) -> None:
        """One frame of a session."""
        try:
            frame = wire.decode(data)
            if isinstance(frame, wire.Begin):
                session.came = came
                self._begin(session, frame)
            elif isinstance(frame, wire.Verify):
                self._verify(session, frame, came)
            elif isinstance(frame, wire.More):
                self._more(session, frame)
            elif isinstance(frame, wire.Cancel):
                session.rest()
            else:
                raise VerifierFault(f"a device does not send {type(frame).__name__.upper()}")
        except VerifierFault as error:
            self._fail(session, wire.PROTOCOL, str(error))
        except ConfigError as error:
            self._fail(session, wire.UNSUPPORTED, str(error))
        except ContextFull as error:
            self._fail(session, wire.CONTEXT_FULL, str(error))

    def _begin(self, session: Session, frame: wire.Begin) -> None:
        context, total = session.context, frame.keep + len(frame.ids)
        longest = min(self.n_ctx, self.limits.max_prompt_tokens or self.n_ctx)
        if total > self.n_ctx or frame.n_prompt > longest:  # a resumed answer is no prompt
            raise ContextFull(
                f"a prompt of {frame.n_prompt} tokens in a context of {total} came; this server "
                f"takes {longest} in {self.n_ctx}"
            )
        if not 1 <= frame.n_prompt <= total:
            raise VerifierFault(f"BEGIN says {frame.n_prompt} of {total} tokens are prompt")
        self._check_ids(frame.ids)
        session.rest()
        if not context.has(frame.keep, frame.checksum):
            self._send(session, wire.Need(len(context), context.checksum(len(context))))
            return
        before = context.tokens[: session.cached]
        context.truncate(frame.keep)
        context.extend(frame.ids)
        self._keep(session, min(common_prefix(before, context.tokens), total - 1))
        session.begun, session.n_prompt = frame, frame.n_prompt
        session.verification = self._verification_of(session)
        session.reading = True
        self._borrow(session)
        self._progress(session, session.cached)

    def _verify(self, session: Session, frame: wire.Verify, came: float) -> None:
        if session.verify and frame.round == session.verify.round:
            return  # it came twice, and is under way
        if frame.round == session.round and session.answer:
            self._send_raw(session, session.answer)
            return
        if frame.round <= max(session.round, session.until):
            raise VerifierFault(f"round {frame.round} came, which has been given away already")
        if frame.round >= _LAST_ROUND:
            raise VerifierFault(f"round {frame.round} came; the last one is {_LAST_ROUND - 1}")
        if len(frame.ids) > self.max_draft or frame.ahead > self.limits.max_ahead:
            raise VerifierFault(
                f"a draft of {len(frame.ids)} tokens and {frame.ahead} ahead came; this server "
                f"takes {self.max_draft} and {self.limits.max_ahead}"
            )
        self._check_ids(frame.ids)
        context = session.context
        known = context.has(frame.length, frame.checksum)
        if not session.verification or not known or frame.length < session.n_prompt:
            self._send(session, wire.Need(len(context), context.checksum(len(context))))
            return
        if frame.length + len(frame.ids) > self.n_ctx:
            raise ContextFull(
                f"a draft of {len(frame.ids)} tokens behind {frame.length} came, the context has "
                f"room for {self.n_ctx}"
            )
        if frame.length < len(context):  # what the target went on with by itself is not wanted
            context.truncate(frame.length)
            self._keep(session, min(session.cached, frame.length - 1))
            session.verification = self._verification_of(session)
        session.verify, session.came = frame, came
        session.until = frame.round + frame.ahead

    def _more(self, session: Session, frame: wire.More) -> None:
        """The target goes on, from where it has stopped if it came too late."""
        if session.verification and session.round < frame.round:
            asleep = not session.busy and bool(session.answer)
            session.until = min(frame.round, session.round + self.limits.max_ahead)
            if asleep:
                session.came = self._clock()
                self._go_on(session)

    def _check_ids(self, ids: Sequence[int]) -> None:
        if ids and max(ids) >= self._sequences.vocab_size:
            raise VerifierFault(
                f"token id {max(ids)} came; ids of this target are 0 … "
                f"{self._sequences.vocab_size - 1}"
            )

    def _verification_of(self, session: Session) -> Verification:
        begun, tokens, n = session.begun, session.context.tokens, session.n_prompt
        assert begun
        return Verification(
            begun.params,
            SeededRandomness(begun.seed),
            tokens[:n],
            self._sequences.vocab_size,
            output=tokens[n:],
        )

    # --- what is evaluated ---

    def _parts(self) -> list[tuple[Session, BatchItem]]:
        """Verifications first, then prompts, the session that has waited longest first."""
        waiting = [session for session in list(self._sessions.values()) if session.busy]
        waiting.sort(key=lambda session: (session.verify is None, session.came))
        room, rows = self._sequences.max_batch, self._sequences.max_rows
        crowd = sum(session.verify is not None for session in waiting) > 1
        parts: list[tuple[Session, BatchItem]] = []
        for session in waiting:
            if not self._seat(session, [part.slot for _, part in parts]):
                continue
            part = self._part(session, room, crowd)
            if part.tokens and part.n_logits <= rows:
                parts.append((session, part))
                if self._sequences.shares_prefixes:  # others have each part for themselves
                    room, rows = room - len(part.tokens), rows - part.n_logits
            elif not session.verify:
                session.reading = False
                self._progress(session, len(session.context))
            if not room:
                break
        return parts

    def _part(self, session: Session, room: int, crowd: bool) -> BatchItem:
        """What is next for a session, at most `room` tokens."""
        assert session.slot is not None
        sequences, tokens = self._sequences, session.context.tokens
        draft = session.verify.ids if session.verify else ()
        unread = len(tokens) - 1 - session.cached
        step = max(sequences.max_batch - sequences.max_draft_rows, sequences.max_batch // 2, 1)
        if crowd and sequences.shares_prefixes:
            step = min(step, _SHORT)
        whole = unread <= step and unread + 1 + len(draft) <= room
        if session.verify and whole:
            return BatchItem(session.slot, [*tokens[session.cached :], *draft], len(draft) + 1)
        if not session.verify and not sequences.shares_prefixes and unread <= step:
            unread = 0  # they go with the first draft, as they do on one machine
        n = min(unread, step, room)
        return BatchItem(session.slot, tokens[session.cached : session.cached + n])

    def _evaluate(self, parts: list[tuple[Session, BatchItem]]) -> list[Rows]:
        """Rows of the parts that fitted; `parts` is shortened to these."""
        while parts:
            try:
                rows = [
                    outputs.logits
                    for outputs in self._sequences.decode([part for _, part in parts])
                ]
            except ContextFull:
                if not self._evict([part.slot for _, part in parts]):
                    session, _ = parts.pop()
                    if not parts:
                        self._unseat(session)
                        self._postpone(session, "the cache is full with what others need")
                continue
            except DecodeError as error:
                logger.error("%s", error)
                for session, _ in parts:
                    self._unseat(session)
                    self._postpone(session, "the engine failed; it starts anew")
                parts.clear()
                continue
            self.counts.evaluations += 1
            self.counts.evaluated_sequences += len(parts)
            return rows
        return []

    def _advance(self, session: Session, part: BatchItem, rows: Rows) -> None:
        """What an evaluation gave to a session."""
        session.cached += len(part.tokens)
        if session.verify and part.n_logits:
            self._answer(session, rows)
        else:
            self.counts.prompt_tokens += len(part.tokens)
            self._progress(session, session.cached)

    def _answer(self, session: Session, rows: Rows) -> None:
        verify, judge, context = session.verify, session.verification, session.context
        assert verify is not None
        assert judge is not None
        try:
            n, token = judge.check(Draft(verify.ids, "remote"), rows, len(context))
            tokens = (*verify.ids[:n], token)
            logprobs = judge.logprobs(rows, tokens) or ()
        except DecodeError as error:
            self._keep(session, len(context) - 1)
            self._fail(session, wire.UNSUPPORTED, str(error))
            return
        context.extend(tokens)
        judge.accept(tokens)
        self._keep(session, len(context) - 1)
        now = self._clock()
        took = int(1e6 * (now - session.came))
        session.answer = wire.encode(wire.Answer(verify.round, n, token, took, logprobs))
        session.round, session.came, session.used = verify.round, now, now
        self._count(verify, n)
        self._send_raw(session, session.answer)
        self._go_on(session)

    def _go_on(self, session: Session) -> None:
        """The next token without being asked, if it may. Where an answer ends, the device knows."""
        length, next_round = len(session.context), session.round + 1
        session.reading, session.verify = False, None
        if next_round <= session.until and length <= self.n_ctx:
            session.verify = wire.Verify(next_round, length, 0, 0, ())
        else:
            session.until = session.round

    def _count(self, verify: wire.Verify, n_accepted: int) -> None:
        self.counts.verifications += 1
        self.counts.draft_tokens += len(verify.ids)
        self.counts.accepted_tokens += n_accepted
        self.counts.emitted_tokens += n_accepted + 1

    # --- caches ---

    def _keep(self, session: Session, n: int) -> None:
        """The first `n` tokens of its cache."""
        session.cached = n
        if session.slot is not None:
            self._sequences.truncate(session.slot, n)

    def _seat(self, session: Session, needed: Collection[int]) -> bool:
        """Whether it has a sequence; perhaps one that another session has to leave, but none of
        those `needed`.
        """
        if session.slot is not None:
            return True
        free = next((i for i in range(self._sequences.n_slots) if i not in self._seated), None)
        if free is None:
            waited = self._clock() - session.came
            evicted = self._evict(needed, also_busy=waited > _PATIENCE_S)
            return evicted and self._seat(session, needed)
        self._seated[free] = session
        session.slot = free
        self._borrow(session)
        return True

    def _borrow(self, session: Session) -> None:
        """The longest beginning that another session of the same owner has in its cache, if it
        costs nothing. Of others nobody is to learn what their prompts begin with.
        """
        if session.slot is None or not self._sequences.shares_prefixes:
            return
        wanted = session.context.tokens[:-1]
        best, source = session.cached + _SHARED - 1, None
        for sequence, other in self._seated.items():
            if other is not session and other.owner == session.owner:
                n = common_prefix(other.context.tokens[: other.cached], wanted)
                if n > best:
                    best, source = n, sequence
        if source is not None:
            self._keep(session, 0)
            self._sequences.copy(source, session.slot, best)
            session.cached = best
            self.counts.shared_tokens += best

    def _evict(self, needed: Collection[int], *, also_busy: bool = False) -> bool:
        """Drop the cache of the session that has been idle longest, else of the busy one that
        had its last answer longest ago. needed: sequences that must stay.
        """
        seated = [s for i, s in self._seated.items() if i not in needed]
        idle = [s for s in seated if not s.busy]
        going = idle or (seated if also_busy else [])
        if not going:
            return False
        self._unseat(min(going, key=lambda session: session.used))
        self.counts.evictions += 1
        return True

    def _unseat(self, session: Session) -> None:
        if session.slot is not None:
            self._keep(session, 0)
            del self._seated[session.slot]
            session.slot = None

    def _start_anew(self) -> None:
        for session in list(self._sessions.values()):
            if session.busy:
                self._postpone(session, "the server failed; it starts anew")
        for session in list(self._seated.values()):
            self._unseat(session)

    # --- answers ---

    def _postpone(self, session: Session, why: str) -> None:
        session.rest()
        self._send(session, wire.Busy(_RETRY_MS, why))

    def _fail(self, session: Session, code: int, message: str) -> None:
        session.rest()
        with self._changed:
            self._refuse(session, code, message)

    def _progress(self, session: Session, n_done: int) -> None:
        if session.begun:
            self._send(session, wire.Progress(session.begun.generation, n_done))

    def _send(self, session: Session, frame: wire.Frame) -> None:
        self._send_raw(session, wire.encode(frame))

    def _send_raw(self, session: Session, data: bytes) -> None:
        with self._changed:
            if session.send:
                session.send(data)


def serving(
    engine: Engine,
    *,
    name: str = "",
    n_slots: int = 64,
    n_ctx: int = 0,
    limits: Limits | None = None,
) -> Sessions:
    """Sessions over an engine's own target, its weights shared and its cache not.

    n_slots: sessions whose caches are there at a time. n_ctx: tokens of cache, of all of them
    together where the target can share it; 0: as much as the engine's own. Raises ConfigError for
    a target that cannot serve several sequences, OutOfMemory.
    """
    target = engine.target
    if not isinstance(target, Batchable):
        raise ConfigError("this target keeps one sequence only, so it cannot verify for others")
    sequences = target.batched(n_slots, n_ctx or target.n_ctx)
    curve = curve_of(target)
    costs = [(n, int(1e6 * curve(n))) for n in curve.widths]
    return Sessions(sequences, engine.tokenizer, name=name, costs=costs, limits=limits)
