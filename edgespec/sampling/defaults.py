"""The sampling of requests that do not say theirs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..config import SamplingParams, build
from ..errors import ConfigError
from ..setting import settings_of

SETTINGS = tuple(name for name, each in settings_of(SamplingParams).items() if each.shapes_rows)
"""The fields of SamplingParams that a default may have."""

_NEUTRAL = SamplingParams()


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """The settings that a request gets where it does not name them; none are greedy decoding.

    settings: some of SETTINGS. source: where they come from, in words.
    """

    settings: Mapping[str, float] = field(default_factory=dict)
    source: str = ""

    def params(self, named: Mapping[str, Any]) -> SamplingParams:
        """Return the settings of a request that names some fields of SamplingParams.

        A setting that it names replaces that setting alone. At temperature 0 it gets no defaults:
        greedy text is the argmax, without penalties that nobody asked for. Raises ConfigError.
        """
        params = build(SamplingParams, {**self.settings, **named})
        return params if params.temperature else build(SamplingParams, named)

    def replaced(self, named: Mapping[str, Any]) -> SamplingDefaults:
        """Return these defaults with some settings replaced; at temperature 0 with those alone.

        Raises ConfigError.
        """
        if not isinstance(named, Mapping) or any(name not in SETTINGS for name in named):
            raise ConfigError(f"sampling is made of {', '.join(SETTINGS)}, got {named!r:.80}")
        params = self.params(named)
        settings = self.settings if params.temperature or "temperature" not in named else {}
        return SamplingDefaults({**settings, **named}, self._source(named))

    def describe(self, named: Mapping[str, Any]) -> str:
        """Return in one line how a request that names these fields is sampled, and who says so."""
        text, source = in_words(self.params(named)), self._source(named)
        return f"{text} ({source})" if source else text

    def __str__(self) -> str:
        return self.describe({})

    def _source(self, named: Mapping[str, Any]) -> str:
        asked = ", ".join(name for name in SETTINGS if name in named)
        if not asked:
            return self.source
        params = self.params(named)
        has_rest = any(_is_on(params, name) for name in self.settings if name not in named)
        return f"{asked} as asked, the rest {self.source}" if has_rest else "as asked"


GREEDY = SamplingDefaults()


def in_words(params: SamplingParams) -> str:
    """Return the sampling of a request in words, such as "temperature 0.7, top_p 0.8"."""
    said = [f"{name} {getattr(params, name):g}" for name in SETTINGS[1:] if _is_on(params, name)]
    if params.temperature:
        return ", ".join([f"temperature {params.temperature:g}", *said])
    return ", ".join(["greedy", *(text for text in said if "penalty" in text)])


def _is_on(params: SamplingParams, name: str) -> bool:
    return bool(getattr(params, name) != getattr(_NEUTRAL, name))
