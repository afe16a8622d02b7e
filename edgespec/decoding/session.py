"""The loop of a request: choose, draft, verify, accept, observe, yield."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence

from ..backends.base import BatchItem
from ..backends.tiles import PictureToken, tiles_in
from ..drafters.base import Drafter
from ..errors import Aborted
from ..policies.base import Limits, Policy
from ..policies.growth import Growth
from ..sampling.base import Request
from ..scheduling.turns import Evaluation, Step
from ..types import NO_DRAFT, Budget, Draft, Event, Outputs, Stats, Verdict, Verified
from ..verifiers.base import AsyncVerifier, Verifier
from ..verifiers.local import LocalVerifier
from .drafting import Drafting
from .output import Output
from .owners import OwnRates
from .steps import budget_of, count_predicted, predicted, record, stats_of


class Session:
    """Runs requests on one target, one after the other; for one thread at a time.

    rates: the learned rates of drafters and policy; by default there are none. clock: returns
    seconds.

    A request that is cancelled, closed or fails does not affect the next one, because every
    `begin` aligns the caches with its own prompt.
    """

    def __init__(
        self,
        verifier: Verifier,
        drafters: Sequence[Drafter],
        policy: Policy,
        *,
        rates: OwnRates | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._verifier = verifier
        self._remote = verifier if isinstance(verifier, AsyncVerifier) else None
        self._drafting = Drafting(drafters, policy)
        self._policy = policy
        self._clock = clock
        self._member = verifier.member if isinstance(verifier, LocalVerifier) else None
        self._rates = rates or OwnRates([*drafters, policy])

    @property
    def n_ctx(self) -> int:
        """The target's context length in tokens."""
        return self._verifier.n_ctx

    def n_reusable(self, owner: str, prompt: Sequence[int]) -> int:
        """Return how many of a prompt's first tokens a request of this owner would not have to read
        again. Call this only while no request runs here.
        """
        return self._verifier.n_reusable(owner, prompt)

    def generate(self, request: Request, output: Output, stats: Stats) -> Iterator[Event]:
        """Yield "prefill", "token" and "notice" events until `output` has a finish reason.

        Raises ContextFull, DecodeError, and VerifierError or a subclass.
        """
        began = self._clock()
        stats.num_prompt_tokens = len(request.prompt)
        try:
            if self._member:
                self._member.join(request.abort)
            yield from self._prefill(request, stats)
            if request.abort and request.abort():  # then its constraint may not be compiled yet
                raise Aborted("stopped before the first token")
            yield from self._steps(request, output, stats, began)
        except Aborted:
            output.finish((request.abort and request.abort()) or "cancelled")
        finally:
            if self._member:
                self._member.leave()
            if self._remote:
                self._remote.finish()
            self._drafting.end()
            self._rates.end()
            stats.total_s = self._clock() - began
            is_left = self._member and self._member.left  # it is still evaluated
            if request.owner and not is_left:  # else the next owner would wait and learn its length
                self.save()
            if self._speculates(request) and not stats.num_draft_steps:
                stats.speculation = f"off: {self._policy.reason}"

    def _prefill(self, request: Request, stats: Stats) -> Iterator[Event]:
        total = len(request.prompt)
        cached = None
        self._rates.begin(request.owner)
        self._verifier.require(self._drafting.begin(request, self._speculates(request)))
        for n_done in self._verifier.begin(request):
            if cached is None:
                cached = stats.num_cached_tokens = n_done
            stats.num_prefilled_tokens = n_done - cached
            shown = _encoded_next(request.prompt, n_done)
            yield Event("prefill", n_done=n_done, n_total=total, picture=shown)
        yield from self._notices()

    def _steps(
        self, request: Request, output: Output, stats: Stats, began: float
    ) -> Iterator[Event]:
        speculates = self._speculates(request)
        running = _Running(self, request, output, stats, began, speculates)
        while not output.finish_reason:
            if self._member:
                self._member.step(_Step(running))
            else:
                running.step()
            yield from self._notices()
            yield from running.events()
            if len(running.context) > self._verifier.n_ctx:
                output.finish("context_full")
            elif request.abort and (reason := request.abort()):
                output.finish(reason)

    def _notices(self) -> Iterator[Event]:
        """Yield the notices that a remote verifier has for the user."""
        while self._remote and self._remote.notices:
            yield Event("notice", text=self._remote.notices.pop(0))

    def _speculates(self, request: Request) -> bool:
        """Return whether there are drafters that this request may use."""
        return bool(self._drafting.drafters) and request.params.may_draft

    def warm(self, request: Request) -> None:
        """Let the models read a prompt without answering it, and keep their states. Raises
        ContextFull, Aborted and DecodeError.
        """
        if self._member:
            self._member.join(request.abort)
        try:
            for part in self._keepers():
                part.warm(request if part is self._verifier else request.text_alone())
        finally:
            if self._member:
                self._member.leave()

    def save(self) -> None:
        """Keep what the models have read for later requests, if there is a store for it."""
        for part in self._keepers():
            part.save()

    def _keepers(self) -> list[LocalVerifier | Drafter]:
        """Return the parts that may have a store for what their models have read."""
        parts = (self._verifier, *self._drafting.drafters)
        return [part for part in parts if isinstance(part, LocalVerifier | Drafter)]

    def close(self) -> None:
        """Free target and drafters."""
        self._drafting.close()
        self._verifier.close()


