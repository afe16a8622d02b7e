"""Measures how many logits rows an evaluation may have without changing any of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .model import LlamaCppModel

_LONG = 520  # cached tokens; from 512 on, attention may use a different kernel
_WIDEST = 16  # the most rows per evaluation that are compared with rows computed alone
_known: dict[str, int] = {}  # the results of this process so far


def most_equal_rows(model: LlamaCppModel) -> int:
    """Return the largest number of rows per evaluation for which every row has the same bits as
    when its token is evaluated alone; 1 if this fails even for two rows. The cache is empty
    afterwards.

    On CPUs, llama.cpp uses a different kernel from some number of rows on; this number depends on
    the type of the weights. Measuring takes seconds, so a process measures the same file with the
    same settings only once.
    """
    if not model.capabilities.truncate:
        return 1
    lengths = sorted({min(length, model.n_ctx - _WIDEST) for length in (8, _LONG)})
    key = repr((model.fingerprint(), lengths))
    if key not in _known:
        _known[key] = min((_equal_rows(model, n) for n in lengths if n > 0), default=1)
    return _known[key]


def _equal_rows(model: LlamaCppModel, n_past: int) -> int:
    """Return the number of `most_equal_rows`, measured after `n_past` tokens."""
    tokens = [(7 * i + 3) % model.vocab_size for i in range(n_past + _WIDEST)]
    model.decode(tokens[:n_past], n_logits=0)
    alone = [model.decode([token]).logits[0].copy() for token in tokens[n_past:]]
    n = 1
    while n < len(alone):
        model.truncate(n_past)
        rows = model.decode(tokens[n_past : n_past + n + 1], n_logits=n + 1).logits
        if not all(map(np.array_equal, rows, alone)):
            break
        n += 1
    model.truncate(0)
    return n
