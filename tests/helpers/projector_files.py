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

KINDS = ("mlp", "idefics3", "gemma3", "qwen2vl_merger")
TEXTS = dict(zip(KINDS, ("llama", "llama", "gemma3", "qwen2vl"), strict=True))
"""The architecture of the text model for each kind."""

N_LAYER = 2  # of the tiny text models
PATCH = 14
SECTIONS = {"qwen2vl.rope.dimension_sections": (ARRAY, (INT32, [2, 1, 1, 0]))}
AROUND = (b"<fake_token_around_image>", b"<global-img>", b"\n\n")  # tokens that idefics3 needs
_IN_GROUPS = "qwen2vl_merger"  # has no learned positions; four patches are a token

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
    else:
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


def write(path: Path, kind: str, n_out: int = WIDTH, **options) -> Path:
    """Write a projector and return its path. options: arguments of `weights`."""
    sizes = {key: options[key] for key in ("width", "n_layer") if key in options}
    made = weights(kind, n_out, **options)
    path.write_bytes(gguf_bytes(metadata(kind, n_out, **sizes), made))
    return path


def write_text(path: Path, kind: str, n_ctx: int = 1024) -> Path:
    """Write the tiny text model for a kind of projector and return its path."""
    architecture = TEXTS[kind]
    told = tiny_models.metadata(architecture, N_LAYER, n_ctx)
    made = tiny_models.weights(architecture, N_LAYER)
    if architecture == "qwen2vl":
        told |= SECTIONS
    add_tokens(told, made)
    path.write_bytes(gguf_bytes(told, made))
    return path


def add_tokens(told: dict[str, Field], made: Weights) -> None:
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
