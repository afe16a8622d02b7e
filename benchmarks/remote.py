"""A target behind `edgespec serve`, its device beside it on this machine.

    python -m benchmarks.remote equality NAME TARGET [DRAFT] --questions question.dev.jsonl
    python -m benchmarks.remote trips NAME TARGET DRAFT --questions question.dev.jsonl
    python -m benchmarks.remote devices NAME TARGET --questions question.dev.jsonl

equality: greedy and coupled text through the server against the same target in this process, token
for token (--batch-invariant on both sides). trips: tokens/s, share of time waiting and bytes a
token for round trips of 0 to 200 ms; server and device have half of the cores each, as if they were
two machines. devices: 1 to 8 of them at once, with drafts and plain.

Otherwise device and server share the cores of one machine here. Threads of either that went on
spinning after an evaluation would take them from the other, so they are told not to.
"""

from __future__ import annotations

import contextlib
import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when llama.cpp is loaded

import statistics
import subprocess
import sys
import threading
import time

import edgespec
from benchmarks.common import GREEDY, chat_prompt, known, load_fixed, model, save, spread
from tests.helpers.delaying import Proxy

TRIPS_MS = (0, 20, 50, 100, 200)
N_TOKENS, N_QUESTIONS = 64, 6


@contextlib.contextmanager
def served(target: str, *options: str, cores: set[int] | None = None):
    """`edgespec serve` in a process of its own, on these cores only; its port."""
    command = [
        sys.executable, "-m", "edgespec_cli", "serve", "-m", str(model(target)), "-md", "none",
        "--port", "0", "-c", "4096", "-q", *options,
    ]  # fmt: skip
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=(lambda: os.sched_setaffinity(0, cores)) if cores else None,
    )
    try:
        assert process.stdout
        url = process.stdout.readline().split(" at ")[1].split()[0]
        port = int(url.rpartition(":")[2])
        wait_until_measured(port, target)
        yield port
    finally:
        process.terminate()
        process.wait()


def connected(port: int, target: str, **options) -> edgespec.Engine:
    remote = edgespec.RemoteConfig(f"ws://127.0.0.1:{port}", tokenizer=model(target))
    return edgespec.connect(remote, **options, sampling=GREEDY)


def wait_until_measured(port: int, target: str) -> None:
    """Until the server knows what its steps cost, which it tells devices."""
    while True:
        with connected(port, target, speculative_config={"method": "none"}) as far:
            far.generate("a", max_tokens=1)
            if far.sessions[0]._verifier.costs:
                return
        time.sleep(1)


def questions(file: str, engine, n: int):
    """Prompts of the first questions, one of a category after another."""
    chosen, seen = [], {}
    for _, category, text in spread(file):
        seen[category] = seen.get(category, 0) + 1
        chosen.append((seen[category], category, text))
    return [(c, chat_prompt(engine, text)) for _, c, text in sorted(chosen)[:n]]


def equality(name, target, draft=None, *, file):
    rows = {"greedy": {}, "coupled": {"temperature": 0.8, "top_p": 0.95}}
    options = {"batch_invariant": True}
    result = {}
    config = {"num_speculative_tokens": 4, "draft_p_min": 0.0}
    words = None if draft else model(target)
    with (
        served(target, "--batch-invariant") as port,
        load_fixed(target, **options) as local,
        known(
            lambda: edgespec.connect(
                edgespec.RemoteConfig(f"ws://127.0.0.1:{port}", tokenizer=words),
                draft and model(draft),
                speculative_config=config,
                n_ctx=4096,
                sampling=GREEDY,
            )
        ) as far,
    ):  # fmt: skip
        for kind, sampling in rows.items():
            equal = accepted = drafted = 0
            for i, (_, prompt) in enumerate(questions(file, local, 30)):
                asked = {"max_tokens": N_TOKENS, **sampling}
                if sampling:
                    asked["seed"] = i
                for engine in (local, far):  # from an empty cache: of the prompt nothing is there
                    engine.generate([prompt[-1]], max_tokens=1)
                plain = local.generate(prompt, **asked, disable_spec_decode=True)
                done = far.generate(prompt, **asked)
                equal += plain.token_ids == done.token_ids
                accepted += done.stats.num_accepted_draft_tokens
                drafted += done.stats.num_draft_tokens
                print(kind, i, plain.token_ids == done.token_ids, file=sys.stderr)
            result[kind] = {"questions": 30, "equal": equal, "drafted": drafted,
                            "accepted": accepted}  # fmt: skip
    save(f"remote_equality_{name}", {
        "target": target, "draft": draft or "prompt lookup", "depth": 4, "tokens": N_TOKENS,
        "batch_invariant": True, **result,
    })  # fmt: skip


