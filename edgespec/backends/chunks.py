"""Limits on the number of tokens in one call of an engine."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ContextFull
from .base import BatchItem, Model

_LONGEST_S = 0.1
_FIRST = 32  # tokens


def chunk_ends(model: Model, n_tokens: int, n_logits: int) -> list[int]:
    """Split `n_tokens` tokens into native calls; return the index after the last token of each call
    except the final one. No call has more than max_batch tokens. All tokens whose rows are wanted
    are in the final call. Raises ContextFull, and ValueError for more rows than a call can return.
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
    """Adapts the length of evaluations that cannot be stopped half-way, as on GPUs.

    most: the number of tokens that take a tenth of a second, judged by the evaluations so far.
    """

    def __init__(self) -> None:
        self.most = _FIRST

    def took(self, n_tokens: int, seconds: float) -> None:
        """Learn from the time that an evaluation took. Evaluations of fewer than `most` tokens say
        little and are ignored.
        """
        if n_tokens >= self.most:
            fitting = n_tokens * _LONGEST_S / max(seconds, 1e-9)
            self.most = int(min(max(fitting, _FIRST), 2 * n_tokens))


def check_slots(items: Sequence[BatchItem], models: Sequence[Model]) -> None:
    """Raise ContextFull, before anything is appended, if an item is too long for its slot. models:
    the model of each slot.
    """
    for item in items:
        model = models[item.slot]
        if model.n_past + len(item.tokens) > model.n_ctx:
            raise ContextFull(
                f"{len(item.tokens)} tokens do not fit after {model.n_past} in slot {item.slot} of "
                f"{model.n_ctx} tokens; shorten the prompt"
            )
