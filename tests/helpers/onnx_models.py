"""Tiny ONNX decoders with random weights, in the conventions of different exporters."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

VOCAB, WIDTH, HEADS, KV_HEADS, SIZE, LAYERS, LONGEST = 64, 32, 4, 2, 16, 2, 512
WORDS = ["<|endoftext|>", "<|im_end|>", *"abcdefghijklmnopqrstuvwxyz", "\u0120", "\u010a"]


class _Builder:
    def __init__(self, seed: int, half: bool = False, indexed: bool = False) -> None:
        self._random = np.random.default_rng(seed)
        self.indexed = indexed
        self.dtype = np.float16 if half else np.float32
        self.kind = TensorProto.FLOAT16 if half else TensorProto.FLOAT
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def op(self, kind, *inputs, n_outputs=1, outputs=None, domain="", **attributes):
        outputs = outputs or [f"v{len(self.nodes)}_{i}" for i in range(n_outputs)]
        node = helper.make_node(kind, list(inputs), outputs, domain=domain, **attributes)
        self.nodes.append(node)
        return outputs[0] if len(outputs) == 1 else outputs

    def const(self, array):
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def weight(self, *shape, scale=0.3):
        return self.const((self._random.normal(size=shape) * scale).astype(self.dtype))

    def into_state(self, *shape, scale=0.3):
        """Return a weight whose rows are added to the state; with `indexed`, not to channel 0."""
        array = self._random.normal(size=shape) * scale
        array[:, 0] *= not self.indexed
        return self.const(array.astype(self.dtype))


class _Residual:
    """The state that layers add to, and the norms that read it.

    norm: "" for none, "skip" as onnxruntime-genai's builder has them, "plain" as exporters of torch
    write them.
    """

    def __init__(self, b, state, norm):
        self._b, self._norm, self.state, self._added = b, norm, state, None

    def add(self, value):
        self._added = value

    def read(self, whole=True):
        """Return what a layer reads; `state` is the sum without a norm then, if `whole`."""
        b, added = self._b, self._added
        if self._norm != "skip":
            self.state = b.op("Add", self.state, added) if added else self.state
            return _rms_norm(b, self.state) if self._norm else self.state
        gamma = b.weight(WIDTH, scale=1.0)
        if not added:
            return b.op("SimplifiedLayerNormalization", self.state, gamma, epsilon=1e-5)
        name = f"norm{len(b.nodes)}"
        outputs = [name, "", "", f"{name}/sum"] if whole else [name]
        b.op(
            "SkipSimplifiedLayerNormalization", self.state, added, gamma, outputs=outputs,
            domain="com.microsoft", epsilon=1e-5,
        )  # fmt: skip
        self.state = outputs[-1]
        return name


def _rms_norm(b, state):
    wide = b.op("Cast", state, to=TensorProto.FLOAT)
    square = b.op("Pow", wide, b.const(np.float32(2)))
    mean = b.op("ReduceMean", square, axes=[-1], keepdims=1)
    root = b.op("Sqrt", b.op("Add", mean, b.const(np.float32(1e-5))))
    normed = b.op("Cast", b.op("Div", wide, root), to=b.kind)
    return b.op("Mul", b.weight(WIDTH, scale=1.0), normed)


def decoder(
    *,
    shared=True,
    keep=False,
    hidden_states=(),
    norm="",
    indexed=False,
    mask=False,
    bias=False,
    half=False,
    scalar=False,
    alone=0.0,
    window=-1,
    seed=0,
) -> onnx.ModelProto:
    """Return a small Llama. shared: with GroupQueryAttention, whose cache can be appended to in
    place; else with plain operators. keep: it takes num_logits_to_keep. mask: its attention mask
    is one of a token against a token, added to scores (plain operators only). bias: such a mask
    beside the other one, and positions. half: all of it in fp16. scalar: num_logits_to_keep is one.
    alone: the state of a token that is evaluated alone is another by so much, and so are its keys.
    window: tokens that the second of a shared graph's two layers sees. hidden_states: layers whose
    hidden states are outputs, -1 for the final ones. norm: see _Residual. indexed: channel 0 of the
    hidden states says what layer they go into.
    """
    b = _Builder(seed, half, indexed)
    inputs = [_value("input_ids", TensorProto.INT64, ["batch", "sequence"])]
    if mask:
        shape = ["batch", 1, "sequence", "total"]
        inputs.append(_value("attention_mask", TensorProto.FLOAT, shape))
    else:
        inputs.append(_value("attention_mask", TensorProto.INT64, ["batch", "total"]))
    if bias:
        shape = ["batch", 1, "sequence", "total"]
        inputs.append(_value("attention_bias", b.kind, shape))
    if bias or not shared:
        inputs.append(_value("position_ids", TensorProto.INT64, ["batch", "sequence"]))
    outputs = [_value("logits", b.kind, ["batch", "rows", VOCAB])]
    state = b.op("Gather", b.into_state(VOCAB, WIDTH, scale=1.0), "input_ids")
    if alone:
        n = b.op("Gather", b.op("Shape", "input_ids"), b.const(np.array(1)))
        single = b.op("Cast", b.op("Equal", n, b.const(np.array(1))), to=b.kind)
        state = b.op("Add", state, b.op("Mul", single, b.const(b.dtype(alone))))
    attention = (
        _grouped(b, ("position_ids", "attention_bias") if bias else (), window)
        if shared
        else _plain(b, "attention_bias" if bias else "attention_mask" if mask else "")
    )
    if not shared:
        state = b.op("Add", state, b.op("Gather", b.into_state(LONGEST, WIDTH), "position_ids"))
    residual, hidden = _Residual(b, state, norm), {}
    for layer in range(LAYERS):
        _add_cache(inputs, outputs, layer, KV_HEADS, SIZE, b.kind)
        read = residual.read()
        hidden[layer] = residual.state
        _add_layer(b, residual, read, functools.partial(attention, layer=layer))
    state = residual.read(whole=LAYERS in hidden_states)
    hidden |= {LAYERS: residual.state, -1: state}
    for layer in hidden_states:
        name = "hidden_states" if layer == -1 else f"hidden_states.{layer}"
        b.op("Identity", hidden[layer], outputs=[name])
        outputs.append(_value(name, b.kind, ["batch", "sequence", WIDTH]))
    if keep:
        inputs.append(_value("num_logits_to_keep", TensorProto.INT64, [] if scalar else [1]))
        wanted = b.op("Reshape", "num_logits_to_keep", b.const(np.array([1])))
        start = b.op("Neg", wanted)
        end, axis = b.const(np.array([2**31])), b.const(np.array([1]))
        state = b.op("Slice", state, start, end, axis)
    b.op("MatMul", state, b.weight(WIDTH, VOCAB), outputs=["logits"])
    return _model(b, inputs, outputs)


def _add_layer(b, residual, read, attention):
    q = b.op("MatMul", read, b.weight(WIDTH, HEADS * SIZE))
    k = b.op("MatMul", read, b.weight(WIDTH, KV_HEADS * SIZE))
    v = b.op("MatMul", read, b.weight(WIDTH, KV_HEADS * SIZE))
    mixed = attention(q, k, v)
    residual.add(b.op("MatMul", mixed, b.into_state(HEADS * SIZE, WIDTH)))
    inner = b.op("Tanh", b.op("MatMul", residual.read(), b.weight(WIDTH, 2 * WIDTH)))
    added = b.op("MatMul", inner, b.into_state(2 * WIDTH, WIDTH))
    if b.indexed:
        added = b.op("Add", added, b.const(np.eye(1, WIDTH, dtype=b.dtype)[0]))
    residual.add(added)


def table(
    probs: np.ndarray,
    alone: float = 0,
    hidden_states: tuple[int, ...] = (),
    cache: tuple[int, int, int] = (1, 1, 1),
) -> onnx.ModelProto:
    """Return a decoder that is a table of next-token probabilities; its cache, of so many layers,
    heads and numbers, changes nothing.

    alone: added to the logits of token 0 where one token is evaluated alone, as some kernels
    give other rows then. hidden_states: layers whose states are outputs, of a table as well.
    """
    n_layer, heads, size = cache
    b = _Builder(0)
    inputs = [
        _value("input_ids", TensorProto.INT64, ["batch", "sequence"]),
        _value("attention_mask", TensorProto.INT64, ["batch", "total"]),
    ]
    outputs = [_value("logits", TensorProto.FLOAT, ["batch", "sequence", len(probs)])]
    for layer in range(n_layer):
        _add_cache(inputs, outputs, layer, heads, size, b.kind)
    for layer in hidden_states:
        name = "hidden_states" if layer == -1 else f"hidden_states.{layer}"
        b.op("Gather", b.weight(len(probs), WIDTH), "input_ids", outputs=[name])
        outputs.append(_value(name, b.kind, ["batch", "sequence", WIDTH]))
    rows = b.op("Gather", b.const(np.log(probs).astype(np.float32)), "input_ids")
    n = b.op("Gather", b.op("Shape", "input_ids"), b.const(np.array(1)))
    single = b.op("Cast", b.op("Equal", n, b.const(np.array(1))), to=TensorProto.FLOAT)
    other = b.const(np.eye(1, len(probs), dtype=np.float32)[0] * np.float32(alone))
    b.op("Add", rows, b.op("Mul", single, other), outputs=["logits"])
    for name in [f"{layer}.{kind}" for layer in range(n_layer) for kind in ("key", "value")]:
        new = b.op("Gather", b.weight(len(probs), heads * size), "input_ids")
        new = b.op("Reshape", new, b.const(np.array([0, 0, heads, size])))
        new = b.op("Transpose", new, perm=[0, 2, 1, 3])
        b.op("Concat", f"past_key_values.{name}", new, outputs=[f"present.{name}"], axis=2)
    return _model(b, inputs, outputs)


def top() -> onnx.ModelProto:
    """Return onnx/topk.onnx of the backends, which `python -m tests.helpers.onnx_models` writes."""
    shape = ["batch", "rows", "vocab"]
    inputs = [_value("logits", TensorProto.FLOAT, shape), _value("k", TensorProto.INT64, [1])]
    shape = ["batch", "rows", "k"]
    outputs = [_value("values", TensorProto.FLOAT, shape), _value("ids", TensorProto.INT64, shape)]
    node = helper.make_node("TopK", ["logits", "k"], ["values", "ids"], axis=-1, sorted=1)
    graph = helper.make_graph([node], "top", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _model(b, inputs, outputs, opset=17):
    graph = helper.make_graph(b.nodes, "decoder", inputs, outputs, b.weights)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def _add_cache(inputs, outputs, layer, heads, size, dtype):
    for kind in ("key", "value"):
        shape = ["batch", heads, "past", size]
        inputs.append(_value(f"past_key_values.{layer}.{kind}", dtype, shape))
        shape = ["batch", heads, "total", size]
        outputs.append(_value(f"present.{layer}.{kind}", dtype, shape))


def _value(name, kind, shape):
    return helper.make_tensor_value_info(name, kind, shape)


def _grouped(b, more, window):
    axis = b.const(np.array([1]))
    length = b.op("ReduceSum", "attention_mask", axis, keepdims=0)
    last = b.op("Cast", b.op("Sub", length, b.const(np.array([1]))), to=TensorProto.INT32)
    size = b.op("Gather", b.op("Shape", "attention_mask"), b.const(np.array(1)))
    total = b.op("Cast", size, to=TensorProto.INT32)
    angles = np.arange(LONGEST)[:, None] / 100 ** (np.arange(SIZE // 2) / (SIZE // 2))
    cos, sin = (b.const(f(angles).astype(b.dtype)) for f in (np.cos, np.sin))

    def attention(q, k, v, layer):
        past = [f"past_key_values.{layer}.{kind}" for kind in ("key", "value")]
        present = [f"present.{layer}.{kind}" for kind in ("key", "value")]
        out = f"attention{layer}"
        b.op(
            "GroupQueryAttention", q, k, v, *past, last, total, cos, sin, *more,
            outputs=[out, *present], domain="com.microsoft",
            num_heads=HEADS, kv_num_heads=KV_HEADS, do_rotary=1,
            local_window_size=window if layer else -1,
        )  # fmt: skip
        return out

    return attention


def _plain(b, mask):
    def shaped(x, heads):
        x = b.op("Reshape", x, b.const(np.array([0, 0, heads, SIZE])))
        return b.op("Transpose", x, perm=[0, 2, 1, 3])

    def before(scores, keys):
        n_keys = b.op("Gather", b.op("Shape", keys), b.const(np.array(2)))
        at = b.op("Range", b.const(np.array(0)), n_keys, b.const(np.array(1)))
        own = b.op("Unsqueeze", "position_ids", b.const(np.array([1, 3])))
        seen = b.op("LessOrEqual", at, own)
        return b.op("Where", seen, scores, b.const(b.dtype(-6e4)))

    def attention(q, k, v, layer):
        q = shaped(q, HEADS)
        both = []
        for kind, new in (("key", k), ("value", v)):
            out = f"present.{layer}.{kind}"
            b.op(
                "Concat",
                f"past_key_values.{layer}.{kind}",
                shaped(new, KV_HEADS),
                outputs=[out],
                axis=2,
            )
            groups = b.op("Unsqueeze", out, b.const(np.array([2])))
            shape = b.const(np.array([1, 1, HEADS // KV_HEADS, 1, 1]))
            both.append(
                b.op(
                    "Reshape",
                    b.op("Expand", groups, shape),
                    b.const(np.array([0, HEADS, -1, SIZE])),
                )
            )
        keys = b.op("Transpose", both[0], perm=[0, 1, 3, 2])
        scores = b.op("Mul", b.op("MatMul", q, keys), b.const(b.dtype(SIZE**-0.5)))
        scores = b.op("Add", scores, mask) if mask else before(scores, both[0])
        mixed = b.op("MatMul", b.op("Softmax", scores, axis=-1), both[1])
        mixed = b.op("Transpose", mixed, perm=[0, 2, 1, 3])
        return b.op("Reshape", mixed, b.const(np.array([0, 0, HEADS * SIZE])))

    return attention


def save(folder: Path, model: onnx.ModelProto | None = None, **options) -> Path:
    """Return a folder with a graph, a tokenizer and companions; the graph's path."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model or decoder(**options), folder / "model.onnx")
    vocab = {word: i for i, word in enumerate(WORDS)}
    added = [
        {"id": i, "content": WORDS[i], "special": True, "single_word": False, "lstrip": False,
         "rstrip": False, "normalized": False}
        for i in (0, 1)
    ]  # fmt: skip
    byte_level = {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False,
    }  # fmt: skip
    tokenizer = {
        "version": "1.0", "added_tokens": added, "normalizer": None,
        "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }  # fmt: skip
    template = (
        "{% for m in messages %}{{ m.role }}:{{ m.content }}<|im_end|>\n{% endfor %}assistant:"
    )
    for name, content in {
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {"eos_token": "<|im_end|>", "chat_template": template},
        "config.json": {"max_position_embeddings": LONGEST, "eos_token_id": [0, 1]},
    }.items():
        (folder / name).write_text(json.dumps(content))
    return folder / "model.onnx"


if __name__ == "__main__":
    onnx.save(top(), Path(__file__).parents[2] / "edgespec/backends/onnx/topk.onnx")
