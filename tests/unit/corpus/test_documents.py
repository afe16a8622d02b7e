"""Which files are taken, and the texts in them."""

import json
import os

import pytest

from edgespec import ConfigError
from edgespec.corpus import documents
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
    with pytest.raises(ConfigError, match=r"empty; name a file|nobody who is known here"):
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
    assert found.left_out["empty or no text"] == 1


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
