"""A tiny random Gemma 4 and an assistant of it as GGUFs, and what both compute, in NumPy."""

from pathlib import Path

import numpy as np

from tests.helpers.gguf_files import ARRAY, BOOL, FEED, FLOAT32, UINT32, WIDTH, Field, gguf_bytes
from tests.helpers.heads import Linear, attention, rotated
from tests.helpers.tiny_models import EPSILON, VOCABULARY, ends, metadata, with_changes

PATTERN = [True, True, False, True, True, False]  # layers with a sliding window
OWN_PATTERN = [True, True, False]  # the assistant's
WINDOW = 16
OWN_WIDTH = 16
_SIZES = {True: 8, False: 16}  # of heads, with a sliding window and without
_BASES = {True: 1e4, False: 1e6}  # of rotations
_N_HEADS, _N_KV = 4, 2
_SCALE = 0.9  # of what a layer gives


def _metadata(kind: str, width: int, pattern: list[bool]) -> dict[str, Field]:
    found = metadata(kind, len(pattern)) | {
        f"{kind}.embedding_length": (UINT32, width),
        f"{kind}.attention.head_count": (UINT32, _N_HEADS),
        f"{kind}.attention.head_count_kv": (UINT32, _N_KV),
        f"{kind}.attention.sliding_window": (UINT32, WINDOW),
        f"{kind}.attention.sliding_window_pattern": (ARRAY, (BOOL, pattern)),
        f"{kind}.embedding_length_per_layer_input": (UINT32, 0),
    }
    for slides, end in ((False, ""), (True, "_swa")):
        found |= {
            f"{kind}.{name}{end}": (UINT32, _SIZES[slides])
            for name in ("attention.key_length", "attention.value_length", "rope.dimension_count")
        }
        found[f"{kind}.rope.freq_base{end}"] = (FLOAT32, _BASES[slides])
    return found


def _layers(width: int, pattern: list[bool], keys: bool, rng: np.random.Generator) -> dict:
    """Return the weights of layers, with keys and values of their own or without."""
    found = {"rope_freqs.weight": np.ones(_SIZES[False] // 2)}
    for i, slides in enumerate(pattern):
        size = _SIZES[slides]
        matrices = {
            "attn_q": (_N_HEADS * size, width), "attn_output": (width, _N_HEADS * size),
            "ffn_gate": (FEED, width), "ffn_up": (FEED, width), "ffn_down": (width, FEED),
        }  # fmt: skip
        norms = dict.fromkeys(
            ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"), width
        )
        norms["attn_q_norm"] = size
        if keys:
            matrices |= dict.fromkeys(("attn_k", "attn_v"), (_N_KV * size, width))
            norms["attn_k_norm"] = size
        for name, shape in matrices.items():
            found[f"blk.{i}.{name}.weight"] = rng.normal(size=shape) / shape[-1] ** 0.5
        for name, n in norms.items():
            found[f"blk.{i}.{name}.weight"] = 1 + 0.1 * rng.normal(size=n)
        found[f"blk.{i}.layer_output_scale.weight"] = np.array([_SCALE])
    return found


def target_weights(seed: int = 0) -> dict[str, np.ndarray]:
    """Return the weights of a target."""
    rng = np.random.default_rng(seed)
    found = _layers(WIDTH, PATTERN, True, rng) | ends(rng)
    return {name: value.astype(np.float32) for name, value in found.items()}


def assistant_metadata() -> dict[str, Field]:
    """Return the metadata of an assistant."""
    kind = "gemma4-assistant"
    return _metadata(kind, OWN_WIDTH, OWN_PATTERN) | {
        f"{kind}.nextn_predict_layers": (UINT32, len(OWN_PATTERN)),
        f"{kind}.embedding_length_out": (UINT32, WIDTH),
    }


def assistant_weights(seed: int = 1) -> dict[str, np.ndarray]:
    """Return the weights of an assistant."""
    rng = np.random.default_rng(seed)
    found = _layers(OWN_WIDTH, OWN_PATTERN, False, rng) | {
        "token_embd.weight": rng.normal(size=(VOCABULARY, OWN_WIDTH)),
        "output_norm.weight": 1 + 0.1 * rng.normal(size=OWN_WIDTH),
        "nextn.pre_projection.weight": rng.normal(size=(OWN_WIDTH, 2 * WIDTH)) / 8,
        "nextn.post_projection.weight": rng.normal(size=(WIDTH, OWN_WIDTH)) / 4,
    }
    return {name: value.astype(np.float32) for name, value in found.items()}


def guessing_weights(noise: float = 0.0) -> tuple[dict, dict]:
    """Return the weights of a target whose next token depends on the last one only, and of an
    assistant that guesses it but for so much noise.
    """
    target, own = target_weights(), assistant_weights()
    for name in (*target, *own):
        if "attn_output" in name or "ffn_down" in name:
            for weights in (target, own):
                if name in weights:
                    weights[name][:] = 0
    target["token_embd.weight"][:, OWN_WIDTH:] = 0
    part = target["output.weight"] * target["output_norm.weight"] / 4
    drawn = np.random.default_rng(9).normal(size=own["token_embd.weight"].shape)
    own["token_embd.weight"] = (part[:, :OWN_WIDTH] + noise * drawn).astype(np.float32)
    own["output_norm.weight"][:] = 1
    own["nextn.pre_projection.weight"] = np.eye(OWN_WIDTH, 2 * WIDTH, dtype=np.float32)
    return target, own


def write_target(folder: Path, weights: dict | None = None, **changed: Field | None) -> Path:
    """Write a target and return its path. changed: metadata of its own, "__" for "."."""
    found = _metadata("gemma4", WIDTH, PATTERN)
    return _write(folder / "gemma4.gguf", found, weights or target_weights(), changed)


def write_assistant(folder: Path, weights: dict | None = None, **changed: Field | None) -> Path:
    """Write an assistant and return its path. changed: as for `write_target`."""
    made = weights or assistant_weights()
    return _write(folder / "mtp-gemma4.gguf", assistant_metadata(), made, changed)


def _write(path: Path, found: dict, weights: dict, changed: dict[str, Field | None]) -> Path:
    path.write_bytes(gguf_bytes(with_changes(found, changed), weights))
    return path


def _gelu(x: np.ndarray) -> np.ndarray:
    """Return x · Φ(x) as Gemma has it, by tanh."""
    return x / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))


