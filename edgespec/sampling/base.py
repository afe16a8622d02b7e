"""The contracts of sampling: the source of randomness, and one request."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..config import SamplingParams
from ..types import Abort, Distribution


class Randomness(Protocol):
    """A source of randomness. Production draws numbers; tests enumerate every outcome."""

    def bernoulli(self, probability: float) -> bool:
        """Return True with `probability`, independent of everything else."""

    def draw(self, distribution: Distribution) -> int:
        """Draw a token from `distribution`, independent of everything else."""

    def gumbel(self, position: int, distribution: Distribution) -> int:
        """Draw a token from `distribution`, with the same noise for the same absolute position."""

    def smallest(
        self, position: int, distribution: Distribution, k: int
    ) -> list[tuple[int, float]]:
        """Return the k tokens that `gumbel` would draw first, each with its race E_t / p_t."""


class Matcher(Protocol):
    """A constraint at a place in one answer: after the text that was emitted.

    ahead: tokens after that text, drafted and not emitted. After tokens that are not allowed
    everything is: no acceptance rule gets there.
    """

    @property
    def ends(self) -> Collection[int]:
        """The tokens that end an answer."""

    @property
    def has_ended(self) -> bool:
        """True if one of them was emitted."""

    def mask(self, ahead: Sequence[int] = ()) -> npt.NDArray[np.bool_]:
        """Return which tokens are allowed, [vocab_size], a view valid until the next call."""

    def allows(self, token: int, ahead: Sequence[int] = ()) -> bool:
        """Return whether a token is allowed."""

    def forced(self, ahead: Sequence[int] = ()) -> Sequence[int]:
        """Return the tokens that come next because the text is the only one allowed.

        Of several ways to write it in tokens, only this one is.
        """

    def accept(self, tokens: Sequence[int]) -> None:
        """Add emitted tokens to the text. Raises DecodeError for one that is not allowed."""


class Constraint(Protocol):
    """A grammar or a schema that answers have to follow."""

    @property
    def shown(self) -> Mapping[int, bytes]:
        """Control tokens that are read as text, with that text."""

    @property
    def description(self) -> Mapping[str, bool | int | str]:
        """Options that another machine makes it from anew; none if everything is allowed."""

    def matcher(self) -> Matcher | None:
        """Return a matcher at the beginning of an answer, None if everything is allowed."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request, as drafters and verifiers see it.

    prompt: token ids. earlier: token ids of the same conversation that have left the prompt;
    prompt lookup may still draft from them. abort: tells when to stop, None if nothing does.
    owner: whose request it is; nothing of it is reused or drafted from for another owner.
    constraint: what the answer has to follow; it only changes the target's distribution. left_s:
    returns the seconds until its time limit. prediction: token ids that the answer may well have;
    prompt lookup drafts from them.
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

    def matcher(self) -> Matcher | None:
        """Return a matcher at the beginning of the answer, None without a constraint."""
        return self.constraint.matcher() if self.constraint else None
