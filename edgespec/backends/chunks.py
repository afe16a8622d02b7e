"""Limits on the tokens that an engine is given at a time."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ContextFull
from .base import BatchItem, Model

_LONGEST_S = 0.1
_FIRST = 32  # tokens


def chunk_ends(model: Model, n_tokens: int, n_logits: int) -> list[int]:
    """Return where native calls have to end, but for the last one, that evaluate so many tokens:
    none has more than max_batch, and none ends between the wanted rows. Raises ContextFull, and
    ValueError for more rows than there can be.
    """
    if model.n_past + n_tokens > model.n_ctx:
        raise ContextFull(
            f"{n_tokens} tokens do not fit after {model.n_past} in a context of {model.n_ctx}; "
            "load the model with a larger n_ctx or shorten the prompt"
        )
    able = model.capabilities
    most = min(able.max_rows, able.max_batch, n_tokens)
    if n_logits > most:
        raise ValueError(f"{n_logits} rows of {n_tokens} tokens; at most {most} a call")
    if n_tokens <= able.max_batch:
        return []
    ends, done = [], 0
    while n_tokens - done > able.max_batch:
        done = min(done + able.max_batch, n_tokens - max(1, n_logits))
        ends.append(done)
    return ends


class Pace:
    """Finds the length of evaluations that cannot be stopped half-way, as on GPUs.

    most: as many tokens as take a tenth of a second, by the evaluations so far.
    """

    def __init__(self) -> None:
        self.most = _FIRST

    def took(self, n_tokens: int, seconds: float) -> None:
        """Learn from an evaluation; short ones say little."""
        if n_tokens >= self.most:
            fitting = n_tokens * _LONGEST_S / max(seconds, 1e-9)
            self.most = int(min(max(fitting, _FIRST), 2 * n_tokens))


def check_slots(items: Sequence[BatchItem], n_past: Sequence[int], n_ctx: int) -> None:
    """Raise ContextFull, before anything is appended, if an item is too long for its slot.

    n_past: tokens in the cache by slot. n_ctx: most tokens of one slot.
    """
    for item in items:
        if n_past[item.slot] + len(item.tokens) > n_ctx:
            raise ContextFull(
                f"{len(item.tokens)} tokens do not fit after {n_past[item.slot]} in slot "
                f"{item.slot} of {n_ctx} tokens; shorten the prompt"
            )
