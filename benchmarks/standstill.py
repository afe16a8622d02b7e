"""How long a server's event loop stands still under attack, as `/health` sees it.

    python -m benchmarks.standstill NAME [--seconds N] [--save NAME]

NAME: a GGUF in $EDGESPEC_TEST_MODELS, served by `edgespec serve` with keys. Somebody streams
answers all the time, and another process asks for `/health` every 10 ms; its answers are as late as
the loop stands still, and as the machine lets both processes wait. Meanwhile nothing happens, or
four clients send forms of 2,000 and of 4,900 optional fields (refused), or what else is large: long
texts to tokenize, a hundred tools, 20,000 messages, 40,000 biases. Reported are the longest and the
99th percentile of `/health`, in ms, without a stream as well, and how many attacks were answered.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import threading
import time
from multiprocessing.connection import Connection

import httpx
import numpy as np

from benchmarks.common import save
from benchmarks.owners import KEYS, served

CHAT = "/v1/chat/completions"


def fields(n: int, seed: int) -> dict:
    return {"type": "object", "properties": {f"f{seed}_{i}": {"type": "integer"} for i in range(n)}}


def form(n: int, seed: int) -> tuple[str, dict]:
    schema = {"name": "x", "strict": True, "schema": fields(n, seed)}
    response = {"type": "json_schema", "json_schema": schema}
    return CHAT, {"messages": [{"role": "user", "content": "a"}], "response_format": response}


def large() -> list[tuple[str, dict]]:
    said = [{"role": "user", "content": "a"}]
    functions = [{"name": f"t{i}", "parameters": fields(40, i)} for i in range(100)]
    tools = [{"type": "function", "function": each} for each in functions]
    turns = [{"role": ("user", "assistant")[i % 2], "content": "hello"} for i in range(20_001)]
    biases = {str(token): 1 for token in range(40_000)}
    return [
        ("/tokenize", {"prompt": "word " * 200_000}),
        (CHAT, {"messages": said, "tools": tools}),
        (CHAT, {"messages": turns}),
        (
            "/v1/completions",
            {"prompt": "a", "logit_bias": biases},
        ),
        ("/v1/completions", {"prompt": "word " * 200_000}),
    ]


def probe(url: str, seconds: float, told: Connection) -> None:
    """Ask for `/health` every 10 ms, and tell how many ms each answer took."""
    took = []
    with httpx.Client(base_url=url, timeout=60) as client:
        client.get("/health")
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            began = time.perf_counter()
            client.get("/health")
            took.append(1e3 * (time.perf_counter() - began))
            time.sleep(0.01)
    told.send(took)


def attack(url: str, kind: str, seconds: float, told: Connection) -> None:
    """Send forms or other large requests with five clients, and tell how many were answered."""
    end, n = time.perf_counter() + seconds, itertools.count()
    bodies = [(path, json.dumps({"max_tokens": 2} | body)) for path, body in large()]

    def send(i: int) -> None:
        with httpx.Client(base_url=url, timeout=120) as client:
            for k in itertools.count():
                if time.perf_counter() > end:
                    return
                path, body = bodies[(i + k) % len(bodies)]
                if kind == "forms":
                    path, given = form((2000, 4900)[k % 2], 100 * i + k)
                    body = json.dumps(given | {"max_tokens": 2})
                headers = {"x-api-key": list(KEYS.values())[i], "content-type": "application/json"}
                client.post(path, content=body, headers=headers)
                next(n)

    threads = [threading.Thread(target=send, args=(i,)) for i in range(1, len(KEYS))]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    told.send(next(n))


def stream(client: httpx.Client, ended: threading.Event) -> None:
    """Stream answers, one after another."""
    body = {"prompt": "Once upon a time", "max_tokens": 100, "stream": True, "ignore_eos": True}
    while not ended.is_set():
        headers = {"x-api-key": next(iter(KEYS.values()))}
        with client.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
            for _ in answer.iter_lines():
                if ended.is_set():
                    break


def measured(client: httpx.Client, kind: str, seconds: float) -> dict[str, float]:
    """Return the figures of `/health` under one kind of attack."""
    here, there = multiprocessing.Pipe()
    url, ended = str(client.base_url), threading.Event()
    streaming = threading.Thread(target=stream, args=(client, ended))
    if kind != "alone":
        streaming.start()
    processes = [multiprocessing.Process(target=probe, args=(url, seconds, there))]
    answered = 0
    if kind in ("forms", "large"):
        mine, other = multiprocessing.Pipe()
        processes += [multiprocessing.Process(target=attack, args=(url, kind, seconds, other))]
    for each in processes:
        each.start()
    took = here.recv()
    if len(processes) > 1:
        answered = mine.recv()
    for each in processes:
        each.join()
    ended.set()
    if kind != "alone":
        streaming.join()
    longest, late = max(took), float(np.quantile(took, 0.99))
    return {"longest_ms": round(longest, 1), "p99_ms": round(late, 1), "n": len(took),
            "attacks_answered": answered}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--save", default="standstill")
    args = parser.parse_args()
    KEYS.update({f"{i}": f"key-of-client-{i}" for i in range(4)})
    multiprocessing.set_start_method("spawn")
    with served(args.name) as client:
        kinds = ("alone", "streaming", "forms", "large")
        result = {kind: measured(client, kind, args.seconds) for kind in kinds}
    save(args.save, {"seconds": args.seconds, "attacks": result})


if __name__ == "__main__":
    main()
