"""Tiny random targets with MTP layers as GGUFs, of several architectures, and what the layers
compute, in NumPy.
"""

from pathlib import Path

import numpy as np

from tests.helpers.gguf_files import (
    ARRAY,
    BOOL,
    FEED,
    FLOAT32,
    HEADS,
    INT32,
    UINT32,
    WIDTH,
    Field,
    gguf_bytes,
)
from tests.helpers.heads import attention, rotated, silu
from tests.helpers.tiny_models import HEAD, N_LAYER, ends, metadata, normed, with_changes

KINDS = [  # architectures, and how many MTP layers
    ("hy_v3", 1), ("hy_v3", 3), ("mimo2", 1), ("mimo2", 3), ("qwen35", 1), ("qwen35moe", 1),
    ("qwen3next", 1), ("glm4moe", 1),
]  # fmt: skip
HYBRID = ("qwen35", "qwen35moe", "qwen3next")  # every other layer has a recurrent state
BASE = 10000.0  # of the rotation
_STATE, _GROUPS, _VALUES = 16, 1, 2  # of the recurrent layers of qwen35: size, keys, values
_N_EXPERTS = 2
_EXTRA: dict[str, dict[str, Field]] = {
    "hy_v3": {"expert_feed_forward_length": (UINT32, FEED)},
    "mimo2": {
        "expert_feed_forward_length": (UINT32, FEED),
        "attention.sliding_window": (UINT32, 4096),
    },
    "qwen35": {
        "rope.dimension_sections": (ARRAY, (INT32, [2, 1, 1, 0])),
        "ssm.conv_kernel": (UINT32, 4),
        "ssm.inner_size": (UINT32, _STATE * _VALUES),
        "ssm.state_size": (UINT32, _STATE),
        "ssm.time_step_rank": (UINT32, _VALUES),
        "ssm.group_count": (UINT32, _GROUPS),
        "full_attention_interval": (UINT32, 2),
    },
    "glm4moe": {
        "expert_count": (UINT32, _N_EXPERTS),
        "expert_used_count": (UINT32, _N_EXPERTS),  # all: rounding decides nothing
        "expert_shared_count": (UINT32, 1),
        "expert_feed_forward_length": (UINT32, FEED),
        "leading_dense_block_count": (UINT32, N_LAYER - 1),
        "expert_weights_scale": (FLOAT32, 1.0),
        "expert_weights_norm": (BOOL, True),
    },
}  # fmt: skip
_MOE: dict[str, Field] = {
    "expert_count": (UINT32, _N_EXPERTS),
    "expert_used_count": (UINT32, _N_EXPERTS),
    "expert_feed_forward_length": (UINT32, FEED),
    "expert_shared_feed_forward_length": (UINT32, FEED),
}
_EXTRA["qwen35moe"] = _EXTRA["qwen3next"] = _EXTRA["qwen35"] | _MOE


def mtp_metadata(architecture: str, n_mtp: int = 1, n_layer: int = N_LAYER) -> dict[str, Field]:
    """Return the metadata of a target with so many MTP layers after its own."""
    found = metadata(architecture, n_layer + n_mtp)
    found[f"{architecture}.nextn_predict_layers"] = (UINT32, n_mtp)
    for key, content in _EXTRA[architecture].items():
        found[f"{architecture}.{key}"] = content
    if architecture == "mimo2":
        pattern = [i % 2 for i in range(n_layer + n_mtp)]
        found["mimo2.attention.sliding_window_pattern"] = (ARRAY, (BOOL, pattern))
    return found


