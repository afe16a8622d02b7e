"""`edgespec chat` with lines from a pipe: whole transcripts."""

from __future__ import annotations

import json

import pytest


def test_lines_are_turns_and_stdout_holds_the_answers_alone(edgespec_cli):
    result = edgespec_cli.chat("hello", "", "count", "count")
    assert result.exit_code == 0
    assert result.stdout == "Hi, what can I do?\n2\n3\n"
    assert result.stderr.count(" tokens · ") == 3
    assert "\x1b" not in result.output
    assert edgespec_cli.chat("hello", args=["-q"]).stderr == ""
    assert edgespec_cli.chat().exit_code == 0


def test_escapes_of_the_model_are_neutralised(edgespec_cli):
    out = edgespec_cli.chat("escape").stdout
    assert out == "red ␛[31m bell ␇ csi �2J end\n\ttab\n"


def test_commands(edgespec_cli):
    result = edgespec_cli.chat(
        "/stats", "/help", "again", "/stats", "/spec off", "again", "/spec on", "/spec",
        "/system Be kind.", "system?", "/system", "/system none", "/system", "/reset", "count",
        args=edgespec_cli.always,
    )  # fmt: skip
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-2:] == ["Be kind.", "1"]
    for said in (
        "no answer yet", "/save!", "this session: answers 1", "suffix: ", "drafted accepted",
        "speculation: off: by /spec off", "speculation off: disabled by request",
        "speculation: prompt lookup", "system prompt: Be kind.", "no system prompt",
        "the conversation is empty",
    ):  # fmt: skip
        assert said in result.stderr


def test_commands_of_other_programs_are_known(edgespec_cli):
    result = edgespec_cli.chat("/?", "/clear", "/bye", "hello")
    assert result.exit_code == 0
    assert "/reset" in result.output
    assert "hello" not in result.output


def test_exit_leaves_and_a_double_slash_is_text(edgespec_cli):
    result = edgespec_cli.chat("//etc", "/exit", "hello")
    assert (result.exit_code, result.stdout) == (0, "echo: /etc\n")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("/stat", "unknown command /stat; did you mean '/stats'?"),
        ("/xyzzy", "known: /help, /stats, /spec, /think, /system, /tools, /reset, /save, "),
        ("/spec maybe", "/spec takes on or off"),
        ("/save", "/save needs a file name"),
        ("/load", "/load needs a file name"),
        ("/load nothing.json", "error: nothing.json cannot be read: No such file or directory"),
        ("/save no/such/folder.json", "there is no folder"),
        ("/save! .", "is not a file"),
        ("/save! /dev/full", "/dev/full is not a file"),
        ("x" * 5000, "context of 4096"),
    ],
)
def test_a_line_that_fails_is_said_and_the_chat_goes_on(edgespec_cli, line, says):
    result = edgespec_cli.chat("hello", line, "count")
    assert says in result.stderr
    assert result.stdout == "Hi, what can I do?\n2\n"
    assert result.exit_code != 0


def test_dropped_turns_are_noticed(edgespec_cli):
    result = edgespec_cli.chat("a" * 90, "b" * 90, "c" * 90, args=["-c", "512"])
    assert "note: the context of 512 tokens is full" in result.stderr
    assert result.exit_code == 0


def test_save_and_load_carry_everything(edgespec_cli):
    args = ["--temp", "0.5", "--seed", "3", "--logit-bias", "300=1", "--stop", "zzz"]
    saved = edgespec_cli.chat("hello", "/system Hm.", "/save c.json", args=args[:4] + args[6:])
    assert "2 messages saved to c.json" in saved.stderr
    data = json.loads((edgespec_cli.folder / "c.json").read_text(encoding="utf-8"))
    assert data["system"] == "Hm."
    assert data["sampling"] == {"temperature": 0.5, "seed": 3, "stop": ["zzz"]}
    assert [m["role"] for m in data["messages"]] == ["user", "assistant"]
    loaded = edgespec_cli.chat("/load c.json", "count", "system?")
    assert loaded.stdout == "2\nHm.\n"
    assert "2 messages from c.json" in loaded.stderr
    assert "sampling as saved: {'temperature': 0.5" in loaded.stderr
    assert [p.name for p in edgespec_cli.folder.glob(".c.json*")] == []


def test_a_saved_chat_is_continued_from_the_start(edgespec_cli):
    edgespec_cli.chat("hello", "/system Hm.", "/save c.json")
    loaded = edgespec_cli.chat("count", "system?", args=["--load", "c.json"])
    assert loaded.stdout == "2\nHm.\n"
    assert "2 messages from c.json" in loaded.stderr
    (edgespec_cli.folder / "c.json").write_text("{")
    refused = edgespec_cli.chat("count", args=["--load", "c.json"])
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "c.json is no saved chat" in refused.stderr
    assert "'nope' does not exist" in edgespec_cli.chat("count", args=["--load", "nope"]).stderr


