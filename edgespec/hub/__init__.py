"""From model names to files: the catalogue, references, downloads."""

import importlib
import logging
from typing import TYPE_CHECKING, Any

from ..backends.files import label

if TYPE_CHECKING:
    from .catalogue import (
        WORK_SPACE,
        Entry,
        HubSource,
        ModelFile,
        PublishedHead,
        WheelSource,
        entries,
        entry,
        fallback_model,
        vocabulary_model,
    )
    from .chosen_model import choose, chosen, forget_choice, note_silence, was_silent
    from .downloads import choices, need_folder, pull
    from .head_repositories import (
        HeadRepository,
        checkpoint_on_disk,
        head_repository,
        pull_head,
        targets_of,
    )
    from .hub_client import answers, is_off, search
    from .known_files import comparison
    from .ladder import (
        N_CTX,
        UNASKED,
        Pick,
        Place,
        advice,
        pick,
        picks,
        places,
        to_take,
        usable_on_disk,
    )
    from .references import missing_projector, names_model, resolve
    from .removal import deleted_with, find, remove
    from .repositories import Choice
    from .storage import Progress, models_dir, verify
    from .store import StoredModel, stored

__all__ = [
    "N_CTX",
    "UNASKED",
    "WORK_SPACE",
    "Choice",
    "Entry",
    "HeadRepository",
    "HubSource",
    "ModelFile",
    "Pick",
    "Place",
    "Progress",
    "PublishedHead",
    "StoredModel",
    "WheelSource",
    "advice",
    "answers",
    "checkpoint_on_disk",
    "choices",
    "choose",
    "chosen",
    "comparison",
    "deleted_with",
    "entries",
    "entry",
    "fallback_model",
    "find",
    "forget_choice",
    "head_repository",
    "is_off",
    "label",
    "missing_projector",
    "models_dir",
    "names_model",
    "need_folder",
    "note_silence",
    "pick",
    "picks",
    "places",
    "pull",
    "pull_head",
    "remove",
    "resolve",
    "search",
    "stored",
    "targets_of",
    "to_take",
    "usable_on_disk",
    "verify",
    "vocabulary_model",
    "was_silent",
]

_MODULES = {  # imported when they are first asked for, which keeps `import edgespec` quick
    "catalogue": (
        "WORK_SPACE",
        "Entry",
        "HubSource",
        "ModelFile",
        "PublishedHead",
        "WheelSource",
        "entries",
        "entry",
        "fallback_model",
        "vocabulary_model",
    ),
    "chosen_model": ("choose", "chosen", "forget_choice", "note_silence", "was_silent"),
    "downloads": ("choices", "need_folder", "pull"),
    "head_repositories": (
        "HeadRepository",
        "checkpoint_on_disk",
        "head_repository",
        "pull_head",
        "targets_of",
    ),
    "known_files": ("comparison",),
    "hub_client": ("answers", "is_off", "search"),
    "ladder": (
        "N_CTX",
        "UNASKED",
        "Pick",
        "Place",
        "advice",
        "pick",
        "picks",
        "places",
        "to_take",
        "usable_on_disk",
    ),
    "references": ("missing_projector", "names_model", "resolve"),
    "repositories": ("Choice",),
    "storage": ("Progress", "models_dir", "verify"),
    "removal": ("deleted_with", "find", "remove"),
    "store": ("StoredModel", "stored"),
}

# Without a handler Python prints a library's warnings if the program has not configured logging.
logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
