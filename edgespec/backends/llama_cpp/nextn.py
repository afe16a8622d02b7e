"""MTP layers in a GGUF (multi-token prediction, arXiv 2412.19437; GGUF calls them nextn). They come
after a model's own layers and guess further tokens. A file contains the model and its MTP layers,
or only the MTP layers.

If weights are missing, or llama.cpp has no graph for them, the engine would end the process when it
first evaluates the layers. So the weights are checked here, before the engine opens the file.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..files import split_parts
from ..heads import FINAL
from .damage import check
from .declarations import HEADS, missing
from .library import lib
from .metadata import Header, read_header

_EXPERTS = ("ffn_gate_inp", "ffn_down_exps")
_SHARED = ("ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp")
_GATED = (*_EXPERTS, *_SHARED, "ffn_gate_inp_shexp")
_DENSE = ("ffn_gate", "ffn_up", "ffn_down")


class _Graph(NamedTuple):
    """The weights that llama.cpp's graph needs for the MTP layers of an architecture.

    most: the most MTP layers; more would end the process. normed: the layers read the final states,
    not the output of the last layer. feeds: alternative sets of feed-forward weights; a layer needs
    all weights of one set. more: other weights that each layer needs.
    """

    most: int
    normed: bool
    feeds: tuple[tuple[str, ...], ...]
    more: tuple[str, ...] = ()


# Architectures whose MTP layers ran in tests, with random weights.
GRAPHS = {
    "glm4moe": _Graph(1, True, ((*_EXPERTS, *_SHARED),), ("post_attention_norm",)),
    "hy_v3": _Graph(16, True, (_DENSE, (*_EXPERTS, *_SHARED)), ("ffn_norm",)),
    "mimo2": _Graph(16, False, (_DENSE,), ("ffn_norm", "attn_qkv")),
    "qwen35": _Graph(1, True, (_DENSE,), ("post_attention_norm",)),
    "qwen35moe": _Graph(1, True, (_GATED,), ("post_attention_norm",)),
    "qwen3next": _Graph(1, True, (_GATED,), ("post_attention_norm",)),
}
ASSISTED = "gemma4"  # its MTP layers are in a separate file, and attend to its cache
_EACH = ("attn_norm", "attn_output", "nextn.eh_proj", "nextn.enorm", "nextn.hnorm")


@dataclass(frozen=True, slots=True)
class MtpLayers:
    """The MTP layers of a file.

    n: the number of MTP layers. n_layer: the number of the model's own layers, which come before
    them. reads: the layer of the target whose states the MTP layers read, as in `Model.tap`. alone:
    the model itself is in a different file. lacks: the names of weights that are missing.
    """

    n: int
    n_layer: int
    reads: int
    alone: bool
    lacks: tuple[str, ...]

    @property
    def max_depth(self) -> int:
        """The most tokens on a path: one for each of several layers; 0 (any number) for a single
        layer, which can be used repeatedly.
        """
        return self.n if self.n > 1 else 0


def reads(architecture: str, n_layer: int) -> int | None:
    """Return the layer whose states the MTP layers of an architecture read: FINAL or n_layer. The
    engine returns these states for every token at no cost. Return None if it cannot.
    """
    graph = GRAPHS.get(architecture)
    if missing(lib, HEADS) or not (graph or architecture == ASSISTED):
        return None
    return n_layer if graph and not graph.normed else FINAL


def mtp_layers(path: Path) -> MtpLayers | None:
    """Return the MTP layers in a file. Return None if it has none, or if the library could not
    evaluate them even with all their weights. Raises ModelError or a subclass.
    """
    return _layers(path, path.stat().st_mtime_ns if path.is_file() else 0)


@functools.lru_cache(maxsize=8)
def _layers(path: Path, changed: int) -> MtpLayers | None:
    """Return the result of `mtp_layers` for a file that was last changed at the time `changed`. The
    result is cached, because it is needed several times while a model is loaded, and reading a long
    vocabulary takes a tenth of a second.
    """
    header = check(path)
    architecture = header.text("general.architecture")
    graph, n = GRAPHS.get(architecture), n_declared(header)
    n_all = header.metadata.get(f"{architecture}.block_count", 0)
    if graph is None or not 0 < n <= graph.most or not n < n_all or missing(lib, HEADS):
        return None
    layers = range(n_all - n, n_all)
    names = set(_tensors(path, header))
    if not any(f"blk.{layer}.nextn.eh_proj.weight" in names for layer in layers):
        return None
    lacks = tuple(name for layer in layers for name in _lacking(graph, layer, names))
    read = FINAL if graph.normed else layers.start
    return MtpLayers(n, layers.start, read, "blk.0.attn_norm.weight" not in names, lacks)


def has_own_head(path: Path) -> bool:
    """Return True if a file has a model and also MTP layers for this model that can be evaluated
    here. Raises ModelError or a subclass.
    """
    layers = mtp_layers(path)
    return layers is not None and not (layers.alone or layers.lacks)


def is_sidecar(path: Path, header: Header) -> bool:
    """Return True if a file has MTP layers but not the model itself."""
    return n_declared(header) > 0 and "blk.0.attn_norm.weight" not in set(_tensors(path, header))


def n_declared(header: Header) -> int:
    """Return the number of MTP layers that a file's metadata states."""
    architecture = header.text("general.architecture")
    declared = header.metadata.get(f"{architecture}.nextn_predict_layers", 0)
    return declared if isinstance(declared, int) else 0


def _tensors(path: Path, header: Header) -> Iterable[str]:
    """Yield the names of all tensors of a model, including those in the other parts of a split
    model.
    """
    yield from header.tensors
    for name in split_parts(path.name)[1:]:
        yield from read_header(path.with_name(name)).tensors


def _lacking(graph: _Graph, layer: int, names: set[str]) -> list[str]:
    """Return the names of the weights that a layer needs and does not have."""

    def lacking(parts: Iterable[str]) -> list[str]:
        return [f"blk.{layer}.{p}.weight" for p in parts if f"blk.{layer}.{p}.weight" not in names]

    attention = [] if not lacking(("attn_qkv",)) else lacking(("attn_q", "attn_k", "attn_v"))
    feed = min((lacking(feed) for feed in graph.feeds), key=len)
    return [*lacking((*_EACH, *graph.more)), *attention, *feed]
