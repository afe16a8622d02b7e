"""Properties of a graph's kernels that nothing in its file tells: they are tried at load."""

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

_NOISE = 0.1  # logits: rows that differ more are not the same row rounded differently
_SAME = 1e-3  # logits: rows that differ less rarely change a token
_TREE = (-1, 0, 0, -1, 3)  # parents of the nodes that are tried
_ROUNDING = 1.0  # standard deviations of a row's logits: kernels further apart do more than round

Padding = Literal["never", "beside drafts", "always"]
"""When a single token is evaluated as two: never, in requests that may draft, in all."""


@dataclass(frozen=True, slots=True)
class RowNoise:
    """Differences, in logits, between rows of one token in evaluations of several widths.

    alone: of a token evaluated alone, to the same beside another. together: between widths from
    two on. spread: standard deviation of the row's logits.
    """

    alone: float = 0.0
    together: float = 0.0
    spread: float = 1.0

    def padding(self, invariant: bool) -> Padding:
        """Return when to evaluate single tokens as two. invariant: drafts must change nothing.

        Kernels for int4 weights that quantise activations round one row in another way than
        several, and both are equally far from float32 (`benchmarks.padding`): which of them
        makes a row does not matter unless rows have to be the same. Kernels that differ by more
        than rounding cannot both be near, so a text is not made of both.
        """
        if self.alone <= _SAME or self.together >= self.alone / 4:
            return "never"
        if invariant:
            return "always"
        return "beside drafts" if self.alone > _ROUNDING * self.spread else "never"

    def in_words(self, padding: Padding) -> str:
        """Return what is promised of tokens that are evaluated alone."""
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
    """Give the model a cache that its graph appends to in place, if that gives the rows of one that
    grows; else one that grows. The cache is empty afterwards.
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
    """Return the last row of tokens that are evaluated in such pieces."""
    model.truncate(0)
    tokens = _tokens(model, sum(widths))
    for width in widths:
        row = model.decode(tokens[model.n_past : model.n_past + width]).logits
    probed: npt.NDArray[Any] = row[0].copy()
    return probed


def measure_noise(model: OnnxModel) -> RowNoise:
    """Measure how a row depends on the number of tokens beside it. The cache is empty afterwards.

    On CPUs int4 kernels that quantise activations (accuracy_level 4) sum a single row in another
    way than several; widths from two on agree. No token is evaluated alone but the one that is
    looked at: its keys and values would carry the difference on.
    """
    tokens = _tokens(model, min(20, model.n_ctx))
    if len(tokens) < 5:  # no room for a draft either
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
    """Return "" if the rows of a tree's nodes are those of their paths, and the path that is kept
    goes on as a chain does; else why trees are not evaluated. The cache is empty afterwards.

    It takes a graph with a mask of every token against every other and with positions. A kernel
    that looks at neither gives other rows.
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
    """Return how many tokens a sliding window has, 0 where there is none, or one of positions."""
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
