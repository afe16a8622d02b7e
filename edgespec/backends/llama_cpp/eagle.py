"""EAGLE-3 on llama.cpp (arXiv 2503.01840).

A head fuses the target's hidden states of three layers into one state of the head's width. It reads
this state together with the next token. With tokens that the target has not evaluated yet, it reads
its own state of the previous token instead.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...config import EngineConfig
from ...errors import Aborted, DecodeError
from ...types import Abort
from ..base import FileModel
from ..features import States
from .batch import StateBatch
from .context import MAX_ROWS
from .head import FedBackHead
from .head_files import HeadFile
from .library import lib


class LlamaCppEagle(FedBackHead):
    """A GGUF of an EAGLE-3 head under the `Head` contract."""

    def __init__(self, path: Path, config: EngineConfig, target: FileModel, file: HeadFile) -> None:
        self._fused = len(file.facts.layers) * target.hidden_size
        super().__init__(path, config, target, file)

    def _use(self, context: Any) -> None:
        super()._use(context)
        self._encoded = StateBatch(MAX_ROWS, self._fused)

    def _write_states(self, n_tokens: int, abort: Abort | None) -> None:
        first, begin, end = self._known(n_tokens)
        self._states[:n_tokens] = 0
        for at in range(begin, end, MAX_ROWS):
            states = self.features.of(at, min(at + MAX_ROWS, end))
            self._states[at - first : at - first + len(states)] = self._encode(states, abort)

    def _encode(self, states: States, abort: Abort | None) -> States:
        """Return the fused states of at most MAX_ROWS tokens, as a view."""
        n = len(states)
        self._encoded.states[:n] = states.reshape(n, self._fused)
        with self.lock:
            batch = self._encoded.fill_states(n, self.n_past, n)
            code = self._decode_abortable(batch, abort, lib.llama_encode)
        if code == 2:
            raise Aborted(f"stopped after {self.n_past} tokens")
        if code:
            raise DecodeError(f"{self.path.name}: llama_encode failed with code {code}")
        return self._outputs(n)
