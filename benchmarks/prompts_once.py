"""Time to the first token of prompts that were read before: in this process, and in an earlier one.

    python -m benchmarks.prompts_once MODEL [--tokens 1000,4000] [--rounds 3] [--out NAME]
        [--llama-server]

For each length, a prompt is read for the first time, then again after twenty other conversations,
then in a new process with what the first one has left on disk. A conversation of ten turns is
edited in the middle. All times leave out loading. With --llama-server, the same prompts are read by
llama.cpp's own server: again from its `--cache-ram`, and in a new process from a slot's file.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

import edgespec

from . import common
from .slots import served

_SINCE = 20  # other conversations
_TURNS, _SAID = 10, 8  # turns of a conversation, and tokens of an answer


def words(rng: random.Random, engine: edgespec.Engine, n: int) -> list[int]:
    """Return the first `n` tokens of a text of rules like those of system prompts."""
    parts = [f"Rule {i}: {rng.choice(VERBS)} the {rng.choice(NOUNS)} {rng.randrange(10**6)}."
             for i in range(n // 6 + 8)]  # fmt: skip
    return engine.encode(" ".join(parts))[:n]


VERBS = ["open", "close", "read", "list", "call", "check", "write", "move", "find", "count"]
NOUNS = ["file", "door", "table", "tool", "robot", "camera", "answer", "menu", "order", "ticket"]


def asked(engine: edgespec.Engine, prompt: list[int], n: int = 1) -> tuple[float, tuple[int, ...]]:
    """Return the seconds to the first token of an answer, and its tokens."""
    began, first = time.perf_counter(), 0.0
    for event in engine.stream(prompt, max_tokens=n, ignore_eos=True, disable_spec_decode=True):
        if event.type == "token" and not first:
            first = time.perf_counter() - began
        if event.completion:
            return first, event.completion.token_ids
    raise AssertionError("a stream ends with its completion")


def opened(path: Path, invariant: bool) -> edgespec.Engine:
    return edgespec.load(
        path, None, n_ctx=6144, prompt_cache="disk", sampling=common.GREEDY,
        batch_invariant=invariant, cache_ram=4096, cache_disk=8192,
        speculative_config={"method": "none"},
    )  # fmt: skip


def measured(engine: edgespec.Engine, n: int, seed: int) -> tuple[dict, list[int]]:
    """Return the times of one prompt of `n` tokens, and the prompt."""
    rng = random.Random(seed)
    prompt = words(rng, engine, n)
    first_s, text = asked(engine, prompt, _SAID)
    for _ in range(_SINCE):
        asked(engine, words(rng, engine, 64))
    again_s, same = asked(engine, prompt, _SAID)
    return {"first": first_s, "again": again_s, "equal": text == same, "text": list(text)}, prompt


def edited(engine: edgespec.Engine, n: int, seed: int) -> dict:
    """Return the times of a conversation of ten turns whose sixth is replaced after its end."""
    rng = random.Random(seed)
    text, turns = words(rng, engine, n), []
    for _ in range(_TURNS):
        turns.append(len(text))
        text = [*text, *words(rng, engine, 60)]
        _, said = asked(engine, text, _SAID)
        text = [*text, *said]
    for _ in range(_SINCE):
        asked(engine, words(rng, engine, 64))
    half = [*text[: turns[_TURNS // 2]], *words(rng, engine, 60)]
    edit_s, _ = asked(engine, half)
    new = [*words(rng, engine, len(half) - 60), *half[-60:]]
    whole_s, _ = asked(engine, new)
    return {"edit": edit_s, "whole": whole_s}


def ask_peer(url: str, prompt: list[int]) -> float:
    """Return the seconds in which llama-server reads a prompt and writes one token."""
    began = time.perf_counter()
    body = {"prompt": prompt, "n_predict": 1, "temperature": 0, "cache_prompt": True}
    httpx.post(f"{url}/completion", json=body, timeout=600).raise_for_status()
    return time.perf_counter() - began


def slot_file(url: str, action: str, name: str) -> float:
    """Let llama-server save its slot to a file, or restore it; return the seconds."""
    began = time.perf_counter()
    reply = httpx.post(f"{url}/slots/0?action={action}", json={"filename": name}, timeout=600)
    reply.raise_for_status()
    return time.perf_counter() - began


def peer(path: Path, prompts: list[list[int]], others: list[list[int]], folder: str) -> dict:
    """Return llama-server's median times of these prompts. others: the conversations in between."""
    command = [
        sys.executable, "-m", "benchmarks.llama_server", str(path), "--n-ctx", "6144",
        "--cache-ram", "4096", "--slot-save-path", folder,
    ]  # fmt: skip
    firsts, agains, saves, news = [], [], [], []
    with served(command) as url:
        ask_peer(url, others[0])
        for i, prompt in enumerate(prompts):
            firsts.append(ask_peer(url, prompt))
            saves.append(slot_file(url, "save", f"{i}.bin"))
            for other in others:
                ask_peer(url, other)
            agains.append(ask_peer(url, prompt))
    with served(command) as url:
        for i, prompt in enumerate(prompts):
            ask_peer(url, others[0])
            news.append(slot_file(url, "restore", f"{i}.bin") + ask_peer(url, prompt))
    return {
        "first_ms": round(1e3 * statistics.median(firsts), 1),
        "again_ms": round(1e3 * statistics.median(agains), 1),
        "new_process_ms": round(1e3 * statistics.median(news), 1),
        "saving_ms": round(1e3 * statistics.median(saves), 1),
    }


