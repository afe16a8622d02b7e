"""The program that writes a trained EAGLE-3 head as a GGUF (see convert/program.py).

It needs gguf and safetensors. Its job has "checkpoint" and "target", the paths of the head's
model.safetensors and of the target's GGUF, from which the vocabulary is copied; "sizes", the fields
of Sizes; "layers" of the target that the head reads; "n_ctx"; "type", the number format of the
matrices; "name", "license" and "out".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..convert.program import tell

NAMES = {
    "fc": "fc",
    "midlayer.self_attn.q_proj": "blk.0.attn_q",
    "midlayer.self_attn.k_proj": "blk.0.attn_k",
    "midlayer.self_attn.v_proj": "blk.0.attn_v",
    "midlayer.self_attn.o_proj": "blk.0.attn_output",
    "midlayer.mlp.gate_proj": "blk.0.ffn_gate",
    "midlayer.mlp.up_proj": "blk.0.ffn_up",
    "midlayer.mlp.down_proj": "blk.0.ffn_down",
    "midlayer.input_layernorm": "blk.0.attn_norm",
    "midlayer.hidden_norm": "blk.0.attn_norm_2",
    "midlayer.post_attention_layernorm": "blk.0.ffn_norm",
    "norm": "output_norm",
    "lm_head": "output",
}
"""llama.cpp's name of each weight."""

FLOATS = ("F32", "F16", "BF16")
_WRITTEN = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
_LARGER = {"1": "Q4_0", "2": "Q4_0", "3": "Q4_0", "4": "Q5_0", "5": "Q5_1", "6": "Q8_0"}
"""The type that takes the place of another one, by the bits in the name of that one."""


def main(job: dict[str, Any]) -> None:
    """Write the head that the job describes."""
    import gguf
    from safetensors.numpy import load_file

    tell(step="writing the head as a GGUF")
    sizes, weights = job["sizes"], load_file(job["checkpoint"])
    writer = gguf.GGUFWriter(job["out"], "eagle3")
    add_metadata(writer, job, 1)
    writer.add_array("eagle3.target_layers", job["layers"])
    writer.add_uint32("eagle3.target_hidden_size", sizes["hidden_size"])
    target = gguf.GGUFReader(job["target"])
    copy_fields(
        writer, target, lambda key: key.startswith("tokenizer.") and "chat_template" not in key
    )
    for name, given in NAMES.items():
        weight = weights[f"{name}.weight"].astype(np.float32)
        for letter, n_heads in (("q", sizes["n_heads"]), ("k", sizes["n_kv_heads"])):
            if name.endswith(f"self_attn.{letter}_proj"):
                weight = paired(weight, n_heads)
        add_weight(writer, f"{given}.weight", weight, job["type"])
    distances = weights["d2t"].astype(np.int64)
    writer.add_tensor("d2t", distances + np.arange(len(distances)))  # the ids themselves
    finish(writer)


def finish(writer: Any) -> None:
    """Write the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_metadata(writer: Any, job: dict[str, Any], n_layers: int) -> None:
    """Write the sizes of a head or a model."""
    sizes = job["sizes"]
    writer.add_name(job["name"])
    writer.add_license(job["license"])
    writer.add_context_length(job["n_ctx"])
    writer.add_block_count(n_layers)
    writer.add_embedding_length(sizes["hidden_size"])
    writer.add_feed_forward_length(sizes["feed_forward"])
    writer.add_head_count(sizes["n_heads"])
    writer.add_head_count_kv(sizes["n_kv_heads"])
    writer.add_key_length(sizes["head_dim"])
    writer.add_value_length(sizes["head_dim"])
    writer.add_layer_norm_rms_eps(sizes["eps"])
    writer.add_rope_dimension_count(sizes["head_dim"])
    writer.add_rope_freq_base(sizes["rope_base"])


def copy_fields(writer: Any, source: Any, is_wanted: Callable[[str], bool]) -> None:
    """Copy the wanted metadata of a GGUF."""
    import gguf

    for key, field in source.fields.items():
        if is_wanted(key):
            kind = field.types[0]
            element = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), kind, element)


def tensor_names(architecture: str, n_layers: int) -> Callable[[str], str]:
    """Return a function from transformers' name of a tensor to llama.cpp's, "None" for none."""
    import gguf

    known = {name: each for each, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(known[architecture], n_layers)
    return lambda name: str(names.get_name(name, try_suffixes=(".weight", ".bias")))


def paired(weight: npt.NDArray[np.float32], n_heads: int) -> npt.NDArray[np.float32]:
    """Return a projection whose rotated numbers are half a head apart as one in which they are
    neighbours, as llama.cpp rotates them.
    """
    rows, n_in = weight.shape
    halves = weight.reshape(n_heads, 2, rows // n_heads // 2, n_in)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows, n_in)


def as_in_file(
    given: str, weight: npt.NDArray[np.float32], architecture: str, config: Any
) -> npt.NDArray[np.float32]:  # fmt: skip
    """Return a tensor of a model with its rows as a file has them. given: transformers' name."""
    part = given.split(".")[-2]
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    if architecture != "llama" or part not in heads:
        return weight
    return paired(weight.reshape(len(weight), -1), heads[part]).reshape(weight.shape)


def writable(name: str) -> str:
    """Return a type of numbers, or the one that takes its place because the gguf package cannot
    write it.
    """
    digit = next(letter for letter in name if letter.isdecimal())
    return name if name in (*FLOATS, *_WRITTEN) else _LARGER[digit]


def add_weight(writer: Any, name: str, weight: npt.NDArray[np.float32], wanted: str) -> None:
    """Write a weight as `stored` returns it."""
    data, kind = stored(weight, wanted)
    writer.add_tensor(name, data, raw_dtype=kind)


def stored(weight: npt.NDArray[np.float32], wanted: str) -> tuple[npt.NDArray[Any], Any]:
    """Return a weight as a file has it, and the type of its numbers: the wanted one, or float32 for
    a vector, and for a matrix with rows of no fitting length.
    """
    import gguf

    kind = gguf.GGMLQuantizationType[wanted]
    if weight.ndim == 1 or weight.shape[1] % gguf.GGML_QUANT_SIZES[kind][0]:
        kind = gguf.GGMLQuantizationType.F32
    return gguf.quants.quantize(weight, kind), kind


def rounded(weight: npt.NDArray[np.float32], wanted: str) -> npt.NDArray[np.float32]:
    """Return a weight with the precision that it has in a file."""
    import gguf

    return np.asarray(gguf.quants.dequantize(*stored(weight, wanted)), np.float32)
