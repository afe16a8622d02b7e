"""The inputs and outputs of an ONNX decoder, recognised by the conventions of exporters."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UnknownArchitecture
from ..base import FINAL
from .companions import number, read, section, settings
from .embedding import EMBEDS

KEEP = "num_logits_to_keep"
_FLOATS = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
_INTEGERS = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
_HIDDEN = re.compile(r"hidden_states(?:\.(\d+))?")  # of a layer; if unnumbered, the final ones
_TOKENS = ("input_ids", EMBEDS)
_KNOWN = (*_TOKENS, "attention_mask", "position_ids", "attention_bias", KEEP)
_FOR_TREES = {"attention_bias", "position_ids"}


@dataclass(frozen=True, slots=True)
class Graph:
    """The names, types and sizes of a decoder's inputs and outputs.

    inputs: the type of each input by name, without the past; the tokens are "input_ids" or
    "inputs_embeds". mask: the name of the input that says
    which tokens each token sees, "" if there is none; its values, [1, 1, n, total], are added to
    scores. optional: the names in `inputs` that are not needed for chains of tokens. hidden: for
    each layer (see `Model.tap`), the output with the layer's hidden states, and their type.
    hidden_size: the width of hidden states, 0 if unknown. keep_shape: the shape of the input for
    the number of wanted rows; newer exports take a scalar.
    """

    past: tuple[str, ...]
    present: tuple[str, ...]
    heads: int
    head_size: int
    dtype: Any
    logits_dtype: Any
    vocab_size: int
    inputs: dict[str, Any]
    mask: str
    optional: frozenset[str]
    n_layer: int
    hidden_size: int
    hidden: dict[int, tuple[str, Any]]
    keep_shape: tuple[int, ...]


def read_graph(path: Path, session: Any) -> Graph:
    """Return the inputs and outputs of a session's graph. Raises UnknownArchitecture if the graph
    is not a decoder, and ModelError for companion files that cannot be read.
    """
    inputs = {node.name: node for node in session.get_inputs()}
    outputs = {node.name: node for node in session.get_outputs()}
    optional = {node.name: node for node in session.get_overridable_initializers()}
    inputs |= {name: node for name, node in optional.items() if name in _KNOWN}
    past, present = _cache_names(path.parent, inputs)
    unknown = [name for name in inputs if name not in _KNOWN and name not in past]
    missing = [name for name in ("logits", *present) if name not in outputs]
    reads = [name for name in _TOKENS if name in inputs]
    if unknown or missing or not past or len(reads) != 1:
        raise UnknownArchitecture(
            f"{path} is no decoder as edgespec knows them: "
            f"unknown inputs {unknown}, missing outputs {missing}, {len(past)} past keys and "
            f"values, {' and '.join(reads) or 'neither input_ids nor inputs_embeds'}; export it "
            "with past keys and values, logits and no other inputs"
        )
    if "position_ids" in inputs and len(inputs["position_ids"].shape) != 2:
        raise UnknownArchitecture(
            f"{path} takes position_ids {inputs['position_ids'].shape}: models whose positions "
            "have several axes, such as Qwen2-VL, are not evaluated here; a GGUF of them is"
        )
    square = next(
        (name for name in ("attention_bias", "attention_mask") if _is_square(inputs, name)), ""
    )
    types = {}
    for name, node in inputs.items():
        if name not in past:
            known: Mapping[str, Any] = _FLOATS if name in (square, EMBEDS) else _INTEGERS
            types[name] = _type(path, node, known)
    return Graph(
        tuple(past), tuple(present), *_cache_shape(path.parent, inputs[past[0]].shape),
        _type(path, inputs[past[0]], _FLOATS), _type(path, outputs["logits"], _FLOATS),
        _vocab_size(path.parent, outputs["logits"].shape), types, square,
        frozenset(_FOR_TREES & optional.keys()),
        number(path.parent, settings(path.parent), "num_hidden_layers") or len(past) // 2,
        *_hidden(path, outputs),
        (1,) * len(inputs[KEEP].shape) if KEEP in inputs else (1,),
    )  # fmt: skip


def _hidden(path: Path, outputs: Mapping[str, Any]) -> tuple[int, dict[int, tuple[str, Any]]]:
    """Return the width of hidden states, and for each layer the output with the layer's states and
    their type.
    """
    by_layer, size = {}, number(path.parent, settings(path.parent), "hidden_size")
    for name, node in outputs.items():
        if match := _HIDDEN.fullmatch(name):
            layer = FINAL if match[1] is None else int(match[1])
            by_layer[layer] = name, _type(path, node, _FLOATS)
            size = node.shape[-1] if isinstance(node.shape[-1], int) else size
    return size, by_layer if size else {}


def _is_square(inputs: Mapping[str, Any], name: str) -> bool:
    return name in inputs and len(inputs[name].shape) == 4


def _cache_names(folder: Path, inputs: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return the names of the past inputs and present outputs, by layer, keys before values."""
    decoder = section(read(folder, "genai_config.json"), "model", "decoder")
    ins, outs = section(decoder, "inputs"), section(decoder, "outputs")
    patterns = [
        (
            ins.get(f"past_{kind}_names", f"past_key_values.%d.{kind}"),
            outs.get(f"present_{kind}_names", f"present.%d.{kind}"),
        )
        for kind in ("key", "value")
    ]
    past, present = [], []
    for layer in range(len(inputs)):
        for before, after in patterns:
            name = str(before).replace("%d", str(layer))
            if name in inputs and name not in past:
                past.append(name)
                present.append(str(after).replace("%d", str(layer)))
    return past, present


def _type(path: Path, node: Any, known: Mapping[str, Any]) -> Any:
    if node.type not in known:
        raise UnknownArchitecture(
            f"{path}: {node.name} is a {node.type}; edgespec knows {', '.join(known)}"
        )
    return known[node.type]


def _cache_shape(folder: Path, shape: Sequence[Any]) -> tuple[int, int]:
    """Return (heads, head size) from the graph, or else from its companion files."""
    if len(shape) != 4:
        raise UnknownArchitecture(
            f"the cache of the graph in {folder} has the shape {list(shape)}; [batch, heads, "
            "length, size] is expected"
        )
    if isinstance(shape[1], int) and isinstance(shape[3], int):
        return shape[1], shape[3]
    decoder = section(read(folder, "genai_config.json"), "model", "decoder")
    config = settings(folder)
    n_queries = number(folder, config, "num_attention_heads")
    heads = number(folder, config | decoder, "num_key_value_heads")
    size = number(folder, decoder, "head_size") or number(folder, config, "head_dim")
    if not size and n_queries:
        size = number(folder, config, "hidden_size") // n_queries
    if not heads or not size:
        raise UnknownArchitecture(
            f"the graph in {folder} does not say the shape of its cache ({list(shape)}), and no "
            "genai_config.json or config.json beside it does; put one there"
        )
    return heads, size


def _vocab_size(folder: Path, shape: Sequence[Any]) -> int:
    if isinstance(shape[-1], int):
        return shape[-1]
    genai = section(read(folder, "genai_config.json"), "model")
    known = number(folder, genai, "vocab_size") or number(folder, settings(folder), "vocab_size")
    if not known:
        raise UnknownArchitecture(
            f"neither the graph in {folder} nor a config.json says how large its vocabulary is; "
            "put one there"
        )
    return known
