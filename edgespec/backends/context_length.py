"""The context length of a model if none is asked for."""

from __future__ import annotations

LEAST = 8192
"""Tokens of context that a model always gets by default, if it was trained for as many."""
MOST = 32768
"""The most tokens of context by default: enough for the prompts of coding agents."""
_STEP = 256  # tokens; engines round lengths up to a multiple of this


def default_n_ctx(
    trained: int, token_bytes: float, free: int, total: int, n_caches: int = 1
) -> int:
    """Return the default context length in tokens: at most MOST, and as many as leave a quarter of
    the memory free, but at least LEAST. It is never more than the model was trained for.

    trained: the tokens that the model was trained for, 0 if unknown. token_bytes: the bytes of a KV
    cache for each token. free: the bytes that caches may take until all memory, `total` bytes, is
    used. n_caches: the number of caches of this length.
    """
    room = (free - total // 4) / max(1.0, n_caches * token_bytes)
    fitting = int(max(0.0, room)) // _STEP * _STEP
    return min(trained or LEAST, max(LEAST, min(MOST, fitting)))
