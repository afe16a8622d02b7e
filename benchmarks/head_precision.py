"""What the precision of a head's matrices costs it in acceptance.

    python -m benchmarks.head_precision TARGET [--tokens 40000] [--features 6144]
        [--prompts 100] [--save NAME]

TARGET: a GGUF. No trained head is at hand, so one is fitted without training: an EAGLE-1 head whose
attention is zero, whose `fc` is the linear map from a target's state and the next token's embedding
to the next state, and whose feed-forward part adds what a layer of random features (extreme
learning machine, Huang et al. 2006) knows beyond it. Both are ridge regressions over the states of
the sources of this package, every fifth file left out. Its guesses are far better than chance, so
that rounding its matrices can cost acceptance. It is converted in each precision and drafts DEPTH
tokens a step after beginnings of the files that were left out, at temperature 0 and with
`batch_invariant`: all write the same texts, and acceptance is compared prompt by prompt.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

import edgespec
from benchmarks.common import GREEDY, model, save
from edgespec import Engine, EngineConfig, Stats
from edgespec.backends.base import FINAL, Model
from edgespec.convert.heads.conversion import convert_head
from edgespec.convert.heads.target_weights import from_gguf
from edgespec.loading.models import open_model
from tests.helpers import head_files as files

Matrix = npt.NDArray[np.float32]

PRECISIONS = ("fp32", "int8", "int4")
CHUNK, DEPTH, N_TOKENS, SAMPLES = 512, 3, 64, 4000
N_HEADS, HEAD_DIM = 4, 64  # of an attention whose result is zero
RIDGE = 1e-3  # of the mean of the diagonal


def texts() -> tuple[list[str], list[str]]:
    """Return the texts to fit a head to, and those that are left out."""
    paths = sorted(Path(edgespec.__file__).parent.rglob("*.py"))
    random.Random(0).shuffle(paths)
    read = [path.read_text("utf-8") for path in paths]
    return [x for i, x in enumerate(read) if i % 5], read[::5]


def pairs(target: Model, tokens: Sequence[int]) -> Iterator[tuple[Matrix, list[int]]]:
    """Yield the final states of chunks of a text, [n, hidden_size], and the tokens."""
    target.tap((FINAL,))
    for start in range(0, len(tokens), CHUNK):
        chunk = list(tokens[start : start + CHUNK])
        target.truncate(0)
        hidden = target.decode(chunk, 0).hidden
        assert hidden is not None
        yield hidden[:, 0].copy(), chunk
        print(f"read {start + len(chunk)} of {len(tokens)} tokens", file=sys.stderr)
    target.tap(())


def ridge(read: Matrix, wanted: Matrix) -> Matrix:
    """Return the matrix [n_out, n_in] that makes `wanted` [n, n_out] of `read` [n, n_in] best."""
    scale = np.sqrt(np.mean(read**2, axis=0)) + 1e-6
    scaled = read / scale
    products = scaled.T @ scaled
    products[np.diag_indices_from(products)] += RIDGE * np.trace(products) / len(products)
    return np.linalg.solve(products, scaled.T @ wanted).T / scale


def fitted(states: Matrix, embedded: Matrix, wanted: Matrix, n_features: int) -> dict[str, Matrix]:
    """Return the weights of a head that makes the next states of states and embeddings."""
    width, rng = wanted.shape[1], np.random.default_rng(0)
    read = np.concatenate([embedded, states], axis=1)
    fc = ridge(read - read.mean(0), wanted - wanted.mean(0))
    bias = wanted.mean(0) - fc @ read.mean(0)
    made = read @ fc.T + bias
    normed = made / np.sqrt(np.mean(made**2, axis=1, keepdims=True) + 1e-6)
    norm = 1 / (normed.std(0) + 1e-6)
    found = {"fc.weight": fc, "fc.bias": bias, "post_attention_layernorm.weight": norm}
    for name in ("gate", "up"):
        drawn = rng.standard_normal((n_features, width), np.float32)
        found[f"{name}.weight"] = drawn / np.float32(width**0.5)
    gate, up = (normed * norm @ found[f"{name}.weight"].T for name in ("gate", "up"))
    features = gate / (1 + np.exp(-gate)) * up
    found["down.weight"] = ridge(features, wanted - made)
    size = N_HEADS * HEAD_DIM
    for name, rows, columns in (("q", size, width), ("k", size, width), ("v", size, width)):
        found[f"{name}.weight"] = np.zeros((rows, columns), np.float32)
    return found | {"o.weight": np.zeros((width, size), np.float32)}


def checkpoint(folder: Path, weights: dict[str, Matrix], vocab_size: int) -> Path:
    """Write the head as SafeAILab does; the rest is its target's."""
    config = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": len(weights["fc.bias"]),
        "num_attention_heads": N_HEADS, "num_key_value_heads": N_HEADS, "head_dim": HEAD_DIM,
        "intermediate_size": len(weights["up.weight"]), "rms_norm_eps": 1e-6, "bias": True,
        "max_position_embeddings": 2048, "num_hidden_layers": 1, "hidden_act": "silu",
        "rope_theta": 1e4, "vocab_size": vocab_size,
    }  # fmt: skip
    return files.write(folder, files.Made("eagle", weights, config), "eagle safetensors")


