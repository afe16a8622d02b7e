"""The common part of all trained heads on llama.cpp. Each head has a context of its own next to the
target's. Its cache has one cell for every token of the text that the head has read.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...config import EngineConfig
from ...types import Abort, Outputs
from ..base import FileHead, FileModel
from ..chunks import chunk_ends
from ..features import Features, States
from ..levels import decode_by_levels
from .batch import Part, StateBatch
from .branches import N_SEQUENCES
from .context import LEAST_N_CTX, MAX_ROWS, Native, context_params, init_context
from .devices import chosen
from .evaluation import TextInContext
from .head_files import HeadFile
from .library import lib
from .model import LlamaCppModel
from .weights import load_weights


class LlamaCppHead(TextInContext, FileHead):
    """The base class of all kinds of heads, under the `Head` contract.

    A head may use weights of its target: close it before the target. Its cache has one token for
    every token of the text from `start` on.
    """

    n_states = 0

    def __init__(self, path: Path, config: EngineConfig, target: FileModel, file: HeadFile) -> None:
        self.path = Path(path)
        self.config = replace(  # drafts may differ by rounding
            config, batch_invariant=False, n_ctx=config.n_ctx or target.n_ctx
        )
        facts = file.facts
        self.kind, self.layers, self.max_depth = facts.kind, facts.layers, facts.max_depth
        self._target = target  # keeps its weights alive as long as this head
        self._file = file
        self.features = Features(shape=(len(facts.layers), target.hidden_size))
        self.start = 0
        self._take(self._open(file))

    def for_slot(self, target: FileModel) -> FileHead | None:
        """Return a head over the same weights for another slot, with a context of its own."""
        file = replace(self._file, opened=self.native)
        twin = type(self)(self.path, self.config, target, file)
        twin.lock = self.lock
        return twin

    def decode_tree(
        self, tokens: Sequence[int], parents: Sequence[int], abort: Abort | None = None
    ) -> Outputs:
        """Append tokens and grow a tree after them; return float32 [len(parents) + 1,
        vocab_size].
        """
        return decode_by_levels(self, tokens, parents, abort)

    def keep(self, path: Sequence[int]) -> None:
        """Drop all nodes. Raises ValueError for a path that is not empty."""
        if path:
            raise ValueError(f"the nodes of a head do not stay; keep () instead of {tuple(path)}")
        self.truncate(self.n_past - self._n_nodes)

    def checkpoint(self) -> int:
        """Return the number of tokens without nodes, which is a complete checkpoint because the
        cache can be truncated.
        """
        return self.n_past - self._n_nodes

    def fingerprint(self) -> dict[str, Any]:
        """Return everything that the speed depends on, and the head's kind: a head may be in the
        same file as its target.
        """
        return super().fingerprint() | {"head": self.kind}

    def _open(self, file: HeadFile) -> Native:
        """Load the head's weights and make a context over them. Raises ModelError or a subclass."""
        return open_native(self.path, self._params, self.config, file)

    def _params(self, model: Any) -> Any:
        """Return the native settings of the context over a native model."""
        params = context_params(model, self.config)
        params.n_ubatch = MAX_ROWS  # the engine reserves logits for this many tokens at once
        params.n_seq_max, params.kv_unified = self._n_sequences(), True
        return params

    def _can_truncate(self) -> bool:
        """Return True: a head has an ordinary KV cache, even if its target has a recurrent
        state.
        """
        return True

    def _n_sequences(self) -> int:
        return 1 if self.config.flash_attn == "off" else N_SEQUENCES

    def _known(self, n_tokens: int) -> tuple[int, int, int]:
        """Return (first, begin, end) for reading the next `n_tokens` tokens. first: the position of
        the state that the first of them is read with. begin, end: the range of needed positions
        whose states the target has given.
        """
        first = self.start + self.n_past - 1  # a token is read with the states before it
        begin = min(max(first, self.features.start), first + n_tokens)
        return first, begin, max(begin, min(first + n_tokens, self.features.end))


