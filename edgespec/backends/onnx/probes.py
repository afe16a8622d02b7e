"""Properties of a graph's kernels that its file does not state; they are measured at load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from ...errors import DecodeError
from .cache import GrownCache, SharedCache
from .companions import settings
from .session import logger

if TYPE_CHECKING:
    from .model import OnnxModel

_NOISE = 0.1  # logits; a larger difference between rows is more than rounding
_SAME = 1e-3  # logits; smaller differences between rows rarely change a token
_TREE = (-1, 0, 0, -1, 3)  # the parents of the tree that is tried
_ROUNDING = 1.0  # standard deviations of a row's logits; a larger difference is more than rounding

Padding = Literal["never", "beside drafts", "always"]
"""The requests that evaluate a single token as two: none, those that may draft, or all."""


@dataclass(frozen=True, slots=True)
class RowNoise:
    """The differences, in logits, between one token's rows in evaluations of different widths.

    alone: the difference between the token evaluated alone and evaluated with another one.
    together: the largest difference between widths of two and more. spread: the standard deviation
    of the row's logits.
    """

    alone: float = 0.0
    together: float = 0.0
    spread: float = 1.0

    def padding(self, invariant: bool) -> Padding:
        """Return the kinds of requests in which a single token has to be evaluated as two tokens.
        invariant: drafts must not change any row.

        Kernels for int4 weights that quantise activations round a single row differently from
        several rows, and both are equally far from float32 (`benchmarks.padding`). So either kernel
        may compute a row, unless rows have to be the same. If the kernels differ by more than
        rounding, they cannot both be near float32, and one text must not mix them.
        """
        if self.alone <= _SAME or self.together >= self.alone / 4:
            return "never"
        if invariant:
            return "always"
        return "beside drafts" if self.alone > _ROUNDING * self.spread else "never"

    def in_words(self, padding: Padding) -> str:
        """Return a description of how single tokens are evaluated and how much their rows may
        differ.
        """
        if padding == "beside drafts":
            return (
                f"evaluated as two beside drafts, for alone their rows differ by {self.alone:.2g}, "
                "which is more than rounding"
            )
        noise = max(self.together, 0.0 if padding == "always" else self.alone)
        how = "evaluated alone" if padding == "never" else "evaluated as two"
        if noise > _SAME:
            return f"{how}, rows differ by {noise:.2g}: near ties may fall otherwise beside drafts"
        if padding == "always":
            return f"{how}, so that drafts change nothing"
        return f"{how}, the same rows as among others"


def choose_cache(model: OnnxModel) -> None:
    """Choose the model's cache: a `SharedCache` if the graph can append to it in place with the
    same rows as with a `GrownCache`, else a `GrownCache`. The cache is empty afterwards.
    """
    expected = _probe(model, 2, 1)
    try:
        model.use(SharedCache(model.graph, model.device, model.n_ctx + 2))
        row = _probe(model, 2, 1)
    except DecodeError as error:
        logger.debug("%s cannot append in place: %s", model.path, error)
        row = None
    if row is None or not np.allclose(row, expected, atol=_NOISE):
        model.use(GrownCache(model.graph, model.device))
    model.truncate(0)


def _probe(model: OnnxModel, *widths: int) -> npt.NDArray[Any]:
    """Evaluate tokens in pieces of these widths, and return the last row."""
    model.truncate(0)
    tokens = _tokens(model, sum(widths))
    for width in widths:
        row = model.decode(tokens[model.n_past : model.n_past + width]).logits
    probed: npt.NDArray[Any] = row[0].copy()
    return probed


def measure_noise(model: OnnxModel) -> RowNoise:
    """Measure how a row depends on the number of tokens that are evaluated together. The cache is
    empty afterwards.

    On CPUs, int4 kernels that quantise activations (accuracy_level 4) sum a single row differently
    from several rows; widths of two and more agree. Only the measured token is evaluated alone:
    other tokens that were evaluated alone would change the row through their keys and values.
    """
    tokens = _tokens(model, min(20, model.n_ctx))
    if len(tokens) < 5:  # too few for a draft, too
        return RowNoise()
    model.decode(tokens[:3], n_logits=0)

    def first(width: int) -> npt.NDArray[Any]:
        row: npt.NDArray[Any] = model.decode(tokens[3 : 3 + width], n_logits=width).logits[0].copy()
        model.truncate(3)
        return row

    several, alone = first(2), first(1)
    others = [first(n) for n in (3, 4, 9, 17) if n <= len(tokens) - 3]
    model.truncate(0)
    together = max((float(abs(several - other).max()) for other in others), default=0.0)
    return RowNoise(float(abs(several - alone).max()), together, float(several.std()))


def obstacle_to_trees(model: OnnxModel) -> str:
    """Return the reason why this model cannot evaluate trees, or "" if it can. The cache is empty
    afterwards.

    The graph must have inputs for positions and for a mask of every token against every other. Then
    a tree is tried: the rows of its nodes must equal the rows of their paths, and the path that is
    kept must continue as a chain does. A kernel that ignores the mask or the positions returns
    different rows.
    """
    inputs, window = model.graph.inputs, _window(model)
    if not model.graph.mask or "position_ids" not in inputs:
        return "the graph takes no attention_bias and position_ids (edgespec convert --trees)"
    if model.n_ctx < len(_TREE) + 3:
        return "the context is too short"
    if model.config.batch_invariant:
        return "sums over a tree's masked places round in another way (batch_invariant)"
    if 0 < window < model.n_ctx:
        return f"its window of {window} tokens may count places in the cache"
    try:
        return "" if _tree_equals_paths(model) else "rows of nodes are not those of their paths"
    except DecodeError as error:
        logger.debug("%s takes no trees: %s", model.path, error)
        return "the kernel refuses them"
    finally:
        model.truncate(0)


def _window(model: OnnxModel) -> int:
    """Return the length of the sliding window in tokens, 0 if there is none or if it counts
    positions.
    """
    config = settings(model.path.parent)
    if model.windows == "positions" or config.get("use_sliding_window") is False:
        return 0
    return int(config.get("sliding_window") or 0)


def _tree_equals_paths(model: OnnxModel) -> bool:
    start, nodes = (tokens := _tokens(model, len(_TREE) + 3))[:3], tokens[3:]
    rows = model.decode_tree(tokens, _TREE).logits.copy()
    model.keep((3, 4))
    after = model.decode(tokens[:2], 2).logits.copy()
    same = True
    for path in ((0, 1), (0, 2), (3, 4)):
        model.truncate(len(start) - 1)
        chain = model.decode([start[-1], *(nodes[node] for node in path)], 3).logits
        same = same and _alike(rows[[0, *(node + 1 for node in path)]], chain)
    return same and _alike(after, model.decode(tokens[:2], 2).logits)


def _alike(found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> bool:
    """Return True if rows differ by no more than rounding."""
    return bool((found - expected).std() <= 0.1 * expected.std())


def _tokens(model: OnnxModel, n: int) -> list[int]:
    return [(7 * i + 3) % model.vocab_size for i in range(n)]
