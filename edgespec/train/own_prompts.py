"""The user's own texts as prompts: saved chats, added documents and remembered answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from .. import backends, kept_files
from ..backends.base import Tokenizer
from ..corpus import collection
from ..corpus.answers import JOURNAL, Answers
from ..corpus.documents import MOST_FILE, saved_messages
from ..corpus.folder import vocabulary_folder
from ..device import chats_folder
from ..errors import ConfigError
from .prompts import PASSAGE, Messages, until_user

_BEGINNING = 32  # tokens of a passage; the target writes on from there
_EVERY = 256  # tokens from one passage of a text to the next


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
