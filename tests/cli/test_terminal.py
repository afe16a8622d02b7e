"""The CLI as a process: terminals, Ctrl-C, closed pipes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import select
import signal
import stat
import subprocess
import sys
import time

import pytest

from edgespec_cli import kept_chats
from edgespec_cli.answer import CtrlC
from edgespec_cli.render import Status
from tests.helpers.selection import first

pty = pytest.importorskip("pty")
fcntl = pytest.importorskip("fcntl")
termios = pytest.importorskip("termios")

PATIENCE_S = 60
QUESTION = r"run it\? \(y runs it, any other key does not\) "
PROMPT = r"(?s)\x1b\[\?2004h.*?>.*?\x1b\[\?25h"  # the cursor is shown where one types


class Terminal:
    """A program in a terminal of its own; what is asked for may be split by nothing but time."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (40, 200)) if hasattr(termios, "tcsetwinsize") else None
        self._process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=env,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def say(self, text: str) -> None:
        """Type a line at the prompt."""
        self.expect(PROMPT)
        self.type(text + "\r")

    def reply(self, key: str) -> None:
        """Press a key at the question whether a call is to be run."""
        self.expect(QUESTION)
        self.type(key)

    def goes_on(self) -> None:
        """Check that the chat answers another message."""
        self.say("hello")
        self.expect("Hi, what can I do")

    def leave(self) -> None:
        """End the chat at its prompt."""
        self.expect(PROMPT)
        self.type("\x04")
        assert self.finish() == 0

    def expect(self, pattern: str) -> str:
        """Wait for `pattern`; the text up to its end, which is then not looked at again."""
        end = time.monotonic() + PATIENCE_S
        while not (match := re.search(pattern, self.seen)):
            assert time.monotonic() < end, f"no {pattern!r} in {self.seen!r}"
            assert self._read(), f"ended without {pattern!r}: {self.seen!r}"
        text, self.seen = self.seen[: match.end()], self.seen[match.end() :]
        return text

    def finish(self) -> int:
        """Return the exit code, once the program has ended; the rest of its output is in `seen`."""
        end = time.monotonic() + PATIENCE_S
        while self._read():
            assert time.monotonic() < end, f"does not end: {self.seen!r}"
        return self._process.wait(PATIENCE_S)

    def _read(self) -> bool:
        if not select.select([self._ours], [], [], 1)[0]:
            return True
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # Linux says so when the other end is closed
            return False
        self.seen += data.decode("utf-8", "replace")
        return bool(data)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        ours, self._ours = self._ours, -1
        if ours >= 0:
            os.close(ours)


