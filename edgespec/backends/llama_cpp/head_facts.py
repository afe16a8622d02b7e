"""Facts about trained heads and their targets in GGUF files, read without the engine."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..files import size_of
from ..heads import FINAL, HeadFacts, Kind, TargetSizes
from .damage import check
from .metadata import BLOCKS, Header, Layout
from .nextn import is_sidecar, mtp_layers, n_declared

ASSISTANT = "gemma4-assistant"
ARCHITECTURES: dict[str, Kind] = {"eagle3": "eagle3", "dflash": "dflash", ASSISTANT: "mtp"}
"""The architectures of heads, which are not complete models, and the kind of each."""

_EMBEDDING = "token_embd.weight"
_NAMES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 10: "Q2_K",
    11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 20: "IQ4_NL", 23: "IQ4_XS", 30: "BF16",
    39: "MXFP4",
}  # fmt: skip  # of ggml_types
_OF_LAYERS = ("target_layers", "target_layer_ids")


_WIDTHS = {"eagle3": "target_hidden_size", ASSISTANT: "embedding_length_out"}  # of the target


def is_head(path: Path) -> bool:
    """Return True if a file is a head and not a complete model. Raises ModelError or a subclass."""
    header = check(path)
    return header.text("general.architecture") in ARCHITECTURES or is_sidecar(path, header)


def head_facts(path: Path) -> HeadFacts:
    """Return the description of a head, read from its file's header; the head may be in its
    target's file. Raises ModelError or a subclass.
    """
    header = check(path)
    architecture = header.text("general.architecture")
    mtp, size = mtp_layers(path), size_of(path)
    if mtp and not mtp.alone:
        size = _n_bytes_of(header, (f"blk.{mtp.n_layer + i}." for i in range(mtp.n)))
    d2t, assists = header.layouts.get("d2t"), architecture == ASSISTANT
    all_read = mtp or assists  # embeddings, too: they are also the output weights
    read_size = size - (0 if all_read else _n_bytes(header.layouts.get(_EMBEDDING)))
    width = _number(header, f"{architecture}.{_WIDTHS.get(architecture, 'embedding_length')}")
    depth = mtp.max_depth if mtp else max(0, _number(header, "dflash.block_size") - 1)
    return HeadFacts(
        kind=ARCHITECTURES.get(architecture, "mtp"),
        layers=(mtp.reads,) if mtp else (FINAL,) if assists else _layers(header, architecture),
        sizes=TargetSizes(width, header.vocab_size, mtp.n_layer if mtp else 0),
        n_drafted=d2t.shape[0] if d2t and d2t.shape else header.vocab_size,
        size=size,
        read_size=read_size,
        max_depth=depth,
        n_ctx_train=_number(header, f"{architecture}.context_length"),
        precision=_precision(header),
        license=header.text("general.license") or "unknown",
        source=header.text("general.name"),
    )


def target_sizes(path: Path) -> TargetSizes:
    """Return the sizes of a model. Raises ModelError or a subclass."""
    header = check(path)
    prefix = header.text("general.architecture")
    width = _number(header, f"{prefix}.embedding_length")
    n_layer = _number(header, f"{prefix}.block_count") - n_declared(header)
    return TargetSizes(width, header.vocab_size, max(0, n_layer))


def _number(header: Header, key: str) -> int:
    value: Any = header.metadata.get(key)
    return value if isinstance(value, int) and value > 0 else 0


def _layers(header: Header, architecture: str) -> tuple[int, ...]:
    """Return the target's layers that a head reads, () if the file does not state them."""
    for key in _OF_LAYERS:
        layers = header.metadata.get(f"{architecture}.{key}")
        if isinstance(layers, list) and all(isinstance(layer, int) for layer in layers):
            return tuple(layers)
    return ()


def _n_bytes_of(header: Header, prefixes: Iterable[str]) -> int:
    """Return the size in bytes of the tensors whose names begin with one of these prefixes."""
    begins = tuple(prefixes)
    return sum(_n_bytes(each) for name, each in header.layouts.items() if name.startswith(begins))


def _n_bytes(layout: Layout | None) -> int:
    """Return the size of a tensor in bytes, 0 if there is none or its type is unknown."""
    if layout is None:
        return 0
    elements, n_bytes = BLOCKS.get(layout.kind, (1, 0))
    return math.prod(layout.shape) // elements * n_bytes


def _precision(header: Header) -> str:
    """Return the number format that most bytes of the matrices have."""
    totals: Counter[int] = Counter()
    for name, layout in header.layouts.items():
        if name != _EMBEDDING and len(layout.shape) > 1:
            totals[layout.kind] += _n_bytes(layout)
    kind = max(totals, key=totals.__getitem__, default=-1)
    return _NAMES.get(kind, f"type {kind}" if kind >= 0 else "unknown")
