"""Texts of files and of other machines cannot steer the terminal, nor pass for lines of ours."""

from __future__ import annotations

import ast
import json
import logging
import sys
from pathlib import Path

import pytest

import edgespec
import edgespec_cli as package
from edgespec_cli import errors, loading, render
from edgespec_cli.log_lines import PlainFormatter
from tests.helpers import gguf_files

EVIL = "a\u202eb\u2066c\u200fd\x1b[2Je\x07f\x9bg\u2028h\nedgespec: error: i\rj\tk"
HARMLESS = "a\\u202eb\\u2066c\\u200fd␛[2Je␇f\ufffdg\\u2028h␊edgespec: error: i␍j␉k"


def is_harmless(told: str) -> None:
    """Assert that a text was shown, escaped, and on one line."""
    assert HARMLESS in told
    assert all(line.isprintable() for line in told.split("\n"))


def test_only_render_writes_to_the_terminal():
    """Everything else would have to remember that a text is foreign.

    What is written elsewhere is ours: the help of a command and a script for the shell.
    """
    written = {}
    for path in Path(package.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
        written[path.stem] = sum(
            call in ("print", "click.echo", "click.secho", "click.confirm", "click.prompt")
            or call.startswith(("sys.stdout.write", "sys.stderr.write"))
            for call in calls
        )
    assert written.pop("render")
    assert {name: n for name, n in written.items() if n} == {"errors": 1, "main": 1}


class Terminal:
    """A stream that says that it is a terminal."""

    def __init__(self, stream):
        self._stream = stream

    def isatty(self):
        return True

    def __getattr__(self, name):
        return getattr(self._stream, name)


WAYS = {
    "say": lambda: render.say(f"model {EVIL}"),
    "say on stderr": lambda: render.say(f"model {EVIL}", err=True),
    "a remark": lambda: render.Screen().remark(f"note: {EVIL}"),
    "a row of a table": lambda: render.table(("name",), [(EVIL,)]),
    "an error": lambda: errors.line(f"{EVIL} is missing"),
    "a note": lambda: errors.note(EVIL),
    "progress of a download": lambda: loading.plain_progress()(EVIL, 1, 2),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_the_terminal(capsys, way):
    WAYS[way]()
    told = "".join(capsys.readouterr())
    is_harmless(told)
    assert told.strip().count("\n") == (way == "a row of a table")


def test_steps_and_questions(capsys, monkeypatch):
    with render.told() as show:
        show(f"converting {EVIL}")
    asked = []
    monkeypatch.setattr("click.confirm", lambda text, **_: asked.append(text))
    render.confirm(f"delete {EVIL}?")
    is_harmless(asked[0])
    is_harmless(capsys.readouterr().err)


def test_a_line_of_status_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "stderr", Terminal(sys.stderr))
    with render.status(f"reading {EVIL}"):
        pass
    with loading.progress_bar() as show:
        show(EVIL, 1, 2)
    told = capsys.readouterr().err
    assert HARMLESS in told
    assert not set(told) & set("\u202e\u2066\x07\x9b\u2028")
    assert "\x1b[2J" not in told


def test_a_path_is_escaped_for_people_and_not_for_programs(capsys, monkeypatch):
    render.say_path(Path("/m") / EVIL)
    assert capsys.readouterr().out.splitlines() == f"/m/{EVIL}\n".splitlines()
    monkeypatch.setattr(sys, "stdout", Terminal(sys.stdout))
    render.say_path(Path("/m") / EVIL)
    is_harmless(capsys.readouterr().out)


def test_a_log_line_holds_one_record():
    record = logging.LogRecord("edgespec", 30, "f", 1, "read %s", (EVIL,), None)
    told = PlainFormatter(with_module=False).format(record)
    is_harmless(told)
    assert "\n" not in told


# --- commands ------------------------------------------------------------------------------------


@pytest.fixture
def chat(tmp_path):
    """Return a function that writes a saved chat, and returns its path: evil as well."""

    def write(**more) -> Path:
        folder = tmp_path / EVIL
        folder.mkdir(exist_ok=True)
        messages = [{"role": "user", "content": EVIL}, {"role": "assistant", "content": EVIL}]
        data = {"format": "edgespec-chat", "version": 1, "model": EVIL, "system": EVIL}
        data |= {"sampling": {"stop": [EVIL]}, "messages": messages} | more
        path = folder / "chat.json"
        path.write_text(json.dumps(data), encoding="utf-8")
        return path

    return write


def test_a_saved_chat(edgespec_cli, chat):
    said = "/system\n/stats\nhello\n/stats\n/tools\n/reset\n"
    result = edgespec_cli("chat", "-m", "toy.gguf", "--load", str(chat()), input=said)
    assert result.exit_code == 0
    is_harmless(result.stderr)
    told = result.stderr.splitlines()
    assert f"saved with {HARMLESS}, this is toy.gguf" in told
    assert f"system prompt: {HARMLESS}" in told
    assert not [line for line in told if line.startswith("edgespec: error")]


@pytest.mark.parametrize(
    "wrong",
    [{"version": EVIL}, {"sampling": EVIL}, {"sampling": {EVIL: 1}}, {"messages": EVIL},
     {"messages": [{"role": EVIL, "content": ""}]}, {"format": EVIL}],
)  # fmt: skip
def test_a_chat_that_cannot_be_used(edgespec_cli, chat, wrong):
    result = edgespec_cli("chat", "-m", "toy.gguf", "--load", str(chat(**wrong)), input="")
    assert result.exit_code == 2
    is_harmless(result.stderr)
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "args",
    [("inspect", "{path}"), ("rm", "{path}"), ("run", "-m", "{path}", "x"), ("pull", "{path}"),
     ("bench", "-m", "{path}"), ("bench", "--questions", "{path}"), ("tune", "-m", "{path}"),
     ("bench", "replay", "--traces", "{path}"), ("corpus", "add", "{path}.absent"),
     ("serve", "-m", "{path}"), ("serve", "--api-key-file", "{path}"),
     ("serve", "--tls-cert", "{path}", "--tls-key", "{path}"), ("chat", "--load", "{path}"),
     ("serve", "--cors-origin", "{path}"), ("serve", "--alias", "{path}"), ("{path}",),
     ("run", "--{path}"), ("run", "--verifier", "ws://{path}", "x"), ("models", "{path}"),
     ("chat", "-m", "toy.gguf", "--tools", "{path}")],
)  # fmt: skip
def test_errors_about_files_and_arguments(edgespec_cli, tmp_path, args):
    path = tmp_path / EVIL
    path.write_text(EVIL, encoding="utf-8")
    result = edgespec_cli(*(arg.format(path=path) for arg in args), input="")
    told = result.stderr + (result.stdout if args[0] == "bench" else "")
    assert all(map(str.isprintable, told.split("\n")))
    n_errors = sum(line.startswith("edgespec: error") for line in told.split("\n"))
    assert n_errors == bool(result.exit_code)