def test_saving_over_a_file_needs_the_exclamation_mark(edgespec_cli):
    (edgespec_cli.folder / "c.json").write_text("mine", encoding="utf-8")
    refused = edgespec_cli.chat("hello", "/save c.json")
    assert "exists already; /save! c.json overwrites it" in refused.stderr
    assert (edgespec_cli.folder / "c.json").read_text(encoding="utf-8") == "mine"
    assert edgespec_cli.chat("hello", "/save! c.json").exit_code == 0
    assert "edgespec-chat" in (edgespec_cli.folder / "c.json").read_text(encoding="utf-8")


def test_a_link_that_is_saved_over_stays_one(edgespec_cli):
    kept, link = edgespec_cli.folder / "kept.json", edgespec_cli.folder / "link.json"
    kept.write_text("old")
    link.symlink_to(kept)
    assert edgespec_cli.chat("hello", "/save! link.json").exit_code == 0
    assert link.is_symlink()
    assert json.loads(kept.read_text(encoding="utf-8"))["messages"]


@pytest.mark.parametrize(
    ("sampling", "says"),
    [
        ({"logit_bias": {"99999999": 1}}, "logit_bias names token 99999999"),
        ({"max_tokns": 1}, "did you mean 'max_tokens'"),
        ({"stop": 3}, "stop must be several str"),
        ({"max_tokens": 2.5}, "whole number"),
    ],
)
def test_settings_that_cannot_be_are_not_loaded(edgespec_cli, sampling, says):
    edgespec_cli.chat("hello", "/save c.json")
    path = edgespec_cli.folder / "c.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"sampling": sampling}))
    result = edgespec_cli.chat("/load c.json", "count")
    assert says in result.stderr
    assert result.stdout == "1\n"  # nothing was taken over


def test_one_stop_string_is_one(edgespec_cli):
    edgespec_cli.chat("hello", "/save c.json")
    path = edgespec_cli.folder / "c.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"sampling": {"stop": ", what"}}))
    assert edgespec_cli.chat("/load c.json", "hello").stdout == "Hi\n"


def test_a_bug_ends_nothing(edgespec_cli):
    result = edgespec_cli.chat("hello", "boom", "count")
    assert result.exit_code == 1
    assert "RuntimeError: boom. This is a bug in edgespec" in result.stderr
    assert result.stdout.endswith("\n2\n")
    assert "Traceback" not in result.stderr
    debug = edgespec_cli("--debug", "chat", "-m", str(edgespec_cli.model), input="boom\ncount\n")
    assert "Traceback" in debug.stderr
    assert debug.stdout.endswith("1\n")


def test_a_line_that_is_not_text_ends_nothing(edgespec_cli):
    lines = b"hello\n\xff\xfe\ncount\n"
    result = edgespec_cli("chat", "-m", str(edgespec_cli.model), input=lines)
    assert result.exit_code == 2
    assert "line 2 of stdin is not UTF-8" in result.stderr
    assert result.stdout.endswith("\n2\n")


def test_a_failed_save_leaves_the_old_file(edgespec_cli, monkeypatch):
    path = edgespec_cli.folder / "c.json"
    path.write_text("mine", encoding="utf-8")

    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    result = edgespec_cli.chat("hello", "/save! c.json", "count")
    assert "c.json cannot be written: No space left on device; /save FILE takes" in result.stderr
    assert path.read_text(encoding="utf-8") == "mine"
    assert [p.name for p in edgespec_cli.folder.glob(".c.json*")] == []
    assert result.stdout.endswith("2\n")


GOOD = {"format": "edgespec-chat", "version": 1, "model": "x", "sampling": {}, "system": None}
TURN = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "c.json is no saved chat: it is not JSON"),
        ("[" * 100_000, "c.json is no saved chat: it is not JSON"),
        ("[]", "not a saved chat"),
        ("{}", "not a saved chat"),
        (GOOD | {"version": 9}, "has version 9, this program reads 1"),
        (GOOD | {"messages": "x"}, 'a list "messages"'),
        (GOOD | {"messages": TURN, "system": 3}, '"system"'),
        (GOOD | {"messages": TURN[1:]}, "message 0"),
        (GOOD | {"messages": TURN[:1]}, "must end with an answer"),
        (GOOD | {"messages": TURN, "sampling": []}, '"sampling" must be an object'),
        (GOOD | {"messages": TURN, "sampling": {"temprature": 1}}, '"sampling" is not usable'),
        (GOOD | {"messages": TURN, "sampling": {"temperature": -1}}, "temperature must be"),
        (GOOD | {"messages": TURN, "sampling": {"logit_bias": 3}}, '"sampling" is not usable'),
    ],
)
def test_a_bad_file_is_refused_and_nothing_is_lost(edgespec_cli, content, says):
    text = content if isinstance(content, str) else json.dumps(content)
    (edgespec_cli.folder / "c.json").write_text(text, encoding="utf-8")
    result = edgespec_cli.chat("hello", "/load c.json", "count")
    assert says in result.stderr
    assert result.stdout == "Hi, what can I do?\n2\n"
    assert result.exit_code == 1 or result.exit_code == 2
