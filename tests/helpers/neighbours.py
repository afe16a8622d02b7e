"""A machine on which other programs come and go: its clock, its CPU times, and steps on it."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from edgespec.costs.threads import ThreadGovernor
from edgespec.device import LoadMeter

MEASURED = {  # tokens/s of SmolLM2 on two cores: (loops beside it, threads)
    (0, 1): 84, (1, 1): 75, (2, 1): 45, (4, 1): 30,
    (0, 2): 107, (1, 2): 34, (2, 2): 30, (4, 2): 5.6,
}  # fmt: skip


class Limitable:
    """A model that only remembers its limit."""

    thread_limit = 0

    def limit_threads(self, n_threads: int) -> None:
        self.thread_limit = n_threads


class Machine:
    """Cores with `loops` endless loops beside a model.

    seed: of the noise of steps, None for none. visible: the CPU times can be read. background:
    cores that small programs always use, without any harm.
    """

    def __init__(
        self, cpus: int = 2, *, visible: bool = True, seed: int | None = 0, background: float = 0.0
    ) -> None:
        self.cpus, self.loops, self.visible, self.background = cpus, 0, visible, background
        self.now = self.own_s = self.busy_s = 0.0
        self.slower = 1.0  # by heat, or a longer context
        self._noise = random.Random(seed) if seed is not None else None

    def rate(self, n_threads: int) -> float:
        """Return tokens a second with so many threads beside the loops that run now."""
        if self.cpus == 2:
            return MEASURED[self.loops, n_threads] / self.slower
        alone = 100 * n_threads / (1 + 0.08 * (n_threads - 1))
        excess = n_threads + self.loops - self.cpus
        if excess <= 0:
            return alone / self.slower
        share = self.cpus / (n_threads + self.loops)
        waiting = 1.0 if n_threads == 1 else 2.5 if excess <= 1 else 2.5 + excess
        return alone * share / waiting / self.slower

    def best(self) -> float:
        """Return the tokens a second of the best number of threads."""
        return max(self.rate(n) for n in range(1, self.cpus + 1))

    def pass_time(self, seconds: float, n_threads: int = 0) -> None:
        """Let time pass, with so many threads of ours running."""
        self.now += seconds
        share = min(1.0, self.cpus / max(1, n_threads + self.loops))
        own, others = n_threads * share, self.loops * share + self.background
        self.own_s += own * seconds
        self.busy_s += min(own + others, self.cpus) * seconds

    def step(self, n_threads: int, n: int = 1, most_s: float = math.inf) -> float:
        """Evaluate n tokens, or stop after `most_s`, and return the seconds that it took."""
        noise = self._noise.uniform(0.95, 1.05) if self._noise else 1.0
        seconds = min(noise * (0.75 + 0.25 * n) / self.rate(n_threads), most_s)
        self.pass_time(seconds, n_threads)
        return seconds

    def meter(self) -> LoadMeter:
        return LoadMeter(self._system, lambda: self.own_s, lambda: self.now)

    def _system(self) -> tuple[float, float]:
        if not self.visible:
            raise PermissionError("/proc/stat")
        ticks = 0.01  # the system counts in them
        busy = self.busy_s // ticks * ticks
        return busy, self.cpus * self.now // ticks * ticks - busy


class Decoding:
    """The real governor before and after every step on such a machine."""

    def __init__(self, machine: Machine, *, known: bool = False, **options) -> None:
        self.machine, self.model = machine, Limitable()
        self.governor = ThreadGovernor(
            [self.model], machine.cpus, n_cpus=machine.cpus, meter=machine.meter(),
            clock=lambda: machine.now, **options,
        )  # fmt: skip
        if known:
            alone = 1 / machine.rate(machine.cpus)
            self.governor.expect(lambda n, n_past: (0.75 + 0.25 * n) * alone)

    @property
    def n_threads(self) -> int:
        """The threads of the last step."""
        return self.model.thread_limit or self.machine.cpus

    def step(self, n: int = 1, left_s: float = math.inf) -> float:
        self.governor.before(n, left_s)
        began, may_take_s = self.machine.now, self.governor.may_take_s(n, 0)
        seconds = self.machine.step(self.n_threads, n, may_take_s)
        if seconds >= may_take_s:
            self.governor.stopped(may_take_s)
            self.step(n, left_s)
        else:
            self.governor.observe(n, 0, seconds)
        return self.machine.now - began

    def run(self, seconds: float, width: int = 1) -> float:
        """Take steps for so long, and return how many a second."""
        began, n = self.machine.now, 0
        while self.machine.now < began + seconds:
            self.step(width)
            n += 1
        return n / (self.machine.now - began)

    def until(self, n_threads: int, most_s: float = 60.0) -> float:
        """Return the seconds until this number of threads is used and kept for half a second."""
        began = since = self.machine.now
        while self.machine.now < began + most_s:
            self.step()
            if self.n_threads != n_threads:
                since = self.machine.now
            elif self.machine.now - since > 0.5:
                return since - began
        return most_s


def fixed(machine: Machine, n_threads: int, seconds: float) -> Iterator[float]:
    """Yield the seconds of steps with one number of threads."""
    end = machine.now + seconds
    while machine.now < end:
        yield machine.step(n_threads)
