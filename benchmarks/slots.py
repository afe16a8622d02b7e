"""Answers to several clients at once: edgespec and llama-server, question by question.

    python -m benchmarks.slots QUESTIONS MODEL.gguf [--draft MODEL.gguf] [--spec-type none]

All servers run at the same time, and one of them answers at a time. For each number of streams, the
same questions are asked by that many clients at once: of edgespec plainly and with drafts, of
llama-server plainly and with each `--spec-type`. Every mode has its turn in every group, in an
order that is drawn for each. With `--reading N`, one answer is streamed in place of all this while
a prompt of N tokens is read, and its longest silence is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

import httpx

from . import common

_READY_S = 120.0


class Mode(NamedTuple):
    """A server and what is asked of it. fields: further fields of each request."""

    name: str
    url: str
    fields: dict


class Answer(NamedTuple):
    """The times of one answer in seconds, its tokens and its prompt's, and the longest silence
    within it.
    """

    first_s: float
    total_s: float
    n_tokens: int
    n_prompt: int
    silence_s: float


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextlib.contextmanager
def served(command: list[str], env: dict[str, str] | None = None) -> Iterator[str]:
    """Run a server on a free port until the end of the block; yield its address."""
    port = free_port()
    with open(os.devnull, "w") as nowhere:
        process = subprocess.Popen(
            [*command, "--port", str(port)], stdout=nowhere, stderr=nowhere, env=env
        )
        try:
            url, end = f"http://127.0.0.1:{port}", time.monotonic() + _READY_S
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    if httpx.get(f"{url}/health").status_code == 200:
                        break
                if process.poll() is not None or time.monotonic() > end:
                    sys.exit(f"{command[0]} does not serve: {' '.join(command)}")
                time.sleep(0.2)
            yield url
        finally:
            process.terminate()
            process.wait()


def ask(mode: Mode, question: str, n_tokens: int) -> Answer:
    """Return the figures of one streamed answer. No prompt begins like an earlier one."""
    number = f"Question {random.randrange(10**5, 10**6)}."
    body = {
        "messages": [
            {"role": "system", "content": number}, {"role": "user", "content": question}
        ],
        "stream": True, "temperature": 0,
        "max_tokens": n_tokens, "stream_options": {"include_usage": True},
        "cache_prompt": False, **mode.fields,
    }  # fmt: skip
    began = last = time.perf_counter()
    first_s = silence_s = 0.0
    usage: dict = {}
    with httpx.stream("POST", f"{mode.url}/v1/chat/completions", json=body, timeout=600) as lines:
        for line in lines.iter_lines():
            if not line.startswith("data: {"):
                continue
            data, now = json.loads(line[6:]), time.perf_counter()
            if data.get("error"):
                sys.exit(f"{mode.name}: {data['error']}")
            usage = data.get("usage") or usage
            if any(choice["delta"].get("content") for choice in data["choices"]):
                if first_s:
                    silence_s = max(silence_s, now - last)
                else:
                    first_s = now - began
                last = now
    n, n_prompt = usage.get("completion_tokens", 0), usage.get("prompt_tokens", 0)
    return Answer(first_s, time.perf_counter() - began, n, n_prompt, silence_s)


def asked_at_once(mode: Mode, questions: list[str], n_tokens: int) -> tuple[float, list[Answer]]:
    """Ask one question in each of several threads; return the seconds of all, and the answers."""
    answers: list[Answer | None] = [None] * len(questions)

    def run(i: int) -> None:
        answers[i] = ask(mode, questions[i], n_tokens)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(questions))]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began, [answer for answer in answers if answer]


def silence(mode: Mode, n_tokens: int) -> dict:
    """Return the longest silence of a stream while another prompt of `n_tokens` is read, and the
    seconds to that prompt's first token.
    """
    answers: dict[str, Answer] = {}
    words = ("the", "boat", "and", "a", "house", "by", "old", "water", "people", "came")
    asked = {
        "stream": ("Tell a very long story about a harbour and its people.", 400),
        "reader": (" ".join(random.choices(words, k=n_tokens)), 4),  # about a token each
    }

    def run(name: str) -> None:
        question, n = asked[name]
        answers[name] = ask(mode._replace(fields=mode.fields | {"ignore_eos": True}), question, n)

    threads = {name: threading.Thread(target=run, args=(name,)) for name in asked}
    threads["stream"].start()
    time.sleep(1.5)
    threads["reader"].start()
    for thread in threads.values():
        thread.join()
    return {
        "longest_silence_ms": round(1e3 * answers["stream"].silence_s),
        "n_prompt": answers["reader"].n_prompt,
        "first_token_ms_of_the_reader": round(1e3 * answers["reader"].first_s),
    }


def row_of(groups: list[tuple[float, list[Answer]]]) -> dict:
    """Return the figures of all groups of answers in one mode."""
    answers = [answer for _, its in groups for answer in its]
    firsts = sorted(answer.first_s for answer in answers)
    slowest = firsts[-max(1, len(firsts) // 4) :]
    return {
        "tokens_per_second": round(sum(a.n_tokens for a in answers) / sum(s for s, _ in groups), 2),
        "ms_per_token_of_a_stream": round(
            1e3 * statistics.median(a.total_s / max(a.n_tokens, 1) for a in answers), 1
        ),
        "first_token_ms": round(1e3 * statistics.median(firsts), 1),
        "first_token_ms_slowest_quarter": round(1e3 * statistics.median(slowest), 1),
        "n_tokens": sum(a.n_tokens for a in answers),
    }


def ratios(groups: dict, mode: str, plain: str) -> dict:
    """Return how a mode compares to a plain one, group by group: in sum and for each stream."""
    pairs = list(zip(groups[mode], groups[plain], strict=True))
    sums, streams = [], []
    for (seconds, answers), (plain_s, plain_answers) in pairs:
        rate = sum(a.n_tokens for a in answers) / seconds
        sums.append(rate / (sum(a.n_tokens for a in plain_answers) / plain_s))
        for one, other in zip(answers, plain_answers, strict=True):
            each, before = one.total_s / max(1, one.n_tokens), other.total_s / other.n_tokens
            streams.append(before / each)
    streams.sort()
    return {
        "sum": round(statistics.geometric_mean(sums), 3),
        "stream_median": round(statistics.median(streams), 3),
        "stream_tenth": round(streams[len(streams) // 10], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("model")
    parser.add_argument("--draft", default="")
    parser.add_argument("--streams", default="1,2,4,8")
    parser.add_argument("--questions", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--spec-type", action="append", default=[], help="of llama-server")
    parser.add_argument(
        "--again", action="store_true", help="ask edgespec plainly twice, which shows the noise"
    )
    parser.add_argument("--reading", type=int, default=0, metavar="N")
    parser.add_argument("--out", default="")
    args = parser.parse_args()
    path, n_ctx = common.MODELS / args.model, max(2048, 2 * args.reading)
    questions = common.mixed(args.file, args.questions)
    with contextlib.ExitStack() as stack:
        ours = [
            sys.executable, "-m", "edgespec_cli", "serve", "-m", str(path), "--slots",
            str(args.slots), "-c", str(n_ctx), "--parallel", "0", "--draft-memory", "off",
            "-md", str(common.MODELS / args.draft) if args.draft else "none", "-q",
        ]  # fmt: skip
        url = stack.enter_context(served(ours))
        modes = [
            Mode("edgespec plain", url, {"disable_spec_decode": True}),
            Mode("edgespec auto", url, {}),
        ]
        if args.again:
            modes.append(Mode("edgespec again", url, {"disable_spec_decode": True}))
        for kind in args.spec_type:
            theirs = [
                sys.executable, "-m", "benchmarks.llama_server", str(path), "--slots",
                str(args.slots), "--n-ctx", str(n_ctx), "--spec-type", kind,
            ]  # fmt: skip
            if kind.startswith("draft"):
                theirs += ["--draft", str(common.MODELS / args.draft)]
            name = f"llama-server {'plain' if kind == 'none' else kind}"
            modes.append(Mode(name, stack.enter_context(served(theirs)), {}))
        for mode in modes:
            for _ in range(3):  # costs are measured, kernels are loaded
                ask(mode, "Say hello to the world in ten languages.", 24)
        time.sleep(25)
        rows: dict[str, dict] = {}
        for i, mode in enumerate(modes * args.rounds if args.reading else []):
            name = f"{mode.name}, round {i // len(modes) + 1}"
            rows[name] = silence(mode, args.reading)
            print(f"{name:42}", json.dumps(rows[name]), flush=True)
        for n in () if args.reading else map(int, args.streams.split(",")):
            groups: dict[str, list] = {mode.name: [] for mode in modes}
            starts = itertools.product(range(args.rounds), range(0, len(questions), n))
            for turn, (_, start) in enumerate(starts):
                part = questions[start : start + n]
                for mode in random.Random(turn).sample(modes, len(modes)):
                    groups[mode.name].append(asked_at_once(mode, part, args.tokens))
            for mode in modes:
                row = row_of(groups[mode.name])
                if "plain" not in mode.name:
                    row |= ratios(groups, mode.name, mode.name.split()[0] + " plain")
                rows[f"{n} streams, {mode.name}"] = row
                print(f"{n} streams, {mode.name:32}", json.dumps(row), flush=True)
    if args.out:
        common.save(args.out, {"rows": rows})


if __name__ == "__main__":
    main()
