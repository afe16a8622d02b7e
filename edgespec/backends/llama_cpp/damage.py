"""Checks of a GGUF before the engine opens it. They raise an error for files on which the engine
would end the process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import ModelError, ModelNotFound
from ..files import split_parts
from .metadata import Header, read_header

_BOUNDS = {  # the least and the greatest value of keys with the architecture's prefix
    "block_count": (1, 512),  # llama.cpp's LLAMA_MAX_LAYERS
    "context_length": (1, 1 << 30),
    "embedding_length": (1, 1 << 20),
    "attention.head_count": (0, 1 << 16),  # 0 in recurrent layers
    "attention.head_count_kv": (0, 1 << 16),
    "attention.key_length": (1, 1 << 16),
    "attention.value_length": (1, 1 << 16),
    "expert_count": (0, 512),  # llama.cpp's LLAMA_MAX_EXPERTS
}
_OF_LAYERS = ("attention.head_count", "attention.head_count_kv")  # one value per layer, or for all
_ALIGNMENT = 32  # bytes; the engine uses weights in place, where they lie in the file
_WHOLE_HEADS = ("qwen2.", "qwen3.")
_FILLED = ("qwen2.",)  # architectures whose attention heads together fill the width of a state
_NAMED = 8  # how many missing parts a message names
_BYTE = 6  # the type of byte tokens
_AFTER_TOKENS = ("tokenizer.ggml.scores", "tokenizer.ggml.token_type")


def check(path: Path) -> Header:
    """Check that the metadata of a model is plausible and its files are complete; return its
    header.

    Raises ModelNotFound for a missing part of a split model, NotAGGUF, TruncatedModel and
    ModelError. Each message says what was found and what was expected.
    """
    files = [path.with_name(name) for name in split_parts(path.name)] or [path]
    _check_parts(path, files)
    headers = [read_header(part) for part in files]
    for header in headers:
        _check_alignment(header)
    header = headers[0]
    _check_numbers(header)
    _check_vocabulary(header)
    return header


def _check_parts(path: Path, files: list[Path]) -> None:
    missing = [part.name for part in files if part != path and not part.exists()]
    if missing:
        more = " …" if len(missing) > _NAMED else ""
        raise ModelNotFound(
            f"{path} is one of {len(files)} parts; not beside it: "
            f"{', '.join(missing[:_NAMED])}{more}; fetch them all into one folder"
        )
    if path != files[0]:
        raise ModelError(
            f"{path} is a later part of a model of {len(files)} files; give {files[0].name}"
        )


def _refuse(header: Header, found: str, expected: str) -> None:
    raise ModelError(
        f"{header.path} cannot be a model: {found}, expected {expected}; it is damaged or made to "
        "do harm: fetch it again from where you trust"
    )


def _check_alignment(header: Header) -> None:
    for name, offset in header.tensors.items():
        if offset % _ALIGNMENT:
            _refuse(
                header,
                f"the tensor {name!r:.80} lies at byte {offset}",
                f"a multiple of {_ALIGNMENT}",
            )


def _check_numbers(header: Header) -> None:
    prefix = header.text("general.architecture") + "."
    for key, (least, most) in _BOUNDS.items():
        given = header.metadata.get(prefix + key, least)
        of_layers = isinstance(given, list) and key in _OF_LAYERS
        for value in given if of_layers else [given]:
            if not isinstance(value, int) or not least <= value <= most:
                _refuse(header, f"{prefix + key} is {value!r:.80}", f"{least} to {most}")
    _check_experts(header, prefix)
    _check_rotary(header, prefix)
    for key, value in header.metadata.items():
        if key.endswith("epsilon") and not (isinstance(value, float) and 0 <= value < math.inf):
            _refuse(header, f"{key} is {value!r:.80}", "a number that is not negative")


def _check_experts(header: Header, prefix: str) -> None:
    """Refuse impossible counts of used experts and expert groups or of MTP layers."""

    def number(name: str, default: int = 0) -> int:
        given = header.metadata.get(prefix + name, default)
        if not isinstance(given, int):
            _refuse(header, f"{prefix + name} is {given!r:.80}", "a whole number")
        return int(given)

    experts = number("expert_count")
    used, groups = number("expert_used_count"), number("expert_group_count")
    fine = 0 < used <= experts and groups < experts if experts else used == groups == 0
    if not fine or (groups > 1 and experts % groups):
        _refuse(
            header,
            f"{used} of {experts} experts in {groups} groups are used",
            "some of them, and groups of one size",
        )
    if number("nextn_predict_layers") > number("block_count", 1):
        _refuse(header, "it has more layers for next tokens than layers", "fewer")


def _check_rotary(header: Header, prefix: str) -> None:
    """Refuse rotary embeddings over 0 numbers of a head, over an odd count, or over more than the
    head has. For architectures that rotate whole heads, also refuse any count other than the head's
    width.
    """
    heads: Any = header.metadata.get(prefix + "attention.head_count")
    width: Any = header.metadata.get(prefix + "embedding_length")
    is_known = isinstance(heads, int) and isinstance(width, int)
    usual = width // max(1, heads) if is_known else 0
    rotated = size = header.metadata.get(prefix + "attention.key_length", usual)
    for end in ("", "_swa"):  # _swa: layers with a sliding window, by default like the others
        key = f"{prefix}rope.dimension_count{end}"
        if (rotated := header.metadata.get(key, rotated)) == 0 and key in header.metadata:
            _refuse(header, f"{key} is 0", "some numbers of a head")  # the engine would run forever
        size = header.metadata.get(f"{prefix}attention.key_length{end}", size)
        if not isinstance(rotated, int) or not isinstance(size, int) or rotated % 2:
            _refuse(header, f"{rotated!r:.80} numbers of a head are rotated", "an even number")
        if not 0 <= rotated <= (size or rotated):
            _refuse(header, f"{rotated} numbers of a head are rotated", f"at most {size}")
    if prefix not in _WHOLE_HEADS or not is_known:
        return
    head = header.metadata.get(prefix + "attention.key_length", usual)
    rotated = header.metadata.get(prefix + "rope.dimension_count", head)
    value = header.metadata.get(prefix + "attention.value_length", usual)
    if not head == rotated == value:
        _refuse(header, f"heads of {head} and {value} are rotated in {rotated}", "the same width")
    if prefix in _FILLED and heads * head != width:
        _refuse(header, f"{heads} heads of {head} are in states of {width}", "as many numbers")


def _check_vocabulary(header: Header) -> None:
    """Refuse vocabularies with no tokens, equal tokens, or missing scores, types or byte tokens."""
    tokens, kind = header.tokens, header.text("tokenizer.ggml.model")
    if not kind:  # the engine itself raises an error for this
        return
    if not tokens:
        _refuse(header, "it has no vocabulary", "a list of strings tokenizer.ggml.tokens")
    ids = {token or b"[EMPTY_%d]" % i: i for i, token in enumerate(tokens)}
    if len(ids) < len(tokens):
        twice = next((i, t) for i, t in enumerate(tokens) if ids[t or b"[EMPTY_%d]" % i] != i)
        other = ids[twice[1]]
        _refuse(header, f"tokens {twice[0]} and {other} are both {twice[1]!r:.80}", "no text twice")
    for key in _AFTER_TOKENS:
        listed = header.metadata.get(key, tokens)
        n = len(listed) if isinstance(listed, list) else 0
        if n != len(tokens):
            _refuse(header, f"{key} has {n} values", f"one for each of {len(tokens)} tokens")
    _check_kind(header, kind, ids)


def _check_kind(header: Header, kind: str, ids: Mapping[bytes, int]) -> None:
    """Refuse tokenizers that would end the process with the first text that they read."""
    if kind in ("none", "no_vocab"):
        _refuse(header, "it has no tokenizer", "one of llama.cpp's kinds")
    if kind == "bert":
        if _BYTE in header.metadata.get("tokenizer.ggml.token_type", []):
            _refuse(header, "it has byte tokens in a vocabulary of WordPieces", "none")
        for name, usual in (("bos", 101), ("seperator", 102)):  # llama.cpp spells it so
            key = f"tokenizer.ggml.{name}_token_id"
            if header.metadata.get(key, usual) not in range(len(ids)):
                _refuse(header, f"{key} is no token", f"one of its {len(ids)}")
    if kind == "llama":
        lacking = [i for i in range(256) if not {b"<0x%02X>" % i, bytes([i])} & ids.keys()]
        if lacking:
            _refuse(
                header, f"{len(lacking)} of 256 byte tokens are missing", f"<0x{lacking[0]:02X}>"
            )
