"""Model names become files: catalogue entries, references, downloads."""

import logging

from ..backends.files import label
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

# Without a handler Python prints the warnings of a library whose logging is not configured.
logging.getLogger(__name__).addHandler(logging.NullHandler())
