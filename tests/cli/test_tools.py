"""`edgespec chat` with functions of a file, and with a model that reasons."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("llguidance")


def test_own_public_functions_are_offered_listed_and_taken_away(robot_cli):
    result = robot_cli.tools("/tools robot.py", "/tools off", "/tools")
    assert result.exit_code == 0
    said = result.stderr.splitlines()
    names = [line.partition("(")[0] for line in said if "(" in line]
    assert names == ["drive", "breaks", "forever", "leaves", "much", "odd", "more"]
    assert "drive(centimetres): Drive forward." in said
    assert said.count("no tools") == 2


def test_without_a_terminal_no_call_is_run(robot_cli):
    result = robot_cli.tools("/tools robot.py", "drive", "hello", args=["-q"])
    assert result.exit_code == 0
    assert "call: drive(centimetres=5)" in result.stderr
    assert "brrm" not in result.output
    assert "result: drive was not run: it was not allowed" in result.stdout
    assert result.stdout.endswith("Hi, what can I do?\n")


def test_a_call_that_is_cut_is_none_and_the_chat_goes_on(robot_cli):
    result = robot_cli.tools("/tools robot.py", "drive", "/save c.json", args=["-n", "58"])
    assert result.stdout == "I drive.\n"
    assert "call:" not in result.stderr
    assert "stopped at the token limit" in result.stderr
    assert "a call of a tool was begun and cut" in result.stderr
    assert robot_cli.tools("/load c.json", "count").stdout == "2\n"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def f(x): pass", "x of f has no type hint"),
        ("def f(*x: int): pass", "name every argument"),
        ("async def f(x: int): pass", "f is async"),
        ("def _f(x: int): pass", "no function whose name begins without _"),
        ("from os import getcwd", "no function whose name begins without _"),
        ("def f(:", "robot.py fails: SyntaxError"),
        ("1 / 0", "robot.py fails: ZeroDivisionError: division by zero"),
        ("raise SystemExit(0)", "robot.py fails: SystemExit: 0"),
        ("\\0", "robot.py fails: "),
    ],
)
def test_a_file_that_cannot_be_offered_changes_nothing(robot_cli, source, says):
    (robot_cli.folder / "bad").mkdir()
    (robot_cli.folder / "bad" / "robot.py").write_text(source, encoding="utf-8")
    result = robot_cli.tools("/tools robot.py", "/tools bad/robot.py", "/tools", "hello")
    assert says in result.stderr
    assert result.stderr.count("drive(centimetres)") == 2
    assert result.stdout == "Hi, what can I do?\n"
    missing = robot_cli.tools("/tools nothing.py", "hello")
    assert "nothing.py cannot be read: No such file or directory" in missing.stderr


def test_a_file_may_import_what_lies_beside_it(robot_cli):
    (robot_cli.folder / "lib").mkdir()
    (robot_cli.folder / "lib" / "beside.py").write_text("WAY: type = int")
    (robot_cli.folder / "lib" / "own.py").write_text(
        "from beside import WAY\n\ndef go(way: WAY) -> str: return 'went'\n"
    )
    assert "go(way)" in robot_cli.tools("/tools lib/own.py").stderr
    assert not (robot_cli.folder / "lib" / "own.pyc").exists()


def test_types_of_a_file_stay_its_own(robot_cli):
    source = """
from __future__ import annotations
from dataclasses import dataclass


@dataclass
class Way:
    kind: Kind


Kind = {kind}


def go(way: Way) -> str:
    return "went"
"""
    for name, kind in (("one.py", "int"), ("two.py", "str"), ("three.py", "1 / 0")):
        (robot_cli.folder / name).write_text(source.format(kind=kind), encoding="utf-8")
    result = robot_cli.tools("/tools one.py", "/tools two.py", "/tools three.py", "/tools")
    assert result.stderr.count("go(way)") == 3
    assert "three.py fails: ZeroDivisionError" in result.stderr


def test_a_model_that_knows_no_tools_is_refused(robot_cli):
    result = robot_cli.chat("/tools robot.py", "hello")
    assert "this model cannot call tools" in result.stderr
    assert result.stdout == "Hi, what can I do?\n"


def test_conversations_with_calls_are_saved_and_loaded(robot_cli):
    assert robot_cli.tools("/tools robot.py", "drive", "/save c.json").exit_code == 0
    loaded = robot_cli.tools("/load c.json", "count")
    assert loaded.stdout == "2\n"
    assert "4 messages from c.json" in loaded.stderr


def test_reasoning_is_no_part_of_what_is_piped_on(edgespec_cli):
    assert edgespec_cli.tools("think", args=["-q"]).stdout == "three\n"
    off = edgespec_cli.tools("think", args=["-q", "--reasoning-budget", "0", "-n", "30"])
    assert "<think>" not in off.stdout  # the script does not know another way to say it
    assert "one, two" in off.stdout
    wrong = edgespec_cli.tools("think", args=["--reasoning-budget", "-2"])
    assert wrong.exit_code == 2
    assert "0 for no reasoning or -1 for no limit" in wrong.stderr


def test_run_shows_reasoning_as_json_and_bounds_it(edgespec_cli):
    model = str(edgespec_cli.folder / "tools.gguf")
    result = edgespec_cli("run", "-m", model, "think", "--json")
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert "".join(event.get("reasoning", "") for event in events[:-1]) == "one, two"
    assert (events[-1]["text"], events[-1]["reasoning"]) == ("three", "one, two")
    plain = edgespec_cli.run("hello", "--json").stdout
    assert "reasoning" not in plain
    assert edgespec_cli("run", "-m", model, "-q", "think").stdout == "three\n"
    short = edgespec_cli(
        "run", "-m", model, "-q", "think", "--json", "--reasoning-budget", "4", "-n", "40"
    )
    assert len(json.loads(short.stdout.splitlines()[-1])["reasoning"]) <= 4
    raw = edgespec_cli("run", "-m", model, "--raw", "think", "--reasoning-budget", "4")
    assert raw.exit_code == 2
    assert "needs the chat template" in raw.stderr
