"""Documents on disk: tokenised once, and what becomes of damaged and foreign files."""

import logging
import os

import numpy as np
import pytest

from edgespec import ConfigError, ToyTokenizer
from edgespec.corpus import collection, stored
from edgespec.corpus.answers import JOURNAL, Answers
from edgespec.corpus.folder import vocabulary_folder

BYTES = [bytes([i]) for i in range(256)]


class Counting(ToyTokenizer):
    """A tokenizer of bytes that knows which texts it was given."""

    def __init__(self, vocab=BYTES):
        super().__init__(vocab)
        self.seen = []

    def encode_pieces(self, text, **options):
        self.seen.append(text)
        return super().encode_pieces(text, **options)


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """Return a folder with two texts; what is kept goes into a folder of its own."""
    monkeypatch.setenv("EDGESPEC_CORPUS", str(tmp_path / "kept"))
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a").write_text("the first text")
    (folder / "b").write_text("the second one")
    return folder


def continued(array, text):
    """Return the letters that follow a text."""
    found = array.continuations(array.find(list(text.encode())), 9) if array else []
    return "".join(sorted(chr(token) for token, _, _ in found))


def test_a_collection_is_there_for_every_process(texts):
    made = collection.add(Counting(), [texts], model="toy")
    assert made.n_tokenised == 2
    array = collection.added(Counting())
    assert continued(array, "the ") == "fs"
    assert continued(array, "the f") == "i"
    assert continued(array, "text") == ""  # nothing goes from one text to the next
    assert os.stat(vocabulary_folder(Counting()).parent).st_mode & 0o777 == 0o700


def test_nothing_was_added(texts):
    assert collection.added(Counting()) is None


def test_each_text_is_tokenised_once(texts):
    collection.add(Counting(), [texts])
    (texts / "a").write_text("the first text, changed")
    (texts / "copy").write_text("the second one")
    tokenizer = Counting()
    made = collection.add(tokenizer, [texts])
    assert tokenizer.seen == ["the first text, changed"]
    assert made.n_tokenised == 1
    assert continued(collection.added(tokenizer), "text") == ","
    named = Counting()
    assert continued(collection.named(named, [str(texts / "b")]), "the ") == "s"
    assert named.seen == []


def test_what_is_added_is_added_to_the_rest(texts, tmp_path):
    more = tmp_path / "more"
    more.write_text("the third")
    collection.add(Counting(), [texts / "a"])
    collection.add(Counting(), [texts / "b", more])
    assert continued(collection.added(Counting()), "the ") == "fst"
    (texts / "a").unlink()
    collection.add(Counting(), [more])
    assert continued(collection.added(Counting()), "the ") == "st"


def test_named_documents_are_as_they_are_now(texts):
    tokenizer = Counting()
    for _ in range(2):
        assert continued(collection.named(tokenizer, [str(texts)]), "the ") == "fs"
    assert len(tokenizer.seen) == 2
    (texts / "c").write_text("the third")
    assert continued(collection.named(tokenizer, [str(texts)]), "the ") == "fst"
    assert tokenizer.seen[2:] == ["the third"]


def test_few_named_ones_are_kept(texts):
    collection.add(Counting(), [texts])
    for i in range(12):
        path = texts / f"document {i}"
        path.write_text(f"text {i}")
        collection.named(Counting(), [str(path)])
    kinds = [entry.kind for entry in stored.stored()]
    assert kinds == ["added"] + ["named"] * 8
    assert len(list(vocabulary_folder(Counting()).iterdir())) == 18


def test_another_vocabulary_has_its_own(texts):
    collection.add(Counting(), [texts])
    assert collection.added(Counting([*BYTES[:200], b"the", *BYTES[200:]])) is None


def test_files_that_are_no_text(texts):
    (texts / "image").write_bytes(b"\x89PNG\0\xff")
    (texts / "empty").touch()
    made = collection.add(Counting(), [texts])
    assert made.left_out["empty or not UTF-8 text"] == 2
    with pytest.raises(ConfigError, match=r"there is no UTF-8 text in .*image"):
        collection.named(Counting(), [str(texts / "image")])


