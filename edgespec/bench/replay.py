"""Replays recorded answers with different policies, in virtual time.

The session, drafters and verifier are the real ones. The models return the recorded rows of a
trace, and a virtual clock advances by the times in a device's profile. The result is exact, has no
noise, and takes seconds to compute.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import statistics
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from importlib.resources import as_file, files
from typing import Any

from .. import drafters
from ..config import DraftMemory, SamplingParams, SpeculativeConfig
from ..costs.curves import Curve
from ..costs.online import Costs
from ..costs.profiles import Profile
from ..decoding.output import Output
from ..decoding.owners import OwnRates
from ..drafters.base import LEAST, Drafter, DrafterContext
from ..drafters.draft_model import ModelDrafter
from ..drafters.suffix import SuffixDrafter
from ..loading.assembly import Speculation, speculate, uses_model
from ..policies.base import Limits
from ..policies.fixed import FixedDepth
from ..sampling.base import Request
from ..types import Budget, Draft, Stats, Verdict
from ..verifiers.local import LocalVerifier
from .trace_head import HeadModel, HeadQuality
from .trace_model import VOCAB, Clock, TraceModel, dense
from .traces import Trace, load


class Pieceless:
    """A tokenizer whose tokens have no text and never end an answer."""

    vocab_size, chat_template, tool_template = VOCAB, None, None

    def piece(self, token: int) -> bytes:
        """Return an empty text."""
        return b""

    def is_eog(self, token: int) -> bool:
        """Return False: no token ends an answer."""
        return False


@dataclass(frozen=True, slots=True)
class Fixed:
    """A fixed setting, which drafts up to `depth` tokens at every step.

    The tokens come from a lookup if it has a match, else from the draft model. lookup: the least
    number of tokens that must match, 0 for no lookup. p_min: the confidence below which the draft
    model stops drafting, None for no draft model.
    """

    depth: int
    lookup: int = 0
    p_min: float | None = None


FIXED = tuple(
    Fixed(depth, lookup, p_min)
    for depth in (1, 2, 4, 8, 15)
    for lookup in (0, 2, 5, 10)
    for p_min in (None, 0.0, 0.5, 0.8, 0.95)
    if lookup or p_min is not None
)


class FirstSource(FixedDepth):
    """Drafts from the lookup if it has any match, else from the draft model."""

    def begin(self, request: Request, drafters: Sequence[Drafter]) -> None:
        """Begin a request."""
        super().begin(request, drafters)
        self._lookups = [drafter for drafter in drafters if not drafter.evaluates]

    def limits(self, budget: Budget) -> Limits:
        """Return limits of the fixed depth, or of fewer tokens if the budget allows fewer. If the
        lookup has a match, only lookups draft.
        """
        matches = any(lookup.children(lookup.root(), LEAST) for lookup in self._lookups)
        return super().limits(budget)._replace(lookups_only=matches)


def shipped_traces() -> list[Trace]:
    """Return recorded answers of Qwen2.5-Coder-1.5B to questions of Spec-Bench and of edgespec,
    with drafts of the 0.5B model.
    """
    with as_file(files(__package__).joinpath("data/traces.jsonl.gz")) as path:
        return dense(load(path))


def shipped_profiles(raw: bool = False) -> dict[str, Profile]:
    """Return the profiles of devices to replay on, by name: measured CPUs and made-up GPUs.

    Each device is there twice: with a draft model, and as NAME-lookup without one. raw: return CPUs
    with unchanged measured times, for every width up to 16; in the other profiles, times rise with
    the width.
    """
    name = "raw_profiles.json" if raw else "profiles.json"
    text = files(__package__).joinpath(f"data/{name}").read_text("utf-8")
    pairs = {
        name: Profile(_curve(fields["target"]), _curve(fields["draft"]))
        for name, fields in json.loads(text).items()
    }
    return pairs | {f"{name}-lookup": replace(pair, draft=None) for name, pair in pairs.items()}


def _curve(fields: dict[str, Any]) -> Curve:
    seconds = tuple(tuple(ms / 1e3 for ms in row) for row in fields["ms"])
    return Curve(tuple(fields["lengths"]), tuple(fields["widths"]), seconds)


class _Verifier(LocalVerifier):
    """Returns no rows after drafted tokens: those after rejected tokens were not recorded."""

    def verify(self, draft: Draft) -> Verdict:
        """Evaluate the pending tokens and the draft in one pass."""
        return super().verify(draft)._replace(drafted_rows=())


class Replay:
    """Replays traces with one setting on one device. It keeps what it learns from one trace for the
    next ones.

    setting: "plain", a fixed setting, or a method of SpeculativeConfig ("auto" or names of
    drafters). believed: the profile that a method decides by, if it is not the device's own. head:
    the quality of a head that replaces the draft model; its costs come from its quality. policy:
    the name of the policy that decides for a method.
    """

    def __init__(
        self,
        profile: Profile,
        setting: Fixed | str,
        believed: Profile | None = None,
        head: HeadQuality | None = None,
        policy: str = "auto",
    ) -> None:
        if head:
            profile = replace(profile, draft=head.curve(profile.target))
        self.clock = clock = Clock()
        self._target = TraceModel(clock, profile.target, overhead=profile.overhead)
        draft = profile.draft
        self._draft = TraceModel(clock, draft, source="draft_model") if draft else None
        if draft and head:
            self._draft = HeadModel(clock, draft, head, self._target)
        made = self._speculation(setting, believed or profile, policy)
        self.policy = made.policy
        self.session = made.session(_Verifier(self._target, clock=clock), clock=clock)

    def run(self, trace: Trace, owner: str = "") -> Stats:
        """Replay one answer and return its statistics. Raises ValueError if the tokens of the trace
        were not numbered by `dense`.
        """
        for model in filter(None, (self._target, self._draft)):
            model.tell(trace)
        params = SamplingParams(max_tokens=len(trace.output))
        output, stats = Output(Pieceless(), params), Stats()  # type: ignore[arg-type]
        request = Request(trace.prompt, params, None, owner=owner)  # type: ignore[arg-type]
        for _ in self.session.generate(request, output, stats):
            pass
        if output.token_ids != trace.output:
            raise AssertionError("a replay gave another text than its trace")
        return stats

    def seconds_on(self, profile: Profile) -> float:
        """Return the seconds that the last answer's evaluations would take on another device."""
        made = [(profile.target, profile.overhead, self._target)]
        if self._draft and profile.draft:
            made.append((profile.draft, 0.0, self._draft))
        return sum(
            curve(*evaluation) + overhead
            for curve, overhead, model in made
            for evaluation in model.evaluated
        )

    def _speculation(self, setting: Fixed | str, profile: Profile, policy: str) -> Speculation:
        if isinstance(setting, Fixed):
            made = self._fixed(setting)
            return Speculation(
                made, FirstSource(setting.depth, p_min=LEAST), str(setting), OwnRates(made)
            )
        method = "none" if setting == "plain" else setting
        # earlier answers are drafted from only if asked for: they are for other users' questions
        memory: DraftMemory = "process" if "memory" in method.split(",") else "off"
        config = SpeculativeConfig(method, draft_memory=memory, draft_corpus=(), policy=policy)
        context = DrafterContext(
            config,
            VOCAB,
            self._target,
            draft_model=self._draft if uses_model(config) else None,
            max_leaves=self._target.capabilities.max_leaves,
        )
        return speculate(context, lambda: Costs(profile))

    def _fixed(self, setting: Fixed) -> list[Drafter]:
        drafters: list[Drafter] = []
        if setting.lookup:
            drafters.append(SuffixDrafter(setting.lookup))
        if self._draft and setting.p_min is not None:
            drafters.append(
                ModelDrafter(self._draft, VOCAB, p_min=setting.p_min, needs_probs=False)
            )
        return drafters


