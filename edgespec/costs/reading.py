"""The time in which tokens of a prompt are read, by how many are evaluated together."""

from __future__ import annotations

FEWEST, MOST = 16, 512  # tokens in an evaluation; kernels take 16 in equal time
_SIZES = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_LATEST, _LATEST_SHAPE = 0.5, 0.1  # weights of the latest time
_HOPED = 0.7  # a larger evaluation may take this share of the time per token, until it is tried
_LONGER, _FASTER = 1.1, 0.8  # an evaluation may take longer for so much less time per token
_LEAST_S = 1e-9


class ReadingTimes:
    """Learns from evaluations of prompts.

    A token takes less time in a large evaluation: llama.cpp's flash attention on CPUs, for example,
    reads each key once for 64 tokens. So numbers of tokens are learned apart, by powers of two. But
    tokens also take longer the more there are before them. So a change, as a ratio, is mostly
    taken to be one of all numbers.
    """

    def __init__(self) -> None:
        self.token_s = 0.0  # the latest time of a token in seconds, 0 until one is known
        self._usual_s = 0.0  # the time of a token in evaluations of any number lately
        self._shares = [0.0] * (_level(MOST) + 1)  # of it, that a token takes; 0 if unknown

    def observe(self, n_tokens: int, seconds: float) -> None:
        """Learn from an evaluation. Those of fewer than 16 tokens say little and are ignored."""
        if n_tokens < FEWEST:
            return
        self.token_s = max(seconds / n_tokens, _LEAST_S)
        level = _level(n_tokens)
        self._usual_s = self._usual_s or self.token_s
        if share := self._shares[level]:
            change = self.token_s / (self._usual_s * share)
            self._usual_s *= change**_LATEST
            self._shares[level] *= change**_LATEST_SHAPE
        else:
            self._shares[level] = self.token_s / self._usual_s

    def observe_stopped(self, n_tokens: int, seconds: float) -> None:
        """Learn from an evaluation that was stopped after `seconds`: it would have taken longer."""
        if n_tokens >= FEWEST:
            self.token_s = max(self.token_s, seconds / n_tokens)

    def expected_s(self, n_tokens: int) -> float:
        """Return the seconds that an evaluation will take, 0 if nothing is known."""
        level, shares = _level(n_tokens), self._shares
        smaller = next((shares[i] for i in range(level - 1, -1, -1) if shares[i]), 0.0)
        larger = next((shares[i] for i in range(level + 1, len(shares)) if shares[i]), 0.0)
        return n_tokens * self._usual_s * (shares[level] or _HOPED * smaller or larger)

    def most(self, longest_s: float) -> int:
        """Return the most tokens that take at most so many seconds. Until a time is known, and if
        that is too short for any, these are the fewest that are worth an evaluation. More tokens
        may take a tenth longer if they are known to be read much faster.
        """
        fitting = [n for n in _SIZES if 0 < self.expected_s(n) <= longest_s]
        n = max(fitting, default=FEWEST)
        faster_s = _FASTER * self.expected_s(n) / n
        faster = [
            more
            for more in _SIZES
            if more > n
            and self._shares[_level(more)]
            and self.expected_s(more) <= min(_LONGER * longest_s, more * faster_s)
        ]
        return max(faster, default=n)


def _level(n_tokens: int) -> int:
    return min(max(n_tokens, FEWEST), MOST).bit_length() - FEWEST.bit_length()