@pytest.fixture(autouse=True)
def ctrl_c_is_heard():
    """Test a job in a script's background, which starts with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def environment(edgespec_cli) -> dict[str, str]:
    """For subprocesses; the same folder as `edgespec_cli`."""
    return os.environ | {
        "PROMPT_TOOLKIT_NO_CPR": "1",
        "PYTHONWARNINGS": "error",
        "PYTHONUTF8": "1",
        "TERM": "xterm",
        "COLUMNS": "200",
    }


@pytest.fixture
def terminal(program, environment):
    """Start `edgespec …` in a terminal."""
    with contextlib.ExitStack() as stack:

        def start(*args: str, **env: str) -> Terminal:
            opened = Terminal([*program, *args], environment | env)
            stack.callback(opened.close)
            return opened

        yield start


def test_a_chat_in_a_terminal(terminal, edgespec_cli):
    chat = terminal("chat", "-m", "toy.gguf")
    chat.expect("/help lists the commands")
    chat.say("hello")
    chat.expect("Hi, what can I do\\?\r\n")
    assert "\x1b[2m" in chat.expect("first token")
    chat.say("first line\x1b\rsecond line")
    chat.expect("two lines\r\n")
    chat.say("escape")
    chat.expect("red ␛\\[31m bell ␇ csi �2J end")
    chat.expect(PROMPT)
    chat.type("\x03")
    chat.expect("/exit leaves")
    chat.expect(PROMPT)
    chat.type("half\x03")
    chat.type("/exit\r")
    assert chat.finish() == 0
    history = edgespec_cli.folder / "state" / "edgespec" / "history"
    assert "+second line\n" in history.read_text(encoding="utf-8")
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


def test_a_bare_word_on_a_terminal_is_no_prompt(terminal):
    refused = terminal("update", EDGESPEC_MODEL="toy.gguf")
    assert refused.finish() == 2
    assert "no such command 'update'" in refused.seen


def test_the_figures_are_wrapped_at_words(terminal):
    run = terminal("run", "-m", "toy.gguf", "again", COLUMNS="40", NO_COLOR="1")
    assert run.finish() == 0
    lines = [line for line in run.seen.splitlines() if "first" in line or "tokens" in line]
    assert len(lines) > 1
    assert all(len(line) <= 40 for line in lines)


def test_ctrl_c_ends_an_answer_and_not_the_chat(terminal):
    chat = terminal("chat", "-m", "toy.gguf")
    chat.say("slow")
    chat.expect("tick tick")
    chat.type("\x03")
    chat.expect("cancelled")
    chat.say("count")
    chat.expect("2\r\n")  # the half answer is in the history
    chat.leave()
    assert "Traceback" not in chat.seen


def test_ctrl_c_right_after_enter_ends_the_question(terminal):
    chat = terminal("chat", "-m", "toy.gguf")
    chat.expect(PROMPT)
    chat.type("slow\r\x03")
    chat.expect("interrupted: /retry sends your message again")
    assert "slow" not in chat.expect(PROMPT)  # the line is empty
    chat.type("/retry\r")
    chat.expect("tick tick")
    chat.type("\x03")
    chat.expect("cancelled")
    chat.leave()


def test_what_is_typed_during_an_answer_waits_for_the_next_prompt(terminal):
    chat = terminal("run", "toy.gguf", "-n", "120")  # without a prompt it is a chat
    chat.say("slow")
    chat.expect("tick tick")
    chat.type("cou")
    assert "cou" not in chat.expect("tick [^>]*first token")
    chat.expect(PROMPT)
    chat.expect("cou")
    chat.type("nt\r")
    chat.expect("2\r\n")
    chat.leave()


def test_what_is_typed_ahead_survives_ctrl_c(terminal):
    chat = terminal("chat", "-m", "toy.gguf")
    chat.say("slow")
    chat.expect("tick tick")
    chat.type("cou")
    chat.expect("tick")
    chat.type("\x03")
    chat.expect("cancelled")
    chat.expect(PROMPT)
    chat.expect("cou")
    chat.type("nt\r")
    chat.expect("2\r\n")
    chat.leave()


@pytest.mark.parametrize("word", ["exit", "quit"])
def test_a_word_alone_ends_the_chat(terminal, word):
    chat = terminal("chat", "-m", "toy.gguf")
    chat.say(word)
    assert chat.finish() == 0
    assert "echo" not in chat.seen


@pytest.mark.long("two programs in a terminal; tests/cli/test_kept_chats.py kills one in a pipe")
def test_what_was_said_before_the_program_was_killed_goes_on(terminal, edgespec_cli):
    chat = terminal("chat", "-m", "toy.gguf")
    chat.goes_on()
    chat.say("slow")
    chat.expect("tick tick")
    (path,) = kept_chats.stored()
    while b"tick" not in path.read_bytes():
        chat.expect("tick")
    chat.close()
    chat = terminal("chat", "--continue")
    chat.expect("> slow.*\r\ntick.*\r\n")
    chat.expect("4 messages from")
    chat.expect("not complete when the program ended; /continue goes on with it")
    chat.say("count")
    chat.expect("3\r\n")
    chat.say("slow")
    chat.expect("tick tick")
    chat.type("\x03")
    chat.say("/continue")
    chat.expect("tick tick")
    chat.type("\x03")
    chat.leave()
    assert "`edgespec chat --continue` goes on with this conversation" in chat.seen
    listed = edgespec_cli("chat", "--list").stdout.splitlines()
    assert listed[1].split()[1:] == ["toy.gguf", "8", "hello"]


def test_where_nothing_is_kept_the_chat_says_so_first(terminal, edgespec_cli):
    chat = terminal("chat", "-m", "toy.gguf", "--no-save")
    chat.expect("this conversation is not kept: --no-save says so")
    chat.leave()
    assert "goes on with this conversation" not in chat.seen
    (edgespec_cli.folder / "state").write_text("a file where a folder should be")
    chat = terminal("chat", "-m", "toy.gguf")
    chat.expect("this conversation is not kept: [^;]*;[^;]*; /save FILE takes another place")
    chat.goes_on()
    chat.leave()
    assert "not kept" not in chat.seen
    assert "goes on with this conversation" not in chat.seen


def test_ctrl_c_in_run_ends_with_130(terminal):
    run = terminal("run", "-m", "toy.gguf", "slow")
    run.expect("tick tick")
    run.type("\x03")
    assert run.finish() == 130
    assert "cancelled" in run.seen
    assert "Traceback" not in run.seen


@pytest.mark.long("several programs in a terminal")
def test_drafted_tokens_are_coloured_unless_no_color(terminal, edgespec_cli):
    command = ("run", "-m", "toy.gguf", "--show-drafts", *edgespec_cli.always, "again")
    shown = terminal(*command)
    assert shown.finish() == 0
    assert "\x1b[32m" in shown.seen
    plain = terminal(*command, NO_COLOR="1")
    assert plain.finish() == 0
    assert "\x1b[32m" not in plain.seen
    assert "\x1b[2m" not in plain.seen


def test_a_long_prompt_shows_progress_and_takes_it_away(terminal, edgespec_cli):
    (edgespec_cli.folder / "long.txt").write_text("x " * 1000, encoding="utf-8")
    run = terminal("run", "-m", "toy.gguf", "-f", "long.txt", "-n", "8")
    assert run.finish() == 0
    assert "reading the prompt: " in run.seen
    assert "echo: x" in run.seen


def test_a_short_prompt_shows_progress_only_if_it_takes_long(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for after_s, shown in ((0.0, True), (60.0, False)):
        monkeypatch.setattr(sys, "stderr", Terminal())
        line = Status()
        line.show("reading", after_s=after_s)
        line.hide()
        assert ("reading" in sys.stderr.getvalue()) == shown
    monkeypatch.setattr(sys, "stderr", Terminal())
    line.show("reading", after_s=0.01)
    while "reading" not in sys.stderr.getvalue():
        time.sleep(0.01)
    line.hide()


def test_a_history_that_cannot_be_written_is_only_a_line_in_the_log(terminal, edgespec_cli):
    (edgespec_cli.folder / "state").write_text("a file where a folder should be")
    chat = terminal("-v", "chat", "-m", "toy.gguf")
    chat.goes_on()
    chat.leave()


def test_interrupted_json_ends_with_done_and_130(program, environment):
    process = subprocess.Popen(
        [*program, "run", "-m", "toy.gguf", "--json", "slow"],
        env=environment, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    lines = []
    for line in process.stdout:
        lines.append(json.loads(line))
        if len(lines) == 10:
            process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 130
    assert lines[-1]["type"] == "done"
    assert lines[-1]["finish_reason"] == "cancelled"
    assert errors == ""


@pytest.mark.parametrize("args", [["run", "slow"], ["run", "--json", "slow"], ["chat"]])
def test_a_closed_pipe_is_quiet(program, environment, args):
    process = subprocess.Popen(
        [*program, args[0], "-m", "toy.gguf", *args[1:]],
        env=environment,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    if args == ["chat"]:
        process.stdin.write(b"slow\n")
    process.stdin.close()
    process.stdin = None
    process.stdout.read(5)
    process.stdout.close()
    process.stdout = None
    errors = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 141
    assert errors == b""


def test_ctrl_c_in_a_piped_chat_ends_it(program, environment):
    process = subprocess.Popen(
        [*program, "chat", "-m", "toy.gguf"],
        env=environment,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    process.stdin.write(b"slow\nhello\n")
    process.stdin.flush()
    assert process.stdout.read(9) == b"tick tick"
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert b"Hi" not in out
    assert b"cancelled" in errors


def test_a_terminal_that_cannot_show_a_character(program, environment):
    result = subprocess.run(
        [*program, "chat", "-m", "toy.gguf", "-q"],
        env=environment | {"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"},
        input=b"escape\n", capture_output=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout == b"red ?[31m bell ? csi ?2J end\n\ttab\n"


def test_starting_imports_no_engine(program, environment):
    code = (
        "import sys; from edgespec_cli.main import cli\n"
        "cli.make_context('edgespec', ['run'])\n"
        "heavy = {'edgespec.engine', 'numpy', 'rich', 'prompt_toolkit', 'huggingface_hub'}\n"
        "print(heavy & set(sys.modules))"
    )
    result = subprocess.run(
        [program[0], "-c", code], env=environment, capture_output=True, text=True
    )
    assert (result.stdout, result.stderr) == ("set()\n", "")


def test_a_second_ctrl_c_does_not_wait_for_the_engine():
    class Engine:
        cancelled = 0

        def cancel(self):
            self.cancelled += 1

    engine = Engine()
    before = signal.getsignal(signal.SIGINT)
    with CtrlC(engine) as ctrl_c:
        signal.raise_signal(signal.SIGINT)
        assert ctrl_c.hit
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert engine.cancelled == 1
    assert signal.getsignal(signal.SIGINT) == before


@pytest.fixture
def robot(robot_cli, terminal):
    """Return a chat in a terminal that offers the functions of a file."""
    pytest.importorskip("llguidance")
    chat = terminal("chat", "-m", "tools.gguf", "-c", "8000")
    chat.say("/tools robot.py")
    chat.expect("more\\(\\)")
    chat.expect(PROMPT)
    return chat


def test_a_call_is_run_if_the_user_says_yes(robot):
    robot.type("drive\r")
    robot.expect(r"call: drive\(centimetres=5\)")
    robot.reply("y")
    robot.expect("yes\r\nbrrm ␛\\[31m\r\n")
    robot.expect("result: drove 5 cm")
    robot.expect("result: drove 5 cm\r\n")  # what the model says
    robot.leave()


@pytest.mark.parametrize(
    "key", first(1, ["\r", "n", "x", " ", "\x1b[A"], "more keys in a terminal")
)
def test_a_call_is_not_run_for_any_other_key(robot, key):
    robot.type("drive\r")
    robot.reply(key)
    robot.expect("no\r\n")
    assert "brrm" not in robot.expect("result: drive was not run: it was not allowed\r\n")
    robot.goes_on()


def test_y_and_enter_run_a_call(robot):
    robot.type("drive\r")
    robot.reply("y\r")
    robot.expect("yes\r\nbrrm")
    robot.expect(PROMPT)


def test_ctrl_c_at_the_question_ends_the_turn(robot):
    robot.type("drive\r")
    robot.reply("\x03")
    assert "result" not in robot.expect("no\r\n")
    assert "result" not in robot.expect(PROMPT)
    robot.type("hello\r")
    robot.expect("Hi, what can I do")


@pytest.mark.long("several rounds in a terminal")
def test_what_was_run_before_ctrl_c_is_told_with_the_next_message(robot, robot_cli):
    robot.type("both\r")
    robot.reply("y")
    robot.expect("yes\r\nbrrm")
    robot.reply("\x03")
    robot.goes_on()
    robot.say("/save c.json")
    robot.expect(PROMPT)
    messages = json.loads((robot_cli.folder / "c.json").read_text())["messages"]
    assert [m["role"] for m in messages] == [
        "user", "assistant", "tool", "tool", "user", "assistant",
    ]  # fmt: skip
    found = [m["content"] for m in messages if m["role"] == "tool"]
    assert found == ["drove 1 cm", "not run: the user ended the turn"]


@pytest.mark.long("several programs in a terminal")
def test_what_was_typed_before_the_question_is_no_answer_to_it(robot):
    robot.type("slow\r")
    robot.expect("tick tick")
    robot.type("\x03")
    robot.say("both")
    robot.type("y")
    robot.reply("n")
    assert "yes" not in robot.expect("no\r\n")
    robot.reply("y")
    robot.expect("yes\r\nbrrm")
    robot.expect(PROMPT)


MORE = pytest.mark.long("more failures in a terminal; tests/cli/test_tools.py has them in a pipe")


@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("leaves", r" leaves ended with sys.exit\(\)"),
        pytest.param("breaks", " breaks failed: ValueError: no battery", marks=MORE),
        pytest.param("odd", r" \{.*2j", marks=MORE),
        pytest.param("much", "[^x]+xxx", marks=MORE),  # a long word begins a line
    ],
)
def test_what_goes_wrong_in_a_function_is_told_to_the_model(robot, name, result):
    robot.type(name + "\r")
    robot.reply("y")
    robot.expect("result:" + result)
    robot.expect("result: ")  # the model's answer to it
    robot.goes_on()
    robot.leave()
    assert "Traceback" not in robot.seen


def test_ctrl_c_ends_a_function_that_never_returns(robot):
    robot.type("forever\r")
    robot.reply("y")
    robot.expect("for ever\r\n")
    robot.type("\x03")
    robot.expect("result: forever was interrupted by the user")
    robot.expect("result: forever was interrupted by the user\r\n")
    robot.expect(PROMPT)


@pytest.mark.long("eight rounds in a terminal")
def test_a_model_that_calls_without_end_is_stopped(robot):
    robot.type("more\r")
    for _ in range(8):
        robot.reply("y")
    robot.expect("8 answers in a row made calls")
    robot.goes_on()


@pytest.mark.long("several programs in a terminal")
def test_reasoning_is_dim_and_apart(terminal):
    pytest.importorskip("llguidance")
    run = terminal("run", "-m", "tools.gguf", "-q", "think")
    assert run.finish() == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", run.seen)
    assert "\x1b[2mo" in run.seen
    assert "one, two\r\n\r\nthree\r\n" in plain
    without = terminal("run", "-m", "tools.gguf", "-q", "think", NO_COLOR="1")
    assert without.finish() == 0
    assert "reasoning: one, two\r\n\r\nthree\r\n" in without.seen
    assert "\x1b[2m" not in without.seen
