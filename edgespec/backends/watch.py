"""Stopping native evaluations while they run: one thread checks for all of them whether to stop.

Native code does not call Python to ask whether to stop, because that would slow down every
evaluation.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
from collections.abc import Callable

from ..types import Abort

POLL_S = 0.03
_LINGER = 20  # idle polls before the thread sleeps; waking it costs more than a poll
_WAKE = b"\0"  # no signal has this number


class _Watcher:
    """The thread that checks whether to stop; it sleeps when nothing has run for a while."""

    def __init__(self) -> None:
        self.running: dict[Watch, Abort] = {}
        self.lock = threading.Lock()
        self._asleep = True
        self._thread: threading.Thread | None = None
        self._heard, self._told = socket.socketpair()
        self._heard.setblocking(False)
        self._told.setblocking(False)

    @property
    def fileno(self) -> int:
        """The file descriptor to which the numbers of signals have to be written."""
        return self._told.fileno()

    def add(self, watch: Watch, abort: Abort) -> None:
        """Start checking `abort`, and stop the evaluation of `watch` when it returns a reason."""
        with self.lock:
            self.running[watch] = abort
            if not self._asleep:
                return
            self._asleep = False
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="edgespec-watch", daemon=True)
            self._thread.start()
        else:
            self._told.send(_WAKE)

    def _run(self) -> None:
        n_idle = 0
        while True:
            timeout = None if self._asleep else POLL_S
            heard = select.select([self._heard], [], [], timeout)[0] and self._heard.recv(64)
            pressed = bool(heard) and signal.SIGINT in heard
            for watch, abort in list(self.running.items()):
                if (pressed and watch.ends_by_ctrl_c) or abort():
                    with self.lock:
                        if self.running.get(watch) is abort:
                            watch.stop()
            with self.lock:
                n_idle = 0 if self.running else n_idle + 1
                self._asleep = n_idle > _LINGER


_watcher = _Watcher()


def _renew() -> None:
    """Forget the thread and the evaluations of the parent process, after a fork."""
    global _watcher
    _watcher = _Watcher()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


class Watch:
    """A context manager around each evaluation of one model; evaluations come one at a time.

    stop: a function that ends the running evaluation. Another thread calls it when the caller's
    `abort` returns a reason, or when Ctrl-C is pressed during an evaluation on the main thread;
    Python itself raises KeyboardInterrupt only after native code has returned. A program's own
    Ctrl-C handler is left alone, unless it has an attribute `ends_answers` that is true.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self.stop = stop
        self.abort: Abort | None = None
        self.ends_by_ctrl_c = False

    def during(self, abort: Abort | None) -> Watch:
        """Return the context manager for one evaluation; without `abort`, nothing ends the
        evaluation early.
        """
        self.abort = abort
        return self

    def __enter__(self) -> None:
        if self.abort:
            self._listen()
            _watcher.add(self, self.abort)

    def __exit__(self, *error: object) -> None:
        with _watcher.lock:
            _watcher.running.pop(self, None)
        if self.ends_by_ctrl_c:
            self.ends_by_ctrl_c = False
            signal.set_wakeup_fd(-1)

    def _listen(self) -> None:
        """Get notice of Ctrl-C before Python does, unless an event loop already listens for
        signals.
        """
        if threading.get_ident() != threading.main_thread().ident:
            return
        handler = signal.getsignal(signal.SIGINT)
        if handler is signal.default_int_handler or getattr(handler, "ends_answers", False):
            before = signal.set_wakeup_fd(_watcher.fileno, warn_on_full_buffer=False)
            self.ends_by_ctrl_c = before in (-1, _watcher.fileno)
            if not self.ends_by_ctrl_c:
                signal.set_wakeup_fd(before)
