"""Tiny GGUF files, byte by byte, so that everything in them can be wrong."""

import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = range(11)
INT64, FLOAT64 = 11, 12
_FORMATS = "BbHhIif?..Qqd"
GGML_TYPES = {"float32": 0, "int64": 27}  # of weights

WIDTH, FEED, HEADS = 32, 64, 4
TOKENS = [b"<unk>", b"<s>", b"</s>", *(b"<0x%02X>" % i for i in range(256))]

Field = tuple[int, Any]  # a type and a value; of an array (element type, values)


def fields() -> dict[str, Field]:
    """Return the metadata of a Llama of one layer over bytes."""
    return {
        "general.architecture": (STRING, b"llama"),
        "general.name": (STRING, b"tiny"),
        "general.alignment": (UINT32, 32),
        "general.file_type": (UINT32, 0),
        "llama.context_length": (UINT32, 64),
        "llama.embedding_length": (UINT32, WIDTH),
        "llama.block_count": (UINT32, 1),
        "llama.feed_forward_length": (UINT32, FEED),
        "llama.rope.dimension_count": (UINT32, WIDTH // HEADS),
        "llama.rope.freq_base": (FLOAT32, 10000.0),
        "llama.attention.head_count": (UINT32, HEADS),
        "llama.attention.head_count_kv": (UINT32, HEADS),
        "llama.attention.layer_norm_rms_epsilon": (FLOAT32, 1e-5),
        "llama.vocab_size": (UINT32, len(TOKENS)),
        "tokenizer.ggml.model": (STRING, b"llama"),
        "tokenizer.ggml.pre": (STRING, b"default"),
        "tokenizer.ggml.tokens": (ARRAY, (STRING, TOKENS)),
        "tokenizer.ggml.scores": (ARRAY, (FLOAT32, [0.0] * len(TOKENS))),
        "tokenizer.ggml.token_type": (ARRAY, (INT32, [2, 3, 3] + [6] * 256)),
        "tokenizer.ggml.bos_token_id": (UINT32, 1),
        "tokenizer.ggml.eos_token_id": (UINT32, 2),
        "tokenizer.ggml.add_bos_token": (BOOL, True),
        "tokenizer.chat_template": (STRING, b"{{ messages[0].content }}"),
    }


def tensors() -> dict[str, np.ndarray]:
    """Return the weights of that Llama, float32 in [rows, columns]."""
    rng = np.random.default_rng(0)
    shapes = {"token_embd": (len(TOKENS), WIDTH), "output": (len(TOKENS), WIDTH)}
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        shapes[f"blk.0.{name}"] = (WIDTH, WIDTH)
    shapes |= {"blk.0.ffn_gate": (FEED, WIDTH), "blk.0.ffn_up": (FEED, WIDTH)}
    shapes["blk.0.ffn_down"] = (WIDTH, FEED)
    found = {f"{name}.weight": rng.normal(size=shape) * 0.3 for name, shape in shapes.items()}
    norms = ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm")
    found |= {f"{name}.weight": np.ones(WIDTH) for name in norms}
    return {name: value.astype(np.float32) for name, value in found.items()}


def text(value: bytes) -> bytes:
    """Return a string as GGUF has it."""
    return struct.pack("<Q", len(value)) + value


def value(kind: int, content: Any) -> bytes:
    """Return a value as GGUF has it, without its type."""
    if kind == STRING:
        return text(content)
    if kind == ARRAY:
        element, values = content
        if element < len(_FORMATS) and _FORMATS[element] != ".":
            body = struct.pack(f"<{len(values)}{_FORMATS[element]}", *values)
        else:
            body = b"".join(value(element, each) for each in values)
        return struct.pack("<IQ", element, len(values)) + body
    return struct.pack("<" + _FORMATS[kind], content)


def gguf_bytes(
    metadata: dict[str, Field], weights: dict[str, np.ndarray], version: int = 3
) -> bytes:
    """Return a whole file."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(weights), len(metadata))
    for key, (kind, content) in metadata.items():
        head += text(key.encode()) + struct.pack("<I", kind) + value(kind, content)
    data = b""
    for name, array in weights.items():
        head += text(name.encode()) + struct.pack("<I", array.ndim)
        kind = GGML_TYPES[array.dtype.name]
        head += struct.pack(f"<{array.ndim}QIQ", *reversed(array.shape), kind, len(data))
        data += array.tobytes() + bytes(-array.nbytes % 32)
    return head + bytes(-len(head) % 32) + data


def write(path: Path, **changed: Field | None) -> Path:
    """Write the tiny Llama, some of its metadata changed (None: left out); "__" stands for "."."""
    metadata: dict[str, Any] = fields()
    metadata |= {key.replace("__", "."): content for key, content in changed.items()}
    left = {key: content for key, content in metadata.items() if content is not None}
    path.write_bytes(gguf_bytes(left, tensors()))
    return path


def damaged(whole: bytes, head: int, n: int, seed: int = 7) -> Iterator[bytes]:
    """Yield `n` copies of a file with random damage in its first `head` bytes."""
    rng = random.Random(seed)
    numbers = (0, 1, 255, 65536, 2**31, 2**32 - 1, 2**63, 2**64 - 1)
    for _ in range(n):
        data = bytearray(whole)
        for _ in range(rng.choice((1, 2, 8))):
            at = rng.randrange(head)
            how = rng.randrange(3)
            if how == 0:
                data[at] = rng.randrange(256)
            elif how == 1:
                data[at : at + 8] = struct.pack("<Q", rng.choice(numbers))
            else:
                del data[at : at + rng.randrange(1, 9)]
        yield bytes(data)
