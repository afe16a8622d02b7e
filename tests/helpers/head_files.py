"""Checkpoints of trained drafts with random weights, in the namings of those who train them."""

from __future__ import annotations

import json
import re
import struct
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

HIDDEN, VOCAB, TARGET_LAYERS = 32, 259, 8
N_HEADS, KV_HEADS, HEAD_DIM, FEED, LONGEST = 4, 2, 16, 48, 256
INNER, N_GUESSES, BLOCK_LAYERS, MASK_TOKEN = 24, 3, 2, 250
D2T = np.array([0, 1, 2, 3, 5, 8, 9, 13, 17, 18, 20, 31, 40, 41, 42, 50, 57, 58, 61, 63])

EAGLE3 = {
    "safeailab": ("midlayer.", "bin"), "specforge": ("midlayer.", "safetensors"),
    "speculators": ("layers.0.", "safetensors"),
}  # fmt: skip
_USUAL = {"eagle3": "specforge", "eagle": "eagle bin", "medusa": "medusa pt"}
_OF_LAYER = {
    "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj",
    "o": "self_attn.o_proj", "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
    "input_layernorm": "input_layernorm", "hidden_norm": "hidden_norm",
    "post_attention_layernorm": "post_attention_layernorm",
    "q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm",
}  # fmt: skip


@dataclass
class Made:
    """A head: its weights by the names of HeadCheckpoint, float32, and its config. published: as
    they stand in a file, where they are not these.
    """

    kind: str
    weights: dict[str, np.ndarray]
    config: dict = field(default_factory=dict)
    d2t: np.ndarray | None = None
    published: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def tensors(self) -> dict[str, np.ndarray]:
        """Return what a file has, to be changed."""
        return self.published or self.weights


class _Random:
    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self.weights: dict[str, np.ndarray] = {}

    def matrix(self, name, rows, columns, bias=False):
        made = self._random.normal(size=(rows, columns)) / np.sqrt(columns)
        self.weights[f"{name}.weight"] = made.astype(np.float32)
        if bias:
            self.weights[f"{name}.bias"] = (0.1 * self._random.normal(size=rows)).astype(np.float32)

    def norm(self, name, size, bias=False):
        self.weights[f"{name}.weight"] = self._around(1, size)
        if bias:
            self.weights[f"{name}.bias"] = self._around(0, size)

    def _around(self, mean, size):
        return (mean + 0.2 * self._random.normal(size=size)).astype(np.float32)


def _layer(random, n_in, bias, to="", size=HEAD_DIM):
    for name, rows, columns in (
        ("q", N_HEADS * size, n_in), ("k", KV_HEADS * size, n_in),
        ("v", KV_HEADS * size, n_in), ("o", HIDDEN, N_HEADS * size),
        ("gate", FEED, HIDDEN), ("up", FEED, HIDDEN), ("down", HIDDEN, FEED),
    ):  # fmt: skip
        random.matrix(f"{to}{name}", rows, columns, bias and name in "qkv")
    random.norm(f"{to}post_attention_layernorm", HIDDEN)


def _config(**more):
    return {
        "hidden_size": HIDDEN, "num_attention_heads": N_HEADS, "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM, "intermediate_size": FEED, "rms_norm_eps": 1e-5, "vocab_size": VOCAB,
        "max_position_embeddings": LONGEST, "rope_theta": 1e4, "num_hidden_layers": 1,
        "hidden_act": "silu",
    } | more  # fmt: skip


def eagle3(*, seed=0, part=True, embedding=False, fc="", bias=False, **flags) -> Made:
    """Return an EAGLE-3 head. part: of the vocabulary. fc: norms before fusing, "fc_norm" or
    "norm_before_fc". flags: more of the config.
    """
    random = _Random(seed)
    random.matrix("fc", HIDDEN, 3 * HIDDEN)
    if fc == "fc_norm":
        for i in range(3):
            random.norm(f"fc_norm.{i}", HIDDEN)
    elif fc:
        random.norm("input_norm", 3 * HIDDEN)
    random.norm("input_layernorm", HIDDEN)
    random.norm("hidden_norm", HIDDEN)
    _layer(random, 2 * HIDDEN, bias)
    random.norm("norm", HIDDEN)
    random.matrix("lm_head", len(D2T) if part else VOCAB, HIDDEN)
    if embedding:
        random.matrix("embed_tokens", VOCAB, HIDDEN)
    config = _config(architectures=["LlamaForCausalLMEagle3"], **flags)
    if part:
        config["draft_vocab_size"] = len(D2T)
    if fc:
        config[fc] = True
    return Made("eagle3", random.weights, config, D2T if part else None)


def eagle(*, seed=0, bias=True) -> Made:
    """Return an EAGLE-1 or EAGLE-2 head."""
    random = _Random(seed)
    random.matrix("embed_tokens", VOCAB, HIDDEN)
    random.matrix("fc", HIDDEN, 2 * HIDDEN, bias)
    _layer(random, HIDDEN, False)
    return Made("eagle", random.weights, _config(architectures=["LlamaForCausalLM"], bias=bias))