class FedBackHead(LlamaCppHead):
    """A head that reads its own states in place of the target's for tokens that the target has not
    evaluated yet. `_width`: the width of the states that it reads, and of those that `_outputs`
    returns.
    """

    def __init__(self, path: Path, config: EngineConfig, target: FileModel, file: HeadFile) -> None:
        self._width = file.width
        self._own: States = np.empty((0, file.width), np.float32)  # the root's, then the nodes'
        super().__init__(path, config, target, file)

    def decode(
        self, tokens: Sequence[int], n_logits: int = 1, abort: Abort | None = None
    ) -> Outputs:
        """Append tokens that the target has evaluated; return float32 [n_logits, vocab_size]."""
        if self._n_nodes:
            self.keep(())
        ends, n_tokens = chunk_ends(self, len(tokens), n_logits), len(tokens)
        n_outputs = max(1, n_logits)  # growing nodes needs the state of the last token
        # wanted rows get a call of their own: the engine always returns the first rows of a call
        ends += [n_tokens - n_outputs, n_tokens]
        self._own, done = self._own[:0], 0
        for end in ends:
            if end > done:
                self._write_states(end - done, abort)
                self._append(tokens[done:end], n_outputs if end == n_tokens else 0, abort)
                done = end
        self._own = self._outputs(n_outputs)[-1:].copy()
        return self._rows.first(n_logits)

    def grow(
        self, tokens: Sequence[int], parents: Sequence[int], abort: Abort | None = None
    ) -> Outputs:
        """Append nodes, read with the head's own states; return float32 [len(tokens),
        vocab_size].
        """
        start, n = self.n_past - self._n_nodes, len(tokens)
        self._check_root()
        try:
            chunk_ends(self, n, n)
            sequences, positions = self.branches.grow(parents, start)
            self._states[:n] = self._own[[parent + 1 for parent in parents]]
            part = Part(tokens, positions, sequences, n)
            self._evaluate(self._batch.fill_parts([part]), n, abort)
            self._own = np.concatenate([self._own, self._outputs(n)])
        except BaseException:
            root = self._own[:1]
            self._drop_tree(start)
            self._own = root[: int(self.n_past == start)]
            raise
        self._n_nodes += n
        return self._rows.first(n)

    def truncate(self, n_past: int) -> None:
        """Forget everything from `n_past` on."""
        if n_past < self.n_past:
            text = self.n_past - self._n_nodes  # its last token keeps its state
            self._own = self._own[: int(n_past >= text)]
        super().truncate(n_past)

    def _write_states(self, n_tokens: int, abort: Abort | None) -> None:
        """Fill `_states` with the states that the next tokens are read with; missing states are
        zeros.
        """
        raise NotImplementedError

    def _append(self, tokens: Sequence[int], n_outputs: int, abort: Abort | None) -> None:
        """Evaluate tokens of the text; outputs are wanted for the last `n_outputs`."""
        self._evaluate(self._batch.fill(tokens, self.n_past, n_outputs), len(tokens), abort)

    def _check_root(self) -> None:
        if not len(self._own):
            raise ValueError("nodes grow after a token that `decode` has read last")

    def _use(self, context: Any) -> None:
        super()._use(context)
        self._batch = batch = StateBatch(self.capabilities.max_batch, self._width)
        self._states = batch.states
        lib.llama_set_embeddings_nextn(context, True, True)

    def _outputs(self, n: int) -> States:
        """Return a view of the head's states for the first `n` outputs of the last evaluation."""
        address = lib.llama_get_embeddings_nextn(self._context)
        native = (ctypes.c_float * (n * self._width)).from_address(address)
        return np.ctypeslib.as_array(native).reshape(n, self._width)


def open_native(path: Path, params_of: Any, config: EngineConfig, file: HeadFile) -> Native:
    """Load a head's weights, unless they are open already, and make a context over them. If the
    head borrows weights from the target, also make a context over the target's weights.

    params_of: a function that returns the native settings of the head's context.
    """
    if file.opened:
        return _another_context(path, params_of, file.opened)
    gpus = chosen(config)
    model, log = load_weights(
        path,
        n_gpu_layers=config.n_gpu_layers if gpus else 0,
        gpus=gpus,
        use_extra_bufts=config.use_extra_bufts,
        load_mtp=file.n_mtp > 0,
    )
    other = None
    try:
        params = params_of(model)
        if file.lender:
            other = params.ctx_other = _lent(file.lender)
        context, more = init_context(path, model, params)
    except BaseException:
        if other:
            lib.llama_free(other)
        lib.llama_model_free(model)
        raise
    return Native(model, context, log + more, other)


def _another_context(path: Path, params_of: Any, opened: Native) -> Native:
    """Make a further context over weights that are open already."""
    params = params_of(opened.model)
    if opened.other:
        params.ctx_other = opened.other
    context, log = init_context(path, opened.model, params)
    return Native(opened.model, context, log, owns_model=False)


def _lent(target: LlamaCppModel) -> Any:
    """Make the smallest possible context over the target's weights and return it. Through it, the
    engine finds the weights that a head borrows. The target's own context may be replaced, so it
    cannot be used for this.
    """
    params = lib.llama_context_default_params()
    params.n_ctx = LEAST_N_CTX
    params.n_batch = params.n_ubatch = params.n_outputs_max = params.n_threads = 1
    context, _ = init_context(target.path, target.native.model, params)
    return context
