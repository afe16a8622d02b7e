"""DFlash on llama.cpp (arXiv 2602.06036): one evaluation guesses a block of tokens.

The target's hidden states of several layers become keys and values in the head's cache, at their
positions in the text. A block is the last token followed by mask tokens. All tokens of a block see
the cache and each other. At each mask token, the head guesses the token that comes there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...config import EngineConfig
from ...errors import Aborted, ContextFull
from ...types import Abort, Outputs
from ..base import FileModel
from ..chunks import chunk_ends
from .batch import Batch, StateBatch
from .context import MAX_ROWS
from .evaluation import TextInContext
from .head import LlamaCppHead
from .head_files import HeadFile
from .library import lib


class LlamaCppDFlash(LlamaCppHead):
    """A GGUF of a DFlash head under the `Head` contract.

    For each token that was read, the cache holds the target's states of the token before it: the
    states at position p of the text lie at p - start + 1 in the cache. A node gets the block's row
    for the node's depth; the tokens on its path do not matter.
    """

    def __init__(self, path: Path, config: EngineConfig, target: FileModel, file: HeadFile) -> None:
        self._size, self._mask = file.facts.max_depth + 1, file.mask
        self._joined = len(file.facts.layers) * target.hidden_size
        self._last = -1  # the last token that was read
        self._block: npt.NDArray[np.float32] | None = None  # the rows of all depths after it
        self._depths: list[int] = []  # the depth of each node
        super().__init__(path, config, target, file)

    def decode(
        self, tokens: Sequence[int], n_logits: int = 1, abort: Abort | None = None
    ) -> Outputs:
        """Read tokens that the target has evaluated; return float32 [n_logits, vocab_size], at most
        one row.
        """
        self._forget_block()
        ends = [*chunk_ends(self, len(tokens), n_logits), len(tokens)]
        for done, end in zip([0, *ends], ends, strict=False):
            if abort and abort():
                raise Aborted(f"stopped after {self.n_past} tokens")
            self._inject(end - done, abort)
        self._last = tokens[-1]
        if not n_logits:
            return Outputs(np.empty((0, self.vocab_size), np.float32))
        return Outputs(self._guessed(abort)[:1])

    def grow(
        self, tokens: Sequence[int], parents: Sequence[int], abort: Abort | None = None
    ) -> Outputs:
        """Append nodes, whose tokens the head ignores; return float32 [len(tokens), vocab_size]."""
        depths = list(self._depths)
        if self._last < 0:
            raise ValueError("nodes grow after a token that `decode` has read last")
        for parent in parents:
            depths.append(depths[parent] + 1 if parent >= 0 else 1)
        try:
            if max(depths) >= self.max_depth:
                raise ValueError(
                    f"a node at depth {max(depths)}; the head guesses {self.max_depth} tokens, the "
                    "first of them by `decode`"
                )
            if self.n_past + len(tokens) > self.n_ctx:
                raise ContextFull(
                    f"{len(tokens)} nodes do not fit after {self.n_past} tokens in a context of "
                    f"{self.n_ctx}; load the head with a larger n_ctx"
                )
            rows = self._guessed(abort)[depths[len(self._depths) :]]
        except BaseException:
            self.keep(())
            raise
        self._depths = depths
        self._n_nodes = len(depths)
        self.n_past += len(tokens)
        return Outputs(rows)

    def truncate(self, n_past: int) -> None:
        """Forget everything from `n_past` on, and all nodes."""
        if n_past >= self.n_past:
            return
        text = self.n_past - self._n_nodes
        self._depths, self._n_nodes, self.n_past = [], 0, text
        if n_past < text:
            self._forget_block()
            super().truncate(n_past)

    def _params(self, model: Any) -> Any:
        params = super()._params(model)
        # attention without a causal mask must fit into one evaluation, or the process ends
        params.n_batch = params.n_ubatch
        params.n_ctx += self._size  # room for the block after the text
        return params

    def _n_sequences(self) -> int:
        return 1

    def _use(self, context: Any) -> None:
        super()._use(context)
        lib.llama_set_causal_attn(context, False)
        self.n_ctx -= self._size
        self.capabilities = replace(self.capabilities, max_rows=1, max_leaves=MAX_ROWS - 1)
        self._joint = StateBatch(self.capabilities.max_batch, self._joined)
        self._batch = Batch(self._size)

    def _forget_block(self) -> None:
        self.n_past -= self._n_nodes
        self._depths, self._n_nodes = [], 0
        self._block, self._last = None, -1

    def _inject(self, n_tokens: int, abort: Abort | None) -> None:
        """Read the next `n_tokens` tokens: write the target's states of the tokens before them to
        the cache. At the beginning of the cache, missing states take no cell. Later missing states
        are zeros.
        """
        first, begin, end = self._known(n_tokens)
        if lib.llama_memory_seq_pos_min(self._memory, 0) < 0:
            n_skipped = begin - first if begin < end else n_tokens
            self.n_past += n_skipped
            n_tokens -= n_skipped
            first += n_skipped
        if not n_tokens:
            return
        states = self._joint.states[:n_tokens]
        states[:] = 0
        if begin < end:
            known = self.features.of(begin, end)
            states[begin - first : end - first] = known.reshape(len(known), -1)
        self._evaluate(self._joint.fill_states(n_tokens, self.n_past, 0), n_tokens, abort)

    def _guessed(self, abort: Abort | None) -> npt.NDArray[np.float32]:
        """Return the rows of all depths after the last token, [max_depth, vocab_size], a view valid
        until the next token is read.
        """
        if self._block is None:
            text, size = self.n_past, self._size
            tokens = [self._last, *[self._mask] * (size - 1)]
            try:
                self._evaluate(self._batch.fill(tokens, text, size), size, abort)
                self._block = self._rows.first(size).logits[1:]
            finally:
                TextInContext.truncate(self, text)
        return self._block
