"""The program that copies a target's embedding and output matrix for a head (see program.py).

It needs gguf for GGUF files and onnx for graphs. Its job has the paths "target" and "out", and the
list "wanted" with "embed_tokens", "lm_head" or both. It writes each matrix to out/NAME.weight.npy,
float32 [vocab_size, hidden_size].
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..program import tell
from ..worker import find_head

Matrix = npt.NDArray[np.float32]

_IN_GGUF = {"embed_tokens": "token_embd.weight", "lm_head": "output.weight"}


def main(job: dict[str, Any]) -> None:
    """Write the matrices that the job names."""
    tell(step="reading the target's embedding and output matrix")
    target, out = Path(job["target"]), Path(job["out"])
    for name in job["wanted"]:
        np.save(out / f"{name}.weight.npy", matrix_of(target, name))


def matrix_of(path: Path, name: str) -> Matrix:
    """Return a matrix of a target."""
    return from_graph(path, name) if path.suffix == ".onnx" else from_gguf(path, name)


def from_gguf(path: Path, name: str) -> Matrix:
    """Return a matrix of a GGUF, dequantised.

    If the file has no output matrix, the embedding is the output matrix.
    """
    import gguf

    by_name = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    tensor = by_name.get(_IN_GGUF[name]) or by_name.get(_IN_GGUF["embed_tokens"])
    if tensor is None:
        sys.exit(f"{path} has no tensor {_IN_GGUF[name]}")
    return np.asarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type), np.float32)


def from_graph(path: Path, name: str) -> Matrix:
    """Return a matrix of an ONNX decoder.

    If the embedding is quantised, the output matrix is returned for it, provided that both are one
    matrix.
    """
    import onnx

    model = onnx.load(path)  # with its external data
    weights = {each.name: each for each in model.graph.initializer}
    makers = {output: node for node in model.graph.node for output in node.output}
    if name == "embed_tokens":
        for node in model.graph.node:
            if node.op_type == "Gather" and node.input[1] == "input_ids":
                return _float(weights, makers, node.input[0])
    head = find_head(model.graph)
    if name == "embed_tokens" and not (head and _is_shared(model.graph, makers, head)):
        sys.exit(f"{path} has no embedding that can be read; give the GGUF of the same model")
    if head is None:
        sys.exit(f"{path} has no output matrix that can be read; give the GGUF of the same model")
    if head.op_type == "MatMulNBits":
        return _dequantised(weights, head)
    return np.ascontiguousarray(_float(weights, makers, head.input[1]).T)


def _is_shared(graph: Any, makers: Mapping[str, Any], head: Any) -> bool:
    """Return True if the embedding is the matrix of the product `head`."""
    for node in graph.node:
        if node.op_type == "GatherBlockQuantized" and node.input[1] == "input_ids":
            source = node.input[0]
            if source in makers and makers[source].op_type == "Reshape":
                source = makers[source].input[0]
            return bool(source == head.input[1])
    return False


def _float(weights: Mapping[str, Any], makers: Mapping[str, Any], name: str) -> Matrix:
    """Return a matrix that is an initialiser, or a transposed or cast one."""
    from onnx import numpy_helper

    if name in weights:
        return np.asarray(numpy_helper.to_array(weights[name]), np.float32)
    node = makers.get(name)
    if node is None or node.op_type not in ("Transpose", "Cast", "Identity"):
        sys.exit(f"the matrix {name} is no initialiser; give the GGUF of the same model")
    matrix = _float(weights, makers, node.input[0])
    return matrix.T if node.op_type == "Transpose" else matrix


def _dequantised(weights: Mapping[str, Any], node: Any) -> Matrix:
    """Return the matrix of a MatMulNBits, [N, K].

    Its numbers are stored in blocks, with 4 or 8 bits per number and one scale per block.
    """
    from onnx import numpy_helper

    given = {a.name: a.i for a in node.attribute}
    bits, n, k = given.get("bits", 4), given["N"], given["K"]
    packed, scales = (numpy_helper.to_array(weights[each]) for each in node.input[1:3])
    zero: Any = 1 << (bits - 1)
    if len(node.input) > 3 and node.input[3]:
        zeros = _unpacked(numpy_helper.to_array(weights[node.input[3]]).reshape(n, -1), bits)
        zero = zeros[:, : scales.size // n, None]
    levels = _unpacked(packed.reshape(n, scales.size // n, -1), bits) - zero
    return np.asarray(levels * scales.reshape(n, -1, 1), np.float32).reshape(n, -1)[:, :k]


def _unpacked(packed: npt.NDArray[Any], bits: int) -> npt.NDArray[np.float32]:
    """Return numbers of 8 bits, or two numbers of 4 bits from each byte, the lower bits first."""
    if bits == 8:
        return packed.astype(np.float32)
    both = np.stack([packed & 15, packed >> 4], axis=-1)
    return both.reshape(*packed.shape[:-1], -1).astype(np.float32)
