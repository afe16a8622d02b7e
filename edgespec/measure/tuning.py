"""Tuning: a search for the settings that are fastest on this device, saved for later loads."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import backends
from ..backends import files
from ..backends.base import FileModel
from ..cache.requantization import known
from ..config import EngineConfig, build
from ..costs.curves import Curve, joined
from ..costs.kept_curves import is_impossible, keep_curve, kept_curve
from ..costs.measuring import QUICK, READING, WIDTHS, plans_anew
from ..costs.profiles import Profile, forget_all, keep
from ..device import BUSY, LoadMeter, other_load
from ..loading.assembly import configured
from ..loading.drafts import draft_path, ggufs_for_fork, load_draft
from ..loading.models import Reference, is_head, model_path, open_model
from ..loading.tuned import explicit, tuned_options, tuning_key
from .budget import Budget
from .curve import FEW, measured_curve
from .formats import Format, compare, formats, recommend
from .gains import SHORT_CACHE
from .interleaving import is_far_ahead
from .libraries import compare_fork
from .results import Choice, Tuning, tokens_at_once
from .search import BUSY_PROMPT_TOKENS, PROMPT_TOKENS, chosen_options, search

logger = logging.getLogger("edgespec.measure.tuning")

LONG_CACHES = (1024, 512, 256)  # cached tokens after which t(n) is measured too, if time allows
_WIDTHS = (WIDTHS, QUICK, (*FEW, 32), FEW)  # the first list that time allows is measured
_DRAFT_WIDTHS = (READING, FEW)
_SEARCH, _SEARCH_OF_MANY = 0.7, 0.5  # shares of the time left after loading. The rest is for
# measuring, which takes longer while other programs run, and for comparing a model's files.
_COPY_S = 20.0  # seconds that making a copy of a draft model and measuring it may take
_WAIT_S, _LOOKS = 0.7, 3  # seconds per look and number of looks for programs that may end soon


def tune(
    model: Reference,
    draft: Reference | None = "auto",
    *,
    draft_options: Mapping[str, Any] | None = None,
    budget_s: float = 25.0,
    keep_busy: bool = False,
    progress: Callable[[str], None] = logger.info,
    **options: Any,
) -> Tuning:
    """Search for the fastest settings and measure t(n) on this device; `load` uses the results.

    Arguments are those of `load`; an option that is given is not searched. budget_s: the seconds
    for loading, searching, measuring and comparing. Parts that do not fit are left out and named,
    but loading a model is never interrupted. progress: called with a description of each activity.
    If a catalogue model is on disk as GGUF and as ONNX, its files are compared afterwards.

    While other programs use the CPUs nothing is measured, unless keep_busy says that they will go
    on running. Then a setting is chosen only if every turn with it was faster than every turn with
    the default. Times are saved only if they are lower than the saved ones. Raises the errors of
    `load`.
    """
    budget, meter = Budget(budget_s), LoadMeter()
    config = build(EngineConfig, options)
    path, spec = model_path(model), configured(None, draft)
    others = other_load() if keep_busy else _least_load()
    busy = others is not None and others > BUSY
    if busy and not keep_busy:
        return Tuning(files.label(path), None, (), {}, None, budget.spent, None, others=others)
    if busy and others:
        progress(f"other programs use {others:.1f} cores: only what is clearly faster is kept")
    ggufs = [] if busy else ggufs_for_fork(model, path, draft, config, spec)
    chosen_library = compare_fork(ggufs, budget, progress)
    wanted = draft_path(model, draft, config)
    tuner = _Tuner(
        path, wanted, config, draft_options or {}, explicit(options), budget, progress,
        strict=keep_busy,
    )  # fmt: skip
    there = _in_several_formats(model)
    tuner.run(_SEARCH_OF_MANY if there or keep_busy else _SEARCH, busy)
    load = meter.look()
    others = load.others if load else None
    busy = others is not None and others > BUSY
    where = tuner.keep() if keep_busy or not busy else None
    compared: list[Format] = []
    if there and not busy:
        compared = compare(there, config, progress, options, budget)
    elif there:
        budget.left_out.append("comparing the files of the model (other programs are running)")
    formats = compared if len(compared) > 1 else []
    return Tuning(
        files.label(path), tuner.draft, tuple(filter(None, [chosen_library, *tuner.choices])),
        tuner.options, tuner.profile, budget.spent, where, tuple(formats),
        recommend(formats) if formats else "", others, tuple(budget.left_out), tuner.refused,
        tuner.passing,
    )  # fmt: skip


def _least_load() -> float | None:
    """Return the least number of cores that other programs use in a few looks, None if the system
    does not show it.
    """
    least = other_load()
    for _ in range(_LOOKS - 1):
        if least is None or least <= BUSY:
            break
        least = min(least, other_load(_WAIT_S) or 0.0)
    return least


def _in_several_formats(model: Reference) -> list[tuple[str, Path]]:
    """Return a model's files on disk if they are both GGUF and ONNX, else []."""
    there = formats(os.fspath(model))
    return there if len({backends.name_of(path) for _, path in there}) > 1 else []


