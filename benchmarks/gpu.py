"""What a GPU gains: t(n), what a change of n costs, tokens/s plainly and with drafts, deadlines.

    python -m benchmarks.gpu NAME [--save NAME]

NAME: a GGUF in $EDGESPEC_TEST_MODELS. Everything is measured on the GPU and on the CPU.
Widths are in turns; engines too, which answer the same three prompts four times, so that lookups
know the answer from the second time on: figures of drafts are the most that there is to gain.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import defaultdict

import edgespec
from benchmarks.common import GREEDY, median, model, save
from edgespec.backends import llama_cpp

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 20, 24, 32)
FILLED, ROUNDS, ANSWERS, N_TOKENS = 256, 9, 4, 400
CODE = "\n".join(
    f"def area_{i}(width, height):\n    return width * height * {i}" for i in range(40)
)
PROMPTS = {
    "editing": f"Rename width to breadth in this file, and write it again:\n{CODE}",
    "chat": "Tell me about the history of the bicycle.",
    "list": "Repeat this list three times: red apple, green pear, yellow banana, blue plum.",
}
PLACES = {"GPU": {}, "CPU": {"n_gpu_layers": 0}}


def timed(opened: llama_cpp.LlamaCppModel, n: int) -> float:
    """Return the seconds of an evaluation of n tokens."""
    began = time.perf_counter()
    opened.decode([5] * n, n)
    seconds = time.perf_counter() - began
    opened.truncate(FILLED)
    return seconds


def curve(name: str, options: dict) -> dict:
    """Return t(n), and the time of one token after one and after several."""
    began = time.perf_counter()
    opened = llama_cpp.LlamaCppModel(model(name), edgespec.EngineConfig(n_ctx=4096, **options))
    loading_s = time.perf_counter() - began
    opened.decode(list(range(300, 300 + FILLED)), 0)
    times, after = defaultdict(list), []
    for _ in range(ROUNDS):
        for n in WIDTHS:
            times[n].append(timed(opened, n))
        after.append(timed(opened, 1))
    steady = median([timed(opened, 1) for _ in range(ROUNDS)])
    opened.close()
    in_ms = {str(n): round(1e3 * median(of_n), 2) for n, of_n in times.items()}
    one = {"after one": round(1e3 * steady, 2), "after several": round(1e3 * median(after), 2)}
    return {"load_s": round(loading_s, 2), "t_ms": in_ms, "one_token_ms": one}


def speeds(name: str, options: dict) -> dict:
    """Return tokens/s without and with drafts."""
    specs = {"plain": {"method": "none"}, "default": {"draft_memory": "off"}}
    engines = {
        kind: edgespec.load(
            model(name), None, speculative_config=spec, n_ctx=8192, sampling=GREEDY, **options
        )
        for kind, spec in specs.items()
    }
    rows = {}
    for engine in engines.values():
        engine.measure()
    for kind, prompt in PROMPTS.items():
        measured = defaultdict(list)
        for _ in range(ANSWERS):
            for which, engine in engines.items():
                done = engine.chat().send(prompt, max_tokens=N_TOKENS, ignore_eos=True)
                measured[which].append(done.stats.tokens_per_second)
        factors = [b / a for a, b in zip(measured["plain"], measured["default"], strict=True)]
        rows[kind] = {which: round(median(each), 1) for which, each in measured.items()}
        rows[kind]["factor"], rows[kind]["first factor"] = (
            round(x, 3) for x in (median(factors), factors[0])
        )
    for engine in engines.values():
        engine.close()
    return rows


def late(name: str) -> dict:
    """Return how late requests with a time limit return, in prompts and in answers."""
    rng, late_s = random.Random(1), []
    with edgespec.load(model(name), None, n_ctx=8192, sampling=GREEDY) as engine:
        for i in range(60):
            prompt = [rng.randrange(300, 8000) for _ in range(7000 if i % 2 else 20)]
            limit_s, began = (0.02, 0.1, 0.5)[i % 3], time.perf_counter()
            engine.generate(prompt, max_tokens=4000, ignore_eos=True, time_limit_s=limit_s)
            late_s.append(time.perf_counter() - began - limit_s)
    return {"requests": len(late_s), "latest_s": round(max(late_s), 4), "early": min(late_s) < 0}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--save", default="gpu")
    args = parser.parse_args()
    gpus = [f"{gpu.description} ({gpu.name})" for gpu in llama_cpp.all_gpus()]
    result: dict = {"gpus": gpus, "model": args.name}
    for place, options in PLACES.items():
        result[place] = curve(args.name, options) | {"speeds": speeds(args.name, options)}
    save(args.save, result | {"deadlines": late(args.name)})


if __name__ == "__main__":
    main()
