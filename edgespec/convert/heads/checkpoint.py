"""The description of a trained draft, the same whoever trained it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from ...backends.base import FINAL
from ...errors import ConfigError, ModelError
from ...types import Ids
from .tensors import Tensor, Tensors

Kind = Literal["eagle3", "eagle", "medusa", "mlp_speculator", "dflash", "mtp", "moa"]
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
    nothing behind a token.
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
        if self.kind == "moa":
            return [()]
        if self.kind not in ("eagle3", "dflash"):
            return [(FINAL,)]
        usual = usual_layers(n_layer)
        if not self.layer_ids:
            return [usual]
        inputs, outputs = self.layer_ids, tuple(i + 1 for i in self.layer_ids)
        if self.kind == "eagle3" and usual in (inputs, outputs):
            return [usual]
        found = {"inputs": [inputs], "outputs": [outputs]}.get(self.ids_count, [inputs, outputs])
        return [reading for reading in found if max(reading) <= n_layer] or found[:1]


def usual_layers(n_layer: int) -> tuple[int, ...]:
    """Return the layers whose inputs EAGLE-3 reads where nothing else is said."""
    return (min(2, n_layer), n_layer // 2, max(0, n_layer - 3))


def check_target(head: HeadCheckpoint, hidden_size: int, vocab_size: int, n_layer: int) -> None:
    """Raise ConfigError if a head was made for a target of other sizes."""
    if head.hidden_size != hidden_size:
        _refuse(head, f"states of {head.hidden_size} numbers", f"those of {hidden_size}")
    if head.vocab_size and head.vocab_size != vocab_size:
        _refuse(head, f"a vocabulary of {head.vocab_size} tokens", f"one of {vocab_size}")
    if head.n_layer and head.n_layer != n_layer:
        _refuse(head, f"{head.n_layer} layers", f"{n_layer}")
    if (most := max(head.layers(n_layer)[0], default=0)) > n_layer:
        _refuse(head, f"at least {most} layers", f"{n_layer}")
    if head.d2t is not None and len(head.d2t) and int(head.d2t.max()) >= vocab_size:
        _refuse(head, f"a vocabulary with the token {int(head.d2t.max())}", f"{vocab_size} tokens")


def _refuse(head: HeadCheckpoint, wanted: str, found: str) -> None:
    raise ConfigError(
        f"{head.path} was made for another target: for one with {wanted}, and this one has "
        f"{found}; give the model that its card names"
    )


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
    expected = [found if n is None else n for n, found in zip(shape, tensor.shape, strict=False)]
    if len(shape) != len(tensor.shape) or list(tensor.shape) != expected:
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        raise ModelError(
            f"{path}: {name} has the shape {list(tensor.shape)}, expected [{wanted}]; config and "
            "weights belong to different heads"
        )
    return tensor
