"""Checks of projector files (mmproj), the part of a model that sees, before the engine opens them:
it ends the process for some damaged ones, and loads others silently.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from ...config import EngineConfig
from ...errors import ConfigError, ModelError
from ..files import size_of
from ..projectors import ProjectorFacts
from .metadata import Header, read_header

logger = logging.getLogger("edgespec.llama_cpp")

_ARCHITECTURE = "clip"
_PREFIX = "clip.vision."
_BOUNDS = {
    "image_size": (1, 1 << 14),
    "patch_size": (1, 1 << 10),
    "embedding_length": (1, 1 << 16),
    "feed_forward_length": (1, 1 << 20),
    "block_count": (1, 512),
    "attention.head_count": (1, 1 << 12),
    "projection_dim": (0, 1 << 20),
}
_COLOURS = ("image_mean", "image_std")  # a number for each of the three colours
_LONGEST_KIND = 64  # characters
_OF_STATES = (
    "patch_embd.bias",
    "class_embd",
    "pre_ln.weight",
    "pre_ln.bias",
    "post_ln.weight",
    "post_ln.bias",
)  # tensors with a number for each of a state, which may be missing
Shape = tuple[int, ...]  # the number of columns first, as in a GGUF


def projector_facts(path: Path) -> ProjectorFacts | None:
    """Return the description of a projector; None for a file that is something else. Raises the
    errors of `check`.
    """
    header = read_header(path)
    return check(path) if header.text("general.architecture") == _ARCHITECTURE else None


def check(path: Path) -> ProjectorFacts:
    """Check a projector file without opening it with the engine; return what it says about itself.

    Raises ModelError or a subclass for files that the engine could not load, or that would end the
    process; ConfigError for a file that is something else, and for a model that only hears.
    """
    header = read_header(path)
    if header.text("general.architecture") != _ARCHITECTURE:
        raise ConfigError(
            f"{path} is a model of the architecture {header.text('general.architecture')!r:.80}, "
            "not a projector: name the mmproj-….gguf that was published with the model"
        )
    sees = header.metadata.get("clip.has_vision_encoder", False)
    if not isinstance(sees, bool):
        _refuse(header, f"clip.has_vision_encoder {sees!r:.80}", "true or false")
    if not sees:
        raise ConfigError(f"{path} hears and does not see: models take text and pictures, no sound")
    kind = header.text("clip.projector_type") or header.text("clip.vision.projector_type")
    numbers = {key: _number(header, key, *bounds) for key, bounds in _BOUNDS.items()}
    if numbers["embedding_length"] % numbers["attention.head_count"]:
        _refuse(
            header,
            f"states of {numbers['embedding_length']} numbers for "
            f"{numbers['attention.head_count']} attention heads",
            "a multiple",
        )
    if numbers["image_size"] < numbers["patch_size"]:
        _refuse(header, f"pictures of {numbers['image_size']} pixels", "at least one patch")
    for key in _COLOURS:
        _check_colours(header, key)
    if not kind:
        _refuse(header, "no clip.projector_type", "one")
    if not kind.isprintable() or len(kind) > _LONGEST_KIND:
        _refuse(header, f"clip.projector_type {kind!r:.80}", "a name")
    _check_other_numbers(header)
    if kind not in _LAST:
        logger.warning("%s: projectors of the kind %s were never tried", path.name, kind)
        return ProjectorFacts(path, kind, size_of(path))
    for name, shape in _tensors(kind, header, numbers):
        _check_tensor(header, name, shape)
    most = _most_tokens(header, kind, numbers)
    return ProjectorFacts(path, kind, size_of(path), _width(header, kind), most)


def _refuse(header: Header, value: str, expected: str) -> NoReturn:
    raise ModelError(
        f"{header.path} cannot be a projector: it has {value}, expected {expected}; fetch it again"
    )


def _number(header: Header, key: str, least: int, most: int) -> int:
    value = header.metadata.get(_PREFIX + key, least if least == 0 else None)
    if not isinstance(value, int) or not least <= value <= most:
        _refuse(header, f"{_PREFIX}{key} {value!r:.80}", f"{least} to {most}")
    return value


def _check_colours(header: Header, key: str) -> None:
    values = header.metadata.get(_PREFIX + key)
    is_list = isinstance(values, list) and len(values) == 3
    if not is_list or not all(map(_is_number, values or ())):
        _refuse(header, f"{_PREFIX}{key} {values!r:.80}", "three numbers")
    if key == "image_std" and not all(abs(value) > 1e-6 for value in values or ()):
        _refuse(header, f"{_PREFIX}{key} {values!r:.80}", "numbers other than 0")


def _is_number(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def _check_other_numbers(header: Header) -> None:
    """Refuse numbers that may be missing and would end the process."""
    epsilon = header.metadata.get(_PREFIX + "attention.layer_norm_epsilon", 1e-6)
    if not _is_number(epsilon) or not 0 <= epsilon <= 1:
        _refuse(header, f"{_PREFIX}attention.layer_norm_epsilon {epsilon!r:.80}", "0 to 1")
    _number(header, "preproc_image_size", 0, 1 << 16)
    sizes = header.metadata.get(_PREFIX + "image_grid_pinpoints", [])
    is_list = isinstance(sizes, list) and len(sizes) % 2 == 0
    if not is_list or not all(isinstance(each, int) and 0 < each < 1 << 16 for each in sizes):
        _refuse(header, f"{_PREFIX}image_grid_pinpoints {sizes!r:.80}", "widths and heights")


def _check_tensor(header: Header, name: str, shape: Shape) -> None:
    """Refuse a file without this tensor, or with one of a different shape; 0 is any size."""
    layout = header.layouts.get(name)
    if layout is None:
        _refuse(header, f"no tensor {name}", f"one of {list(shape)}")
    sizes = (*layout.shape, *[1] * (4 - len(layout.shape)))[: max(len(shape), 1)]
    fits = all(want in (0, got) for want, got in zip(shape, sizes, strict=False))
    if not fits or len(layout.shape) > max(len(shape), 1):
        _refuse(header, f"a tensor {name} of {list(layout.shape)}", f"{list(shape)}")


# The last matrix of each kind that was tried, and the place of the width of embeddings in its shape
_LAST = {
    "mlp": ("mm.2.weight", 1),
    "idefics3": ("mm.model.fc.weight", 1),
    "gemma3": ("mm.input_projection.weight", 0),
    "qwen2vl_merger": ("mm.2.weight", 1),
    "qwen2.5vl_merger": ("mm.2.weight", 1),
    "qwen3vl_merger": ("mm.2.weight", 1),
}
_BIASED = ("attn_q", "attn_k", "attn_v", "attn_qkv")
_IN_GROUPS = ("qwen2vl_merger", "qwen2.5vl_merger", "qwen3vl_merger")  # four patches are a token


def _width(header: Header, kind: str) -> int:
    name, place = _LAST[kind]
    return (*header.layouts[name].shape, 1)[place] * (1 + len(_deep(header)))


def _most_tokens(header: Header, kind: str, numbers: dict[str, int]) -> int:
    """Return the most tokens of a picture, as libmtmd cuts it into tiles; 0 if not known."""
    if kind in _IN_GROUPS:  # any size, scaled down to this many tokens
        return EngineConfig().image_max_tokens
    tile = (_side(numbers) // _scale(header, kind, numbers)) ** 2
    if kind == "idefics3":  # a grid of tiles, and the whole picture as one
        longest = header.metadata.get(_PREFIX + "preproc_image_size", 0)
        n = -(-longest // numbers["image_size"]) if isinstance(longest, int) else 0
        return tile * (n * n + 1) if n else 0
    return 0 if _PREFIX + "image_grid_pinpoints" in header.metadata else tile


def _side(numbers: dict[str, int]) -> int:
    """Return how many patches a row of a tile has."""
    return numbers["image_size"] // numbers["patch_size"]


def _scale(header: Header, kind: str, numbers: dict[str, int]) -> int:
    """Return how many patches in a row become one token. A remainder would end the process."""
    if kind == "mlp":
        return 1
    scale = header.metadata.get(_PREFIX + "projector.scale_factor", 4 if kind == "gemma3" else 0)
    side = _side(numbers)
    if not isinstance(scale, int) or scale < 1 or side % scale:
        _refuse(
            header,
            f"{_PREFIX}projector.scale_factor {scale!r:.80}",
            f"a divisor of {side}, the patches in a row",
        )
    return scale


def _tensors(kind: str, header: Header, numbers: dict[str, int]) -> Iterator[tuple[str, Shape]]:
    """Yield the name and the shape of each tensor that a kind of projector must have; a size of 0
    is any.
    """
    width, feed, patch = (
        numbers[key] for key in ("embedding_length", "feed_forward_length", "patch_size")
    )
    yield "v.patch_embd.weight", (patch, patch, 3, width)
    if kind in _IN_GROUPS:
        yield "v.patch_embd.weight.1", (patch, patch, 3, width)
        if kind == "qwen3vl_merger":
            yield from (("v.patch_embd.bias", (width,)), ("v.position_embd.weight", (width, 0)))
    else:
        n_positions = _side(numbers) ** 2 + ("v.class_embd" in header.layouts)
        yield "v.position_embd.weight", (width, n_positions)
    for i in range(numbers["block_count"]):
        yield from _layer(f"v.blk.{i}.", kind, header, width, feed)
    for name in _OF_STATES:
        if f"v.{name}" in header.layouts:
            yield f"v.{name}", (width,)
    merged = width * _merged(header, kind, numbers)
    if kind == "gemma3":
        yield "mm.soft_emb_norm.weight", (width,)
        yield "mm.input_projection.weight", (0, width)
    elif kind == "idefics3":
        yield "mm.model.fc.weight", (merged, 0)
    else:
        yield from _two(header, "mm.0", "mm.2", merged, kind == "mlp")
    for i in _deep(header):
        start = f"v.deepstack.{i}."
        yield from ((f"{start}norm.{end}", (merged,)) for end in ("weight", "bias"))
        yield from _two(header, f"{start}fc1", f"{start}fc2", merged, False)


def _two(
    header: Header, first: str, second: str, width: int, is_biased: bool
) -> Iterator[tuple[str, Shape]]:
    """Yield two matrices, where the second reads the output of the first, and their biases, which
    may be missing unless `is_biased`.
    """
    n_out = {name: layout.shape[1:2] for name, layout in header.layouts.items()}
    yield f"{first}.weight", (width, 0)
    yield f"{second}.weight", (*n_out[f"{first}.weight"], 0)
    for name in (first, second):
        if is_biased or f"{name}.bias" in header.layouts:
            yield f"{name}.bias", n_out[f"{name}.weight"]


def _deep(header: Header) -> list[int]:
    """Return the layers of a tower that make embeddings for the first layers of the model."""
    names = [name.split(".") for name in header.layouts if name.startswith("v.deepstack.")]
    return sorted({int(parts[2]) for parts in names if parts[2].isdecimal()})


def _merged(header: Header, kind: str, numbers: dict[str, int]) -> int:
    """Return how many patches become one token before the last matrix."""
    if kind in _IN_GROUPS:
        return 4
    return _scale(header, kind, numbers) ** 2 if kind == "idefics3" else 1


def _layer(
    start: str, kind: str, header: Header, width: int, feed: int
) -> Iterator[tuple[str, Shape]]:
    """Yield the tensors of a layer. A gate may be missing, and most biases."""
    if f"{start}attn_qkv.weight" in header.layouts:
        names = {"attn_qkv": (width, 3 * width)}
    else:
        names = {f"attn_{each}": (width, width) for each in "qkv"}
    names |= {"attn_out": (width, width), "ffn_up": (width, feed), "ffn_down": (feed, width)}
    if f"{start}ffn_gate.weight" in header.layouts:
        names["ffn_gate"] = (width, feed)
    if header.layouts.get(f"{start}ffn_up.weight", (0, ()))[1] == (feed, width) != (width, feed):
        names |= {"ffn_up": (feed, width), "ffn_down": (width, feed)}  # older files swap the two
    for name, (n_in, n_out) in names.items():
        yield f"{start}{name}.weight", (n_in, n_out)
        is_read = kind in _IN_GROUPS and name in _BIASED  # without a check
        if is_read or f"{start}{name}.bias" in header.layouts:
            yield f"{start}{name}.bias", (n_out,)
    for norm in ("ln1", "ln2"):
        yield f"{start}{norm}.weight", (width,)
        if f"{start}{norm}.bias" in header.layouts:
            yield f"{start}{norm}.bias", (width,)
