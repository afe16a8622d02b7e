"""The program that writes a head as ONNX graphs (see program.py).

It needs onnx. Its job has "out", the folder for the graphs; "weights", a folder with NAME.npy for
each weight of a HeadCheckpoint; the other fields of the HeadCheckpoint, by their names;
"precision", the precision of the matrices, fp32, int8 or int4; "n_ctx", the length of the longest
text. The file KIND_graphs.py writes the graphs of a kind with the `Graph` of this one.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..program import tell

KEEP = "num_logits_to_keep"
_BLOCK = 32  # numbers that share a scale
_MOST_INLINE = 1 << 30  # bytes; a protobuf holds at most twice as many


def main(job: dict[str, Any]) -> None:
    """Write the graphs that the job describes."""
    tell(step=f"writing the head as graphs in {job['precision']}")
    importlib.import_module(f".{job['kind']}_graphs", __package__).write(job)


class Graph:
    """The nodes and weights of one graph. job: the JSON object that is described above."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._nodes: list[Any] = []
        self._weights: list[Any] = []

    def input(self, name: str, *shape: int | str, integer: bool = False) -> str:
        """Add an input, float32 or int64, and return its name."""
        from onnx import TensorProto, helper

        kind = TensorProto.INT64 if integer else TensorProto.FLOAT
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, name: str, value: str, *shape: int | str) -> None:
        """Add a float32 output that gives the value of this name."""
        from onnx import TensorProto, helper

        if name != value:
            self.op("Identity", value, outputs=[name])
        self._outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def op(
        self, kind: str, *inputs: str, outputs: list[str] | None = None, **attributes: Any
    ) -> str:
        """Add a node and return the name of its first output."""
        from onnx import helper

        domain = "com.microsoft" if kind in ("GroupQueryAttention", "MatMulNBits") else ""
        names = outputs or [f"{kind}_{len(self._nodes)}"]
        self._nodes.append(
            helper.make_node(kind, inputs, names, names[0], domain=domain, **attributes)
        )
        return names[0]

    def const(self, array: Any, name: str = "") -> str:
        """Add an initialiser and return its name."""
        from onnx import numpy_helper

        name = name or f"constant_{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def weight(self, name: str) -> npt.NDArray[np.float32]:
        """Return a weight, which is read from its file."""
        return np.asarray(np.load(Path(self.job["weights"]) / f"{name}.npy"), np.float32)

    def has(self, name: str) -> bool:
        """Return True if the head has a weight."""
        return (Path(self.job["weights"]) / f"{name}.npy").exists()

    def linear(self, name: str, x: str) -> str:
        """Return x Wᵀ + b, with W in the requested precision."""
        matrix = self.weight(f"{name}.weight")
        bits = {"int8": 8, "int4": 4}.get(self.job["precision"])
        if bits:
            packed, scales = quantised(matrix, bits)
            made = self.op(
                "MatMulNBits", x, self.const(packed, f"{name}.packed"), self.const(scales),
                K=matrix.shape[1], N=matrix.shape[0], bits=bits, block_size=_BLOCK,
                accuracy_level=4,
            )  # fmt: skip
        else:
            made = self.op("MatMul", x, self.const(matrix.T, f"{name}.weight"))
        return self._plus_bias(name, made)

    def norm(self, name: str, x: str, eps: float) -> str:
        """Return x / rms(x) · w, plus b if the norm has a bias."""
        weight = self.const(self.weight(f"{name}.weight"), f"{name}.weight")
        made = self.op("SimplifiedLayerNormalization", x, weight, axis=-1, epsilon=eps)
        return self._plus_bias(name, made)

    def _plus_bias(self, name: str, x: str) -> str:
        if not self.has(f"{name}.bias"):
            return x
        return self.op("Add", x, self.const(self.weight(f"{name}.bias"), f"{name}.bias"))

    def embedding(self, name: str, ids: str) -> str:
        """Return the rows of these tokens from a matrix that is stored in float16."""
        matrix = self.const(self.weight(f"{name}.weight").astype(np.float16), f"{name}.weight")
        return self.op("Cast", self.op("Gather", matrix, ids), to=1)  # FLOAT

    def silu(self, x: str) -> str:
        """Return x · σ(x)."""
        return self.op("Mul", x, self.op("Sigmoid", x))

    def token_and_state(self) -> tuple[str, str]:
        """Add the inputs of a step, and return the token's embedding and the state before it."""
        ids = self.input("input_ids", 1, "n", integer=True)
        states = self.input("states", 1, "n", self.job["decoder"]["width"])
        return self.embedding("embed_tokens", ids), states

    def save_step(self, guessing: str, fed_back: str) -> None:
        """Write head.onnx with the outputs of a step.

        guessing: the state that the logits are computed from. fed_back: the next step's state.
        """
        rows, job = self.linear("lm_head", self.last(guessing)), self.job
        self.output("logits", rows, 1, "rows", job["head_vocab_size"])
        self.output("next_states", fed_back, 1, "n", job["decoder"]["width"])
        self.save("head.onnx", n_ctx=job["n_ctx"])

    def layer(self, residual: str, read: str) -> str:
        """Return the state after a layer whose attention, which may be gated, reads `read`."""
        mixed = self.attention(read)
        if self.has("attention_gate.weight"):
            mixed = self.op("Mul", mixed, self.op("Sigmoid", self.linear("attention_gate", read)))
        state = self.op("Add", residual, self.linear("o", mixed))
        return self.op("Add", state, self.feed_forward(state, self.job["decoder"]["eps"]))

    def feed_forward(self, state: str, eps: float, prefix: str = "") -> str:
        """Return the output of the second half of a layer, which is to be added to the state."""
        inner = self.norm(f"{prefix}post_attention_layernorm", state, eps)
        gate, up = (self.linear(f"{prefix}{name}", inner) for name in ("gate", "up"))
        return self.linear(f"{prefix}down", self.op("Mul", self.silu(gate), up))

    def attention(self, read: str) -> str:
        """Return the output of attention.

        If past and present are the same buffers, it appends to the cache in place.
        """
        layer = self.job["decoder"]
        mask = self.input("attention_mask", 1, "total", integer=True)
        positions = self.input("position_ids", 1, "n", integer=True)
        bias = self.input("attention_bias", 1, 1, "n", "total")
        shape = (1, layer["n_kv_heads"], "past", layer["head_dim"])
        past = [self.input(f"past_key_values.0.{kind}", *shape) for kind in ("key", "value")]
        present = [f"present.0.{kind}" for kind in ("key", "value")]
        total = self.op("Gather", self.op("Shape", mask), self.const(np.array(1)))
        before = self.op("Sub", self.op("Reshape", total, self.const(np.array([1]))),
                         self.const(np.array([1])))  # fmt: skip
        angles = np.arange(self.job["n_ctx"])[:, None] * np.array(layer["rotation"])
        cos, sin = (self.const(f(angles).astype(np.float32)) for f in (np.cos, np.sin))
        mixed = self.op(
            "GroupQueryAttention", *(self._projected(name, read) for name in "qkv"), *past,
            self.op("Cast", before, to=6), self.op("Cast", total, to=6), cos, sin, positions, bias,
            outputs=["mixed", *present], num_heads=layer["n_heads"],
            kv_num_heads=layer["n_kv_heads"], do_rotary=1,
        )  # fmt: skip
        for name in present:
            self.output(name, name, 1, layer["n_kv_heads"], "total", layer["head_dim"])
        return mixed

    def _projected(self, name: str, read: str) -> str:
        """Return queries, keys or values; each attention head is normed if it has a norm."""
        made = self.linear(name, read)
        if not self.has(f"{name}_norm.weight"):
            return made
        layer = self.job["decoder"]
        heads = self.op("Reshape", made, self.const(np.array([0, 0, -1, layer["head_dim"]])))
        normed = self.norm(f"{name}_norm", heads, layer["eps"])
        return self.op("Reshape", normed, self.const(np.array([0, 0, -1])))

    def heads(self, x: str, n_heads: int, size: int) -> str:
        """Return [b, n, heads * size] as [b, n, heads, size]; n may be 0."""
        return self.op("Reshape", x, self.const(np.array([0, 0, n_heads, size])))

    def angles(self, inverse: list[float], positions: str, longest: int) -> tuple[str, str]:
        """Return cosines and sines of positions [n] below `longest`, [n, 1, size / 2]."""
        angles = np.arange(longest)[:, None, None] * np.array(inverse)
        tables = [self.const(f(angles).astype(np.float32)) for f in (np.cos, np.sin)]
        cos, sin = (self.op("Gather", table, positions) for table in tables)
        return cos, sin

    def turned(self, x: str, angles: tuple[str, str]) -> str:
        """Return [b, n, heads, size] with each pair of numbers rotated.

        A pair is a number of the first half and the number at the same place in the second half.
        """
        first, second = f"{x}/first", f"{x}/second"
        self.op("Split", x, outputs=[first, second], axis=-1)
        cos, sin = angles
        both = [
            self.op(kind, self.op("Mul", a, cos), self.op("Mul", b, sin))
            for kind, a, b in (("Sub", first, second), ("Add", second, first))
        ]
        return self.op("Concat", *both, axis=-1)

    def mixed(self, queries: str, keys: str, values: str, layer: dict[str, Any], bias: str) -> str:
        """Return the attention of queries over keys and values, [b, n, heads * size].

        queries: [b, n, heads, size]. keys, values: [b, total, kv heads, size]. bias: is added to
        the scores, [n, total]; "" for none.
        """
        n_kv, size = layer["n_kv_heads"], layer["head_dim"]
        groups = self.const(np.array([0, 0, n_kv, layer["n_heads"] // n_kv, size]))
        queries = self.op("Transpose", self.op("Reshape", queries, groups), perm=[0, 2, 3, 1, 4])
        queries = self.op("Mul", queries, self.const(np.float32(size**-0.5)))
        axis = self.const(np.array([2]))
        keys = self.op("Unsqueeze", self.op("Transpose", keys, perm=[0, 2, 3, 1]), axis)
        values = self.op("Unsqueeze", self.op("Transpose", values, perm=[0, 2, 1, 3]), axis)
        scores = self.op("MatMul", queries, keys)
        scores = self.op("Add", scores, bias) if bias else scores
        mixed = self.op("MatMul", self.op("Softmax", scores, axis=-1), values)
        mixed = self.op("Transpose", mixed, perm=[0, 3, 1, 2, 4])
        return self.op("Reshape", mixed, self.const(np.array([0, 0, -1])))

    def last(self, x: str) -> str:
        """Return the last rows of [1, n, d].

        Their number is the optional input KEEP, by default all rows.
        """
        from onnx import TensorProto, helper

        if KEEP not in (each.name for each in self._inputs):
            self.const(np.array([1 << 31]), KEEP)
            self._inputs.append(helper.make_tensor_value_info(KEEP, TensorProto.INT64, [1]))
        end, axis = self.const(np.array([np.iinfo(np.int64).max])), self.const(np.array([1]))
        return self.op("Slice", x, self.op("Neg", KEEP), end, axis)

    def save(self, name: str, **known: int) -> None:
        """Write the graph, with its weights in a separate file if they are too large for one file.

        known: numbers that its metadata contain as edgespec.NAME.
        """
        import onnx
        from onnx import helper

        graph = helper.make_graph(self._nodes, "head", self._inputs, self._outputs, self._weights)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        for key, value in known.items():
            model.metadata_props.add(key=f"edgespec.{key}", value=str(value))
        outside = sum(len(each.raw_data) for each in self._weights) > _MOST_INLINE
        onnx.save(
            model, Path(self.job["out"]) / name, save_as_external_data=outside,
            location=f"{name}.data",
        )  # fmt: skip


def quantised(
    matrix: npt.NDArray[np.float32], bits: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """Return a matrix [N, K] in the format of MatMulNBits.

    The numbers are in blocks along K, [N, blocks, bytes], and each block has a scale, [N * blocks].
    The level in the middle is zero.
    """
    n, k = matrix.shape
    blocks = np.pad(matrix, ((0, 0), (0, -k % _BLOCK))).reshape(n, -1, _BLOCK)
    middle = 1 << (bits - 1)
    peak = np.take_along_axis(blocks, abs(blocks).argmax(-1)[..., None], -1)
    scales = peak / -middle  # the number of largest size takes the lowest level
    safe = np.where(scales == 0, 1, scales)
    levels = np.clip(np.rint(blocks / safe) + middle, 0, 2 * middle - 1).astype(np.uint8)
    packed = levels if bits == 8 else levels[..., ::2] | levels[..., 1::2] << 4
    return packed, scales.astype(np.float32).reshape(-1)
