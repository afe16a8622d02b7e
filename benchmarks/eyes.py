"""What eyes cost requests that are text alone: the same model with a projector and without, the two
in turns on the same questions. Decoded plainly, so that both do the same work.

    python -m benchmarks.eyes question.jsonl smollm2-135m --questions 30 --rounds 2
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from pathlib import Path

import numpy as np

import edgespec
from benchmarks.common import GREEDY, known, model, save, spread
from tests.helpers import projector_files

N_TOKENS, N_RESAMPLES, LONGEST = 48, 2000, 1500  # LONGEST: characters of a question


def seconds(engine: edgespec.Engine, question: str) -> tuple[float, str]:
    """Return the seconds of an answer in a new chat, and its text."""
    start = time.perf_counter()
    text = engine.chat().send(question, max_tokens=N_TOKENS).text
    return time.perf_counter() - start, text


def interval(ratios: np.ndarray) -> list[float]:
    """Return the 95% interval of the mean ratio, by resampling the answers."""
    rng = np.random.default_rng(0)
    means = [rng.choice(ratios, len(ratios)).mean() for _ in range(N_RESAMPLES)]
    return [round(float(each), 4) for each in np.percentile(means, [2.5, 97.5])]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("questions")
    parser.add_argument("model")
    parser.add_argument("--width", type=int, default=576, help="of the model's embeddings")
    parser.add_argument("--questions", dest="most", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    options = {
        "draft": None, "n_ctx": 1024, "prompt_cache": "off",
        "speculative_config": {"method": "none"},
    }  # fmt: skip
    every = (question for _, _, question in spread(given.questions))
    asked = [question for question in every if len(question) < LONGEST][: given.most]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        mmproj = projector_files.write(folder / "mmproj.gguf", "mlp", given.width)
        engines = {
            name: stack.enter_context(
                known(
                    lambda path=path: edgespec.load(
                        model(given.model), mmproj=path, sampling=GREEDY, **options
                    )
                )
            )
            for name, path in (("with eyes", mmproj), ("without", "none"))
        }
        assert engines["with eyes"].eyes
        taken: dict[str, list[float]] = {name: [] for name in engines}
        equal = 0
        for turn in range(given.rounds + 1):
            for i, question in enumerate(asked[: 3 if not turn else None]):
                order = list(engines.items())[:: 1 if (i + turn) % 2 else -1]
                said = {name: seconds(engine, question) for name, engine in order}
                if turn:  # the first turn warms up
                    equal += said["with eyes"][1] == said["without"][1]
                    for name, (each, _) in said.items():
                        taken[name].append(each)
    ratios = np.array(taken["with eyes"]) / np.array(taken["without"])
    save(
        "eyes_text",
        {
            "answers": len(ratios),
            "equal_texts": equal,
            "seconds": {name: round(sum(each), 2) for name, each in taken.items()},
            "time_with_eyes_of_without": round(float(ratios.mean()), 4),
            "median": round(float(np.median(ratios)), 4),
            "interval": interval(ratios),
        },
    )


if __name__ == "__main__":
    main()
