"""Plain decoding through the engine against a bare loop of llama_decode + argmax, in turn,
on the same context.

    python -m benchmarks.plain smollm2-135m qwen2.5-coder-1.5b
"""

from __future__ import annotations

import ctypes
import sys
import time

import numpy as np

import edgespec
from benchmarks.common import GREEDY, chat_prompt, median, model, save
from edgespec.backends.llama_cpp.library import lib

N_TOKENS, ROUNDS = 64, 15


def bare(target, prompt):
    """Seconds for N_TOKENS - 1 tokens after the first: nothing but the native calls."""
    memory = lib.llama_get_memory(target._context)
    lib.llama_memory_clear(memory, False)
    batch = lib.llama_batch_init(512, 0, 1)
    for i, token in enumerate(prompt):
        batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, i, 1
        batch.seq_id[i][0], batch.logits[i] = 0, i == len(prompt) - 1
    batch.n_tokens = len(prompt)
    assert lib.llama_decode(target._context, batch) == 0
    tokens, row = [], (ctypes.c_float * target.vocab_size).from_address
    batch.n_tokens, batch.logits[0] = 1, 1
    for i in range(N_TOKENS):
        logits = np.frombuffer(row(lib.llama_get_logits(target._context)), np.float32)
        tokens.append(int(logits.argmax()))
        if i == 0:
            start = time.perf_counter()
        if i + 1 < N_TOKENS:
            batch.token[0], batch.pos[0] = tokens[-1], len(prompt) + i
            assert lib.llama_decode(target._context, batch) == 0
    seconds = time.perf_counter() - start
    lib.llama_batch_free(batch)
    lib.llama_memory_clear(memory, False)
    target.n_past = 0
    return seconds, tokens


def main() -> None:
    results = {}
    for name in sys.argv[1:]:
        with edgespec.load(
            model(name), None, speculative_config={"method": "none"}, n_ctx=2048, sampling=GREEDY
        ) as engine:
            target = engine.sessions[0]._verifier._model
            prompt = chat_prompt(engine, "Tell me about the history of the bicycle.")
            ours, theirs = [], []
            for _ in range(ROUNDS):
                completion = engine.generate(prompt, max_tokens=N_TOKENS, ignore_eos=True)
                ours.append((N_TOKENS - 1) / completion.stats.decode_s)
                engine.sessions[0]._verifier._cache.tokens.clear()
                seconds, tokens = bare(target, prompt)
                theirs.append((N_TOKENS - 1) / seconds)
                assert tokens == list(completion.token_ids)
            ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
            results[name] = {
                "engine_tokens_per_second": round(median(ours), 2),
                "bare_tokens_per_second": round(median(theirs), 2),
                "ratio_median": round(median(ratios), 4),
                "ratio_min": round(min(ratios), 4),
                "ratio_max": round(max(ratios), 4),
                "rounds": ROUNDS,
            }
    save("plain", {"results": results})


if __name__ == "__main__":
    main()
