"""Tiny random EAGLE-3 heads as GGUFs, and what they compute, in NumPy."""

from pathlib import Path

import numpy as np

from tests.helpers.gguf_files import ARRAY, BOOL, INT32, UINT32, Field, gguf_bytes
from tests.helpers.heads import attention, silu
from tests.helpers.tiny_models import FEED, HEADS, VOCABULARY, WIDTH, metadata, normed, with_changes

HEAD = WIDTH // HEADS
KEY_HEADS = 2
LAYERS = (1, 3, 5)  # of the target
N_DRAFTED = 64  # tokens of the head's own vocabulary
BASE = 10000.0  # of the rotation


def head_metadata(**changed: Field | None) -> dict[str, Field]:
    """Return the metadata of a head, some of it changed as in `with_changes`."""
    found = metadata("eagle3", 1)
    found["eagle3.attention.head_count_kv"] = (UINT32, KEY_HEADS)
    found["eagle3.target_layers"] = (ARRAY, (INT32, list(LAYERS)))
    found["eagle3.target_hidden_size"] = (UINT32, WIDTH)
    return with_changes(found, changed)


def head_weights(seed: int = 1) -> dict[str, np.ndarray]:
    """Return the weights of a head that drafts some of the target's tokens."""
    rng = np.random.default_rng(seed)
    keys = KEY_HEADS * HEAD
    shapes = {
        "fc": (WIDTH, len(LAYERS) * WIDTH),
        "token_embd": (VOCABULARY, WIDTH),
        "output": (N_DRAFTED, WIDTH),
        "blk.0.attn_q": (WIDTH, 2 * WIDTH),
        "blk.0.attn_k": (keys, 2 * WIDTH),
        "blk.0.attn_v": (keys, 2 * WIDTH),
        "blk.0.attn_output": (WIDTH, WIDTH),
        "blk.0.ffn_gate": (FEED, WIDTH),
        "blk.0.ffn_up": (FEED, WIDTH),
        "blk.0.ffn_down": (WIDTH, FEED),
    }
    found = {
        f"{name}.weight": rng.normal(size=shape) / shape[-1] ** 0.5
        for name, shape in shapes.items()
    }
    norms = ("output_norm", "blk.0.attn_norm", "blk.0.attn_norm_2", "blk.0.ffn_norm")
    found |= {f"{name}.weight": 1 + 0.1 * rng.normal(size=WIDTH) for name in norms}
    found = {name: value.astype(np.float32) for name, value in found.items()}
    drafted = np.sort(rng.choice(VOCABULARY, N_DRAFTED, replace=False))
    return found | {"d2t": drafted.astype(np.int64)}


def write(
    path: Path, weights: dict[str, np.ndarray] | None = None, **changed: Field | None
) -> Path:
    """Write a head and return its path."""
    made = head_weights() if weights is None else weights
    path.write_bytes(gguf_bytes(head_metadata(**changed), made))
    return path


NORMED_FIRST = {"norm_before_residual": (BOOL, True)}


def _rotated(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Rotate pairs of neighbours in each head, [n, heads, HEAD], by angles that grow with
    positions.
    """
    angles = positions[:, None] * BASE ** (-np.arange(0, HEAD, 2) / HEAD)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    a, b = x[..., ::2], x[..., 1::2]
    return np.stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(x.shape)


class Reference:
    """The head in float64: tokens go in one by one, each with a state of the width of the head."""

    def __init__(
        self, weights: dict[str, np.ndarray], norm_before_residual: bool = False,
        embeddings: np.ndarray | None = None, output: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        self._w = {name: value.astype(np.float64) for name, value in weights.items()}
        self._drafted = weights.get("d2t")
        self._normed_first = norm_before_residual
        self._embeddings = self._w["token_embd.weight"] if embeddings is None else embeddings
        self._output = self._w["output.weight"] if output is None else output
        self.keys: list[np.ndarray] = []
        self.values: list[np.ndarray] = []

    def fuse(self, states: np.ndarray) -> np.ndarray:
        """Return the fused state of the target's states, [layers, width]."""
        return self._w["fc.weight"] @ states.reshape(-1)

    def step(self, token: int, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Append a token; return its row over the target's vocabulary, and the head's own state."""
        layer = {name.removeprefix("blk.0."): value for name, value in self._w.items()}
        embedded = normed(self._embeddings[token], layer["attn_norm.weight"])
        own = normed(state, layer["attn_norm_2.weight"])
        both = np.concatenate([embedded, own])
        own = (own if self._normed_first else state) + self._attention(both, layer)
        inner = normed(own, layer["ffn_norm.weight"])
        inner = silu(layer["ffn_gate.weight"] @ inner) * (layer["ffn_up.weight"] @ inner)
        own = own + layer["ffn_down.weight"] @ inner
        logits = self._output @ normed(own, self._w["output_norm.weight"])
        if self._drafted is None:
            return logits, own
        row = np.full(VOCABULARY, -np.inf)
        row[self._drafted] = logits
        return row, own

    def _attention(self, both: np.ndarray, layer: dict[str, np.ndarray]) -> np.ndarray:
        position = np.array([len(self.keys)])
        query = (layer["attn_q.weight"] @ both).reshape(1, HEADS, HEAD)
        key = (layer["attn_k.weight"] @ both).reshape(1, KEY_HEADS, HEAD)
        self.keys.append(_rotated(key, position)[0])
        self.values.append((layer["attn_v.weight"] @ both).reshape(KEY_HEADS, HEAD))
        keys, values, sees = np.array(self.keys), np.array(self.values), np.ones((1, 1), bool)
        mixed = attention(_rotated(query, position), keys, values, sees)[0]
        return layer["attn_output.weight"] @ mixed
