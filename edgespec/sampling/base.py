"""The contracts of sampling: where chance comes from, and what one request asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..config import SamplingParams
from ..types import Abort, Distribution


class Randomness(Protocol):
    """Where chance comes from. Production draws numbers; tests enumerate every outcome."""

    def bernoulli(self, probability: float) -> bool:
        """True with `probability`, independent of everything else."""

    def draw(self, distribution: Distribution) -> int:
        """A token from `distribution`, independent of everything else."""

    def gumbel(self, position: int, distribution: Distribution) -> int:
        """A token from `distribution`; the same noise for the same absolute position."""


@dataclass(frozen=True, slots=True)
class Request:
    """One generation, as drafters and verifiers see it. `earlier`: text of the same
    conversation that has left the prompt; lookup may still draft from it.
    """

    prompt: Sequence[int]
    params: SamplingParams
    randomness: Randomness
    earlier: Sequence[int] = ()
    abort: Abort | None = None
