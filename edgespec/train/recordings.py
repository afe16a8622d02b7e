"""The folder of a training: what was recorded in it so far, and what it was begun with."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from .. import kept_files
from ..errors import ConfigError, EdgeSpecError
from . import formats

MANIFEST, LOCK = "manifest.json", "train.lock"
OWN_PROMPTS, PLAN = "own-prompts.json", "plan.json"
ALONE = -1  # the round of answers that were made one after the other
_OWN = (  # what a training makes in its folder and in that of a kind, besides manifest and draft
    *formats.NAMES, *(f"{name}.partial" for name in formats.NAMES), LOCK, OWN_PROMPTS, PLAN,
    "convert.log",
)  # fmt: skip


_OTHER = {
    "target": "another model", "prompts": "other prompts", "start": "another --from, or none",
}  # fmt: skip


class Recording(msgspec.Struct, frozen=True):
    """A prompt that the target was asked, and its answer.

    prompt: the number of the prompt. round: how often it was asked before, or ALONE. why: the
    reason if it was skipped or failed. ids: the tokens of the prompt, then of the answer. drawn:
    True if the answer was drawn with the model's own sampling, False if it is greedy.
    """

    prompt: int
    round: int
    status: Literal["done", "skipped", "failed"]
    why: str = ""
    ids: list[int] = []
    n_prompt: int = 0
    drawn: bool = False

    @property
    def n_answer(self) -> int:
        """The number of tokens of the answer."""
        return len(self.ids) - self.n_prompt


class Recordings:
    """An append-only file of recordings. A line that was cut by a kill is dropped."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / formats.ANSWERS
        self.all: list[Recording] = []
        if self._path.exists():
            self._read()

    def add(self, recording: Recording) -> None:
        """Append a recording."""
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(handle, "ab") as file:
            file.write(msgspec.json.encode(recording) + b"\n")
        self.all.append(recording)

    @property
    def done(self) -> list[Recording]:
        """The recordings with an answer."""
        return [each for each in self.all if each.status == "done"]

    def n_prompts(self, status: str) -> int:
        """Return how many prompts have this status; one that has an answer is done."""
        done = {each.prompt for each in self.done}
        if status == "done":
            return len(done)
        return len({each.prompt for each in self.all if each.status == status} - done)

    @property
    def n_tokens(self) -> int:
        """The number of tokens of all answers, without those made ALONE."""
        return sum(each.n_answer for each in self.done if each.round != ALONE)

    @property
    def n_answers(self) -> int:
        """The number of answers, without those made ALONE."""
        return sum(each.round != ALONE for each in self.done)

    def _read(self) -> None:
        data = self._path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole != len(data):
            os.truncate(self._path, whole)
        try:
            self.all = [
                msgspec.json.decode(line, type=Recording) for line in data[:whole].splitlines()
            ]
        except (msgspec.MsgspecError, RecursionError) as error:
            raise EdgeSpecError(
                f"{self._path} is damaged: {error}; delete it, and the answers are made again"
            ) from None


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Make the folder of a training, and hold it for this process. Raises ConfigError if it cannot
    be made, and if another training runs in it.
    """
    from filelock import FileLock, Timeout

    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(kept_files.unwritten(error, folder)) from None
    try:
        with FileLock(folder / LOCK, timeout=0):
            yield
    except Timeout:
        raise ConfigError(
            f"another training runs in {folder}; wait for its end, or give another folder"
        ) from None


def begin(folder: Path, wanted: dict[str, Any]) -> None:
    """Make the folder of a training, or check that it was begun with the same values.

    wanted: whatever must not change between two runs, for JSON; it may change as long as nothing
    was recorded. Only this user can read what is recorded in the folder. Raises ConfigError if
    something has changed, and if the folder holds anything else.
    """
    path = folder / MANIFEST
    made = {each.name for each in folder.rglob("*") if each.is_file()} - {MANIFEST, LOCK}
    if made and not path.exists():
        raise ConfigError(
            f"{folder} is not empty, and no training was begun in it; give a new folder"
        )
    try:
        begun = kept_files.read_json(path, dict[str, Any]) if made else {}
    except ValueError as error:
        raise EdgeSpecError(f"{path} is damaged: {error}; give a new folder") from None
    if not begun:  # new, or forgotten
        kept_files.replace(path, [msgspec.json.format(msgspec.json.encode(wanted))])
        folder.chmod(0o700)
        return
    changed = [name for name in wanted if begun.get(name) != wanted[name]]
    if changed:
        other = _OTHER.get(changed[0], f"another {changed[0]}")
        raise ConfigError(
            f"the training in {folder} was begun with {other}; give a new folder, or what was "
            "given before"
        )


def forget_training(folder: Path) -> int:
    """Delete the recordings of a training and all that was made of them, except for the exported
    drafts; return the number of deleted bytes. A new training may begin in the folder.

    Raises ConfigError for a folder in which no training was begun.
    """
    if not (folder / MANIFEST).is_file():
        raise ConfigError(f"no training was begun in {folder}: it has no {MANIFEST}")
    n_bytes, of_kinds = 0, [path.parent for path in folder.glob(f"*/{MANIFEST}")]
    for path in (each / name for each in (*of_kinds, folder) for name in _OWN):
        with contextlib.suppress(FileNotFoundError):
            n_bytes += path.stat().st_size
            path.unlink()
    for each in (*of_kinds, folder):
        kept_files.replace(each / MANIFEST, [b"{}"])
    return n_bytes