def test_a_model(edgespec_cli, tmp_path):
    text = (gguf_files.STRING, EVIL.encode())
    path = gguf_files.write(tmp_path / "x.gguf", general__name=text)
    told = edgespec_cli("inspect", str(path)).stdout
    is_harmless(told)


def test_findings_and_questions(edgespec_cli, monkeypatch):
    finding = edgespec.Finding("note", EVIL, EVIL, EVIL)
    monkeypatch.setattr(edgespec, "diagnose", lambda *_, **__: [finding])
    told = edgespec_cli("doctor").stdout
    assert all(line.isprintable() for line in told.split("\n"))
    assert not [line for line in told.splitlines() if line.startswith("edgespec:")]


def test_what_a_server_says(edgespec_cli, monkeypatch):
    def connect(*_, **__):
        raise edgespec.VerifierRefused(f"far: {EVIL}")

    monkeypatch.setattr(edgespec, "connect", connect)
    result = edgespec_cli("run", "--verifier", "ws://far", "hello")
    assert result.exit_code == 1
    assert all(line.isprintable() for line in result.stderr.split("\n"))
    assert result.stderr.count("\n") == 1


def test_a_file_of_questions_is_told_by_category(edgespec_cli, tmp_path):
    file = tmp_path / "q.jsonl"
    file.write_text(json.dumps({"category": EVIL, "turns": ["x"]}), encoding="utf-8")
    result = edgespec_cli("bench", "--questions", str(file), "--category", "none")
    assert all(line.isprintable() for line in result.stderr.split("\n"))