def answers(engine, prompts, **options):
    """Figures of all prompts together; bytes from each answer's first token on."""
    verifier = engine.sessions[0]._verifier
    far = hasattr(verifier, "bytes_sent")
    speeds, waits, tokens, up, down = [], [], 0, 0, 0
    for _, prompt in prompts:
        begun = None
        for event in engine.stream(prompt, max_tokens=N_TOKENS, **options):
            if far and event.type == "token" and begun is None:
                begun = verifier.bytes_sent, verifier.bytes_received
        stats = event.completion.stats
        speeds.append(stats.tokens_per_second)
        waits.append(min(1.0, stats.verify_s / stats.total_s))
        tokens += len(event.completion.token_ids) - 1
        if far:
            up += verifier.bytes_sent - begun[0]
            down += verifier.bytes_received - begun[1]
    found = {
        "tokens_per_second": round(statistics.mean(speeds), 2),
        "waiting": round(statistics.mean(waits), 3),
    }
    return found | (
        {
            "bytes_up_per_token": round(up / tokens, 1),
            "bytes_down_per_token": round(down / tokens, 1),
        }
        if far
        else {}
    )


def trips(name, target, draft, *, file):
    fixed = {"num_speculative_tokens": 4, "draft_p_min": 0.5}
    ways = {
        "auto": ({}, {}),
        "synchronous, depth 4": (fixed, {"ahead": False}),
        "drafting ahead, depth 4": (fixed, {}),
        "remote plain": ({"method": "none"}, {}),
    }
    table = {}
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // 2
    threads = ("-t", str(half), "-tb", str(half))
    os.sched_setaffinity(0, cores[half:])
    alone = {"n_ctx": 4096, "n_threads": len(cores) - half}
    with (
        served(target, *threads, cores=set(cores[:half])) as port,
        known(lambda: edgespec.load(model(target), None, **alone, sampling=GREEDY)) as local,
    ):
        prompts = questions(file, local, N_QUESTIONS)
        proxy = Proxy(port)
        url = f"ws://127.0.0.1:{proxy.port}"
        for trip in TRIPS_MS:
            proxy.delay_s = trip / 2e3
            row = {}
            for way, (config, how) in ways.items():
                with known(
                    lambda config=config: edgespec.connect(
                        url, model(draft), speculative_config=config, **alone, sampling=GREEDY
                    )
                ) as far:
                    if how:
                        far.sessions[0]._drafting_ahead = []
                    far.generate(prompts[0][1], max_tokens=8)
                    row[way] = answers(far, prompts)
                print(trip, way, row[way], file=sys.stderr)
            row["local plain"] = answers(local, prompts, disable_spec_decode=True)
            print(trip, row["local plain"], file=sys.stderr)
            table[str(trip)] = row
            save(f"remote_trips_{name}", {  # a run that is cut keeps what it has
                "target": target, "draft": draft, "tokens": N_TOKENS, "questions": N_QUESTIONS,
                "cores": {"server": half, "device": len(cores) - half}, "round_trip_ms": table,
            })  # fmt: skip
        proxy.close()


def devices(name, target, *, file):
    table = {}
    with served(target, "-np", "8", "--ctx-size-sessions", "16384") as port:
        for n in (1, 2, 4, 8):
            row = {}
            for way, config in (("lookup", {"method": "suffix"}), ("plain", {"method": "none"})):
                engines = [connected(port, target, speculative_config=config) for _ in range(n)]
                prompts = [p for _, p in questions(file, engines[0], 8)]
                counts = [0] * n

                def run(i, engines=engines, counts=counts, prompts=prompts):
                    done = engines[i].generate(prompts[i], max_tokens=N_TOKENS, ignore_eos=True)
                    counts[i] = len(done.token_ids)

                for engine, prompt in zip(engines, prompts, strict=False):
                    engine.generate(prompt, max_tokens=1)  # prompts are read before
                threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
                began = time.perf_counter()
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                seconds = time.perf_counter() - began
                row[way] = round(sum(counts) / seconds, 2)
                for engine in engines:
                    engine.close()
            table[str(n)] = row
            print(n, row, file=sys.stderr)
    save(f"remote_devices_{name}", {
        "target": target, "tokens": N_TOKENS, "total_tokens_per_second": table,
    })  # fmt: skip


if __name__ == "__main__":
    words = sys.argv[1:]
    at = words.index("--questions")
    file = words[at + 1]
    what, *rest = words[:at]
    {"equality": equality, "trips": trips, "devices": devices}[what](*rest, file=file)
