"""EAGLE-1, EAGLE-2 and EAGLE-3 (arXiv 2401.15077, 2406.16858, 2503.01840), as SafeAILab, SpecForge,
AngelSlim and vLLM's speculators write them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ...errors import ModelError, UnknownArchitecture
from .checkpoint import DecoderLayer, HeadCheckpoint, take
from .config import Config, license_of, rotation_of
from .tensors import Tensor, Tensors
from .vocabulary import absolute_ids

_LAYERS = ("midlayer.", "layers.0.")
_PROJECTIONS = {
    "self_attn.q_proj": "q", "self_attn.k_proj": "k", "self_attn.v_proj": "v",
    "self_attn.o_proj": "o", "mlp.gate_proj": "gate", "mlp.up_proj": "up", "mlp.down_proj": "down",
}  # fmt: skip
_UNUSED = ("t2d", "d2t", "rotary_emb.inv_freq")  # the last are made anew


def read_eagle3(path: Path, tensors: Tensors, config: Config) -> HeadCheckpoint:
    """Return the description of an EAGLE-3 head. Raises ModelError."""
    hidden = config.target_hidden_size or config.hidden_size
    layer = _decoder(path, tensors, config)
    ids, ids_count = config.layer_ids()
    n_taps = len(ids) or 3
    weights = _Weights(path, tensors, layer)
    weights.take("fc", layer.width, n_taps * hidden, bias="optional")
    if config.fc_norm or "fc_norm.0.weight" in tensors:
        for i in range(n_taps):
            weights.take(f"fc_norm.{i}", hidden)
    elif config.norm_before_fc or "input_norm.weight" in tensors:
        weights.take("input_norm", n_taps * hidden)
    for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        weights.take_of_layer(name, layer.width)
    weights.take_projections(2 * layer.width)
    weights.take("norm", layer.width)
    vocab_size = _vocab_size(path, config, tensors)
    head = HeadCheckpoint(
        path, "eagle3", weights.found, hidden, vocab_size,
        config.target_num_hidden_layers or 0, ids, ids_count, decoder=layer,
        norm_before_residual=bool(config.norm_before_residual),
        norm_output=bool(config.norm_output),
        n_ctx_train=config.max_position_embeddings, license=license_of(path.parent, config),
    )  # fmt: skip
    if d2t := take(path, tensors, "d2t", None, optional=True):
        t2d = take(path, tensors, "t2d", vocab_size, optional=True)
        mask = t2d.array() if t2d else None
        head = replace(head, d2t=absolute_ids(path, d2t.array(), mask, vocab_size))
    weights.take("lm_head", head.head_vocab_size, layer.width, optional=head.d2t is None)
    weights.take("embed_tokens", vocab_size, layer.width, optional=True)
    if "embed_tokens.weight" not in weights.found and layer.width != hidden:
        raise ModelError(
            f"{path}: embed_tokens.weight is missing, and the target's embedding of {hidden} "
            f"numbers does not fit states of {layer.width}"
        )
    weights.refuse_others()
    return head


def read_eagle(path: Path, tensors: Tensors, config: Config) -> HeadCheckpoint:
    """Return the description of an EAGLE-1 or EAGLE-2 head, which are the same. Raises
    ModelError.
    """
    layer = _decoder(path, tensors, config)
    weights = _Weights(path, tensors, layer)
    weights.take("fc", layer.width, 2 * layer.width, bias="optional")
    weights.take_of_layer("post_attention_layernorm", layer.width)
    weights.take_projections(layer.width)
    vocab_size = _vocab_size(path, config, tensors)
    weights.take("embed_tokens", vocab_size, layer.width, optional=True)
    weights.take("lm_head", vocab_size, layer.width, optional=True)
    weights.refuse_others()
    return HeadCheckpoint(
        path, "eagle", weights.found, layer.width, vocab_size, decoder=layer,
        n_ctx_train=config.max_position_embeddings, license=license_of(path.parent, config),
    )  # fmt: skip


class _Weights:
    """Tensors that were found, by the names of HeadCheckpoint."""

    def __init__(self, path: Path, tensors: Tensors, layer: DecoderLayer) -> None:
        self._path, self._tensors, self._layer = path, tensors, layer
        self._prefix = next(p for p in _LAYERS if any(n.startswith(p) for n in tensors))
        self.found: dict[str, Tensor] = {}
        self._known: set[str] = set()

    def take(
        self, name: str, *shape: int, source: str = "", optional: bool = False, bias: str = ""
    ) -> None:
        """Take a weight, and its bias of as many numbers as it has rows where one may be there."""
        source = source or name
        self._known |= {f"{source}.weight", f"{source}.bias" if bias else ""}
        found = take(self._path, self._tensors, f"{source}.weight", *shape, optional=optional)
        if found:
            self.found[f"{name}.weight"] = found
        if bias and (found := take(
            self._path, self._tensors, f"{source}.bias", shape[0], optional=True
        )):  # fmt: skip
            self.found[f"{name}.bias"] = found

    def take_of_layer(self, name: str, size: int) -> None:
        """Take a norm of the layer."""
        self.take(name, size, source=f"{self._prefix}{name}")

    def take_projections(self, n_in: int) -> None:
        """Take the matrices of the layer, whose attention reads `n_in` numbers."""
        layer = self._layer
        n_queries, n_keys = layer.n_heads * layer.head_dim, layer.n_kv_heads * layer.head_dim
        shapes = {
            "q": (n_queries, n_in), "k": (n_keys, n_in), "v": (n_keys, n_in),
            "o": (layer.width, n_queries), "gate": (layer.feed_forward, layer.width),
            "up": (layer.feed_forward, layer.width), "down": (layer.width, layer.feed_forward),
        }  # fmt: skip
        for source, name in _PROJECTIONS.items():
            self.take(name, *shapes[name], source=f"{self._prefix}{source}", bias="optional")

    def refuse_others(self) -> None:
        """Raise UnknownArchitecture for tensors that would be left out: the head would guess
        something else without them.
        """
        others = [n for n in self._tensors if n not in self._known and not n.endswith(_UNUSED)]
        if others:
            raise UnknownArchitecture(
                f"{self._path} has tensors that are not known here: {', '.join(sorted(others)[:4])}"
                "; its architecture is not one of those that edgespec converts"
            )


def _decoder(path: Path, tensors: Tensors, config: Config) -> DecoderLayer:
    """Return the sizes of the layer. Raises ModelError where the config does not tell them."""
    width, n_heads = config.hidden_size, config.num_attention_heads
    if min(width, n_heads, config.intermediate_size) < 1:
        raise ModelError(
            f"{path}: its config.json says no hidden_size, num_attention_heads or "
            "intermediate_size; put the head's own config.json beside it"
        )
    if config.hidden_act != "silu":
        raise UnknownArchitecture(f"{path}: its activation is {config.hidden_act}; silu is known")
    if (config.num_hidden_layers or 1) != 1:
        raise UnknownArchitecture(
            f"{path} has {config.num_hidden_layers} layers; heads of one are known here"
        )
    head_dim = config.head_dim or width // n_heads
    return DecoderLayer(
        width, n_heads, config.num_key_value_heads or n_heads, head_dim, config.intermediate_size,
        config.rms_norm_eps, rotation_of(path, config, head_dim),
    )  # fmt: skip


def _vocab_size(path: Path, config: Config, tensors: Tensors) -> int:
    """Return the size of the target's vocabulary. Raises ModelError where nothing says it."""
    known = [tensors[n].shape[0] for n in ("embed_tokens.weight", "t2d") if n in tensors]
    found = config.vocab_size or next(iter(known), 0)
    if not found:
        raise ModelError(f"{path}: its config.json says no vocab_size; put the head's own beside")
    return found
