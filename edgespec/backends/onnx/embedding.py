"""The graph that turns token ids into the embeddings that a decoder reads in their place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...config import EngineConfig
from ...errors import ModelError, ModelNotFound, UnknownArchitecture
from .. import files
from .session import open_session

EMBEDS = "inputs_embeds"

Tokens = Sequence[int] | npt.NDArray[Any]
"""Token ids, or embeddings in place of tokens, [n, width]."""


class Embedding:
    """The graph embed_tokens next to a decoder. For several threads.

    width: the count of numbers in an embedding. wanted: what the decoder's graph says that it is.
    Raises the errors of `open_session`, ModelNotFound if the graph is missing, UnknownArchitecture
    for another kind of graph, and ModelError for another width.
    """

    def __init__(self, decoder: Path, config: EngineConfig, wanted: Any) -> None:
        path = files.stage(decoder, files.EMBEDDING)
        if path is None:
            raise ModelNotFound(
                f"{decoder} reads embeddings, and there is no {files.EMBEDDING}….onnx next to it, "
                f"which makes them of tokens; {files.to_fetch_again(decoder)}"
            )
        self.path = path
        self._session: Any = open_session(path, replace(config, provider="cpu"), 1)
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        names = [each.name for each in inputs]
        if names != ["input_ids"] or not outputs[0].type.startswith("tensor(float"):
            raise UnknownArchitecture(
                f"{path} takes {', '.join(names) or 'nothing'} and returns {outputs[0].type}; "
                "input_ids and numbers are expected: fetch it again"
            )
        self._dtype = np.int32 if inputs[0].type == "tensor(int32)" else np.int64
        self.width = int(self([0]).shape[-1])
        if isinstance(wanted, int) and self.width != wanted:
            raise ModelError(
                f"{path} makes embeddings of {self.width} numbers, {decoder} reads {wanted}: fetch "
                "both from the same repository"
            )

    @classmethod
    def of(cls, decoder: Path, config: EngineConfig, session: Any) -> Embedding | None:
        """Return the embedding of a decoder that is open, None for a decoder that reads ids."""
        for each in session.get_inputs():
            if each.name == EMBEDS:
                return cls(decoder, config, each.shape[-1])
        return None

    def __call__(self, tokens: Tokens) -> npt.NDArray[Any]:
        """Return the embeddings of tokens, [n, width]. Embeddings are returned as they are."""
        if isinstance(tokens, np.ndarray):
            return tokens
        ids = np.array([tokens], self._dtype)
        rows: npt.NDArray[Any] = self._session.run(None, {"input_ids": ids})[0][0]
        return rows
