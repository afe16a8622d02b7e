"""`edgespec chat` with lines from a pipe: whole transcripts."""

from __future__ import annotations

import json

import pytest

import edgespec
from edgespec.sampling.defaults import SETTINGS
from edgespec.setting import settings_of
from edgespec_cli import chat
from edgespec_cli.main import cli
from edgespec_cli.options import SAMPLING


def test_lines_are_turns_and_stdout_holds_the_answers_alone(edgespec_cli):
    result = edgespec_cli.chat("hello", "", "count", "count")
    assert result.exit_code == 0
    assert result.stdout == "Hi, what can I do?\n2\n3\n"
    assert result.stderr.count(" tokens · ") == 3
    assert "\x1b" not in result.output
    assert edgespec_cli.chat("hello", args=["-q"]).stderr == ""
    assert edgespec_cli.chat().exit_code == 0


def test_why_nothing_is_drafted_is_said_once_a_conversation(edgespec_cli):
    off = ["--spec-type", "none"]
    said = edgespec_cli.chat("hello", "count", "/reset", "hello", "/stats", args=off).stderr
    assert [line.count("speculation off: not asked for") for line in said.splitlines()[:5]] == [
        1, 0, 0, 0, 1,
    ]  # fmt: skip
    assert said.splitlines()[1] == "sampling: greedy"
    assert "nothing drafted, speculation off: not asked for" in said
    assert said.count("first token after") == 3


def test_escapes_of_the_model_are_neutralised(edgespec_cli):
    out = edgespec_cli.chat("escape").stdout
    assert out == "red ␛[31m bell ␇ csi �2J end\n\ttab\n"


def test_an_answer_that_repeats_itself_ends_unless_its_length_was_named(edgespec_cli):
    (edgespec_cli.folder / "long.json").write_text(
        '{"format": "edgespec-chat", "version": 1, "system": null, "messages": [], '
        '"sampling": {"max_tokens": 700}}'
    )
    result = edgespec_cli.chat("for ever", "/stats", "/save c.json", "/load long.json", "for ever")
    assert result.exit_code == 0
    assert [len(line) for line in result.stdout.splitlines()] == [512, 700]
    assert result.stderr.count("the answer repeated the same words without end") == 1
    assert "512 tokens at its end repeat the same words" in result.stderr
    assert json.loads((edgespec_cli.folder / "c.json").read_text())["sampling"] == {}
    assert len(edgespec_cli.chat("for ever", args=["-n", "600"]).stdout) == 601


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
        "speculation: memory, token recycling, runner-ups, prompt lookup",
        "system prompt: Be kind.", "no system prompt", "the conversation is empty",
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
        ("/xyzzy", "known: /help, /stats, /continue, /retry, /set, /model, /spec, /think, "),
        ("/spec maybe", "/spec takes on or off"),
        ("/set temp warm", "/set temp takes a number, got 'warm'; type for example /set temp 0.7"),
        ("/set time-limit -1", "/set time-limit: -1.0 is not in the range x>=0"),
        ("/set temp -1", "temperature must be"),
        ("/set tempp 1", "there is no setting 'tempp'; did you mean 'temp'?"),
        ("/set xyzzy 1", "known: temp, top-k, top-p"),
        ("/set logit-bias x", "/set logit-bias: 'x' is not ID=VALUE"),
        ("/continue", "the last answer was not cut"),
        ("/model nothing.gguf", "nothing.gguf"),
        ("/model broken.gguf", "the weights need 9 GB"),
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


