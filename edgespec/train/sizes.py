"""The sizes of heads, and the shapes of their weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

Shapes = Mapping[str, tuple[int, ...]]
"""The shapes of the trained weights by name; all matrices are [out, in]."""

ATTENTION = "midlayer.self_attn"


class Sizes(NamedTuple):
    """The sizes of a head.

    hidden_size: the width of the target's states. n_drafted: the tokens that the head can draft.
    n_ahead: the tokens of a draft that it is trained for. The others are those of the layer of an
    EAGLE-3 head; eps: of all its norms.
    """

    hidden_size: int
    n_drafted: int
    n_ahead: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    feed_forward: int
    eps: float
    rope_base: float

    @property
    def rotation(self) -> list[float]:
        """The angle that each position adds to each pair of numbers, [head_dim / 2]; number i is
        paired with number i + head_dim / 2.
        """
        return [self.rope_base ** (-2 * i / self.head_dim) for i in range(self.head_dim // 2)]


def _eagle3(sizes: Sizes) -> Shapes:
    d, ff = sizes.hidden_size, sizes.feed_forward
    queries, keys = sizes.n_heads * sizes.head_dim, sizes.n_kv_heads * sizes.head_dim
    return {
        "fc.weight": (d, 3 * d),
        f"{ATTENTION}.q_proj.weight": (queries, 2 * d),
        f"{ATTENTION}.k_proj.weight": (keys, 2 * d),
        f"{ATTENTION}.v_proj.weight": (keys, 2 * d),
        f"{ATTENTION}.o_proj.weight": (d, queries),
        "midlayer.mlp.gate_proj.weight": (ff, d),
        "midlayer.mlp.up_proj.weight": (ff, d),
        "midlayer.mlp.down_proj.weight": (d, ff),
        "midlayer.input_layernorm.weight": (d,),
        "midlayer.hidden_norm.weight": (d,),
        "midlayer.post_attention_layernorm.weight": (d,),
        "norm.weight": (d,),
        "lm_head.weight": (sizes.n_drafted, d),
    }


def _medusa(sizes: Sizes) -> Shapes:
    d = sizes.hidden_size
    blocks: dict[str, tuple[int, ...]] = {}
    for i in range(sizes.n_ahead):
        blocks |= {f"{i}.linear.weight": (d, d), f"{i}.linear.bias": (d,)}
    return blocks | {"lm_head.weight": (sizes.n_drafted, d)}


def _mlp(sizes: Sizes) -> Shapes:
    d = sizes.hidden_size
    projections = {f"proj.{i}.weight": (d, d) for i in range(min(sizes.n_ahead, 2))}
    norm = {"ln.0.weight": (d,), "ln.0.bias": (d,)}
    return projections | norm | {"head.0.weight": (sizes.n_drafted, d)}


SHAPES = {"eagle3": _eagle3, "medusa": _medusa, "mlp": _mlp}
"""A function from Sizes to Shapes for each network; a network's file has its name."""
