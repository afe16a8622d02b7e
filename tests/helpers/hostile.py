"""Files as somebody who means harm would write them: mutations of sound ones."""

from __future__ import annotations

import json
import os
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np

from tests.helpers.gguf_files import (
    ARRAY,
    BOOL,
    FLOAT32,
    FLOAT64,
    INT32,
    STRING,
    UINT32,
    UINT64,
    gguf_bytes,
)

NUMBERS = [0, 1, 2, 3, 7, 31, 33, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]
FIELDS = [
    *((UINT32, n) for n in NUMBERS),
    *((INT32, n) for n in (-1, -(1 << 31))),
    *((UINT64, n) for n in (1 << 40, (1 << 64) - 1)),
    *((FLOAT32, x) for x in (float("nan"), float("inf"), -1.0, 0.0, 1e38)),
    (FLOAT64, 1e308), (BOOL, True), (STRING, b""), (STRING, b"\xff\x00\n\x1b[2J"),
    (STRING, b"x" * 100_000), (ARRAY, (INT32, [])), (ARRAY, (INT32, [-1] * 3)),
    (ARRAY, (UINT32, [1 << 31] * 3)), (ARRAY, (FLOAT32, [float("nan")] * 4)),
    (ARRAY, (STRING, [b"", b""])), (ARRAY, (UINT32, [1] * 1000)),
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, -1, 0, 1, 3, 1 << 31, 1 << 62, 10**30, 1e308, -0.5, 1e-320, float("nan"),
    float("inf"), "", "x" * 5000, "\u202e\n\x1b[2J", "\ud800", [], [[]], {}, {"a": {}},
    [0] * 500, [-1], ["x"], [None],
]  # fmt: skip


def cut(data: bytes, rng: random.Random) -> bytes:
    """Return the beginning of a file."""
    return data[: rng.randrange(len(data))]


def flipped(data: bytes, rng: random.Random, most: int) -> bytes:
    """Return a file with another byte in four places among the first `most`."""
    found = bytearray(data)
    for _ in range(rng.choice([1, 1, 4])):
        found[rng.randrange(min(most, len(found)))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
    return bytes(found)


def with_another_value(content: Any, rng: random.Random) -> Any:
    """Return JSON of which one value, at any depth, is another one."""
    copied = holder = json.loads(json.dumps(content))
    while holder:
        key = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        inner = holder[key]
        if not isinstance(inner, dict | list) or not inner or rng.random() < 0.3:
            holder[key] = rng.choice(VALUES)
            break
        holder = inner
    return copied


def gguf(metadata: dict[str, Any], weights: dict[str, np.ndarray], rng: random.Random) -> bytes:
    """Return a GGUF that differs from a sound one in a few values, tensors or bytes."""
    metadata, weights = dict(metadata), dict(weights)
    way = rng.choice(["value", "value", "value", "gone", "shape", "tensor", "renamed", "bytes"])
    for _ in range(rng.choice([1, 1, 2]) if way == "value" else 0):
        metadata[rng.choice([k for k in metadata if "ggml.tokens" not in k])] = rng.choice(FIELDS)
    if way == "gone":
        del metadata[rng.choice(list(metadata))]
    name = rng.choice(list(weights))
    if way == "shape":
        n = rng.choice([(), (1,), (0,), (5, 7), (1, 1, 1, 1), weights[name].shape[::-1], (64, 64)])
        weights[name] = np.zeros(n, weights[name].dtype)
    if way == "tensor":
        del weights[name]
    if way == "renamed":
        weights[rng.choice(["x" * 70, "", "\n", *list(weights)[:2]])] = weights.pop(name)
    data = gguf_bytes(metadata, weights)
    return _other_bytes(data, len(gguf_bytes(metadata, {})), rng) if way == "bytes" else data


def _other_bytes(data: bytes, end: int, rng: random.Random) -> bytes:
    """Return a GGUF that is cut, or has other bytes. end: of its metadata."""
    way = rng.choice(["cut", "anywhere", "tensors", "length"])
    if way == "cut":
        return cut(data, rng)
    if way == "anywhere":
        return flipped(data, rng, 2 * end)
    if way == "tensors":  # their names, shapes, types and offsets
        return data[:end] + flipped(data[end:], rng, 1000)
    at = rng.randrange(4, end)
    return data[:at] + struct.pack("<Q", rng.choice([1 << 40, (1 << 64) - 1])) + data[at + 8 :]


def take_the_place_of(path: Path, rng: random.Random) -> None:
    """Make something that is no regular file."""
    way = rng.choice(["pipe", "folder", "nowhere", "device", "circle"])
    if way == "pipe":
        os.mkfifo(path)
    elif way == "folder":
        path.mkdir()
    else:
        path.symlink_to({"nowhere": "no-such-file", "device": "/dev/zero", "circle": path}[way])
