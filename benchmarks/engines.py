"""The same weights on onnxruntime and on llama.cpp: t(n), tokens/s, and what the bare library does.

    python -m benchmarks.engines NAME ONNX GGUF

Both models are loaded, and evaluations of 1, 2, 4, 8, 16 tokens after 256 take turns, with one
and with two threads; medians. Then plain decoding through the engine against a bare loop of
run_with_iobinding + argmax on the same session, which evaluates as many tokens a step.
"""

from __future__ import annotations

import sys
import time

import numpy as np

import edgespec
from benchmarks.common import GREEDY, chat_prompt, median, model, save
from edgespec import EngineConfig
from edgespec.backends.onnx.session import ort
from edgespec.costs.measuring import fill, timed
from edgespec.loading.models import open_model

WIDTHS, BEHIND, ROUNDS, N_TOKENS = (1, 2, 4, 8, 16), 256, 9, 64
BARE_ROUNDS = 21


def widths(names, threads, **options):
    """Median ms of each width, of models that take turns."""
    config = EngineConfig(n_ctx=1024, n_threads=threads, **options)
    models = [open_model(model(name), config) for name in names]
    for each in models:
        fill(each, BEHIND)
    times = {(name, w): [] for name in names for w in WIDTHS}
    for _ in range(ROUNDS):
        for name, each in zip(names, models, strict=True):
            timed(each, 1)  # its weights are in the caches again
            for w in WIDTHS:
                times[name, w].append(timed(each, w))
    for each in models:
        each.close()
    found = {}
    for name in names:
        ms = {w: round(1e3 * median(times[name, w]), 2) for w in WIDTHS}
        ratio = {w: round(ms[w] / ms[1], 2) for w in WIDTHS}
        found[name] = {"ms": ms, "ratio": ratio, "tokens_per_second": round(1e3 / ms[1], 1)}
    return found


def bare(target, prompt):
    """Seconds for N_TOKENS - 1 tokens after the first, as an example of the library would do it,
    with as many tokens a step as the engine evaluates.
    """
    graph, width = target.graph, 2 if target.pads else 1
    binding = target._session.io_binding()
    shape = (1, graph.heads, target.n_ctx + 2, graph.head_size)
    for past, present in zip(graph.past, graph.present, strict=True):
        value = ort.OrtValue.ortvalue_from_shape_and_type(shape, graph.dtype, "cpu", 0)
        binding.bind_ortvalue_input(past, value)
        binding.bind_ortvalue_output(present, value)
    mask = np.ones((1, target.n_ctx + 2), np.int64)
    ids = np.array([prompt])
    logits = np.empty((1, len(prompt), target.vocab_size), np.float32)

    def run(n, total):
        binding.bind_input("input_ids", "cpu", 0, np.int64, (1, n), ids.ctypes.data)
        binding.bind_input("attention_mask", "cpu", 0, np.int64, (1, total), mask.ctypes.data)
        shape = (1, n, target.vocab_size)
        binding.bind_output("logits", "cpu", 0, np.float32, shape, logits.ctypes.data)
        target._session.run_with_iobinding(binding)

    run(len(prompt) - 1, len(prompt) - 1)
    flat, tokens = logits.reshape(-1)[: target.vocab_size], []
    for i in range(N_TOKENS):
        ids[0, :width] = tokens[-1] if tokens else prompt[-1]
        run(width, len(prompt) - 1 + i + width)
        tokens.append(int(flat.argmax()))
        if i == 0:
            start = time.perf_counter()
    return time.perf_counter() - start, tokens


def against_bare(name, **options):
    """Tokens/s of the engine over the bare loop's, round by round."""
    config = {"method": "none"}
    with edgespec.load(
        model(name), None, speculative_config=config, n_ctx=1024, **options, sampling=GREEDY
    ) as engine:
        target = engine.sessions[0]._verifier._model
        prompt = chat_prompt(engine, "Tell me about the history of the bicycle.")
        ratios, speeds = [], []
        for _ in range(BARE_ROUNDS):
            done = engine.generate(prompt, max_tokens=N_TOKENS, ignore_eos=True)
            seconds, tokens = bare(target, prompt)
            assert not target.config.batch_invariant or tokens == list(done.token_ids)
            speeds.append((N_TOKENS - 1) / done.stats.decode_s)
            ratios.append(seconds / done.stats.decode_s)
        return {
            "single_tokens": target.placement["single tokens"],
            "engine_tokens_per_second": round(median(speeds), 2),
            "ratio_median": round(median(ratios), 4),
            "ratio_min": round(min(ratios), 4),
            "ratio_max": round(max(ratios), 4),
            "rounds": BARE_ROUNDS,
        }


def main() -> None:
    name, graph, gguf = sys.argv[1:]
    save(f"engines_{name}", {
        "behind": BEHIND, "rounds": ROUNDS,
        "threads": {
            str(n): widths((graph, gguf), n, batch_invariant=False) for n in (1, 2)
        },
        "against_bare_loop": {
            "default": against_bare(graph),
            "batch_invariant": against_bare(graph, batch_invariant=True),
        },
    })  # fmt: skip


if __name__ == "__main__":
    main()
