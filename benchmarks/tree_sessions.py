"""One session with a tree at every step, for long, then through cancellations and failures.

    python -m benchmarks.tree_sessions NAME TARGET [--steps 2000] [--cancellations 200]
        [--failures 40] [--answer 256]

Steps: the same answer again and again after the same prompt, trees always others: text, cells in
use, packs, memory, time a step in the first and the last quarter. Cancellations: a caller's abort
in the midst of an evaluation, Ctrl-C at any moment, streams that are closed, errors before, in and
after a tree; failures: evaluations that the engine refuses, or fails half-way. After each of them
comes an answer that has to be the plain one. In the end a full context has to fit.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import psutil

import edgespec.backends.llama_cpp.evaluation as backend
from benchmarks.common import chat_prompt, median, save
from benchmarks.forced_trees import forced
from edgespec import ContextFull, EdgeSpecError, Engine, SamplingParams
from edgespec.decoding.interrupt import Interrupt
from tests.helpers.forced_trees import ForcedTrees

TEXT = "Write a Python class for a stack, with docstrings, then explain each of its methods."
OTHERS = ("What is the capital of France?", "Count from one to twenty.", "Why is the sky blue?")
SHORT = 24  # tokens of the answer after a failure


class Failed(Exception):
    """What the measurement raises in the midst of things."""


class Chat:
    """An engine with forced trees, and plain answers to compare with."""

    def __init__(self, engine: Engine, drafter: ForcedTrees, n_answer: int) -> None:
        self.engine, self.drafter, self.model = engine, drafter, engine.target
        self.n_packs, self._plain = 0, {}
        pack = self.model._branches.pack

        def counted(*args):
            self.n_packs += 1
            pack(*args)

        self.model._branches.pack = counted
        self.long = self.prompt(TEXT, n_answer)
        self.short = [self.prompt(text, SHORT) for text in (TEXT, *OTHERS)]

    def prompt(self, text: str, n: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the tokens of a prompt and of the plain answer."""
        prompt = tuple(chat_prompt(self.engine, text))
        plain = self.engine.generate(
            prompt, max_tokens=n, ignore_eos=True, disable_spec_decode=True
        )
        return prompt, plain.token_ids

    def is_right(self, question: tuple[tuple[int, ...], tuple[int, ...]]) -> bool:
        """Return True if the answer with trees is the plain one."""
        prompt, plain = question
        self.drafter.known = [*prompt, *plain]
        done = self.engine.generate(prompt, max_tokens=len(plain), ignore_eos=True)
        return done.token_ids == plain

    def stream(self, interrupt: Interrupt | None = None) -> Iterator:
        """Return the stream of the long answer, with trees."""
        prompt, plain = self.long
        self.drafter.known = [*prompt, *plain]
        params = SamplingParams(temperature=0, max_tokens=len(plain), ignore_eos=True)
        return self.engine.run(prompt, params, interrupt=interrupt)

    def cells(self) -> int:
        """Return the cells in use: the text's, and those that are parked."""
        return self.model.n_past + self.model._branches.n_parked


def rss() -> int:
    return psutil.Process().memory_info().rss >> 20


def long_session(chat: Chat, n_steps: int) -> dict:
    """Return the figures of so many steps, most of them after parked cells."""
    steps, cells, n_answers, n_right = [], [], 0, 0
    policy = chat.engine.sessions[0]._policy
    before, n_packs = [], chat.n_packs

    def observe(step, verified, growth):
        if step.n_drafted > 1:
            steps.append((step.total_s, step.verify_s))
            cells.append(chat.cells())

    policy.observe = observe
    while len(steps) < n_steps:
        n_right += chat.is_right(chat.long)
        n_answers += 1
        before.append(rss())
        print(len(steps), n_right, n_answers, max(cells), rss(), file=sys.stderr)
    quarter = len(steps) // 4
    first, last = steps[:quarter], steps[-quarter:]
    return {
        "steps": len(steps), "answers": n_answers, "right": n_right,
        "most_cells": max(cells), "n_ctx": chat.model.n_ctx, "packs": chat.n_packs - n_packs,
        "rss_mib_after_first_and_last_answer": [before[0], before[-1]],
        "median_ms_a_step_first_and_last_quarter": [
            round(1e3 * median([total for total, _ in part]), 3) for part in (first, last)
        ],
        "outside_the_target_ms_first_and_last_quarter": [
            round(1e3 * median([total - verify for total, verify in part]), 3)
            for part in (first, last)
        ],
    }  # fmt: skip


class AfterCalls(Interrupt):
    """Stops a request when it has been asked so many times."""

    def __init__(self, n: int) -> None:
        super().__init__(None)
        self._left = n

    def __call__(self):
        self._left -= 1
        return "cancelled" if self._left < 0 else super().__call__()


@contextlib.contextmanager
def replaced(owner: object, name: str, make: Callable) -> Iterator[None]:
    """Replace owner.name by what `make` returns for it."""
    own = name in vars(owner)
    before = getattr(owner, name)
    setattr(owner, name, make(before))
    try:
        yield
    finally:
        if own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


def failing(after: int, *, late: bool) -> Callable:
    """Return a change to a function: its call number `after` raises, late: once it is done."""

    def make(call):
        left = [after]

        def changed(*args, **options):
            left[0] -= 1
            if left[0] == 0 and not late:
                raise Failed
            result = call(*args, **options)
            if left[0] == 0:
                raise Failed
            return result

        return changed

    return make


def by_abort(chat: Chat, rng: random.Random) -> None:
    """Abort, mostly in the midst of an evaluation, which asks for it all the time."""
    for _ in chat.stream(AfterCalls(int(10 ** rng.uniform(0, 4)))):
        pass


