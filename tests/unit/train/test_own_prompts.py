"""Prompts that are made of the user's own texts."""

import json

import pytest

from edgespec import ConfigError, backends
from edgespec.corpus import collection
from edgespec.corpus.answers import JOURNAL, Answers
from edgespec.corpus.folder import vocabulary_folder
from edgespec.train import prompts as module
from edgespec.train.prompts import own_prompts
from tests.helpers import libllama, tiny_models

libllama.require()

pytestmark = pytest.mark.llama_cpp


@pytest.fixture
def target(tmp_path, monkeypatch):
    """Return a tiny target; nothing is kept of the user yet."""
    monkeypatch.setattr(module, "chats_folder", lambda: tmp_path / "chats")
    monkeypatch.setenv("EDGESPEC_CORPUS", str(tmp_path / "corpus"))
    (tmp_path / "chats").mkdir()
    return tiny_models.write(tmp_path, "llama")


def keep_chat(folder, *messages, name="a"):
    roles = ("user", "assistant")
    said = [{"role": roles[i % 2], "content": text} for i, text in enumerate(messages)]
    saved = {"format": "edgespec-chat", "messages": said}
    (folder / "chats" / f"{name}.json").write_text(json.dumps(saved))
    return said


def test_each_message_of_the_user_is_a_prompt_with_what_was_said_before(target, tmp_path):
    said = keep_chat(tmp_path, "Hello.", "Hi.", "Go.", "I go.")
    with_picture = [{"type": "image_url"}]
    keep_chat(tmp_path, with_picture, "A cat.", name="b")
    (tmp_path / "chats" / "c.json").write_bytes(b"\xff")
    assert own_prompts(target) == [said[:1], said[:3]]


def test_documents_and_answers_are_passages(target, tmp_path):
    text = "".join(chr(ord("a") + i % 26) for i in range(700))
    (document := tmp_path / "notes.txt").write_text(text)
    with backends.of(target).vocabulary(target) as tokenizer:
        collection.add(tokenizer, [document])
        answers = Answers(journal=vocabulary_folder(tokenizer) / JOURNAL)
        answers.write(tokenizer.encode("X" * 40, add_special=False))
        bytes_of = ["\u2581" + each for each in (text, "X" * 40)]  # a token for each byte
    expected = [
        each.encode()[begin : begin + 32].decode()
        for each in bytes_of
        for begin in range(0, len(each.encode()), 256)
    ]
    contents = [prompt[0]["content"] for prompt in own_prompts(target)]
    assert len(contents) == 4
    assert contents == expected
    assert {prompt[0]["role"] for prompt in own_prompts(target)} == {"passage"}


def test_without_anything_kept_it_says_what_could_be(target):
    with pytest.raises(ConfigError, match="nothing is kept that prompts could be made of"):
        own_prompts(target)
