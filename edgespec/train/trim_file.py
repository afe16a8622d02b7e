"""The program that cuts a graph's output layer to some tokens (see convert/program.py).

It needs onnx. Its job has "graph" and "out", the paths of the graph and of the new one, which lie
in different folders; and "ids", the path of an .npy file with the tokens to keep, ascending.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..convert.program import tell
from ..convert.worker import find_head


def main(job: dict[str, Any]) -> None:
    """Write the graph that the job describes."""
    import onnx

    tell(step="cutting the output layer")
    model = onnx.load(job["graph"])  # with its external data
    head = find_head(model.graph)
    if head is None:
        sys.exit(f"{job['graph']} has no output layer that is recognised")
    cut(model.graph, head, np.load(job["ids"]))
    out = Path(job["out"])
    onnx.save(
        model, out, save_as_external_data=True, all_tensors_to_one_file=True,
        location=f"{out.name}.data",
    )  # fmt: skip


def cut(graph: Any, head: Any, ids: npt.NDArray[np.int64]) -> None:
    """Make the node `head` compute the logits of these tokens only.

    Its weights are cut copies; the originals stay if other nodes read them, as an embedding that
    shares the matrix does.
    """
    from onnx import numpy_helper

    weights = {each.name: each for each in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    read = (
        _quantised(head, weights, ids) if head.op_type == "MatMulNBits"
        else {1: _columns(head.input[1], weights, makers, ids)}
    )  # fmt: skip
    for place, array in read.items():
        name = f"{head.input[place]}/drafted"
        graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        head.input[place] = name
    for attribute in head.attribute:
        if attribute.name == "N":
            attribute.i = len(ids)
    used = set(_read(graph))
    for name in [each.name for each in graph.initializer if each.name not in used]:
        graph.initializer.remove(weights[name])
    for output in graph.output:
        if output.name == "logits":
            output.type.tensor_type.shape.dim[-1].dim_value = len(ids)
    del graph.value_info[:]


def _read(graph: Any) -> Iterator[str]:
    """Yield the names of the values that a graph and the graphs inside its nodes read."""
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _read(inner)
                yield from (each.name for each in inner.output)


def _quantised(
    head: Any, weights: Mapping[str, Any], ids: npt.NDArray[np.int64]
) -> dict[int, npt.NDArray[Any]]:
    """Return the cut inputs of a MatMulNBits by their places: its weights, scales, zero points and
    bias, as far as it has them.
    """
    from onnx import numpy_helper

    n = next(each.i for each in head.attribute if each.name == "N")
    inputs = {}
    for place in (1, 2, 3, 5):
        name = head.input[place] if place < len(head.input) else ""
        if not name:
            continue
        if name not in weights:
            sys.exit(f"the output layer's {name} is no initialiser")
        array = numpy_helper.to_array(weights[name])
        rows = array.reshape(n, -1)[ids]
        inputs[place] = rows.reshape(-1 if array.ndim == 1 else (len(ids), *array.shape[1:]))
    return inputs


def _columns(
    name: str, weights: Mapping[str, Any], makers: Mapping[str, Any], ids: npt.NDArray[np.int64]
) -> npt.NDArray[Any]:
    """Return these columns of a float matrix, which may be a transposed embedding."""
    from onnx import numpy_helper

    if name in weights:
        return np.asarray(numpy_helper.to_array(weights[name])[:, ids])
    node = makers.get(name)
    if node is None or node.op_type != "Transpose" or node.input[0] not in weights:
        sys.exit(f"the output layer's matrix {name} is no initialiser and no transposed one")
    return np.asarray(numpy_helper.to_array(weights[node.input[0]])[ids].T)
