"""The window of a draft model: the part of a long text that it reads.

After some thousand tokens, a draft model takes longer to read its KV cache than to read its weights
(MagicDec, arXiv 2408.11049). For good guesses it needs the latest tokens and the first few,
whatever those are (StreamingLLM, arXiv 2309.17453). The tokens between can be left out, since
drafts are verified. When a window is full, it moves to a later start and its tokens are read again.
All engines can do that, and the positions of the tokens have no gap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..cache.token_cache import common_prefix

SINKS = 4  # first tokens of a text that stay in every window
AUTOMATIC = 2048  # tokens of a window that is used if measured times say that it is worthwhile
_WORTH = 0.75  # a window is used if drafting with it takes less than this share of the time
_CHUNK = 128  # tokens that are read together
_AGAIN = 64  # tokens of text after which times are looked at again

Seconds = Callable[[int, int], float | None]
"""A function of n and n_cached that returns the seconds in which a model evaluates `n` tokens after
`n_cached` cached ones, None if that is not known.
"""


class Window:
    """The first and the latest tokens of a text, without the `start` tokens between them.

    size: the number of latest tokens that it may hold. 0 means as many as fit into the model's
    context; None means 0 or AUTOMATIC, whichever `seconds` says is faster. n_ctx: the size of the
    model's context. n_sinks: the number of first tokens that stay in the window.
    """

    def __init__(
        self, size: int | None, n_ctx: int, seconds: Seconds | None = None, n_sinks: int = SINKS
    ) -> None:
        self.n_sinks = min(n_sinks, n_ctx // 8)
        self._asked, self._n_ctx, self._seconds = size, n_ctx, seconds
        self._size = size or 0  # the size at present
        self._look_at = 0  # length of the text at which times are looked at next

    @property
    def n_kept(self) -> int:
        """Number of latest tokens that stay in the window when it moves to a later start."""
        most = self._n_ctx // 2
        return max(1, min(most - self.n_sinks, self._size // 2 if self._size else most))

    def begin(self, start: int, cached: Sequence[int], prompt: Sequence[int]) -> tuple[int, int]:
        """Begin a request; return where its window begins and how many of its tokens are cached.

        start: where the last request's window begins. cached: its tokens in the cache. That window
        is used again if the prompt does not fit into a new one and shares many cached tokens with
        the last one.
        """
        self._look_at = 0
        if start:
            known = common_prefix(cached, prompt, offset=start, n_sinks=self.n_sinks)
            known = min(known, len(prompt) - start - 1)
            size = self._size or self._n_ctx
            if len(prompt) > self.n_sinks + size and known > max(self.n_sinks, size // 4):
                return start, known
        self._size = self._asked or 0
        return 0, common_prefix(cached, prompt[:-1])

    def place(self, start: int, known: int, n_text: int, room: int) -> tuple[int, int]:
        """Return where the window should begin, and how many of its tokens are then cached.

        start: where it begins now. known: the number of its cached tokens. n_text: the length of
        the text. room: most tokens that have to fit after the text.
        """
        n_seen = n_text - start
        if self._asked is None and not self._size and n_text >= self._look_at:
            self._look_at = n_text + _AGAIN
            self._size = AUTOMATIC if self._pays(n_seen, n_seen - known) else 0
        is_full = self._size and n_seen > self.n_sinks + self._size
        if is_full or n_seen + room > self._n_ctx:
            later = max(start, n_text - self.n_sinks - self.n_kept)
            return (start, known) if later == start else (later, min(known, self.n_sinks))
        return start, known

    def rest(self, text: Sequence[int], start: int, n: int) -> list[int]:
        """Return the tokens that the window shows of a text, without the first `n` of them."""
        first = text[n : self.n_sinks] if start else ()
        return [*first, *text[start + n + len(first) :]]

    def _pays(self, n_seen: int, n_unread: int) -> bool:
        """Return whether drafting takes much less time with a window of AUTOMATIC tokens, counted
        until that window is full.

        n_seen: tokens that the model sees without it. n_unread: those of them still to be read.
        """
        size, ahead = AUTOMATIC, AUTOMATIC // 2
        if n_seen <= self.n_sinks + size or self.n_sinks + size >= self._n_ctx:
            return False
        if self._seconds is None or self._seconds(1, n_seen) is None:
            return False

        def each(n: int, n_cached: int) -> float:
            """Return the seconds per token."""
            return (self._seconds(n, n_cached) or 0.0) / n if self._seconds else 0.0

        whole = n_unread * each(_CHUNK, n_seen // 2) + ahead * each(1, n_seen)
        window = (self.n_sinks + 2 * ahead) * each(_CHUNK, ahead)  # read now, and once full
        window += ahead * each(1, size - ahead // 2)
        return window < _WORTH * whole
