"""Peak memory beside weights and KV caches, both Qwen models, a prompt of 2,000 tokens.

    python -m benchmarks.memory

Anonymous resident memory (the mapped weight files are not in it), sampled every 5 ms from before
loading to after the answer, less what the engine reports for repacked weights and KV caches.
"""

from __future__ import annotations

import random
import threading
from pathlib import Path

import edgespec
from benchmarks.common import GREEDY, known, model, save


def anonymous_mib() -> float:
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1024


def main() -> None:
    peak, done = [0.0], threading.Event()

    def sample() -> None:
        while not done.wait(0.005):
            peak[0] = max(peak[0], anonymous_mib())

    threading.Thread(target=sample, daemon=True).start()
    rng = random.Random(1)
    paths = model("qwen2.5-coder-1.5b"), model("qwen2.5-coder-0.5b")
    config = {"draft_p_min": 0.0}
    with known(
        lambda: edgespec.load(*paths, n_ctx=4096, speculative_config=config, sampling=GREEDY)
    ) as engine:
        prompt = [rng.randrange(100, 100_000) for _ in range(2000)]
        for sampling in (
            {},
            {"temperature": 0.8, "logprobs": 5},
            {"temperature": 0.8, "top_k": 40},
        ):
            stats = engine.generate(prompt, max_tokens=24, ignore_eos=True, **sampling).stats
        told = engine.describe()
        buffers = {
            f"{which}: {name}": float(size.split()[0])
            for which in ("model", "draft")
            for name, size in told[which]["placement"].items()
            if size.endswith("MiB")
        }
    done.set()
    kept = sum(v for k, v in buffers.items() if "REPACK" in k or " KV" in k)
    save("memory", {
        "peak_anonymous_mib": round(peak[0], 1),
        "repacked_weights_and_kv_mib": round(kept, 1),
        "above_mib": round(peak[0] - kept, 1),
        "buffers_mib": buffers, "drafted": stats.num_draft_tokens,
    })  # fmt: skip


if __name__ == "__main__":
    main()
