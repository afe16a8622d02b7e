"""Where tests and benchmarks look for real weights."""

import os
import shutil
from pathlib import Path

import numpy as np

FOLDER = Path(os.environ.get("EDGESPEC_TEST_MODELS", Path.home() / ".cache/edgespec-test-models"))

_Q2_K = 10  # the nearest name for weights of so many bits


def coarse_copy(path: Path, copy: Path) -> Path:
    """Copy SmolLM2's GGUF with 6 of 16 levels left in the weights of queries and keys: a draft
    model that agrees with it on three greedy tokens of four, made without the engine.
    """
    from gguf import GGMLQuantizationType, GGUFReader

    coarse = np.array([min(3 * (level // 3) + 1, 15) for level in range(16)], np.uint8)
    shutil.copyfile(path, copy)
    reader = GGUFReader(copy, "r+")
    for tensor in reader.tensors:
        if tensor.name.rpartition("attn_")[2] in ("q.weight", "k.weight"):
            assert tensor.tensor_type == GGMLQuantizationType.Q4_1
            levels = tensor.data.reshape(-1, 20)[:, 4:]  # two a byte, after scale and minimum
            levels[...] = coarse[levels & 15] | coarse[levels >> 4] << 4
    reader.get_field("general.file_type").parts[-1][0] = _Q2_K
    reader.data.flush()
    return copy
