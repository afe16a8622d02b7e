"""The users of a batched target, and the evaluations that they share.

Each stream of tokens is a member, and so is the service that verifies for devices. A member hands
over a turn and waits for it. If no other member is active, the turn is carried out at once in the
member's own thread, as if there were no company. Otherwise a thread of the company's own waits
until all active members have handed over their turns, but not long for those that are slow, and
evaluates all turns in one call. If the slots of the target cannot be evaluated together, members
take turns in the order in which they come, each in its own thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ..backends.base import BatchedModel, BatchItem
from ..backends.helper_threads import end_helper_threads
from ..cache.prefixes import Prefixes
from ..costs import reading
from ..errors import Aborted, ContextFull
from ..types import Abort, Outputs
from .sharing import SharedPrefixes
from .turns import Evaluation, Turn

T = TypeVar("T")

_POLL_S = 0.05  # how often a waiting member looks whether it is cancelled
_PATIENCE = 0.25  # the company waits for slow members for this share of an evaluation's time
_LEAST_PATIENCE_S = 0.004
_ALONE_S, _SHARED_S = 1.0, 0.35  # longest evaluations of a prompt's tokens, as expected
_LATEST = 0.25  # weight of the latest time in running means


@dataclass(slots=True)
class Counts:
    """Totals of a company's evaluations.

    shared_evaluations: those that continued several answers. shared_draft_evaluations: those that
    held drafts of at least two answers. Answers that take turns share none.
    """

    evaluations: int = 0
    shared_evaluations: int = 0
    shared_draft_evaluations: int = 0


class Controller(Protocol):
    """Decides what the streams of a company draft."""

    def grow(self, turns: Sequence[Turn], reading_s: float) -> float:
        """Make the drafts of turns that are evaluated together; return the seconds that their
        evaluation would take without drafts, 0 if that is not known. reading_s: the seconds in
        which it reads parts of prompts.
        """

    def observe(self, turns: Sequence[Turn], evaluation: Evaluation) -> None:
        """Learn from the time of an evaluation that read no prompts."""


class Member:
    """A user of the target. `join` before the first turn of a request, `leave` after the last.

    awaited: the company waits for its turns; devices' turns come when they come.
    """

    def __init__(self, company: Company, *, awaited: bool = True) -> None:
        self._company = company
        company.n_members += 1
        self.awaited = awaited
        self.pause_s = 0.0  # usual time from the end of its turn until the next one
        self.ended = 0.0  # when its last turn ended
        self.left: Turn | None = None  # a turn that it no longer waits for, still in evaluation

    def join(self, abort: Abort | None = None) -> None:
        """Become active. Waits for an evaluation that an earlier request of this member has left.
        Raises Aborted.
        """
        while self.left and not self.left.is_done.wait(_POLL_S):
            if abort and abort():
                raise Aborted("stopped while waiting for its place")
        self.left = None
        self._company.join(self)

    @property
    def prefixes(self) -> SharedPrefixes:
        """The prefixes that the slots' caches have in common."""
        return self._company.prefixes

    def leave(self) -> None:
        """Become inactive: the company no longer waits for this member."""
        self._company.leave(self)

    def is_active(self) -> bool:
        """Return whether a request of this member runs."""
        return self._company.is_active(self)

    def exclusively(self, work: Callable[[], T]) -> T:
        """Do something that changes the target while no evaluation is made or its outputs read.
        Return what `work` returns.
        """
        return self._company.exclusively(work)

    def close(self) -> None:
        """End the company, which no member may use any more."""
        self._company.close()

    def step(self, turn: Turn) -> None:
        """Carry out a turn, together with those of others. Raises the turn's errors, and Aborted as
        soon as the turn's `abort` returns a reason.
        """
        self._company.step(self, turn)

    @property
    def reading(self) -> reading.ReadingTimes:
        """The times in which prompts are read."""
        return self._company.reading

    @property
    def most_read(self) -> int:
        """The most tokens of a prompt that should be evaluated together at present."""
        return self._company.most_read(self)