@pytest.mark.parametrize("make", [collection.add, collection.named])
def test_what_names_nothing_is_told_before_anything_is_read(texts, make):
    tokenizer = Counting()
    for wrong in ("", "~nobody_of_this_name/notes", "nothing"):
        with pytest.raises(ConfigError):
            make(tokenizer, [texts, wrong])
    assert tokenizer.seen == []


def damage(folder, how):
    data, manifest = next(folder.glob("*.i32")), next(folder.glob("*.json"))
    if how == "shorter":
        data.write_bytes(data.read_bytes()[:-4])
    elif how == "gone":
        data.unlink()
    elif how == "no JSON":
        manifest.write_text("{")
    elif how == "foreign":
        manifest.write_text('{"format": "other", "version": 1}')
    else:
        manifest.write_text(manifest.read_text().replace('"version":1', '"version":2'))


@pytest.mark.parametrize("how", ["shorter", "gone", "no JSON", "foreign", "newer"])
def test_damaged_files_are_told_and_made_again(texts, caplog, how):
    collection.add(Counting(), [texts])
    damage(vocabulary_folder(Counting()), how)
    with caplog.at_level(logging.WARNING):
        assert collection.added(Counting()) is None
    said = "another edgespec made it" if how == "newer" else "is damaged"
    assert said in caplog.text
    assert "the corpus is left out" in caplog.text
    collection.add(Counting(), [texts])
    assert continued(collection.added(Counting()), "the ") == "fs"


@pytest.mark.parametrize("wrong", [-2, 256, 1 << 30])
def test_ids_that_the_vocabulary_has_not_are_made_again(texts, caplog, wrong):
    collection.add(Counting(), [texts])
    data = next(vocabulary_folder(Counting()).glob("*.i32"))
    damaged = np.fromfile(data, "<i4")
    damaged[3] = wrong
    damaged.tofile(data)
    with caplog.at_level(logging.WARNING):
        assert collection.add(Counting(), [texts]).n_tokenised == 2
    assert "is damaged and made again" in caplog.text
    assert continued(collection.added(Counting()), "the ") == "fs"
    assert collection.add(Counting(), [texts]).n_tokenised == 0


@pytest.mark.parametrize("how", ["shorter", "gone", "no JSON", "foreign", "newer"])
def test_damaged_named_documents_are_made_again_at_once(texts, how):
    collection.named(Counting(), [str(texts)])
    damage(vocabulary_folder(Counting()), how)
    assert continued(collection.named(Counting(), [str(texts)]), "the ") == "fs"


def test_a_list_of_all_and_clearing(texts):
    collection.add(Counting(), [texts], model="toy")
    collection.named(Counting(), [str(texts / "a")])
    where = vocabulary_folder(Counting())
    Answers(journal=where / JOURNAL).write(list(range(10)))
    (where.parent / "of somebody else").mkdir()
    (where.parent / "of somebody else" / "x.json").touch()
    added, named, answers = stored.stored()
    assert (added.kind, added.model, added.roots) == ("added", "toy", (str(texts),))
    assert (added.n_documents, added.n_tokens) == (2, 30)
    assert (named.kind, named.n_tokens) == ("named", 15)
    assert (answers.kind, answers.n_tokens) == ("answers", 11)  # its end is one
    size = sum(path.stat().st_size for path in where.iterdir())
    assert added.size + named.size + answers.size == size
    assert stored.clear() == size
    assert stored.stored() == []
    assert not where.exists()
    assert (where.parent / "of somebody else" / "x.json").exists()


def test_a_vocabulary_without_the_letters_of_the_probe(texts):
    tokenizer = ToyTokenizer(["a", "b"])
    assert vocabulary_folder(tokenizer) != vocabulary_folder(ToyTokenizer(["a", "c"]))


def test_lookup_reads_the_file_where_it_lies(texts):
    """The index of a large corpus is mapped, not read."""
    collection.add(Counting(), [texts])
    kept = next(collection.collections(vocabulary_folder(Counting())))
    assert isinstance(kept.tokens(vocabulary_folder(Counting())), np.memmap)