class _Running:
    """A request whose prompt has been read.

    context: the tokens of prompt and output. emitted: the tokens of the last step, each with the
    text to show.
    """

    def __init__(
        self,
        session: Session,
        request: Request,
        output: Output,
        stats: Stats,
        began: float,
        speculates: bool,
    ) -> None:
        self._session, self.request, self._output = session, request, output
        self._stats, self._began, self._speculates = stats, began, speculates
        self.context = list(request.prompt)
        self._known = predicted(request)
        self.emitted: Sequence[tuple[int, str]] = ()
        self._verdict = Verdict((), 0)

    @property
    def budget(self) -> Budget:
        """The limits of the next step."""
        verifier, n_emitted = self._session._verifier, len(self._output.token_ids)
        budget = budget_of(self.request, verifier, len(self.context), n_emitted)
        return budget if self._speculates else budget._replace(limit=0)

    def step(self) -> None:
        """Draft, verify and accept alone."""
        session, start, budget = self._session, self._session._clock(), self.budget
        growth = session._drafting.grow(budget) if budget.limit > 0 else None
        draft = growth.draft if growth else NO_DRAFT
        drafted = session._clock()
        verdict = self._verified(draft)
        self.conclude(growth, draft, verdict, drafted - start, start)

    def conclude(
        self,
        growth: Growth | None,
        draft: Draft,
        verdict: Verdict,
        draft_s: float,
        start: float,
        evaluation: Evaluation | None = None,
    ) -> None:
        """Accept the tokens of a verdict and learn from them.

        start: when the step began. evaluation: the evaluation, if it was one of several streams.
        """
        session, output, stats = self._session, self._output, self._stats
        self.emitted, self._verdict = output.cut(verdict.tokens), verdict
        tokens = tuple([token for token, _ in self.emitted])
        self.context.extend(tokens)
        session._verifier.accept(tokens)
        rows, is_cut = verdict.rows, len(tokens) < len(verdict.tokens)
        rows = rows[: len(tokens)] if is_cut else rows
        verified = Verified(tokens, rows, draft.tokens, verdict.drafted_rows)
        session._drafting.accept(verified)
        now = session._clock()
        n_past = len(self.context) - 1
        if evaluation:
            draft_s, step_s = evaluation.draft_s, evaluation.draft_s + evaluation.verify_s
            n_beside = evaluation.n_drafted - len(draft.tokens) - verdict.n_filled
            shared = evaluation.plain_s, n_beside
            step = stats_of(draft, verdict, len(tokens), n_past, (draft_s, step_s), *shared)
        else:
            step = stats_of(draft, verdict, len(tokens), n_past, (draft_s, now - start))
        plain_s = step.plain_s or session._policy.plain_s(n_past) or 0.0
        record(stats, step, now - self._began, plain_s)
        if session._drafting.observe(step, verified, growth):
            session._verifier.require(session._drafting.requires())
        if self._known and draft.tokens:
            before = self.context[-len(tokens) - 2 : -len(tokens)]
            count_predicted(stats, self._known, before, draft, tokens[: step.n_accepted])

    def events(self) -> Iterator[Event]:
        """Yield the events of the last step's tokens."""
        verdict = self._verdict
        for i, (token, text) in enumerate(self.emitted):
            logprob = verdict.logprobs[i] if verdict.logprobs else None
            yield Event("token", token, text, i < verdict.n_accepted, logprob)

    def _verified(self, draft: Draft) -> Verdict:
        """Verify a draft; meanwhile models may draft ahead if the target is remote."""
        remote = self._session._remote
        if remote is None:
            return self._session._verifier.verify(draft)
        remote.submit(draft)
        if draft.tokens:
            self._session._drafting.grow_ahead(draft, remote.max_draft, remote.ready)
        return remote.result()