def by_close(chat: Chat, rng: random.Random) -> None:
    """Close a stream that has begun."""
    events = chat.stream()
    for _ in range(rng.randrange(1, 40)):
        next(events, None)
    events.close()


def by_ctrl_c(chat: Chat, rng: random.Random) -> None:
    """Press Ctrl-C at any moment."""
    delay = rng.uniform(0.0, 1.5)
    timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        for _ in chat.stream():
            pass
        timer.join()
        time.sleep(1)  # it came too late, and is caught here
    except KeyboardInterrupt:
        pass
    timer.join()


def by_error(name: str, late: bool) -> Callable[[Chat, random.Random], None]:
    """Return what lets one of the calls fail that a step consists of."""

    def cancel(chat: Chat, rng: random.Random) -> None:
        cache = chat.engine.sessions[0]._verifier._cache
        owner = {"root": chat.drafter, "accept": chat.drafter, "_evaluate": chat.model}.get(
            name, cache
        )
        change = failing(rng.randrange(1, 12), late=late)
        with replaced(owner, name, change), contextlib.suppress(Failed):
            for _ in chat.stream():
                pass

    return cancel


CANCELLATIONS: dict[str, Callable[[Chat, random.Random], None]] = {
    "abort": by_abort, "close": by_close, "Ctrl-C": by_ctrl_c,
    "error in drafting": by_error("root", late=False),
    "error before the tree": by_error("decode_tree", late=False),
    "error behind the tree": by_error("decode_tree", late=True),
    "error before keeping": by_error("keep", late=False),
    "error behind keeping": by_error("keep", late=True),
    "error in a drafter's learning": by_error("accept", late=True),
    "error in the engine": by_error("_evaluate", late=True),
}  # fmt: skip


def refused(code: int, *, evaluated: bool) -> Callable[[Chat, random.Random], None]:
    """Return what makes an evaluation answer `code`; evaluated: its tokens are in the cache."""

    def make(call, left):
        def changed(context, batch):
            left[0] -= 1
            if left[0] == 0:
                if evaluated:
                    call(context, batch)
                return code
            return call(context, batch)

        return changed

    def fail(chat: Chat, rng: random.Random) -> None:
        left = [rng.randrange(2, 14)]
        with (
            replaced(backend.lib, "llama_decode", lambda call: make(call, left)),
            contextlib.suppress(EdgeSpecError),
        ):
            for _ in chat.stream():
                pass

    return fail


def without_room(chat: Chat, rng: random.Random) -> None:
    """Fill the context and free no parked cells, so that the engine finds no room for a tree."""
    branches, n_ctx = chat.model._branches, chat.model.n_ctx
    long = [token for question in chat.short for token in question[0]]
    prompt = (long * n_ctx)[: n_ctx - rng.randrange(100, 200)]
    with replaced(branches, "is_full", lambda _: lambda n_free: False):
        try:
            done = chat.engine.generate(prompt, ignore_eos=True)
            raise AssertionError(f"there was room for all: {done.finish_reason}")
        except ContextFull:
            pass


FAILURES: dict[str, Callable[[Chat, random.Random], None]] = {
    "no room": refused(1, evaluated=False), "stopped": refused(2, evaluated=False),
    "stopped, all in the cache": refused(2, evaluated=True),
    "failed": refused(-1, evaluated=False), "failed, all in the cache": refused(-3, evaluated=True),
    "no room in the cache": without_room,
}  # fmt: skip


def broken(chat: Chat, ways: dict, n: int, seed: int) -> dict:
    """Return how answers were after `n` of these."""
    rng, kinds, wrong, cells, before = random.Random(seed), Counter(), [], [], rss()
    names = list(ways)
    for i in range(n):
        name = names[i % len(names)]
        n_trees = chat.drafter.n_trees
        try:
            ways[name](chat, rng)
        except Exception as error:
            wrong.append([name, repr(error)])
        kinds[name] += 1
        right = chat.is_right(chat.short[rng.randrange(len(chat.short))])
        cells.append(chat.cells())
        if not right:
            wrong.append([name, chat.drafter.n_trees - n_trees])
        print(i, name, right, chat.cells(), file=sys.stderr)
    return {
        "kinds": dict(kinds), "right_behind_them": n - len(wrong), "wrong": wrong,
        "most_cells": max(cells), "rss_mib": [before, rss()],
    }  # fmt: skip


def holds_a_full_context(model) -> bool:
    """Return True if no cell has been lost."""
    model.truncate(0)
    rng = random.Random(3)
    tokens = [rng.randrange(model.vocab_size) for _ in range(model.n_ctx)]
    model.decode(tokens, 1)
    full = model.n_past == model.n_ctx
    model.truncate(0)
    return full


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("target")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--cancellations", type=int, default=200)
    parser.add_argument("--failures", type=int, default=40)
    parser.add_argument("--answer", type=int, default=256)
    parser.add_argument("--n-ctx", type=int, default=1024)
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background job
    engine, drafter = forced(given.target, given.n_ctx, True)
    with engine:
        chat = Chat(engine, drafter, given.answer)
        result = {
            "long_session": long_session(chat, given.steps),
            "cancellations": broken(chat, CANCELLATIONS, given.cancellations, 1),
            "failures": broken(chat, FAILURES, given.failures, 2),
            "a_full_context_fits": holds_a_full_context(chat.model),
        }
        right = all(map(chat.is_right, (chat.long, *chat.short)))
    save(f"tree_sessions_{given.name}", {"target": given.target, "batch_invariant": True}
         | result | {"right_at_the_end": right, "packs": chat.n_packs})  # fmt: skip


if __name__ == "__main__":
    main()
