"""Conversations that are kept on this disk: `edgespec chat --continue`, `--list` and `--delete`.

Each conversation is a file in the folder `chats` of the user's state folder. The file is rewritten
when the user sends a message, every few seconds during the answer, and after the answer. Files with
names of a different form, links and pipes are left alone.
"""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import conversation
from .render import name as shown

if TYPE_CHECKING:
    from .conversation import Conversation

log = logging.getLogger(__name__)

MOST, MOST_BYTES = 100, 64 << 20  # conversations, and their bytes; the oldest are deleted first
EVERY_S = 3.0  # seconds between two writes during an answer
_LARGEST = 16 << 20  # most bytes of one conversation
_ELSEWHERE = "/save FILE takes another place, and XDG_STATE_HOME names another folder for all"
_NAME = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}")


def folder() -> Path:
    """Return the folder of the conversations."""
    from edgespec.device import chats_folder

    return chats_folder()


def stored() -> list[Path]:
    """Return the files of the conversations, the latest first."""
    from edgespec import kept_files

    files = kept_files.matching(folder(), "*.json")
    stamps = [(_stamp(path), path) for path in files if _NAME.fullmatch(path.stem)]
    latest_first = sorted(((stamp[0], path) for stamp, path in stamps if stamp), reverse=True)
    return [path for _, path in latest_first]


def read(path: Path) -> dict[str, Any] | None:
    """Return the conversation in a file. Return None if the file is missing, unreadable or damaged;
    a damaged file is renamed.
    """
    from edgespec import kept_files

    return kept_files.load(path, _conversation, "it is left out", is_users=True)


def _conversation(path: Path) -> dict[str, Any]:
    from edgespec.chat import messages

    try:
        data = conversation.read(path)
    except click.UsageError as error:
        raise ValueError(error.message) from None
    messages.checked(data.get("messages"))
    return data


def named(name: str) -> tuple[Path, dict[str, Any]]:
    """Return the file and data of the conversation with this name, or of the latest for "last".
    Raises UsageError if there is none.
    """
    files = stored()
    if not files:
        raise click.UsageError("no conversation is kept yet; `edgespec chat` begins one")
    for path in files:
        if name in ("last", path.stem) and (data := read(path)):
            return path, data
    if name == "last":
        raise click.UsageError(f"no conversation in {folder()} can be read; `edgespec chat` begins")
    raise click.UsageError(_unknown(name, files))


def _unknown(name: str, files: list[Path]) -> str:
    from edgespec.config import did_you_mean

    hint = did_you_mean(name, [path.stem for path in files[:5]])
    return f"no conversation is called {name!r}; {hint} (`edgespec chat --list` lists them all)"


def rows() -> list[tuple[str, str, str, str]]:
    """Return the name, model, number of messages and first words of each conversation."""
    from edgespec.chat.pictures import text_of

    shown = []
    for path in stored():
        if data := read(path):
            said = data["messages"]
            first = text_of(said[0]["content"]) if said else conversation.unanswered(data)
            begins = " ".join(first.split())
            begins = begins if len(begins) <= 40 else f"{begins[:39]}…"
            shown.append((path.stem, Path(str(data.get("model"))).name, str(len(said)), begins))
    return shown


def delete(name: str) -> int:
    """Delete the conversation with this name, or all of them for "all", and the prompts on disk
    that models have read for one user; return how many conversations were deleted. Raises
    UsageError for an unknown name.
    """
    files = stored()
    if name == "all":
        from edgespec import kept_files

        damaged = kept_files.matching(folder(), "*.json.damaged")
        files += [path for path in damaged if _NAME.fullmatch(path.name.partition(".")[0])]
    chosen = files if name == "all" else [path for path in files if path.stem == name]
    if files and not chosen:
        raise click.UsageError(_unknown(name, files))
    for path in chosen:
        path.unlink(missing_ok=True)
    if chosen:  # which of the prompts that were read belong to it is not known
        from edgespec.loading import prefixes

        prefixes.clear(everybodys=False)
    return len(chosen)


