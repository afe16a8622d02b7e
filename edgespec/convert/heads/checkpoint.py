"""The description of a trained draft, which is the same for all projects that train heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from ...backends.heads import FINAL, KINDS, Kind, TargetSizes, misfit, other_target
from ...errors import ConfigError, ModelError
from ...types import Ids
from .tensors import Tensor, Tensors

LayerIds = Literal["inputs", "outputs", ""]
"""The things that layer ids of a config count: inputs or outputs of layers, or "" if unknown."""

EMBEDDING_AND_OUTPUT = ("embed_tokens", "lm_head")
"""The matrices that a head can take from its target."""


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """The sizes of a head's layers, which are all equal.

    width: the width of a layer's states. rotation: the angle in radians that each position adds to
    each pair of numbers, [head_dim / 2], or fewer angles if only a part of each attention head is
    rotated.
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

    hidden_size, vocab_size, n_layer: the target's sizes; 0 if the checkpoint does not give them.
    borrows: the matrices that it takes from its target if the checkpoint does not have them.
    layer_ids: the layers of the target whose states are read, as in the config and counted as
    `ids_count` says; empty for the usual layers. n_heads: the most tokens that it guesses, 0 for
    any number. n_blocks: the number of residual blocks in each Medusa head. inner_size: the width
    of an MLP speculator's own states. decoder: the sizes of the layers, for kinds with attention.

    norm_before_residual: True if the residual is the normed state. norm_output: True if the state
    that is fed back is the normed one. tied: True if all depths share one set of weights, except
    for the first projection. scale_input: True if the target's state is normed first.

    parts: the layers of a Mixture of Attentions: "layers", which reads the target's keys and values
    of one token, "text" and "cross". states_first: True if MTP's fc reads the state before the
    token's embedding. mask_token: the token in place of the tokens that DFlash guesses. windows:
    for each of its layers, the distance from which on tokens are hidden, 0 for none. causal: for
    each of its layers, True if a token does not see later ones. embedding_scale, logit_scale: the
    factors of embeddings and logits. softcap: the soft limit of the scaled logits, 0 for none.

    d2t: the target's ids of the head's vocabulary [V'], or None if it is the target's vocabulary.
    weights: the tensors by names that are the same for all projects that train heads:

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

    Each name is followed by .weight or .bias.
    """

    path: Path
    kind: Kind
    weights: Tensors
    hidden_size: int
    vocab_size: int
    borrows: tuple[str, ...]
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
    def name(self) -> str:
        """The name of its folder."""
        return self.path.resolve().parent.name

    @property
    def head_vocab_size(self) -> int:
        """The number of tokens that the head can guess."""
        return self.vocab_size if self.d2t is None else len(self.d2t)

    @property
    def lacking(self) -> list[str]:
        """The names of the matrices that it takes from its target."""
        return [name for name in self.borrows if f"{name}.weight" not in self.weights]

    def array(self, name: str) -> npt.NDArray[np.float32]:
        """Read a weight and return it as float32. Raises ModelError if it is missing."""
        return self.weights[name].array().astype(np.float32, copy=False)

    def layers(self, n_layer: int) -> list[tuple[int, ...]]:
        """Return the layers of a target whose inputs the head reads, as `Model.tap` counts them.

        If the ids may count inputs or outputs, both readings are returned, the likelier first.
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
    """Return the layers whose inputs EAGLE-3 reads if the checkpoint names none."""
    return (min(2, n_layer), n_layer // 2, max(0, n_layer - 3))


def check_target(head: HeadCheckpoint, target: TargetSizes) -> None:
    """Raise ConfigError if a head does not fit a target.

    It was then made for a target of other sizes, or reads a cache that this target does not lend.
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
    """Return a tensor after checking its shape.

    shape: the expected sizes, with None for any size. Raises ModelError if the tensor has another
    shape, or is missing and not optional.
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


def with_vocabulary(head: HeadCheckpoint, tensors: Tensors) -> HeadCheckpoint:
    """Return a head with the target's ids of its tokens, if it can guess only a part of them.

    Raises ModelError.
    """
    d2t = take(head.path, tensors, "d2t", None, optional=True)
    if d2t is None:
        return head
    t2d = take(head.path, tensors, "t2d", head.vocab_size, optional=True)
    mask = t2d.array() if t2d else None
    return replace(head, d2t=absolute_ids(head.path, d2t.array(), mask, head.vocab_size))


def absolute_ids(path: Path, d2t: Ids, t2d: npt.NDArray[np.int64] | None, vocab_size: int) -> Ids:
    """Return the target's ids of a head's tokens, int64 [V'], in any order.

    d2t: the ids, or the distances that are added to 0, 1, 2, … to get the ids; most projects write
    distances. t2d: 1 for each of the target's ids that the head has and 0 for the others, or None
    if the file has no t2d. Raises ModelError if neither reading of d2t gives distinct ids within
    the vocabulary.
    """
    readings = [d2t + np.arange(len(d2t)), d2t]
    valid = [ids for ids in readings if _is_valid(ids, vocab_size)]
    if t2d is not None:
        kept = np.flatnonzero(t2d)
        valid = [ids for ids in valid if np.array_equal(np.sort(ids), kept)] or valid
    if not valid:
        raise ModelError(
            f"{path}: d2t of {len(d2t)} tokens gives no different ids below {vocab_size}, as ids "
            "or as distances; fetch the checkpoint again"
        )
    # Distances repeat wherever two neighbours of the vocabulary are kept, ids never do. Both
    # readings are possible only if none repeats.
    return valid[-1].astype(np.int64)


def _is_valid(ids: Ids, vocab_size: int) -> bool:
    in_range = not len(ids) or (int(ids.min()) >= 0 and int(ids.max()) < vocab_size)
    return in_range and len(np.unique(ids)) == len(ids)