def test_every_sampling_setting_can_be_set(edgespec_cli):
    options = {opt for p in cli.commands["chat"].params for opt in p.opts if p.name in SAMPLING}
    listed = edgespec_cli.chat("/set", args=["-q"]).stderr.splitlines()
    assert {f"--{line.split()[0]}" for line in listed} <= options
    assert len(listed) == len(SAMPLING)
    assert listed[0] == "temp               0, the default"
    values = {
        "temp": "0.5", "top-k": "3", "top-p": "0.9", "min-p": "0.1", "repeat-penalty": "1.1",
        "presence-penalty": "0.1", "frequency-penalty": "0.1", "seed": "7", "n-predict": "5",
        "time-limit": "9", "logit-bias": "104=-inf 5=1", "stop": "xyz", "ignore-eos": "on",
        "additional-properties": "on",
    }  # fmt: skip
    others = {name: settings_of(edgespec.SamplingParams)[name].range[1] for name in SETTINGS}
    others = {name: most for name, most in others.items() if SAMPLING[name] not in values}
    values |= {SAMPLING[name]: str(most) for name, most in others.items()}
    assert values.keys() == {line.split()[0] for line in listed}
    sets = [f"/set {name} {value}" for name, value in values.items()]
    undone = [f"/set {name} default" for name in values]
    result = edgespec_cli.chat("hello", *sets, "/save c.json", *undone, "/save d.json")
    saved = json.loads((edgespec_cli.folder / "c.json").read_text())["sampling"]
    assert saved == {
        "temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.1,
        "presence_penalty": 0.1, "frequency_penalty": 0.1, "seed": 7, "max_tokens": 5,
        "time_limit_s": 9.0, "logit_bias": {"104": -float("inf"), "5": 1.0}, "stop": ["xyz"],
        "ignore_eos": True, "additional_properties": True,
    } | others  # fmt: skip
    assert json.loads((edgespec_cli.folder / "d.json").read_text())["sampling"] == {}
    assert result.exit_code == 0


def test_set_knows_the_names_of_others_and_changes_the_next_answer(edgespec_cli):
    lines = ("/set temperature 0.7", "/set parameter num_predict 2", "hello", "/set n -1", "hello")
    result = edgespec_cli.chat(*lines)
    assert result.stdout == "Hi\nHi, what can I do?\n"
    assert "temp               0.7" in result.stderr
    assert "stopped at the token limit · /continue goes on" in result.stderr


def test_another_model_goes_on_with_the_conversation(edgespec_cli):
    result = edgespec_cli.chat(
        "hello", "/set logit-bias 5=1", "/system Hm.", "/model draft.gguf", "count", "system?",
        "/model broken.gguf", "count", "/model",
    )  # fmt: skip
    assert result.stdout == "Hi, what can I do?\n2\nHm.\n4\n"
    assert edgespec_cli.loaded["model"] == "draft.gguf"  # again, where the other one failed
    assert "logit-bias is off" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("draft.gguf · context 4096")
    assert result.exit_code == 1


def test_another_model_has_the_tools(robot_cli):
    pytest.importorskip("llguidance")
    lines = ("/tools robot.py", "/model draft.gguf", "hello", "/model tools.gguf", "drive")
    result = robot_cli.tools(*lines)
    assert "tools are off: this model cannot call tools" in result.stderr
    assert "call: drive(centimetres=5)" in result.stderr
    assert "result: drive was not run: it was not allowed" in result.stderr


def test_a_cut_answer_goes_on(edgespec_cli):
    result = edgespec_cli.chat(
        "/continue", "hello", "/set n default", "/continue", "count", args=["-n", "4"]
    )
    assert result.stdout == "Hi, \nwhat can I do?\n2\n"
    assert "there is no cut answer to go on with" in result.stderr


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
    assert "sampling as saved: temp 0.5" in loaded.stderr
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
    assert "c.json cannot be written: the disk is full (No space left on device)" in result.stderr
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


def test_a_message_whose_answer_had_not_begun_is_sent_again_on_request(edgespec_cli, monkeypatch):
    def ended(engine, events, sink):
        events.close()
        return edgespec.Completion("", (), "cancelled", None, edgespec.Stats(), None), False

    plays = iter([ended, chat.play])
    monkeypatch.setattr(chat, "play", lambda *given: next(plays)(*given))
    said = edgespec_cli.chat("/retry", "hello", "/retry", "/retry")
    assert said.stdout == "Hi, what can I do?\n"
    assert said.stderr.count("there is no message without an answer") == 2
    assert "the answer had not begun: your message is not part of the chat\n" in said.stderr