class Keeper:
    """Keeps a conversation in its own file.

    path: the file of a conversation that is continued; None for a new conversation.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._stamp = _stamp(path) if path else None
        self._is_off = False
        self._has_failed = False

    def renew(self) -> None:
        """Leave the file as it is, and keep a new conversation, in a new file, from now on."""
        self._path, self._is_off = None, False

    @property
    def has_kept(self) -> bool:
        """True if the conversation is on the disk now."""
        return bool(self._path and _stamp(self._path))

    def refusal(self) -> str:
        """Return why conversations cannot be kept, and what to do, or "" if they can be. After a
        refusal, `keep` does not report the same problem again.
        """
        from edgespec import kept_files

        refusal = kept_files.refusal(folder())
        self._has_failed = bool(refusal)
        return f"this conversation is not kept: {refusal}; {_ELSEWHERE}" if refusal else ""

    def keep(self, talk: Conversation, *, is_answering: bool = False) -> None:
        """Write the conversation to its file. An error is shown once, and the chat goes on.

        is_answering: the last answer is not complete yet.
        """
        from edgespec import kept_files

        if self._is_off or not (talk.chat.to_dict()["messages"] or talk.unanswered):
            return
        try:
            self._write(talk, is_answering)
            if self._has_failed:
                talk.screen.remark("this conversation is kept again")
            self._has_failed = False
        except OSError as error:
            if not self._has_failed:
                why = kept_files.obstacle(error)
                talk.screen.remark(
                    f"this conversation is not kept: {folder()} cannot be written: {why}; "
                    f"{_ELSEWHERE}"
                )
            self._has_failed = True

    def _write(self, talk: Conversation, is_answering: bool) -> None:
        from edgespec import kept_files

        data = conversation.encoded(
            talk, _lasting(talk.model), talk.unanswered, is_answering=is_answering
        )
        if len(data) > _LARGEST:
            raise OSError(0, f"it has {len(data)} bytes, at most {_LARGEST} are kept")
        if self._path and self._stamp and _stamp(self._path) is None:
            self._is_off = True  # the user deleted the file, so it is not written again
            return
        if self._path and self._stamp and _stamp(self._path) != self._stamp:
            self._path = None
            talk.screen.remark("another chat goes on with this conversation: both are kept")
        self._path = self._path or _new()
        self._stamp = None  # Ctrl-C may come before the new stamp is known
        kept_files.replace(self._path, [data])
        self._stamp = _stamp(self._path)
        _trim(self._path)


def _new() -> Path:
    return folder() / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}.json"


def _stamp(path: Path) -> tuple[int, int] | None:
    """Return a file's modification time (ns) and inode, None if it is not a regular file."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def _trim(newest: Path) -> None:
    """Delete the oldest conversations above the limits MOST and MOST_BYTES, but not the newest."""
    size = 0
    for number, path in enumerate(stored()):
        with contextlib.suppress(OSError):
            size += path.stat().st_size
            if path != newest and (number >= MOST or size > MOST_BYTES):
                path.unlink()


def _lasting(model: str) -> str:
    """Return the name of a model, as an absolute path if it is a path on this disk."""
    from edgespec import hub

    is_path = model not in hub.entries() and Path(model).exists()
    return str(Path(model).absolute()) if is_path else model


def model_of(data: dict[str, Any]) -> str:
    """Return the model of a conversation. Raises UsageError if the model is not available."""
    from edgespec import EdgeSpecError, hub

    model = str(data.get("model"))
    try:
        hub.resolve(model)
    except EdgeSpecError as error:
        raise click.UsageError(
            f"the model of this conversation, {shown(model):.200}, is not here any more: "
            f"{str(error).rstrip('.')}. -m MODEL goes on with another one"
        ) from None
    return model
