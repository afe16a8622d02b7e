"""Single tokens evaluated alone and as two (ONNX int4): which is nearer to float32, and the cost.

    python -m benchmarks.padding NAME INT4 FP32 EXACT [--rounds N]

INT4, FP32, EXACT: folders' names or paths of graphs of one model; EXACT has the weights of INT4 and
accuracy level 1, so that its products are in float32. The rows of 300 tokens of one text are
compared: |d| is the difference of logits, KL the divergence in nats. Then plain and automatic
answers, padded (batch_invariant) and not, take turns N times (9; 0: rows only).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

import edgespec
from benchmarks.common import GREEDY, chat_prompt, known, median, model, save
from edgespec import EngineConfig
from edgespec.loading.models import open_model

TEXTS = [Path(__file__).parents[1] / name for name in ("tests/data/questions.txt", "LICENSE")]
READ, POSITIONS, N_TOKENS = 64, 300, 96
QUESTIONS = ("Tell me about the history of the bicycle.", "Explain recursion with an example.")


def graph(name: str) -> Path:
    path = Path(name)
    return path / "model.onnx" if path.is_dir() else path if path.exists() else model(name)


def rows(path: Path, width: int) -> np.ndarray:
    """Logits of single tokens, each evaluated as `width` of them; the prompt as many."""
    target = open_model(path, EngineConfig(n_ctx=1024))
    text = "\n".join(path.read_text("utf-8") for path in TEXTS)
    tokens = target.tokenizer.encode(text)[: READ + POSITIONS]
    assert len(tokens) == READ + POSITIONS
    target.decode(tokens[:READ], n_logits=0)
    found = []
    for token in tokens[READ:]:
        n_past = target.n_past
        found.append(target.decode([token] * width, n_logits=width).logits[0].astype(np.float64))
        target.truncate(n_past + 1)
    target.close()
    return np.array(found)


def log_probs(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def divergences(reference: np.ndarray, other: np.ndarray) -> np.ndarray:
    one, two = log_probs(reference), log_probs(other)
    return (np.exp(one) * (one - two)).sum(-1)


def difference(reference: np.ndarray, other: np.ndarray) -> dict[str, float]:
    distance, nats = abs(reference - other), divergences(reference, other)
    same = reference.argmax(-1) == other.argmax(-1)
    return {
        "mean_d": round(float(distance.mean()), 4), "max_d": round(float(distance.max()), 3),
        "kl": round(float(nats.mean()), 5), "argmax_agreement": round(float(same.mean()), 4),
    }  # fmt: skip


def accuracy(int4: Path, fp32: Path, exact: Path) -> dict:
    alone, paired = rows(int4, 1), rows(int4, 2)
    found: dict = {"alone_against_paired": difference(alone, paired)}
    for name, path in (("fp32", fp32), ("exact", exact)):
        reference = rows(path, 1)
        nearer = divergences(reference, alone) - divergences(reference, paired)
        found[name] = {
            "alone": difference(reference, alone),
            "paired": difference(reference, paired),
            "kl_alone_minus_paired": round(float(nearer.mean()), 5),
            "its_standard_error": round(float(nearer.std() / len(nearer) ** 0.5), 5),
        }
    return found


def answers(int4: Path, rounds: int) -> Iterator[tuple[str, float]]:
    """Tokens per second of every way to decode, which take turns."""
    with ExitStack() as stack:
        engines = {
            f"{method}, {'paired' if invariant else 'alone'}": stack.enter_context(
                known(
                    lambda method=method, invariant=invariant: edgespec.load(
                        int4, None, n_ctx=1024, batch_invariant=invariant,
                        speculative_config={"method": method, "draft_memory": "off"},
                        sampling=GREEDY,
                    )
                )
            )
            for method in ("none", "auto")
            for invariant in (False, True)
        }  # fmt: skip
        for i in range(rounds + 1):
            for name, engine in engines.items():
                for question in QUESTIONS:
                    prompt = chat_prompt(engine, question)
                    done = engine.generate(prompt, max_tokens=N_TOKENS, ignore_eos=True)
                    if i:  # the first round warms up
                        yield name, (N_TOKENS - 1) / done.stats.decode_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("name", "int4", "fp32", "exact"):
        parser.add_argument(name)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    int4, fp32, exact = map(graph, (given.int4, given.fp32, given.exact))
    speeds: dict[str, list[float]] = {}
    found = accuracy(int4, fp32, exact)
    for name, speed in answers(int4, given.rounds) if given.rounds else ():
        speeds.setdefault(name, []).append(speed)
    save(f"padding_{given.name}", {
        "positions": POSITIONS, "rows": found, "rounds": given.rounds,
        "tokens_per_second": {
            name: {"median": round(median(s), 2), "range": [round(min(s), 2), round(max(s), 2)]}
            for name, s in speeds.items()
        },
    })  # fmt: skip


if __name__ == "__main__":
    main()
