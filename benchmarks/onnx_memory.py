"""Memory of an ONNX model: loading, a prompt of 2,000 tokens, and steps after it.

    python -m benchmarks.onnx_memory qwen2.5-coder-1.5b-onnx-int4

Anonymous resident memory, sampled every 2 ms; the mapped weight files, whose pages the system
may drop, are counted apart. The engine's own form of the weights is larger than the files (sums
of blocks beside their scales; what embedding and head share is packed for the head once more), so
a prompt's peak stands beside both: what was there after loading, and the files. For steps: growth
and page faults a step (a copy of the cache would take its size in new pages), and whether the
cache's buffers stay where they are.
"""

from __future__ import annotations

import random
import resource
import sys
import threading
from pathlib import Path

import numpy as np

from benchmarks.common import model, save
from edgespec import EngineConfig
from edgespec.backends import files
from edgespec.loading.models import open_model

N_PROMPT, N_STEPS = 2000, 100


def resident_mib(kind: str = "RssAnon") -> float:
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith(kind))
    return int(line.split()[1]) / 1024


def peak_during(work) -> float:
    peak, done = [resident_mib()], threading.Event()

    def sample() -> None:
        while not done.wait(0.002):
            peak[0] = max(peak[0], resident_mib())

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    work()
    done.set()
    thread.join()
    return peak[0]


def main() -> None:
    (name,) = sys.argv[1:]
    path, made = model(name), []
    before, mapped = resident_mib(), resident_mib("RssFile")
    loading = peak_during(
        lambda: made.append(open_model(path, EngineConfig(n_ctx=N_PROMPT + 2 * N_STEPS)))
    )
    loaded, (target,) = resident_mib(), made
    graph = target.graph
    a_token = 2 * len(graph.past) // 2 * graph.heads * graph.head_size
    a_token *= np.dtype(graph.dtype).itemsize
    rng = random.Random(1)
    prompt = [rng.randrange(100, 40_000) for _ in range(N_PROMPT)]
    peak = peak_during(lambda: target.decode(prompt).logits)
    cache = a_token * N_PROMPT / 2**20
    where = [value.data_ptr() for value in target._cache._values]
    start, faults = resident_mib(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(N_STEPS):
        target.decode([5, 6, 7, 8], n_logits=4)
        target.truncate(target.n_past - 3)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    stay = [value.data_ptr() for value in target._cache._values] == where
    save(f"memory_{name}", {
        "files_mib": round(files.size_of(path) / 2**20, 1),
        "loading_peak_mib": round(loading - before, 1),
        "loaded_mib": round(loaded - before, 1),
        "mapped_files_mib": round(resident_mib("RssFile") - mapped, 1),
        "prompt_tokens": N_PROMPT,
        "cache_mib": round(cache, 1),
        "prompt_peak_mib": round(peak - before, 1),
        "prompt_above_loaded_weights_and_cache_mib": round(peak - loaded - cache, 1),
        "above_files_and_cache_mib": round(
            max(loading, peak - cache) - before - files.size_of(path) / 2**20, 1
        ),
        "steps": {
            "number": N_STEPS,
            "cache_stays_in_place": stay,
            "growth_kib_a_step": round((resident_mib() - start) * 1024 / N_STEPS, 1),
            "page_faults_a_step": round(faults / N_STEPS, 1),
            "a_copy_would_fault": int(cache * 2**20 / 4096),
        },
    })  # fmt: skip


if __name__ == "__main__":
    main()
