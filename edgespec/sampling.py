"""A logits row becomes a token (greedy) or a distribution over the few tokens that survive."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .config import SamplingParams
from .errors import ConfigError, DecodeError
from .types import Distribution, Ids, Logprob, Probs, Rows

Row = npt.NDArray[Any]


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

    def likeliest(self, row: Row, ahead: Sequence[int] = ()) -> tuple[int, float]:
        """The likeliest token after bias and penalties, and its probability at temperature 1,
        both from one pass over the row.

        The probability is estimated from above: of every 32 logits only the largest counts.
        """
        if self._changes_rows:
            row = self._adjusted(row, ahead)
        group = next(g for g in (32, 16, 8, 4, 2, 1) if len(row) % g == 0)
        grouped = row.reshape(group, -1)
        maxima = grouped.max(axis=0)
        column = int(maxima.argmax())
        _check(maxima[column])
        token = int(grouped[:, column].argmax()) * len(maxima) + column
        return token, float(1 / np.exp(maxima - maxima[column]).sum())

    def distributions(self, rows: Rows, ahead: Sequence[int] = ()) -> list[Distribution]:
        """What the request samples from at the last len(rows) rows behind history + `ahead`.

        rows: [n, vocab_size]; row i has ahead[: len(ahead) - n + 1 + i] behind the history.
        Only survivors are ever soft-maxed. With top_k all rows go through the same few array
        operations; with top_p and no top_k one pass over a row finds its normaliser, and
        nothing else is computed of the tokens that fall away.
        """
        if self.params.temperature == 0:
            return [self._one_hot(row, past) for row, past in _behind(rows, ahead)]
        if self._changes_rows:
            rows = np.stack([self._adjusted(row, past) for row, past in _behind(rows, ahead)])
        if self.params.top_k:
            return self._cut(*candidates(rows, min(self.params.top_k, rows.shape[1])))
        if self.params.top_p == 1:
            return [_dense(row, self.params) for row in rows]
        return [self._cut(*_nucleus_candidates(row, self.params))[0] for row in rows]

    def _one_hot(self, row: Row, ahead: Sequence[int]) -> Distribution:
        return Distribution(np.array([self.argmax(row, ahead)]), np.ones(1))

    def _cut(self, ids: Ids, logits: Row, mass: float | None = None) -> list[Distribution]:
        """Temperature, top_p and min_p on candidates [n, k], likeliest first. `mass`: of all
        tokens, relative to the likeliest; None where the candidates are all there is.
        """
        params = self.params
        weights = np.subtract(logits, logits[:, :1], dtype=np.float64)
        weights /= params.temperature
        np.exp(weights, out=weights)
        cumulated = weights.cumsum(axis=1)
        return [
            _head(i, w, c, params, c[-1] if mass is None else mass)
            for i, w, c in zip(ids, weights, cumulated, strict=True)
        ]

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


def _head(
    ids: Ids, weights: Probs, cumulated: Probs, params: SamplingParams, mass: float
) -> Distribution:
    """The tokens that top_p and min_p leave of a descending list, in ascending ids."""
    n = len(ids)
    if params.top_p < 1:
        n = min(n, int(cumulated.searchsorted(params.top_p * mass)) + 1)
    if params.min_p:
        n = min(n, int((weights >= params.min_p).sum()))
    if n == 1:
        return Distribution(ids[:1], weights[:1])  # the likeliest has weight 1
    order = ids[:n].argsort()
    return Distribution(ids[order], weights[order] / cumulated[n - 1])


def _behind(rows: Rows, ahead: Sequence[int]) -> Iterator[tuple[Row, Sequence[int]]]:
    """Each row with the part of `ahead` that stands before it."""
    first = len(ahead) - len(rows) + 1
    return ((row, ahead[: first + i]) for i, row in enumerate(rows))


def _dense(row: Row, params: SamplingParams) -> Distribution:
    """Every token survives, or those that min_p leaves."""
    top = row.max()
    _check(top)
    weights = np.exp((row.astype(np.float64) - top) / params.temperature)
    ids = np.arange(len(row))
    if params.min_p:
        ids = (weights >= params.min_p).nonzero()[0]
        weights = weights[ids]
    return Distribution(ids, weights / weights.sum())


def _nucleus_candidates(row: Row, params: SamplingParams) -> tuple[Ids, Row, float]:
    """As many of the likeliest tokens as top_p can need, [1, k], and the mass of all."""
    scaled = (row - row.max()) / row.dtype.type(params.temperature)
    mass = float(np.exp(scaled).sum(dtype=np.float64))
    k = min(64, len(row))
    while True:
        ids, logits = candidates(row[None], k)
        kept = np.exp((logits.astype(np.float64) - logits[0, 0]) / params.temperature).sum()
        if k == len(row) or kept >= params.top_p * mass:
            return ids, logits, mass
        k = min(8 * k, len(row))


def candidates(rows: Rows, k: int) -> tuple[Ids, Rows]:
    """Ids [n, k] and logits [n, k] of each row's `k` largest logits, largest first. Raises
    DecodeError where a row has none above -inf, or a NaN.

    The k largest lie in the k groups with the largest maxima: one pass over the rows finds
    the maxima, and only those groups are sorted.
    """
    n, size = rows.shape
    group = next((g for g in (32, 16, 8, 4, 2) if size % g == 0 and size // g >= 4 * k), 1)
    width = size // group
    grouped = rows.reshape(n, group, width)
    if group == 1:
        ids = rows.argsort(axis=1)[:, : -k - 1 : -1]
        logits = np.take_along_axis(rows, ids, 1)
    else:
        maxima = grouped.max(axis=1)
        chosen = maxima.argpartition(width - k, axis=1)[:, width - k :]
        row = np.arange(n)[:, None]
        inside = grouped[row, :, chosen].reshape(n, k * group)
        order = inside.argsort(axis=1)[:, : -k - 1 : -1]
        ids = order % group * width + chosen[row, order // group]
        logits = inside[row, order]
    for best in logits[:, 0]:
        _check(best)
    return ids, logits


def logprob(row: Row, token: int, n_top: int) -> Logprob:
    """Log-probabilities under the unmodified logits (before bias, penalties, temperature)."""
    top = float(row.max())
    log_z = top + float(np.log(np.exp(row - row.dtype.type(top)).sum(dtype=np.float64)))
    best: tuple[tuple[int, float], ...] = ()
    if n_top:
        ids, logits = candidates(row[None], min(n_top, len(row)))
        best = tuple((int(t), float(x) - log_z) for t, x in zip(ids[0], logits[0], strict=True))
    return Logprob(float(row[token]) - log_z, best)


def _check(best: float) -> None:
    if not math.isfinite(best):
        raise DecodeError(
            f"the largest logit of a row is {best}: the model's weights or its cache are damaged, "
            "or logit_bias forbids every token"
        )
