"""Tokens/s beside 0, 1, 2 and 4 endless loops: with threads that follow what the loops leave, as it
was without, and with one thread; plainly and with drafts, in turns. Then how long it takes to react
when a loop comes and goes. For ONNX models: threads that wait by spinning, or sleep.

    python -m benchmarks.neighbours smollm2-135m qwen2.5-coder-1.5b
    python -m benchmarks.neighbours smollm2-135m-onnx-int4
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections import defaultdict

import edgespec
import edgespec.device
from benchmarks.common import GREEDY, chat_prompt, known, median, model, save

LOOPS, ROUNDS, REACTIONS = (0, 1, 2, 4), 5, 5
N_TOKENS, LIMIT_S, SETTLE_S, STAY_S = 128, 10.0, 1.0, 4.0
PROMPT = "Tell me about the history of the bicycle."
MODES = {
    "following": {},
    "as it was": {"dynamic_threads": False},
    "one thread": {"dynamic_threads": False, "n_threads": 1},
}


@contextlib.contextmanager
def loops(n):
    """Run `n` programs that use a core each."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


@contextlib.contextmanager
def sleeping(asleep):
    """Let sessions of onnxruntime that are opened meanwhile wait without spinning."""
    if not asleep:
        yield
        return
    from edgespec.backends.onnx.session import onnxruntime

    before = onnxruntime.SessionOptions

    def options():
        made = before()
        made.add_session_config_entry("session.intra_op.allow_spinning", "0")
        return made

    onnxruntime.SessionOptions = options
    try:
        yield
    finally:
        onnxruntime.SessionOptions = before


def engines(name, stack):
    """Load the model once for each mode."""
    if "-onnx-" not in name:
        return {
            mode: stack.enter_context(opened(name, **options)) for mode, options in MODES.items()
        }
    found = {}
    for mode, asleep in (("spinning", False), ("sleeping", True)):
        with sleeping(asleep):
            found[mode] = stack.enter_context(opened(name))
    return found


def opened(name, **options):
    config = {"draft_memory": "off"}  # questions are asked more than once
    return known(
        lambda: edgespec.load(
            model(name), None, n_ctx=1024, speculative_config=config, **options, sampling=GREEDY
        )
    )


def speed(engine, plainly):
    """Tokens a second of one answer, which ends after LIMIT_S."""
    done = engine.generate(
        chat_prompt(engine, PROMPT), max_tokens=N_TOKENS, ignore_eos=True,
        disable_spec_decode=plainly, time_limit_s=LIMIT_S,
    )  # fmt: skip
    return round((len(done.token_ids) - 1) / max(done.stats.decode_s, 1e-9), 2)


def speeds(found):
    """All tokens/s by drafting, loops and mode, and the medians by the best fixed number's."""
    results = defaultdict(dict)
    for n in LOOPS:
        times = defaultdict(list)
        with loops(n):
            time.sleep(SETTLE_S)
            for round_ in range(ROUNDS):
                modes = list(found.items())
                for mode, engine in modes if round_ % 2 else modes[::-1]:
                    for drafting, plainly in (("plain", True), ("auto", False)):
                        times[drafting, mode].append(speed(engine, plainly))
        for (drafting, mode), values in times.items():
            results[drafting].setdefault(n, {})[mode] = {
                "tokens_per_second": sorted(values), "median": median(values),
            }  # fmt: skip
        print(n, "loops:", dict(times), file=sys.stderr, flush=True)
    for by_loops in results.values():
        for modes in by_loops.values():
            if "following" in modes:
                best = max(modes[mode]["median"] for mode in ("as it was", "one thread"))
                modes["following by the best"] = round(modes["following"]["median"] / best, 3)
    return results


def reactions(engine):
    """Seconds until fewer threads are used when a loop comes, and all of them when it has gone."""
    governor, full = engine.sessions[0]._verifier._model._governor, engine.target.n_threads
    coming, going = [], []
    for _ in range(REACTIONS):
        with contextlib.ExitStack() as stack:
            began = last = time.perf_counter()
            came = gone = None
            prompt = chat_prompt(engine, PROMPT)
            for event in engine.stream(
                prompt, ignore_eos=True, disable_spec_decode=True, time_limit_s=20.0
            ):
                now = time.perf_counter()
                fewer = governor.regime.n_threads < full
                if event.type != "token":
                    continue
                if came is None and now - began > STAY_S / 2:
                    stack.enter_context(loops(1))
                    came = last = time.perf_counter()
                elif came and gone is None and fewer and len(coming) == len(going):
                    coming.append(round(now - came, 2))
                elif came and gone is None and now - last > STAY_S:
                    if len(coming) == len(going):
                        coming.append(None)  # it did not react
                    stack.close()
                    gone = time.perf_counter()
                elif gone and not fewer:
                    going.append(round(now - gone, 2))
                    break
            going += [None] * (len(coming) - len(going))
    return {"coming_s": coming, "going_s": going}


def step_cost(engine):
    """Microseconds that the governor takes a step, a look at the system every WINDOW_S apart."""
    governor, n = engine.sessions[0]._verifier._model._governor, 20_000
    began = time.perf_counter()
    for _ in range(n):
        governor.before()
    seconds = time.perf_counter() - began
    meter = edgespec.device.LoadMeter()
    looking = time.perf_counter()
    for _ in range(200):
        meter.look()
    look = (time.perf_counter() - looking) / 200
    return {"before_us": round(1e6 * seconds / n, 2), "look_us": round(1e6 * look, 1)}


def main() -> None:
    for name in sys.argv[1:]:
        with contextlib.ExitStack() as stack:
            found = engines(name, stack)
            for engine in found.values():
                speed(engine, True)
            results = {"speeds": speeds(found)}
            if "following" in found:
                results |= reactions(found["following"]) | step_cost(found["following"])
        save(f"neighbours_{name}", {"rounds": ROUNDS, "tokens": N_TOKENS, "results": results})


if __name__ == "__main__":
    main()
