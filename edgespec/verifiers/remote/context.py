"""The state of a device between frames: the context that the server has, and the rounds."""

from __future__ import annotations

from collections.abc import Sequence

from ...cache.token_cache import common_prefix
from ...errors import ConfigError
from ...protocol import MAX_TEXT, Begin, Context, Need, Options
from ...sampling.base import Constraint, Request


class SharedContext(Context):
    """The tokens of a request. n_known: the number of first tokens that the server has."""

    def __init__(self) -> None:
        super().__init__()
        self.n_known = 0
        self._generation = 0

    @property
    def generation(self) -> int:
        """The number of the last BEGIN."""
        return self._generation

    def start(self, prompt: Sequence[int]) -> None:
        """Replace the tokens with a new request's prompt; count those that the server has."""
        n = common_prefix(self.tokens, prompt)
        self.truncate(n)
        self.extend(prompt[n:])
        self.n_known = min(self.n_known, n)

    def begin(self, request: Request, seed: int) -> Begin:
        """Return the BEGIN frame that sends the tokens that the server lacks.

        Raises ConfigError if the constraint is too long for a frame.
        """
        self._generation += 1
        keep = min(self.n_known, len(self))
        return Begin(
            self._generation,
            keep,
            self.checksum(keep),
            len(request.prompt),
            request.params,
            seed,
            tuple(self.tokens[keep:]),
            _options(request.constraint),
        )

    def n_wanted(self, request: Request, n_ctx: int) -> int:
        """Return how many tokens may follow the next one; max_tokens and `n_ctx` limit them."""
        left = n_ctx - len(self)
        if request.params.max_tokens is None:
            return left
        n_emitted = len(self) - len(request.prompt)
        return min(left, request.params.max_tokens - n_emitted - 1)

    def correct(self, need: Need) -> None:
        """Note that the server has fewer tokens than assumed, or different ones."""
        same = self.has(need.have, need.checksum)
        self.n_known = need.have if same and need.have < self.n_known else 0


def _options(constraint: Constraint | None) -> Options:
    """Return the options of a BEGIN frame that describe the constraint of the output.

    Raises ConfigError if the constraint is too long for a frame.
    """
    if constraint is None:
        return {}
    for name, value in constraint.description.items():
        n = len(value.encode()) if isinstance(value, str) else 0
        if n > MAX_TEXT:
            raise ConfigError(
                f"{name} has {n} bytes, and may have {MAX_TEXT} where the target is on another "
                "machine; shorten it, or load the model here"
            )
    return constraint.description


class Rounds:
    """Keeps track of the round that is answered next, and of the rounds answered unasked.

    Unasked answers are plain steps: the server emits tokens by itself, up to the round that it was
    told. due: the number of the round that is answered next.
    """

    def __init__(self) -> None:
        self.due = 0
        self._last = -1

    @property
    def is_coming(self) -> bool:
        """True if the server sends the next answer without being asked."""
        return self.due <= self._last

    def ask(self, n_ahead: int) -> int:
        """Start a new round, with `n_ahead` unasked ones after it; return its number."""
        self.skip()
        self._last = self.due + n_ahead
        return self.due

    def extend(self, n_ahead: int, most: int) -> int | None:
        """Return the round up to which the server should go on, None if it need not be told yet.

        n_ahead: the tokens that are wanted after the next one. most: the most unasked rounds that
        the server allows.
        """
        if self._last - self.due >= n_ahead // 2:
            return None
        self._last = min(self.due + n_ahead, self.due - 1 + most)
        return self._last

    def skip(self) -> None:
        """Ignore the answers that are still coming."""
        self.due = self._last + 1
