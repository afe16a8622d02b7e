"""Prompts that users give to train with: files of texts, questions or conversations."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .. import named_files
from ..errors import ConfigError

Messages = list[dict[str, str]]
"""A conversation in OpenAI's form that ends with a message of the user."""

_TEXTS = ("prompt", "instruction", "question", "text")
_MOST = 1 << 30  # bytes of a file


def read_prompts(paths: Iterable[Path], without: Iterable[Path] = ()) -> list[Messages]:
    """Return the prompts in some files, each once, except for those that end like a prompt in one
    of the files `without`, apart from case and spaces.

    A .jsonl file has a JSON object on each line, and a .json file a list of them. An object has
    messages in OpenAI's form; or turns, a list of texts of which the first is taken; or one text
    named prompt, instruction (with or without an input), question or text. In any other file each
    line is a prompt. Raises ConfigError for a file without prompts.
    """
    left_out = {_end(messages) for path in without for messages in _of_file(path)}
    prompts: dict[str, Messages] = {}
    for path in paths:
        before = len(prompts)
        for messages in _of_file(path):
            if _end(messages) not in left_out:
                prompts.setdefault(json.dumps(messages), messages)
        if len(prompts) == before:
            raise ConfigError(
                f"{path} has no prompts that are not in the other files: expected a text on each "
                "line, or JSON objects with messages, turns, prompt, instruction, question or text"
            )
    return list(prompts.values())


def fingerprint(prompts: Sequence[Messages]) -> str:
    """Return a hash of prompts in their order."""
    return hashlib.sha256(json.dumps(prompts).encode()).hexdigest()


def _end(messages: Messages) -> str:
    return " ".join(messages[-1]["content"].casefold().split())


def _of_file(path: Path) -> Iterator[Messages]:
    try:
        text = named_files.read(path, _MOST).decode("utf-8-sig")
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
    for value in values:
        if messages := _messages(value):
            yield messages


def _messages(value: Any) -> Messages:
    """Return the conversation in a JSON value, [] if there is none."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}] if value.strip() else []
    if not isinstance(value, dict):
        return []
    if isinstance(given := value.get("messages"), list):
        return _until_user(given)
    if isinstance(turns := value.get("turns"), list) and turns:
        return _messages(turns[0])
    for name in _TEXTS:
        if isinstance(text := value.get(name), str) and text.strip():
            more = value.get("input") if name == "instruction" else None
            return _messages(f"{text}\n\n{more}" if isinstance(more, str) and more else text)
    return []


def _until_user(given: Sequence[Any]) -> Messages:
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
