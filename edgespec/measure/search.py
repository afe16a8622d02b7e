"""The search for the fastest settings, which changes one default at a time."""

from __future__ import annotations

import contextlib
import logging
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..backends import files
from ..backends.base import FileModel
from ..costs.measuring import timed
from ..device import available_memory, thread_counts
from ..errors import Aborted, ModelError
from ..loading.models import open_model
from ..types import Abort
from .budget import Budget
from .findings import count
from .interleaving import MIN_ROUNDS, Try, candidate, decide, interleave
from .results import Choice, tokens_at_once

logger = logging.getLogger("edgespec.measure.search")

PROMPT_TOKENS = 64  # tokens read at once to compare numbers of threads for prompts
BUSY_PROMPT_TOKENS = 16  # the same while other programs run, when 64 may take seconds
_ANSWER = 16  # tokens of a short answer
_THREADS = {  # setting: tokens at once, share of the time, purpose
    "n_threads": (1, 0.15, "one token"),
    "n_threads_batch": (PROMPT_TOKENS, 0.3, "reading prompts"),
}
_BUSY_SHARE = 0.6  # share of the time left, while other programs run: threads matter most then


def search(
    target: FileModel,
    fixed: set[str],
    loading_s: float,
    budget: Budget,
    progress: Callable[[str], None],
    *,
    busy: bool = False,
) -> list[Choice]:
    """Try different values of every setting within a budget, and return the choice for each.

    fixed: the names of settings that are left as they are. loading_s: the seconds that loading the
    target took. busy: other programs use the CPUs.
    """
    seconds, choices = budget.left, []
    for setting, (width, share, aim) in _THREADS.items():
        if setting not in fixed and target.capabilities.threads:
            progress(f"trying threads for {aim}")
            if busy:
                width = min(width, BUSY_PROMPT_TOKENS)
            part = budget.part(_BUSY_SHARE * budget.left if busy else share * seconds)
            choices.append(_choose_threads(target, setting, width, part, busy))
    switches = {name: values for name, values in target.switches().items() if name not in fixed}
    for i, (setting, values) in enumerate(switches.items()):
        progress(f"trying {setting} {_label(values[1])}")
        part = budget.part(budget.left / (len(switches) - i))
        choices.append(_choose_switch(target, setting, values, loading_s, part, busy))
    return choices


def chosen_options(choices: Sequence[Choice], model: FileModel) -> dict[str, Any]:
    """Return the chosen values that differ from the defaults. If n_threads is among them,
    n_threads_batch is returned too.

    It is then the number chosen for one token, if that was tried for several tokens and the default
    was not as fast. While other programs run, more threads would wait for the same cores.
    """
    chosen = {c.setting: c.chosen for c in choices if c.chosen != c.candidates[0].value}
    if "n_threads" in chosen:
        batch = next((c for c in choices if c.setting == "n_threads_batch"), None)
        same = batch and next((c for c in batch.candidates if c.value == chosen["n_threads"]), None)
        default = model.n_threads_batch
        if batch and same and not 0 < batch.candidates[0].ms <= same.ms:
            default = same.value
        chosen.setdefault("n_threads_batch", default)
    return chosen


def _choose_threads(
    model: FileModel, setting: str, width: int, budget: Budget, busy: bool
) -> Choice:
    defaults = {name: getattr(model, name) for name in _THREADS}
    default, most = defaults[setting], model.config.max_cores
    counts = [default, *(n for n in thread_counts(most) if n != default)]
    width = min(width, model.capabilities.max_batch)

    def seconds(n: int, abort: Abort) -> float:
        model.set_threads(**(defaults | {setting: n}))
        if width == 1:
            timed(model, 1, budget.clock, abort)  # starts the threads
        return timed(model, width, budget.clock, abort)

    times = interleave([partial(seconds, n) for n in counts], budget)
    model.set_threads(**defaults)
    known = [(n, count(n, "thread")) for n in counts]
    return decide(setting, tokens_at_once(width), known, times, busy=busy)


def _choose_switch(
    target: FileModel,
    setting: str,
    values: tuple[Any, Any],
    loading_s: float,
    budget: Budget,
    busy: bool,
) -> Choice:
    """Load the file a second time with the other value, and compare it with the loaded model."""
    value = values[1]
    known = [(v, _label(v)) for v in values]
    measured = f"{_ANSWER} tokens read and {_ANSWER} written"

    def keep_default(why: str) -> Choice:
        return Choice(setting, measured, (candidate(known[0]),), values[0], why)

    if why := _lacks_memory(target.path):
        return keep_default(why)
    if not enough_time(partial(_answer, target, budget), loading_s, budget):
        budget.left_out.append(f"{setting} {_label(value)}")
        return keep_default("nothing else tried: there was no time; a larger budget tries it")
    config = replace(target.config, n_ctx=min(target.n_ctx, 512), **{setting: value})
    try:
        other = open_model(target.path, config)
    except ModelError as error:
        logger.info("%s %s: %s", setting, value, error)
        return keep_default(f"{_label(value)} cannot be loaded here")
    try:
        for model in (other, target):
            _try_once(model, budget)  # brings the weights into memory
        times = interleave([partial(_answer, m, budget) for m in (target, other)], budget)
    finally:
        other.close()
    return decide(setting, measured, known, times, busy=busy)


def _try_once(model: FileModel, budget: Budget) -> None:
    with contextlib.suppress(Aborted):
        timed(model, 1, budget.clock, budget.abort)


def _answer(model: FileModel, budget: Budget, abort: Abort) -> float:
    """Return the seconds to read a short prompt and write a short answer. Raises Aborted."""
    one = statistics.mean(timed(model, 1, budget.clock, abort) for _ in range(4))
    return timed(model, _ANSWER, budget.clock, abort) + _ANSWER * one


def enough_time(answer: Try, loading_s: float, budget: Budget) -> bool:
    """Return True if loading a second model and three rounds of both fit the budget.

    answer: one try, which is run and timed unless loading alone would take too long.
    """
    if loading_s >= budget.left:
        return False
    start = budget.spent
    try:
        answer(budget.abort)
    except Aborted:
        return False
    return loading_s + 2 * MIN_ROUNDS * (budget.spent - start) < budget.left


def _lacks_memory(path: Path) -> str:
    """Return a sentence if a second copy of the weights does not fit into memory, "" if it does."""
    free, needed = available_memory(), int(1.3 * files.size_of(path))
    if free > needed:
        return ""
    return f"nothing else tried: it needs {needed >> 20} MiB more, {free >> 20} MiB are free"


def _label(value: Any) -> str:
    return str(value) if not isinstance(value, bool) else "on" if value else "off"
