"""The contracts of sampling: the source of randomness, and one request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

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


@dataclass(frozen=True, slots=True)
class Request:
    """One request, as drafters and verifiers see it.

    prompt: token ids. earlier: token ids of the same conversation that have left the prompt;
    prompt lookup may still draft from them. abort: tells when to stop, None if nothing does.
    owner: whose request it is; nothing of it is reused or drafted from for another owner.
    """

    prompt: Sequence[int]
    params: SamplingParams
    randomness: Randomness
    earlier: Sequence[int] = ()
    abort: Abort | None = None
    owner: str = ""
