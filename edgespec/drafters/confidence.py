"""A draft model's confidence in its tokens, and the share of them that is accepted."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .calibration import Calibration

_CLASSES = (0.3, 0.45, 0.6, 0.7, 0.8, 0.87, 0.92, 0.96, 0.985, 0.995)  # bounds, confidence_class()
_ACCEPTED = (0.25, 0.45, 0.58, 0.67, 0.78, 0.86, 0.91, 0.95, 0.97, 0.98, 0.99)  # prior, by class
_AFTER_ACCEPTED = "after accepted"  # a kind of evidence
_CONDITIONAL = 0.85  # prior acceptance rate of a token that follows accepted ones
_DRAFTS = (1.5, 1.6, 1.6, 1.5, 1.5, 1.5, 1.5, 1.6, 1.7, 2.0, 8.0)  # prior, by class of first tokens
_RECENT = 24  # drafts that count as recent
_PRIOR_SHARE = 0.6  # weight of the prior when an answer begins; earlier answers have the rest
_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75)  # bounds: share of what likelier tokens leave
_OTHERS = (0.12, 0.2, 0.34, 0.45, 0.56, 0.68, 0.75, 0.95)  # prior hit rate if likelier ones miss
_DEEPEST = 5  # deeper tokens count as this deep
_REMEMBERED = 40  # outcomes of a class: few, since they depend on what the text is about


Kind = tuple[str, int, int]
"""The class of a token that is not a row's likeliest: how it was chosen, its rank, and its share of
the probability that likelier tokens leave, as a class.
"""


class Choices(NamedTuple):
    """The tokens that a draft model would choose next, the likeliest first.

    confidence: the class of the first token. kinds: the classes of the other tokens.
    """

    tokens: tuple[int, ...]
    confidence: int
    kinds: tuple[Kind, ...] = ()


NOTHING = Choices((), 0)
"""The choices of a model where none of its tokens is allowed."""


class Confidence:
    """Acceptance probabilities by class of confidence, learned from the outcomes of drafts.

    A class is a range of the largest probability in the draft model's row.

    by_depth: count outcomes by depth as well. Heads guess later tokens from their own states, not
    from the target's, so they are right less often the deeper a token is, at the same confidence
    (EAGLE-3, arXiv 2503.01840). A class that is new at some depth is taken to be as right as for
    the first token that the head guesses.
    """

    def __init__(self, *, by_depth: bool = False) -> None:
        self._by_depth = by_depth
        self._calibration = Calibration(memory=_REMEMBERED)
        self._all = list(_DRAFTS)  # drafts that began with each class
        self._recent = list(_DRAFTS)  # the same for this answer's last drafts
        self._histogram: tuple[tuple[float, float], ...] = ()  # kept until something changes

    def begin(self) -> None:
        """Begin an answer. Its drafts are expected to be nearer to the prior than recent drafts."""
        prior = _PRIOR_SHARE * _RECENT / sum(_DRAFTS)
        learned = (1 - _PRIOR_SHARE) * _RECENT / sum(self._all)
        counts = zip(_DRAFTS, self._all, strict=True)
        self._recent = [prior * n + learned * seen for n, seen in counts]
        self._histogram = ()

    def learned(self) -> dict[str, Any]:
        """Return the outcomes by class, and how many drafts began with each class, for JSON."""
        return {"outcomes": self._calibration.learned(), "drafts": self._all}

    def relearn(self, state: Mapping[str, Any]) -> None:
        """Take what `learned` returned.

        Raises ValueError, TypeError or KeyError for impossible values; nothing has changed then.
        """
        drafts = [float(n) for n in state["drafts"]]
        if len(drafts) != len(_DRAFTS) or not all(0 < n < math.inf for n in drafts):
            raise ValueError(f"drafts by class: {drafts}")
        self._calibration.relearn(state["outcomes"])
        self._all = drafts
        self.begin()

    @property
    def histogram(self) -> tuple[tuple[float, float], ...]:
        """Pairs (share of recent drafts, acceptance probability of their first token), by class."""
        if not self._histogram:
            total = sum(self._recent)
            shares = [n / total for n in self._recent]
            probs = map(self._calibration.estimate, range(len(_ACCEPTED)), _ACCEPTED)
            self._histogram = tuple(zip(shares, probs, strict=True))
        return self._histogram

    @property
    def conditional_rate(self) -> float:
        """The acceptance rate of tokens after accepted ones."""
        return self._calibration.estimate(_AFTER_ACCEPTED, _CONDITIONAL)

    def split(self, choices: Choices, depth: int) -> list[float]:
        """Return the acceptance probability of each of the choices. depth: 1 for the first token of
        a draft.
        """
        estimate, confidence = self._calibration.estimate, choices.confidence
        shares = [estimate(confidence, _ACCEPTED[confidence])]
        if self._by_depth and depth > 1:
            shares = [estimate(_deeper(confidence, depth), shares[0])]
        left = 1 - shares[0]
        for kind in choices.kinds:
            shares.append(left * estimate(kind, _OTHERS[kind[2]]))
            left -= shares[-1]
        return shares

    def observe(self, choices: Choices, token: int, depth: int) -> None:
        """Learn from the token that was emitted, whether or not it was drafted.

        Any of the choices could have been accepted. depth: 1 for the first token that the model
        guessed in this draft; guesses of others may come before it.
        """
        if not choices.tokens:
            return
        learn, hit = self._calibration.observe, choices.tokens[0] == token
        deeper = self._by_depth and depth > 1
        learn(_deeper(choices.confidence, depth) if deeper else choices.confidence, hit)
        if depth > 1:
            learn(_AFTER_ACCEPTED, token in choices.tokens)
        for kind, choice in zip(choices.kinds, choices.tokens[1:], strict=True):
            if hit:
                break
            hit = choice == token
            learn(kind, hit)
        self._histogram = ()

    def count_draft(self, confidence: int) -> None:
        """Count a draft by the class of its first token."""
        self._all = [(1 - 1 / (8 * _RECENT)) * n for n in self._all]
        self._recent = [(1 - 1 / _RECENT) * n for n in self._recent]
        self._all[confidence] += 1
        self._recent[confidence] += 1
        self._histogram = ()


def confidence_class(prob: float) -> int:
    """Return the class of a row whose largest probability is `prob`."""
    return bisect.bisect_left(_CLASSES, prob)


def _deeper(confidence: int, depth: int) -> tuple[int, int]:
    """Return the kind of evidence for a token that is not the first one of its draft."""
    return confidence, min(depth, _DEEPEST)


def choices_of(kind: str, found: Sequence[tuple[int, float]], sure: float) -> Choices:
    """Return the choices of a row whose largest probability is `sure`.

    found: tokens, each with its share of the probability that likelier tokens leave. kind: how the
    tokens were chosen, "race" or "likeliest".
    """
    kinds = [
        (kind, rank, bisect.bisect_left(_SHARES, share))
        for rank, (_, share) in enumerate(found[1:], start=1)
    ]
    return Choices(tuple([token for token, _ in found]), confidence_class(sure), tuple(kinds))
