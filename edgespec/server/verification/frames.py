"""Checks the frames that devices send, and carries them out on the sessions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ... import protocol
from ...errors import ConfigError, ContextFull, DecodeError, VerifierFault
from ...sampling import trees
from ...sampling.randomness import SeededRandomness
from ...sampling.verification import Verification
from .answers import Answers
from .registry import SessionRegistry
from .slots import SlotTable
from .target import KNOWN_OPTIONS, ServedTarget, unknown_options
from .types import DeviceSession

_ROUND_LIMIT = 1 << 62


class FrameHandler:
    """Checks and carries out the frames of sessions. Only the evaluating thread uses it."""

    def __init__(
        self,
        target: ServedTarget,
        registry: SessionRegistry,
        slots: SlotTable,
        answers: Answers,
    ) -> None:
        self._target = target
        self._limits = registry.limits
        self._clock = registry.clock
        self._slots = slots
        self._answers = answers

    def handle(self, session: DeviceSession, arrived: float, data: bytes | str) -> None:
        """Carry out one frame, which came at the time `arrived`. A frame that breaks the protocol,
        or asks for something that this server does not support, ends the connection.
        """
        try:
            frame = protocol.decode(data)
            if isinstance(frame, protocol.Begin):
                session.waiting_since = arrived
                self._begin(session, frame)
            elif isinstance(frame, protocol.Verify):
                self._verify(session, frame, arrived)
            elif isinstance(frame, protocol.More):
                self._more(session, frame)
            elif isinstance(frame, protocol.Cancel):
                session.stop()
            else:
                raise VerifierFault(f"a device does not send {type(frame).__name__.upper()}")
        except VerifierFault as error:
            self._answers.fail(session, protocol.PROTOCOL, str(error))
        except ConfigError as error:
            self._answers.fail(session, protocol.UNSUPPORTED, str(error))
        except ContextFull as error:
            self._answers.fail(session, protocol.CONTEXT_FULL, str(error))

    def _begin(self, session: DeviceSession, frame: protocol.Begin) -> None:
        self._check_begin(frame)
        try:
            constraint = self._target.constraint(frame.options, session.owner)
        except ConfigError as error:
            self._answers.fail(session, protocol.CONSTRAINT, str(error))
            return
        session.stop()
        context = session.context
        if not context.has(frame.keep, frame.checksum):
            self._answers.need(session)
            return
        context.truncate(frame.keep)
        context.extend(frame.ids)
        self._slots.reuse(session)
        session.begun, session.n_prompt = frame, frame.n_prompt
        session.constraint, session.verification = constraint, None
        session.verification = self._verification_of(session, frame)
        session.reading = True
        self._answers.progress(session, session.n_cached)

    def _check_begin(self, frame: protocol.Begin) -> None:
        """Raise ContextFull, ConfigError or VerifierFault if the server cannot take the context."""
        if unknown := [name for name in frame.options if name not in KNOWN_OPTIONS]:
            raise ConfigError(unknown_options(unknown))
        n_ctx, total = self._target.n_ctx, frame.keep + len(frame.ids)
        longest = min(n_ctx, self._limits.max_prompt_tokens or n_ctx)
        if total > n_ctx or frame.n_prompt > longest:  # resumed output is not prompt
            raise ContextFull(
                f"a prompt of {frame.n_prompt} tokens in a context of {total} came; this server "
                f"takes {longest} in {n_ctx}"
            )
        if not 1 <= frame.n_prompt <= total:
            raise VerifierFault(f"BEGIN says {frame.n_prompt} of {total} tokens are prompt")
        self._check_ids(frame.ids)

    def _verify(self, session: DeviceSession, frame: protocol.Verify, arrived: float) -> None:
        if session.pending and frame.round == session.pending.round:
            return  # the frame came twice and is being verified already
        if frame.round == session.answered_round and session.answer:
            self._answers.repeat(session)
            return
        self._check_verify(session, frame)
        context = session.context
        known = context.has(frame.length, frame.checksum)
        if not session.verification or not known or frame.length < session.n_prompt:
            self._answers.need(session)
            return
        if frame.length + len(frame.ids) > self._target.n_ctx:
            raise ContextFull(
                f"a draft of {len(frame.ids)} tokens after {frame.length} came, the context has "
                f"room for {self._target.n_ctx}"
            )
        if frame.length < len(context):  # drop what the target emitted by itself
            assert session.begun
            context.truncate(frame.length)
            self._slots.truncate(session, min(session.n_cached, frame.length - 1))
            session.verification = self._verification_of(session, session.begun)
        if session.has_ended:
            raise ConfigError(
                f"token {context.tokens[-1]} has ended the answer, and more was asked for: to the "
                "device it ends none; take a tokenizer of the target's own there"
            )
        if trees.n_leaves(frame.parents) == 1:
            frame = replace(frame, parents=())  # a chain
        session.pending, session.waiting_since = frame, arrived
        session.granted_round = frame.round + frame.ahead

    def _check_verify(self, session: DeviceSession, frame: protocol.Verify) -> None:
        """Raise VerifierFault if the round or the draft breaks the protocol."""
        if frame.round <= max(session.answered_round, session.granted_round):
            raise VerifierFault(f"round {frame.round} came, which has been given away already")
        if frame.round >= _ROUND_LIMIT:
            raise VerifierFault(f"round {frame.round} came; the last one is {_ROUND_LIMIT - 1}")
        max_draft, max_ahead = self._target.max_draft, self._limits.max_ahead
        if len(frame.ids) > max_draft or frame.ahead > max_ahead:
            raise VerifierFault(
                f"a draft of {len(frame.ids)} tokens and {frame.ahead} ahead came; this server "
                f"takes {max_draft} and {max_ahead}"
            )
        self._check_ids(frame.ids)
        if frame.parents:
            self._check_tree(frame)

    def _check_tree(self, frame: protocol.Verify) -> None:
        """Raise VerifierFault if the parents do not form a tree that the target can evaluate."""
        if len(frame.parents) != len(frame.ids):
            raise VerifierFault(
                f"a tree of {len(frame.ids)} tokens with {len(frame.parents)} parents came"
            )
        try:
            n_leaves = trees.n_leaves(frame.parents)
        except ValueError as error:
            raise VerifierFault(f"a tree came whose {error}") from error
        if n_leaves > self._target.max_leaves:
            raise VerifierFault(
                f"a tree of {n_leaves} leaves came; this server takes {self._target.max_leaves}"
            )

    def _more(self, session: DeviceSession, frame: protocol.More) -> None:
        """Let the target go on emitting tokens, even if it stopped because MORE came too late."""
        if session.verification and session.answered_round < frame.round:
            stopped = not session.busy and bool(session.answer)
            furthest = session.answered_round + self._limits.max_ahead
            session.granted_round = min(frame.round, furthest)
            if stopped:
                session.waiting_since = self._clock()
                session.go_on(self._target.n_ctx)

    def _check_ids(self, ids: Sequence[int]) -> None:
        """Raise VerifierFault if a token id is not in the target's vocabulary."""
        if ids and max(ids) >= self._target.vocab_size:
            raise VerifierFault(
                f"token id {max(ids)} came; ids of this target are 0 … "
                f"{self._target.vocab_size - 1}"
            )

    def _verification_of(self, session: DeviceSession, begun: protocol.Begin) -> Verification:
        """Return a verification whose history is the session's context. Raises VerifierFault if the
        output in the context does not follow the session's constraint.
        """
        tokens, n = session.context.tokens, session.n_prompt
        try:
            return Verification(
                begun.params,
                SeededRandomness(begun.seed),
                tokens[:n],
                self._target.vocab_size,
                output=tokens[n:],
                matcher=session.constraint.matcher() if session.constraint else None,
            )
        except DecodeError as error:
            raise VerifierFault(f"the output of a BEGIN: {error}") from error
