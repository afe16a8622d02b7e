"""The loop of a request: choose, draft, verify, accept, observe, yield."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from ..drafters.base import Drafter
from ..errors import Aborted
from ..policies.base import Policy
from ..sampling.base import Request
from ..types import NO_DRAFT, Draft, Event, Stats, Verdict, Verified
from ..verifiers.base import AsyncVerifier, Verifier
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
        self._rates = rates or OwnRates([*drafters, policy])
        self._clock = clock

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
            yield from self._prefill(request, stats)
            if request.abort and request.abort():  # then its constraint may not be compiled yet
                raise Aborted("stopped before the first token")
            yield from self._steps(request, output, stats, began)
        except Aborted:
            output.finish((request.abort and request.abort()) or "cancelled")
        finally:
            if self._remote:
                self._remote.finish()
            stats.total_s = self._clock() - began
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
            yield Event("prefill", n_done=n_done, n_total=total)
        yield from self._notices()

    def _steps(
        self, request: Request, output: Output, stats: Stats, began: float
    ) -> Iterator[Event]:
        context = list(request.prompt)
        drafting, speculates = self._drafting, self._speculates(request)
        known = predicted(request)
        while not output.finish_reason:
            start = self._clock()
            budget = budget_of(request, self._verifier, len(context), len(output.token_ids))
            growth = drafting.grow(budget) if speculates and budget.limit > 0 else None
            draft = growth.draft if growth else NO_DRAFT
            drafted = self._clock()
            verdict = self._verify(draft)
            yield from self._notices()
            emitted = output.cut(verdict.tokens)
            tokens = tuple([token for token, _ in emitted])
            context.extend(tokens)
            self._verifier.accept(tokens)
            rows, is_cut = verdict.rows, len(tokens) < len(verdict.tokens)
            rows = rows[: len(tokens)] if is_cut else rows
            verified = Verified(tokens, rows, draft.tokens, verdict.drafted_rows)
            drafting.accept(verified)
            now = self._clock()
            times = drafted - start, now - start
            step = stats_of(draft, verdict, len(tokens), len(context) - 1, times)
            record(stats, step, now - began, self._policy.plain_s(step.n_past) or 0.0)
            if drafting.observe(step, verified, growth):
                self._verifier.require(drafting.requires())
            if known and draft.tokens:
                before = context[-len(tokens) - 2 : -len(tokens)]
                count_predicted(stats, known, before, draft, tokens[: step.n_accepted])
            for i, (token, text) in enumerate(emitted):
                logprob = verdict.logprobs[i] if verdict.logprobs else None
                yield Event("token", token, text, i < verdict.n_accepted, logprob)
            if len(context) > self._verifier.n_ctx:
                output.finish("context_full")
            elif request.abort and (reason := request.abort()):
                output.finish(reason)

    def _verify(self, draft: Draft) -> Verdict:
        """Verify a draft; meanwhile models may draft ahead if the target is remote."""
        remote = self._remote
        if remote is None:
            return self._verifier.verify(draft)
        remote.submit(draft)
        if draft.tokens:
            self._drafting.grow_ahead(draft, remote.max_draft, remote.ready)
        return remote.result()

    def _notices(self) -> Iterator[Event]:
        """Yield the notices that a remote verifier has for the user."""
        while self._remote and self._remote.notices:
            yield Event("notice", text=self._remote.notices.pop(0))

    def _speculates(self, request: Request) -> bool:
        """Return whether there are drafters that this request may use."""
        return bool(self._drafting.drafters) and request.params.may_draft

    def close(self) -> None:
        """Free target and drafters."""
        self._drafting.close()
        self._verifier.close()
