"""Conversations that are kept on this disk: `edgespec chat --continue`, `--list` and `--delete`.

Each is a file of the folder `chats` in the user's folder for state, written anew with each message,
every few seconds while it is answered, and after the answer.
Files that are named otherwise, links and pipes are left alone.
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

MOST, MOST_BYTES = 100, 64 << 20  # the oldest go first
EVERY_S = 3.0  # seconds between two writes while an answer comes
_LARGEST = 16 << 20  # bytes of one
_ELSEWHERE = "/save FILE takes another place, and XDG_STATE_HOME names another folder for all"
_NAME = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}")


def folder() -> Path:
    """Return the folder of the conversations."""
    from edgespec.device import state_folder

    return state_folder() / "chats"


def stored() -> list[Path]:
    """Return the files, the latest first."""
    from edgespec import kept_files

    files = kept_files.matching(folder(), "*.json")
    stamps = [(_stamp(path), path) for path in files if _NAME.fullmatch(path.stem)]
    latest_first = sorted(((stamp[0], path) for stamp, path in stamps if stamp), reverse=True)
    return [path for _, path in latest_first]


def read(path: Path) -> dict[str, Any] | None:
    """Return a conversation, None for a file that is gone or set aside because it is damaged."""
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
    """Return the conversation of a name, "last" for the latest. Raises UsageError for none."""
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
    """Return name, model, number of messages and first words of each conversation."""
    shown = []
    for path in stored():
        if data := read(path):
            said = data["messages"]
            first = said[0]["content"] if said else conversation.unanswered(data)
            begins = " ".join(first.split())
            begins = begins if len(begins) <= 40 else f"{begins[:39]}…"
            shown.append((path.stem, Path(str(data.get("model"))).name, str(len(said)), begins))
    return shown


def delete(name: str) -> int:
    """Delete the conversation of a name, or "all"; return how many. Raises UsageError for none."""
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
    return len(chosen)


class Keeper:
    """Keeps a conversation in a file of its own.

    path: of a conversation that goes on; None for a new one.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._stamp = _stamp(path) if path else None
        self._is_off = False
        self._has_failed = False

    def renew(self) -> None:
        """Leave the file as it is: what is kept from now on is another conversation."""
        self._path, self._is_off = None, False

    @property
    def has_kept(self) -> bool:
        """True if the conversation is on the disk now."""
        return bool(self._path and _stamp(self._path))

    def refusal(self) -> str:
        """Return why nothing can be kept, and what to do, "" if it can be; it is said once."""
        from edgespec import kept_files

        refusal = kept_files.refusal(folder())
        self._has_failed = bool(refusal)
        return f"this conversation is not kept: {refusal}; {_ELSEWHERE}" if refusal else ""

    def keep(self, talk: Conversation, *, is_answering: bool = False) -> None:
        """Write the conversation; what goes wrong is said once, and the chat goes on.

        is_answering: its last answer is not complete yet.
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
            self._is_off = True  # deleted: it stays so
            return
        if self._path and self._stamp and _stamp(self._path) != self._stamp:
            self._path = None
            talk.screen.remark("another chat goes on with this conversation: both are kept")
        self._path = self._path or _new()
        self._stamp = None  # Ctrl-C may come before the new one is known
        kept_files.replace(self._path, [data])
        self._stamp = _stamp(self._path)
        _trim(self._path)


def _new() -> Path:
    return folder() / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}.json"


def _stamp(path: Path) -> tuple[int, int] | None:
    """Return when a file was written, and its number; None if it is no regular file."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def _trim(newest: Path) -> None:
    """Delete the oldest conversations beyond the bounds."""
    size = 0
    for number, path in enumerate(stored()):
        with contextlib.suppress(OSError):
            size += path.stat().st_size
            if path != newest and (number >= MOST or size > MOST_BYTES):
                path.unlink()


def _lasting(model: str) -> str:
    """Return a model's name so that it can be loaded from any folder."""
    from edgespec import hub

    is_path = model not in hub.entries() and Path(model).exists()
    return str(Path(model).absolute()) if is_path else model


def model_of(data: dict[str, Any]) -> str:
    """Return the model of a conversation. Raises UsageError if it has gone."""
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
