"""Acceptance rules for chains: pure functions of the distributions and a source of randomness.

Each returns (n_accepted, token): the number of accepted drafted tokens, and the token that follows
them, which is *recovered* (the target's choice after a rejection) or *bonus* (its choice after a
full acceptance). `target(i)` returns the target's distribution of row i, 0 … len(draft); it is
called in ascending order and only as far as needed.

`rejection` and `block` are exact only if the decision to draft, to stop, or to prefer a source did
not depend on the value of a drawn token that was then thrown away; `match` and `coupled` are always
exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..types import Distribution, Probs
from .base import Randomness

Outcome = tuple[int, int]


def match(draft: Sequence[int], choose: Callable[[int], int]) -> Outcome:
    """Accept drafted tokens as long as they equal the tokens that the target chooses.

    If `choose(i)` returns the argmax of row i, this is the greedy rule. If it draws from row i,
    independently of the draft, this is the rule for deterministic drafts: a drafted x is accepted
    with probability p(x), and after a rejection the token is distributed as p given "not x".
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
    """Accept drafted tokens as long as they equal the tokens that the target draws.

    This is Gumbel coupling (Daliri, Musco, Suresh 2024, arXiv 2408.07978): draft model and target
    draw with the same noise, that of the token's position. position: the position of the first
    drafted token. The output depends only on the noise and the target. The rule also works for
    deterministic drafts.
    """
    return match(draft, lambda i: randomness.gumbel(position + i, target(i)))


def rejection(
    draft: Sequence[int],
    draft_probs: Sequence[Distribution],
    target: Callable[[int], Distribution],
    randomness: Randomness,
) -> Outcome:
    """Accept each drafted x with probability min(1, p(x)/q(x)), up to the first rejection.

    Speculative sampling (Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023,
    arXiv 2302.01318): p is the target's distribution, q the draft's. After a rejection the token
    is drawn from max(p - q, 0), normalised.
    """
    for i, (token, q) in enumerate(zip(draft, draft_probs, strict=True)):
        p = target(i)
        if not randomness.bernoulli(min(1.0, p.prob(token) / q.prob(token))):
            return i, randomness.draw(residual(1.0, p, q)[1])
    return len(draft), randomness.draw(target(len(draft)))


def block(
    draft: Sequence[int],
    draft_probs: Sequence[Distribution],
    target: Callable[[int], Distribution],
    randomness: Randomness,
) -> Outcome:
    """Accept as long a prefix of the draft as its joint probability allows.

    This is block verification (Sun et al. 2024, arXiv 2403.10444). It accepts at least as much as
    `rejection` in expectation. A failed trial does not end the loop: the longest prefix whose trial
    succeeds is accepted.
    """
    joint, n_accepted, kept = 1.0, 0, 1.0  # joint: the paper's p_i; kept: its value at n_accepted
    for i, (token, q) in enumerate(zip(draft, draft_probs, strict=True), start=1):
        joint = min(1.0, joint * target(i - 1).prob(token) / q.prob(token))
        if joint == 0:
            break
        acceptance_prob = joint
        if i < len(draft):
            gain = _total(target(i).excess(joint, draft_probs[i]))
            rest = gain + 1 - joint
            acceptance_prob = gain / rest if rest > 0 else 1.0
        if randomness.bernoulli(acceptance_prob):
            n_accepted, kept = i, joint
    if n_accepted == len(draft):
        return n_accepted, randomness.draw(target(n_accepted))
    _, rest_of_p = residual(kept, target(n_accepted), draft_probs[n_accepted])
    return n_accepted, randomness.draw(rest_of_p)


def residual(scale: float, p: Distribution, q: Distribution) -> tuple[float, Distribution]:
    """Return the sum of max(scale * p - q, 0), and this residual as a normalised distribution."""
    excess = p.excess(scale, q)
    total = _total(excess)
    if total <= 0:  # p and q are equal except for rounding: this rejection has probability zero
        return 0.0, p
    if isinstance(excess, list):
        return total, Distribution(p.ids, [x / total for x in excess])
    return total, Distribution(p.ids, excess / total)


def _total(values: list[float] | Probs) -> float:
    return sum(values) if isinstance(values, list) else float(values.sum())
