"""The program that adds hidden states to the outputs of a graph (see program.py).

It needs onnx. Its job has the paths "graph" and "out", and "layers", a list of numbers in which -1
means the final states. It warns of a graph whose layers are not recognised.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .program import tell
from .worker import find_head

FINAL = -1
_SKIP_NORMS = ("SkipSimplifiedLayerNormalization", "SkipLayerNormalization")
_SUM = 3  # the index of the output of these norms that is the sum of their inputs
_CASTS = ("Cast", "Identity")
_FLOATS = (1, 10)  # element types: FLOAT, FLOAT16
_NO_VALUES = ("Shape", "Size")  # their results do not depend on the values of their input


def main(job: dict[str, Any]) -> None:
    """Change the graph that the job names."""
    tell(step="adding outputs of hidden states")
    if reason := add_hidden_states(Path(job["graph"]), Path(job["out"]), job["layers"]):
        tell(warning=f"it cannot give hidden states: {reason}")


def add_hidden_states(path: Path, out: Path, layers: list[int]) -> str:
    """Add the hidden states of these layers to a graph's outputs, and write it to `out`.

    `out` must be in the same folder. Returns "", or the reason why the graph cannot output them.
    The output hidden_states.I, [batch, tokens, width], is the input of layer I before any norm; if
    I is the number of layers, it is the output of the last layer. The output hidden_states is the
    input of the output matrix, for all tokens.
    """
    import onnx

    model = onnx.load(path, load_external_data=False)
    graph = model.graph
    there = {value.name for value in graph.output}
    names = {layer: f"hidden_states.{layer}" for layer in layers} | {FINAL: "hidden_states"}
    missing = [layer for layer in dict.fromkeys(layers) if names[layer] not in there]
    try:
        stream = _Stream(graph)
        values = {names[layer]: stream.into(layer) for layer in missing}
        shapes = {name: stream.described(value) for name, value in values.items()}
    except _NotRecognisedError as error:
        return str(error)
    now: dict[str, str] = {}  # the new names of values, by their old names
    for name, value in values.items():
        _add_output(graph, now.get(value, value), name, *shapes[name])
        now[value] = name
    stream.forget_unused()
    del graph.value_info[:]
    onnx.save(model, out)
    return ""


def _add_output(graph: Any, value: str, name: str, kind: int, width: int) -> None:
    """Make a value an output of the graph.

    The value is renamed to the output's name, so that the graph works as before if the output is
    not requested. If the value is an output already, or if the graph contains other graphs, the
    value is copied instead.
    """
    from onnx import AttributeProto, helper

    inner = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
    nested = any(a.type in inner for node in graph.node for a in node.attribute)
    if nested or value in {given.name for given in graph.output}:
        graph.node.append(helper.make_node("Identity", [value], [name], name=f"/{name}"))
    else:
        for node in graph.node:
            for names in (node.input, node.output):
                names[:] = [name if other == value else other for other in names]
    shape = ["batch_size", "sequence_length", width]
    graph.output.append(helper.make_tensor_value_info(name, kind, shape))


class _NotRecognisedError(Exception):
    """Raised for a graph that is not built as expected; the message says where."""


class _Stream:
    """The residual stream of a decoder: the sums to which the layers add.

    The sums are found backwards from the logits. The head and its norm read a sum of two values,
    one of which was computed from the other. That other value is the previous sum, and so on back
    to the embedding. The input of a layer is the sum from which its new keys are computed. So it
    does not matter how norms, attention and products are written.
    """

    def __init__(self, graph: Any) -> None:
        self._extended = [
            (node, len(node.output))
            for node in graph.node
            if node.op_type in _SKIP_NORMS and not any(node.output[_SUM:])  # such as the last norm
        ]
        for node, n_outputs in self._extended:
            node.output.extend([""] * (_SUM - n_outputs))
            node.output.append(f"{node.output[0]}/sum")
        self._graph = graph
        self._makers = {name: node for node in graph.node for name in node.output if name}
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._keys = _new_keys(graph)
        self._final = self._before_head()
        self._sums = self._find_sums()

    def into(self, layer: int) -> str:
        """Return the name of the value that goes into a layer. Raises _NotRecognisedError."""
        if layer == FINAL:
            return self._final
        n_layers = len(self._keys)
        if layer == n_layers:
            return self._sums[0]
        if not 0 <= layer < n_layers:
            raise _NotRecognisedError(f"it has {n_layers} layers, so there is no {layer}")
        candidates = set(self._values_before(self._keys[layer], self._sums)).intersection(
            self._sums
        )
        if len(candidates) != 1:
            raise _NotRecognisedError(
                f"the keys of layer {layer} are made of {len(candidates)} sums of layers, and one "
                "is expected"
            )
        return candidates.pop()

    def forget_unused(self) -> None:
        """Remove the outputs that were added to norms but are not outputs of the graph."""
        there = {value.name for value in self._graph.output}
        for node, n_outputs in self._extended:
            if node.output[_SUM] not in there:
                del node.output[n_outputs:]

    def described(self, name: str) -> tuple[int, int]:
        """Return the element type and the width of a value."""
        widths = [tensor.dims[0] for tensor in self._norm_weights()]
        kind = 0
        for node in filter(None, map(self._makers.get, self._values_before(name))):
            if node.op_type == "Cast":
                kind = kind or next(a.i for a in node.attribute if a.name == "to")
            for tensor in self._weights(node):
                kind, widths = kind or tensor.data_type, widths or [tensor.dims[-1]]
            if kind in _FLOATS and widths:
                return kind, widths[0]
        raise _NotRecognisedError(f"the type of {name} was not found")

    def _before_head(self) -> str:
        """Return the name of the value that the head reads, with all its rows."""
        node = find_head(self._graph, ("MatMul", "MatMulNBits", "Gemm"))
        if not node:
            raise _NotRecognisedError("no matrix product was found that makes the logits")
        name = node.input[0]
        while (node := self._makers.get(name)) and node.op_type in ("Slice", "Gather", *_CASTS):
            name = node.input[0]
        return str(name)

    def _find_sums(self) -> list[str]:
        """Return the sums in reverse order, from the last layer back to the embedding."""
        values = self._values_before(self._final)
        sums = [next((value for value in values if self._sum_before(value)), "")]
        while sums[-1]:
            sums.append(self._sum_before(sums[-1]))
        if len(sums) < 2:
            raise _NotRecognisedError("no layer was found that adds to what goes into it")
        return sums[:-1]

    def _sum_before(self, name: str) -> str:
        """Return the input of a sum from which its other input was computed.

        Returns "" if there is none.
        """
        node = self._makers.get(name)
        if not node or not (node.op_type == "Add" or name == self._sum_of(node)):
            return ""
        first, second = map(self._uncast, node.input[:2])
        for addend, other in ((first, second), (second, first)):
            if addend in self._values_before(other) and "input_ids" in self._values_before(addend):
                return addend
        return ""

    def _values_before(self, name: str, ends: Sequence[str] = ()) -> Iterator[str]:
        """Yield a value and all values that it is computed from, nearest first. Stop at each of
        `ends`.
        """
        waiting, seen = deque([name]), {name}
        while waiting:
            value = waiting.popleft()
            yield value
            node = self._makers.get(value)
            if not node or value in ends or node.op_type in _NO_VALUES:
                continue
            total = self._sum_of(node)
            before = [total] if total and value != total else [*node.input]
            waiting += [given for given in before if given not in seen]
            seen.update(before)

    def _sum_of(self, node: Any) -> str:
        """Return the output of a norm that is the sum of its inputs, or "" for other nodes."""
        return str(node.output[_SUM]) if node.op_type in _SKIP_NORMS else ""

    def _uncast(self, name: str) -> str:
        while (node := self._makers.get(name)) and node.op_type in _CASTS:
            name = node.input[0]
        return name

    def _norm_weights(self) -> Iterator[Any]:
        """Yield the weights of the norms that read the sums."""
        for node in self._graph.node:
            if self._sum_of(node) or {*node.input}.intersection(self._sums):
                yield from (tensor for tensor in self._weights(node) if len(tensor.dims) == 1)

    def _weights(self, node: Any) -> list[Any]:
        """Return the float weights that a node reads."""
        read = [self._constants[name] for name in node.input if name in self._constants]
        return [tensor for tensor in read if tensor.data_type in _FLOATS and tensor.dims]


def _new_keys(graph: Any) -> list[str]:
    """Return the names of the outputs with the keys of each layer, in the order of the layers."""
    keys = {}
    for value in graph.output:
        if match := re.fullmatch(r"\D*\.(\d+)\.(?:\w+\.)?key", value.name):
            keys[int(match[1])] = value.name
    if sorted(keys) != list(range(len(keys))) or not keys:
        raise _NotRecognisedError("no outputs present.0.key, present.1.key and so on were found")
    return [keys[layer] for layer in sorted(keys)]
