"""The part of a long text that a draft model sees.

After some thousand tokens reading its cache takes a draft model longer than reading its weights
(MagicDec, arXiv 2408.11049). For a guess it needs the latest tokens, and the first ones, whatever
they are (StreamingLLM, arXiv 2309.17453). What lies between may be left out, for drafts are
verified. A view that is full begins later from then on, and what it holds is read again: all
engines can do that, and the positions of its tokens stay without a gap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..cache.token_cache import common_prefix

SINKS = 4  # first tokens of a text that stay in view
AUTOMATIC = 2048  # tokens, where measured times decide if all of a text is seen
_WORTH = 0.75  # a window is used if drafting takes less than this share of the time with it
_CHUNK = 128  # tokens that are read together
_AGAIN = 64  # tokens of text after which times are looked at again

Seconds = Callable[[int, int], float | None]
"""The seconds in which a model evaluates so many tokens after so many cached ones, if known."""


class Window:
    """A view of a text: its first tokens, and the latest; `start` tokens between are left out.

    size: the latest tokens that it may hold; 0 for as many as the model's context has room for,
    None for that or AUTOMATIC, by `seconds`. n_ctx: the model's context. n_sinks: first tokens that
    stay in view.
    """

    def __init__(
        self, size: int | None, n_ctx: int, seconds: Seconds | None = None, n_sinks: int = SINKS
    ) -> None:
        self.n_sinks = min(n_sinks, n_ctx // 8)
        self._asked, self._n_ctx, self._seconds = size, n_ctx, seconds
        self._size = size or 0  # now
        self._look_at = 0  # length of the text at which times are looked at

    @property
    def n_kept(self) -> int:
        """Number of latest tokens in a view that has just begun later."""
        most = self._n_ctx // 2
        return max(1, min(most - self.n_sinks, self._size // 2 if self._size else most))

    def begin(self, start: int, cached: Sequence[int], prompt: Sequence[int]) -> tuple[int, int]:
        """Begin a request, and return where its view begins and how much of that is cached.

        start: where that of the last request begins, of which `cached` was read. It goes on if the
        prompt does not fit into a view and much of it need not be read again.
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
        """Return where the view of a text of `n_text` tokens should begin, and how much of it is
        cached then.

        start: where it begins now, with `known` tokens cached. room: most tokens after the text.
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
        """Return what is in view of a text after the first `n` tokens in view."""
        first = text[n : self.n_sinks] if start else ()
        return [*first, *text[start + n + len(first) :]]

    def _pays(self, n_seen: int, n_unread: int) -> bool:
        """Return whether drafting takes much less time with a window, until it is full.

        n_seen: tokens in view without one, of which `n_unread` are to be read.
        """
        size, ahead = AUTOMATIC, AUTOMATIC // 2
        if n_seen <= self.n_sinks + size or self.n_sinks + size >= self._n_ctx:
            return False
        if self._seconds is None or self._seconds(1, n_seen) is None:
            return False

        def each(n: int, n_cached: int) -> float:
            """Return the seconds a token."""
            return (self._seconds(n, n_cached) or 0.0) / n if self._seconds else 0.0

        whole = n_unread * each(_CHUNK, n_seen // 2) + ahead * each(1, n_seen)
        window = (self.n_sinks + 2 * ahead) * each(_CHUNK, ahead)  # now and when it is full
        window += ahead * each(1, size - ahead // 2)
        return window < _WORTH * whole
