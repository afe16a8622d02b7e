"""The contract of verifiers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from ..sampling.base import Request
from ..types import Draft, Verdict


class Verifier(Protocol):
    """Owns the target: here, or on another machine."""

    @property
    def n_ctx(self) -> int:
        """Tokens that the target's context holds."""

    @property
    def max_draft(self) -> int:
        """Most tokens of a draft."""

    def begin(self, request: Request) -> Iterator[int]:
        """A new request: yields how many prompt tokens are in the cache, the reused ones
        first, after every chunk. What is left goes with the first `verify`.
        """

    def verify(self, draft: Draft) -> Verdict:
        """Evaluate what is pending and the draft in one pass and judge it.

        Raises Aborted; the next `begin` works from whatever state that left.
        """

    def accept(self, tokens: Sequence[int]) -> None:
        """What was emitted of the last verdict (stopping may have cut it)."""

    def close(self) -> None:
        """Free everything."""


@runtime_checkable
class AsyncVerifier(Verifier, Protocol):
    """A verifier far away: `verify` in two halves, with time between them.

    notices: what the user should know, in sentences; whoever shows them takes them out.
    """

    notices: list[str]

    def round_trip_s(self) -> float:
        """Seconds to the target and back, as measured of late."""

    def submit(self, draft: Draft) -> None:
        """Send a draft."""

    def ready(self) -> bool:
        """Whether `result` would not wait."""

    def result(self) -> Verdict:
        """The verdict of what was submitted."""

    def finish(self) -> None:
        """The answer has ended: nothing more is wanted."""