class _Shapes:
    """The shapes of a layer's weights, by name; norms are vectors around 1."""

    def __init__(self, architecture: str) -> None:
        self.architecture = architecture
        self.matrices: dict[str, tuple[int, ...]] = {}
        self.norms: dict[str, int] = {"attn_norm": WIDTH}

    def attention(self) -> None:
        """Add attention of the architecture's kind."""
        gated = 2 if self.architecture in HYBRID else 1
        if self.architecture == "mimo2":
            self.matrices["attn_qkv"] = (3 * WIDTH, WIDTH)
        else:
            self.matrices["attn_q"] = (gated * WIDTH, WIDTH)
            self.matrices |= {"attn_k": (WIDTH, WIDTH), "attn_v": (WIDTH, WIDTH)}
        self.matrices["attn_output"] = (WIDTH, WIDTH)
        if self.architecture in ("hy_v3", *HYBRID):
            self.norms |= {"attn_q_norm": HEAD, "attn_k_norm": HEAD}

    def recurrence(self) -> None:
        """Add a recurrent state."""
        keys, values = _STATE * _GROUPS, _STATE * _VALUES
        self.matrices |= {
            "attn_qkv": (2 * keys + values, WIDTH), "attn_gate": (values, WIDTH),
            "ssm_conv1d": (2 * keys + values, 4), "ssm_out": (WIDTH, values),
        }  # fmt: skip
        if self.architecture == "qwen3next":
            self.matrices["ssm_ba"] = (2 * _VALUES, WIDTH)
        else:
            self.matrices |= {"ssm_beta": (_VALUES, WIDTH), "ssm_alpha": (_VALUES, WIDTH)}
        self.norms["ssm_norm"] = _STATE

    def feed(self, experts: bool) -> None:
        """Add what comes after attention."""
        late = self.architecture in ("glm4moe", *HYBRID)
        self.norms["post_attention_norm" if late else "ffn_norm"] = WIDTH
        dense = {"ffn_gate": (FEED, WIDTH), "ffn_up": (FEED, WIDTH), "ffn_down": (WIDTH, FEED)}
        if not experts:
            self.matrices |= dense
            return
        self.matrices["ffn_gate_inp"] = (_N_EXPERTS, WIDTH)
        for name, shape in dense.items():
            self.matrices |= {f"{name}_exps": (_N_EXPERTS, *shape), f"{name}_shexp": shape}
        if self.architecture in HYBRID:
            self.matrices["ffn_gate_inp_shexp"] = (WIDTH,)

    def mtp(self) -> None:
        """Add what joins a token and a state."""
        self.matrices["nextn.eh_proj"] = (WIDTH, 2 * WIDTH)
        self.norms |= {f"nextn.{x}": WIDTH for x in ("enorm", "hnorm", "shared_head_norm")}


def _is_moe(architecture: str, layer: int) -> bool:
    return architecture in ("qwen35moe", "qwen3next") or (
        architecture == "glm4moe" and layer >= N_LAYER - 1
    )


def _layer(architecture: str, i: int, n_layer: int, rng: np.random.Generator) -> dict:
    """Return the weights of layer i, an MTP layer from n_layer on."""
    shapes = _Shapes(architecture)
    recurrent = architecture in HYBRID and i < n_layer and not i % 2
    if recurrent:
        shapes.recurrence()
    else:
        shapes.attention()
    shapes.feed(_is_moe(architecture, i))
    if i >= n_layer:
        shapes.mtp()
    found = {f"{name}.weight": rng.normal(size=shape) / shape[-1] ** 0.5
             for name, shape in shapes.matrices.items()}  # fmt: skip
    found |= {f"{name}.weight": 1 + 0.1 * rng.normal(size=n) for name, n in shapes.norms.items()}
    if recurrent:
        found |= {"ssm_dt.bias": np.ones(_VALUES), "ssm_a": -np.ones(_VALUES)}
    if architecture == "glm4moe" and "ffn_gate_inp" in shapes.matrices:
        found["exp_probs_b.bias"] = np.zeros(_N_EXPERTS)
    return found


def mtp_weights(
    architecture: str, n_mtp: int = 1, n_layer: int = N_LAYER, seed: int = 0
) -> dict[str, np.ndarray]:
    """Return the weights of a target with so many MTP layers after its own."""
    rng = np.random.default_rng(seed)
    found = ends(rng)
    for i in range(n_layer + n_mtp):
        layer = _layer(architecture, i, n_layer, rng)
        found |= {f"blk.{i}.{name}": value for name, value in layer.items()}
    return {name: value.astype(np.float32) for name, value in found.items()}


def guessing_weights(architecture: str, n_mtp: int = 1, noise: float = 0.0) -> dict:
    """Return the weights of a target whose next token depends on the last one only, and is what the
    MTP layers guess but for so much noise.
    """
    found, rng = mtp_weights(architecture, n_mtp), np.random.default_rng(9)
    for name, value in found.items():
        if name.split(".")[2:3] and name.split(".")[2].startswith(
            ("attn_out", "ssm_out", "ffn_down")
        ):
            value[:] = 0
        if name.endswith("eh_proj.weight"):
            value[:] = noise * value
            value[:, :WIDTH] += np.eye(WIDTH)
        if name.endswith("shared_head_norm.weight"):
            value[:] = found["output_norm.weight"] * (1 + noise * rng.normal(size=WIDTH))
        if name.endswith("enorm.weight"):
            value[:] = 1
    return found


