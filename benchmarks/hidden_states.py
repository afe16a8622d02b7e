"""What hidden states cost a model of llama.cpp: processor time of an evaluation with three layers
tapped, by inputs that the engine gives and by a callback, and with the final states.

    python -m benchmarks.hidden_states MODEL.gguf [--rounds 80] [--threads 1]

All contexts are over the same weights and take turns in random order. It is the time that this
thread uses, so that other programs hardly disturb it; with more threads than one it lacks theirs.
"""

import argparse
import random
import statistics
import time
from pathlib import Path

from edgespec import EngineConfig
from edgespec.backends.base import FINAL
from edgespec.backends.llama_cpp import LlamaCppModel, hidden

N_PAST = 256


def contexts(model: LlamaCppModel) -> dict[str, LlamaCppModel]:
    """Return a context over the same weights for each case; two are never tapped."""
    n_layer = model.n_layer
    layers = (2, n_layer // 2, n_layer - 3)
    found = {}
    for name, taps in {
        "not tapped": [], "not tapped, again": [], "inputs": [layers],
        "inputs, off again": [layers, ()], "final": [(FINAL,)],
        "callback": [layers], "callback, off again": [layers, ()],
    }.items():  # fmt: skip
        given = hidden.LAYER_INPUTS
        hidden.LAYER_INPUTS = ("no such function",) if "callback" in name else given
        found[name] = model._twin(model.n_ctx)
        for tapped in taps:
            found[name].tap(tapped)
        hidden.LAYER_INPUTS = given
    return found


def measured(
    models: dict[str, LlamaCppModel], n_tokens: int, rounds: int
) -> dict[str, list[float]]:
    """Return the milliseconds of each round's evaluation of so many tokens, all with rows."""
    times: dict[str, list[float]] = {name: [] for name in models}
    tokens = [(7 * i) % 200 for i in range(n_tokens)]
    for _ in range(rounds):
        for name in random.sample(list(models), len(models)):
            models[name].truncate(N_PAST)
            start = time.thread_time()
            models[name].decode(tokens, n_tokens)
            times[name].append(1000 * (time.thread_time() - start))
    return times


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    model = LlamaCppModel(given.model, EngineConfig(n_ctx=512, n_threads=given.threads))
    models = contexts(model)
    for each in models.values():
        each.decode([(7 * i) % 200 for i in range(N_PAST)], 0)
    for n_tokens in (1, 8):
        times = measured(models, n_tokens, given.rounds)
        usual = statistics.median(times["not tapped"])
        for name, found in times.items():
            median = statistics.median(found)
            print(f"{n_tokens} tokens  {name:20} {median:8.2f} ms  {median - usual:+.2f}")


if __name__ == "__main__":
    main()