Rates = dict[str, float]  # for each category, the mean tokens per second of its answers


def rates(
    traces: Iterable[Trace],
    profiles: Sequence[Profile],
    setting: Fixed | str,
    head: HeadQuality | None = None,
    policy: str = "auto",
) -> list[Rates]:
    """Return the rates of a setting on each device.

    A plain or fixed setting evaluates the same tokens on every device, so it is run only on the
    first. A method decides by the costs of its device, so only one profile is allowed. Raises
    ValueError for more. head: the quality of a head that replaces the draft models. policy: the
    policy of a method.
    """
    if _decides(setting) and len(profiles) > 1:
        raise ValueError(f"{setting} decides by its device: give one profile")
    by_category: list[dict[str, list[float]]] = [defaultdict(list) for _ in profiles]
    if head:
        profiles = [replace(pair, draft=head.curve(pair.target)) for pair in profiles]
    replay = Replay(profiles[0], setting, head=head, policy=policy)
    for trace in traces:
        if len(trace.output) > 1:
            replay.run(trace)
            for profile, rate in zip(profiles, by_category, strict=True):
                rate[trace.category].append(len(trace.output) / replay.seconds_on(profile))
    return [{c: statistics.mean(values) for c, values in rate.items()} for rate in by_category]


def table(
    traces: Sequence[Trace],
    profiles: dict[str, Profile],
    *,
    method: str = "auto",
    policy: str = "auto",
    fixed: bool = True,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[dict[str, Any]]:
    """Yield rows {profile, category, policy, speedup} for "plain" and for `method` with a policy.

    fixed: also yield rows "best-fixed". They have the fixed setting, or plain decoding, that is
    best in hindsight for the category on the device. progress: called with the number of finished
    jobs and the number of all jobs. Raises ConfigError for an unknown method.
    """
    jobs = _jobs(profiles, method, fixed)
    speed: dict[str, dict[Fixed | str, Rates]] = {name: {} for name in profiles}
    others = {*multiprocessing.active_children()}
    pool = ProcessPoolExecutor(initializer=_begin_worker)
    try:
        with _no_ctrl_c_while_processes_begin():
            waiting = [
                pool.submit(
                    rates, traces, [profiles[name] for name in names], setting, policy=policy
                )
                for setting, names in jobs
            ]
        for done, ((setting, names), job) in enumerate(zip(jobs, waiting, strict=True), 1):
            for name, rate in zip(names, job.result(), strict=True):
                speed[name][setting] = rate
            progress(done, len(jobs))
    except BaseException:
        for worker in {*multiprocessing.active_children()} - others:
            worker.kill()  # its job may take minutes
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    for name, by_setting in speed.items():
        yield from _rows(name, by_setting, method, policy, fixed)


@contextlib.contextmanager
def _no_ctrl_c_while_processes_begin() -> Iterator[None]:
    """Block Ctrl-C in this thread, and permanently in the processes that start in this block.
    Otherwise a process that was just forked would handle Ctrl-C as its parent does.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows, where nothing is forked
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin_worker() -> None:
    """Make this worker process ignore Ctrl-C, and end when its parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent:
        parent.join()
        os._exit(1)


def _rows(
    profile: str, by_setting: dict[Fixed | str, Rates], method: str, policy: str, fixed: bool
) -> Iterator[dict[str, Any]]:
    hindsight = [setting for setting in by_setting if not _decides(setting)]
    for category, plain in by_setting["plain"].items():
        best = max(hindsight, key=lambda s: by_setting[s][category])
        chosen = {"plain": "plain"}
        name = method if policy == "auto" else policy
        chosen |= {name: method} if method in by_setting else {}
        for label, setting in (chosen | ({"best-fixed": best} if fixed else {})).items():
            row = {"profile": profile, "category": category, "policy": label,
                   "speedup": round(by_setting[setting][category] / plain, 4)}  # fmt: skip
            yield row | ({"setting": str(setting)} if label == "best-fixed" else {})


def _decides(setting: Fixed | str) -> bool:
    """Return True if a setting decides by the costs of its device."""
    return isinstance(setting, str) and setting != "plain"


def _jobs(
    profiles: dict[str, Profile], method: str, fixed: bool
) -> list[tuple[Fixed | str, list[str]]]:
    """Return the settings to replay, each with the names of the devices that it is timed on."""
    every, drafting = list(profiles), [name for name in profiles if profiles[name].draft]
    needs_model = all(entry.uses_model for entry in drafters.chosen(method))
    jobs: list[tuple[Fixed | str, list[str]]] = [
        (method, [name]) for name in (drafting if needs_model else every)
    ]
    jobs.append(("plain", every))
    if fixed:
        jobs += [(s, every if s.p_min is None else drafting) for s in FIXED]
    return [job for job in jobs if job[1]]
