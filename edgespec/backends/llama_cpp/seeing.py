"""Models that see: tiles of pictures in a text, evaluated with embeddings in place of tokens."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...device import fast_cores
from ...errors import ConfigError
from ...types import Abort, Outputs
from .. import files
from ..base import share_on_gpu
from ..keeping_eyes import embeddings_of
from ..projectors import open_eyes
from ..tiles import Tile
from .declarations import NativeBatch
from .evaluation import Shown
from .eyes import LlamaCppEyes
from .hidden import Tappable
from .library import is_fork, lib


class Seeing(Tappable):
    """A model that may have eyes."""

    def _see(self) -> None:
        """Open the projector that the settings name, or the one in the model's folder. Raises the
        errors of `LlamaCppEyes` for one that is named, and ConfigError if the context is too short
        for a tile.
        """
        opened = open_eyes(self.path, self.config.mmproj, self._lacks(), self._opened)
        eyes, self.why_blind = opened
        if eyes:
            self.eyes = self.native.eyes = eyes
            of = eyes.projector
            self.placement["projector"] = f"{of.path.name} ({of.kind})"

    def _lacks(self) -> str:
        """Return why a model has no projector."""
        repository = files.repository_of(self.path)
        fetch = (
            f"fetch it with `edgespec pull hf:{repository}/mmproj-….gguf`"
            if repository
            else "put it into that folder, or name it as mmproj"
        )
        return (
            f"there is no mmproj-….gguf in {self.path.parent}; if one was published with the "
            f"model, {fetch}"
        )

    def _opened(self, path: Path) -> LlamaCppEyes:
        if is_fork():
            raise ConfigError("ik_llama.cpp's library shows no pictures; leave it out")
        eyes = LlamaCppEyes(
            path,
            self.native.model,
            most_tokens=self.config.image_max_tokens,
            n_threads=self.config.threads(fast_cores())[1],
            use_gpu=share_on_gpu(self.placement) > 0,
        )
        try:
            self._widen_batch(eyes.most_together)
        except BaseException:
            eyes.close()
            raise
        return eyes

    def make_room(self, n_tokens: int) -> None:
        """Free the cells of rejected nodes if the space is needed."""
        raise NotImplementedError

    def _widen_batch(self, n: int) -> None:
        """Make the context evaluate `n` tokens in one native call. For tiles whose tokens see each
        other, the engine would end the process otherwise.
        """
        if n > self.n_ctx:
            raise ConfigError(
                f"a picture can have {n} tokens, the context has {self.n_ctx}; load the model with "
                "a larger n_ctx or a smaller image_max_tokens"
            )
        if n > self.capabilities.max_batch:
            self.config = replace(self.config, n_batch=-(-n // 64) * 64)
            self._renew(None, self.capabilities.rollback)

    def _show(self, tile: Tile, n_logits: int, abort: Abort | None) -> Outputs:
        """Append a tile; encode it first if its embeddings are not known."""
        embeddings = embeddings_of(self, tile, n_logits, abort)
        if self.branches.n_parked:
            self.make_room(tile.n_tokens)
        start = self.n_past
        try:
            with self._attending(tile.is_causal):
                self._append(tile, embeddings, abort)
        except BaseException:
            self.n_past = min(start, self.n_past)
            self.n_past = self._drop_partial()
            raise
        shift = self.position(start) - start + tile.n_positions - tile.n_tokens
        self.shown = [*self.shown, Shown(tile, self.n_past, shift)]
        return self._rows.first(0)

    def _append(self, tile: Tile, embeddings: npt.NDArray[np.float32], abort: Abort | None) -> None:
        """Evaluate the embeddings, in one native call if their tokens see each other."""
        first, n = self.position(self.n_past), tile.n_tokens
        most = self.capabilities.max_batch if tile.is_causal else n
        positions = tile.positions.copy()
        positions[:3] += first  # the fourth row of M-RoPE is not used
        for at in range(0, n, most):
            end = min(at + most, n)
            batch = _EmbeddingBatch(embeddings[at:end], positions[:, at:end], self.branches.text)
            self._evaluate(batch.native, end - at, abort, self._run_tile)
        self._n_last = n

    def _run_tile(self, batch: Any, n_tokens: int, abort: Abort | None) -> int:
        return self._run_untapped(batch, abort)

    @contextlib.contextmanager
    def _attending(self, is_causal: bool) -> Iterator[None]:
        """Let tokens see later ones of the same native call, unless `is_causal`."""
        if is_causal:
            yield
            return
        lib.llama_set_causal_attn(self._context, False)
        try:
            yield
        finally:
            lib.llama_set_causal_attn(self._context, True)


class _EmbeddingBatch:
    """A native batch of embeddings in place of tokens, without logits.

    native: the batch, over arrays that this object keeps. embeddings: float32 [n, width].
    positions: int32 [n_rows, n]. sequence: the id of their sequence.
    """

    def __init__(
        self,
        embeddings: npt.NDArray[np.float32],
        positions: npt.NDArray[np.int32],
        sequence: int,
    ) -> None:
        n = len(embeddings)
        ids = np.array([sequence], np.int32)
        self._arrays: dict[str, npt.NDArray[Any]] = {
            "embd": np.ascontiguousarray(embeddings, np.float32),
            "pos": np.ascontiguousarray(positions, np.int32),
            "n_seq_id": np.ones(n, np.int32),
            "seq_id": np.full(n, ids.ctypes.data, np.uintp),
            "logits": np.zeros(n, np.int8),
        }
        self._ids = ids
        self.native = NativeBatch()
        self.native.n_tokens = n
        for name, array in self._arrays.items():
            kind = type(getattr(self.native, name))
            setattr(self.native, name, ctypes.cast(array.ctypes.data, kind))