def again(args: argparse.Namespace) -> None:
    """Read prompts from stdin and write their times: the new process."""
    with opened(Path(args.model), args.batch_invariant) as engine:
        asked(engine, engine.encode("Say something else first."), 2)
        print(json.dumps([asked(engine, prompt, _SAID) for prompt in json.load(sys.stdin)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--tokens", default="1000,4000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-invariant", action="store_true")
    parser.add_argument("--again", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--llama-server", action="store_true")
    parser.add_argument("--out", default="")
    args = parser.parse_args()
    if args.again:
        again(args)
        return
    path, result = common.MODELS / args.model, {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EDGESPEC_PREFIXES"] = folder
        for n in map(int, args.tokens.split(",")):
            with opened(path, args.batch_invariant) as engine:
                asked(engine, engine.encode("Say something else first."), 2)
                rounds = [measured(engine, n, seed) for seed in range(args.rounds)]
                edits = [edited(engine, n, 100 + seed) for seed in range(args.rounds)]
                others = [words(random.Random(900 + i), engine, 64) for i in range(_SINCE)]
                began = time.perf_counter()
                stored = engine.prefixes.describe() if engine.prefixes else {}
            closing_s = time.perf_counter() - began
            command = [sys.executable, "-m", "benchmarks.prompts_once", str(path), "--again"]
            command += ["--batch-invariant"] if args.batch_invariant else []
            prompts = json.dumps([prompt for _, prompt in rounds])
            reply = subprocess.run(command, input=prompts, stdout=subprocess.PIPE, text=True)
            later = json.loads(reply.stdout)
            median = statistics.median
            row = {
                "first_ms": round(1e3 * median(one["first"] for one, _ in rounds), 1),
                "again_ms": round(1e3 * median(one["again"] for one, _ in rounds), 1),
                "new_process_ms": round(1e3 * median(s for s, _ in later), 1),
                "again_of_first": round(median(o["again"] / o["first"] for o, _ in rounds), 4),
                "new_process_of_first": round(
                    median(s / o["first"] for (s, _), (o, _) in zip(later, rounds, strict=True)), 4
                ),
                "edit_of_whole": round(median(each["edit"] / each["whole"] for each in edits), 4),
                "equal_texts": sum(one["equal"] for one, _ in rounds),
                "equal_texts_new_process": sum(
                    text == one["text"] for (_, text), (one, _) in zip(later, rounds, strict=True)
                ),
                "rounds": args.rounds,
                "closing_s": round(closing_s, 2),
                "stored": stored,
            }
            if args.llama_server:
                row["llama_server"] = peer(path, json.loads(prompts), others, folder)
            result[f"{n} tokens"] = row
            print(n, json.dumps(row), flush=True)
    if args.out:
        common.save(args.out, {"model": path.parent.name if path.suffix == ".onnx" else path.name,
                               "rows": result})  # fmt: skip


if __name__ == "__main__":
    main()
