"""The contracts of sampling: randomness, constraints and one request."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..config import SamplingParams
from ..types import Abort, Distribution, Thought


class Randomness(Protocol):
    """A source of randomness. Production draws random numbers; tests enumerate every outcome."""

    def bernoulli(self, probability: float) -> bool:
        """Return True with `probability`, independent of everything else."""

    def draw(self, distribution: Distribution) -> int:
        """Draw a token from `distribution`, independent of everything else."""

    def gumbel(self, position: int, distribution: Distribution) -> int:
        """Draw a token from `distribution`, with noise that is fixed for each absolute position."""

    def smallest(
        self, position: int, distribution: Distribution, k: int
    ) -> list[tuple[int, float]]:
        """Return the k tokens t with the least E_t / p_t, where E_t is Exp(1) noise, each with this
        value, the least first. `gumbel` draws the first of them.
        """


class Matcher(Protocol):
    """The state of a constraint in one answer, after the text emitted so far.

    ahead: drafted tokens after that text, which are not emitted yet. After a token that is not
    allowed, all tokens are allowed: no acceptance rule gets that far.
    """

    @property
    def ends(self) -> Collection[int]:
        """The tokens that can end an answer."""

    @property
    def has_ended(self) -> bool:
        """True if a token that ends the answer was emitted."""

    def mask(self, ahead: Sequence[int] = ()) -> npt.NDArray[np.bool_]:
        """Return True for each allowed token, [vocab_size], a view valid until the next call."""

    def allows(self, token: int, ahead: Sequence[int] = ()) -> bool:
        """Return whether a token is allowed after the text and `ahead`."""

    def forced(self, ahead: Sequence[int] = ()) -> Sequence[int]:
        """Return the tokens that must come next if only one text is allowed, else no tokens.

        If that text can be tokenised in several ways, only the returned one is allowed.
        """

    def accept(self, tokens: Sequence[int]) -> None:
        """Add emitted tokens to the text. Raises DecodeError if one is not allowed."""


class Constraint(Protocol):
    """A grammar or a schema that answers have to follow."""

    @property
    def shown(self) -> Mapping[int, bytes]:
        """The ids of control tokens that count as text in the answer, and their texts."""

    @property
    def description(self) -> Mapping[str, bool | int | str]:
        """The options from which another machine makes the same constraint; empty if everything is
        allowed.
        """

    @property
    def thought(self) -> Thought | None:
        """The texts around the reasoning before the answer, None if there can be no reasoning."""

    @property
    def notes(self) -> Sequence[str]:
        """Sentences for the user on what the constraint leaves out of what was asked for."""

    def matcher(self) -> Matcher | None:
        """Return a matcher for the beginning of an answer, None if everything is allowed."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request, as drafters and verifiers see it.

    prompt: token ids. earlier: token ids of the same conversation that are no longer in the prompt;
    prompt lookup may still draft from them. abort: returns a reason once the request should stop;
    None if nothing can stop it. owner: the user that the request belongs to; the request's text is
    not used for other owners, not even for drafts. constraint: a constraint on the answer; it
    changes only the target's distribution. left_s: returns the seconds until the time limit.
    prediction: token ids that the answer is likely to contain; prompt lookup drafts from them.
    n_unseen: how many tokens of pictures were left out of the prompt. n_before: how many of its
    tokens come before the last picture.
    """

    prompt: Sequence[int]
    params: SamplingParams
    randomness: Randomness
    earlier: Sequence[int] = ()
    abort: Abort | None = None
    owner: str = ""
    constraint: Constraint | None = None
    left_s: Callable[[], float] = lambda: math.inf
    prediction: Sequence[int] = ()
    n_unseen: int = 0
    n_before: int = 0

    def text_alone(self) -> Request:
        """Return the request without pictures in its prompt, as drafters see it; itself if there
        are none.
        """
        text = [token for token in self.prompt if token >= 0]
        n_unseen = len(self.prompt) - len(text)
        if not n_unseen:
            return self
        last = max(i for i, token in enumerate(self.prompt) if token < 0)
        n_before = last + 1 - n_unseen
        return replace(self, prompt=text, n_unseen=n_unseen, n_before=n_before)

    def matcher(self) -> Matcher | None:
        """Return a matcher for the beginning of the answer, None without a constraint."""
        return self.constraint.matcher() if self.constraint else None