class Company:
    """Evaluates the turns of its members.

    prefixes: what the slots' caches have in common. reading: the times in which prompts are read.
    n_members: how many members it has, active or not. controller: makes drafts for turns that are
    evaluated together. kept: keeps what the slots have read, None for no such store.
    """

    def __init__(
        self,
        model: BatchedModel,
        controller: Controller,
        clock: Callable[[], float] = time.perf_counter,
        kept: Prefixes | None = None,
    ) -> None:
        self.model, self.kept = model, kept
        self.controller, self._clock = controller, clock
        self.prefixes = SharedPrefixes(model)
        self.reading = reading.ReadingTimes()
        self.n_members = 0
        self._changed = threading.Condition()
        self._active: set[Member] = set()
        self._waiting: list[tuple[Member, Turn]] = []
        self._line: deque[Turn] = deque()  # turns that are carried out one after another
        self._busy = self._closed = False
        self._user = 0  # the thread that uses the target
        self._n_changes = 0  # threads that wait to change it
        self._is_changing = False
        self._thread: threading.Thread | None = None
        self._usual_s = 0.0  # the time of evaluations lately
        self.counts = Counts()

    # --- what members call ---

    def join(self, member: Member) -> None:
        """Make a member active, but not while something is done to the slots of those that are
        not.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._is_changing)
            member.ended = self._clock()
            self._active.add(member)

    def is_active(self, member: Member) -> bool:
        """Return whether a request of a member runs, or its last turn is still evaluated."""
        return member in self._active or bool(member.left and not member.left.is_done.is_set())

    def leave(self, member: Member) -> None:
        """Make a member inactive."""
        end_helper_threads()
        with self._changed:
            self._active.discard(member)
            self._changed.notify_all()

    def step(self, member: Member, turn: Turn) -> None:
        """Carry out a member's turn, as `Member.step` says."""
        if not self.model.shares_prefixes:
            self._in_turn(turn)
            return
        with self._changed:
            pause_s = self._clock() - member.ended
            member.pause_s += _LATEST * (pause_s - member.pause_s)
            is_free = not (self._busy or self._n_changes or self._waiting)
            alone = is_free and not self._others(member)
            if alone:
                self._use()
            else:
                turn.is_done.clear()  # it is made here, before two threads use it
                self._waiting.append((member, turn))
                self._start()
                self._changed.notify_all()
        if alone:
            self._alone(member, turn)
        else:
            end_helper_threads()  # the company's thread evaluates
            self._wait(member, turn)

    def exclusively(self, work: Callable[[], T]) -> T:
        """Do something as `Member.exclusively` says. In a turn, it is done at once."""
        if not self.model.shares_prefixes or self._user == threading.get_ident():
            return work()
        with self._changed:
            self._n_changes += 1  # no other evaluation begins before it
            try:
                self._changed.wait_for(lambda: not self._busy)
                self._use()
                self._is_changing = True
            finally:
                self._n_changes -= 1
        try:
            return work()
        finally:
            self._is_changing = False
            self._release()

    def most_read(self, member: Member) -> int:
        """Return how many tokens of a prompt should be evaluated together for a member."""
        if self.n_members == 1:
            return reading.MOST
        alone = not (self._waiting or self._line or self._others(member))
        return self.reading.most(_ALONE_S if alone else _SHARED_S)

    def close(self) -> None:
        """End the company's thread. No member may be active any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread and self._thread is not threading.current_thread():
            self._thread.join()

    def _in_turn(self, turn: Turn) -> None:
        """Carry out a turn in the member's own thread, after all turns that came before it."""
        with self._changed:
            self._line.append(turn)
            try:
                while self._line[0] is not turn:
                    if turn.abort and turn.abort():
                        raise Aborted("stopped while waiting for the others")
                    self._changed.wait(_POLL_S)
            except BaseException:
                self._line.remove(turn)
                self._changed.notify_all()
                raise
        try:
            turn.alone()
        finally:
            if len(self._line) > 1:
                end_helper_threads()  # the next one evaluates in its own thread
            with self._changed:
                self.counts.evaluations += 1
                self._line.popleft()
                self._changed.notify_all()

    def _others(self, member: Member) -> bool:
        return len(self._active) > (member in self._active)

    def _alone(self, member: Member, turn: Turn) -> None:
        try:
            turn.alone()
        finally:
            member.ended = self._clock()
            self.counts.evaluations += 1
            self._release()

    def _use(self) -> None:
        self._busy, self._user = True, threading.get_ident()

    def _release(self) -> None:
        with self._changed:
            self._busy, self._user = False, 0
            self._changed.notify_all()

    def _wait(self, member: Member, turn: Turn) -> None:
        try:
            while not turn.is_done.wait(_POLL_S):
                if turn.abort and turn.abort():
                    raise Aborted("stopped while waiting for the others")
        except BaseException as error:
            with self._changed:
                self._changed.wait_for(lambda: not turn.is_held)
                if not turn.is_done.is_set():
                    before = len(self._waiting)
                    self._waiting = [each for each in self._waiting if each[1] is not turn]
                    if len(self._waiting) == before:
                        member.left = turn
                    self._changed.notify_all()
                    raise
            if not isinstance(error, Aborted):
                raise
        if turn.error:
            raise turn.error

    # --- the company's thread ---

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=self._run, name="edgespec-scheduling", daemon=True
            )
            self._thread.start()

    def _run(self) -> None:
        while turns := self._collect():
            try:
                self._evaluate(turns)
            finally:
                self._release()

    def _collect(self) -> list[tuple[Member, Turn]]:
        """Wait for turns and return those to evaluate next; [] once the company is closed."""
        with self._changed:
            while not self._closed:
                is_free = not (self._busy or self._n_changes)
                wait_s = self._wait_s() if self._waiting and is_free else None
                if wait_s is not None and wait_s <= 0:
                    turns, self._waiting = self._waiting, []
                    self._use()
                    for _, turn in turns:
                        turn.is_held = True
                    return turns
                if len(self._active) < 2:
                    end_helper_threads()  # a member that is alone evaluates in its own thread
                self._changed.wait(wait_s)
            return []

    def _wait_s(self) -> float:
        """Return how long to wait for further turns."""
        patience_s = max(_PATIENCE * self._usual_s, _LEAST_PATIENCE_S)
        here = {member for member, _ in self._waiting}
        missing = [
            member
            for member in self._active - here
            if member.awaited and member.pause_s <= patience_s
        ]
        if not missing:
            return 0.0
        return max(member.ended for member in missing) + patience_s - self._clock()

    def _evaluate(self, turns: list[tuple[Member, Turn]]) -> None:
        began, chosen = self._clock(), turns
        try:
            reading_s = self._reading_s(turns)
            plain_s = self.controller.grow([turn for _, turn in turns], reading_s)
            drafted = self._clock()
            chosen, items = self._fitting(self._without_failed(turns))
            self._let_go(turns)
            if not chosen:
                return
            outputs = self.model.decode([item for its in items for item in its])
        except ContextFull as error:
            self._failed(chosen, error)
            return
        except BaseException as error:
            for member, turn in chosen:
                self._end(member, turn, error, failed=True)
            return
        now = self._clock()
        self._hold(chosen)
        n_rows = sum(item.n_logits for its in items for item in its)
        streams = [
            item
            for (_, turn), its in zip(chosen, items, strict=True)
            for item in its
            if not turn.reads
        ]
        n_read = sum(
            len(item.tokens)
            for (_, turn), its in zip(chosen, items, strict=True)
            for item in its
            if turn.reads
        )
        n_drafted = n_rows - sum(turn.n_rows for _, turn in chosen)
        evaluation = Evaluation(drafted - began, now - drafted, plain_s, n_rows, n_drafted)
        self._count(streams, now - began)
        if n_read:
            self.reading.observe(n_read + n_rows, now - drafted)
        else:
            self.controller.observe([turn for _, turn in chosen], evaluation)
        at = 0
        for (member, turn), its in zip(chosen, items, strict=True):
            mine, at = outputs[at : at + len(its)], at + len(its)
            self._hand_over(member, turn, mine, evaluation)

    def _without_failed(self, turns: list[tuple[Member, Turn]]) -> list[tuple[Member, Turn]]:
        """End the turns whose drafts have failed; return the others."""
        for member, turn in turns:
            if turn.error:
                self._end(member, turn, turn.error)
        return [each for each in turns if not each[1].error]

    def _fitting(
        self, turns: list[tuple[Member, Turn]]
    ) -> tuple[list[tuple[Member, Turn]], list[Sequence[BatchItem]]]:
        """Return the turns that fit into one evaluation, and their items. Answers come before
        prompts, and short prompts before long ones; those that had to wait before come first. The
        other turns wait for the next evaluation.
        """
        n_tokens, n_rows = self.model.max_batch, self.model.max_rows
        n_read = self._most_read_now(turns)
        chosen, items, left = [], [], []
        for member, turn in sorted(turns, key=_precedence):
            most = min(n_tokens, n_read) if turn.reads else n_tokens
            its = turn.prepare(most, n_rows) if most > 0 else ()
            if not its:
                left.append((member, turn))
                turn.is_late = True
                continue
            chosen.append((member, turn))
            items.append(its)
            if self.model.shares_prefixes:  # others evaluate each item in a call of its own
                n_tokens -= sum(len(item.tokens) for item in its)
                n_rows -= sum(item.n_logits for item in its)
            if turn.reads:
                n_read -= sum(len(item.tokens) for item in its)
        with self._changed:
            self._waiting = [*left, *self._waiting]
        return chosen, items

    def _reading_s(self, turns: Sequence[tuple[Member, Turn]]) -> float:
        n_wanted = sum(turn.n_least for _, turn in turns if turn.reads)
        return self.reading.expected_s(min(n_wanted, self._most_read_now(turns)))

    def _most_read_now(self, turns: Sequence[tuple[Member, Turn]]) -> int:
        only_prompts = all(turn.reads for _, turn in turns) and len(turns) == len(self._active)
        return self.reading.most(_ALONE_S if only_prompts else _SHARED_S)

    def _failed(self, turns: list[tuple[Member, Turn]], error: ContextFull) -> None:
        """Evaluate turns one by one, because the cache is too full for all of them: only those that
        do not fit alone fail.
        """
        if len(turns) == 1:
            self._end(*turns[0], error, failed=True)
            return
        for _, turn in turns:
            turn.fail()
        for each in turns:
            self._hold([each])
            self._evaluate([each])

    def _hand_over(
        self, member: Member, turn: Turn, outputs: Sequence[Outputs], evaluation: Evaluation
    ) -> None:
        error: BaseException | None = None
        try:
            if turn.is_held:
                turn.take(outputs, evaluation)
            else:
                turn.drop(outputs)
        except BaseException as failure:
            error = failure
        self._end(member, turn, error)

    def _hold(self, turns: Sequence[tuple[Member, Turn]]) -> None:
        """Keep the users of these turns from leaving them, except those that have left already."""
        with self._changed:
            for member, turn in turns:
                turn.is_held = member.left is not turn

    def _let_go(self, turns: Sequence[tuple[Member, Turn]]) -> None:
        with self._changed:
            for _, turn in turns:
                turn.is_held = False
            self._changed.notify_all()

    def _end(
        self, member: Member, turn: Turn, error: BaseException | None, *, failed: bool = False
    ) -> None:
        if failed:
            turn.fail()
        with self._changed:
            member.ended = self._clock()
            turn.error, turn.is_held = error, False
            turn.is_done.set()
            self._changed.notify_all()

    def _count(self, streams: Sequence[BatchItem], seconds: float) -> None:
        self._usual_s += _LATEST * (seconds - self._usual_s)
        n_drafted = sum(item.n_logits > 1 for item in streams)
        self.counts.evaluations += 1
        self.counts.shared_evaluations += len(streams) > 1
        self.counts.shared_draft_evaluations += n_drafted > 1


def _precedence(waiting: tuple[Member, Turn]) -> tuple[bool, bool, int]:
    _, turn = waiting
    return turn.reads, not turn.is_late, turn.n_least
