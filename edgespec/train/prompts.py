"""Prompts to train with: files of texts, questions or conversations, and the user's own texts."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import backends, kept_files, named_files
from ..backends.base import Tokenizer
from ..corpus import collection
from ..corpus.answers import JOURNAL, Answers
from ..corpus.documents import MOST_FILE, saved_messages
from ..corpus.folder import vocabulary_folder
from ..device import chats_folder
from ..errors import ConfigError

Messages = list[dict[str, str]]
"""A conversation in OpenAI's form that ends with a message of the user, or a single message with
the role PASSAGE: a text that the model writes on."""

PASSAGE = "passage"

Files = Sequence[str | os.PathLike[str]]

_PATTERNS = ("*.txt", "*.json", "*.jsonl")  # files of prompts in a folder
_TEXTS = ("prompt", "instruction", "question", "text")
MOST = 1 << 30  # bytes of a file
_BEGINNING = 32  # tokens of a passage; the target writes on from there
_EVERY = 256  # tokens from one passage of a text to the next


def read_prompts(paths: Files, without: Files = (), own: Iterable[Messages] = ()) -> list[Messages]:
    """Return the prompts in some files, and further ones, each once.

    without: files of prompts to leave out: prompts in which the user says the same, apart from case
    and spaces, and passages that contain it or a part of it. own: prompts that are in no file.

    A folder stands for its .txt, .json and .jsonl files. A .jsonl file has a JSON object on each
    line, and a .json file a list of them. An object has messages in OpenAI's form; or turns, a list
    of texts of which the first is taken; or one text named prompt, instruction (with or without an
    input), question or text. In any other file each line is a prompt. Raises ConfigError for a file
    without prompts.
    """
    values = (value for path in _files(without) for value in _values(path))
    conversations = (_messages(turn) for value in values for turn in _turns(value))
    left_out = {_plain(each[-1]["content"]) for each in conversations if each}
    prompts: dict[str, Messages] = {}

    def take(given: Iterable[Messages], source: str) -> None:
        before = len(prompts)
        for messages in given:
            if not _is_left_out(messages, left_out):
                prompts.setdefault(json.dumps(messages), messages)
        if len(prompts) == before:
            others = " that are not in the other files" if prompts or left_out else ""
            raise ConfigError(f"{source} no prompts{others}")

    forms = (
        "(expected: a text on each line, or JSON objects with messages, turns, prompt, "
        "instruction, question or text)"
    )
    for path in _files(paths):
        take(filter(None, map(_messages, _values(path))), f"{path} {forms} has")
    if own := list(own):
        take(own, "the corpus has")
    return list(prompts.values())


def fingerprint(prompts: Sequence[Messages]) -> str:
    """Return a hash of prompts in their order."""
    return hashlib.sha256(json.dumps(prompts).encode()).hexdigest()


def _is_left_out(messages: Messages, left_out: set[str]) -> bool:
    """Return True for a conversation in which the user says one of these texts, and for a passage
    that has a part of one.
    """
    said = [_plain(each["content"]) for each in messages if each["role"] == "user"]
    passages = [f" {_plain(each['content'])} " for each in messages if each["role"] == PASSAGE]
    words = [f" {text} " for text in left_out if text]
    shared = (a in b or b in a for a in passages for b in words)
    return not left_out.isdisjoint(said) or any(shared)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def _files(paths: Files) -> Iterator[Path]:
    """Yield files, and for a folder the files of prompts in it."""
    for path in map(Path, paths):
        if not path.is_dir():
            yield path
            continue
        inside = kept_files.matching(path, *_PATTERNS)
        if not inside:
            raise ConfigError(f"the folder {path} has no .txt, .json or .jsonl file of prompts")
        yield from inside


def _values(path: Path) -> list[Any]:
    """Return the JSON values or lines of a file."""
    try:
        text = named_files.read(path, MOST).decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot read prompts from {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no text in UTF-8: {error.reason}") from None
    lines = [line.strip() for line in text.splitlines()]
    try:
        if path.suffix == ".json":
            values = json.loads(text)
        elif path.suffix == ".jsonl":
            values = [json.loads(line) for line in lines if line]
        else:
            values = [line for line in lines if line]
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is no JSON: {error}") from None
    if not isinstance(values, list):
        raise ConfigError(f"{path} holds no list of prompts but {str(values)!r:.80}")
    return values


def _turns(value: Any) -> list[Any]:
    """Return each question of a JSON value that has several, else the value itself."""
    turns = value.get("turns") if isinstance(value, dict) else None
    return turns if isinstance(turns, list) else [value]


def _messages(value: Any) -> Messages:
    """Return the conversation in a JSON value, [] if there is none."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}] if value.strip() else []
    if not isinstance(value, dict):
        return []
    if isinstance(given := value.get("messages"), list):
        return until_user(given)
    if isinstance(turns := value.get("turns"), list) and turns:
        return _messages(turns[0])
    for name in _TEXTS:
        if isinstance(text := value.get(name), str) and text.strip():
            more = value.get("input") if name == "instruction" else None
            return _messages(f"{text}\n\n{more}" if isinstance(more, str) and more else text)
    return []


def until_user(given: Sequence[Any]) -> Messages:
    """Return the messages up to the last one of the user, [] if there is none or one of them is not
    plain text.
    """
    plain = [
        {"role": each["role"], "content": each["content"]}
        for each in given
        if isinstance(each, dict)
        and isinstance(each.get("role"), str)
        and isinstance(each.get("content"), str)
    ]
    last = max((i for i, each in enumerate(plain) if each["role"] == "user"), default=-1)
    return plain[: last + 1] if len(plain) == len(given) else []


def own_prompts(target: Path) -> list[Messages]:
    """Return prompts from what edgespec keeps of this user, for the vocabulary of a target.

    These are each message of the user in a chat that was kept, with what was said before; and
    passages of the documents of `edgespec corpus add` and of answers that `--draft-memory disk`
    keeps, for the target to go on with. Raises ConfigError if there are none.
    """
    with backends.of(target).vocabulary(target) as tokenizer:
        prompts = [*_of_chats(), *_of_texts(tokenizer)]
    if not prompts:
        raise ConfigError(
            "nothing is kept that prompts could be made of: no chat, no document (`edgespec corpus "
            "add PATH`) and no answer (`--draft-memory disk`) for the vocabulary of this model"
        )
    return prompts


def _of_chats() -> Iterator[Messages]:
    for path in kept_files.matching(chats_folder(), "*.json"):
        try:
            said = saved_messages(kept_files.read(path, MOST_FILE).decode("utf-8-sig"))
        except (OSError, ValueError) as error:
            kept_files.leave_out(path, error)
            continue
        for i, message in enumerate(said):
            if message.get("role") == "user" and (prompt := until_user(said[: i + 1])):
                yield prompt


def _of_texts(tokenizer: Tokenizer) -> Iterator[Messages]:
    documents, folder = collection.added(tokenizer), vocabulary_folder(tokenizer)
    answers = Answers(journal=folder / JOURNAL).arrays
    for array in filter(None, [documents, *answers]):
        for text in array.texts():
            yield from _passages(tokenizer, text)


def _passages(tokenizer: Tokenizer, tokens: Sequence[int] | np.ndarray) -> Iterator[Messages]:
    for begin in range(0, len(tokens), _EVERY):
        ids = tokens[begin : begin + _BEGINNING]
        text = b"".join(tokenizer.piece(int(token)) for token in ids).decode("utf-8", "ignore")
        if text.strip():
            yield [{"role": PASSAGE, "content": text}]
