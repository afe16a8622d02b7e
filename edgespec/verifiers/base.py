"""The contract of verifiers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from ..sampling.base import Request
from ..types import Draft, Requires, Verdict


class Verifier(Protocol):
    """Owns the target, here or on another machine, and lets it check drafts.

    For each request, call `begin`, run its iterator to the end, then call `verify` and `accept` in
    turn. After an error the next `begin` works as usual.
    """

    @property
    def n_ctx(self) -> int:
        """Number of tokens that the target's context holds."""

    @property
    def max_draft(self) -> int:
        """Most tokens of a draft."""

    @property
    def max_leaves(self) -> int:
        """Most leaves of a draft that is a tree; 1 if it verifies chains only."""

    def require(self, requires: Requires) -> None:
        """Provide these hidden states from now on, if the target is in this process."""

    def n_reusable(self, owner: str, prompt: Sequence[int]) -> int:
        """Return how many of a prompt's first tokens this owner's next request would reuse, as far
        as that is known here. Call this only between requests.
        """

    def begin(self, request: Request) -> Iterator[int]:
        """Start a request; yield after every chunk how many prompt tokens are in the cache.

        The first number is that of the reused tokens. The rest of the prompt is evaluated by the
        first `verify`. Raises ValueError for an empty prompt, ContextFull, Aborted, VerifierError.
        """

    def verify(self, draft: Draft) -> Verdict:
        """Evaluate the pending tokens and the draft in one pass; return the verdict.

        Raises ContextFull, Aborted, VerifierError.
        """

    def accept(self, tokens: Sequence[int]) -> None:
        """Add the last verdict's emitted tokens to the context; a stop may have cut some off."""

    def close(self) -> None:
        """Free everything. Closing twice is harmless."""


@runtime_checkable
class AsyncVerifier(Verifier, Protocol):
    """A verifier on another machine; `submit` and `result` are the two halves of `verify`.

    The caller may use the time between the two. notices: sentences that the user should read; the
    caller removes those that it has shown.
    """

    notices: list[str]

    def round_trip_s(self) -> float:
        """Return the seconds of a round trip to the target, as measured recently."""

    def submit(self, draft: Draft) -> None:
        """Send a draft."""

    def ready(self) -> bool:
        """Return True if `result` would not wait."""

    def result(self) -> Verdict:
        """Wait for the verdict on the submitted draft."""

    def finish(self) -> None:
        """Tell the target that the answer has ended, so that no more tokens are wanted."""