class _Model(Linear):
    """What a target and an assistant have in common, float64."""

    def __init__(self, weights: dict[str, np.ndarray]) -> None:
        super().__init__(weights, EPSILON)

    def _queries(self, i: int, slides: bool, x: np.ndarray, positions) -> np.ndarray:
        """Return queries, [n, heads, size], scaled against the scale of `attention`."""
        size = _SIZES[slides]
        x = self.norm(f"blk.{i}.attn_norm", x)
        queries = self.linear(f"blk.{i}.attn_q", x).reshape(len(x), -1, size)
        queries = self.norm(f"blk.{i}.attn_q_norm", queries)
        return rotated(queries, positions, _BASES[slides]) * size**0.5

    def _behind(self, i: int, x: np.ndarray, mixed: np.ndarray) -> np.ndarray:
        """Return what a layer gives."""
        at = f"blk.{i}."
        mixed = self.linear(f"{at}attn_output", mixed)
        x = x + self.norm(f"{at}post_attention_norm", mixed)
        inner = self.norm(f"{at}ffn_norm", x)
        inner = _gelu(self.linear(f"{at}ffn_gate", inner)) * self.linear(f"{at}ffn_up", inner)
        return (x + self.norm(f"{at}post_ffw_norm", self.linear(f"{at}ffn_down", inner))) * _SCALE


class Reference(_Model):
    """A target that has read a text, and an assistant that looks at the keys and values of its last
    two layers. states: the target's final ones; rows: its logits.
    """

    def __init__(self, tokens, weights=None, assistant=None) -> None:
        super().__init__(weights or target_weights())
        self._assistant = _Assistant(assistant or assistant_weights(), self)
        self.n, self.kept = len(tokens), {}
        x = self.embedded(tokens)
        for i, slides in enumerate(PATTERN):
            queries = self._queries(i, slides, x, range(self.n))
            self.kept[slides] = keys, values = self._keys(i, slides, x)
            sees = np.tri(self.n, dtype=bool)
            if slides:
                sees &= ~np.tri(self.n, k=-WINDOW, dtype=bool)
            x = self._behind(i, x, attention(queries, keys, values, sees))
        self.states = self.norm("output_norm", x)
        self.rows = self.linear("output", self.states)

    def embedded(self, tokens) -> np.ndarray:
        """Return the embeddings of tokens as they go in."""
        return self.weights["token_embd.weight"][list(tokens)] * WIDTH**0.5

    def guess(self, path, state: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return the assistant's row after a path of tokens, and its state."""
        state = self.states[-1] if state is None else state
        for token in path:
            row, state = self._assistant.step(token, state)
        return row, state

    def _keys(self, i: int, slides: bool, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x, size = self.norm(f"blk.{i}.attn_norm", x), _SIZES[slides]
        keys, values = (
            self.linear(f"blk.{i}.attn_{name}", x).reshape(self.n, _N_KV, size) for name in "kv"
        )
        keys = rotated(self.norm(f"blk.{i}.attn_k_norm", keys), range(self.n), _BASES[slides])
        return keys, values / np.sqrt((values**2).mean(-1, keepdims=True) + EPSILON)


class _Assistant(_Model):
    def __init__(self, weights: dict[str, np.ndarray], target: Reference) -> None:
        super().__init__(weights)
        self._target = target

    def step(self, token: int, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the row after a token that goes in with a state, and the next state."""
        n = self._target.n
        x = np.concatenate([self._target.embedded([token])[0], state])
        x = self.linear("nextn.pre_projection", x[None])
        for i, slides in enumerate(OWN_PATTERN):
            keys, values = self._target.kept[slides]
            sees = np.arange(n)[None] > n - WINDOW if slides else np.ones((1, n), bool)
            mixed = attention(self._queries(i, slides, x, [n]), keys, values, sees)
            x = self._behind(i, x, mixed)
        x = self.norm("output_norm", x)
        return self.linear("token_embd", x)[0], self.linear("nextn.post_projection", x)[0]
