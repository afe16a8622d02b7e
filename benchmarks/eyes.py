"""What eyes cost requests that are text alone: the same model with a projector and without, the two
in turns on the same questions. Decoded plainly, so that both do the same work. For an ONNX model
also the time to the first token of the first and the second question about a picture, with an
encoder that computes as much as SigLIP-base at 512 x 512 pixels.

    python -m benchmarks.eyes question.jsonl smollm2-135m --questions 30 --rounds 2
    python -m benchmarks.eyes question.jsonl smollm2-135m-onnx-int4 --questions 30 --rounds 2
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

import edgespec
from benchmarks.common import GREEDY, known, model, save, spread
from edgespec.backends import files
from tests.helpers import onnx_eyes, projector_files

N_TOKENS, N_RESAMPLES, LONGEST = 48, 2000, 1500  # LONGEST: characters of a question
N_PICTURES = 5
SIGLIP = {"side": 2500, "n": 7}  # 7 products of 31 billion operations each; SigLIP-base has 215


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


def seeing(source: Path, folder: Path, width: int) -> tuple[Path, Path]:
    """Write eyes for a model; return the paths of the model and of the eyes."""
    if not files.has_folder(source):
        return source, projector_files.write(folder / "mmproj.gguf", "mlp", width)
    path = onnx_eyes.split(source.parent, folder / "model", "llava")
    return path, onnx_eyes.slow_down(onnx_eyes.add_random_encoder(path, "llava"), **SIGLIP)


def questions_about_pictures(engine: edgespec.Engine) -> dict[str, float]:
    """Return the median times to the first token of questions about pictures, in seconds."""
    taken = defaultdict(list)
    for seed in range(N_PICTURES + 1):
        pixels = np.random.default_rng(seed).integers(0, 256, (56, 56, 3)).astype(np.uint8)
        chat, n_encoded = engine.chat(), engine.eyes.n_encoded
        for name, of, asked in (
            ("first question", chat, [pixels, "What is it?"]),
            ("second, same chat", chat, "Why?"),
            ("second, other chat", engine.chat(), [pixels, "Is it large?"]),
        ):
            took = of.send(asked, max_tokens=4).stats.time_to_first_token_s
            if seed:  # the first picture warms up
                taken[name].append(took)
        assert engine.eyes.n_encoded == n_encoded + 1
    return {name: round(float(np.median(each)), 4) for name, each in taken.items()}


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
        path, mmproj = seeing(model(given.model), folder, given.width)
        engines = {
            name: stack.enter_context(
                known(
                    lambda used=used: edgespec.load(path, mmproj=used, sampling=GREEDY, **options)
                )
            )
            for name, used in (("with eyes", mmproj), ("without", "none"))
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
        is_onnx = files.has_folder(path)
        more = {"first_token_s": questions_about_pictures(engines["with eyes"])} if is_onnx else {}
    ratios = np.array(taken["with eyes"]) / np.array(taken["without"])
    save(
        "eyes_onnx" if is_onnx else "eyes_text",
        {
            "answers": len(ratios),
            "equal_texts": equal,
            "seconds": {name: round(sum(each), 2) for name, each in taken.items()},
            "time_with_eyes_of_without": round(float(ratios.mean()), 4),
            "median": round(float(np.median(ratios)), 4),
            "interval": interval(ratios),
        }
        | more,
    )


if __name__ == "__main__":
    main()
