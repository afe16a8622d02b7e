"""Control of the number of threads: fewer while other programs use the CPUs, else all of them.

Threads of llama.cpp wait for each other by spinning, so a thread that has to share its core delays
all of them. While one other program is busy, two threads can be three times slower than one. The
CPU use of other programs is read from the system. If the system does not show it, such programs are
inferred from steps that take longer than usual, and from short trials of other numbers of threads.

With more threads than there are free cores, one evaluation has taken seconds. So an evaluation that
tries more threads is stopped if it takes too long, and repeated with the previous number. Near the
time limit of a request no other number is tried. The number can then only fall, and only if the
system shows other programs. Fewer threads that trials alone have suggested are not used to read
prompts: their times say little, so nothing would tell that all threads are faster again.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..backends.base import BatchedModel, FileModel, Model, share_on_gpu
from ..device import Load, LoadMeter, others_now, usable_cpus

logger = logging.getLogger("edgespec.threads")

WINDOW_S = 0.25  # seconds between looks at the system; steps are summed over them
ARRIVED, LEFT = 0.4, 0.25  # busy cores others need: from 0.4 on they have come, below 0.25 left
_CHANGED = 0.6  # cores: a change of what others need that starts new trials
_SLOW, _FAST = 1.2, 0.9  # steps are slow above this ratio to their usual time, fast below it
_BETTER = 0.95  # a different number of threads is taken if it needs less than this share of time
_TRIAL_S, _TRIAL_STEPS = 0.12, 3  # least seconds and steps of a trial
_HOPELESS = 1.5  # a trial ends at once if its steps take more than 1.5 times as long as before it
_LONGEST_S = 0.1  # seconds after which an evaluation that tries more threads is stopped,
_TOO_LONG = 2.0  # or twice its time with the previous number, if that is longer
_NEAR = 10  # a time limit is near if fewer than 10 evaluations of that length fit before it
_SHARE = 0.01  # share of the time that may be lost by trials
_MOST_SAVED_S, _DEBT_S = 0.5, 0.3  # most seconds saved for trials; most overdrawn if steps change
_LONGEST_GAP_S = 8.0  # most seconds between cheap trials; half if the system shows nothing
WIDEST = 32  # tokens: longer evaluations are reading, whose times say little about steps
_PAUSE_S = 1.0  # a longer window contains a pause, and says nothing about the present


class Regime(NamedTuple):
    """The conditions that the cost of evaluations depends on.

    disturbed: other programs slow evaluations down. visible: the system shows the CPU use of other
    programs.
    """

    n_threads: int
    disturbed: bool
    visible: bool


class _Pace:
    """The seconds of some steps, compared with the expected seconds."""

    def __init__(self) -> None:
        self.seconds = self.expected = 0.0
        self.n = 0

    def add(self, seconds: float, expected: float) -> None:
        self.seconds += seconds
        self.expected += expected
        self.n += 1

    @property
    def ratio(self) -> float | None:
        """The seconds divided by the expected ones, None without any step."""
        return self.seconds / self.expected if self.expected else None


class ThreadGovernor:
    """Chooses the number of threads of some models before each evaluation.

    models: the models that are limited together; if empty, no number is changed, and the governor
    only detects other programs (`regime`). n_threads: the greatest number, used while no other
    program runs. fixed_in_request: the number changes only when a request begins, by what the
    system shows. stoppable: evaluations can be stopped and repeated. If they cannot, and the
    system shows what others use, more threads than there are free cores are never tried. running:
    returns how many cores other programs would use at this moment, None if that is not known.
    regime: the regime of the last evaluation.
    """

    def __init__(
        self,
        models: Sequence[Model | BatchedModel],
        n_threads: int,
        *,
        fixed_in_request: bool = False,
        stoppable: bool = True,
        running: Callable[[], float | None] = others_now,
        n_cpus: int = 0,
        meter: LoadMeter | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.n_trials = 0
        self.regime = Regime(n_threads, False, True)
        self._expected: Callable[[int, int], float] | None = None
        self._models, self._full = models, n_threads
        self._fixed, self._stoppable, self._running = fixed_in_request, stoppable, running
        self._near = False  # True near the time limit of the request
        self._free = max(0, (n_cpus or usable_cpus()) - n_threads)  # cores beyond n_threads
        self.clock, self._meter = clock, meter or LoadMeter(clock=clock)
        self._widths: dict[int, float] = {}  # width: seconds of its first evaluation
        self._n = n_threads
        self._disturbed, self._visible, self._seen = False, True, False
        self._needed = 0.0  # cores that others need beyond the free ones, when last acted upon
        self._n_calm = self._n_slow = self._n_fast = 0  # consecutive windows
        self._worse = False  # the last window was slower than those before it
        self._usual: float | None = None  # ratio of steps with all threads and no other program
        self._present: float | None = None  # ratio of recent steps, with this number of threads
        self._window = _Pace()
        self._working_s = 0.0  # seconds of evaluations in this window, including reading
        self._trial: _Pace | None = None
        self._before_trial = n_threads
        self._waiting: list[int] = []  # numbers to be tried next
        self._saved_s, self._gap_s = 0.0, 1.0
        self._last_look = self._last_trial = clock()

    @property
    def key(self) -> tuple[int, bool] | None:
        """The regime of the last evaluation: (threads, disturbed), or None if it used all threads
        and was not disturbed.
        """
        n_threads, disturbed, _ = self.regime
        return (n_threads, disturbed) if disturbed or n_threads < self._full else None

    def expect(self, seconds: Callable[[int, int], float]) -> None:
        """Compare steps with these times from now on; until then, with the first evaluation of each
        width. seconds: returns the time of n tokens after n_past, with all threads and no other
        program.
        """
        self._expected = seconds
        self._usual = self._present = None
        self._window = _Pace()

    def begin_beside(self, load: Load) -> None:
        """Assume that other programs go on using the CPUs as they did when `load` was measured."""
        needed = self._missing(load)
        if self._fixed:
            self._needed = needed
        elif needed >= ARRIVED:
            self._arrive(needed)

    def begin(self, left_s: float = math.inf) -> None:
        """Begin a request that has to end within `left_s` seconds."""
        now = self.clock()
        if left_s < math.inf and now - self._last_look > _PAUSE_S and not self._fixed:
            self._begin_after_pause(now)
        if self._fixed:
            if now - self._last_look >= WINDOW_S:
                self._look(now)
            rule = self._candidates(self._needed)[0]
            self._use(rule if self._needed >= ARRIVED else self._full)
            self._disturbed = self._needed >= ARRIVED

    def _begin_after_pause(self, now: float) -> None:
        """Assume that other programs go on using the cores that they use at this moment. What was
        seen before the pause says nothing, and the first evaluation must not be a trial.
        """
        self._meter.look()
        self._last_look, self._window, self._working_s = now, _Pace(), 0.0
        self._near = True
        needed = max(0.0, (self._running() or 0.0) - self._free)
        if needed >= ARRIVED and self._models:
            self._arrive(needed)

    def before(self, n: int = 1, left_s: float = math.inf) -> None:
        """Choose the number of threads of the next evaluation, which has `n` tokens. left_s:
        seconds until the request has to end.
        """
        now = self.clock()
        self._near = left_s < math.inf and left_s < _NEAR * self._longest_s(1, 0)
        if self._near and self._trial:
            self._waiting.clear()
            self._use(min(self._n, self._before_trial))
        if now - self._last_look >= WINDOW_S:
            self._look(now)
        n_used = self._n
        reads_alone = n > WIDEST and self._visible and not self._seen
        for i, model in enumerate(self._models):
            is_tried = self._tries_more and i == 0 and n <= WIDEST  # can be stopped
            n_model = self._before_trial if self._tries_more and not is_tried else self._n
            n_model = self._full if reads_alone else n_model
            n_used = n_model if i == 0 else n_used
            wanted = n_model if n_model < self._full else 0
            if model.thread_limit != wanted:
                model.limit_threads(wanted)
        self.regime = Regime(n_used, self._disturbed, self._visible)

    def may_take_s(self, n: int, n_past: int) -> float:
        """Return the seconds after which an evaluation must be stopped: the caller then calls
        `stopped` and repeats it. It is inf unless the evaluation tries more threads.
        """
        stops = self._tries_more and self._stoppable and n <= WIDEST
        return self._longest_s(n, n_past) if stops else math.inf

    def stopped(self, seconds: float) -> None:
        """Return to the previous number of threads: an evaluation that tried more was stopped."""
        self._working_s += seconds
        if self._trial:
            self._fail_trial(seconds)
            self._next_trial()

    @property
    def _tries_more(self) -> bool:
        return self._trial is not None and self._n > self._before_trial

    def _longest_s(self, n: int, n_past: int) -> float:
        """Return the most seconds that an evaluation with more threads may take."""
        expected = self._expected(n, n_past) if self._expected else self._widths.get(n, 0.0)
        return max(_LONGEST_S, _TOO_LONG * expected * (self._present or self._usual or 1.0))

    def observe(self, n: int, n_past: int, seconds: float) -> None:
        """Learn from the seconds of an evaluation of n tokens after n_past cached ones."""
        self._working_s += seconds
        if n > WIDEST or not seconds:  # less than a tick of the clock says nothing
            return
        if self._expected:
            expected = self._expected(n, n_past)
        else:
            expected = self._widths.setdefault(n, seconds)
        self._window.add(seconds, expected)
        if self._trial:
            self._trial.add(seconds, expected)
            if self._is_over(self._trial):
                self._end_trial(self._trial)

    # --- other programs ---

    def _look(self, now: float) -> None:
        """Read what others have used since the last look, and act on it."""
        elapsed, self._last_look = now - self._last_look, now
        paused = elapsed > _PAUSE_S + self._working_s
        load, window = self._meter.look(), self._window
        self._window, self._working_s = _Pace(), 0.0
        self._visible = load is not None
        self._saved_s = min(self._saved_s + _SHARE * min(elapsed, _PAUSE_S), _MOST_SAVED_S)
        needed = self._missing(load) if load else 0.0
        if self._fixed:
            self._needed = needed
        elif not paused:
            self._act(now, needed, window)

    def _act(self, now: float, needed: float, window: _Pace) -> None:
        """Begin, continue or end the use of fewer threads."""
        slow = self._compare(window)
        if self._seen and self._visible:
            self._follow(needed)
        elif self._disturbed or self._trial:
            pass
        elif needed >= ARRIVED and slow:
            self._arrive(needed)
        elif self._n_slow >= 2 and self._may_try(now):
            self._n_slow = 0
            self._sweep(self._descending())
        if self._disturbed and not self._trial:
            self._look_again(now)

    def _missing(self, load: Load) -> float:
        """Return how many of the cores that our threads need are wanted by other programs.

        While all cores are busy, a thread gets only a share of a core, so other programs want more
        than they use. The size of that share is estimated from our own use.
        """
        contended = load.others + load.own > self._free + self._full - 0.1
        share = min(load.own / self._n, 1.0)
        others = load.others / share if contended and share > 0.1 else load.others
        return min(max(0.0, others - self._free), self._full)

    def _compare(self, window: _Pace) -> bool:
        """Compare a window with the usual times. Return False if its steps were not slow, True if
        they were or if that is not known.
        """
        ratio, present = window.ratio, self._present
        if ratio is None or self._trial:
            return True
        self._n_fast = self._n_fast + 1 if present and ratio < _FAST * present else 0
        self._worse = bool(present and ratio > _SLOW * present)
        self._present = (present + ratio) / 2 if present and not self._worse else ratio
        if self._disturbed:
            return True
        if self._usual is None:
            self._usual = min(ratio, _HOPELESS) if self._expected else ratio
            return True
        slow = ratio > _SLOW * self._usual
        self._n_slow = self._n_slow + 1 if slow else 0
        if not slow:
            self._usual += (0.3 if ratio < self._usual else 0.05) * (ratio - self._usual)
        return slow

    def _arrive(self, needed: float) -> None:
        """Begin to use fewer threads: the system shows that other programs have come."""
        logger.info("other programs use %.1f cores that %d threads need", needed, self._full)
        self._disturbed = self._seen = True
        self._needed, self._n_calm, self._gap_s = needed, 0, 1.0
        self._sweep(self._candidates(needed))

    def _follow(self, needed: float) -> None:
        """React to the other programs that the system shows: they are still there, need a different
        number of cores, or have left.
        """
        self._n_calm = self._n_calm + 1 if needed < LEFT else 0
        if self._n_calm >= 2:
            self._leave()
        elif needed >= LEFT and abs(needed - self._needed) >= _CHANGED:
            self._needed, self._gap_s = needed, 1.0
            if self._saved_s > -_DEBT_S:
                self._sweep(self._candidates(needed))

    def _leave(self) -> None:
        """Use all threads again: other programs have left."""
        logger.info("other programs have left the CPUs: %d threads again", self._full)
        self._disturbed = self._seen = False
        self._waiting.clear()
        self._use(self._full)

    # --- trials ---

    def _candidates(self, needed: float) -> list[int]:
        """Return the numbers of threads worth a trial, the most promising first."""
        if not self._models:
            return [self._full]
        likely = max(1, self._full - max(1, round(needed)))
        return list(dict.fromkeys((likely, 1)))

    def _descending(self) -> list[int]:
        """Return the numbers of threads worth a trial if it is not known what others need."""
        halves = (self._full >> i for i in range(1, self._full.bit_length()))
        return [*dict.fromkeys((max(self._full - 1, 1), *halves))] if self._models else []

    def _sweep(self, numbers: Sequence[int]) -> None:
        """Try some numbers of threads, one after the other. Near a time limit nothing is tried, but
        the first number is used at once if it is lower and the system shows other programs.
        """
        if self._near:
            if self._seen and numbers[0] < self._n:
                self._use(numbers[0])
            return
        self._waiting = [n for n in numbers if n != self._n and not self._is_risky(n)]
        if not self._trial:
            self._next_trial()

    def _look_again(self, now: float) -> None:
        """Try other numbers of threads now and then, or at once if the times of steps change."""
        faster = self._n_fast >= 2 and self._saved_s > -_DEBT_S
        if self._worse and self._saved_s > -_DEBT_S:
            self._sweep(self._candidates(self._needed) if self._seen else self._descending())
        if self._trial or self._present is None or not (faster or self._may_try(now)) or self._near:
            return
        self._n_fast = 0
        near = dict.fromkeys((self._full, min(self._n + 1, self._full), max(self._n - 1, 1)))
        numbers = [n for n in near if n != self._n and self._models]
        self._sweep(numbers if faster else numbers[self.n_trials % max(1, len(numbers)) :][:1])

    def _is_risky(self, n: int) -> bool:
        """Return whether an evaluation with n threads may take unbounded time."""
        free = self._seen and self._visible and n > self._candidates(self._needed)[0]
        return not self._stoppable and n > self._n and free

    def _may_try(self, now: float) -> bool:
        """Return whether time is saved up for a trial, and enough has passed since the last one."""
        return self._saved_s > 0 and now - self._last_trial >= self._gap_s

    def _next_trial(self) -> None:
        if not self._waiting:
            return
        self._before_trial, self._trial = self._n, _Pace()
        self._n = self._waiting.pop(0)
        self.n_trials += 1

    def _is_over(self, trial: _Pace) -> bool:
        """Return whether a trial has lasted long enough, or is hopeless."""
        if trial.n >= _TRIAL_STEPS and trial.seconds >= _TRIAL_S:
            return True
        assert trial.ratio is not None
        return self._present is not None and trial.ratio > _HOPELESS * self._present

    def _end_trial(self, trial: _Pace) -> None:
        """Keep the number that was tried if it is faster, else return to the previous one."""
        assert trial.ratio is not None
        tried, present = self._n, self._present
        self._trial, self._window = None, _Pace()
        self._last_trial = self._last_look = self.clock()
        self._meter.look()  # the next window begins here
        if present is None or trial.ratio < _BETTER * present:
            self._use(tried)
            self._present, self._gap_s = trial.ratio, 1.0
            self._settle()
        else:
            self._fail_trial(trial.seconds - trial.expected * present)
        self._next_trial()

    def _fail_trial(self, loss_s: float) -> None:
        """Return to the number before a trial that has lost `loss_s` seconds."""
        self._trial, self._window = None, _Pace()
        self._last_trial = self.clock()
        self._n = self._before_trial
        self._saved_s -= max(0.0, loss_s)
        if not self._waiting:
            longest = _LONGEST_GAP_S if self._visible else _LONGEST_GAP_S / 2
            self._gap_s = min(2 * self._gap_s, longest)
            self._settle()

    def _settle(self) -> None:
        """Conclude from trials whether other programs run, and what times are usual now."""
        if self._n < self._full:
            self._disturbed = True
        elif not self._seen:
            self._disturbed, self._usual = False, self._present

    def _use(self, n: int) -> None:
        """Use n threads from now on."""
        if n != self._n or n != self._before_trial:
            logger.debug("%d of %d threads", n, self._full)
        self._n = self._before_trial = n
        self._present, self._trial = None, None


class DraftGovernor(ThreadGovernor):
    """A governor of a draft model alone, to which the target's times do not apply."""

    def expect(self, seconds: Callable[[int, int], float]) -> None:
        """Ignore these times, which are the target's; the first steps set the standard."""


