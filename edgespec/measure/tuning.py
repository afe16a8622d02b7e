"""Finds the settings that are fastest on this device, and keeps them for later loads."""

from __future__ import annotations

import logging
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from .. import backends
from ..backends import files
from ..backends.base import FileModel, Threaded
from ..config import EngineConfig, build
from ..costs.profile import READING, WIDTHS, Curve, Profile, keep, measure, store, timed
from ..device import available_memory, thread_counts
from ..errors import ModelError
from ..loading.local import (
    Reference,
    draft_path,
    explicit,
    load_draft,
    model_path,
    open_model,
    tuned_options,
    tuning_key,
)
from .formats import Format, compare, formats, recommend

logger = logging.getLogger("edgespec.measure.tuning")

WORTH = 0.03  # what is not faster by more than this share is not worth another setting
ENOUGH, MOST = 5, 7  # repetitions before a setting is taken, and at all
SHORT, LONG = 64, (1024, 512, 256)  # cached tokens that t(n) is measured behind
DEPTH = 31
_PREFILL, _ANSWER = 64, 16
_SEARCH = 0.8  # of the time is for loading and searching; the rest is for measuring
_SETTLED = 3  # rounds after which who is not ahead has lost
_THREADS = ("n_threads", "n_threads_batch")
_UNSTEADY = 0.3
_BEHIND = (1.5, 1.25)  # who takes so many times as long after 1, 2 rounds has lost

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A value of a setting: median and spread (between quartiles) of its repetitions."""

    value: Any
    label: str
    ms: float
    spread_ms: float
    n_repetitions: int


@dataclass(frozen=True, slots=True)
class Choice:
    """What was tried for one setting, the default first, what was chosen and why."""

    setting: str
    measured: str
    candidates: tuple[Candidate, ...]
    chosen: Any
    why: str

    @property
    def label(self) -> str:
        """The chosen value in words."""
        return next(c.label for c in self.candidates if c.value == self.chosen)


@dataclass(frozen=True, slots=True)
class Tuning:
    """What `tune` found. options: what later loads will use beside the defaults; path: where
    that is kept, None where nothing could be written. formats: where the model is on disk both
    as GGUF and as ONNX, every file of it, and recommendation: which to take. Nothing is switched.
    """

    model: str
    draft: str | None
    choices: tuple[Choice, ...]
    options: dict[str, Any]
    profile: Profile
    seconds: float
    path: Path | None
    formats: tuple[Format, ...] = ()
    recommendation: str = ""

    @property
    def disturbed(self) -> bool:
        """Whether the same thing took very different times: something else was running."""
        defaults = [(choice.measured, choice.candidates[0]) for choice in self.choices]
        times: dict[str, list[float]] = {}
        for measured, default in defaults:
            if default.n_repetitions:
                times.setdefault(measured, []).append(default.ms)
        times.setdefault(_tokens(1), []).append(1e3 * self.profile.target(1, SHORT))
        widest = [row[-1] for row in self.profile.target.seconds]
        if max(widest) > 3 * min(widest):  # behind a longer cache
            return True
        many = (c for _, c in defaults if c.n_repetitions > 3)
        return any(c.spread_ms > _UNSTEADY * c.ms for c in many) or any(
            max(same) > (1 + _UNSTEADY) * min(same) for same in times.values()
        )

    @property
    def lookup_speedup(self) -> tuple[float, int]:
        """The most that drafts can gain that cost nothing and are always right, and how deep."""
        return speedup(self.profile.target)

    @property
    def draft_speedup(self) -> tuple[float, int] | None:
        """The same of the draft model, if it were always right."""
        draft = self.profile.draft
        return speedup(self.profile.target, draft) if draft else None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        lookup, by_draft = self.lookup_speedup, self.draft_speedup
        return {
            "model": self.model,
            "draft": self.draft,
            "choices": [asdict(choice) for choice in self.choices],
            "options": self.options,
            "target": in_ms(self.profile.target),
            "draft_model": in_ms(self.profile.draft) if self.profile.draft else None,
            "lookup": {"speedup": round(lookup[0], 3), "depth": lookup[1]},
            "draft_speedup": {"speedup": round(by_draft[0], 3), "depth": by_draft[1]}
            if by_draft
            else None,
            "disturbed": self.disturbed,
            "seconds": round(self.seconds, 1),
            "path": None if self.path is None else str(self.path),
            "formats": [one.to_dict() for one in self.formats],
            "recommendation": self.recommendation,
        }


def in_ms(curve: Curve) -> dict[str, Any]:
    """A curve for people and machines: ms, and t(n)/t(1), a row for each cache length."""
    return {
        "lengths": curve.lengths,
        "widths": curve.widths,
        "ms": [[round(1e3 * s, 2) for s in row] for row in curve.seconds],
        "ratio": [[round(s / row[0], 2) for s in row] for row in curve.seconds],
    }


def speedup(
    target: Curve, draft: Curve | None = None, survival: float = 1.0, n_past: int = SHORT
) -> tuple[float, int]:
    """Tokens a plain step's time at the best depth, and that depth (0: plain decoding).

    survival: probability that a drafted token is right if those before it were. draft None:
    drafting takes no time.
    """
    plain, each = target(1, n_past), draft(1, n_past) if draft else 0.0
    best, expected, depth = 1.0, 1.0, 0
    for n in range(1, DEPTH + 1):
        expected += survival**n
        gain = expected * plain / (target(n + 1, n_past) + n * each)
        if gain > best + 1e-9:
            best, depth = gain, n
    return best, depth


def break_even(target: Curve, draft: Curve | None = None) -> float | None:
    """How likely drafted tokens must be right for a gain; None: even certain ones lose."""
    likely = (percent / 100 for percent in range(1, 101))
    return next((p for p in likely if speedup(target, draft, p)[1]), None)


def tune(
    model: Reference,
    draft: Reference | None = "auto",
    *,
    draft_options: Mapping[str, Any] | None = None,
    budget_s: float = 25.0,
    progress: Callable[[str], None] = logger.info,
    **options: Any,
) -> Tuning:
    """Search settings and measure t(n) on this device; `load` uses what is found.

    Arguments are those of `load`: an option that is given is kept and not searched. budget_s:
    about how long loading, searching and measuring may take; settings for which there is no time
    are not tried. progress: told what is done just now. A model of the catalogue that is on disk
    as GGUF and as ONNX has its files compared afterwards. Raises as `load`.
    """
    start = time.perf_counter()
    config = build(EngineConfig, options)
    path, wanted = model_path(model), draft_path(model, draft, config)
    fixed = explicit(options)
    progress(f"loading {files.label(path)}")
    opening = time.perf_counter()
    target, draft_model = open_model(path, config), None
    loading = time.perf_counter() - opening
    try:
        if wanted:
            progress(f"loading {files.label(wanted)}")
        draft_model = load_draft(wanted, config, draft_options or {}, target)
        choices = _search(target, fixed, loading, start + _SEARCH * budget_s, progress)
        if chosen := _options(choices, target):
            progress("loading again with the chosen settings")
            _close(target, draft_model)
            target = open_model(path, replace(config, **chosen))
            draft_model = load_draft(wanted, replace(config, **chosen), draft_options or {}, target)
        profile = _measure(target, draft_model, choices, start + budget_s, progress)
    finally:
        _close(target, draft_model)
    name = files.label(draft_model.path) if draft_model else None
    before = tuned_options(path, config)
    kept = {name: before[name] for name in before if name in fixed} | chosen
    where = keep(tuning_key(path, config), {"options": kept})
    taken = time.perf_counter() - start
    found = _formats(model, config, progress, options)
    return Tuning(
        files.label(path), name, tuple(choices), chosen, profile, taken, where, tuple(found),
        recommend(found) if found else "",
    )  # fmt: skip


def _close(*models: FileModel | None) -> None:
    for model in models:
        if model:
            model.close()


def _formats(
    model: Reference,
    config: EngineConfig,
    progress: Callable[[str], None],
    given: Mapping[str, Any],
) -> list[Format]:
    """Every file of a model that is there in both formats, measured."""
    there = formats(os.fspath(model))
    if len({backends.name_of(path) for _, path in there}) < 2:
        return []
    found = compare(there, config, progress, given)
    return found if len(found) > 1 else []


def _search(
    target: FileModel,
    fixed: set[str],
    loading: float,
    end: float,
    progress: Callable[[str], None],
) -> list[Choice]:
    """One change at a time from the defaults; `fixed` ones are left as they are. loading: seconds
    that the target took, about what loading it another way will take.
    """
    left = max(0.0, end - time.perf_counter())
    found = []
    if "n_threads" not in fixed and isinstance(target, Threaded):
        progress("trying threads for one token")
        found.append(_choose_threads(target, "n_threads", 1, 0.15 * left))
    if "n_threads_batch" not in fixed and isinstance(target, Threaded):
        progress("trying threads for reading prompts")
        found.append(_choose_threads(target, "n_threads_batch", _PREFILL, 0.3 * left))
    switches = {name: values for name, values in target.switches().items() if name not in fixed}
    for i, (setting, values) in enumerate(switches.items()):
        progress(f"trying {setting} {_word(values[1])}")
        now = time.perf_counter()
        share = now + (end - now) / (len(switches) - i)
        found.append(_choose_switch(target, setting, values, loading, share))
    return found


def _choose_threads(model: Threaded, setting: str, width: int, budget_s: float) -> Choice:
    defaults = {name: getattr(model, name) for name in _THREADS}
    counts = [defaults[setting], *(n for n in thread_counts() if n != defaults[setting])]

    def seconds(n: int) -> float:
        model.set_threads(**(defaults | {setting: n}))
        if width == 1:
            timed(model, 1)  # threads that are there already
        return timed(model, width)

    width = min(width, model.capabilities.max_batch)
    times = race([lambda n=n: seconds(n) for n in counts], budget_s)  # type: ignore[misc]
    model.set_threads(**defaults)
    labels = [f"{n} thread{'' if n == 1 else 's'}" for n in counts]
    return decide(setting, _tokens(width), list(zip(counts, labels, strict=True)), times)


def _choose_switch(
    target: FileModel, setting: str, values: tuple[Any, Any], loading: float, end: float
) -> Choice:
    """Against the same file loaded another way, beside the one that is there."""
    value = values[1]
    known = [(v, _word(v)) for v in values]
    measured = f"{_ANSWER} tokens read and {_ANSWER} written"
    if why := _no_room(target.path) or _no_time(target, loading, end):
        return Choice(setting, measured, (_candidate(known[0], []),), values[0], why)
    config = replace(target.config, n_ctx=min(target.n_ctx, 512), **{setting: value})
    try:
        other = open_model(target.path, config)
    except ModelError as error:
        logger.info("%s %s: %s", setting, value, error)
        why = f"{_word(value)} cannot be loaded here"
        return Choice(setting, measured, (_candidate(known[0], []),), values[0], why)
    try:
        for model in (other, target):
            timed(model, 1)  # weights that are in memory already
        left = end - time.perf_counter()
        times = race([lambda m=m: _answer(m) for m in (target, other)], left)  # type: ignore[misc]
    finally:
        other.close()
    return decide(setting, measured, known, times)


def _answer(model: FileModel) -> float:
    few = statistics.mean(timed(model, 1) for _ in range(4))
    return timed(model, _ANSWER) + _ANSWER * few


def _no_time(model: FileModel, loading: float, end: float) -> str:
    start = time.perf_counter()
    if start + loading < end:
        _answer(model)
        now = time.perf_counter()
        if now + loading + 2 * _SETTLED * (now - start) < end:
            return ""
    return "nothing else tried: there was no time; a larger budget tries it"


def _no_room(path: Path) -> str:
    free, needed = available_memory(), int(1.3 * files.size_of(path))
    if free is None or free > needed:
        return ""
    return f"nothing else tried: it needs {needed >> 20} MiB more, {free >> 20} MiB are free"


def race(
    tries: Sequence[Callable[[], float]], budget_s: float, clock: Clock = time.perf_counter
) -> list[list[float]]:
    """Seconds of each try, in turns; the first is the default.

    A challenger leaves when it is far behind, or after three rounds not ahead; the race ends
    when none is left, after MOST rounds, or when another round does not fit the budget.
    """
    now = clock()
    end, took = now + budget_s, 0.0
    times: list[list[float]] = [[] for _ in tries]
    racing = list(range(len(tries)))
    while len(racing) > 1 and len(times[0]) < MOST and (not times[0] or now + took <= end):
        for i in racing:
            times[i].append(tries[i]())
        before, now = now, clock()
        each = (now - before) / len(racing)
        n, default = len(times[0]), statistics.median(times[0])
        limit = (1 - WORTH if n >= _SETTLED else _BEHIND[n - 1]) * default
        racing = [i for i in racing if not i or statistics.median(times[i]) < limit]
        took = each * len(racing)
    return times


def decide(
    setting: str,
    measured: str,
    known: Sequence[tuple[Any, str]],
    times: Sequence[Sequence[float]],
) -> Choice:
    """The default, unless another is faster by more than 3% and more than the noise.

    known: (value, label) of every candidate, the default first.
    """
    candidates = tuple(_candidate(k, t) for k, t in zip(known, times, strict=True))
    default, *others = candidates
    better = [c for c in others if c.n_repetitions >= ENOUGH and _is_better(c, default)]
    best = min(better, key=lambda c: c.ms, default=default)
    if best is not default:
        why = f"{default.ms / best.ms - 1:.0%} faster than the default"
    elif not others:
        why = "there is no other"
    elif any(_is_better(c, default) for c in others):
        why = "the default; another looked faster, but there was no time to be sure"
    elif any(c.ms < default.ms for c in others):
        why = "the default; no other is faster by more than 3% and the noise"
    else:
        why = "the default is the fastest"
    return Choice(setting, measured, candidates, best.value, why)


def _is_better(one: Candidate, default: Candidate) -> bool:
    gain = default.ms - one.ms
    return bool(one.n_repetitions) and gain > max(
        WORTH * default.ms, one.spread_ms, default.spread_ms
    )


def _candidate(known: tuple[Any, str], times: Sequence[float]) -> Candidate:
    ms = sorted(1e3 * seconds for seconds in times)
    n = len(ms)
    spread = ms[-1 - n // 4] - ms[n // 4] if n else 0.0
    median = round(statistics.median(ms), 3) if n else 0.0
    return Candidate(*known, median, round(spread, 3), n)


def _options(choices: Sequence[Choice], model: FileModel) -> dict[str, Any]:
    """The choices that differ from the defaults; both numbers of threads where one does."""
    chosen = {c.setting: c.chosen for c in choices if c.chosen != c.candidates[0].value}
    if "n_threads" in chosen:
        chosen.setdefault("n_threads_batch", model.n_threads_batch)
    return chosen


def _measure(
    target: FileModel,
    draft: FileModel | None,
    choices: Sequence[Choice],
    end: float,
    progress: Callable[[str], None],
) -> Profile:
    """t(n) of both, kept for later loads; also behind the longest cache that there is time for."""
    progress(f"measuring {files.label(target.path)}")
    curve = measure(target, widths=WIDTHS, lengths=(SHORT,))
    drafting = None
    if draft:
        progress(f"measuring {files.label(draft.path)}")
        drafting = measure(draft, widths=READING, lengths=(SHORT,), budget_s=1)
        store(draft.fingerprint(), drafting)
    left = end - time.perf_counter()
    if length := _affordable(target.n_ctx, curve, _reading(choices, curve), left):
        progress(f"measuring {files.label(target.path)} behind {length} tokens")
        more = measure(target, widths=WIDTHS, lengths=(length,), budget_s=left)
        curve = Curve((SHORT, length), curve.widths, curve.seconds + more.seconds)
    store(target.fingerprint(), curve)
    return Profile(curve, drafting)


def _affordable(n_ctx: int, curve: Curve, reading: float, left: float) -> int | None:
    """The longest cache that can be filled in the seconds left, and every width measured once."""
    widths = 1.2 * sum(curve.seconds[0])
    return next((n for n in LONG if 2 * n <= n_ctx and n * reading + widths < left), None)


def _reading(choices: Sequence[Choice], curve: Curve) -> float:
    """Seconds of a prompt token, by what was tried, or by the widest evaluation measured."""
    for choice in choices:
        tried = [c.ms for c in choice.candidates if c.n_repetitions]
        if choice.setting == "n_threads_batch" and tried:
            return min(tried) / 1e3 / _PREFILL
    return curve.seconds[0][-1] / curve.widths[-1]


def _tokens(n: int) -> str:
    return "one token" if n == 1 else f"{n} tokens at once"


def _word(value: Any) -> str:
    return str(value) if not isinstance(value, bool) else "on" if value else "off"
