"""The model that is taken where none is named: chosen once, kept, and changed only on request."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec.structs import replace

from .. import kept_files
from ..device import state_folder

log = logging.getLogger(__name__)

_ASKED_AGAIN_S = 86_400.0  # after which a hub that did not answer is asked again


class _Choice(msgspec.Struct, frozen=True):
    """model: its reference, "" for none yet. silent_at: when the hub did not answer, seconds since
    1970.
    """

    model: Annotated[str, msgspec.Meta(max_length=4096)] = ""
    silent_at: Annotated[float, msgspec.Meta(ge=0, le=1e12)] = 0.0


def chosen() -> str:
    """Return the reference of the model that was chosen, "" if none was."""
    return _kept().model


def choose(reference: str) -> None:
    """Keep a model as the one that is taken from now on. Raises OSError if that fails."""
    _keep(_Choice(reference))


def forget_choice() -> None:
    """Let the next start choose anew. Raises OSError if that fails."""
    _file().unlink(missing_ok=True)


def note_silence() -> None:
    """Keep that the hub did not answer now."""
    try:
        _keep(replace(_kept(), silent_at=time.time()))
    except OSError as error:
        log.info("that the hub did not answer cannot be kept in %s: %s", _file().parent, error)


def was_silent() -> bool:
    """Return True if the hub did not answer within the last day."""
    return 0 <= time.time() - _kept().silent_at < _ASKED_AGAIN_S


def _file() -> Path:
    return state_folder() / "default-model.json"


def _kept() -> _Choice:
    def read(path: Path) -> _Choice:
        return kept_files.read_json(path, _Choice)

    return kept_files.load(_file(), read, "a model is chosen anew") or _Choice()


def _keep(choice: _Choice) -> None:
    kept_files.replace(_file(), [msgspec.json.encode(choice)])
