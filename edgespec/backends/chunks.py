"""How many tokens an engine is given at a time."""

from __future__ import annotations

from ..errors import ContextFull
from .base import Model


def ends(model: Model, n_tokens: int, n_logits: int) -> list[int]:
    """Where calls have to end, but for the last one, that evaluate so many tokens: none has more
    than max_batch, and none ends between the wanted rows. Raises ContextFull, and ValueError for
    more rows than there can be.
    """
    if model.n_past + n_tokens > model.n_ctx:
        raise ContextFull(
            f"{n_tokens} tokens do not fit behind {model.n_past} in a context of {model.n_ctx}; "
            "load the model with a larger n_ctx or shorten the prompt"
        )
    able = model.capabilities
    most = min(able.max_rows, able.max_batch, n_tokens)
    if n_logits > most:
        raise ValueError(f"{n_logits} rows of {n_tokens} tokens; at most {most} a call")
    found, done = [], 0
    while n_tokens - done > able.max_batch:
        done = min(done + able.max_batch, n_tokens - max(1, n_logits))
        found.append(done)
    return found
