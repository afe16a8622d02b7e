"""Sampling that is the model's own: what its file or the catalogue recommends.

Files come from elsewhere: what has another type than a number, or is out of bounds, is left out.
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
"""What is taken where nothing is recommended: most GGUFs were tried with it by their makers."""

_MOST_SHOWN = 8  # settings that a line of the log names
_UNSUPPORTED = {  # what would change the text and is not done here, and the value that does not
    "mirostat": 0, "xtc_probability": 0, "typical_p": 1, "epsilon_cutoff": 0, "eta_cutoff": 0,
    "num_beams": 1, "no_repeat_ngram_size": 0,
}  # fmt: skip


def recommended(model: FileModel, reference: Reference) -> SamplingDefaults | None:
    """Return what the file of a model recommends, or else the catalogue; None if neither does."""
    sampling = published(backends.of(model.path).published_sampling(model), files.label(model.path))
    if sampling is not None:
        return SamplingDefaults(sampling, "published with the model")
    return of_entry(entry_of(reference, model.path))


def of_entry(entry: hub.Entry | None) -> SamplingDefaults | None:
    """Return what the catalogue recommends for a model, None if nothing."""
    if entry is None or not entry.sampling:
        return None
    return SamplingDefaults(entry.sampling, "from edgespec's catalogue")


def defaults_of(model: FileModel, reference: Reference) -> SamplingDefaults:
    """Return the sampling of requests to a model that was loaded from a reference."""
    return recommended(model, reference) or LLAMA_CPP


def remote_defaults(
    url: str, served: str, local: FileModel | None, reference: Reference | None
) -> SamplingDefaults:
    """Return the sampling of requests to a target on another machine.

    served: the name or file of the target there. local: the model for when it is away, loaded
    from `reference`. Where neither tells of a recommendation, it is greedy. So it is on other
    inference servers, which cannot sample with a seed or with penalties one token at a time.
    """
    if not url.startswith(("ws://", "wss://")):
        return GREEDY
    if local is not None and reference is not None:
        return recommended(local, reference) or GREEDY
    return of_entry(entry_of(files.stem_of(served), Path(served))) or GREEDY


def published(given: Mapping[str, Any], name: str) -> dict[str, float] | None:
    """Return the usable settings that a file recommends, None if there are none.

    given: under the names of generation_config.json, unchecked. A recommendation is whole: what it
    does not name is off, and the temperature 1, as in transformers and vLLM. name: of the file, for
    the log, which gets one line about what is not used.
    """
    asked = {key: value for key, value in given.items() if value is not None}
    settings = {key: asked[key] for key in SETTINGS if key in asked and _is_usable(key, asked[key])}
    left = [key for key in SETTINGS if key in asked and key not in settings]
    left += [key for key, off in _UNSUPPORTED.items() if asked.get(key, off) != off]
    if left:
        logger.warning("%s recommends sampling that is not used: %s", name, _shown(asked, left))
    if asked.get("do_sample") is False:
        return {**settings, "temperature": 0.0}
    if asked.get("penalty_last_n") == 0:  # llama.cpp looks back so many tokens to penalise some
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
