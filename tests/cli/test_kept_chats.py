"""Conversations that `edgespec chat` keeps: private files, bounds, and going on with them."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import subprocess

import pytest
from rich.console import Console

from edgespec import kept_files
from edgespec_cli import kept_chats


@pytest.fixture
def chats(edgespec_cli):
    """Return the folder of the conversations."""
    return edgespec_cli.folder / "state" / "edgespec" / "chats"


def keep(cli, *lines, args=()):
    result = cli.chat(*lines, args=["--save", "-q", *args])
    assert result.exit_code == 0, result.stderr
    return result


def names(chats):
    """Return the names of the conversations, the oldest first."""
    return [path.stem for path in sorted(chats.glob("*.json"), key=lambda p: p.stat().st_mtime_ns)]


def test_a_conversation_is_private_and_goes_on(edgespec_cli, chats):
    keep(edgespec_cli, "hello", "/system Hm.", "count", args=["--seed", "3"])
    (path,) = chats.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(chats.stat().st_mode) == 0o700
    os.chdir("/")  # from any folder
    result = edgespec_cli("chat", "--continue", "-q", input="count\nsystem?\n/set seed\n")
    assert result.stdout == "3\nHm.\n"
    assert "4 messages from" in result.stderr
    assert "seed               3" in result.stderr
    assert edgespec_cli.loaded["model"] == str(edgespec_cli.model)
    assert [p.name for p in chats.iterdir()] == [path.name]  # the same conversation
    assert len(json.loads(path.read_text())["messages"]) == 8


def test_what_was_said_before_the_program_was_killed_is_there(edgespec_cli, program):
    process = subprocess.Popen(
        [*program, "chat", "-m", "toy.gguf", "--save", "-q"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    process.stdin.write(b"hello\nslow\n")
    said = b""
    while b"tick" not in said:
        said += process.stdout.read(64)
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        pipe.close()
    listed = edgespec_cli("chat", "--list").stdout.splitlines()
    assert listed[1].split()[1:] == ["toy.gguf", "2", "hello"]
    went_on = edgespec_cli("chat", "--continue", input="count\n")
    assert "its last message was not answered; /retry sends it again: slow\n" in went_on.stderr
    assert went_on.stdout == "2\n"
    assert "sends it again" not in edgespec_cli("chat", "--continue", input="count\n").stderr


def test_what_was_shown_of_an_answer_is_kept_before_its_end(edgespec_cli, chats, monkeypatch):
    kept = []

    def copy(sink, event):
        kept.extend(path.read_bytes() for path in chats.iterdir())

    with monkeypatch.context() as patch:
        patch.setattr(kept_chats, "EVERY_S", 0)
        patch.setattr("edgespec_cli.answer.TextSink.token", copy)
        keep(edgespec_cli, "hello")
    (path,) = chats.iterdir()
    asked, said = json.loads(kept[0]), [m["content"] for m in json.loads(kept[5])["messages"]]
    assert (asked["unanswered"], asked["messages"]) == ("hello", [])
    assert said == ["hello", "Hi, w"]
    assert "is_answering" not in json.loads(path.read_bytes())
    path.write_bytes(kept[5])  # as if the program had been killed then
    row = edgespec_cli("chat", "--list").stdout.splitlines()[1]
    assert row.split()[1:] == ["toy.gguf", "2", "hello"]
    went_on = edgespec_cli("chat", "--continue", input="/continue\n/retry\n")
    assert "its last answer was not complete when the program ended; /continue" in went_on.stderr
    assert "there is no message without an answer" in went_on.stderr
    said = json.loads(path.read_bytes())["messages"]
    assert [each["content"] for each in said] == ["hello", "Hi, what can I do?"]


def test_a_first_message_is_kept_before_it_is_answered(edgespec_cli, monkeypatch):
    def kill(*given: object) -> None:
        raise SystemExit(137)

    monkeypatch.setattr("edgespec_cli.chat._answered", kill)
    assert edgespec_cli.chat("how are you", args=["--save"]).exit_code == 137
    row = edgespec_cli("chat", "--list").stdout.splitlines()[1]
    assert row.split()[1:] == ["toy.gguf", "0", "how", "are", "you"]


def test_what_is_typed_wins_over_what_was_saved(edgespec_cli):
    keep(edgespec_cli, "hello", args=["--temp", "0.5", "--seed", "3"])
    typed = ["--continue", "-m", "draft.gguf", "--seed", "4", "--system", "New."]
    result = edgespec_cli("chat", *typed, input="system?\n/set temp\n/set seed\n")
    assert result.stdout == "New.\n"
    assert "temp               0.5\n" in result.stderr
    assert "seed               4\n" in result.stderr
    assert edgespec_cli.loaded["model"] == "draft.gguf"


def test_chats_of_scripts_are_kept_only_on_request(edgespec_cli, chats):
    edgespec_cli.chat("hello")
    edgespec_cli.chat("hello", args=["--no-save"])
    keep(edgespec_cli)  # nothing was said
    assert not chats.exists()
    keep(edgespec_cli, "hello")
    edgespec_cli("chat", "--continue", "--no-save", input="count\n")
    (path,) = chats.iterdir()
    assert len(json.loads(path.read_text())["messages"]) == 2


def test_list_and_delete(edgespec_cli, chats):
    listed = edgespec_cli("chat", "--list")
    assert (listed.exit_code, listed.stdout) == (0, "")
    assert "no conversation is kept yet" in listed.stderr
    keep(edgespec_cli, "hello")
    keep(edgespec_cli, "say \x1b[31m " + "x" * 100)
    first, second = names(chats)
    lines = edgespec_cli("chat", "--list").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [second, first]
    assert lines[2].split()[1:] == ["toy.gguf", "2", "hello"]
    assert "\x1b" not in lines[1]
    assert lines[1].endswith("…")
    assert edgespec_cli("chat", "--continue", first, input="count\n").stdout == "2\n"
    wrong = edgespec_cli("chat", "--delete", first[:-1])
    assert (wrong.exit_code, f"did you mean {first!r}?" in wrong.stderr) == (2, True)
    assert edgespec_cli("chat", "--delete", first).stdout == "deleted 1 conversation\n"
    assert names(chats) == [second]
    keep(edgespec_cli, "hello")
    assert edgespec_cli("chat", "--delete", "all").stdout == "deleted 2 conversations\n"
    assert list(chats.iterdir()) == []


def test_going_on_with_none_is_an_error(edgespec_cli):
    for name, says in ((), "no conversation is kept yet"), (("x",), "no conversation is kept yet"):
        result = edgespec_cli("chat", "--continue", *name, input="hello\n")
        assert (result.exit_code, result.stdout) == (2, "")
        assert says in result.stderr
    keep(edgespec_cli, "hello")
    assert "is called 'x'" in edgespec_cli("chat", "--continue", "x").stderr
    both = edgespec_cli("chat", "--continue", "--load", "toy.gguf")
    assert "each name a conversation" in both.stderr


def test_a_model_that_has_gone_is_named(edgespec_cli):
    keep(edgespec_cli, "hello")
    edgespec_cli.model.unlink()
    result = edgespec_cli("chat", "--continue", input="count\n")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"the model of this conversation, {edgespec_cli.model}, is not here" in result.stderr
    assert "-m MODEL goes on with another one" in result.stderr
    other = edgespec_cli("chat", "--continue", "-m", "draft.gguf", input="count\n")
    assert other.stdout == "2\n"


def test_foreign_files_are_left_alone(edgespec_cli, chats):
    keep(edgespec_cli, "hello")
    (kept,) = names(chats)
    foreign = [chats / name for name in ("notes.json", "20260101-000000-abcd.txt")]
    for path in foreign:
        path.write_text("mine")
    os.mkfifo(chats / "20990101-000000-abcd.json")
    (chats / "20990102-000000-abcd.json").symlink_to(foreign[0])
    (chats / "20990103-000000-abcd.json").mkdir()
    before = sorted(chats.iterdir())
    assert len(edgespec_cli("chat", "--list").stdout.splitlines()) == 2
    assert edgespec_cli("chat", "--continue", input="count\n").stdout == "2\n"
    assert edgespec_cli("chat", "--delete", "all").stdout == "deleted 1 conversation\n"
    assert sorted(chats.iterdir()) == [path for path in before if path.stem != kept]
    assert foreign[0].read_text() == "mine"


@pytest.mark.parametrize("content", ["{", "", "[" * 100_000, '{"format": "edgespec-chat"}', "\x00"])
def test_a_damaged_file_is_set_aside_and_the_one_before_goes_on(edgespec_cli, chats, content):
    keep(edgespec_cli, "hello")
    damaged = chats / "20990101-000000-abcd.json"
    damaged.write_text(content)
    assert edgespec_cli("chat", "--continue", input="count\n").stdout == "2\n"
    assert damaged.with_name(damaged.name + ".damaged").read_text() == content
    edgespec_cli("chat", "--delete", "all")
    assert list(chats.iterdir()) == []


def test_the_oldest_go_first(edgespec_cli, chats, monkeypatch):
    monkeypatch.setattr(kept_chats, "MOST", 3)
    for _ in range(4):
        keep(edgespec_cli, "hello")
    kept = names(chats)
    assert len(kept) == 3
    keep(edgespec_cli, "hello")
    assert names(chats)[:2] == kept[1:]
    monkeypatch.setattr(kept_chats, "MOST_BYTES", 1)
    keep(edgespec_cli, "hello")
    assert len(names(chats)) == 1  # the one that is being said stays


def test_one_that_is_too_large_is_not_kept(edgespec_cli, chats, monkeypatch):
    monkeypatch.setattr(kept_chats, "_LARGEST", 400)
    result = edgespec_cli.chat("hello", "x" * 300, "count", args=["--save"])
    assert result.exit_code == 0
    assert result.stderr.count("this conversation is not kept") == 1
    (path,) = chats.iterdir()
    assert len(json.loads(path.read_text())["messages"]) == 2


def test_a_full_disk_ends_nothing(edgespec_cli, chats, monkeypatch):
    keep(edgespec_cli, "hello")

    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    result = edgespec_cli("chat", "--continue", input="count\ncount\n")
    assert (result.exit_code, result.stdout) == (0, "2\n3\n")
    assert result.stderr.count("cannot be written: the disk is full (No space left on device)") == 1
    (path,) = chats.iterdir()
    assert len(json.loads(path.read_text())["messages"]) == 2


def test_a_folder_that_cannot_be_made_ends_nothing(edgespec_cli):
    (edgespec_cli.folder / "state").write_text("a file where a folder should be")
    result = edgespec_cli.chat("hello", "count", args=["--save"])
    assert (result.exit_code, result.stdout) == (0, "Hi, what can I do?\n2\n")
    assert "this conversation is not kept" in result.stderr
    assert edgespec_cli("chat", "--list").exit_code == 0


class Talk:
    """What a keeper needs of a conversation."""

    def __init__(self):
        self.model, self.sampling, self.screen, self.chat = "toy.gguf", {}, self, self
        self.messages, self.remarks, self.unanswered = [], [], ""

    def to_dict(self):
        return {"system": None, "messages": self.messages}

    def remark(self, text):
        self.remarks.append(text)

    def say(self, text):
        self.messages.append({"role": "user", "content": text})
        self.messages.append({"role": "assistant", "content": "ok"})


def test_two_chats_that_go_on_with_the_same_conversation_are_both_kept(edgespec_cli, chats):
    one, other = Talk(), Talk()
    keeper = kept_chats.Keeper()
    one.say("first")
    keeper.keep(one)
    path, data = kept_chats.named("last")
    other.messages = list(data["messages"])
    follower = kept_chats.Keeper(path)
    other.say("second")
    follower.keep(other)
    one.say("third")
    keeper.keep(one)
    assert one.remarks == ["another chat goes on with this conversation: both are kept"]
    assert other.remarks == []
    said = [kept_chats.read(path)["messages"][-2]["content"] for path in kept_chats.stored()]
    assert said == ["third", "second"]


@pytest.mark.parametrize("has_written", [False, True])
def test_ctrl_c_while_it_is_kept_makes_no_second_conversation(
    edgespec_cli, chats, monkeypatch, has_written
):
    talk, keeper, replace = Talk(), kept_chats.Keeper(), kept_files.replace

    def interrupted(*given):
        if has_written:
            replace(*given)
        raise KeyboardInterrupt

    talk.say("first")
    for _ in range(2):
        with monkeypatch.context() as patched:
            patched.setattr(kept_files, "replace", interrupted)
            with pytest.raises(KeyboardInterrupt):
                keeper.keep(talk)
        keeper.keep(talk)
    assert (talk.remarks, len(kept_chats.stored())) == ([], 1)


def test_that_it_is_kept_again_is_said(edgespec_cli, chats, monkeypatch):
    def full(*given):
        raise OSError(errno.ENOSPC, "full")

    talk, keeper = Talk(), kept_chats.Keeper()
    talk.say("first")
    with monkeypatch.context() as patched:
        patched.setattr(kept_files, "replace", full)
        keeper.keep(talk)
        keeper.keep(talk)
    keeper.keep(talk)
    assert [remark.partition(":")[0] for remark in talk.remarks] == [
        "this conversation is not kept", "this conversation is kept again",
    ]  # fmt: skip


def test_a_conversation_that_was_deleted_stays_deleted(edgespec_cli, chats):
    talk, keeper = Talk(), kept_chats.Keeper()
    talk.say("first")
    keeper.keep(talk)
    assert kept_chats.delete("all") == 1
    keeper.keep(talk)
    assert kept_chats.stored() == []
    keeper.renew()  # /reset begins another one
    keeper.keep(talk)
    assert len(kept_chats.stored()) == 1


def test_reset_and_load_begin_another_conversation(edgespec_cli, chats):
    keep(edgespec_cli, "hello", "/save c.json", "/reset", "count", "/load c.json", "count")
    said = [json.loads(p.read_text())["messages"] for p in map(chats.joinpath, (
        f"{name}.json" for name in names(chats)
    ))]  # fmt: skip
    assert [len(messages) for messages in said] == [2, 2, 4]


def test_results_without_an_answer_are_kept_too(robot_cli):
    pytest.importorskip("llguidance")
    said = robot_cli.tools("/tools robot.py", "drive", args=["--save"])
    assert said.exit_code == 0
    (path,) = kept_chats.stored()
    messages = json.loads(path.read_text())["messages"]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"messages": messages[:3]}))
    assert messages[2]["role"] == "tool"
    assert "3 messages from" in robot_cli("chat", "--continue", input="hello\n").stderr


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_names_stay_whole_in_a_narrow_list(edgespec_cli, chats, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    edgespec_cli.model = edgespec_cli.model.rename("Qwen2.5-Coder-1.5B-Instruct-Q4_K_M.gguf")
    keep(edgespec_cli, "a long question of many words, so that the last column has to be broken")
    console = Console(force_terminal=True, color_system=None, file=io.StringIO())
    monkeypatch.setattr("edgespec_cli.render.console", lambda: console)
    edgespec_cli("chat", "--list")
    listed = console.file.getvalue()
    assert names(chats)[0] in listed
    assert ("Qwen2" in listed) == (edgespec_cli.model.name in listed) == (columns > 80)
    assert max(map(len, listed.splitlines())) <= columns
