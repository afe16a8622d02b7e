"""Model names become files: catalogue entries, references, downloads."""

import importlib
import logging
from typing import TYPE_CHECKING, Any

from ..backends.files import label

if TYPE_CHECKING:
    from .catalogue import (
        Entry,
        HubSource,
        ModelFile,
        PublishedHead,
        WheelSource,
        default_model,
        entries,
        entry,
    )
    from .downloads import choices, pull
    from .head_repositories import (
        HeadRepository,
        checkpoint_on_disk,
        head_repository,
        pull_head,
        targets_of,
    )
    from .references import names_model, resolve
    from .removal import find, remove
    from .repositories import Choice
    from .storage import Progress, models_dir, verify
    from .store import StoredModel, stored

__all__ = [
    "Choice",
    "Entry",
    "HeadRepository",
    "HubSource",
    "ModelFile",
    "Progress",
    "PublishedHead",
    "StoredModel",
    "WheelSource",
    "checkpoint_on_disk",
    "choices",
    "default_model",
    "entries",
    "entry",
    "find",
    "head_repository",
    "label",
    "models_dir",
    "names_model",
    "pull",
    "pull_head",
    "remove",
    "resolve",
    "stored",
    "targets_of",
    "verify",
]

_MODULES = {  # imported when they are first asked for, which keeps `import edgespec` quick
    "catalogue": (
        "Entry",
        "HubSource",
        "ModelFile",
        "PublishedHead",
        "WheelSource",
        "default_model",
        "entries",
        "entry",
    ),
    "downloads": ("choices", "pull"),
    "head_repositories": (
        "HeadRepository",
        "checkpoint_on_disk",
        "head_repository",
        "pull_head",
        "targets_of",
    ),
    "references": ("names_model", "resolve"),
    "repositories": ("Choice",),
    "storage": ("Progress", "models_dir", "verify"),
    "removal": ("find", "remove"),
    "store": ("StoredModel", "stored"),
}

# Without a handler Python prints the warnings of a library that nobody configured.
logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
