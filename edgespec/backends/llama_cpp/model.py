"""A GGUF as a `Model`: one set of weights, one context of one text.

Several live in one process. Logits are computed for wanted rows only and read as views of native
memory.
"""

from __future__ import annotations

import copy
import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ...config import NOT_SPEED, EngineConfig
from ...errors import Aborted, CannotTruncate, ContextFull, DecodeError
from ...types import Abort, Outputs
from ..base import BatchedModel, Capabilities
from ..chunks import chunk_ends
from ..separate import SeparateModels
from .abort import ABORTABLE, AbortableDecode
from .batch import Batch, Part, RowViews
from .batched import LlamaCppBatchedModel
from .branches import N_SEQUENCES, Branches
from .context import (
    MAX_ROWS,
    can_branch,
    can_truncate,
    limited_threads,
    new_context,
    open_native,
    placement,
    with_equal_rows,
)
from .declarations import PARTIAL_ONLY
from .hidden import Tappable, gives_states
from .inspection import identity
from .invariance import most_equal_rows
from .library import lib
from .tokenizer import LlamaCppTokenizer


def open_model(path: Path, config: EngineConfig) -> LlamaCppModel:
    """Load a file, ready to evaluate tokens. Raises as `LlamaCppModel`."""
    return LlamaCppModel(path, config)


