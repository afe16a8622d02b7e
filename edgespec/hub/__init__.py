"""Model names become files: catalogue entries, references, downloads."""

import importlib
import logging
from typing import TYPE_CHECKING, Any

from ..backends.files import label

if TYPE_CHECKING:
    from .catalogue import Entry, HubSource, ModelFile, WheelSource, default_model, entries, entry
    from .downloads import pull
    from .references import resolve
    from .storage import Progress, models_dir, verify

__all__ = [
    "Entry",
    "HubSource",
    "ModelFile",
    "Progress",
    "WheelSource",
    "default_model",
    "entries",
    "entry",
    "label",
    "models_dir",
    "pull",
    "resolve",
    "verify",
]

_MODULES = {  # imported when they are first asked for, which keeps `import edgespec` quick
    "catalogue": (
        "Entry",
        "HubSource",
        "ModelFile",
        "WheelSource",
        "default_model",
        "entries",
        "entry",
    ),
    "downloads": ("pull",),
    "references": ("resolve",),
    "storage": ("Progress", "models_dir", "verify"),
}

# Without a handler Python prints the warnings of a library that nobody configured.
logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
