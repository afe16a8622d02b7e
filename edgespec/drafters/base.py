"""The contracts of drafters, and the context in which one is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ..backends.base import Model, Tokenizer
from ..config import SpeculativeConfig
from ..costs.online import Costs
from ..sampling.base import Request
from ..types import NO_THRESHOLDS, Draft, DraftEstimate, Thresholds, Verified

Tokens = npt.NDArray[np.int32]


class Source(Protocol):
    """One way to draft that a policy can choose."""

    name: str

    def estimate(self, context: Sequence[int], limit: int) -> DraftEstimate:
        """Estimate a draft of at most `limit` tokens after `context`, which is prompt and output.

        It must not draw: a choice between sources may not look at drawn tokens.
        """

    def propose(
        self, context: Sequence[int], limit: int, thresholds: Thresholds = NO_THRESHOLDS
    ) -> Draft:
        """Draft at most `limit` tokens after `context`, fewer where `thresholds` end the draft."""


class Drafter(Source, Protocol):
    """Something cheap that guesses the target's next tokens."""

    def begin(self, request: Request) -> None:
        """Begin a request; the state that an earlier one left must not matter."""

    def accept(self, verified: Verified) -> None:
        """Learn from the emitted tokens, drafted or not."""

    def close(self) -> None:
        """Free everything. Calling it twice is harmless."""


@runtime_checkable
class DraftsAhead(Drafter, Protocol):
    """A drafter that uses the time in which a verification is under way."""

    def draft_ahead(
        self, context: Sequence[int], draft: Draft, limit: int, until: Callable[[], bool]
    ) -> None:
        """Draft on after `context` and the whole of `draft` until `until` returns True.

        limit: most tokens to find after the one that the target adds.
        """


@runtime_checkable
class Learns(Protocol):
    """A drafter, or a part of one, that goes on in another process with what it has learned.

    What is kept holds no text: rates by kind of evidence.
    """

    def learned(self) -> Mapping[str, Any]:
        """Return what was learned so far as plain data for JSON, under names of its own."""

    def relearn(self, state: Mapping[str, Any]) -> None:
        """Take what `learned` returned in an earlier process.

        It may hold names that this one does not know. Raises ValueError, TypeError or KeyError for
        values that cannot be, and is then as before.
        """


@runtime_checkable
class LearnsTokens(Protocol):
    """A drafter, or a part of one, that goes on with tokens of texts: they are private."""

    def learned_tokens(self) -> Mapping[str, Tokens]:
        """Return what was learned so far, under names of its own."""

    def relearn_tokens(self, state: Mapping[str, Tokens]) -> None:
        """Take what `learned_tokens` returned in an earlier process, as Learns.relearn."""


@dataclass(frozen=True, slots=True)
class DrafterContext:
    """The parts that a drafter may be made from.

    config: the user's settings, `config.options` among them. vocab_size: of the target. target:
    the target itself, None where it is on another machine. tokenizer: the target's.
    draft_model: the model that was loaded to draft with, if any. costs: what evaluations cost on
    this device; None where depths are fixed and costs decide nothing. remote_leaves: most leaves of
    a tree that a target on another machine takes; 1: it takes chains only.
    """

    config: SpeculativeConfig
    vocab_size: int
    target: Model | None = None
    tokenizer: Tokenizer | None = None
    draft_model: Model | None = None
    costs: Costs | None = None
    remote_leaves: int = 1

    @property
    def is_remote(self) -> bool:
        """True if the target is on another machine."""
        return self.target is None
