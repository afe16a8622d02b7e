"""Recorded answers: the target's greedy tokens, and a draft model's guesses at every position.

Policies can be replayed over them without a model and without noise.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ..backends.base import Model, Tokenizer
from ..cache.token_cache import TokenCache
from ..errors import ConfigError
from ..sampling.sampler import candidates
from ..types import Row
from .workloads import Question, prompt_of

N_TOP = 8  # tokens of the target that are recorded at each position
N_DRAFTED = 4  # tokens of a draft model that are recorded in each row
AFTER_A_MISS = 7  # draft rows recorded after a wrong token; drafts from them only cost time
_MOST_LINE = 16 << 20  # most bytes of a recorded answer

Ranked = list[tuple[int, float]]
"""The likeliest tokens of a row with their probabilities at temperature 1, the likeliest first."""


@dataclass(frozen=True, slots=True)
class Drafts:
    """A draft model's rows for an answer.

    rows: the row at every output position, after the answer's tokens before it. tails: the rows
    after a wrong token, and after the tokens that the model drafts next, for each position at which
    the likeliest token is not the answer's.
    """

    rows: list[Ranked]
    tails: dict[int, list[Ranked]]


@dataclass(frozen=True, slots=True)
class Trace:
    """One greedy answer.

    top: the target's likeliest tokens at every output position, the token of `output` first.
    drafts: the rows of each draft model, by its name.
    """

    id: str
    category: str
    prompt: list[int]
    output: list[int]
    top: list[Ranked]
    drafts: dict[str, Drafts]


def record_question(target: Any, draft: Model, question: Question, n_tokens: int) -> list[Trace]:
    """Record the answers to a question's turns, up to the first turn that does not fit the context.

    target: a model with an attribute `tokenizer`.
    """
    tokenizer: Tokenizer = target.tokenizer
    messages: list[dict[str, str]] = []
    recorded = []
    for i, turn in enumerate(question.turns):
        messages.append({"role": "user", "content": turn})
        prompt = prompt_of(tokenizer, messages)
        if len(prompt) + n_tokens + AFTER_A_MISS > min(target.n_ctx, draft.n_ctx):
            break
        answer = record(target, draft, prompt, n_tokens, tokenizer.is_eog)
        recorded.append(Trace(f"{question.id}.{i + 1}", question.category, prompt, *answer))
        said = b"".join(map(tokenizer.piece, answer[0])).decode("utf-8", "replace")
        messages.append({"role": "assistant", "content": said})
    return recorded


def record(
    target: Model, draft: Model, prompt: Sequence[int], n_tokens: int, is_eog: Callable[[int], bool]
) -> tuple[list[int], list[Ranked], dict[str, Drafts]]:
    """Return `Trace.output`, `top` and `drafts` of a greedy answer of at most `n_tokens`."""
    output, top = _answer(target, prompt, n_tokens, is_eog)
    rows = _forced(draft, prompt, output)
    return output, top, {"draft_model": Drafts(rows, _tails(draft, len(prompt), output, rows))}


def _answer(
    target: Model, prompt: Sequence[int], n_tokens: int, is_eog: Callable[[int], bool]
) -> tuple[list[int], list[Ranked]]:
    cache = TokenCache(target)
    output: list[int] = []
    top: list[Ranked] = []
    target.truncate(0)
    pending = list(prompt)
    while len(output) < n_tokens:
        top.append(_ranked(cache.decode(pending).logits[0], N_TOP))
        output.append(top[-1][0][0])
        pending = output[-1:]
        if is_eog(output[-1]):
            break
    return output, top


def _forced(draft: Model, prompt: Sequence[int], output: Sequence[int]) -> list[Ranked]:
    """Return the draft model's rows at every position of the target's text."""
    draft.truncate(0)
    text, step = [*prompt, *output[:-1]], draft.capabilities.max_rows
    ranked: list[Ranked] = []
    head = len(prompt) - 1
    for i in range(0, head, draft.capabilities.max_batch):
        draft.decode(text[i : min(head, i + draft.capabilities.max_batch)], n_logits=0)
    for i in range(head, len(text), step):
        chunk = text[i : i + step]
        rows = draft.decode(chunk, n_logits=len(chunk)).logits
        ranked.extend(_ranked(rows[j], N_DRAFTED) for j in range(len(chunk)))
    return ranked


def _tails(
    draft: Model, n_prompt: int, output: Sequence[int], rows: Sequence[Ranked]
) -> dict[int, list[Ranked]]:
    """Return `Drafts.tails`. Positions go from the last to the first, so that truncating the cache
    is enough.
    """
    tails: dict[int, list[Ranked]] = {}
    for i in reversed(range(len(output))):
        token = rows[i][0][0]
        if token != output[i]:
            draft.truncate(n_prompt + i)
            tails[i] = []
            for _ in range(AFTER_A_MISS):
                tails[i].append(_ranked(draft.decode([token]).logits[0], N_DRAFTED))
                token = tails[i][-1][0][0]
    return tails


def _ranked(row: Row, n: int) -> Ranked:
    ids, logits, _ = candidates(row, n)
    best = int(row.argmax())  # among equally likely tokens, the one that decoding takes
    ids = [best, *(token for token in ids if token != best)]
    mass = float(np.exp(row - row.max()).sum(dtype=np.float64))
    probs = [_rounded(math.exp(logit - logits[0]) / mass) for logit in logits]
    return [(t, p) for t, p in zip(ids, probs, strict=False) if p]


def _rounded(prob: float) -> float:
    """Return a probability p rounded to two significant digits of the smaller of p and 1 - p, and
    to at least three decimals.
    """
    rare = max(min(prob, 1 - prob), 1e-6)
    return round(prob, max(3, 1 - math.floor(math.log10(rare))))


def packed(traces: Iterable[Trace]) -> bytes:
    """Return traces as gzipped JSON lines."""
    return gzip.compress(b"".join(msgspec.json.encode(t) + b"\n" for t in traces), mtime=0)


def load(path: str | Path) -> list[Trace]:
    """Return the traces in a file that `packed` made. Raises ConfigError for any other file."""
    try:
        with gzip.open(path) as file:
            lines = iter(lambda: file.readline(_MOST_LINE), b"")
            traces = [msgspec.json.decode(line, type=Trace) for line in lines]
    except (
        OSError,
        EOFError,
        RecursionError,
        zlib.error,
        UnicodeError,
        msgspec.MsgspecError,
    ) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"{path} holds no recorded answers ({why}); `edgespec bench record` writes them"
        ) from None
    if not traces:
        raise ConfigError(f"{path} holds no recorded answer; `edgespec bench record` writes them")
    return traces
