"""Ctrl-C pressed twice or more, at any moment, ends every command without a traceback."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.helpers import gguf_files
from tests.helpers.selection import share
from tests.helpers.serving import until

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of a process group are POSIX's")

# Python prints a traceback for what comes before a program's first line: wait until it has begun.
PROGRAM = """
import sys
import edgespec_cli.__main__ as program
sys.excepthook = program._report_uncaught
print("begun", flush=True)
program.main()
"""
COMMANDS = {
    "run": ("run", "-m", "{model}", "Hello", "-n", "40"),
    "chat": ("chat", "-m", "{model}"),
    "serve": ("serve", "-m", "{model}", "--port", "0"),
    "corpus": ("corpus", "add", "{folder}", "-m", "{model}"),
    "tune": ("tune", "-m", "{model}"),
    "doctor": ("doctor", "-m", "{model}"),
    "bench": ("bench", "-m", "{model}"),
    "replay": ("bench", "replay"),
    "pull": ("pull", "no-such-model"),
    "convert": ("convert", "{folder}"),
    "list": ("list",),
}
QUIET_ENDS = (0, 1, 2, 130, -signal.SIGINT)


def begin(tmp_path, command):
    """Start a command in a process group of its own, as a terminal does."""
    model = gguf_files.write(tmp_path / "tiny.gguf")
    given = [each.format(model=model, folder=tmp_path) for each in COMMANDS[command]]
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *given],
        stdin=subprocess.PIPE if command == "chat" else subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, text=True,
        env=os.environ | {"HOME": str(tmp_path), "EDGESPEC_CACHE": str(tmp_path)},
    )  # fmt: skip
    assert process.stdout.readline() == "begun\n"
    return process


def press(process, pauses):
    """Press Ctrl-C after each pause; return what is written to stderr in the end."""
    for pause in pauses:
        time.sleep(pause)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
    try:
        return process.communicate(timeout=60)[1]
    finally:
        process.kill()


def check(process, said, pauses):
    assert "Traceback" not in said, (pauses, said)
    assert "Exception ignored" not in said, (pauses, said)
    assert process.returncode in QUIET_ENDS, (pauses, process.returncode, said)


@pytest.mark.parametrize("command", COMMANDS)
def test_pressed_twice_or_thrice_at_random_moments(tmp_path, command):
    chance = random.Random(command)
    for _ in range(share(24, 24)):
        pauses = [chance.uniform(0, chance.choice([0.3, 1.5]))]
        for _ in range(chance.choice([1, 2])):
            pauses.append(chance.choice([0.001, 0.01, 0.05, 0.2]))
        process = begin(tmp_path, command)
        check(process, press(process, pauses), pauses)


@pytest.mark.parametrize("pause", [0, 0.01, 0.05, 0.1, 0.2])
def test_a_server_that_is_stopping_is_told_again(tmp_path, pause):
    process = begin(tmp_path, "serve")
    assert process.stdout.readline().startswith("serving ")
    check(process, press(process, [0, pause, pause]), pause)
    assert process.returncode in (0, 130, -signal.SIGINT)


@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_processes_of_a_replay_end_with_it(tmp_path, ended_by):
    """The signal reaches the program alone, as `kill` sends it."""
    process = begin(tmp_path, "replay")
    parent = psutil.Process(process.pid)
    until(lambda: len(parent.children()) > 1)
    workers = parent.children()
    process.send_signal(ended_by)
    process.send_signal(ended_by)
    try:
        process.communicate(timeout=60)
        until(lambda: not any(worker.is_running() for worker in workers))
    finally:
        process.kill()
        for worker in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()


LOST = """
import edgespec_cli.__main__ as program
import time
from edgespec_cli import main as command
class Lost:
    def __del__(self):
        raise KeyboardInterrupt
def invoke(**given):
    Lost()
    time.sleep(20)
command.cli.main = invoke
program.main()
"""


def test_an_interrupt_that_python_drops_is_raised_again():
    """In `__del__` and in callbacks of native code no exception gets out."""
    done = subprocess.run([sys.executable, "-c", LOST], capture_output=True, text=True, timeout=15)
    assert (done.returncode, done.stderr) == (130, "")


PRESSED_ONCE_MORE = """
import threading
class Timer(threading.Timer):
    def start(self):
        super().start()
        raise KeyboardInterrupt
threading.Timer = Timer
"""


def test_one_that_comes_while_it_is_being_raised_again():
    code = PRESSED_ONCE_MORE + LOST
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=15)
    assert (done.returncode, done.stderr) == (130, "")


LATE = """
import atexit, os, signal
import edgespec_cli.__main__ as program
from edgespec_cli import main as command
def pressed():
    os.kill(os.getpid(), signal.SIGINT)
    print("went on")
atexit.register(pressed)
command.cli.main = lambda **given: None
program.main()
"""


def test_one_that_comes_while_the_interpreter_ends_kills_it():
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
