"""The gain that drafting can bring, computed from measured costs alone."""

from __future__ import annotations

from ..costs.curves import Curve

SHORT_CACHE = 64  # cached tokens after which t(n) is measured and gains are computed
MAX_DEPTH = 31
LIKELY = 0.8  # few drafters have more than this share of their tokens accepted


def speedup(
    target: Curve,
    draft: Curve | None = None,
    acceptance_rate: float = 1.0,
    n_past: int = SHORT_CACHE,
) -> tuple[float, int]:
    """Return the speedup over plain decoding at the best depth, and that depth (0: no drafts).

    draft: the costs of the draft model; None if drafting takes no time. acceptance_rate: the
    probability that a drafted token is accepted if those before it were.
    """
    plain, each = target(1, n_past), draft(1, n_past) if draft else 0.0
    best, expected, depth = 1.0, 1.0, 0
    for n in range(1, MAX_DEPTH + 1):
        expected += acceptance_rate**n
        gain = expected * plain / (target(n + 1, n_past) + n * each)
        if gain > best + 1e-9:
            best, depth = gain, n
    return best, depth


def break_even(target: Curve, draft: Curve | None = None) -> float | None:
    """Return the least acceptance rate at which drafting is faster, in steps of 1%.

    None means that drafting is slower even if every drafted token is accepted.
    """
    rates = (percent / 100 for percent in range(1, 101))
    return next((rate for rate in rates if speedup(target, draft, rate)[1]), None)


def verdict(target: Curve, draft: Curve | None = None) -> tuple[bool, str]:
    """Return whether speculation is faster on a device, and a sentence that says so and why.

    The verdict is about drafts that cost nothing. draft: the costs of a draft model; the sentence
    says if it is too slow.
    """
    with_draft = break_even(target, draft) if draft else None
    least = break_even(target)
    if least is None:
        ratio = target(2, SHORT_CACHE) / target(1, SHORT_CACHE)
        return False, (
            f"Speculation does not pay here, because checking 2 tokens at once takes {ratio:.1f} "
            "times as long as 1: even guesses that are always right would lose."
        )
    ratio = target(5, SHORT_CACHE) / target(1, SHORT_CACHE)
    most, _ = speedup(target)
    why = f"because checking 5 tokens at once takes {ratio:.1f} times as long as 1"
    pays = least <= LIKELY
    start = "Speculation pays here" if pays else "Speculation seldom pays here"
    text = (
        f"{start}, {why}: it is faster where more than {least:.0%} of the guessed tokens are "
        f"right, at most {most:.1f} times as fast."
    )
    if draft and (with_draft is None or with_draft > LIKELY):
        text += " The draft model is too slow for it; text copied from the prompt costs nothing."
    return pays, text


def conditions(target: Curve, draft: Curve | None = None) -> str:
    """Return the end of a sentence that says when drafting is faster. `break_even` must not return
    None for these curves.
    """
    most, depth = speedup(target, draft)
    return (
        f"pays where its tokens are right more often than {break_even(target, draft):.0%}, at most "
        f"{most:.2f} times ({depth} tokens, all accepted)"
    )
