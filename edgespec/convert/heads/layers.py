"""Tensors of decoder layers, by the names that checkpoints of heads give them."""

from __future__ import annotations

from pathlib import Path

from ...errors import ModelError, UnknownArchitecture
from .checkpoint import DecoderLayer, take
from .config import Config, rotation_of
from .tensors import Tensor, Tensors

_PROJECTIONS = {
    "self_attn.q_proj": "q", "self_attn.k_proj": "k", "self_attn.v_proj": "v",
    "self_attn.o_proj": "o", "mlp.gate_proj": "gate", "mlp.up_proj": "up", "mlp.down_proj": "down",
}  # fmt: skip
_UNUSED = ("t2d", "d2t", "rotary_emb.inv_freq")  # inv_freq is computed anew


class Weights:
    """Collects tensors of a checkpoint under the names of HeadCheckpoint.

    layer: the sizes of the layers whose tensors are taken. found: the tensors that were taken.
    """

    def __init__(self, path: Path, tensors: Tensors, layer: DecoderLayer) -> None:
        self._path, self._tensors, self.layer = path, tensors, layer
        self.found: dict[str, Tensor] = {}
        self._known: set[str] = set()

    def take(
        self, name: str, *shape: int, source: str = "", optional: bool = False, bias: str = ""
    ) -> None:
        """Take a weight and, if `bias` is not empty, its bias if there is one.

        source: its name in the checkpoint, if it is not `name`. The bias has one number for each
        row.
        """
        source = source or name
        self._known |= {f"{source}.weight", f"{source}.bias" if bias else ""}
        tensor = take(self._path, self._tensors, f"{source}.weight", *shape, optional=optional)
        if tensor:
            self.found[f"{name}.weight"] = tensor
        if bias and (tensor := take(
            self._path, self._tensors, f"{source}.bias", shape[0], optional=True
        )):  # fmt: skip
            self.found[f"{name}.bias"] = tensor

    def take_norms(self, prefix: str, *names: str, to: str = "") -> None:
        """Take the norms of a layer's states.

        prefix: the beginning of their names in the checkpoint. to: the beginning of their names
        here.
        """
        for name in names:
            self.take(f"{to}{name}", self.layer.width, source=f"{prefix}{name}")

    def take_head_norms(self, prefix: str, to: str = "") -> None:
        """Take the norms of queries and keys, which all attention heads of a layer share."""
        for name in ("q_norm", "k_norm"):
            self.take(f"{to}{name}", self.layer.head_dim, source=f"{prefix}self_attn.{name}")

    def take_projections(self, prefix: str, n_in: int, to: str = "", gated: bool = False) -> None:
        """Take the matrices of a layer whose attention reads `n_in` numbers.

        gated: True if the matrix of the queries also has a gate for each query, which scales the
        output of attention.
        """
        layer = self.layer
        n_queries, n_keys = layer.n_heads * layer.head_dim, layer.n_kv_heads * layer.head_dim
        shapes = {
            "q": (n_queries * (2 if gated else 1), n_in), "k": (n_keys, n_in), "v": (n_keys, n_in),
            "o": (layer.width, n_queries), "gate": (layer.feed_forward, layer.width),
            "up": (layer.feed_forward, layer.width), "down": (layer.width, layer.feed_forward),
        }  # fmt: skip
        for source, name in _PROJECTIONS.items():
            self.take(f"{to}{name}", *shapes[name], source=f"{prefix}{source}", bias="optional")

    def refuse_others(self, prefix: str = "") -> None:
        """Raise UnknownArchitecture if tensors were not taken whose names begin with `prefix`.

        Without them the head would guess something else.
        """
        others = [
            name for name in self._tensors
            if name.startswith(prefix) and name not in self._known and not name.endswith(_UNUSED)
        ]  # fmt: skip
        if others:
            raise UnknownArchitecture(
                f"{self._path} has tensors that are not known here: {', '.join(sorted(others)[:4])}"
                "; its architecture is not one of those that edgespec converts"
            )


def sizes_of(path: Path, config: Config, *, partial_rotation: bool = False) -> DecoderLayer:
    """Return the sizes of a layer.

    partial_rotation: True if the rotation may cover only the first numbers of each attention head.
    Raises ModelError if the config lacks a size, and UnknownArchitecture for an activation other
    than silu.
    """
    width, n_heads = config.hidden_size, config.num_attention_heads
    if min(width, n_heads, config.intermediate_size) < 1:
        raise ModelError(
            f"{path}: its config.json says no hidden_size, num_attention_heads or "
            "intermediate_size; put the head's own config.json beside it"
        )
    if config.hidden_act != "silu":
        raise UnknownArchitecture(f"{path}: its activation is {config.hidden_act}; silu is known")
    head_dim = config.head_dim or width // n_heads
    return DecoderLayer(
        width, n_heads, config.num_key_value_heads or n_heads, head_dim, config.intermediate_size,
        config.rms_norm_eps, rotation_of(path, config, head_dim, partial=partial_rotation),
    )  # fmt: skip


def check_one_layer(path: Path, n_layers: int | None) -> None:
    """Raise UnknownArchitecture for a head with several layers."""
    if (n_layers or 1) != 1:
        raise UnknownArchitecture(f"{path} has {n_layers} layers; heads of one are known here")


def vocab_size_of(path: Path, config: Config, tensors: Tensors) -> int:
    """Return the size of the target's vocabulary. Raises ModelError if nothing states it."""
    known = [tensors[n].shape[0] for n in ("embed_tokens.weight", "t2d") if n in tensors]
    size = config.vocab_size or next(iter(known), 0)
    if not size:
        raise ModelError(f"{path}: its config.json says no vocab_size; put the head's own beside")
    return size
