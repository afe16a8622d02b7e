"""The contract of verifiers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from ..sampling.base import Request
from ..types import Draft, Requires, Verdict


class Verifier(Protocol):
    """Owns the target, here or on another machine, and has it check drafts.

    A request is `begin`, its iterator run to the end, then `verify` and `accept` in turn. Raising
    leaves a verifier in a state from which the next `begin` works.
    """

    @property
    def n_ctx(self) -> int:
        """Number of tokens that the target's context holds."""

    @property
    def max_draft(self) -> int:
        """Most tokens of a draft."""

    @property
    def max_leaves(self) -> int:
        """Most leaves of a draft that is a tree; 1: it verifies chains only."""

    def require(self, requires: Requires) -> None:
        """Hand over these hidden states from now on, where the target is in this process."""

    def begin(self, request: Request) -> Iterator[int]:
        """Start a request; yield after every chunk how many prompt tokens are in the cache.

        The reused ones come first. What is left of the prompt goes with the first `verify`.
        Raises ValueError for an empty prompt, ContextFull, Aborted, VerifierError.
        """

    def verify(self, draft: Draft) -> Verdict:
        """Evaluate what is pending and the draft in one pass and return what is accepted of it.

        Raises ContextFull, Aborted, VerifierError.
        """

    def accept(self, tokens: Sequence[int]) -> None:
        """Take over what was emitted of the last verdict, which a stop may have cut."""

    def close(self) -> None:
        """Free everything. Closing twice is harmless."""


@runtime_checkable
class AsyncVerifier(Verifier, Protocol):
    """A verifier on another machine: `verify` in two halves, with time between them.

    notices: what the user should know, in sentences; whoever shows them takes them out.
    """

    notices: list[str]

    def round_trip_s(self) -> float:
        """Return the seconds to the target and back, as measured of late."""

    def submit(self, draft: Draft) -> None:
        """Send a draft."""

    def ready(self) -> bool:
        """Return True if `result` would not wait."""

    def result(self) -> Verdict:
        """Wait for the verdict of what was submitted."""

    def finish(self) -> None:
        """Tell the target that the answer has ended and no more tokens are wanted."""
