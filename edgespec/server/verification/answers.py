"""Answers to devices: progress, verdicts, and refusals with their reasons."""

from __future__ import annotations

from collections.abc import Sequence

from ... import protocol
from ...backends.base import BatchItem
from ...errors import DecodeError
from ...sampling.verification import Verification
from ...types import Draft, Rows
from .registry import SessionRegistry
from .slots import SlotTable
from .types import DeviceSession

_RETRY_MS = 250


class Answers:
    """Updates sessions and answers their devices. Only the evaluating thread uses it."""

    def __init__(self, registry: SessionRegistry, slots: SlotTable, n_ctx: int) -> None:
        self._registry = registry
        self._slots = slots
        self._n_ctx = n_ctx

    def progress(self, session: DeviceSession, n_done: int) -> None:
        """Tell the device that `n_done` tokens of the context have been read."""
        if session.begun:
            self._registry.send(session, protocol.Progress(session.begun.generation, n_done))

    def need(self, session: DeviceSession) -> None:
        """Ask the device for its context, and tell it how much of the context the server has."""
        n = len(session.context)
        self._registry.send(session, protocol.Need(n, session.context.checksum(n)))

    def repeat(self, session: DeviceSession) -> None:
        """Send the last verdict again."""
        self._registry.send(session, session.answer)

    def postpone(self, session: DeviceSession, why: str) -> None:
        """Drop the work that the session waits for, and tell the device to ask again later."""
        session.stop()
        self._registry.send(session, protocol.Busy(_RETRY_MS, why))

    def fail(self, session: DeviceSession, code: int, message: str) -> None:
        """Drop the work that the session waits for, and end its connection with an error."""
        session.stop()
        self._registry.end(session, code, message)

    def evaluated(self, session: DeviceSession, item: BatchItem, rows: Rows) -> None:
        """Answer the device. rows: the logits that the item asked for, [item.n_logits,
        vocab_size].
        """
        if session.pending and item.n_logits:
            self._verdict(session, session.pending, rows)
        else:
            self._registry.counts.prompt_tokens += len(item.tokens)
            self.progress(session, session.n_cached)

    def _verdict(self, session: DeviceSession, asked: protocol.Verify, rows: Rows) -> None:
        """Check a draft with the target's logits, append the emitted tokens, send the verdict."""
        verification, context = session.verification, session.context
        assert verification is not None
        try:
            path, token = self._check(verification, asked, rows, len(context))
            tokens = (*[asked.ids[node] for node in path], token)
            n = verification.n_to_end(tokens)
            path, tokens = path[: n - 1], tokens[:n]
            chosen_by = [rows[0], *[rows[node + 1] for node in path]]
            logprobs = verification.logprobs(chosen_by, tokens) or ()
            verification.accept(tokens)
        except DecodeError as error:
            self._slots.truncate(session, len(context) - 1)
            self.fail(session, protocol.UNSUPPORTED, str(error))
            return
        context.extend(tokens)
        if asked.parents:
            assert session.cache is not None
            session.cache.keep(path)
        self._slots.truncate(session, len(context) - 1)
        now = self._registry.clock()
        server_us = int(1e6 * (now - session.waiting_since))
        session.answer = protocol.encode(
            protocol.Answer(
                asked.round, path[-1] + 1 if path else 0, tokens[-1], server_us, logprobs
            )
        )
        session.answered_round, session.waiting_since = asked.round, now
        session.last_used = now
        self._count(len(asked.ids), len(path))
        self._registry.send(session, session.answer)
        session.go_on(self._n_ctx)

    @staticmethod
    def _check(
        verification: Verification, asked: protocol.Verify, rows: Rows, position: int
    ) -> tuple[Sequence[int], int]:
        """Return the accepted nodes of a draft, and the token that follows them."""
        draft = Draft(asked.ids, "remote", parents=asked.parents)
        if asked.parents:
            return verification.check_tree(draft, rows, position)
        n_accepted, token = verification.check(draft, rows, position)
        return range(n_accepted), token

    def _count(self, n_drafted: int, n_accepted: int) -> None:
        counts = self._registry.counts
        counts.verifications += 1
        counts.draft_tokens += n_drafted
        counts.accepted_tokens += n_accepted
        counts.emitted_tokens += n_accepted + 1
