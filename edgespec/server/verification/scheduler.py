"""Chooses what is evaluated together, and handles engine failures and batches that do not fit."""

from __future__ import annotations

import logging

from ...backends.base import BatchedModel, BatchItem
from ...cache.token_cache import TokenCache
from ...errors import ContextFull, DecodeError
from ...types import Rows
from .answers import Answers
from .registry import SessionRegistry
from .slots import SlotTable
from .types import DeviceSession

logger = logging.getLogger("edgespec.server")

_SHORT_CHUNK = 128  # most prompt tokens in an evaluation while several sessions wait for verdicts

Batch = list[tuple[DeviceSession, BatchItem]]


class Scheduler:
    """Chooses what is evaluated next, and evaluates it. Only the evaluating thread uses it."""

    def __init__(
        self,
        model: BatchedModel,
        registry: SessionRegistry,
        slots: SlotTable,
        answers: Answers,
    ) -> None:
        self._model = model
        self._registry = registry
        self._slots = slots
        self._answers = answers

    def next_batch(self) -> Batch:
        """Return the batch for one evaluation, as large as the model allows. Verifications come
        before prompts; within each group, the session that has waited longest comes first.
        """
        waiting = [session for session in self._registry.all() if session.busy]
        waiting.sort(key=lambda session: (session.pending is None, session.waiting_since))
        max_tokens, max_rows = self._model.max_batch, self._model.max_rows
        crowded = sum(session.pending is not None for session in waiting) > 1
        batch: Batch = []
        for session in waiting:
            if not self._slots.take(session, [item.slot for _, item in batch]):
                continue
            item = self._item(session, max_tokens, crowded)
            if item.tokens and item.n_logits <= max_rows:
                batch.append((session, item))
                if self._model.shares_prefixes:  # other models evaluate each item alone
                    max_tokens -= len(item.tokens)
                    max_rows -= item.n_logits
            elif not session.pending:
                session.reading = False
                self._answers.progress(session, len(session.context))
            if not max_tokens:
                break
        return batch

    def _item(self, session: DeviceSession, max_tokens: int, crowded: bool) -> BatchItem:
        """Return the session's next item for a batch, with at most `max_tokens` tokens."""
        assert session.slot is not None
        model, tokens, n_cached = self._model, session.context.tokens, session.n_cached
        draft = session.pending.ids if session.pending else ()
        parents = session.pending.parents if session.pending else ()
        n_unread = len(tokens) - 1 - n_cached
        # a chunk leaves room for a draft in the same evaluation
        chunk = max(model.max_batch - model.max_draft_rows, model.max_batch // 2, 1)
        if crowded and model.shares_prefixes:
            chunk = min(chunk, _SHORT_CHUNK)
        fits = n_unread <= chunk and n_unread + 1 + len(draft) <= max_tokens
        if session.pending and fits:
            return BatchItem(session.slot, [*tokens[n_cached:], *draft], len(draft) + 1, parents)
        if not session.pending and not model.shares_prefixes and n_unread <= chunk:
            n_unread = 0  # these tokens are evaluated with the first draft, as on one machine
        n = min(n_unread, chunk, max_tokens)
        return BatchItem(session.slot, tokens[n_cached : n_cached + n])

    def evaluate(self, batch: Batch) -> list[tuple[DeviceSession, BatchItem, Rows]]:
        """Evaluate a batch. Return the items that fitted, each with its session and its logits. A
        session whose item did not fit keeps waiting, or its device is told to ask again later.
        """
        while batch:
            for session, item in batch:
                self._cache(session).expect(item.tokens, len(item.parents))
            try:
                outputs = self._model.decode([item for _, item in batch])
            except ContextFull:
                for session, _ in batch:
                    self._cache(session).failed()
                self._shrink(batch)
                continue
            except DecodeError as error:
                logger.error("%s", error)
                self.start_anew()
                return []
            for (session, _), one in zip(batch, outputs, strict=True):
                self._cache(session).took(one)
            self._registry.counts.evaluations += 1
            self._registry.counts.evaluated_sequences += len(batch)
            evaluated = zip(batch, outputs, strict=True)
            return [(session, item, one.logits) for (session, item), one in evaluated]
        return []

    def start_anew(self) -> None:
        """Drop all caches after a failure, and tell the waiting devices to ask again later."""
        for session in self._registry.all():
            if session.busy:
                self._answers.postpone(session, "the server failed; it starts anew")
        self._slots.drop_all()

    @staticmethod
    def _cache(session: DeviceSession) -> TokenCache:
        assert session.cache is not None
        return session.cache

    def _shrink(self, batch: Batch) -> None:
        """Free the slot of an idle session; if there is none, drop the last item of the batch."""
        if self._slots.evict([item.slot for _, item in batch]):
            return
        session, _ = batch.pop()
        if not batch:
            self._give_up(session, "the cache is full with what others need")

    def _give_up(self, session: DeviceSession, why: str) -> None:
        self._slots.release(session)
        self._answers.postpone(session, why)
