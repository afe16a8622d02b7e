"""The time of an EAGLE-3 head's steps on onnxruntime, in each precision.

    python -m tests.benchmarks.head_graphs NAME [NAME …] [--rounds N] [--threads N] [--save NAME]

NAME: GGUF files of targets. A head of the size of one of the target's layers, with random weights
and a vocabulary of 32,000 tokens, is written, converted in fp32, int8 and int4, and run behind 256
tokens. Milliseconds, the median of N rounds (51) and the tenth percentile, which other programs
disturb less; the precisions take turns: reading one token, reading four (an accepted draft),
guessing one node, guessing eight (a level of a tree).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from edgespec import EngineConfig, backends
from edgespec.convert.heads.conversion import convert_head
from edgespec.convert.heads.fitting import TargetSizes, target_sizes
from tests.helpers import head_files as files
from tests.helpers.benchmarks import median, model, save

N_PAST, VOCAB, PRECISIONS = 256, 32000, ("fp32", "int8", "int4")


def checkpoint(folder: Path, target: Path, sizes: TargetSizes) -> Path:
    """Write a head with random weights."""
    known = backends.of(target).inspect_metadata(target)
    d, feed = sizes.hidden_size, int(known["feed_forward_length"])
    n_heads, n_kv = (int(known[f"attention.{n}"]) for n in ("head_count", "head_count_kv"))
    size = int(known.get("attention.key_length", d // n_heads))
    shapes = {
        "fc": (d, 3 * d), "q": (n_heads * size, 2 * d), "k": (n_kv * size, 2 * d),
        "v": (n_kv * size, 2 * d), "o": (d, n_heads * size), "gate": (feed, d), "up": (feed, d),
        "down": (d, feed), "lm_head": (VOCAB, d),
    }  # fmt: skip
    rng = np.random.default_rng(0)
    weights = {
        f"{name}.weight": rng.standard_normal(shape, np.float32) / np.float32(shape[1] ** 0.5)
        for name, shape in shapes.items()
    }
    for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm", "norm"):
        weights[f"{name}.weight"] = np.ones(d, np.float32)
    config = {
        "hidden_size": d, "num_attention_heads": n_heads, "num_key_value_heads": n_kv,
        "head_dim": size, "intermediate_size": feed, "vocab_size": sizes.vocab_size,
        "draft_vocab_size": VOCAB, "max_position_embeddings": 2048,
    }  # fmt: skip
    d2t = np.sort(rng.choice(sizes.vocab_size, VOCAB, replace=False))
    made = files.Made("eagle3", weights, config, d2t)
    return files.write(folder, made, "specforge", "F16", t2d=False)


def opened(folder: Path, sizes: TargetSizes, n_threads: int):
    head = backends.get("onnx").open_head(
        folder, EngineConfig(n_ctx=1024, n_threads=n_threads, provider="cpu"), sizes
    )
    states = np.random.default_rng(1).standard_normal((400, 3, sizes.hidden_size), np.float32)
    head.features.append(0, states)
    head.decode([i % 1000 for i in range(N_PAST)], 0)
    return head


def step(head, kind: str) -> float:
    """Seconds of one step; the head is as before afterwards."""
    start = time.perf_counter()
    if kind == "read 1":
        head.decode([7])
    elif kind == "read 4":
        head.decode([7, 8, 9, 10])
    elif kind == "guess 1":
        head.grow([7], [-1])
    else:
        head.grow(list(range(8)), [-1] * 8)
    seconds = time.perf_counter() - start
    head.truncate(N_PAST - 1)
    head.decode([5], 0)
    return seconds


def measured(target: Path, rounds: int, n_threads: int) -> dict[str, dict]:
    """Milliseconds by precision and step."""
    sizes, kinds = target_sizes(target), ("read 1", "read 4", "guess 1", "guess 8")
    with tempfile.TemporaryDirectory() as name:
        source = checkpoint(Path(name) / "source", target, sizes)
        heads, found = {}, {}
        for precision in PRECISIONS:
            made = convert_head(source, target, Path(name) / precision, precision=precision)
            heads[precision] = opened(made.path, sizes, n_threads)
            found[precision] = {"MB": round(made.size / 1e6)}
        times = {(p, k): [] for p in PRECISIONS for k in kinds}
        for _ in range(rounds):
            for precision, head in heads.items():
                for kind in kinds:
                    times[precision, kind].append(step(head, kind))
    for (precision, kind), seconds in times.items():
        tenth = sorted(seconds)[len(seconds) // 10]
        found[precision][kind] = [round(1e3 * each, 2) for each in (median(seconds), tenth)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("targets", nargs="+")
    parser.add_argument("--rounds", type=int, default=51)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--save")
    given = parser.parse_args()
    results = {}
    for name in given.targets:
        results[name] = measured(model(name), given.rounds, given.threads)
        print(name, json.dumps(results[name]), flush=True)
    if given.save:
        save(given.save, {"rounds": given.rounds, "threads": given.threads, "targets": results})


if __name__ == "__main__":
    main()
