"""The time of an EAGLE-3 head's steps on both engines, in each precision, and of its target's.

    python -m benchmarks.head_costs NAME [NAME …] [--rounds N] [--threads N] [--save NAME]

NAME: GGUF files of targets, or "8b": one of that shape with random 4-bit weights, which is written
for it (5 GB for a while). A head as large as one of the target's layers, with random weights and a
vocabulary of 32,000 tokens, is written as a checkpoint, which is converted in fp32, int8 and int4,
and as GGUFs of F32, Q8_0 and Q4_0. Each reads 256 tokens; then they take turns, the target
between them: a head reads one token, or four (an accepted draft), guesses one node, or eight (a
level of a tree); the target evaluates one token. Milliseconds, the median of N rounds (31) and the
tenth percentile, which other programs disturb less; what each adds to the resident memory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import psutil

from benchmarks.common import median, model, save
from edgespec import EngineConfig, backends
from edgespec.convert.heads.conversion import convert_head
from edgespec.convert.heads.fitting import target_sizes
from tests.helpers import head_files as files

llama_cpp, onnx = backends.get("llama_cpp"), backends.get("onnx")

N_PAST, VOCAB, N_CTX = 256, 32000, 1024
PRECISIONS = ("fp32", "int8", "int4")
QUANTISATIONS = ("F32", "Q8_0", "Q4_0")
TARGET: dict[str, Callable] = {"one token": lambda model: model.decode([7])}
STEPS: dict[str, Callable] = {
    "read 1": lambda head: head.decode([7]),
    "read 4": lambda head: head.decode([7, 8, 9, 10]),
    "guess 1": lambda head: head.grow([7], [-1]),
    "guess 8": lambda head: head.grow(list(range(8)), [-1] * 8),
}
IN_GGUF = {
    "q": "blk.0.attn_q", "k": "blk.0.attn_k", "v": "blk.0.attn_v", "o": "blk.0.attn_output",
    "gate": "blk.0.ffn_gate", "up": "blk.0.ffn_up", "down": "blk.0.ffn_down",
    "input_layernorm": "blk.0.attn_norm", "hidden_norm": "blk.0.attn_norm_2",
    "post_attention_layernorm": "blk.0.ffn_norm", "norm": "output_norm", "lm_head": "output",
}  # fmt: skip


class Shape:
    """The sizes of a head: those of a layer of its target."""

    def __init__(self, target: Path) -> None:
        known = backends.of(target).inspect_metadata(target)
        self.sizes = target_sizes(target)
        self.d, self.feed = self.sizes.hidden_size, int(known["feed_forward_length"])
        self.n_heads = int(known["attention.head_count"])
        self.n_kv = int(known["attention.head_count_kv"])
        self.size = int(known.get("attention.key_length", self.d // self.n_heads))
        n = self.sizes.n_layer
        self.layers = [2, n // 2, n - 3]

    def weights(self) -> dict[str, np.ndarray]:
        """Return random weights by the names of HeadCheckpoint."""
        d, feed, kv = self.d, self.feed, self.n_kv * self.size
        shapes = {
            "fc": (d, 3 * d), "q": (self.n_heads * self.size, 2 * d), "k": (kv, 2 * d),
            "v": (kv, 2 * d), "o": (d, self.n_heads * self.size), "gate": (feed, d),
            "up": (feed, d), "down": (d, feed), "lm_head": (VOCAB, d),
        }  # fmt: skip
        rng = np.random.default_rng(0)
        found = {
            f"{name}.weight": rng.standard_normal(shape, np.float32) / np.float32(shape[1] ** 0.5)
            for name, shape in shapes.items()
        }
        for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm", "norm"):
            found[f"{name}.weight"] = np.ones(d, np.float32)
        return found

    def drafted(self) -> np.ndarray:
        """Return the target's ids of the head's tokens."""
        rng = np.random.default_rng(1)
        return np.sort(rng.choice(self.sizes.vocab_size, VOCAB, replace=False))


def checkpoint(folder: Path, shape: Shape) -> Path:
    """Write the head as SpecForge does."""
    config = {
        "hidden_size": shape.d, "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.n_kv, "head_dim": shape.size,
        "intermediate_size": shape.feed, "vocab_size": shape.sizes.vocab_size,
        "draft_vocab_size": VOCAB, "max_position_embeddings": 2048,
    }  # fmt: skip
    made = files.Made("eagle3", shape.weights(), config, shape.drafted())
    return files.write(folder, made, "specforge", "F16", t2d=False)


def gguf_head(path: Path, shape: Shape, quantisation: str) -> Path:
    """Write the head as a GGUF that uses the embedding of its target."""
    kind = gguf.GGMLQuantizationType[quantisation]
    writer = gguf.GGUFWriter(path, "eagle3")
    writer.add_block_count(1)
    writer.add_context_length(2048)
    writer.add_embedding_length(shape.d)
    writer.add_feed_forward_length(shape.feed)
    writer.add_head_count(shape.n_heads)
    writer.add_head_count_kv(shape.n_kv)
    writer.add_key_length(shape.size)
    writer.add_value_length(shape.size)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_array("eagle3.target_layers", shape.layers)
    writer.add_uint32("eagle3.target_hidden_size", shape.d)
    vocabulary(writer, shape.sizes.vocab_size)
    for name, array in shape.weights().items():
        name = name.removesuffix(".weight")
        known = f"{IN_GGUF.get(name, name)}.weight"
        if array.ndim == 1:
            writer.add_tensor(known, array)
        else:
            writer.add_tensor(known, gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.add_tensor("d2t", shape.drafted().astype(np.int64))
    return written(writer, path)


def target_8b(path: Path) -> Path:
    """Write a target of the shape of Llama 3.1 8B, all of whose layers are the same 4-bit noise."""
    d, feed, kv, vocab = 4096, 14336, 1024, 128256
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(32)
    writer.add_context_length(8192)
    writer.add_embedding_length(d)
    writer.add_feed_forward_length(feed)
    writer.add_head_count(32)
    writer.add_head_count_kv(8)
    writer.add_rope_dimension_count(128)
    writer.add_rope_freq_base(500000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocab)
    vocabulary(writer, vocab)
    matrices = {
        "attn_q": (d, d), "attn_k": (kv, d), "attn_v": (kv, d), "attn_output": (d, d),
        "ffn_gate": (feed, d), "ffn_up": (feed, d), "ffn_down": (d, feed),
    }  # fmt: skip
    noise = {name: q4_0(*shape) for name, shape in matrices.items()}
    ones, kind = np.ones(d, np.float32), gguf.GGMLQuantizationType.Q4_0
    for i in range(32):
        for name, array in noise.items():
            writer.add_tensor(f"blk.{i}.{name}.weight", array, raw_dtype=kind)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{i}.{name}.weight", ones)
    table = q4_0(vocab, d)
    for name in ("token_embd", "output"):
        writer.add_tensor(f"{name}.weight", table, raw_dtype=kind)
    writer.add_tensor("output_norm.weight", ones)
    return written(writer, path)


def q4_0(rows: int, columns: int) -> np.ndarray:
    """Return random Q4_0 blocks: a scale, and 16 bytes of two levels each."""
    rng = np.random.default_rng(rows + columns)
    blocks = rng.integers(0, 256, (rows, columns // 32, 18), np.uint8)
    scale = np.float16(0.2 / columns**0.5)
    blocks[..., :2] = np.frombuffer(scale.tobytes(), np.uint8)
    return blocks.reshape(rows, -1)


def vocabulary(writer: gguf.GGUFWriter, n: int) -> None:
    """Add a vocabulary of bytes, and of words that nothing says."""
    tokens = [b"<unk>", b"<s>", b"</s>", *(b"<0x%02X>" % i for i in range(256))]
    tokens += [b"word %d" % i for i in range(n - len(tokens))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * n)
    writer.add_token_types([2, 3, 3, *([6] * 256), *([1] * (n - 259))])


def written(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def seconds(call: Callable) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def step(head, call: Callable) -> float:
    """Return the seconds of a step; the head is as before afterwards."""
    found = seconds(lambda: call(head))
    head.truncate(N_PAST - 1)
    head.decode([5], 0)
    return found


class Opened:
    """Models after the same text, what each has added to the memory, and their steps' times."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self.models, self.found, self._times = {}, {}, {}

    def add(self, name: str, path: Path, make: Callable, states: np.ndarray | None = None) -> None:
        """Open a model, a head if it has states to read, and let it read a text."""
        memory = psutil.Process().memory_info
        before = memory().rss
        made = self._stack.enter_context(contextlib.closing(make()))
        if states is not None:
            made.features.append(0, states)
        made.decode([i % 1000 for i in range(N_PAST)], 0)
        added = memory().rss - before
        files = path.iterdir() if path.is_dir() else [path]
        size = sum(each.stat().st_size for each in files)
        self.models[name] = made
        self.found[name] = {"file_mb": round(size / 1e6), "rss_mb": round(added / 1e6)}

    def measure(self, rounds: int) -> dict[str, dict]:
        """Return milliseconds by model and step: median and tenth percentile."""
        for _ in range(rounds):
            for name, each in self.models.items():
                for kind, call in (STEPS if name != "target" else TARGET).items():
                    self._times.setdefault((name, kind), []).append(step(each, call))
        for (name, kind), times in self._times.items():
            tenth = sorted(times)[len(times) // 10]
            self.found[name][kind] = [round(1e3 * each, 2) for each in (median(times), tenth)]
        return self.found


def measured(target: Path, rounds: int, n_threads: int) -> dict[str, dict]:
    """Return what a target and heads for it take."""
    shape = Shape(target)
    config = EngineConfig(n_ctx=N_CTX, n_threads=n_threads, provider="cpu")
    rng = np.random.default_rng(1)
    states = rng.standard_normal((N_PAST + 16, 3, shape.d), np.float32)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder, opened = Path(name), Opened(stack)
        opened.add("target", target, lambda: llama_cpp.open_model(target, config))
        loaded = opened.models["target"]
        for quantisation in QUANTISATIONS:
            path = gguf_head(folder / f"{quantisation}.gguf", shape, quantisation)
            opened.add(
                f"GGUF {quantisation}",
                path,
                lambda path=path: llama_cpp.open_head(path, config, loaded),
                states,
            )
        source = checkpoint(folder / "source", shape)
        for precision in PRECISIONS:
            made = convert_head(source, target, folder / precision, precision=precision).path
            opened.add(
                f"ONNX {precision}",
                made,
                lambda made=made: onnx.open_head(made, config, loaded),
                states,
            )
        return opened.measure(rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("targets", nargs="+")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--save")
    given = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as name:
        for target in given.targets:
            path = target_8b(Path(name) / "8b.gguf") if target == "8b" else model(target)
            results[target] = measured(path, given.rounds, given.threads)
            print(target, json.dumps(results[target]), flush=True)
    if given.save:
        save(given.save, {"rounds": given.rounds, "threads": given.threads, "targets": results})


if __name__ == "__main__":
    main()
