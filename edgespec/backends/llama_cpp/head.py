"""Trained heads on llama.cpp: EAGLE-3 (arXiv 2503.01840).

A head fuses the target's hidden states of three layers into one of its own width, which goes in
together with the next token. Where the target has not evaluated yet, the head's own state of the
token before takes the place of the fused one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...config import EngineConfig
from ...errors import Aborted, ConfigError, DecodeError
from ...types import Abort, Outputs
from ..base import HiddenStates
from ..chunks import chunk_ends
from ..features import Features, States
from ..levels import decode_by_levels
from .batch import Part, StateBatch
from .context import LEAST_N_CTX, MAX_ROWS, Native, context_params, init_context
from .declarations import HEADS, missing
from .evaluation import TextInContext
from .head_files import HeadFile, fitting
from .library import engine, lib, supports_gpu_offload
from .model import LlamaCppModel
from .weights import load_weights


def open_head(path: Path, config: EngineConfig, target: HiddenStates) -> LlamaCppHead:
    """Load a head for a target. Raises ModelError and its kinds; ConfigError where they do not fit,
    or where the library evaluates no heads.
    """
    return LlamaCppHead(path, config, target)


class LlamaCppHead(TextInContext):
    """A GGUF of an EAGLE-3 head under the `Head` contract.

    It may use weights of its target: close it before the target. Its cache holds a token for every
    token of the text from `start` on.
    """

    max_depth = n_states = 0

    def __init__(self, path: Path, config: EngineConfig, target: HiddenStates) -> None:
        self.path = Path(path)
        if lacks := missing(lib, HEADS):
            raise ConfigError(
                f"{self.path.name}: heads need {' and '.join(lacks)}, which {engine()} does not "
                "have; install another libllama or draft with something else"
            )
        self.config = replace(config, batch_invariant=False)  # drafts may differ by rounding
        file = fitting(self.path, target)
        self.kind, self.layers, self._width = file.kind, file.layers, file.width
        self._fused = len(file.layers) * target.hidden_size
        self._target = target  # its weights stay as long as this head
        self.features = Features(shape=(len(file.layers), target.hidden_size))
        self.start = 0
        self._own: States = np.empty((0, file.width), np.float32)
        self._take(_open_native(self.path, self.config, file))

    def decode(
        self, tokens: Sequence[int], n_logits: int = 1, abort: Abort | None = None
    ) -> Outputs:
        """Append tokens that the target has evaluated; float32 [n_logits, vocab_size]."""
        ends, n_tokens = chunk_ends(self, len(tokens), n_logits), len(tokens)
        n_outputs = max(1, n_logits)  # nodes grow behind the state of the last token
        # in a call of their own: the engine's graph gives the first rows, whichever are wanted
        ends += [n_tokens - n_outputs, n_tokens]
        self._own, done = self._own[:0], 0
        for end in ends:
            if end > done:
                self._fuse(end - done, abort)
                n_wanted = n_outputs if end == n_tokens else 0
                batch = self._batch.fill(tokens[done:end], self.n_past, n_wanted)
                self._evaluate(batch, end - done, abort)
                done = end
        self._own = self._outputs(n_outputs)[-1:].copy()
        return self._rows.first(n_logits)

    def grow(
        self, tokens: Sequence[int], parents: Sequence[int], abort: Abort | None = None
    ) -> Outputs:
        """Append nodes that go in with the head's own states; float32 [len(tokens), vocab_size]."""
        start, n = self.n_past - self._n_nodes, len(tokens)
        if not len(self._own):
            raise ValueError("nodes grow behind a token that `decode` has read last")
        try:
            chunk_ends(self, n, n)
            sequences, positions = self._branches.grow(parents, start)
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

    def decode_tree(
        self, tokens: Sequence[int], parents: Sequence[int], abort: Abort | None = None
    ) -> Outputs:
        """Append tokens and grow a tree behind them; float32 [len(parents) + 1, vocab_size]."""
        return decode_by_levels(self, tokens, parents, abort)

    def keep(self, path: Sequence[int]) -> None:
        """Forget all nodes. Raises ValueError for a path that is not empty."""
        if path:
            raise ValueError(f"the nodes of a head do not stay; keep () instead of {tuple(path)}")
        self.truncate(self.n_past - self._n_nodes)

    def truncate(self, n_past: int) -> None:
        """Forget everything from `n_past` on."""
        if n_past < self.n_past:
            text = self.n_past - self._n_nodes  # the state of its last token is kept with it
            self._own = self._own[: int(n_past >= text)]
        super().truncate(n_past)

    def checkpoint(self) -> int:
        """Return n_past, all that is needed where the cache can be cut."""
        return self.n_past - self._n_nodes

    def restore(self, state: int) -> None:
        """Return to a checkpoint."""
        self.truncate(state)

    def switches(self) -> dict[str, tuple[Any, Any]]:
        """Return nothing: a head has no settings that are worth measuring."""
        return {}

    def _use(self, context: Any) -> None:
        super()._use(context)
        self._batch = batch = StateBatch(self.capabilities.max_batch, self._width)
        self._states = batch.states
        self._encoded = StateBatch(MAX_ROWS, self._fused)
        lib.llama_set_embeddings_nextn(context, True, True)

    def _fuse(self, n_tokens: int, abort: Abort | None) -> None:
        """Write the fused states of the target that the next tokens go in with, zeros where there
        are none.
        """
        first = self.start + self.n_past - 1  # a token goes in with the states before it
        begin = min(max(first, self.features.start), first + n_tokens)
        end = max(begin, min(first + n_tokens, self.features.end))
        self._states[:n_tokens] = 0
        for at in range(begin, end, MAX_ROWS):
            if abort and abort():
                raise Aborted(f"stopped after {self.n_past} tokens")
            states = self.features.of(at, min(at + MAX_ROWS, end))
            self._states[at - first : at - first + len(states)] = self._encode(states)

    def _encode(self, states: States) -> States:
        """Return the fused states of as many tokens as have outputs at most, a view."""
        n = len(states)
        self._encoded.states[:n] = states.reshape(n, self._fused)
        with self.lock:
            code = lib.llama_encode(self._context, self._encoded.fill_states(n, self.n_past))
        if code:
            raise DecodeError(f"{self.path.name}: llama_encode failed with code {code}")
        return self._outputs(n)

    def _outputs(self, n: int) -> States:
        """Return the head's states of the last evaluation's first `n` outputs, a view."""
        address = lib.llama_get_embeddings_nextn(self._context)
        native = (ctypes.c_float * (n * self._width)).from_address(address)
        return np.ctypeslib.as_array(native).reshape(n, self._width)


def _open_native(path: Path, config: EngineConfig, file: HeadFile) -> Native:
    """Load a head's weights and make a context over them, with one of its lender's."""
    n_gpu_layers = config.n_gpu_layers if supports_gpu_offload() else 0
    model, log = load_weights(
        path, n_gpu_layers=n_gpu_layers, use_extra_bufts=config.use_extra_bufts
    )
    other = None
    try:
        params = context_params(model, config)
        params.n_ubatch = MAX_ROWS  # the engine reserves logits for so many tokens at once
        if file.lender:
            other = params.ctx_other = _lent(file.lender)
        context, more = init_context(path, model, params)
    except BaseException:
        if other:
            lib.llama_free(other)
        lib.llama_model_free(model)
        raise
    return Native(model, context, log + more, other)


def _lent(target: LlamaCppModel) -> Any:
    """Return a context of the target's weights, as small as there are: the engine finds weights
    that a head borrows through a context, and the target's own may be made anew.
    """
    params = lib.llama_context_default_params()
    params.n_ctx = LEAST_N_CTX
    params.n_batch = params.n_ubatch = params.n_outputs_max = params.n_threads = 1
    context, _ = init_context(target.path, target.native.model, params)
    return context
