"""The model that is used if none is named: chosen once, saved, and changed only on request."""

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

_ASKED_AGAIN_S = 86_400.0  # seconds after which a hub that did not answer is asked again


class _Choice(msgspec.Struct, frozen=True):
    """The user's choice of a model, as it is saved on disk.

    model: the reference of the chosen model, "" for none yet. silent_at: the last time that the hub
    did not answer, in seconds since 1970.
    """

    model: Annotated[str, msgspec.Meta(max_length=4096)] = ""
    silent_at: Annotated[float, msgspec.Meta(ge=0, le=1e12)] = 0.0


def chosen() -> str:
    """Return the reference of the model that was chosen, "" if none was."""
    return _kept().model


def choose(reference: str) -> None:
    """Save a model as the one to use from now on. Raises OSError if that fails."""
    _keep(_Choice(reference))


def forget_choice() -> None:
    """Delete the choice, so that the next start chooses anew. Raises OSError if that fails."""
    _file().unlink(missing_ok=True)


def note_silence() -> None:
    """Save the present time as the last one at which the hub did not answer."""
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
