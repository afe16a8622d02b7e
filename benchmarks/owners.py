"""What one client's texts change for another: reuse and times of 200 requests.

    python -m benchmarks.owners NAME [--slots N] [--rounds N] [--save NAME]

NAME: a GGUF in $EDGESPEC_TEST_MODELS, served by `edgespec serve` with two keys. In each round a
first client sends a text, and a second one either the same text or a new one of the same length, in
random order. If something of the first is reused, the same text begins sooner. With --slots above
1, the first client's answer is still running meanwhile, in another slot. The second client
has another key; as a positive control it has the first one's. Reported are, of each pair, the ratio
of the medians (the same text over a new one) with a 95% interval by the bootstrap, the chance that
a request for the same text is the faster of two (0.5: nothing can be told), and the tokens that
were reused. What is drafted is compared exactly, in tests/unit/decoding/test_owners.py.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np

from benchmarks.common import median, model, save

KEYS = {"first": "first-key-of-two", "second": "second-key-of-two"}
WORDS = ["red", "green", "blue", "one", "two", "three", "north", "south", "stone", "river", "bread"]


@contextlib.contextmanager
def served(name: str, *options: str) -> Iterator[httpx.Client]:
    """Yield a client of `edgespec serve` with these further options."""
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        keys.write_text("\n".join(KEYS.values()))
        keys.chmod(0o600)
        command = [sys.executable, "-m", "edgespec_cli", "serve", "-m", str(model(name))]
        server = subprocess.Popen(
            [*command, "--port", "0", "--api-key-file", str(keys), *options],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert server.stdout
            words = server.stdout.readline().split()  # "serving NAME at http://…"
            url = next(word for word in words if word.startswith("http")).rstrip(".,;:")
            with httpx.Client(base_url=url, timeout=120) as client:
                yield client
        finally:
            server.terminate()
            server.wait()


def ask(client: httpx.Client, key: str, text: str) -> tuple[float, int]:
    """Return the milliseconds of an answer and the tokens that were reused."""
    began = time.perf_counter()
    body = {"prompt": text, "max_tokens": 8, "temperature": 0, "seed": 1}
    answer = client.post("/v1/completions", json=body, headers={"x-api-key": KEYS[key]})
    took = 1e3 * (time.perf_counter() - began)
    usage = answer.raise_for_status().json()["usage"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return took, cached


@contextlib.contextmanager
def answering(client: httpx.Client, key: str, text: str) -> Iterator[None]:
    """Have an answer to a text written meanwhile, which has begun."""
    body = {"prompt": text, "max_tokens": 400, "temperature": 0, "stream": True}
    headers = {"x-api-key": KEYS[key]}
    with client.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
        lines = answer.raise_for_status().iter_lines()
        next(lines)  # dropping `lines` would end the answer
        yield
        lines.close()


def text_of(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=120))


def rounds(
    client: httpx.Client, second: str, n: int, rng: random.Random, *, at_once: bool = False
) -> dict[str, list]:
    """Return what the second client saw of n requests for the same text, and of n for a new one.

    at_once: the first client's answer runs meanwhile.
    """
    seen: dict[str, list] = {"same": [], "new": []}
    for kind in rng.sample(["same", "new"] * n, 2 * n):
        text, other = text_of(rng), text_of(rng)
        ask(client, "first", text)
        with answering(client, "first", text) if at_once else contextlib.nullcontext():
            seen[kind].append(ask(client, second, text if kind == "same" else other))
        ask(client, second, text_of(rng))  # what the second one has now is neither
    return seen


def compared(seen: dict[str, list]) -> dict[str, object]:
    """Return the figures of a pair of clients."""
    same, new = (np.array([took for took, _ in seen[kind]]) for kind in ("same", "new"))
    rng = np.random.default_rng(1)
    ratios = [
        np.median(rng.choice(same, same.size)) / np.median(rng.choice(new, new.size))
        for _ in range(2000)
    ]
    return {
        "median_ms": {"same": round(median([*same]), 1), "new": round(median([*new]), 1)},
        "ratio": round(float(np.median(same) / np.median(new)), 3),
        "interval": [round(float(each), 3) for each in np.quantile(ratios, (0.025, 0.975))],
        "chance_faster": round(float((same[:, None] < new).mean()), 3),
        "cached_tokens": {kind: sorted({cached for _, cached in seen[kind]}) for kind in seen},
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--save", default="owners")
    args = parser.parse_args()
    rng = random.Random(1)
    owners = {"another owner": "second", "the same owner": "first"}
    options, at_once = ("--slots", str(args.slots)), args.slots > 1
    with served(args.name, *options) as client:
        rounds(client, "second", 5, rng, at_once=at_once)  # to warm up
        result = {
            name: compared(rounds(client, key, args.rounds, rng, at_once=at_once))
            for name, key in owners.items()
        }
    save(args.save, {"rounds": args.rounds, "slots": args.slots, "pairs": result})


if __name__ == "__main__":
    main()
