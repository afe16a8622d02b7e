"""The loop: choose, draft, verify, accept, observe, yield."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from ..drafters.base import Drafter, DraftsAhead
from ..errors import Aborted
from ..policies.base import Policy
from ..sampling.base import Request
from ..types import NO_DRAFT, Budget, Draft, Event, Offer, Stats, StepStats, Verdict
from ..verifiers.base import AsyncVerifier, Verifier
from .output import Output


class Session:
    """One sequence of requests on one target. Not for use by two threads at once.

    A request that was left half-way (cancelled, closed, failed) leaves nothing that the next
    one could trip over: every `begin` aligns caches with its own prompt.
    """

    def __init__(
        self,
        verifier: Verifier,
        drafters: Sequence[Drafter],
        policy: Policy,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._verifier = verifier
        self._drafters = list(drafters)
        self._policy = policy
        self._clock = clock
        self._far = verifier if isinstance(verifier, AsyncVerifier) else None
        self._ahead = [drafter for drafter in drafters if isinstance(drafter, DraftsAhead)]

    def generate(self, request: Request, output: Output, stats: Stats) -> Iterator[Event]:
        """Yield "prefill" and "token" events until `output` has a finish reason."""
        began = self._clock()
        stats.num_prompt_tokens = len(request.prompt)
        try:
            yield from self._prefill(request, stats)
            yield from self._steps(request, output, stats, began)
        except Aborted:
            output.finish((request.abort and request.abort()) or "cancelled")
        finally:
            if self._far:
                self._far.finish()
            stats.total_s = self._clock() - began
            if self._active(request) and not stats.num_draft_steps:
                stats.speculation = f"off: {self._policy.reason}"

    def _prefill(self, request: Request, stats: Stats) -> Iterator[Event]:
        total = len(request.prompt)
        cached = None
        for n_done in self._verifier.begin(request):
            if cached is None:
                cached = stats.num_cached_tokens = n_done
            stats.num_prefilled_tokens = n_done - cached
            yield Event("prefill", n_done=n_done, n_total=total)
        yield from self._notices()
        for drafter in self._active(request):
            drafter.begin(request)

    def _steps(
        self, request: Request, output: Output, stats: Stats, began: float
    ) -> Iterator[Event]:
        context = list(request.prompt)
        drafters = self._active(request)
        first = 0.0
        while not output.finish_reason:
            start = self._clock()
            draft = self._draft(drafters, request, context, output) if drafters else NO_DRAFT
            drafted = self._clock()
            verdict = self._verify(draft, context)
            if self._far:
                yield from self._notices()
            emitted = output.cut(verdict.tokens)
            tokens = [token for token, _ in emitted]
            context.extend(tokens)
            self._verifier.accept(tokens)
            for drafter in drafters:
                drafter.accept(tokens, verdict.rows)
            now = self._clock()
            if not first:  # the rest of the prompt went with this step
                first = now
                stats.num_prefilled_tokens = stats.num_prompt_tokens - stats.num_cached_tokens
            step = _step_stats(draft, verdict, len(tokens), len(context) - 1, start, drafted, now)
            stats.add(step)
            if now > first:
                stats.plain_s += len(tokens) * (self._policy.plain_s(step.n_past) or 0.0)
            stats.time_to_first_token_s, stats.decode_s = first - began, now - first
            self._policy.observe(step)
            for i, (token, text) in enumerate(emitted):
                yield Event(
                    "token", token, text, from_draft=i < verdict.n_accepted,
                    logprob=verdict.logprobs[i] if verdict.logprobs else None,
                )  # fmt: skip
            if len(context) > self._verifier.n_ctx:
                output.finish("context_full")
            elif request.abort and (reason := request.abort()):
                output.finish(reason)

    def _draft(
        self, drafters: Sequence[Drafter], request: Request, context: Sequence[int], output: Output
    ) -> Draft:
        budget = self._budget(request, len(context), len(output.token_ids))
        if budget.limit <= 0:
            return NO_DRAFT
        plan = self._policy.choose(_Offers(drafters, context, budget.limit), budget)
        if not plan.depth:
            return NO_DRAFT
        return drafters[plan.offer].propose(context, plan.depth, plan.thresholds)

    def _verify(self, draft: Draft, context: Sequence[int]) -> Verdict:
        """A target far away leaves time to draft on."""
        far = self._far
        if far is None:
            return self._verifier.verify(draft)
        far.submit(draft)
        if draft.tokens:
            for drafter in self._ahead:
                drafter.draft_ahead(context, draft, far.max_draft, far.ready)
        return far.result()

    def _notices(self) -> Iterator[Event]:
        """What a target far away has to say to the user."""
        while self._far and self._far.notices:
            yield Event("notice", text=self._far.notices.pop(0))

    def _budget(self, request: Request, n_context: int, n_emitted: int) -> Budget:
        """A step emits one token more than it accepts."""
        params = request.params
        remaining = self._verifier.n_ctx - n_context + 1
        if params.max_tokens is not None:
            remaining = min(remaining, params.max_tokens - n_emitted)
        limit = min(self._verifier.max_draft, remaining - 1)
        if params.num_draft_tokens is not None:
            limit = min(limit, params.num_draft_tokens)
        return Budget(limit, n_context, n_emitted, remaining)

    def _active(self, request: Request) -> list[Drafter]:
        """The drafters this request may use."""
        params = request.params
        return [] if params.disable_spec_decode or params.num_draft_tokens == 0 else self._drafters

    def close(self) -> None:
        """Free target and drafts."""
        for drafter in self._drafters:
            drafter.close()
        self._verifier.close()


class _Offers(Sequence[Offer]):
    """What drafters offer: each is asked when the policy looks."""

    def __init__(self, drafters: Sequence[Drafter], context: Sequence[int], limit: int) -> None:
        self._drafters, self._context, self._limit = drafters, context, limit

    def __len__(self) -> int:
        return len(self._drafters)

    def __getitem__(self, index: int) -> Offer:  # type: ignore[override]
        return self._drafters[index].offer(self._context, self._limit)


def _step_stats(
    draft: Draft, verdict: Verdict, n_emitted: int, n_past: int,
    start: float, drafted: float, now: float,
) -> StepStats:  # fmt: skip
    return StepStats(
        source=draft.source,
        n_drafted=len(draft.tokens),
        n_accepted=min(verdict.n_accepted, n_emitted),
        n_emitted=n_emitted,
        n_evaluated=verdict.n_evaluated,
        n_past=n_past,
        draft_s=drafted - start,
        verify_s=verdict.seconds,
        total_s=now - start,
        draft_evaluated=draft.evaluated,
    )
