"""Entry point of the command `edgespec` and of `python -m edgespec_cli`."""

import _thread
import contextlib
import os
import signal
import sys
import threading
from typing import Any

_INTERRUPTED = 130


def main() -> None:
    """Run the program. Ctrl-C ends it with exit code 130, even while modules are imported.

    Ctrl-C never gives a traceback, however often it is pressed. It kills a program that is ending.
    """
    sys.excepthook = _report_uncaught
    sys.unraisablehook = _report_unraisable
    try:
        from .main import cli

        cli.main(prog_name="edgespec")
    except KeyboardInterrupt:
        _leave()
    except SystemExit as ended:
        if ended.code == _INTERRUPTED:
            _leave()
        raise
    finally:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _leave() -> None:
    """End an interrupted program at once, without the interpreter's cleanup: a thread may still run
    native code, and the cleanup would free memory that it uses.
    """
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(_INTERRUPTED)


def _report_uncaught(kind: type[BaseException], error: BaseException, where: Any) -> None:
    if not issubclass(kind, KeyboardInterrupt):  # Ctrl-C while the first one was handled
        sys.__excepthook__(kind, error, where)


def _report_unraisable(lost: Any) -> None:
    """Repeat a Ctrl-C a moment later if it came where Python drops exceptions, as in `__del__`."""
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    # RuntimeError: the interpreter is ending and starts no threads. KeyboardInterrupt: Ctrl-C was
    # pressed once more while this waits for the thread, which repeats it.
    with contextlib.suppress(RuntimeError, KeyboardInterrupt):
        again = threading.Timer(0.01, _interrupt)
        again.daemon = True
        again.start()


def _interrupt() -> None:
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        _thread.interrupt_main()


if __name__ == "__main__":
    main()