def governor_of(
    target: Model | None,
    models: Sequence[Model | BatchedModel | None],
    loading: LoadMeter | None = None,
    *,
    stoppable: bool = True,
    kind: type[ThreadGovernor] = ThreadGovernor,
) -> ThreadGovernor | None:
    """Return a governor of the threads of `models`, by the settings of the target. Return None if
    there is nothing to govern: a target without threads, or models that run on a GPU alone.

    loading: a meter that has watched the system since before the models were loaded. With it, the
    governor knows of other busy programs before the first evaluation and uses fewer threads; on
    busy cores an evaluation with all threads can take seconds. stoppable: evaluations of the target
    can be stopped; that also needs a target that can truncate its cache. If the settings fix the
    number of threads, the governor changes nothing, but still detects other programs.
    """
    if not isinstance(target, FileModel) or _are_on_gpu([target, *models]):
        return None
    config = target.config
    limited: list[Model | BatchedModel] = []
    if config.dynamic_threads:
        limited += [model for model in models if model and model.thread_limit is not None]
    fixed = bool(config.batch_invariant)
    stoppable = stoppable and target.capabilities.truncate
    governor = kind(limited, target.n_threads, fixed_in_request=fixed, stoppable=stoppable)
    if loading and (load := loading.look(WINDOW_S)):
        governor.begin_beside(load)
    return governor


def _are_on_gpu(models: Sequence[object]) -> bool:
    return all(share_on_gpu(each.placement) == 1 for each in models if isinstance(each, FileModel))
