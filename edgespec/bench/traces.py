"""Recorded answers: the target's greedy tokens, and what a draft model drafts at every position.

Replaying policies over them needs no model and has no noise.
"""

from __future__ import annotations

import gzip
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

DEPTH = 16  # of the recorded chains
AFTER_A_MISS = 7  # tokens recorded after the first wrong one: they cost time, nothing else
N_TOP = 4

Chain = list[tuple[int, float]]  # tokens with their probabilities


@dataclass(frozen=True, slots=True)
class Trace:
    """One greedy answer.

    chains: for every output position, what the draft model would draft there: (token, its
    probability at temperature 1). Chains are right up to their first difference from `output`.
    top: for every output position the target's likeliest tokens with their probabilities.
    """

    id: str
    category: str
    prompt: list[int]
    output: list[int]
    chains: list[Chain]
    top: list[Chain]


def record_question(target: Any, draft: Model, question: Question, n_tokens: int) -> list[Trace]:
    """Record all turns of a question that fit the context; `target` has a `tokenizer`."""
    tokenizer: Tokenizer = target.tokenizer
    messages: list[dict[str, str]] = []
    found = []
    for i, turn in enumerate(question.turns):
        messages.append({"role": "user", "content": turn})
        prompt = prompt_of(tokenizer, messages)
        if len(prompt) + n_tokens > min(target.n_ctx, draft.n_ctx):
            break
        answer = record(target, draft, prompt, n_tokens, tokenizer.is_eog)
        found.append(Trace(f"{question.id}.{i + 1}", question.category, prompt, *answer))
        said = b"".join(map(tokenizer.piece, answer[0])).decode("utf-8", "replace")
        messages.append({"role": "assistant", "content": said})
    return found


def record(
    target: Model, draft: Model, prompt: Sequence[int], n_tokens: int, is_eog: Callable[[int], bool]
) -> tuple[list[int], list[Chain], list[Chain]]:
    """Return the output, chains and top tokens of a greedy answer of at most `n_tokens`."""
    output, top = _answer(target, prompt, n_tokens, is_eog)
    return output, _chains(draft, list(prompt), output), top


def _answer(
    target: Model, prompt: Sequence[int], n_tokens: int, is_eog: Callable[[int], bool]
) -> tuple[list[int], list[Chain]]:
    cache = TokenCache(target)
    output: list[int] = []
    top: list[Chain] = []
    target.truncate(0)
    pending = list(prompt)
    while len(output) < n_tokens:
        row = cache.decode(pending).logits[0]
        ids, logits, _ = candidates(row, N_TOP)
        mass = float(np.exp(row - row.max()).sum(dtype=np.float64))
        top.append(
            [
                (t, round(float(np.exp(x - logits[0])) / mass, 4))
                for t, x in zip(ids, logits, strict=True)
            ]
        )
        output.append(int(row.argmax()))
        pending = output[-1:]
        if is_eog(output[-1]):
            break
    return output, top


def _chains(draft: Model, prompt: list[int], output: list[int]) -> list[Chain]:
    """Return what the draft model drafts at every position of the output.

    Made backwards: a right token is followed by the next position's chain.
    """
    forced = _forced(draft, prompt, output)
    chains: list[Chain] = [[] for _ in output]
    for i in reversed(range(len(output))):
        token, prob = forced[i]
        if token == output[i]:
            following = chains[i + 1] if i + 1 < len(output) else []
        else:
            draft.truncate(len(prompt) + i)
            following = []
            last = token
            for _ in range(min(AFTER_A_MISS, DEPTH - 1)):
                last, sure = _best(draft.decode([last]).logits[0])
                following.append((last, sure))
        chains[i] = [(token, prob), *following][:DEPTH]
    return chains


def _forced(draft: Model, prompt: list[int], output: list[int]) -> Chain:
    """Return the draft model's own choice at every position of the target's text."""
    draft.truncate(0)
    text, step = [*prompt, *output[:-1]], draft.capabilities.max_rows
    best: Chain = []
    head = len(prompt) - 1
    for i in range(0, head, draft.capabilities.max_batch):
        draft.decode(text[i : min(head, i + draft.capabilities.max_batch)], n_logits=0)
    for i in range(head, len(text), step):
        chunk = text[i : i + step]
        rows = draft.decode(chunk, n_logits=len(chunk)).logits
        best.extend(_best(rows[j]) for j in range(len(chunk)))
    return best


def _best(row: Row) -> tuple[int, float]:
    token = int(row.argmax())
    return token, round(1 / float(np.exp(row - row[token]).sum(dtype=np.float64)), 4)


def save(path: str | Path, traces: Iterable[Trace]) -> None:
    """Write answers as gzipped lines of JSON."""
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        for trace in traces:
            file.write(msgspec.json.encode(trace) + b"\n")


def load(path: str | Path) -> list[Trace]:
    """Return what `save` wrote. Raises ConfigError for anything else."""
    try:
        with gzip.open(path) as file:
            found = [msgspec.json.decode(line, type=Trace) for line in file]
    except (OSError, EOFError, zlib.error, UnicodeError, msgspec.MsgspecError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"{path} holds no recorded answers ({why}); `edgespec bench record` writes them"
        ) from None
    if not found:
        raise ConfigError(f"{path} holds no recorded answer; `edgespec bench record` writes them")
    return found
