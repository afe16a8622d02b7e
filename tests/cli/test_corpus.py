"""`edgespec corpus`, and documents and earlier answers in other commands."""

import json
import os

import pytest

from edgespec import ToyTokenizer, backends
from edgespec.corpus.folder import folder


class Backend:
    """Stands for the engine of a file: a vocabulary of bytes."""

    @staticmethod
    def vocabulary(path):
        import contextlib

        vocab = [bytes([i]) for i in range(256)] + ["<end>"]
        return contextlib.nullcontext(ToyTokenizer(vocab, eog=[256]))


@pytest.fixture
def toy(edgespec_cli, monkeypatch):
    """Return the command line; its models have the vocabulary of the scripted one."""
    monkeypatch.setattr(backends, "of", lambda path: Backend)
    texts = edgespec_cli.folder / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text("echo: the moon is made of green cheese")
    (texts / "image").write_bytes(b"\0")
    return edgespec_cli


def add(toy, *paths):
    return toy("corpus", "add", *paths, "-m", str(toy.model))


def test_documents_are_added_listed_and_cleared(toy):
    result = add(toy, "texts")
    assert result.exit_code == 0
    assert result.stdout.startswith("1 file, 39 tokens, 312 bytes on disk, for toy.gguf")
    assert result.stderr == "left out: 1 empty or not UTF-8 text\n"
    assert "added" in toy("corpus", "list").stdout
    (entry,) = json.loads(toy("corpus", "list", "--json").stdout)
    assert entry["roots"] == [str(toy.folder / "texts")]
    assert toy("corpus", "clear").exit_code == 2  # there is no terminal to ask at
    assert toy("corpus", "clear", "--yes").stdout.startswith("deleted, ")
    assert json.loads(toy("corpus", "list", "--json").stdout) == []
    assert (toy.folder / "texts" / "a.txt").exists()


@pytest.mark.parametrize("path", ["nothing", "texts/image"])
def test_what_cannot_be_added(toy, path):
    result = add(toy, path)
    assert result.exit_code == 2
    assert path.rpartition("/")[2] in result.stderr


def test_a_folder_without_text_is_told_whatever_was_added_before(toy):
    (toy.folder / "empty").mkdir()
    assert add(toy, "texts").exit_code == 0
    before = json.loads(toy("corpus", "list", "--json").stdout)
    refused = add(toy, "empty")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "there is no UTF-8 text in empty; what was added before stays" in refused.stderr
    assert json.loads(toy("corpus", "list", "--json").stdout) == before
    (toy.folder / "more.txt").write_text("another text")
    both = add(toy, "empty", "more.txt")
    assert both.exit_code == 0
    assert f"no text was found in {toy.folder / 'empty'}\n" in both.stderr
    assert "more.txt" not in both.stderr


def test_what_names_nothing_is_told_before_a_model_is_fetched(toy, monkeypatch):
    """An unset variable does not name the current folder."""
    monkeypatch.setattr("edgespec_cli.corpus.fetched", None)
    for path in ("", "nothing", "~nobody_of_this_name/notes"):
        result = toy("corpus", "add", "texts", path)
        assert result.exit_code == 2
        assert (path or "is empty") in result.stderr
    assert toy.run("hello", "--draft-corpus", "").exit_code == 2
    assert toy.run("hello", env={"EDGESPEC_DRAFT_CORPUS": f"texts{os.pathsep}"}).exit_code == 2


def test_a_name_that_is_not_utf8_is_left_out(toy):
    try:
        (toy.folder / "texts" / os.fsdecode(b"caf\xe9.txt")).write_text("text")
    except OSError:
        pytest.skip("names on this disk are UTF-8")
    result = add(toy, "texts")
    assert result.exit_code == 0
    assert "1 with a name that is not UTF-8" in result.stderr


def accepted(toy, *args, **more):
    """Return how many drafted tokens of an answer came from memory."""
    more_args = ("--spec-draft-n-max", "4", "--spec-draft-p-min", "0", "--json", *args)
    result = toy.run("the moon is made of green cheese", *more_args, **more)
    assert result.exit_code == 0, result.stderr
    done = json.loads(result.stdout.splitlines()[-1])
    assert done["text"] == "echo: the moon is made of green cheese"
    return done["stats"]["drafts_by_source"].get("memory", {}).get("accepted", 0)


def test_answers_are_drafted_from_what_was_added(toy):
    assert accepted(toy) == 0
    add(toy, "texts")
    assert accepted(toy) > 2
    assert accepted(toy, "--draft-corpus", "none") == 0


def test_answers_are_drafted_from_what_is_named(toy):
    assert accepted(toy, "--draft-corpus", "texts") > 2
    assert accepted(toy) == 0
    assert accepted(toy, env={"EDGESPEC_DRAFT_CORPUS": "texts"}) > 2


def test_answers_are_kept_on_disk_if_that_is_asked_for(toy):
    assert accepted(toy) == 0
    assert not folder().exists()
    assert accepted(toy, "--draft-memory", "disk") == 0
    assert accepted(toy, "--draft-memory", "disk") > 2
    assert accepted(toy) == 0
    (entry,) = json.loads(toy("corpus", "list", "--json").stdout)
    assert entry["kind"] == "answers"


def test_named_documents_need_memory(toy):
    result = toy.run("Hi", "--spec-type", "suffix", "--draft-corpus", "texts")
    assert result.exit_code == 2
    assert "draft_corpus" in result.stderr


def test_serve_and_bench_remember_nothing_unless_asked_to(toy, monkeypatch):
    for command in (["serve", "--port", "0"], ["bench", "--questions", "none.jsonl"]):
        monkeypatch.setattr("edgespec_cli.serve.opened", stop)
        monkeypatch.setattr("edgespec_cli.bench.opened", stop)
        monkeypatch.setattr("edgespec_cli.bench.chosen_questions", lambda params: [])
        seen.clear()
        toy(*command, "-m", str(toy.model))
        assert seen["draft_memory"] == "off"
        assert seen["draft_corpus"] == ("none",)


seen = {}


def stop(params, **more):
    seen.update(params)
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--draft-memory", "disk"], "keeps the answers of one user"),
        (["--draft-corpus", "texts"], "there are 2 API keys"),
    ],
)
def test_what_serve_does_not_share_between_keys(toy, args, says):
    keys = toy.folder / "keys"
    keys.write_text("first-key-0123456789\nsecond-key-0123456789\n")
    keys.chmod(0o600)
    result = toy("serve", "-m", str(toy.model), "--api-key-file", str(keys), *args)
    assert result.exit_code == 2
    assert says in result.stderr
