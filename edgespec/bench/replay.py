"""Replays policies over recorded answers in virtual time.

The session, drafters and verifier are the real ones. The models answer from a trace, and a clock
runs by a device's profile. The result is exact and without noise, and takes seconds.
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
    """A tokenizer without text: nothing in a trace ends early."""

    vocab_size, chat_template = VOCAB, None

    def piece(self, token: int) -> bytes:
        """Return no text."""
        return b""

    def is_eog(self, token: int) -> bool:
        """Return False: no token ends an answer."""
        return False


@dataclass(frozen=True, slots=True)
class Fixed:
    """A fixed setting: drafts of `depth` tokens.

    They come from lookup where at least `lookup` tokens match (0: no lookup), else from the draft
    model while it is `p_min` sure (None: no model).
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
    """Drafts from lookup where it has anything, else from the model."""

    def begin(self, request: Request, drafters: Sequence[Drafter]) -> None:
        """Begin a request."""
        super().begin(request, drafters)
        self._lookups = [drafter for drafter in drafters if not drafter.evaluates]

    def limits(self, budget: Budget) -> Limits:
        """Return the fixed depth, as far as the budget goes."""
        matches = any(lookup.children(lookup.root(), LEAST) for lookup in self._lookups)
        return super().limits(budget)._replace(lookups_only=matches)


def shipped_traces() -> list[Trace]:
    """Return answers of Qwen2.5-Coder-1.5B, drafted by the 0.5B, to Spec-Bench and our own."""
    with as_file(files(__package__).joinpath("data/traces.jsonl.gz")) as path:
        return dense(load(path))


def shipped_profiles(raw: bool = False) -> dict[str, Profile]:
    """Return devices to replay on by their names: measured CPUs, and made-up GPUs.

    Each comes with a draft model, and as NAME-lookup without. raw: return CPUs whose times are as
    they were measured, of every width to 16; those of the others rise.
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
    """Shows no rows after rejected tokens, for they were not recorded."""

    def verify(self, draft: Draft) -> Verdict:
        """Do one pass over what is pending and the draft."""
        return super().verify(draft)._replace(drafted_rows=())


class Replay:
    """One policy on one device, over as many traces as it is given, learning from one to the next.

    setting: "plain", a fixed setting, or a method of SpeculativeConfig ("auto", names of drafters).
    believed: the profile that a method is given, if it is not the device's own. head: stands in for
    the draft model, with costs by its quality. policy: decides for a method, by its name.
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
        """Replay one answer and return its statistics. Raises ValueError if `dense` did not number
        its tokens.
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
        """Return the seconds of the last answer's evaluations on another device."""
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
        # earlier answers count where that is asked for: they are to other people's questions
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


Rates = dict[str, float]  # of each category, the mean of its answers' tokens a second


def rates(
    traces: Iterable[Trace],
    profiles: Sequence[Profile],
    setting: Fixed | str,
    head: HeadQuality | None = None,
    policy: str = "auto",
) -> list[Rates]:
    """Return the rates of a setting on each of the devices. head: in place of their draft models.
    policy: of a method.

    A setting that looks at no clock evaluates the same on all of them and is run on the first; a
    method decides by its device's costs, and is for one device.
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
    """Yield rows {profile, category, policy, speedup} of "plain" and of `method` under a policy.

    fixed: yield rows of "best-fixed" as well, the fixed setting that is best for that category on
    that device, chosen in hindsight, plain decoding among them. progress: called with the number
    of finished jobs and that of all.
    Raises ConfigError for an unknown method.
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
    """Hold Ctrl-C back from this thread and, for good, from the processes that begin here: one that
    has only just been forked would go on with what its parent does at Ctrl-C.
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
    """Let this process of a pool end with its parent, which alone hears Ctrl-C."""
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
    """Return whether a setting decides by the costs of its device."""
    return isinstance(setting, str) and setting != "plain"


def _jobs(
    profiles: dict[str, Profile], method: str, fixed: bool
) -> list[tuple[Fixed | str, list[str]]]:
    """Return the settings, each with the devices that it is timed on."""
    every, drafting = list(profiles), [name for name in profiles if profiles[name].draft]
    needs_model = all(entry.uses_model for entry in drafters.chosen(method))
    jobs: list[tuple[Fixed | str, list[str]]] = [
        (method, [name]) for name in (drafting if needs_model else every)
    ]
    jobs.append(("plain", every))
    if fixed:
        jobs += [(s, every if s.p_min is None else drafting) for s in FIXED]
    return [job for job in jobs if job[1]]
