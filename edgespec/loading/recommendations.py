"""Recommended sampling settings, from a model's file or from the catalogue.

Files are not trusted: a value that is not a number, or is out of bounds, is left out.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import backends, hub
from ..backends import files
from ..backends.base import FileModel
from ..config import SamplingParams
from ..errors import ConfigError
from ..sampling.defaults import GREEDY, SETTINGS, SamplingDefaults
from .companions import entry_of
from .models import Reference

logger = logging.getLogger("edgespec.loading")

LLAMA_CPP = SamplingDefaults(
    {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    "llama.cpp's defaults, as none are published",
)
"""The settings if nothing is recommended: most authors of GGUFs tried their files with these."""

_MOST_SHOWN = 8  # settings that a line of the log names
_UNSUPPORTED = {  # settings that edgespec does not have, each with the value that turns it off
    "mirostat": 0, "xtc_probability": 0, "typical_p": 1, "epsilon_cutoff": 0, "eta_cutoff": 0,
    "num_beams": 1, "no_repeat_ngram_size": 0,
}  # fmt: skip


def recommended(model: FileModel, reference: Reference) -> SamplingDefaults | None:
    """Return the sampling that a model's file recommends, or else the catalogue; None if neither
    recommends any.
    """
    sampling = published(backends.of(model.path).published_sampling(model), files.label(model.path))
    if sampling is not None:
        return SamplingDefaults(sampling, "published with the model")
    return of_entry(entry_of(reference, model.path))


def of_entry(entry: hub.Entry | None) -> SamplingDefaults | None:
    """Return the sampling that a catalogue entry recommends, None if it recommends none."""
    if entry is None or not entry.sampling:
        return None
    return SamplingDefaults(entry.sampling, "from edgespec's catalogue")


def defaults_of(model: FileModel, reference: Reference) -> SamplingDefaults:
    """Return the default sampling for a model that was loaded from a reference."""
    return recommended(model, reference) or LLAMA_CPP


def remote_defaults(
    url: str, served: str, local: FileModel | None, reference: Reference | None
) -> SamplingDefaults:
    """Return the default sampling for a target on another machine.

    served: the name or file of the target there. local: the local model, used while the target is
    away; it was loaded from `reference`. The default is greedy if no recommendation is found. It is
    always greedy for other inference servers, which cannot sample one token at a time with a seed
    or with penalties.
    """
    if not url.startswith(("ws://", "wss://")):
        return GREEDY
    if local is not None and reference is not None:
        return recommended(local, reference) or GREEDY
    return of_entry(entry_of(files.stem_of(served), Path(served))) or GREEDY


def published(given: Mapping[str, Any], name: str) -> dict[str, float] | None:
    """Return the usable settings that a file recommends, None if there are none.

    given: the unchecked settings, with the names of generation_config.json. A recommendation is
    complete: a setting that it does not name is off, and the temperature is then 1, as in
    transformers and vLLM. name: the file's name for the log, which gets one line about the settings
    that are not used.
    """
    asked = {key: value for key, value in given.items() if value is not None}
    settings = {key: asked[key] for key in SETTINGS if key in asked and _is_usable(key, asked[key])}
    left = [key for key in SETTINGS if key in asked and key not in settings]
    left += [key for key, off in _UNSUPPORTED.items() if asked.get(key, off) != off]
    if left:
        logger.warning("%s recommends sampling that is not used: %s", name, _shown(asked, left))
    if asked.get("do_sample") is False:
        return {**settings, "temperature": 0.0}
    if asked.get("penalty_last_n") == 0:  # llama.cpp then penalises no tokens
        settings.pop("repetition_penalty", None)
    return {"temperature": 1.0, **settings} if settings else None


def _is_usable(name: str, value: Any) -> bool:
    """Return True for a number that SamplingParams takes."""
    try:
        SamplingParams(**{name: value})
    except (ConfigError, OverflowError):
        return False
    return True


def _shown(asked: Mapping[str, Any], names: list[str]) -> str:
    more = " …" if len(names) > _MOST_SHOWN else ""
    return ", ".join(f"{name} {asked[name]!r:.40}" for name in names[:_MOST_SHOWN]) + more