class _Tuner:
    """One run of `tune` for a model and its draft model.

    strict: other programs use the CPUs, so only results that surely make nothing slower are saved.
    draft: the name of the file that drafts. options: the settings in which later loads will differ
    from the defaults. passing: settings that are faster only while other programs run. profile: the
    measured costs, None if t(n) could not be measured. refused: why measured times are not saved,
    "" if they are.
    """

    def __init__(
        self,
        path: Path,
        wanted: Path | None,
        config: EngineConfig,
        draft_options: Mapping[str, Any],
        fixed: set[str],
        budget: Budget,
        progress: Callable[[str], None],
        *,
        strict: bool,
    ) -> None:
        self.draft: str | None = None
        self.choices: list[Choice] = []
        self.options: dict[str, Any] = {}
        self.passing: dict[str, Any] = {}
        self.refused = ""
        self.profile: Profile | None = None
        self._path, self._wanted, self._config = path, wanted, config
        self._draft_options, self._fixed = draft_options, fixed
        self._budget, self._progress, self._strict = budget, progress, strict
        self._curves: list[tuple[FileModel, Curve, bool]] = []  # bool: times were repeated

    def run(self, share: float, busy: bool) -> None:
        """Search for settings in a share of the time left, then measure the models with the chosen
        settings. The models are closed afterwards, but can still be identified.
        """
        budget, before = self._budget, self._budget.spent
        target, drafting = self._open(make_copy=self._may_copy(busy))
        loading_s = budget.spent - before
        try:
            searching = budget.part(share * budget.left)
            self.choices = search(
                target, self._fixed, loading_s, searching, self._progress, busy=self._strict
            )
            chosen = chosen_options(self.choices, target)
            self.passing = self._passing(target, chosen)
            self.options = {name: chosen[name] for name in chosen if name not in self.passing}
            if self.options:
                self._progress("loading again with the chosen settings")
                _close(target, drafting)
                target, drafting = self._open()
            self.draft = files.label(drafting.path) if drafting else None
            with _threads_of(target, self.passing):
                self._measure(target, drafting)
        finally:
            _close(target, drafting)

    def keep(self) -> Path | None:
        """Save the chosen settings and measured times. Return the file of the settings, None if it
        cannot be written.
        """
        for model, curve, repeated in self._curves:
            why = self._refusal(model, curve, repeated)
            if why:
                self._refuse(model, why)
            else:
                replaced = kept_curve(model, quiet=True)  # the new times are lower
                keep_curve(model, curve, quiet=not self._strict or replaced is not None)
        before = tuned_options(self._path, self._config)
        if self._strict:
            kept = without_slower(before, self.choices)
        else:
            kept = {name: before[name] for name in before if name in self._fixed}
        self.options = kept | self.options
        return keep(tuning_key(self._path, self._config), {"options": self.options})

    def _passing(self, target: FileModel, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """Return the chosen numbers of threads if they must not be saved for later loads. They were
        chosen while other programs ran, and a loaded model adapts its threads to these by itself.
        """
        follows = self._config.dynamic_threads and not self._config.batch_invariant
        if not (self._strict and follows and target.thread_limit is not None):
            return {}
        return {name: chosen[name] for name in ("n_threads", "n_threads_batch") if name in chosen}

    def _refusal(self, model: FileModel, curve: Curve, repeated: bool) -> str:
        """Return the reason why measured times are not saved, "" if they are."""
        if not self._strict:
            return ""
        if not repeated:
            return "the same evaluation took very different times"
        known = kept_curve(model)
        if known and known(1, SHORT_CACHE) <= curve(1, SHORT_CACHE):
            return "those kept before are lower, and other programs only add to times"
        return ""

    def _refuse(self, model: FileModel, why: str) -> None:
        self.refused = f"{files.label(model.path)}: {why}"

    def _open(self, make_copy: bool = False) -> tuple[FileModel, FileModel | None]:
        config = replace(self._config, **self.options)
        self._progress(f"loading {files.label(self._path)}")
        target = open_model(self._path, config)
        if self._wanted:
            self._progress(f"loading {files.label(self._wanted)}")
        try:
            options = self._draft_options
            return target, load_draft(self._wanted, config, options, target, make_copy=make_copy)
        except BaseException:
            target.close()
            raise

    def _may_copy(self, busy: bool) -> bool:
        """Return whether the draft model has no faster copy yet and there is time to make one."""
        if not self._wanted or is_head(self._wanted) or known(self._wanted, self._config):
            return False
        what = "a faster copy of the draft model"
        if busy:
            self._budget.left_out.append(f"{what} (other programs are running)")
        return not busy and self._budget.fits(what, _COPY_S)

    def _measure(self, target: FileModel, draft: FileModel | None) -> None:
        """Measure t(n) of both models, and of the target also after the longest text that time
        allows.
        """
        curve = self._curve(target, _WIDTHS)
        if curve is None:
            return
        drafting = self._curve(draft, _DRAFT_WIDTHS) if draft else None
        left = self._budget.left
        per_token = seconds_per_prompt_token(self.choices, curve)
        if length := _affordable(target.n_ctx, curve, per_token, left):
            self._progress(f"measuring {files.label(target.path)} after {length} tokens")
            if longer := measured_curve(target, [curve.widths], self._budget, length):
                curve = joined(curve, longer[0])
        repeated = self._curves[0][2]
        self._curves[0] = target, curve, repeated
        kept_as = tuple(model.fingerprint() for model in (target, draft) if model)
        self.profile = Profile(curve, drafting, kept_as=kept_as, replans=plans_anew(target))

    def _curve(self, model: FileModel, choices: Sequence[Sequence[int]]) -> Curve | None:
        name = files.label(model.path)
        self._progress(f"measuring {name}")
        measured = measured_curve(model, choices, self._budget, SHORT_CACHE)
        if measured is None:
            self._budget.left_out.append(f"the times of {name}")
            return None
        if is_impossible(model, measured[0]):
            self._refuse(model, "many tokens took no longer than one, which cannot be on a CPU")
            return None
        self._curves.append((model, *measured))
        return measured[0]


def without_slower(options: Mapping[str, Any], choices: Sequence[Choice]) -> dict[str, Any]:
    """Return the settings that were chosen earlier, without those that were now far slower than the
    default.
    """
    kept = dict(options)
    for choice in choices:
        default, *others = choice.candidates
        slower = [c.value for c in others if is_far_ahead(default, c)]
        if kept.get(choice.setting) in slower:
            del kept[choice.setting]
    return kept


@contextlib.contextmanager
def _threads_of(model: FileModel, options: Mapping[str, Any]) -> Iterator[None]:
    """Make a model use the numbers of threads in `options`, if any, and restore them afterwards."""
    if not options or not model.capabilities.threads:
        yield
        return
    before = model.n_threads, model.n_threads_batch
    model.set_threads(
        options.get("n_threads", before[0]), options.get("n_threads_batch", before[1])
    )
    try:
        yield
    finally:
        model.set_threads(*before)


def forget(model: Reference) -> int:
    """Delete what is kept for a model, whatever options it was loaded with: the settings that
    `tune` has chosen, and all measured times. Return the number of deleted files. Raises
    ModelNotFound.
    """
    path = model_path(model)
    mine = backends.of(path).identity(path)["file"]
    return forget_all(lambda fingerprint: fingerprint.get("file") == mine)


def _close(*models: FileModel | None) -> None:
    for model in models:
        if model:
            model.close()


def _affordable(n_ctx: int, curve: Curve, reading_s: float, left: float) -> int | None:
    """Return the longest of LONG_CACHES that can be filled and measured once in the seconds left,
    None if none can. reading_s: seconds per token to fill it.
    """
    widths = 1.2 * sum(curve.seconds[0]) + 2 * curve.seconds[0][-1]
    fitting = (n for n in LONG_CACHES if 2 * n <= n_ctx and n * reading_s + widths < left)
    return next(fitting, None)


def seconds_per_prompt_token(choices: Sequence[Choice], curve: Curve) -> float:
    """Return the seconds per prompt token, from the trials of threads for prompts if there were
    any, else from the widest measured evaluation.
    """
    for choice in choices:
        tried = [c.ms for c in choice.candidates if c.n_repetitions]
        if choice.setting == "n_threads_batch" and tried:
            n_tokens = PROMPT_TOKENS
            if choice.measured == tokens_at_once(BUSY_PROMPT_TOKENS):
                n_tokens = BUSY_PROMPT_TOKENS
            return min(tried) / 1e3 / n_tokens
    return curve.seconds[0][-1] / curve.widths[-1]
