"""Where tests and benchmarks look for real weights."""

import math
import os
import shutil
import struct
from pathlib import Path

import numpy as np

FOLDER = Path(os.environ.get("EDGESPEC_TEST_MODELS", Path.home() / ".cache/edgespec-test-models"))

_Q2_K = 10  # the nearest name for weights of so many bits
_Q4_1 = 3  # the type of a tensor
_FILE_TYPE = b"general.file_type" + struct.pack("<I", 4)  # a key, and the type of its value


def coarse_copy(path: Path, copy: Path) -> Path:
    """Copy SmolLM2's GGUF with 6 of 16 levels left in the weights of queries and keys: a draft
    model that agrees with it on three greedy tokens of four, made without the engine.
    """
    from edgespec.backends.llama_cpp.metadata import read_header

    coarse = np.array([min(3 * (level // 3) + 1, 15) for level in range(16)], np.uint8)
    shutil.copyfile(path, copy)
    header, data = read_header(copy), np.memmap(copy, mode="r+")
    for name, (kind, shape) in header.layouts.items():
        if name.rpartition("attn_")[2] in ("q.weight", "k.weight"):
            assert kind == _Q4_1
            start, size = header.tensors[name], math.prod(shape) // 32 * 20
            levels = data[start : start + size].reshape(-1, 20)[:, 4:]  # after scale and minimum
            levels[...] = coarse[levels & 15] | coarse[levels >> 4] << 4  # two a byte
    at = copy.read_bytes().index(_FILE_TYPE) + len(_FILE_TYPE)
    data[at : at + 4] = np.frombuffer(struct.pack("<I", _Q2_K), np.uint8)
    data.flush()
    return copy