class _Step(Step):
    """A step that may be evaluated together with those of other requests."""

    def __init__(self, running: _Running) -> None:
        super().__init__(running.request.abort)
        self._running, self._session = running, running._session
        verifier = self._session._verifier
        assert isinstance(verifier, LocalVerifier)
        self._verifier = verifier
        self._item: BatchItem | None = None

    @functools.cached_property
    def budget(self) -> Budget:  # type: ignore[override]
        """The limits of the step."""
        return self._running.budget

    @property
    def n_least(self) -> int:
        """The number of tokens that are evaluated without a draft."""
        return self._verifier.n_pending

    @property
    def loss_budget(self) -> float:
        """Tokens that this request may still lose to drafts."""
        return self._session._policy.loss_budget

    def limits(self, budget: Budget) -> Limits:
        """Return the limits of the draft."""
        return self._session._policy.limits(budget)

    def start(self, limits: Limits) -> Growth:
        """Return the growth of the draft."""
        return self._session._drafting.start(limits, self.budget)

    @property
    def _draft(self) -> Draft:
        return self.growth.draft if self.growth else NO_DRAFT

    def alone(self) -> None:
        """Make the step in the request's own thread."""
        self._running.step()

    def prepare(self, n_tokens: int, n_rows: int) -> Sequence[BatchItem]:
        """Return the item to evaluate, if it fits."""
        item = self._verifier.prepare(self._draft)
        if len(item.tokens) > n_tokens or item.n_logits > n_rows:
            return ()
        self._verifier.expect(item)
        self._item = item
        return [item]

    def take(self, outputs: Sequence[Outputs], evaluation: Evaluation) -> None:
        """Check the draft, accept and learn."""
        assert self._item
        verifier, item = self._verifier, self._item
        verifier.took(outputs[0])
        seconds, rows = evaluation.verify_s, outputs[0].logits
        verdict = verifier.conclude(self._draft, item, rows, seconds)
        self._running.conclude(self.growth, self._draft, verdict, 0.0, 0.0, evaluation)

    def drop(self, outputs: Sequence[Outputs]) -> None:
        """Keep the cache as it is: the next request aligns it."""
        self._verifier.took(outputs[0])

    def fail(self) -> None:
        """Forget the tokens of the evaluation."""
        if self._item:
            self._verifier.failed()
        self._item = None


def _encoded_next(prompt: Sequence[int], n_done: int) -> str:
    """Return the name of the picture, or of the part of one, that is encoded next, "" for none.

    n_done: the number of tokens of the prompt that are read already.
    """
    token = prompt[n_done] if n_done < len(prompt) else 0
    if not isinstance(token, PictureToken) or token.tile.embeddings is not None:
        return ""
    firsts = {place.start: prompt[place.start] for place in tiles_in(prompt)}
    mine = [
        at
        for at, first in firsts.items()
        if isinstance(first, PictureToken) and first.tile.name == token.tile.name
    ]
    part = f", part {mine.index(n_done) + 1} of {len(mine)}" if len(mine) > 1 else ""
    return f"{token.tile.name}{part}"
