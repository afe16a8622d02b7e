"""Which files are taken, and the texts in them."""

import codecs
import importlib
import json
import os
import socket
import tempfile
from pathlib import Path

import pytest

from edgespec import ConfigError, ToyTokenizer
from edgespec.corpus import collection, documents
from edgespec.corpus.documents import CHAT, find, texts_of
from edgespec_cli import conversation


def write(folder, **texts):
    for name, text in texts.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_folders_are_read_through(tmp_path):
    write(tmp_path, a="a", b__c="c", b__d__e="e")
    names = [str(path.relative_to(tmp_path)) for path in find([tmp_path]).files]
    assert sorted(names) == ["a", "b/c", "b/d/e"]


def test_what_others_wrote_is_left_out(tmp_path):
    write(
        tmp_path,
        a="a",
        node_modules__b="b",
        env__c="c",
        env__lib__d="d",
        x__node_modules__y__z="z",
    )
    write(tmp_path / "env", **{"pyvenv.cfg": ""})
    write(tmp_path / ".git", config="")
    write(tmp_path / "x", **{".hidden": ""})
    os.symlink(tmp_path / "a", tmp_path / "link")
    found = find([tmp_path])
    assert [path.name for path in found.files] == ["a"]
    assert {reason: n for reason, n in found.left_out.items() if n} == {
        "hidden": 2, "links": 1, "of installed packages": 3,
    }  # fmt: skip


def test_large_files_are_left_out_of_folders_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "MOST_FILE", 3)
    write(tmp_path, small="abc", large="abcd")
    assert [path.name for path in find([tmp_path]).files] == ["small"]
    assert [path.name for path in find([tmp_path / "large"]).files] == ["large"]


def test_what_is_named_is_taken_once(tmp_path):
    write(tmp_path, a="a")
    write(tmp_path, **{".hidden": "b"})
    found = find([tmp_path / ".hidden", tmp_path / "a", str(tmp_path)])
    assert sorted(path.name for path in found.files) == [".hidden", "a"]


def test_a_path_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="'nothing' is neither a file nor a folder"):
        find(["nothing"])


@pytest.mark.parametrize("path", ["", "~nobody_of_this_name/notes"])
def test_what_names_nothing(path):
    with pytest.raises(ConfigError, match=r"empty; name a file|user who is unknown here"):
        find([path])


def non_utf8(folder, name):
    """Return a path whose name is not UTF-8; skip where the disk has no such names."""
    path = folder / os.fsdecode(name)
    try:
        path.mkdir()
    except OSError:
        pytest.skip("names on this disk are UTF-8")
    return path


def test_names_that_are_not_utf8(tmp_path):
    """They cannot be listed in JSON."""
    write(tmp_path, a="a")
    folder = non_utf8(tmp_path, b"folder \xe9")
    write(folder, b="b", c="c")
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("d")
    found = find([tmp_path])
    assert [path.name for path in found.files] == ["a"]
    assert found.left_out["with a name that is not UTF-8"] == 2
    for path in (folder, folder / "b", tmp_path / os.fsdecode(b"caf\xe9.txt")):
        with pytest.raises(ConfigError, match="not UTF-8; rename it"):
            find([path])


def test_binary_files_in_folders_do_not_count(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "MOST_TEXT", 10)
    write(tmp_path, text="abc")
    (tmp_path / "picture").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    found = find([tmp_path])
    assert [path.name for path in found.files] == ["text"]
    assert found.left_out["empty or not UTF-8 text"] == 1


def test_more_text_than_is_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "MOST_TEXT", 3)
    write(tmp_path, a="ab", b="cd")
    with pytest.raises(ConfigError, match=r"of text in 2 files.*name fewer"):
        find([tmp_path])


@pytest.mark.parametrize(
    ("data", "texts"),
    [
        (b"text", ["text"]),
        ("\ufeffGröße".encode(), ["Größe"]),
        ("Größe".encode("latin-1"), []),
        (b"nul\0l", []),
        (b'{"format": "edgespec-chat"', ['{"format": "edgespec-chat"']),
        (b'{"format": "edgespec-chat", "messages": 3}',) * 2,
    ],
)
def test_texts(data, texts):
    texts = texts if isinstance(texts, list) else [data.decode()]
    assert texts_of(data) == texts


