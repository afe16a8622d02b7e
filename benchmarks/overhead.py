"""Python's share of a step: wall time outside the engine's native calls, vocabulary 152k, depth
4, with a profile of where it goes; and the same with warm caches, after an engine that costs
nothing (as where a GPU does the work and the CPU's caches keep what Python needs). NumPy's
kernels count as Python's.

    python -m benchmarks.overhead
"""

from __future__ import annotations

import contextlib
import cProfile
import pstats
import time

import numpy as np

import edgespec
import edgespec.backends.llama_cpp.batch as backend
from benchmarks.common import GREEDY, chat_prompt, known, median, model, save
from edgespec.backends.base import Capabilities, Model
from edgespec.types import Outputs

SETTINGS = {
    "greedy": {"temperature": 0.0},
    "temperature 0.8, top-k 40, top-p 0.95": {
        "temperature": 0.8, "top_k": 40, "top_p": 0.95,
    },
    "the same with a seed": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "seed": 1},
}  # fmt: skip
N_TOKENS, ROUNDS = 96, 3


class Stopwatch:
    """Adds up the time inside some native calls. It costs as much as the smallest of them, so
    llama_decode and the others are watched in runs of their own.
    """

    def __init__(self):
        self.seconds = 0.0

    def watch(self, call):
        clock = time.perf_counter

        def watched(*args):
            start = clock()
            result = call(*args)
            self.seconds += clock() - start
            return result

        return watched


@contextlib.contextmanager
def watching(*names):
    """Put a stopwatch on native calls of the backend."""
    stopwatch, before = Stopwatch(), {name: getattr(backend.lib, name) for name in names}
    for name, call in before.items():
        setattr(backend.lib, name, stopwatch.watch(call))
    try:
        yield stopwatch
    finally:
        for name, call in before.items():
            setattr(backend.lib, name, call)


def full_steps(engine, prompt, stopwatch, sampling):
    """(seconds outside, inside the watched calls) of each full-depth step."""
    found = []
    policy = engine.sessions[0]._policy
    before = {"wall": time.perf_counter(), "native": stopwatch.seconds}

    def observe(step, verified, growth):
        wall, native = time.perf_counter(), stopwatch.seconds
        if step.n_drafted == 4 and step.n_evaluated == 5:
            inside = native - before["native"]
            found.append((wall - before["wall"] - inside, inside))
        before.update(wall=wall, native=native)

    policy.observe = observe
    engine.generate(prompt, max_tokens=N_TOKENS, ignore_eos=True, **sampling)
    return found


class Costless(Model):
    """Rows that are there already: one clear favourite, so every draft is accepted."""

    vocab_size, n_ctx, n_past = 151_936, 4096, 0
    capabilities = Capabilities(32, 512)

    def __init__(self):
        row = (np.random.default_rng(0).normal(size=self.vocab_size) * 2).astype(np.float32)
        row[100] += 14
        self._rows = np.tile(row, (32, 1))

    def decode(self, tokens, n_logits=1, abort=None):
        self.n_past += len(tokens)
        return Outputs(self._rows[:n_logits])

    def truncate(self, n_past):
        self.n_past = min(n_past, self.n_past)


class OneWord:
    """A tokenizer for Costless."""

    vocab_size, chat_template = Costless.vocab_size, None

    def piece(self, token):
        return b"x "

    def is_eog(self, token):
        return False


def warm(sampling):
    """Median milliseconds of a full-depth step with warm caches."""
    config = {"method": "draft_model", "draft_p_min": 0.0}
    engine = edgespec.assemble(Costless(), OneWord(), Costless(), config)
    ends = []
    engine.sessions[0]._policy.observe = lambda *step: ends.append(time.perf_counter())
    engine.generate([1, 2, 3], max_tokens=600, **sampling)
    return round(1e3 * median(np.diff(ends).tolist()), 3)


def main() -> None:
    results = {}
    paths = model("qwen2.5-coder-1.5b"), model("qwen2.5-coder-0.5b")
    config = {"method": "draft_model", "draft_p_min": 0.0}
    with known(
        lambda: edgespec.load(*paths, n_ctx=2048, speculative_config=config, sampling=GREEDY)
    ) as engine:
        prompt = chat_prompt(engine, "Write a Python class for a stack, with docstrings.")
        for name, sampling in SETTINGS.items():
            outside, small = [], []
            for _ in range(ROUNDS):
                with watching("llama_decode") as stopwatch:
                    outside += full_steps(engine, prompt, stopwatch, sampling)
                with watching("llama_get_logits", "llama_memory_seq_rm") as stopwatch:
                    small += full_steps(engine, prompt, stopwatch, sampling)
            outside_decode = median([seconds for seconds, _ in outside])
            in_small = median([seconds for _, seconds in small])
            profile = cProfile.Profile()
            with watching("llama_decode") as stopwatch:
                profile.runcall(full_steps, engine, prompt, stopwatch, sampling)
            results[name] = {
                "median_ms": round(1e3 * (outside_decode - in_small), 3),
                "outside_llama_decode_ms": round(1e3 * outside_decode, 3),
                "in_llama_get_logits_and_memory_seq_rm_ms": round(1e3 * in_small, 3),
                "steps": len(outside),
                "warm_median_ms": warm(sampling),
                "profile_ms_a_step": where(profile, len(outside) / ROUNDS),
            }
    save("overhead", {"results": results})


def where(profile, n_steps):
    """Return the ten dearest functions outside the engine."""
    rows = pstats.Stats(profile).stats.items()
    own = [
        (1e3 * row[2] / n_steps, f"{key[0].rpartition('/')[2]}:{key[2]}") for key, row in rows
        if "overhead.py" not in str(key)
    ]  # fmt: skip
    return {name: round(ms, 3) for ms, name in sorted(own, reverse=True)[:12]}


if __name__ == "__main__":
    main()
