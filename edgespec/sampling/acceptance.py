"""How much of a draft the target keeps, and which token follows. Pure functions of the
distributions and a source of randomness.

Each returns (n_accepted, token): the token is *recovered* (the target's choice after a
rejection) or *bonus* (its choice after a full acceptance). `target(i)` is asked for row i,
0 … len(draft), in ascending order and only as far as needed.

Exact only if the decision to draft, to stop, or to prefer a source did not look at the value
of a drawn token that was then thrown away (`match` and `coupled` do not care).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..types import Distribution, Probs
from .base import Randomness

Outcome = tuple[int, int]


def match(draft: Sequence[int], choose: Callable[[int], int]) -> Outcome:
    """Keep drafted tokens while they are what the target chooses by itself.

    With `choose(i)` the argmax of row i this is the greedy rule. With a draw from row i that
    is independent of the draft it is the rule for deterministic drafts: a drafted x survives
    with probability p(x), and after a rejection the token follows p given "not x".
    """
    for i, token in enumerate(draft):
        own = choose(i)
        if own != token:
            return i, own
    return len(draft), choose(len(draft))


def coupled(
    draft: Sequence[int],
    target: Callable[[int], Distribution],
    randomness: Randomness,
    position: int,
) -> Outcome:
    """Gumbel coupling (Daliri, Musco, Suresh 2024): draft and target run the same race at
    the same position, `position` being that of the first drafted token. The output is a
    function of noise and target alone. It serves deterministic drafts as well.
    """
    return match(draft, lambda i: randomness.gumbel(position + i, target(i)))


def rejection(
    draft: Sequence[int],
    draft_probs: Sequence[Distribution],
    target: Callable[[int], Distribution],
    randomness: Randomness,
) -> Outcome:
    """Speculative sampling (Leviathan et al. 2023, Chen et al. 2023): accept x with
    min(1, p(x)/q(x)), on rejection draw from max(p - q, 0).
    """
    for i, (token, q) in enumerate(zip(draft, draft_probs, strict=True)):
        p = target(i)
        if not randomness.bernoulli(min(1.0, p.prob(token) / q.prob(token))):
            return i, randomness.draw(_residual(1.0, p, q))
    return len(draft), randomness.draw(target(len(draft)))


def block(
    draft: Sequence[int],
    draft_probs: Sequence[Distribution],
    target: Callable[[int], Distribution],
    randomness: Randomness,
) -> Outcome:
    """Block verification (Sun et al. 2024, arXiv 2403.10444): accepts at least as much as
    `rejection` in expectation. No break on a failure: the last success counts.
    """
    joint, n_accepted, kept = 1.0, 0, 1.0  # `joint` is the paper's p_i, `kept` that at n_accepted
    for i, (token, q) in enumerate(zip(draft, draft_probs, strict=True), start=1):
        joint = min(1.0, joint * target(i - 1).prob(token) / q.prob(token))
        if joint == 0:
            break
        survival = joint
        if i < len(draft):
            gain = _total(target(i).excess(joint, draft_probs[i]))
            rest = gain + 1 - joint
            survival = gain / rest if rest > 0 else 1.0
        if randomness.bernoulli(survival):
            n_accepted, kept = i, joint
    if n_accepted == len(draft):
        return n_accepted, randomness.draw(target(n_accepted))
    residual = _residual(kept, target(n_accepted), draft_probs[n_accepted])
    return n_accepted, randomness.draw(residual)


def _residual(scale: float, p: Distribution, q: Distribution) -> Distribution:
    """max(scale * p - q, 0), normalised."""
    excess = p.excess(scale, q)
    total = _total(excess)
    if total <= 0:  # p and q are equal but for rounding: a rejection of probability zero
        return p
    if isinstance(excess, list):
        return Distribution(p.ids, [x / total for x in excess])
    return Distribution(p.ids, excess / total)


def _total(values: list[float] | Probs) -> float:
    return sum(values) if isinstance(values, list) else float(values.sum())