def medusa(*, seed=0, n_blocks=1) -> Made:
    """Return Medusa heads, whose config has another number of them."""
    random = _Random(seed)
    for i in range(N_GUESSES):
        for j in range(n_blocks):
            random.matrix(f"{i}.{j}.linear", HIDDEN, HIDDEN, True)
        random.matrix(f"{i}.lm_head", VOCAB, HIDDEN)
    config = {"medusa_num_heads": 5, "medusa_num_layers": n_blocks}
    return Made("medusa", random.weights, config)


def mlp_speculator(*, seed=0, tied=False, scale_input=False) -> Made:
    """Return an MLP speculator. tied: with weights that depths share."""
    random = _Random(seed)
    for i in range(N_GUESSES):
        random.matrix(f"proj.{i}", INNER, INNER if i else HIDDEN)
        random.matrix(f"emb.{i}", VOCAB, INNER)
        random.norm(f"ln.{i}", INNER, True)
        random.matrix(f"head.{i}", VOCAB, INNER)
    if tied:
        for name in random.weights:
            part, i, kind = name.split(".")
            first = min(int(i), 1) if part == "proj" else 0
            random.weights[name] = random.weights[f"{part}.{first}.{kind}"]
    config = {
        "architectures": ["MLPSpeculatorPreTrainedModel"], "model_type": "mlp_speculator",
        "emb_dim": HIDDEN, "inner_dim": INNER, "n_predict": N_GUESSES, "vocab_size": VOCAB,
        "tie_weights": tied, "scale_input": scale_input,
    }  # fmt: skip
    return Made("mlp_speculator", random.weights, config)


def dflash(*, seed=0, speculators=False, bias=False, **config) -> Made:
    """Return a DFlash head of z-lab, or of vLLM's speculators, which count layers by inputs, guess
    a part of the vocabulary and have an embedding of their own. config: more of it.
    """
    random = _Random(seed)
    random.matrix("fc", HIDDEN, 3 * HIDDEN)
    for name in ("hidden_norm", "norm"):
        random.norm(name, HIDDEN)
    for i in range(BLOCK_LAYERS):
        _layer(random, HIDDEN, bias, f"{i}.")
        random.norm(f"{i}.input_layernorm", HIDDEN)
        for name in ("q_norm", "k_norm"):
            random.norm(f"{i}.{name}", HEAD_DIM)
    own = {"block_size": N_GUESSES + 1, "mask_token_id": MASK_TOKEN}
    known = _config(num_hidden_layers=BLOCK_LAYERS) | config
    if not speculators:
        own["target_layer_ids"] = [1, 3, 4]
        known |= {"architectures": ["DFlashDraftModel"], "num_target_layers": TARGET_LAYERS}
        return Made("dflash", random.weights, known | {"dflash_config": own})
    random.matrix("embed_tokens", VOCAB, HIDDEN)
    random.matrix("lm_head", len(D2T), HIDDEN)
    known = {"speculators_model_type": "dflash", "transformer_layer_config": known, **own}
    known |= {"aux_hidden_state_layer_ids": [2, 4, 5], "draft_vocab_size": len(D2T)}
    return Made("dflash", random.weights, known, D2T)


def write(folder: Path, made: Made, naming="", dtype="F32", absolute=False, t2d=True) -> Path:
    """Write a head as these people do and return its folder.

    naming: a name of EAGLE3, or a kind and the format, such as "eagle bin" or "medusa pt"; by
    default the usual one of the kind. absolute: d2t holds ids, not distances.
    """
    naming = naming or _USUAL.get(made.kind, made.kind)
    folder.mkdir(parents=True, exist_ok=True)
    config, name = dict(made.config), "model"
    prefix, kind = EAGLE3.get(naming) or ("layers.0.", naming.partition(" ")[2] or "safetensors")
    tensors = made.published or {
        _named(each, prefix, made): array for each, array in made.weights.items()
    }
    if made.kind == "medusa":
        name = "medusa_lm_head"
    elif made.kind == "mlp_speculator" and config["tie_weights"]:
        kept = ("emb.0.", "head.0.", "ln.0.", "proj.0.", "proj.1.")
        tensors = {n: a for n, a in tensors.items() if n.removeprefix("speculator.")[:7]
                   .startswith(kept)}  # fmt: skip
    if naming == "speculators":
        config = _nested(config)
    if made.d2t is not None:
        shift = 0 if absolute else np.arange(len(made.d2t))
        tensors["d2t"] = (made.d2t - shift).astype(np.int64)
        if t2d:
            tensors["t2d"] = np.isin(np.arange(VOCAB), made.d2t)
    (folder / "config.json").write_text(json.dumps(config))
    if kind == "safetensors":
        (folder / f"{name}.safetensors").write_bytes(safetensors(tensors, dtype))
    else:
        file = "pytorch_model.bin" if kind == "bin" else f"{name}.pt"
        torch_zip(folder / file, tensors, dtype)
    return folder


