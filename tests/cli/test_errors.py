"""Exit codes and the one line that explains them."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest

import edgespec
from edgespec_cli import errors


def test_a_failure_is_one_line_and_exit_1(edgespec_cli):
    result = edgespec_cli("run", "-m", "broken.gguf", "hello")
    assert result.exit_code == 1
    expected = "the weights need 9 GB, 4 GB are free; take a smaller model"
    assert result.stderr == f"edgespec: error: {expected}\n"


def test_a_bug_says_that_it_is_one_and_debug_shows_it(edgespec_cli):
    result = edgespec_cli.run("boom")
    assert result.exit_code == 1
    assert result.stderr == (
        "edgespec: error: RuntimeError: boom. This is a bug in edgespec; "
        "`edgespec --debug …` (or EDGESPEC_DEBUG=1) shows where\n"
    )
    debug = edgespec_cli("--debug", "run", "-m", str(edgespec_cli.model), "boom")
    assert debug.exit_code == 1
    assert "Traceback (most recent call last)" in debug.stderr
    assert 'raise RuntimeError("boom")' in debug.stderr
    assert "Traceback" in edgespec_cli.run("boom", env={"EDGESPEC_DEBUG": "1"}).stderr


def test_ctrl_c_outside_an_answer_is_130(edgespec_cli):
    result = edgespec_cli("run", "-m", "interrupted.gguf", "hello")
    assert (result.exit_code, result.stderr) == (130, "edgespec: error: interrupted\n")


def test_ctrl_c_while_python_still_imports_is_130():
    interrupted_while_importing = """
import sys

class Interrupts:
    def find_spec(self, name, *rest):
        if name == "edgespec_cli.main":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupts())
from edgespec_cli.__main__ import main
main()
"""
    ended = subprocess.run(
        [sys.executable, "-c", interrupted_while_importing], capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("runn",), 2, "No such command 'runn'"),
        (("--nope",), 2, "No such option"),
        (("run", "-m", "nope", "hello"), 1, "no model is called 'nope'"),
        (("run", "-m", "no.gguf", "hello"), 1, "there is no file 'no.gguf'"),
        (("run", "-m", "smollm2-135m", "--offline", "hello"), 1, "fetching is off (offline)"),
        (("chat", "-m", "smollm2-135m", "--offline"), 1, "fetching is off (offline)"),
        (("pull", "smollm2-135m", "--offline"), 1, "fetching is off (offline)"),
        (("pull", "smolm2"), 1, "no model is called"),
        (("pull",), 2, "Missing argument 'REFERENCE'"),
        (("completion", "tcsh"), 2, "'tcsh' is not one of"),
        (("chat", "qwen3-4b"), 2, "unexpected extra argument (qwen3-4b); -m names a model"),
    ],
)
def test_messages(edgespec_cli, args, code, says):
    result = edgespec_cli(*args)
    assert result.exit_code == code
    assert says in result.stderr
    assert result.stderr.startswith("edgespec: error: ")
    assert "Traceback" not in result.stderr


def test_text_that_is_not_utf8(edgespec_cli):
    result = edgespec_cli.run(input=b"caf\xe9")
    assert result.exit_code == 2
    assert "the text on stdin is not UTF-8 (byte 0xe9 at 3)" in result.stderr
    assert edgespec_cli.run(input=b"\xef\xbb\xbfhello").stdout == "Hi, what can I do?\n"
    assert edgespec_cli("chat", "-m", "toy.gguf", input=b"hello\ncaf\xe9\n").exit_code == 2


def test_no_command_shows_the_help_and_is_a_usage_error(edgespec_cli):
    result = edgespec_cli()
    assert result.exit_code == 2
    assert "Start with: edgespec chat" in result.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (edgespec.ConfigError("x"), 2),
        (edgespec.ContextFull("x"), 1),
        (OSError(28, "No space left on device"), 1),
        (MemoryError(), 1),
        (BrokenPipeError(), 141),
        (KeyError("x"), 1),
    ],
)
def test_codes(error, code, monkeypatch):
    monkeypatch.setattr(errors, "_drop_stdout", lambda: None)
    assert errors.report(error) == code


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_under_stdout_is_said_with_what_to_do():
    command = [sys.executable, "-m", "edgespec_cli", "models", "--json"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == (
        "edgespec: error: standard output cannot be written: the disk is full (No space "
        "left on device); free some space there, or send it to a file on another disk\n"
    )


def test_messages_cannot_move_the_cursor(edgespec_cli):
    result = edgespec_cli("run", "-m", "a\x1b[2Jb.gguf", "hello")
    assert "\x1b" not in result.stderr


def test_verbose_logs_to_stderr(edgespec_cli):
    edgespec_cli("-vv", "models")
    assert logging.getLogger("edgespec").level == logging.DEBUG
    edgespec_cli("models")
    assert logging.getLogger("edgespec").level == logging.WARNING


def test_version(edgespec_cli):
    assert edgespec_cli("--version").stdout == f"edgespec {edgespec.__version__}\n"