class LlamaCppModel(Tappable):
    """A GGUF under the `Model` contract, with `HiddenStates`.

    placement: what went where, as the engine reported it ("CPU model buffer" → MiB, …).
    config: as it runs; batch_invariant decides some settings. So many rows as stay equal to the
    last bit are then the most a call, and are evaluated in a call of their own (rows_apart).
    n_past: how many tokens the cache holds. native, lock: of the weights, which other contexts may
    share; one evaluates at a time.

    Raises ModelNotFound, NotAGGUF, TruncatedModel, UnknownArchitecture, OutOfMemory.
    """

    def __init__(self, path: str | os.PathLike[str], config: EngineConfig | None = None) -> None:
        self.path = Path(path)
        self.config = with_equal_rows(config or EngineConfig())
        self._close: Callable[[], Any] = lambda: None
        self.native = open_native(self.path, self.config)
        self._close = weakref.finalize(self, self.native.free)
        self.lock = threading.Lock()
        model, context = self.native.model, self.native.context
        self.tokenizer = LlamaCppTokenizer(model, owner=self)
        self.vocab_size: int = self.tokenizer.vocab_size
        self.n_ctx_train: int = lib.llama_model_n_ctx_train(model)
        self.n_threads: int = lib.llama_n_threads(context)
        self.n_threads_batch: int = lib.llama_n_threads_batch(context)
        self.placement = placement(self.native.log)
        self.rows_apart = False
        self.thread_limit = 0
        self.capabilities: Capabilities = Capabilities(
            MAX_ROWS, 0, truncate=can_truncate(model), hidden_states=True
        )
        self.n_past = 0
        self._n_nodes = 0  # of a tree that waits for `keep`
        self._use(context)
        if self.config.batch_invariant:
            self._limit_rows(most_equal_rows(self))

    @gives_states
    def decode(
        self, tokens: Sequence[int], n_logits: int = 1, abort: Abort | None = None
    ) -> Outputs:
        """Append tokens; float32 [n_logits, vocab_size], a view valid until the next call."""
        if self._branches.n_parked:
            self._make_room(len(tokens))
        done = 0
        for end in chunk_ends(self, len(tokens), n_logits):
            self._decode_chunk(tokens[done:end], abort)
            done = end
        if self.rows_apart and 0 < n_logits < len(tokens) - done:
            end = len(tokens) - n_logits
            self._decode_chunk(tokens[done:end], abort)
            done = end
        last = tokens[done:] if done else tokens
        self._evaluate(self._batch.fill(last, self.n_past, n_logits), len(last), abort)
        return self._rows.first(n_logits)

    @gives_states
    def decode_tree(
        self, tokens: Sequence[int], parents: Sequence[int], abort: Abort | None = None
    ) -> Outputs:
        """Append tokens and the tree that the last of them are; float32 [n, vocab_size]."""
        n_nodes = len(parents)
        n_before = len(tokens) - n_nodes - 1
        if n_before < 0:
            raise ValueError(f"a tree of {n_nodes} nodes needs a token before it")
        chunk_ends(self, n_nodes + 1, n_nodes + 1)
        if n_before:
            self.decode(tokens[:n_before], 0, abort)
        self._make_room(n_nodes + 1)
        start = self.n_past
        sequences, positions = self._branches.enter(parents, start)
        part = Part(tokens[n_before:], positions, sequences, n_nodes + 1)
        batch = self._batch.fill_parts([part])
        try:
            self._evaluate(batch, n_nodes + 1, abort)
        except BaseException:
            self._drop_tree(start)
            raise
        self._n_nodes = n_nodes
        return self._rows.first(n_nodes + 1)

    @gives_states
    def grow(
        self, tokens: Sequence[int], parents: Sequence[int], abort: Abort | None = None
    ) -> Outputs:
        """Append nodes to a tree; float32 [len(tokens), vocab_size]."""
        start, n = self.n_past - self._n_nodes, len(tokens)
        try:
            chunk_ends(self, n, n)
            sequences, positions = self._branches.grow(parents, start)
            part = Part(tokens, positions, sequences, n)
            self._evaluate(self._batch.fill_parts([part]), n, abort)
        except BaseException:
            self._drop_tree(start)
            raise
        self._n_nodes += n
        return self._rows.first(n)

    def _drop_tree(self, start: int) -> None:
        """Forget what a tree that failed has left behind `start`: the engine has cleaned one
        sequence at most.
        """
        self._branches.truncate(start)
        self._n_nodes = 0
        self.n_past = min(self.n_past, start + 1)
        self.truncate(start)

    def keep(self, path: Sequence[int]) -> None:
        """Make these nodes of the tree just evaluated the cache's tail; the others are gone."""
        root = self.n_past - self._n_nodes - 1
        try:
            self._branches.keep(path)
            self.n_past += len(path) - self._n_nodes
            self._n_nodes = 0
        except BaseException:  # Ctrl-C between two native calls
            self.truncate(root)
            raise

    def truncate(self, n_past: int) -> None:
        """Forget everything from `n_past` on."""
        if n_past >= self.n_past:
            return
        if self._branches.reach > n_past:
            self._branches.truncate(n_past)
            self._n_nodes = 0
        if not lib.llama_memory_seq_rm(self._memory, 0, n_past, -1):
            raise CannotTruncate(
                f"{self.path.name}: the memory of this model cannot be cut at {n_past} "
                f"of {self.n_past} tokens"
            )
        self.n_past = n_past

    def checkpoint(self) -> tuple[int, Any]:
        """Return n_past and the part of the state that cannot be truncated."""
        size = lib.llama_state_seq_get_size_ext(self._context, 0, PARTIAL_ONLY)
        data = (ctypes.c_uint8 * size)()
        if lib.llama_state_seq_get_data_ext(self._context, data, size, 0, PARTIAL_ONLY) != size:
            raise DecodeError(f"{self.path.name}: the engine gave no checkpoint of its state")
        return self.n_past, data

    def restore(self, state: tuple[int, Any]) -> None:
        """Return to a checkpoint."""
        n_past, data = state
        if not n_past:
            self.truncate(0)
            return
        if not lib.llama_state_seq_set_data_ext(self._context, data, len(data), 0, PARTIAL_ONLY):
            raise DecodeError(f"{self.path.name}: the engine refused its own checkpoint")
        if not lib.llama_memory_seq_rm(self._memory, 0, n_past, -1):
            raise DecodeError(f"{self.path.name}: nothing can be dropped behind a checkpoint")
        self.n_past = n_past

    def set_threads(self, n_threads: int, n_threads_batch: int) -> None:
        """Set the threads for one token and for several, from the next evaluation on."""
        self.n_threads, self.n_threads_batch = n_threads, n_threads_batch
        self.limit_threads(0)

    def limit_threads(self, n_threads: int) -> None:
        """Use at most so many threads from the next evaluation on, 0 for as many as are set."""
        self.thread_limit = n_threads
        limited = limited_threads(n_threads, self.n_threads, self.n_threads_batch)
        lib.llama_set_n_threads(self._context, *limited)

    @property
    def flash_attn(self) -> bool:
        """True if flash attention is on, asked for or chosen by the engine."""
        return self.config.flash_attn == "on" or any(
            "Flash Attention enabled" in line for line in self.native.log
        )

    def switches(self) -> dict[str, tuple[Any, Any]]:
        """Return flash attention and repacked weights, unless batch_invariant has decided them."""
        if self.config.batch_invariant:
            return {}
        repacks = self.config.use_extra_bufts
        return {
            "flash_attn": (self.config.flash_attn, "off" if self.flash_attn else "on"),
            "use_extra_bufts": (repacks, not repacks),
        }

    def fingerprint(self) -> dict[str, Any]:
        """Return what the speed of this model depends on: device, build, file, settings. How long
        the context may become is not among it.
        """
        settings = {k: v for k, v in asdict(self.config).items() if k not in NOT_SPEED}
        threads = {"n_threads": self.n_threads, "n_threads_batch": self.n_threads_batch}
        return identity(self.path) | {
            "layers": self.placement.get("layers", ""),
            "settings": settings | threads,
        }

    def batched(self, n_slots: int, n_ctx: int) -> BatchedModel:
        """Return a cache of `n_ctx` tokens with so many slots over the same weights; close it
        before them. If rows are only equal in small evaluations (batch_invariant), each slot has
        a cache of that size and is evaluated by itself. Raises OutOfMemory, ModelError.
        """
        if self.rows_apart:
            return SeparateModels([self._twin(n_ctx) for _ in range(n_slots)])
        return LlamaCppBatchedModel(self, n_slots, n_ctx)

    def close(self) -> None:
        """Free context and weights."""
        self._close()

    def _use(self, context: Any) -> None:
        """Take another context, which is empty."""
        model = self.native.model
        n_sequences = N_SEQUENCES if can_branch(model, self.config) else 1
        self._context, self._memory = context, lib.llama_get_memory(context)
        self.n_ctx: int = lib.llama_n_ctx(context)
        self._taps = None
        self._branches: Branches = Branches(
            context, range(n_sequences), lib.llama_model_n_swa(model)
        )
        self.capabilities = replace(
            self.capabilities,
            max_batch=lib.llama_n_batch(context),
            max_leaves=self._branches.max_leaves,
        )
        self._batch: Batch = Batch(self.capabilities.max_batch)
        self._rows: RowViews = RowViews(context, self.vocab_size, MAX_ROWS)
        self._decode_abortable: AbortableDecode = AbortableDecode(context)

    def _twin(self, n_ctx: int) -> LlamaCppModel:
        """Return a model with another cache over the same weights."""
        twin = copy.copy(self)
        twin.config = replace(self.config, n_ctx=n_ctx)
        context, _ = new_context(self.path, self.native.model, twin.config)
        twin._close = weakref.finalize(twin, lib.llama_free, context)
        twin.n_past = twin._n_nodes = 0
        twin._use(context)
        twin.limit_threads(0)
        return twin

    def _limit_rows(self, n_rows: int) -> None:
        """Take at most so many rows a call, which are evaluated apart from what is before them."""
        self.rows_apart = n_rows > 1
        if not self.rows_apart:
            self.placement["rows"] = "differ with their number: near ties may fall otherwise"
            return
        self.capabilities = replace(self.capabilities, max_rows=n_rows)
        self.placement["rows"] = f"the same for 1 to {n_rows} tokens: drafts change nothing"

    def _make_room(self, n_tokens: int) -> None:
        """Free the cells of rejected nodes where they are many or in the way."""
        if self._branches.is_full(self.n_ctx - self.n_past - n_tokens):
            try:
                self._branches.pack(self.n_past)
            except BaseException:
                self.n_past = 0
                raise

    def _decode_chunk(self, tokens: Sequence[int], abort: Abort | None) -> None:
        """Append tokens of which no logits are wanted."""
        self._evaluate(self._batch.fill(tokens, self.n_past, 0), len(tokens), abort)

    def _evaluate(self, batch: Any, n_tokens: int, abort: Abort | None) -> None:
        try:
            with self.lock:
                if self._taps is not None:
                    code = self._decode_tapped(self._taps, batch, n_tokens, abort)
                elif abort is None or n_tokens <= ABORTABLE:
                    code = lib.llama_decode(self._context, batch)
                else:
                    code = self._decode_abortable(batch, abort)
        except BaseException:  # Ctrl-C is raised when it is done: nobody knows how it went
            self.n_past = self._drop_partial()
            raise
        if code == 0 and not self._decode_abortable.ctrl_c:
            self.n_past += n_tokens
        else:
            self._stopped(code, n_tokens)

    def _stopped(self, code: int, n_tokens: int) -> None:
        """Raise what an evaluation that ended with `code` or with Ctrl-C calls for."""
        self.n_past = self.n_past + n_tokens if code == 0 else self._drop_partial()
        if self._decode_abortable.ctrl_c:
            self._decode_abortable.ctrl_c = False
            raise KeyboardInterrupt
        if code == 1:
            raise ContextFull(
                f"no room in the cache for {n_tokens} tokens behind {self.n_past} "
                f"(n_ctx {self.n_ctx}); load the model with a larger n_ctx"
            )
        if code == 2:
            raise Aborted(f"stopped after {self.n_past} tokens")
        failed_at, self.n_past = self.n_past, 0  # who knows what the cache holds
        self._branches.clear()
        lib.llama_memory_clear(self._memory, False)
        raise DecodeError(
            f"{self.path.name}: llama_decode failed with code {code} at {failed_at} tokens"
        )

    def _drop_partial(self) -> int:
        """Drop what a failed call has appended; return how many tokens are left."""
        if lib.llama_memory_seq_rm(self._memory, 0, self.n_past, -1):
            return self.n_past
        lib.llama_memory_clear(self._memory, False)  # a recurrent state half-way is no state
        return 0
