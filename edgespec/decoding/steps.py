"""The limits of a step before it is made, and its figures afterwards."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..sampling.base import Request
from ..sampling.trees import widths_of
from ..types import Budget, Draft, Stats, StepStats, Verdict
from ..verifiers.base import Verifier


def budget_of(request: Request, verifier: Verifier, n_context: int, n_emitted: int) -> Budget:
    """Return the limits of a step, which emits one token more than it accepts.

    n_context: the number of tokens in prompt and output. n_emitted: the number in the output.
    """
    params = request.params
    remaining = verifier.n_ctx - n_context + 1
    if params.max_tokens is not None:
        remaining = min(remaining, params.max_tokens - n_emitted)
    limit = min(verifier.max_draft, remaining - 1)
    if params.num_draft_tokens is not None:
        limit = min(limit, params.num_draft_tokens)
    return Budget(limit, n_context, n_emitted, remaining, verifier.max_leaves)


def stats_of(
    draft: Draft,
    verdict: Verdict,
    n_emitted: int,
    n_past: int,
    times: tuple[float, float],
    plain_s: float = 0.0,
    n_beside: int = 0,
) -> StepStats:
    """Return the statistics of a step.

    n_past: tokens in the context without the last emitted one. times: seconds of drafting, and of
    the complete step. plain_s, n_beside: as in StepStats.
    """
    draft_s, total_s = times
    return StepStats(
        source=draft.source,
        n_drafted=len(draft.tokens),
        n_accepted=min(verdict.n_accepted, n_emitted),
        n_emitted=n_emitted,
        n_evaluated=verdict.n_evaluated,
        n_past=n_past,
        draft_s=draft_s,
        verify_s=verdict.seconds,
        total_s=total_s,
        draft_evaluated=draft.evaluated,
        widths=widths_of(draft.parents) if draft.parents else (),
        n_filled=verdict.n_filled,
        plain_s=plain_s,
        n_beside=n_beside,
    )


def record(stats: Stats, step: StepStats, elapsed_s: float, plain_s: float) -> None:
    """Add a step to the statistics of its request.

    elapsed_s: seconds since the request began. plain_s: seconds of a plain step, 0 if not known.
    """
    if not stats.num_spec_steps:  # the first step has read the rest of the prompt
        stats.num_prefilled_tokens = stats.num_prompt_tokens - stats.num_cached_tokens
        stats.time_to_first_token_s = elapsed_s
    else:
        n_new = step.n_emitted if stats.plain_s else stats.num_emitted_tokens - 1 + step.n_emitted
        stats.plain_s += n_new * plain_s  # at first for all tokens after the first one
        stats.decode_s = elapsed_s - stats.time_to_first_token_s
    stats.add(step)


Trigram = tuple[int, int, int]


def predicted(request: Request) -> Collection[Trigram]:
    """Return the trigrams of a request's prediction: each of its tokens after the two before it."""
    text = [*request.prompt[-2:], *request.prediction] if request.prediction else ()
    return set(zip(text, text[1:], text[2:], strict=False))


def count_predicted(
    stats: Stats,
    known: Collection[Trigram],
    before: Sequence[int],
    draft: Draft,
    tokens: Sequence[int],
) -> None:
    """Count a step's drafted tokens that a prediction contains: the accepted and the rejected.

    known: the trigrams from `predicted`. before: the two tokens before the draft. tokens: the
    accepted tokens.
    """
    before = [-1, -1, *before][-2:]  # a prompt may have only one token
    parents = draft.parents or range(-1, len(draft.tokens) - 1)
    ends: list[tuple[int, int]] = []  # for each drafted token: the token before it, and itself
    n_drafted = 0
    for token, parent in zip(draft.tokens, parents, strict=True):
        older, old = ends[parent] if parent >= 0 else (before[0], before[1])
        n_drafted += (older, old, token) in known
        ends.append((old, token))
    text = [*before, *tokens]
    n_accepted = sum(three in known for three in zip(text, text[1:], text[2:], strict=False))
    stats.num_accepted_prediction_tokens += n_accepted
    stats.num_rejected_prediction_tokens += n_drafted - n_accepted