def test_a_saved_chat_is_its_messages():
    assert conversation.FORMAT == CHAT
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    saved = {"format": CHAT, "version": 1, "model": "m", "messages": messages}
    assert texts_of(json.dumps(saved, indent=2).encode()) == ["Hi", "Hello"]


@pytest.fixture
def without_privileges():
    """Give a folder of the user nobody, who this thread is meanwhile."""
    if os.name != "posix":
        pytest.skip("no modes of files here")
    importlib.import_module("mmap")  # Python's own files may be closed to that user
    codecs.lookup("utf-8-sig")
    with tempfile.TemporaryDirectory() as name:
        root = not os.geteuid()
        if root:
            os.chown(name, 65534, 65534)
            os.seteuid(65534)
        try:
            yield Path(name)
        finally:
            os.seteuid(0 if root else os.geteuid())
            for path in Path(name).iterdir():
                path.chmod(0o700)


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGESPEC_CORPUS", str(tmp_path / "kept"))


VOCABULARY = ToyTokenizer([bytes([i]) for i in range(256)] + ["<end>"], eog=[256])


def test_what_cannot_be_read_is_left_out_and_told(without_privileges, monkeypatch):
    folder = without_privileges / "texts"
    write(folder, a="abc", closed__b="b", shut="c", listed__d="d")
    for name, mode in (("closed", 0), ("shut", 0), ("listed", 0o400)):
        (folder / name).chmod(mode)
    monkeypatch.setenv("EDGESPEC_CORPUS", str(without_privileges / "kept"))
    made = collection.add(VOCABULARY, [folder])
    for name in ("closed", "shut", "listed"):
        (folder / name).chmod(0o700)
    assert [Path(each.path).name for each in made.collection.documents] == ["a"]
    left = {str(path.relative_to(folder)) for path in made.unreadable}
    assert left == {"closed", "shut", "listed/d"}
    (folder / "closed").chmod(0)
    with pytest.raises(ConfigError, match=r"there is no UTF-8 text in .*: .* cannot be read"):
        collection.make(VOCABULARY, "x", [folder / "closed"])
    with pytest.raises(ConfigError, match="cannot be reached: Permission denied"):
        find([folder / "closed" / "b"])
    (folder / "closed").chmod(0o700)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in folders here")
def test_what_is_no_file_is_left_out(tmp_path):
    write(tmp_path, a="a", inner__b="b")
    os.mkfifo(tmp_path / "pipe")
    os.symlink("nothing", tmp_path / "dangling")
    os.symlink("loop", tmp_path / "loop")
    os.symlink(tmp_path, tmp_path / "inner" / "up")
    os.symlink("/dev/zero", tmp_path / "device")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(tmp_path / "socket"))
    found = find([tmp_path])
    assert [path.name for path in found.files] == ["a", "b"]
    assert +found.left_out == {"links": 4, "pipes, sockets and devices": 2}
    for name in ("pipe", "dangling", "loop", "device", "socket"):
        with pytest.raises(ConfigError, match=r"neither a file nor a folder|cannot be reached"):
            find([tmp_path / name])


@pytest.mark.parametrize("change", ["gone", "grown", "pipe", "folder"])
def test_files_that_change_while_they_are_read(tmp_path, monkeypatch, kept, change):
    texts = tmp_path / "texts"
    write(texts, a="abc", b="def")
    monkeypatch.setattr(documents, "MOST_FILE", 10)

    def changed(paths):
        found = find(paths)
        (texts / "b").unlink()
        if change == "grown":
            (texts / "b").write_text("x" * 11)
        elif change == "pipe":
            os.mkfifo(texts / "b")
        elif change == "folder":
            (texts / "b").mkdir()
        return found

    monkeypatch.setattr(collection, "find", changed)
    made = collection.add(VOCABULARY, [texts])
    assert made.unreadable == [texts / "b"]
    assert made.collection.n_tokens == 4  # "abc" and what separates it


def test_a_root_that_became_a_pipe_leaves_the_corpus(tmp_path, kept):
    write(tmp_path, a="abc", b="def")
    collection.add(VOCABULARY, [tmp_path / "a"])
    (tmp_path / "a").unlink()
    os.mkfifo(tmp_path / "a")
    made = collection.add(VOCABULARY, [tmp_path / "b"])
    assert made.collection.roots == (str(tmp_path / "b"),)
