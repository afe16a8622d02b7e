"""The description of a trained draft, the same whoever trained it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from ...backends.heads import FINAL, KINDS, Kind, TargetSizes, misfit, other_target
from ...errors import ConfigError, ModelError
from ...types import Ids
from .tensors import Tensor, Tensors

LayerIds = Literal["inputs", "outputs", ""]
"""What the layer ids of a config count: the inputs of layers, their outputs; "": it is not said."""


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """The sizes of a head's layers, which are alike. width: of its states. rotation: the angle in
    radians that a position adds to each pair of numbers, [head_dim / 2], or fewer where not all of
    a head is rotated.
    """

    width: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    feed_forward: int
    eps: float
    rotation: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class HeadCheckpoint:
    """A trained draft.

    hidden_size, vocab_size, n_layer: the target's; 0 where the checkpoint does not say. layer_ids:
    of the target's layers whose states are read, as the config has them, counted as
    `ids_count` says; none: the usual ones. n_heads: how many tokens it guesses at most, 0 for any
    number. n_blocks: residual blocks of each of Medusa's heads. inner_size: of an MLP speculator's
    own states. decoder: of the kinds that have layers of attention.

    norm_before_residual: the residual is the normed state. norm_output: the state that is fed back
    is the normed one. tied: one set of weights for all depths but the first projection.
    scale_input: the target's state is normed first.

    parts: the layers of a Mixture of Attentions: "layers", over the target's keys and values of one
    token, "text" and "cross". states_first: MTP's fc reads a state before the token's embedding.
    mask_token: stands for the tokens that DFlash guesses. windows: of each of its layers, the
    distance from which on places are out of sight, 0 for none. causal: of each, whether it sees
    nothing after a token.
    embedding_scale, logit_scale: embeddings and logits are multiplied by them; then logits are cut
    softly at `softcap`, 0 for not.

    d2t: the target's ids of the head's vocabulary [V'], None where it is the target's. weights: by
    a name that is the same whoever trained it:

        EAGLE             embed_tokens, fc, fc_norm.I, input_norm, input_layernorm, hidden_norm,
                          post_attention_layernorm, q, k, v, o, gate, up, down, norm, lm_head
        Medusa            I.J.linear, I.lm_head
        MLP speculators   emb.I, proj.I, ln.I, head.I
        DFlash            fc, hidden_norm, norm, embed_tokens, lm_head, and for layer I
                          I.input_layernorm, I.post_attention_layernorm, I.q_norm, I.k_norm,
                          I.q, I.k, I.v, I.o, I.gate, I.up, I.down
        MoA               embed_tokens, lm_head, project, and for each of its parts P
                          P.input_layernorm, P.post_attention_layernorm, P.q, P.k, P.v, P.o,
                          P.gate, P.up, P.down
        MTP               embed_tokens, token_norm, hidden_norm, fc, input_layernorm, q_norm,
                          k_norm, q, k, v, attention_gate, o, post_attention_layernorm, gate, up,
                          down, norm, lm_head

    each followed by .weight or .bias. Embedding and lm_head are the target's where they lack.
    """

    path: Path
    kind: Kind
    weights: Tensors
    hidden_size: int
    vocab_size: int
    n_layer: int = 0
    layer_ids: tuple[int, ...] = ()
    ids_count: LayerIds = ""
    n_heads: int = 0
    n_blocks: int = 0
    inner_size: int = 0
    decoder: DecoderLayer | None = None
    norm_before_residual: bool = False
    norm_output: bool = False
    tied: bool = False
    scale_input: bool = False
    parts: Mapping[str, DecoderLayer] = field(default_factory=dict)
    states_first: bool = False
    mask_token: int = 0
    windows: tuple[int, ...] = ()
    causal: tuple[bool, ...] = ()
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    softcap: float = 0.0
    d2t: Ids | None = None
    n_ctx_train: int = 0
    license: str = "unknown"

    @property
    def head_vocab_size(self) -> int:
        """The number of tokens that it can guess."""
        return self.vocab_size if self.d2t is None else len(self.d2t)

    def array(self, name: str) -> npt.NDArray[np.float32]:
        """Read a weight, float32. Raises ModelError where it is missing."""
        return self.weights[name].array().astype(np.float32, copy=False)

    def layers(self, n_layer: int) -> list[tuple[int, ...]]:
        """Return the inputs of which layers of a target it reads, as `Model.tap` counts
        them; both readings, the likelier first, where the ids may be of inputs or of outputs.
        """
        reads = KINDS[self.kind].reads
        if reads != "layers":
            return [(FINAL,)] if reads == "final" else [()]
        usual = usual_layers(n_layer)
        if not self.layer_ids:
            return [usual]
        inputs, outputs = self.layer_ids, tuple(i + 1 for i in self.layer_ids)
        if self.kind == "eagle3" and usual in (inputs, outputs):
            return [usual]
        readings = {"inputs": [inputs], "outputs": [outputs]}.get(self.ids_count, [inputs, outputs])
        return [reading for reading in readings if max(reading) <= n_layer] or readings[:1]


def usual_layers(n_layer: int) -> tuple[int, ...]:
    """Return the layers whose inputs EAGLE-3 reads where nothing else is said."""
    return (min(2, n_layer), n_layer // 2, max(0, n_layer - 3))


def check_target(head: HeadCheckpoint, target: TargetSizes) -> None:
    """Raise ConfigError if a head was made for a target of other sizes, or reads a cache that this
    one does not lend.
    """
    cached = head.parts["layers"].width if head.parts else 0
    made_for = TargetSizes(head.hidden_size, head.vocab_size, head.n_layer, cached)
    why = misfit(made_for, head.layers(target.n_layer)[0], target)
    needed = int(head.d2t.max()) + 1 if head.d2t is not None and len(head.d2t) else 0
    if not why and needed > target.vocab_size:
        why = other_target(f"at least {needed} tokens of vocabulary", target.vocab_size)
    if not why and cached and not target.cached_size:
        why = f"reads each layer's {cached} keys and values, and only ONNX models lend theirs"
    if why:
        raise ConfigError(f"{head.path} {why}; give the model that its card names")


def take(
    path: Path, tensors: Tensors, name: str, *shape: int | None, optional: bool = False
) -> Tensor | None:
    """Return a tensor after checking its shape. None: any size. Raises ModelError where it is
    missing, unless it is optional, or has another shape.
    """
    tensor = tensors.get(name)
    if tensor is None:
        if optional:
            return None
        raise ModelError(f"{path}: the tensor {name} is missing; fetch the checkpoint again")
    expected = [size if n is None else n for n, size in zip(shape, tensor.shape, strict=False)]
    if len(shape) != len(tensor.shape) or list(tensor.shape) != expected:
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        raise ModelError(
            f"{path}: {name} has the shape {list(tensor.shape)}, expected [{wanted}]; config and "
            "weights belong to different heads"
        )
    return tensor
