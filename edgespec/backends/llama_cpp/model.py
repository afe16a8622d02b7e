"""A GGUF as a `Model`: one set of weights, and one context with one text.

One process can have several such models. Logits are computed only for the wanted rows, and are read
as views of native memory.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import logging
import os
import time
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ...config import EngineConfig
from ...errors import ConfigError, DecodeError
from ...types import Abort, Outputs
from ..base import BatchedModel, Buffer, share_on_gpu
from ..chunks import Pace, chunk_ends
from ..separate import SeparateModels
from ..tiles import tile_of
from .batch import Part
from .batched import LlamaCppBatchedModel
from .context import (
    check_fits,
    new_context,
    open_native,
    usual_n_ctx,
    with_equal_rows,
    with_room,
)
from .declarations import PARTIAL_ONLY
from .devices import integrated
from .evaluation import exclusive
from .hidden import gives_states
from .invariance import most_equal_rows
from .library import is_fork, lib
from .seeing import Seeing

_SAMPLING = {  # keys of a GGUF, and their names in generation_config.json
    "temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
    "penalty_repeat": "repetition_penalty", "penalty_last_n": "penalty_last_n",
    "mirostat": "mirostat", "xtc_probability": "xtc_probability",
}  # fmt: skip
logger = logging.getLogger("edgespec.llama_cpp")
_KERNELS = (1, 64, 8, 2, 3, 4, 5, 6, 7, 12, 20, 32, 128)  # numbers of tokens with separate kernels
_LONG_S = 1.0  # after this time, a message tells the user what is going on
_PREPARING_S = 20.0
_LONGEST_NUMBER = 64  # bytes; a longer text is cut


def open_model(path: Path, config: EngineConfig) -> LlamaCppModel:
    """Load a file and return the model, ready to evaluate tokens. Raises the errors of
    `LlamaCppModel`.
    """
    return LlamaCppModel(path, config)


def published_sampling(model: LlamaCppModel) -> dict[str, Any]:
    """Return the sampling settings that the metadata recommends: numbers as numbers, anything else
    as text.
    """
    told = {name: _metadata(model, f"general.sampling.{key}") for key, name in _SAMPLING.items()}
    return {name: _number(value) for name, value in told.items() if value}


def _metadata(model: LlamaCppModel, key: str) -> str:
    """Return a short value of the metadata as text, "" if there is none."""
    text = ctypes.create_string_buffer(_LONGEST_NUMBER)
    size = lib.llama_model_meta_val_str(model.native.model, key.encode(), text, len(text))
    return text.value.decode("utf-8", "replace") if size >= 0 else ""


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


class LlamaCppModel(Seeing):
    """A GGUF under the `Model` contract.

    placement: the devices of layers and buffers, as the engine reported them ("CPU model buffer" →
    MiB, …). config: the settings in use; batch_invariant decides some of them. With
    batch_invariant, the rows per call are limited to a number with which each row has the same bits
    as alone. Such rows are evaluated in a native call of their own (rows_apart). n_past: the number
    of tokens that the cache holds. native: the weights and the context; other contexts may share
    the weights. lock: held by whoever uses the context, because only one of the texts and
    contexts over these weights may be evaluated at a time.

    Raises ModelNotFound, NotAGGUF, TruncatedModel, UnknownArchitecture, OutOfMemory.
    """

    def __init__(self, path: str | os.PathLike[str], config: EngineConfig | None = None) -> None:
        self.path = Path(path)
        self.config = with_room(self.path, with_equal_rows(config or EngineConfig()))
        self.rows_apart = False
        self._take(open_native(self.path, self.config))
        self.capabilities = replace(self.capabilities, hidden_states=not is_fork())
        self.capabilities = replace(self.capabilities, saves=self._saves())
        architecture = _metadata(self, "general.architecture")
        short = _metadata(self, f"{architecture}.rope.scaling.original_context_length")
        self.n_ctx_short = int(short) if short.isdecimal() else 0
        self._pace, self._is_offloaded = Pace(), share_on_gpu(self.placement) > 0
        if self.config.batch_invariant:
            self._limit_rows(most_equal_rows(self))
        if self._is_offloaded:
            self._prepare()
        self._see()

    @exclusive
    @gives_states
    def decode(
        self, tokens: Sequence[int], n_logits: int = 1, abort: Abort | None = None
    ) -> Outputs:
        """Append tokens; return float32 [n_logits, vocab_size], a view valid until the next
        call.
        """
        if tokens and tokens[0] < 0:
            return self._show(tile_of(tokens), n_logits, abort)
        if self.branches.n_parked:
            self.make_room(len(tokens))
        ends, done = chunk_ends(self, len(tokens), n_logits), 0
        if abort and self._is_offloaded:
            done = self._decode_paced(tokens, max(1, n_logits), abort)
        for end in ends:
            if end > done:
                self._decode_chunk(tokens[done:end], abort)
                done = end
        if self.rows_apart and 0 < n_logits < len(tokens) - done:
            end = len(tokens) - n_logits
            self._decode_chunk(tokens[done:end], abort)
            done = end
        last = tokens[done:] if done else tokens
        batch = self._batch.fill(last, self.position(self.n_past), n_logits)
        self._evaluate(batch, len(last), abort)
        return self._rows.first(n_logits)

    @exclusive
    @gives_states
    def decode_tree(
        self, tokens: Sequence[int], parents: Sequence[int], abort: Abort | None = None
    ) -> Outputs:
        """Append tokens, the last of which are a tree; return float32 [len(parents) + 1,
        vocab_size].
        """
        n_nodes = len(parents)
        n_before = len(tokens) - n_nodes - 1
        if n_before < 0:
            raise ValueError(f"a tree of {n_nodes} nodes needs a token before it")
        chunk_ends(self, n_nodes + 1, n_nodes + 1)
        if n_before:
            self.decode(tokens[:n_before], 0, abort)
        self.make_room(n_nodes + 1)
        start = self.n_past
        sequences, positions = self.branches.enter(parents, self.position(start))
        part = Part(tokens[n_before:], positions, sequences, n_nodes + 1)
        batch = self._batch.fill_parts([part])
        try:
            self._evaluate(batch, n_nodes + 1, abort)
        except BaseException:
            self._drop_tree(start)
            raise
        self._n_nodes = n_nodes
        return self._rows.first(n_nodes + 1)

    @exclusive
    @gives_states
    def grow(
        self, tokens: Sequence[int], parents: Sequence[int], abort: Abort | None = None
    ) -> Outputs:
        """Append nodes to a tree; return float32 [len(tokens), vocab_size]."""
        start, n = self.n_past - self._n_nodes, len(tokens)
        try:
            chunk_ends(self, n, n)
            sequences, positions = self.branches.grow(parents, self.position(start))
            part = Part(tokens, positions, sequences, n)
            self._evaluate(self._batch.fill_parts([part]), n, abort)
        except BaseException:
            self._drop_tree(start)
            raise
        self._n_nodes += n
        return self._rows.first(n)

    @exclusive
    def keep(self, path: Sequence[int]) -> None:
        """Keep these nodes of the tree just evaluated as the cache's tail; drop the others."""
        root = self.n_past - self._n_nodes - 1
        try:
            self.branches.keep(path)
            self.n_past += len(path) - self._n_nodes
            self._n_nodes = 0
        except BaseException:  # Ctrl-C between two native calls
            self.truncate(root)
            raise

    @exclusive
    def checkpoint(self) -> tuple[int, Any]:
        """Return n_past and the part of the state that cannot be truncated."""
        sequence = self.branches.text
        size = lib.llama_state_seq_get_size_ext(self._context, sequence, PARTIAL_ONLY)
        data = (ctypes.c_uint8 * size)()
        got = lib.llama_state_seq_get_data_ext(self._context, data, size, sequence, PARTIAL_ONLY)
        if got != size:
            raise DecodeError(f"{self.path.name}: the engine gave no checkpoint of its state")
        return self.n_past, data

    @exclusive
    def restore(self, state: tuple[int, Any]) -> None:
        """Go back to a checkpoint."""
        n_past, data = state
        if not n_past:
            self.truncate(0)
            return
        context, text = self._context, self.branches.text
        if not lib.llama_state_seq_set_data_ext(context, data, len(data), text, PARTIAL_ONLY):
            raise DecodeError(f"{self.path.name}: the engine refused its own checkpoint")
        if not lib.llama_memory_seq_rm(self._memory, text, self.position(n_past), -1):
            raise DecodeError(f"{self.path.name}: nothing can be dropped after a checkpoint")
        self.n_past, self._n_last = n_past, 0

    def _saves(self) -> Literal["", "whole", "prefix", "parts"]:
        """Return which states can be saved (`Capabilities.saves`). A single sequence has no room
        for parts, and of a sliding window the engine then saves only what the last token sees.
        """
        if is_fork():
            return ""
        if self.branches.max_leaves > 1:
            return "parts"
        has_window = lib.llama_model_n_swa(self.native.model) > 0
        return "prefix" if self.capabilities.truncate and not has_window else "whole"

    def save_state(self, start: int, end: int) -> Buffer:
        """Return the engine's copy of the cache for the tokens from `start` to `end`."""
        with self.lock:
            return self.branches.save(start, end)

    def load_state(self, state: Buffer, end: int) -> None:
        """Append tokens whose state was saved."""
        with self.lock:
            start, self.n_past = self.n_past, 0
            self.branches.load(np.frombuffer(state, np.uint8), start, end)
        self.n_past, self._n_last = end, 0

    def switches(self) -> dict[str, tuple[Any, Any]]:
        """Return flash attention and repacked weights, unless batch_invariant or ik_llama.cpp fixes
        them. Also return the device if an integrated GPU is left unused.
        """
        unused = integrated(self.config)
        switches: dict[str, tuple[Any, Any]] = {"device": ("", unused)} if unused else {}
        if self.config.batch_invariant or is_fork():
            return switches
        repacks = self.config.use_extra_bufts
        return switches | {
            "flash_attn": (self.config.flash_attn, "off" if self.flash_attn else "on"),
            "use_extra_bufts": (repacks, not repacks),
        }

    def batched(self) -> BatchedModel:
        """Return a model whose first slot is this model. Its slots have separate contexts
        and are evaluated separately if a row depends on what is evaluated together with it
        (batch_invariant), if the model has a recurrent state, or with ik_llama.cpp's library.
        """
        if self.rows_apart or is_fork() or not self.capabilities.truncate:
            return SeparateModels([self], self._twin)
        return LlamaCppBatchedModel(self)

    def n_more(self, most: int) -> int:
        """Return how many more caches of this model's size fit into memory, at most `most`."""
        fits = (n for n in range(most, 0, -1) if self.usual_n_ctx(n) == self.n_ctx)
        return next(fits, 0)

    def usual_n_ctx(self, n_caches: int) -> int:
        """Return the length of this many further caches if none is asked for."""
        layers = int(self._is_offloaded)
        model, config = self.native.model, self.config
        return min(self.n_ctx, usual_n_ctx(self.path, model, config, layers, n_caches))

    def widen(self, ids: Sequence[range], n_ctx: int, n_cells: int) -> None:
        """Move all texts in this model's context to a larger one, together with new texts.

        ids: the sequences of each new text. n_ctx: its most tokens. n_cells: how many cells of the
        cache are added. Raises OutOfMemory, and ConfigError if a head looks at the present cache.
        """
        if self.lends:
            raise ConfigError(
                f"{self.path.name}: a draft head looks at this cache, so no other texts can be "
                "added to it; draft with something else, or answer one request at a time"
            )
        taps, before = self._taps, (self._most, self._n_cells)
        self._most, self._n_cells = self.n_ctx, (self._n_cells or self.n_ctx) + n_cells
        self.texts += [self._beside(each, n_ctx) for each in ids]
        try:
            if not self._is_offloaded:
                check_fits(self.path, self.native.model, self.config, self._n_cells)
            self._renew(taps.watch if taps else None, self.capabilities.rollback)
        except BaseException:
            del self.texts[-len(ids) :]
            self._most, self._n_cells = before
            raise
        self._turn_on(taps)

    def narrow(self) -> None:
        """Move this text to a context of its own, and forget the others. Raises OutOfMemory."""
        taps, n_ctx = self._taps, self.n_ctx
        del self.texts[1:]
        self._most = self._n_cells = 0
        self._renew(taps.watch if taps else None, self.capabilities.rollback, n_ctx)
        self._turn_on(taps)

    def _beside(self, ids: range, n_ctx: int) -> LlamaCppModel:
        """Return an empty text with these sequences, to be put into the same context."""
        text = copy.copy(self)
        text.ids, text._most, text.config = ids, n_ctx, replace(self.config, n_ctx=n_ctx)
        text._close = lambda: None  # the context belongs to the first text
        text.n_past = text._n_nodes = 0
        return text

    def _twin(self, n_ctx: int, n_caches: int = 1) -> LlamaCppModel:
        """Return a model over the same weights with a context of its own; n_ctx: 0 for the usual
        length if there are so many caches.
        """
        n_ctx = n_ctx or self.usual_n_ctx(n_caches)
        twin = copy.copy(self)
        twin.texts = [twin]
        twin.config = replace(self.config, n_ctx=n_ctx)
        context, _ = new_context(self.path, self.native.model, twin.config)
        twin.native = replace(self.native, context=context, owns_model=False)
        twin._close = weakref.finalize(twin, twin.native.free)
        twin.n_past = twin._n_nodes = 0
        twin._use(context)
        twin.limit_threads(0)
        return twin

    def _limit_rows(self, n_rows: int) -> None:
        """Allow at most `n_rows` rows per call, and evaluate them separately from the tokens before
        them. If `n_rows` is 1, even two rows differ from single rows: nothing is limited, and
        `placement` says so.
        """
        self.rows_apart = n_rows > 1
        if not self.rows_apart:
            self.placement["rows"] = "differ with their number: near ties may fall otherwise"
            return
        self.capabilities = replace(self.capabilities, max_rows=n_rows)
        self.placement["rows"] = f"the same for 1 to {n_rows} tokens: drafts change nothing"

    def make_room(self, n_tokens: int) -> None:
        """Free the cells of rejected nodes if there are many of them or the space is needed."""
        waits = self._n_nodes > 0  # a tree waits for `keep`
        if (
            self.branches.n_parked
            and not waits
            and self.branches.is_full(self.n_ctx - self.n_past - n_tokens)
        ):
            try:
                self.branches.pack(self.position(self.n_past))
            except BaseException:
                self.n_past = 0
                raise

    def _decode_chunk(self, tokens: Sequence[int], abort: Abort | None) -> None:
        """Append tokens whose logits are not wanted."""
        batch = self._batch.fill(tokens, self.position(self.n_past), 0)
        self._evaluate(batch, len(tokens), abort)
        lib.llama_synchronize(self._context)

    def _decode_paced(self, tokens: Sequence[int], n_left: int, abort: Abort) -> int:
        """Append tokens in short evaluations, because an evaluation on a GPU cannot be stopped.
        Return how many tokens were appended; at least the last `n_left` are not.
        """
        done = 0
        while len(tokens) - done > max(n_left, most := self._most_at_once()):
            part = tokens[done : done + min(most, len(tokens) - done - n_left)]
            began = time.perf_counter()
            self._decode_chunk(part, abort)
            self._pace.took(len(part), time.perf_counter() - began)
            done += len(part)
        return done

    def _most_at_once(self) -> int:
        return min(self._pace.most, self.capabilities.max_batch)

    def _prepare(self) -> None:
        """Run one evaluation for each number of tokens that answers need, so that no request has to
        wait for a GPU's driver, which compiles a kernel at its first use. After `_PREPARING_S`
        seconds, the remaining kernels are left to requests.
        """
        began, is_told = time.perf_counter(), False
        for width in _KERNELS:
            self.decode([0] * width, min(width, self.capabilities.max_rows))
            self.truncate(0)
            spent_s = time.perf_counter() - began
            if not is_told and spent_s > _LONG_S:
                logger.warning("%s: the GPU's driver compiles its kernels, once", self.path.name)
                is_told = True
            if spent_s > _PREPARING_S:
                break
