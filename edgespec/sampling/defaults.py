"""Default sampling settings, for requests that do not name their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..config import SamplingParams, build
from ..errors import ConfigError
from ..setting import settings_of

_SETTINGS = {name: each for name, each in settings_of(SamplingParams).items() if each.shapes_rows}
SETTINGS = tuple(_SETTINGS)
"""The fields of SamplingParams that may have a default."""

_NEUTRAL = SamplingParams()


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Default settings for requests that do not name their own; without any, decoding is greedy.

    settings: values for some of SETTINGS. source: a description of where the values come from.
    """

    settings: Mapping[str, float] = field(default_factory=dict)
    source: str = ""

    def params(self, named: Mapping[str, Any]) -> SamplingParams:
        """Return the settings of a request that names some fields of SamplingParams.

        A named setting replaces only its own default. At temperature 0 a request gets no defaults:
        greedy text is the argmax, without penalties that were not asked for. Raises ConfigError.
        """
        params = build(SamplingParams, {**self.settings, **named})
        return params if params.temperature else build(SamplingParams, named)

    def replaced(self, named: Mapping[str, Any]) -> SamplingDefaults:
        """Return these defaults with some settings replaced.

        If the named temperature is 0, the result has only the named settings. Raises ConfigError.
        """
        if not isinstance(named, Mapping) or any(name not in SETTINGS for name in named):
            raise ConfigError(f"sampling is made of {', '.join(SETTINGS)}, got {named!r:.80}")
        params = self.params(named)
        settings = self.settings if params.temperature or "temperature" not in named else {}
        return SamplingDefaults({**settings, **named}, self._source(named))

    def describe(self, named: Mapping[str, Any]) -> str:
        """Return one line that describes the sampling of a request that names these fields, and the
        source of its settings.
        """
        text, source = in_words(self.params(named)), self._source(named)
        return f"{text} ({source})" if source else text

    def __str__(self) -> str:
        return self.describe({})

    def _source(self, named: Mapping[str, Any]) -> str:
        asked = ", ".join(name for name in SETTINGS if name in named)
        if not asked:
            return self.source
        params = self.params(named)
        has_rest = any(_SETTINGS[name].is_on(params) for name in self.settings if name not in named)
        return f"{asked} as asked, the rest {self.source}" if has_rest else "as asked"


GREEDY = SamplingDefaults()


def in_words(params: SamplingParams) -> str:
    """Return a description of a request's sampling, such as "temperature 0.7, top_p 0.8"."""
    said = [
        f"{name} {getattr(params, name):g}"
        for name in SETTINGS[1:]
        if _SETTINGS[name].is_on(params)
    ]
    if params.temperature:
        return ", ".join([f"temperature {params.temperature:g}", *said])
    return ", ".join(["greedy", *(text for text in said if "penalty" in text)])