def write(
    folder: Path, architecture: str, n_mtp: int = 1, *, alone: bool = False,
    weights: dict[str, np.ndarray] | None = None, **changed: Field | None,
) -> Path:  # fmt: skip
    """Write a target and return its path. alone: only its MTP layers, as a sidecar has them.
    changed: metadata, as in `with_changes`.
    """
    found = with_changes(mtp_metadata(architecture, n_mtp), changed)
    made = mtp_weights(architecture, n_mtp) if weights is None else weights
    if alone:
        trunk = tuple(f"blk.{i}." for i in range(N_LAYER))
        made = {name: value for name, value in made.items() if not name.startswith(trunk)}
    path = folder / f"{'mtp-' if alone else ''}{architecture}-{n_mtp}.gguf"
    path.write_bytes(gguf_bytes(found, made))
    return path


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _softmax(x: np.ndarray) -> np.ndarray:
    exp = np.exp(x - x.max(-1, keepdims=True))
    return exp / exp.sum(-1, keepdims=True)


def _feed(x: np.ndarray, gate: np.ndarray, up: np.ndarray, down: np.ndarray) -> np.ndarray:
    return down @ (silu(gate @ x) * (up @ x))


class Reference:
    """One MTP layer in float64: tokens go in one by one, each with a state."""

    def __init__(
        self, architecture: str, weights: dict[str, np.ndarray], layer: int = N_LAYER
    ) -> None:
        found = {name: value.astype(np.float64) for name, value in weights.items()}
        prefix = f"blk.{layer}."
        self._architecture = architecture
        self._layer = {
            name.removeprefix(prefix).removesuffix(".weight"): value
            for name, value in found.items() if name.startswith(prefix)
        }  # fmt: skip
        self._embeddings, self._output = found["token_embd.weight"], found["output.weight"]
        self.keys: list[np.ndarray] = []
        self.values: list[np.ndarray] = []

    def step(self, token: int, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Append a token; return its row and the layer's own state."""
        w = self._layer
        both = [normed(self._embeddings[token], w["nextn.enorm"])]
        x = w["nextn.eh_proj"] @ np.concatenate([*both, normed(state, w["nextn.hnorm"])])
        x = x + self._attention(normed(x, w["attn_norm"]))
        norm = "ffn_norm" if "ffn_norm" in w else "post_attention_norm"
        x = x + self._feed_forward(normed(x, w[norm]))
        last = normed(x, w["nextn.shared_head_norm"])
        return self._output @ last, x if self._architecture == "mimo2" else last

    def truncate(self, n: int) -> None:
        """Forget all tokens but the first n."""
        del self.keys[n:], self.values[n:]

    def _attention(self, x: np.ndarray) -> np.ndarray:
        w, position = self._layer, len(self.keys)
        if "attn_qkv" in w:
            query, key, value = np.split(w["attn_qkv"] @ x, 3)
        else:
            query, key, value = (w[f"attn_{name}"] @ x for name in "qkv")
        query, gate = self._parted(query)
        key = key.reshape(HEADS, HEAD)
        if "attn_q_norm" in w:
            query, key = normed(query, w["attn_q_norm"]), normed(key, w["attn_k_norm"])
        query, key = rotated(np.stack([query, key]), [position] * 2, BASE)
        self.keys.append(key)
        self.values.append(value.reshape(HEADS, HEAD))
        sees = np.ones((1, position + 1), bool)
        mixed = attention(query[None], np.array(self.keys), np.array(self.values), sees)
        return w["attn_output"] @ (mixed.reshape(HEADS, HEAD) * gate).reshape(-1)

    def _parted(self, query: np.ndarray) -> tuple[np.ndarray, np.ndarray | float]:
        """Return the queries of the heads, and what their values are multiplied with."""
        if self._architecture not in HYBRID:
            return query.reshape(HEADS, HEAD), 1.0
        query, gate = np.split(query.reshape(HEADS, 2 * HEAD), 2, -1)
        return query, _sigmoid(gate)

    def _feed_forward(self, x: np.ndarray) -> np.ndarray:
        w, names = self._layer, ("ffn_gate", "ffn_up", "ffn_down")
        if "ffn_gate_inp" not in w:
            return _feed(x, *(w[name] for name in names))
        scores = w["ffn_gate_inp"] @ x
        share = _softmax(scores) if self._architecture in HYBRID else _sigmoid(scores)
        experts = zip(*(w[f"{name}_exps"] for name in names), strict=True)
        routed = [_feed(x, *expert) for expert in experts]  # all of them are used
        shared = _feed(x, *(w[f"{name}_shexp"] for name in names))
        if "ffn_gate_inp_shexp" in w:
            shared = shared * _sigmoid(w["ffn_gate_inp_shexp"] @ x)
        return share / share.sum() @ np.array(routed) + shared
