"""Projector files (mmproj) with random weights, of each kind that edgespec was tried with, and tiny
text models that they fit.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.helpers import tiny_models
from tests.helpers.gguf_files import (
    ARRAY,
    BOOL,
    FLOAT32,
    INT32,
    STRING,
    UINT32,
    WIDTH,
    Field,
    gguf_bytes,
)

TEXTS = {
    "mlp": "llama",
    "idefics3": "llama",
    "gemma3": "gemma3",
    "qwen2vl_merger": "qwen2vl",
    "qwen2.5vl_merger": "qwen2vl",
    "qwen3vl_merger": "qwen3vl",
}
"""The architecture of the text model for each kind."""
KINDS = tuple(TEXTS)

N_LAYER = 2  # of the tiny text models
PATCH = 14
AROUND = (b"<fake_token_around_image>", b"<global-img>", b"\n\n")  # tokens that idefics3 needs
_IN_GROUPS = ("qwen2vl_merger", "qwen2.5vl_merger", "qwen3vl_merger")  # four patches are a token

Weights = dict[str, np.ndarray]
Final = Callable[[int, int], np.ndarray]
"""Returns the last matrix of a projector, [n_out, n_in]."""


def side_of(kind: str) -> int:
    """Return the side of the pictures in pixels that a projector of this kind sees."""
    return 56 if kind == "mlp" else 112


def metadata(kind: str, n_out: int, width: int = 64, n_layer: int = 2) -> dict[str, Field]:
    """Return the metadata of a projector whose embeddings have `n_out` numbers."""
    numbers = {
        "image_size": side_of(kind), "patch_size": PATCH, "embedding_length": width,
        "feed_forward_length": 2 * width, "projection_dim": n_out, "block_count": n_layer,
        "attention.head_count": 4,
    }  # fmt: skip
    if kind in ("idefics3", "gemma3"):
        numbers["projector.scale_factor"] = 2
    if kind == "qwen2.5vl_merger":
        numbers["n_wa_pattern"] = 2  # every second layer sees the whole picture
    if kind == "qwen3vl_merger":
        numbers["spatial_merge_size"] = 2
    return {
        "general.architecture": (STRING, b"clip"),
        "general.type": (STRING, b"mmproj"),
        "clip.projector_type": (STRING, kind.encode()),
        "clip.has_vision_encoder": (BOOL, True),
        "clip.use_gelu": (BOOL, True),
        "clip.vision.attention.layer_norm_epsilon": (FLOAT32, 1e-6),
        "clip.vision.image_mean": (ARRAY, (FLOAT32, [0.5] * 3)),
        "clip.vision.image_std": (ARRAY, (FLOAT32, [0.5] * 3)),
    } | {f"clip.vision.{key}": (UINT32, value) for key, value in numbers.items()}


def weights(
    kind: str,
    n_out: int,
    width: int = 64,
    n_layer: int = 2,
    seed: int = 0,
    final: Final | None = None,
) -> Weights:
    """Return the weights of a projector: random ones, but for the last matrix if `final` is
    given.
    """
    rng = np.random.default_rng(seed)

    def matrix(*shape: int, scale: float = 1.0) -> np.ndarray:
        return rng.standard_normal(shape) * scale / np.sqrt(shape[-1])

    def vector(n: int, scale: float) -> np.ndarray:
        return rng.standard_normal(n) * scale

    made = {"v.patch_embd.weight": rng.standard_normal((width, 3, PATCH, PATCH)) * 3 / PATCH**2}
    n_places = (side_of(kind) // PATCH) ** 2
    if kind in _IN_GROUPS:
        second = rng.standard_normal((width, 3, PATCH, PATCH)) * 3 / PATCH**2
        made["v.patch_embd.weight.1"] = second
    if kind not in ("qwen2vl_merger", "qwen2.5vl_merger"):
        made["v.patch_embd.bias"] = vector(width, 0.5)
        places = rng.standard_normal((n_places + (kind == "mlp"), width)) * 0.5
        made["v.position_embd.weight"] = places
    if kind == "mlp":
        made |= {"v.class_embd": vector(width, 0.1), "v.pre_ln.weight": np.ones(width)}
        made["v.pre_ln.bias"] = np.zeros(width)
    for i in range(n_layer):
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            made[f"v.blk.{i}.{name}.weight"] = matrix(width, width)
            made[f"v.blk.{i}.{name}.bias"] = vector(width, 0.1)
        made[f"v.blk.{i}.ffn_up.weight"] = matrix(2 * width, width, scale=2)
        made[f"v.blk.{i}.ffn_up.bias"] = vector(2 * width, 0.5)
        made[f"v.blk.{i}.ffn_down.weight"] = matrix(width, 2 * width)
        made[f"v.blk.{i}.ffn_down.bias"] = vector(width, 0.1)
        for norm in ("ln1", "ln2"):
            made[f"v.blk.{i}.{norm}.weight"] = np.ones(width)
            made[f"v.blk.{i}.{norm}.bias"] = np.zeros(width)
    made |= {"v.post_ln.weight": np.ones(width), "v.post_ln.bias": np.zeros(width)}
    if kind == "qwen3vl_merger":
        _join(made, n_layer)
        deep, n = "v.deepstack.0.", 4 * width
        made |= {f"{deep}norm.weight": np.ones(n), f"{deep}norm.bias": np.zeros(n)}
        made |= {f"{deep}fc1.weight": matrix(n, n), f"{deep}fc1.bias": vector(n, 0.1)}
        made |= {f"{deep}fc2.weight": matrix(n_out, n), f"{deep}fc2.bias": vector(n_out, 0.1)}
    final = final or (lambda rows, columns: matrix(rows, columns, scale=0.3))
    if kind == "idefics3":
        made["mm.model.fc.weight"] = final(n_out, 4 * width)
    elif kind == "gemma3":
        made["mm.soft_emb_norm.weight"] = np.ones(width)
        made["mm.input_projection.weight"] = final(n_out, width).T
    else:
        n_in = 4 * width if kind in _IN_GROUPS else width
        hidden = n_out if kind == "mlp" else n_in
        made["mm.0.weight"], made["mm.0.bias"] = matrix(hidden, n_in), vector(hidden, 0.3)
        made["mm.2.weight"], made["mm.2.bias"] = final(n_out, hidden), np.zeros(n_out)
    return {name: np.ascontiguousarray(each, np.float32) for name, each in made.items()}


def _join(made: Weights, n_layer: int) -> None:
    """Join the matrices of queries, keys and values, as in Qwen3-VL."""
    for i in range(n_layer):
        for end in ("weight", "bias"):
            parts = [made.pop(f"v.blk.{i}.attn_{each}.{end}") for each in "qkv"]
            made[f"v.blk.{i}.attn_qkv.{end}"] = np.concatenate(parts)


def write(path: Path, kind: str, n_out: int = WIDTH, **options) -> Path:
    """Write a projector and return its path. options: arguments of `weights`."""
    sizes = {key: options[key] for key in ("width", "n_layer") if key in options}
    made = weights(kind, n_out, **options)
    path.write_bytes(gguf_bytes(metadata(kind, n_out, **sizes), made))
    return path


def write_text(
    path: Path, kind: str, n_ctx: int = 1024, *, window: int = 4096, noisy: bool = False
) -> Path:
    """Write the tiny text model for a kind of projector and return its path.

    window: of gemma3's layers. noisy: True for a draft model, which often agrees.
    """
    architecture = TEXTS[kind]
    told = tiny_models.metadata(architecture, N_LAYER, n_ctx)
    made = tiny_models.weights(architecture, N_LAYER)
    if architecture == "gemma3":
        told["gemma3.attention.sliding_window"] = (UINT32, window)
    elif architecture != "llama":
        told[f"{architecture}.rope.dimension_sections"] = (ARRAY, (INT32, [2, 1, 1, 0]))
    if architecture == "qwen3vl":
        told["qwen3vl.n_deepstack_layers"] = (UINT32, 1)
    _add_tokens(told, made)
    if noisy:
        rng = np.random.default_rng(9)
        for name, value in made.items():
            made[name] = value + 0.03 * value.std() * rng.standard_normal(value.shape)
    path.write_bytes(gguf_bytes(told, {k: v.astype(np.float32) for k, v in made.items()}))
    return path


def _add_tokens(told: dict[str, Field], made: Weights) -> None:
    """Add the tokens of `AROUND` to a vocabulary."""
    n = len(AROUND)
    for key, more in (("tokens", list(AROUND)), ("scores", [0.0] * n), ("token_type", [3] * n)):
        kind, (element, values) = told[f"tokenizer.ggml.{key}"]
        told[f"tokenizer.ggml.{key}"] = (kind, (element, [*values, *more]))
    for key in told:
        if key.endswith(".vocab_size"):
            told[key] = (UINT32, tiny_models.VOCABULARY + n)
    rng = np.random.default_rng(3)
    for name in ("token_embd.weight", "output.weight"):
        rows = rng.standard_normal((n, WIDTH)).astype(np.float32) * 0.3
        made[name] = np.concatenate([made[name], rows])


def colours(kind: str, *rows: tuple[int, int, int]) -> np.ndarray:
    """Return a picture of stripes in these colours, of the size that a projector sees."""
    side = side_of(kind)
    pixels = np.zeros((side, side, 3), np.uint8)
    for i, colour in enumerate(rows):
        pixels[i * side // len(rows) :] = colour
    return pixels


def noise(kind: str, seed: int = 0) -> np.ndarray:
    """Return a picture of random pixels."""
    side = side_of(kind)
    return np.random.default_rng(seed).integers(0, 256, (side, side, 3)).astype(np.uint8)