def _named(name: str, prefix: str, made: Made) -> str:
    """Return the name that a weight has in a file."""
    if made.kind == "mlp_speculator":
        return f"speculator.{name}"
    if made.kind == "medusa":
        return name.replace("lm_head", str(made.config["medusa_num_layers"]))
    part, _, end = name.rpartition(".")
    if numbered := re.fullmatch(r"(\d+)\.(\w+)", part):  # of one of DFlash's layers
        return f"layers.{numbered[1]}.{_OF_LAYER[numbered[2]]}.{end}"
    if made.kind == "dflash":
        return name
    return f"{prefix}{_OF_LAYER[part]}.{end}" if part in _OF_LAYER else name


def _nested(config: dict) -> dict:
    """Return a config as vLLM's speculators write it."""
    own = ("draft_vocab_size", "norm_before_residual", "norm_output", "fc_norm", "norm_before_fc",
           "eagle_aux_hidden_state_layer_ids", "target_hidden_size")  # fmt: skip
    outer = {key: config[key] for key in own if key in config}
    inner = {key: value for key, value in config.items() if key not in own}
    inner |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    return outer | {
        "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3",
        "speculators_config": {"algorithm": "eagle3"}, "transformer_layer_config": inner,
        "target_hidden_size": None,
    }  # fmt: skip


def stored(array: np.ndarray, dtype: str) -> tuple[str, np.ndarray]:
    """Return an array as a file has it; bfloat16 as uint16, cut."""
    if array.dtype == np.int64:
        return "I64", array
    if array.dtype == bool:
        return "BOOL", array
    if dtype == "BF16":
        return dtype, (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return dtype, array.astype(np.float16 if dtype == "F16" else np.float32)


def rounded(made: Made, dtype: str) -> dict[str, np.ndarray]:
    """Return the weights that are read back from a file of this number format."""
    found = {}
    for name, array in made.weights.items():
        _, raw = stored(array, dtype)
        if dtype == "BF16":
            raw = (raw.astype(np.uint32) << 16).view(np.float32)
        found[name] = raw.astype(np.float32)
    return found


def safetensors(tensors: dict[str, np.ndarray], dtype: str = "F32") -> bytes:
    """Return a file in the layout of safetensors."""
    header, body = {"__metadata__": {"format": "pt"}}, b""
    for name, array in tensors.items():
        kind, raw = stored(array, dtype)
        header[name] = {"dtype": kind, "shape": list(raw.shape),
                        "data_offsets": [len(body), len(body) + raw.nbytes]}  # fmt: skip
        body += raw.tobytes()
    head = json.dumps(header).encode()
    return struct.pack("<Q", len(head)) + head + body


_STORAGES = {"F32": "FloatStorage", "F16": "HalfStorage", "BF16": "BFloat16Storage",
             "I64": "LongStorage", "BOOL": "BoolStorage"}  # fmt: skip


def torch_zip(path: Path, tensors: dict[str, np.ndarray], dtype: str = "F32") -> Path:
    """Write tensors as torch.save writes a state dict: a pickle of protocol 2 beside storages."""
    items, storages = b"", []
    for name, array in tensors.items():
        kind, raw = stored(array, dtype)
        items += _text(name) + tensor_pickle(_STORAGES[kind], len(storages), raw.shape)
        storages.append(raw)
    content = b"\x80\x02}(" + items + b"u."
    return zipped(path, content, [raw.tobytes() for raw in storages])


def zipped(path: Path, pickle: bytes, storages: list[bytes]) -> Path:
    """Write the zip around a pickle and its storages."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle)
        archive.writestr("archive/byteorder", "little")
        for i, raw in enumerate(storages):
            archive.writestr(f"archive/data/{i}", raw)
    return path


def tensor_pickle(storage: str, key: int, shape, strides=None, offset=0, n=None) -> bytes:
    """Return the pickle of a tensor that is a view of a storage."""
    n = int(np.prod(shape)) if n is None else n
    strides = strides or [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
    pid = b"(" + _text("storage") + named("torch", storage) + _text(str(key)) + _text("cpu")
    pid += _int(n) + b"tQ"
    hooks = named("collections", "OrderedDict") + b")R"
    return (named("torch._utils", "_rebuild_tensor_v2") + b"(" + pid + _int(offset)
            + _tuple(shape) + _tuple(strides) + b"\x89" + hooks + b"tR")  # fmt: skip


def named(module: str, name: str) -> bytes:
    """Return the pickle of a name in a module."""
    return f"c{module}\n{name}\n".encode()


def _text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def _int(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def _tuple(values) -> bytes:
    return b"(" + b"".join(_int(int(value)) for value in values) + b"t"
