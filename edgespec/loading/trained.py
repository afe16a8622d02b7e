"""Heads and draft models that were trained here: where they are kept, and for which file."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import msgspec

from .. import hub, kept_files
from ..backends import files
from ..decoding.kept import keep_acceptance

logger = logging.getLogger("edgespec.loading")

NOTE = "trained.json"
_MOST = 1 << 16  # bytes of a note
_PRIVATE = "-private"  # ends the name of a folder, because a note may be damaged


class _Note(msgspec.Struct):
    """The note next to a head. target: `files.identity` of the file that it was trained for. gain:
    how many times as fast as plain decoding it was when it was registered.
    """

    target: tuple[str, int, str]
    head: str
    gain: float = 0.0


def faster(most: float, target: Path, *, private: bool = False) -> str:
    """Return a sentence if the draft that is registered for a target was measured to be faster than
    a new one, else "".

    most: the upper end of the interval of the new one's gain. Other arguments are those of
    `register`.
    """
    folder = _folder(target, private)
    note = kept_files.load(folder / NOTE, _read, "its head is not used")
    if note is None or note.gain <= most or not (folder / note.head).exists():
        return ""
    if list(note.target) != files.identity(target):
        return ""
    return (
        f"{folder / note.head} stays: it was {note.gain:.2f} times as fast as plain decoding, and "
        f"this one is at most {most:.2f} times as fast; delete {folder} to use this one"
    )


def register(head: Path, target: Path, gain: float, *, private: bool = False) -> Path:
    """Copy a head or a draft model to the folder of models, where loads of its target find it, with
    what is known of its acceptance; return the copy. It takes the place of the one that was
    registered before.

    head: a GGUF, or a folder with a graph. gain: its measured speed as a multiple of that of plain
    decoding. private: it was made of the user's own texts, so only this user can read the copy, and
    one that was not is kept next to it.
    """
    folder = _folder(target, private)
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True, mode=0o700 if private else 0o777)
    file = files.only_graph(head) if head.is_dir() else head
    if head.is_dir():
        shutil.copytree(head, partial, dirs_exist_ok=True)
    else:
        shutil.copyfile(head, partial / file.name)
    note = _Note(tuple(files.identity(target)), file.name, gain)
    (partial / NOTE).write_bytes(msgspec.json.format(msgspec.json.encode(note)))
    if private:
        kept_files.protect(partial)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(partial, folder)
    keep_acceptance(target, file, folder / file.name)
    return folder / file.name


def trained_for(target: Path) -> dict[Path, float]:
    """Return the heads and draft models that were trained here for exactly this file, each with its
    speedup as measured then.

    A head that was trained for another file of the same name is left out, with a warning.
    """
    trained = {}
    for path in kept_files.matching(hub.models_dir(), f"*/{NOTE}"):
        note = kept_files.load(path, _read, "its head is not used")
        if note is None or note.target[0] != files.label(target):
            continue
        if not (path.parent / note.head).exists():
            continue
        if list(note.target) == files.identity(target):
            trained[path.parent / note.head] = note.gain
        else:
            logger.warning(
                "%s has changed since its head in %s was trained, so the head is not used; train "
                "it anew: edgespec train %s --prompts FILE -o DIR",
                target, path.parent, target,
            )  # fmt: skip
    return trained


def is_private(head: Path) -> bool:
    """Return True for a registered head that was made of the user's own texts."""
    folder = head.parent
    return folder.name.endswith(_PRIVATE) and folder.parent == hub.models_dir()


def _folder(target: Path, private: bool) -> Path:
    """Return the folder of the draft that is registered for a target."""
    name = files.stem_of(files.label(target)).replace("/", "-")
    return hub.models_dir() / f"{name}-trained{_PRIVATE if private else ''}"


def _read(path: Path) -> _Note:
    return kept_files.read_json(path, _Note, _MOST)
