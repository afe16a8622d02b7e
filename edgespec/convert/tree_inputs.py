"""The program that adds the inputs for trees of tokens to a graph (see program.py).

It needs onnx. Its job has the paths "graph" and "out". It warns of a graph that cannot take the
inputs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .program import tell

MASK, POSITIONS = "attention_bias", "position_ids"
MOST_NODES = 32  # of a tree; sliding windows over cache slots are made longer by this number


def main(job: dict[str, Any]) -> None:
    """Change the graph that the job names."""
    tell(step=f"adding {MASK} and {POSITIONS}")
    if reason := add_tree_inputs(Path(job["graph"]), Path(job["out"])):
        tell(warning=f"it cannot evaluate token trees: {reason}")


def add_tree_inputs(path: Path, out: Path) -> str:
    """Add the optional inputs attention_bias and position_ids to a graph, and write it to `out`.

    `out` must be in the same folder. Returns "", or the reason why the graph cannot take the
    inputs. attention_bias, [1, 1, n, total], is added to the scores of every GroupQueryAttention;
    without this input nothing is added. position_ids, [1, n], are the positions of the tokens;
    without this input the tokens follow the past. Sliding windows then count positions, not slots
    of the cache.
    """
    import onnx

    model = onnx.load(path, load_external_data=False)
    graph = model.graph
    attention = [node for node in graph.node if node.op_type == "GroupQueryAttention"]
    if reason := _obstacle(graph, attention):
        return reason
    place = list(graph.node).index(attention[0])
    inputs = _TreeInputs(graph, attention[0].input)
    for node in attention:
        node.input.extend([""] * (11 - len(node.input)))
        if _attribute(node, "do_rotary", 0):
            node.input[9] = inputs.positions
        node.input[10] = inputs.bias
        window = _attribute(node, "local_window_size", -1)
        if window > 0:
            node.input[10] = inputs.windowed(window)
            next(a for a in node.attribute if a.name == "local_window_size").i = window + MOST_NODES
    for made in reversed(inputs.nodes):
        graph.node.insert(place, made)
    del graph.value_info[:]
    model.metadata_props.add(key="edgespec.windows", value="positions")
    onnx.save(model, out)
    return ""


def _obstacle(graph: Any, attention: list[Any]) -> str:
    """Return the reason why a graph cannot take these inputs, or "" if it can."""
    names = {value.name for value in graph.input}
    if not attention:
        return "the graph has no GroupQueryAttention"
    if MASK in names or any(any(node.input[10:11]) for node in attention):
        return f"the graph has an {MASK} already"
    rotates = all(_attribute(node, "do_rotary", 0) for node in attention)
    if POSITIONS not in names and not rotates:
        return f"the graph takes no {POSITIONS}, and its attention does not rotate"
    return ""


def _attribute(node: Any, name: str, default: int) -> int:
    return next((int(a.i) for a in node.attribute if a.name == name), default)


class _TreeInputs:
    """The inputs for trees, and the nodes that compute their defaults.

    attention: the inputs of a GroupQueryAttention; the seventh is the total length. positions,
    bias: the names of the values that every GroupQueryAttention gets.
    """

    def __init__(self, graph: Any, attention: Any) -> None:
        import numpy as np

        self._graph = graph
        self.nodes: list[Any] = []
        self._windows: dict[int, str] = {}
        types = {value.name: value.type.tensor_type.elem_type for value in graph.input}
        self._float = np.float16 if types[attention[3]] == 10 else np.float32  # FLOAT16
        n = self._op("Gather", self._op("Shape", "input_ids"), self._const(1))
        total = self._op("Cast", self._flat(attention[6]), to=7)  # INT64
        total = self._op("Gather", total, self._const(0))
        self._past = self._op("Sub", total, n)
        self.positions = POSITIONS
        if POSITIONS not in types:
            self._input(POSITIONS, np.array([[-1]]), ["batch_size", "sequence_length"])
            line = self._op("Range", self._past, total, self._const(1))
            without = self._op("Less", POSITIONS, self._const(0))
            self.positions = self._op("Where", without, line, POSITIONS)
        shape = ["batch_size", 1, "sequence_length", "total_sequence_length"]
        self._input(MASK, np.zeros((1, 1, 1, 1), self._float), shape)
        square = self._op("Concat", self._flat(n), self._flat(total), axis=0)
        self.bias = self._op("Expand", MASK, square)

    def windowed(self, size: int) -> str:
        """Return the bias for layers in which a token sees only the last `size` positions."""
        import numpy as np

        if size not in self._windows:
            before = self._op("Range", self._const(0), self._past, self._const(1))
            keys = self._op("Concat", before, self._flat(self.positions), axis=0)
            queries = self._op("Reshape", self.positions, self._const([-1, 1]))
            near = self._op("Less", self._op("Sub", queries, keys), self._const(size))
            lowest = self._const(np.array(np.finfo(self._float).min, self._float))
            self._windows[size] = self._op("Where", near, self.bias, lowest)
        return self._windows[size]

    def _flat(self, value: str) -> str:
        return self._op("Reshape", value, self._const([-1]))

    def _input(self, name: str, default: Any, shape: list[Any]) -> None:
        """Add an optional input with this default."""
        from onnx import helper, numpy_helper

        self._graph.initializer.append(numpy_helper.from_array(default, name))
        kind = helper.np_dtype_to_tensor_dtype(default.dtype)
        self._graph.input.append(helper.make_tensor_value_info(name, kind, shape))

    def _const(self, value: Any) -> str:
        import numpy as np
        from onnx import numpy_helper

        name = f"trees/constant_{len(self._graph.initializer)}"
        self._graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def _op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        from onnx import helper

        name = f"trees/{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name
