"""Gemma 4's assistants on llama.cpp: MTP layers in a file of their own. They compute no keys and
values, but attend to those in their target's cache.

All tokens of a draft have the same position: the one after the last token that the target has
evaluated. Each is read with the state of the token before it. Nothing is added to the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from ...config import EngineConfig
from ...errors import DecodeError
from ...types import Abort, Outputs
from ..base import FileModel
from ..chunks import chunk_ends
from .batch import Part
from .context import Native
from .head_files import HeadFile
from .library import lib
from .model import LlamaCppModel
from .mtp import LlamaCppMtp


class LlamaCppAssistant(LlamaCppMtp):
    """An assistant under the `Head` contract.

    Of the text, it evaluates only the tokens whose rows are wanted. All of them see the target's
    whole cache, also the tokens after their own place in the text. So only the last token is
    evaluated as in the assistant's training. Loading it empties the target's cache: open it before
    there is a text, and close it before the target. Its own config gives only the numbers of
    threads. The target's config gives everything else, because the two contexts share one cache.
    """

    n_states = 1

    def __init__(self, path: Path, config: EngineConfig, target: FileModel, file: HeadFile) -> None:
        self._lender = lender = cast(LlamaCppModel, target)  # `fitting` checked this
        config = replace(
            lender.config,
            n_ctx=lender.n_ctx,
            n_threads=config.n_threads,
            n_threads_batch=config.n_threads_batch,
            flash_attn="on" if lender.flash_attn else "off",
        )
        super().__init__(path, config, target, file)

    def for_slot(self, target: FileModel) -> None:
        """Return None: an assistant looks at its target's whole cache, which all slots share."""

    def decode(
        self, tokens: Sequence[int], n_logits: int = 1, abort: Abort | None = None
    ) -> Outputs:
        """Append tokens that the target has evaluated; return float32 [n_logits, vocab_size]."""
        if self._n_nodes:
            self.keep(())
        chunk_ends(self, len(tokens), n_logits)
        n, text = max(1, n_logits), self.n_past
        self._own = self._own[:0]
        self.n_past = text + len(tokens) - n
        self._write_states(n, abort)
        try:
            self._guess(tokens[-n:], abort)
        except BaseException:
            self.n_past = text
            raise
        self.n_past = text + len(tokens)
        self._own = self._outputs(n)[-1:].copy()
        return self._rows.first(n_logits)

    def grow(
        self, tokens: Sequence[int], parents: Sequence[int], abort: Abort | None = None
    ) -> Outputs:
        """Append nodes, read with the head's own states; return float32 [len(tokens),
        vocab_size].
        """
        n, n_past = len(tokens), self.n_past
        self._check_root()
        try:
            chunk_ends(self, n, n)
            self._states[:n] = self._own[[parent + 1 for parent in parents]]
            self._guess(tokens, abort)
        except BaseException:
            self.n_past = n_past
            self.keep(())
            raise
        self._own = np.concatenate([self._own, self._outputs(n)])
        self._n_nodes += n
        self.n_past = n_past + n
        return self._rows.first(n)

    def truncate(self, n_past: int) -> None:
        """Forget everything from `n_past` on."""
        if n_past < self.n_past:
            text = self.n_past - self._n_nodes
            self._own = self._own[: int(n_past >= text)]
            self.n_past, self._n_nodes = n_past, max(0, n_past - text)

    def _guess(self, tokens: Sequence[int], abort: Abort | None) -> None:
        """Evaluate tokens after the last one in the target's cache. Raises DecodeError if the
        target has replaced its cache since this head was opened.
        """
        if self._lender.native.context != self._shared:
            raise DecodeError(
                f"{self.path.name} looks at a cache that its target has given up for another one; "
                "load both again"
            )
        n, place = len(tokens), lib.llama_memory_seq_pos_max(self._memory, 0) + 1
        part = Part(tokens, [place] * n, [range(1)] * n, n)
        self._evaluate(self._batch.fill_parts([part]), n, abort)

    def _open(self, file: HeadFile) -> Native:
        self._lender.lends = True
        self._lender.truncate(0)  # sharing a cache makes the engine forget its contents
        return super()._open(file)

    def _take(self, native: Native) -> None:
        super()._take(native)
        self.lock = self._lender.lock

    def _params(self, model: Any) -> Any:
        params = super()._params(model)
        params.ctx_other = self._shared = self._lender.native.context
        return params

    def _drop_partial(self) -> int:
        """Return `n_past` as it is: nothing was appended."""
        return self.n_past

    def _clear(self) -> None:
        """Do nothing: the cache is the target's."""
