"""The search for the fastest settings: one change at a time from the defaults."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..backends import files
from ..backends.base import FileModel, Threaded
from ..costs.measuring import timed
from ..device import available_memory, thread_counts
from ..errors import ModelError
from ..loading.models import open_model
from .interleaving import MIN_ROUNDS, Clock, candidate, decide, interleave
from .results import Choice, tokens_at_once

logger = logging.getLogger("edgespec.measure.search")

PROMPT_TOKENS = 64  # tokens read at once where threads for prompts are compared
_ANSWER = 16  # tokens of a short answer
_THREADS = {  # tokens at once, share of the time, what it is for
    "n_threads": (1, 0.15, "one token"),
    "n_threads_batch": (PROMPT_TOKENS, 0.3, "reading prompts"),
}


def search(
    target: FileModel,
    fixed: set[str],
    loading_s: float,
    end: float,
    progress: Callable[[str], None],
) -> list[Choice]:
    """Try other values of every setting until the time `end`, and return what to choose.

    fixed: settings that are left as they are. loading_s: seconds that loading the target took.
    """
    left = max(0.0, end - time.perf_counter())
    found = []
    for setting, (width, share, aim) in _THREADS.items():
        if setting not in fixed and isinstance(target, Threaded):
            progress(f"trying threads for {aim}")
            found.append(_choose_threads(target, setting, width, share * left))
    switches = {name: values for name, values in target.switches().items() if name not in fixed}
    for i, (setting, values) in enumerate(switches.items()):
        progress(f"trying {setting} {_label(values[1])}")
        now = time.perf_counter()
        own_end = now + (end - now) / (len(switches) - i)
        found.append(_choose_switch(target, setting, values, loading_s, own_end))
    return found


def chosen_options(choices: Sequence[Choice], model: FileModel) -> dict[str, Any]:
    """Return the choices that differ from the defaults; both numbers of threads if one does."""
    chosen = {c.setting: c.chosen for c in choices if c.chosen != c.candidates[0].value}
    if "n_threads" in chosen:
        chosen.setdefault("n_threads_batch", model.n_threads_batch)
    return chosen


def _choose_threads(model: Threaded, setting: str, width: int, budget_s: float) -> Choice:
    defaults = {name: getattr(model, name) for name in _THREADS}
    default, most = defaults[setting], model.config.max_cores
    counts = [default, *(n for n in thread_counts(most) if n != default)]

    def seconds(n: int) -> float:
        model.set_threads(**(defaults | {setting: n}))
        if width == 1:
            timed(model, 1)  # starts the threads
        return timed(model, width)

    width = min(width, model.capabilities.max_batch)
    times = interleave([lambda n=n: seconds(n) for n in counts], budget_s)  # type: ignore[misc]
    model.set_threads(**defaults)
    labels = [f"{n} thread{'' if n == 1 else 's'}" for n in counts]
    return decide(setting, tokens_at_once(width), list(zip(counts, labels, strict=True)), times)


def _choose_switch(
    target: FileModel, setting: str, values: tuple[Any, Any], loading_s: float, end: float
) -> Choice:
    """Compare the loaded model with the same file loaded with the other value, beside it."""
    value = values[1]
    known = [(v, _label(v)) for v in values]
    measured = f"{_ANSWER} tokens read and {_ANSWER} written"

    def keep_default(why: str) -> Choice:
        return Choice(setting, measured, (candidate(known[0]),), values[0], why)

    if why := _lacks_memory(target.path):
        return keep_default(why)
    if not enough_time(lambda: _answer(target), loading_s, end):
        return keep_default("nothing else tried: there was no time; a larger budget tries it")
    config = replace(target.config, n_ctx=min(target.n_ctx, 512), **{setting: value})
    try:
        other = open_model(target.path, config)
    except ModelError as error:
        logger.info("%s %s: %s", setting, value, error)
        return keep_default(f"{_label(value)} cannot be loaded here")
    try:
        for model in (other, target):
            timed(model, 1)  # brings the weights into memory
        left = end - time.perf_counter()
        times = interleave([lambda m=m: _answer(m) for m in (target, other)], left)  # type: ignore[misc]
    finally:
        other.close()
    return decide(setting, measured, known, times)


def _answer(model: FileModel) -> float:
    """Return the seconds of reading a short prompt and writing a short answer."""
    one = statistics.mean(timed(model, 1) for _ in range(4))
    return timed(model, _ANSWER) + _ANSWER * one


def enough_time(
    answer: Callable[[], object], loading_s: float, end: float, clock: Clock = time.perf_counter
) -> bool:
    """Return True if loading another model and three rounds of both fit before `end`.

    answer: one try; it is timed, unless loading alone takes too long.
    """
    start = clock()
    if start + loading_s >= end:
        return False
    answer()
    now = clock()
    return now + loading_s + 2 * MIN_ROUNDS * (now - start) < end


def _lacks_memory(path: Path) -> str:
    """Return why a second copy of the weights does not fit into memory, "" if it does."""
    free, needed = available_memory(), int(1.3 * files.size_of(path))
    if free > needed:
        return ""
    return f"nothing else tried: it needs {needed >> 20} MiB more, {free >> 20} MiB are free"


def _label(value: Any) -> str:
    return str(value) if not isinstance(value, bool) else "on" if value else "off"
