"""Files that edgespec reads back: whatever lies there, a start goes on."""

import errno
import logging
import os
import subprocess
import sys

import msgspec
import pytest

from edgespec import kept_files


class Values(msgspec.Struct):
    count: int


def values(path):
    return kept_files.read_json(path, Values, most=100)


def load(path, **options):
    return kept_files.load(path, values, "nothing is lost", **options)


def folder(path):
    path.mkdir()


def dangling(path):
    path.symlink_to(path.with_name("nowhere"))


def endless(path):
    path.symlink_to("/dev/zero")


DAMAGED = {
    "empty": b"", "cut": b'{"count": 1', "another type": b'{"count": "1"}', "no object": b"[1]",
    "not UTF-8": b'{"count": "\xff"}', "deep": b"[" * 99, "large": b'{"count": 1}' + b" " * 100,
    "missing": b"{}",
}  # fmt: skip


@pytest.mark.parametrize("is_users", [False, True])
@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_damaged_files_are_removed_or_set_aside_and_told_once(tmp_path, caplog, content, is_users):
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING, "edgespec"):
        assert load(path, is_users=is_users) is None
        assert load(path, is_users=is_users) is None
    (record,) = caplog.records
    assert "file.json is damaged" in record.getMessage()
    assert record.getMessage().endswith("; nothing is lost")
    assert "\n" not in record.getMessage()
    left = [each.name for each in tmp_path.iterdir()]
    assert left == (["file.json.damaged"] if is_users else [])
    assert not is_users or (tmp_path / left[0]).read_bytes() == content


@pytest.mark.skipif(os.name != "posix", reason="pipes and links of POSIX")
@pytest.mark.parametrize("make", [os.mkfifo, folder, dangling, endless])
def test_what_is_no_file_of_ours_stays_and_nobody_waits_for_it(tmp_path, make):
    path = tmp_path / "file.json"
    make(path)
    for is_users in (False, True):
        assert load(path, is_users=is_users) is None
    assert os.path.lexists(path)
    if make in (os.mkfifo, endless):  # which can be opened, and give nothing or never end
        with pytest.raises(ValueError, match="it is no regular file"):
            kept_files.read(path, 100)
    with pytest.raises(OSError, match="is no regular file of this user"):
        kept_files.replace(path, [b"new"])
    assert [each.name for each in tmp_path.iterdir()] == ["file.json"]


@pytest.mark.skipif(os.name != "posix", reason="owners of POSIX")
def test_somebody_elses_file_stays(tmp_path, monkeypatch):
    path = tmp_path / "file.json"
    path.write_bytes(b"{}")
    monkeypatch.setattr(os, "getuid", lambda: path.stat().st_uid + 1)
    assert load(path) is None
    assert path.read_bytes() == b"{}"


def test_what_is_written_is_read_back_and_private(tmp_path):
    path = tmp_path / "a" / "b" / "file.json"
    kept_files.replace(path, [b'{"count"', memoryview(b": 5}")])
    assert load(path) == Values(5)
    assert [each.name for each in path.parent.iterdir()] == ["file.json"]
    if os.name == "posix":
        assert [each.stat().st_mode & 0o777 for each in (path, path.parent)] == [0o600, 0o700]


def test_a_write_that_fails_leaves_the_earlier_file_alone(tmp_path):
    path = tmp_path / "file.json"
    kept_files.replace(path, [b'{"count": 1}'])

    def parts():
        yield b'{"count"'
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        kept_files.replace(path, parts())
    assert load(path) == Values(1)
    assert [each.name for each in tmp_path.iterdir()] == ["file.json"]


KILLED = """
import os, signal, sys
from pathlib import Path
from edgespec import kept_files

def parts():
    yield b"half"
    os.kill(os.getpid(), signal.SIGKILL)

kept_files.replace(Path(sys.argv[1]), parts())
"""


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_what_killed_writers_left_is_swept_by_the_next_process(tmp_path):
    path = tmp_path / "file.json"
    subprocess.run([sys.executable, "-c", KILLED, path], check=False)
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(kept_files.NEW)
    own = tmp_path / f"{kept_files.NEW}{os.getpid()}.abc"  # of a process that still writes
    own.write_bytes(b"half")
    users = tmp_path / f"{kept_files.NEW}notes"  # not written by us
    users.write_bytes(b"mine")
    os.utime(users, (0, 0))
    kept_files.replace(path, [b"{}"])
    assert {each.name for each in tmp_path.iterdir()} == {path.name, own.name, users.name}


def test_a_folder_that_cannot_be_read_is_left_out(tmp_path, monkeypatch, caplog):
    def scandir(path):
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "b.gguf").touch()
    (tmp_path / "a.gguf").touch()
    assert kept_files.matching(tmp_path, "*.gguf", "a*") == [
        tmp_path / "a.gguf", tmp_path / "b.gguf",
    ]  # fmt: skip
    assert kept_files.matching(tmp_path / "none", "*") == []
    assert not caplog.records
    monkeypatch.setattr(kept_files.os, "scandir", scandir)
    assert kept_files.matching(tmp_path, "*.gguf") == []
    assert f"{tmp_path} cannot be read (Permission denied) and is left out" in caplog.text


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.ENOSPC, "the disk is full (why); free some space there, or set X to a folder on an"),
        (errno.EROFS, "the disk is read-only (why); mount it so that it can be written, or set X"),
        (errno.EACCES, "no permission (why); change who may use it, or set X to a folder that you"),
    ],
)
def test_each_obstacle_has_its_own_remedy(tmp_path, number: int, says: str) -> None:
    told = kept_files.unwritten(OSError(number, "why"), tmp_path, "X")
    assert told.startswith(f"{tmp_path} cannot be written: {says}")
    assert ("free some space" in told) == (number == errno.ENOSPC)


def test_a_folder_that_cannot_be_made_is_known_ahead(tmp_path):
    assert kept_files.refusal_ahead(tmp_path / "new" / "folder", "X") == ""
    assert not list(tmp_path.iterdir())
    dangling(tmp_path / "link")
    (tmp_path / "file").touch()
    for name in ("link", "link/below", "file", "file/below"):
        why = kept_files.refusal_ahead(tmp_path / name, "X")
        assert "a file is where a folder has to be" in why