def fit(path: Path, folder: Path, n_tokens: int, n_features: int) -> Path:
    """Fit a head to a target, and return the checkpoint."""
    config = EngineConfig(n_ctx=CHUNK, n_batch=CHUNK)
    with contextlib.closing(open_model(path, config)) as target:
        tokens = target.tokenizer.encode("\n\n".join(texts()[0]))[:n_tokens]
        found = list(pairs(target, tokens))
    embedding = from_gguf(path, "embed_tokens")
    weights = fitted(
        np.concatenate([states[:-1] for states, _ in found]),
        np.concatenate([embedding[ids[1:]] for _, ids in found]),
        np.concatenate([states[1:] for states, _ in found]),
        n_features,
    )
    return checkpoint(folder, weights, len(embedding))


def prompts(engine: Engine) -> Iterator[list[int]]:
    """Yield what stands before the middle of each chunk of the texts that were left out."""
    for text in texts()[1]:
        tokens = engine.encode(text)
        for start in range(0, len(tokens) - CHUNK, CHUNK):
            yield tokens[start : start + CHUNK // 2]


def answered(engine: Engine, n_prompts: int) -> list[Stats]:
    """Return the figures of answers to the first prompts."""
    return [
        engine.generate(prompt, max_tokens=N_TOKENS, ignore_eos=True).stats
        for prompt in itertools.islice(prompts(engine), n_prompts)
    ]


def acceptance(stats: Sequence[Stats]) -> float:
    return sum(s.num_accepted_draft_tokens for s in stats) / sum(s.num_draft_tokens for s in stats)


def interval(one: Sequence[Stats], other: Sequence[Stats]) -> list[float]:
    """Return the 95% bootstrap interval, over prompts, of the ratio of two heads' acceptance."""
    rng, both, found = random.Random(0), list(zip(one, other, strict=True)), []
    for _ in range(SAMPLES):
        a, b = zip(*rng.choices(both, k=len(both)), strict=True)
        found.append(acceptance(a) / acceptance(b))
    found.sort()
    return [round(found[int(share * SAMPLES)], 3) for share in (0.025, 0.975)]


def positions(stats: Sequence[Stats]) -> list[float]:
    """Return the share of drafted tokens that were accepted at each position of a draft."""

    def total(counts: list[list[int]], i: int) -> int:
        return sum(each[i] for each in counts if i < len(each))

    accepted = [s.accepted_per_position for s in stats]
    drafted = [s.drafted_per_position for s in stats]
    return [round(total(accepted, i) / total(drafted, i), 4) for i in range(DEPTH)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("target")
    parser.add_argument("--tokens", type=int, default=40000)
    parser.add_argument("--features", type=int, default=6144)
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--save")
    given = parser.parse_args()
    path, spec = model(given.target), {"method": "draft_model", "draft_p_min": 0.0}
    spec |= {"num_speculative_tokens": DEPTH, "remember": "nothing"}
    stats, result = {}, {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = fit(path, folder / "source", given.tokens, given.features)
        for precision in PRECISIONS:
            made = convert_head(source, path, folder / precision, precision=precision)
            with edgespec.load(
                path,
                made.path,
                n_ctx=2 * CHUNK,
                speculative_config=spec,
                batch_invariant=True,
                sampling=GREEDY,
            ) as engine:
                stats[precision] = answered(engine, given.prompts)
            result[precision] = {
                "file_mb": round(made.size / 1e6),
                "draft_acceptance_rate": round(acceptance(stats[precision]), 4),
                "accepted_per_position": positions(stats[precision]),
                "over_fp32": interval(stats[precision], stats["fp32"]),
            }
            print(precision, json.dumps(result[precision]), flush=True)
    if given.save:
        save(given.save, {
            "target": given.target, "fitted_to": given.tokens, "features": given.features,
            "depth": DEPTH, "tokens": N_TOKENS, "prompts": given.prompts, "precisions": result,
        })  # fmt: skip


if __name__ == "__main__":
    main()
