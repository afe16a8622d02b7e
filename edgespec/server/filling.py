"""Tells whether the served model fills in the middle of texts, and what ends its answers then."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence

from ..backends.base import Tokenizer
from ..config import SamplingParams
from ..decoding.infill import Infill, Markers, markers_of
from .errors import ApiError, bad_value

logger = logging.getLogger("edgespec.server")


class Filling:
    """The served model's markers for filling in the middle of texts.

    markers: None if the vocabulary has none. is_trained: True if the catalogue says that the model
    was trained for this.
    """

    def __init__(self, tokenizer: Tokenizer, *, is_trained: bool = False) -> None:
        self.markers = markers_of(tokenizer)
        self._is_trained = is_trained
        self._has_warned = False
        self._texts: list[str] = []
        if self.markers:
            ids = (self.markers.prefix, self.markers.suffix, self.markers.middle)
            texts = (tokenizer.token_text(token).decode() for token in ids if token is not None)
            self._texts = list(texts)

    @property
    def kind(self) -> str | None:
        """Return "trained", "markers" if only the vocabulary has markers, None if it has none."""
        if not self.markers:
            return None
        return "trained" if self._is_trained else "markers"

    def required(self, param: str) -> Markers:
        """Return the markers, and log a warning once if it is not known that the model was trained
        with them. Raises ApiError (400) if there are none. param: the field that asks for them.
        """
        if not self.markers:
            raise _unsupported(param)
        if not self._is_trained and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "the model has markers for filling in the middle of texts, but edgespec's "
                "catalogue does not say that it was trained for this: answers may not fit; "
                "qwen2.5-coder-1.5b was trained for it"
            )
        return self.markers

    def ended(self, params: SamplingParams, prompts: Sequence[object]) -> SamplingParams:
        """Return settings with which the markers end an answer, if a prompt has such markers or a
        hole. A form ends answers by itself.
        """
        if not self.markers or params.is_constrained or not any(map(self._has_hole, prompts)):
            return params
        ends = tuple({*params.stop_token_ids, *self.markers.all})
        return dataclasses.replace(params, stop_token_ids=ends)

    def _has_hole(self, prompt: object) -> bool:
        if isinstance(prompt, str):
            return any(text in prompt for text in self._texts)
        if isinstance(prompt, list) and self.markers:
            ids = (self.markers.prefix, self.markers.suffix, self.markers.middle)
            return not set(prompt).isdisjoint(ids)
        return isinstance(prompt, Infill)


def _unsupported(param: str) -> ApiError:
    return bad_value(
        param,
        "this model cannot fill in the middle of texts: its vocabulary has no markers for it; use "
        "a model that was trained for it, such as qwen2.5-coder-1.5b",
        "unsupported_parameter",
    )
