"""Pauses of a training: on battery, and while other programs use the cores."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ..device import BUSY, LoadMeter, on_battery
from .formats import PAUSE, TOLD_EVERY_S

EVERY_S = 2.0  # between two looks at the machine
_COME, _GONE = 2 * BUSY, BUSY  # cores of other programs that begin and end a pause


class Pauses:
    """Waits between pieces of work while the machine is needed for something else.

    progress: shows the steps of the training, and when a pause begins and ends. gently: False for
    no pauses. every_s: seconds between two looks at the machine. seconds: how long `wait` has
    paused in all.
    """

    def __init__(
        self, progress: Callable[[str], None], *, gently: bool = True, every_s: float = EVERY_S
    ) -> None:
        self.progress, self._gently, self._every_s = progress, gently, every_s
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._meter, self._looked = LoadMeter(own=own_seconds), time.monotonic()
        self.seconds = 0.0

    def wait(self) -> None:
        """Return after the pause that is needed now, if any.

        It may be called often and from several threads, which then all wait: it looks at the
        machine at most every `every_s` seconds.
        """
        if not self._gently:
            return
        with self._lock:
            began = time.monotonic()
            if self._ended.is_set() or began - self._looked < self._every_s:
                return
            self._pause(self._ended)
            self._looked = time.monotonic()
            self.seconds += self._looked - began

    def pace(self, stage: str, n: int, total: int) -> Callable[[int], None]:
        """Return a function that shows every few seconds how far a stage is; it gets the number of
        tokens that are done of `total`. n: those that were done before.
        """
        began, paused_s, first = time.monotonic(), self.seconds, n
        told = began

        def tell(n: int) -> None:
            nonlocal told
            if (now := time.monotonic()) - told > TOLD_EVERY_S:
                told, rate = now, (n - first) / (now - began - (self.seconds - paused_s))
                left = f", {max(0, total - n) / rate / 60:.0f} min left" if rate else ""
                self.progress(f"{stage}: {n} of {total} tokens, {rate:.0f} tokens/s{left}")

        return tell

    def end(self) -> None:
        """End a pause now and make no other one, because the work is given up."""
        self._ended.set()

    @contextlib.contextmanager
    def of_worker(self, folder: Path, pid: int) -> Iterator[None]:
        """Let the program with this process id wait whenever a pause is needed: it looks for the
        file PAUSE in its folder.
        """
        (folder / PAUSE).unlink(missing_ok=True)  # of a run that was killed
        done = threading.Event()
        watch = threading.Thread(target=self._watch, args=(folder / PAUSE, pid, done))
        try:
            if self._gently:
                watch.start()
            yield
        finally:
            done.set()
            if self._gently:
                watch.join()

    def _watch(self, file: Path, pid: int, done: threading.Event) -> None:
        """Make the file of pauses when one begins, and delete it when it ends."""
        self._meter = LoadMeter(own=lambda: own_seconds() + _seconds_of(pid))
        while not done.wait(self._every_s):
            try:
                self._pause(done, file.touch)
            finally:  # the worker waits as long as there is a file
                file.unlink(missing_ok=True)
        self._meter = LoadMeter(own=own_seconds)

    def _pause(self, stop: threading.Event, begin: Callable[[], None] = lambda: None) -> None:
        """Wait until there is no reason for a pause, or until `stop`.

        begin: called at the beginning of a pause.
        """
        why = self._reason(_COME)
        if not why:
            return
        begin()
        self.progress(f"paused: {why}")
        while not stop.wait(self._every_s) and self._reason(_GONE):
            pass
        self.progress("going on after a pause")

    def _reason(self, most: float) -> str:
        """Return why to pause, "" for no reason. most: cores that other programs may use."""
        load = self._meter.look()
        if on_battery():
            return "this machine runs on battery"
        if load and load.others > most:
            return f"other programs use {load.others:.1f} cores"
        return ""


def own_seconds() -> float:
    """Return the CPU seconds of this process and of the programs that it has run to their end."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _seconds_of(pid: int) -> float:
    """Return the CPU seconds of a process, 0 once it has ended."""
    import psutil

    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return times.user + times.system
