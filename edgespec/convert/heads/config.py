"""Reads the config.json of a checkpoint."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ...backends.files import read_json
from ...errors import ModelError
from ...kept_files import one_line
from ...schema import convert
from .checkpoint import LayerIds

_README_BYTES = 1 << 16
_MAX_HEAD_DIM = 4096
_Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]  # of states, vocabularies, windows
_Count = Annotated[int, msgspec.Meta(ge=0, le=4096)]  # of layers, heads, tokens of a block
_Context = Annotated[int, msgspec.Meta(ge=0, le=1 << 30)]  # tokens
_Number = Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]
_Name = Annotated[str, msgspec.Meta(max_length=200)]
_Names = Annotated[list[_Name], msgspec.Meta(max_length=512)]
_Layer = Annotated[int, msgspec.Meta(ge=-4096, le=4096)]
_Layers = Annotated[list[_Layer], msgspec.Meta(max_length=512)]


class EagleConfig(msgspec.Struct):
    """The part of a config in which SpecForge and others give the layers."""

    eagle_aux_hidden_state_layer_ids: _Layers | None = None


class Config(msgspec.Struct):
    """The values of a config.json that are read; the others are for training.

    Some configs nest values: speculators in `transformer_layer_config`, models that also see in
    `text_config`, and DFlash heads in `dflash_config`. Nested values count like those of the config
    itself.
    """

    architectures: _Names = []
    model_type: _Name = ""
    speculators_model_type: _Name = ""
    hidden_size: _Size = 0
    target_hidden_size: _Size | None = None
    target_num_hidden_layers: _Count | None = None
    num_attention_heads: _Count = 0
    num_key_value_heads: _Count | None = None
    head_dim: _Count | None = None
    intermediate_size: _Size = 0
    hidden_act: _Name = "silu"
    rms_norm_eps: _Number = 1e-6
    rope_theta: _Number | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    partial_rotary_factor: _Number | None = None
    max_position_embeddings: _Context = 0
    vocab_size: _Size = 0
    draft_vocab_size: _Size | None = None
    num_hidden_layers: _Count | None = None
    norm_before_residual: bool | None = None
    norm_output: bool | None = None
    fc_norm: bool | None = None
    norm_before_fc: bool | None = None
    eagle_config: EagleConfig | None = None
    eagle_aux_hidden_state_layer_ids: _Layers | None = None
    emb_dim: _Size = 0
    inner_dim: _Size = 0
    n_predict: _Count = 0
    tie_weights: bool = False
    tie_word_embeddings: bool = False
    scale_input: bool = False
    medusa_num_heads: _Count | None = None
    medusa_num_layers: _Count | None = None
    license: _Name | None = None
    block_size: _Count = 0
    mask_token_id: int | None = None
    target_layer_ids: _Layers | None = None
    aux_hidden_state_layer_ids: _Layers | None = None
    num_target_layers: _Count | None = None
    layer_types: _Names | None = None
    sliding_window: _Size | None = None
    is_causal: bool | None = None
    causal: bool | None = None
    use_swa: bool = False
    swa_window_size: _Size | None = None
    sample_from_anchor: bool = False
    target_layer_inference: _Count = 0
    input_embedding_scale: _Number = 1.0
    output_multiplier: _Number = 1.0
    final_logit_softcapping: _Number | None = None

    @property
    def names(self) -> str:
        """The names of the architecture, separated by spaces."""
        return " ".join([*self.architectures, self.model_type, self.speculators_model_type])

    def layer_ids(self) -> tuple[tuple[int, ...], LayerIds]:
        """Return the layer ids of the config and what they count.

        vLLM's speculators count the inputs of layers. Others count as their training framework
        does, and do not say how.
        """
        ids = self.eagle_aux_hidden_state_layer_ids
        if ids is None and self.eagle_config:
            ids = self.eagle_config.eagle_aux_hidden_state_layer_ids
        return tuple(ids or ()), "inputs" if self.speculators_model_type else ""


def read_config(folder: Path) -> Config:
    """Return the config.json of a folder. If there is none, all values are the defaults.

    Raises ModelError if it is not JSON or a value has the wrong type.
    """
    path = folder / "config.json"
    if not path.is_file():
        return Config()
    fields = read_json(path)
    nested = fields.get("transformer_layer_config", fields.get("text_config"))
    if isinstance(nested, dict):
        ours = {k: v for k, v in fields.items() if k not in ("architectures", "model_type")}
        fields = nested | ours | {"architectures": fields.get("architectures", [])}
    if isinstance(block := fields.get("dflash_config"), dict):
        fields = fields | block
    known = {k: v for k, v in fields.items() if v is not None}
    return convert(known, Config, str(path), ModelError)


def rotation_of(
    path: Path, config: Config, head_dim: int, *, partial: bool = False
) -> tuple[float, ...]:
    """Return the angles that each position adds to the pairs of numbers of an attention head.

    partial: True if only a part of the numbers may be rotated. Raises ModelError for an unknown
    kind of rotation.
    """
    given = (config.rope_parameters or {}) | (config.rope_scaling or {})
    kind = str(given.get("rope_type") or given.get("type") or "default")[:80]
    try:
        theta = float(given.get("rope_theta") or config.rope_theta or 10000.0)
        share = float(given.get("partial_rotary_factor") or config.partial_rotary_factor or 1)
        if kind not in ("default", "linear", "llama3") or (share != 1 and not partial):
            what = f"{kind!r} rotations" if share == 1 else "rotations of a part of each head"
            raise ModelError(f"{path}: {what} are not known here; known: default, linear, llama3")
        if not 0 < share <= 1 or not 0 < theta < math.inf or head_dim > _MAX_HEAD_DIM:
            raise ValueError(f"{share} of {head_dim} numbers, and a base of {theta}")
        n = int(head_dim * share)
        inverse = [theta ** (-2 * i / n) for i in range(n // 2)]
        if kind == "linear":
            inverse = [each / float(given["factor"]) for each in inverse]
        if kind == "llama3":
            inverse = [_llama3(each, given) for each in inverse]
        if not all(map(math.isfinite, inverse)):
            raise ValueError("its angles are no numbers")
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise ModelError(
            f"{path}: the rotation {kind!r} is incomplete or wrong: {one_line(error)}"
        ) from None
    return tuple(inverse)


def _llama3(inverse: float, given: dict[str, Any]) -> float:
    """Return an angle as Llama 3.1 scales it: long waves by the factor, short ones not at all."""
    factor, low = float(given["factor"]), float(given["low_freq_factor"])
    high = float(given["high_freq_factor"])
    longest = float(given["original_max_position_embeddings"])
    wave = 2 * math.pi / inverse
    if wave < longest / high:
        return inverse
    if wave > longest / low:
        return inverse / factor
    smooth = (longest / wave - low) / (high - low)
    return (1 - smooth) * inverse / factor + smooth * inverse


def license_of(folder: Path, config: Config) -> str:
    """Return the licence that the config or the model card names, or "unknown" if neither does."""
    card = folder / "README.md"
    text = ""
    if card.is_file():
        with card.open("rb") as file:
            text = file.read(_README_BYTES).decode("utf-8", "replace")
    named = re.search(r"^license(?:_name)?:\s*['\"]?([\w.+-]+)", text, re.MULTILINE)
    return config.license or (named[1] if named else "unknown")
