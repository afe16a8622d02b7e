"""A logits row becomes a token (greedy) or a distribution over the few tokens that survive."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .config import SamplingParams
from .errors import ConfigError, DecodeError
from .types import Distribution, Ids, Logprob

Row = npt.NDArray[Any]

_GROUP = 32  # logits a group in `top_ids`


class Sampler:
    """The transforms of one request, with the history that its penalties look at.

    A row that stands behind drafted tokens is transformed with these as history: pass them
    as `ahead`. Rows are never written to.
    """

    def __init__(self, params: SamplingParams, prompt: Sequence[int], vocab_size: int) -> None:
        self.params = params
        self._has_penalties = params.has_penalties
        self._changes_rows = self._has_penalties or bool(params.logit_bias)
        self._in_prompt = set(prompt) if self._has_penalties else set()
        self._in_output: Counter[int] = Counter()
        self._bias_ids = np.fromiter(params.logit_bias.keys(), np.int64)
        self._bias = np.fromiter(params.logit_bias.values(), np.float64)
        wrong = self._bias_ids[(self._bias_ids < 0) | (self._bias_ids >= vocab_size)]
        if len(wrong):
            raise ConfigError(
                f"logit_bias names token {wrong[0]}; ids of this model are 0 … {vocab_size - 1}"
            )

    def accept(self, tokens: Sequence[int]) -> None:
        """Tokens that were emitted: history from now on."""
        if self._has_penalties:
            self._in_output.update(tokens)

    def argmax(self, row: Row, ahead: Sequence[int] = ()) -> int:
        """The likeliest token after bias and penalties; of equals the lowest id."""
        if self._changes_rows:
            row = self._adjusted(row, ahead)
        best = int(row.argmax())
        _check(row[best])
        return best

    def distribution(self, row: Row, ahead: Sequence[int] = ()) -> Distribution:
        """What the request samples from at this row, [n] survivors in ascending ids.

        Only survivors are ever soft-maxed. With top_p and no top_k one pass over the row
        finds the normaliser, and nothing else is computed of the tokens that fall away.
        """
        params = self.params
        if params.temperature == 0:
            return Distribution(np.array([self.argmax(row, ahead)]), np.ones(1))
        if self._changes_rows:
            row = self._adjusted(row, ahead)
        ids, probs = _survivors(row, params)
        if params.min_p:
            keep = probs >= params.min_p * probs[0]
            ids, probs = ids[keep], probs[keep]
        order = ids.argsort()
        ids, probs = ids[order], probs[order]
        return Distribution(ids, probs / probs.sum())

    def _adjusted(self, row: Row, ahead: Sequence[int]) -> Row:
        """A copy of the row after bias and penalties."""
        row = row.copy()
        row[self._bias_ids] += self._bias
        return self._penalised(row, ahead) if self._has_penalties else row

    def _penalised(self, row: Row, ahead: Sequence[int]) -> Row:
        params, output = self.params, self._in_output + Counter(ahead)
        if params.repetition_penalty != 1:  # Keskar et al. 2019, arXiv 1909.05858
            ids = np.fromiter(
                (t for t in self._in_prompt | output.keys() if t < len(row)), np.int64
            )
            logits = row[ids]
            r = params.repetition_penalty
            row[ids] = np.where(logits > 0, logits / r, logits * r)
        if output and (params.presence_penalty or params.frequency_penalty):
            ids = np.fromiter(output.keys(), np.int64)
            counts = np.fromiter(output.values(), np.float64)
            inside = ids < len(row)
            row[ids[inside]] -= params.presence_penalty + params.frequency_penalty * counts[inside]
        return row


def _survivors(row: Row, params: SamplingParams) -> tuple[Ids, npt.NDArray[np.float64]]:
    """Tokens left by temperature, top_k and top_p, likeliest first, with their weights
    (not normalised: the caller may cut further).
    """
    if params.top_k or params.top_p == 1:
        ids = top_ids(row, params.top_k or len(row))
        weights = _weights(row, ids, params.temperature)
        if params.top_p < 1:
            ids, weights = _nucleus(ids, weights, params.top_p * weights.sum())
        return ids, weights
    scaled = (row - row.max()) / row.dtype.type(params.temperature)
    mass = params.top_p * np.exp(scaled).sum(dtype=np.float64)
    k = 64
    while True:
        ids = top_ids(row, k)
        weights = _weights(row, ids, params.temperature)
        if len(ids) < k or k >= len(row) or weights.sum() >= mass:
            return _nucleus(ids, weights, mass)
        k *= 8


def _weights(row: Row, ids: Ids, temperature: float) -> npt.NDArray[np.float64]:
    """exp(logit / temperature) over that of the likeliest token, which comes first."""
    logits = row[ids].astype(np.float64)
    result: npt.NDArray[np.float64] = np.exp((logits - logits[0]) / temperature)
    return result


def _nucleus(
    ids: Ids, weights: npt.NDArray[np.float64], mass: float
) -> tuple[Ids, npt.NDArray[np.float64]]:
    """The shortest head of a descending list that holds `mass`; at least one token."""
    n = int((weights.cumsum() < mass).sum()) + 1
    return ids[:n], weights[:n]


def top_ids(row: Row, k: int) -> Ids:
    """Ids of the `k` largest logits, largest first, of equals the lowest id first; fewer
    where fewer are above -inf.

    The k-th largest of the maxima of k or more disjoint groups is a lower bound of the k-th
    largest logit: one pass over the row finds the maxima, and only groups that reach the
    bound are looked into.
    """
    n_groups = len(row) // _GROUP
    if n_groups < 4 * k:
        _check(row.max())
        ids = np.arange(len(row))
    else:
        maxima = row[: n_groups * _GROUP].reshape(_GROUP, n_groups).max(axis=0)
        _check(maxima.max())
        bound = np.partition(maxima, n_groups - k)[n_groups - k]
        groups = (maxima >= bound).nonzero()[0]
        inside = (np.arange(0, n_groups * _GROUP, n_groups)[:, None] + groups).reshape(-1)
        ids = np.concatenate([inside, np.arange(n_groups * _GROUP, len(row))])
        ids = ids[row[ids] >= bound]
        ids.sort()
    logits = row[ids]
    if logits.min(initial=0) == -np.inf:
        ids = ids[logits > -np.inf]
        logits = row[ids]
    return ids[np.argsort(-logits, kind="stable")[:k]]


def logprob(row: Row, token: int, n_top: int) -> Logprob:
    """Log-probabilities under the unmodified logits (before bias, penalties, temperature)."""
    top = float(row.max())
    log_z = top + float(np.log(np.exp(row - row.dtype.type(top)).sum(dtype=np.float64)))
    best = tuple((int(t), float(row[t]) - log_z) for t in top_ids(row, n_top)) if n_top else ()
    return Logprob(float(row[token]) - log_z, best)


def max_prob(row: Row) -> float:
    """Probability of the likeliest token at temperature 1."""
    return float(1 / np.exp(row - row.max()).sum(dtype=np.float64))


def _check(best: float) -> None:
    if not math.isfinite(best):
        raise DecodeError(
            f"the largest logit of a row is {best}: the model's weights or its cache are damaged, "
            "or logit_bias forbids every token"
        )
