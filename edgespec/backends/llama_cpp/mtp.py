"""MTP layers on llama.cpp (multi-token prediction, arXiv 2412.19437), in the target's own file or
in a file next to it.

A layer reads a token together with the previous token's hidden state, and returns the token's own
hidden state. A single layer is used again and again on its own states. If there are several layers,
each guesses one token further than the previous layer. Each layer reads the text itself. It also
evaluates the path of the draft again, with the states that the previous layers returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...config import EngineConfig
from ...sampling.trees import path_to
from ...types import Abort, Outputs
from ..base import FileModel
from ..chunks import chunk_ends
from ..features import States
from .batch import Part
from .context import Native, init_context
from .evaluation import TextInContext
from .head import FedBackHead
from .head_files import HeadFile
from .library import lib
from .model import LlamaCppModel

_MTP = 1  # llama_context_type


class LlamaCppMtp(FedBackHead):
    """A single MTP layer, used for every token of a draft, under the `Head` contract."""

    def _open(self, file: HeadFile) -> Native:
        target = self._target
        if not (isinstance(target, LlamaCppModel) and target.path == self.path):
            return super()._open(file)
        model = target.native.model
        context, log = init_context(self.path, model, self._params(model))
        return Native(model, context, log, owns_model=False)

    def _take(self, native: Native) -> None:
        super()._take(native)
        if not native.owns_model:
            self.lock = self._target.lock  # type: ignore[attr-defined]

    def _params(self, model: Any) -> Any:
        params = super()._params(model)
        params.ctx_type = _MTP
        return params

    def _write_states(self, n_tokens: int, abort: Abort | None) -> None:
        first, begin, end = self._known(n_tokens)
        self._states[:n_tokens] = 0
        if end > begin:
            self._states[begin - first : end - first] = self.features.of(begin, end)[:, 0]


class LlamaCppMtpChain(LlamaCppMtp):
    """Several MTP layers, each of which guesses one token of a path.

    All of them read the text. Each layer has keys and values of its own, so the path before a node
    is evaluated again with the node's layer. Nodes are not in the cache between two calls.
    """

    _tokens: list[int]  # one for each node
    _parents: list[int]

    def __init__(self, path: Path, config: EngineConfig, target: FileModel, file: HeadFile) -> None:
        self._forget_nodes()
        super().__init__(path, config, target, file)

    def grow(
        self, tokens: Sequence[int], parents: Sequence[int], abort: Abort | None = None
    ) -> Outputs:
        """Append nodes, read with the layers' own states; return float32 [len(tokens), vocab_size].
        Raises ValueError for nodes that are deeper than there are layers.
        """
        text, n_before, n = self.n_past - self._n_nodes, self._n_nodes, len(tokens)
        self._check_root()
        try:
            chunk_ends(self, n, n)
            self._tokens, self._parents = [*self._tokens, *tokens], [*self._parents, *parents]
            depths = [len(path_to(self._parents, node)) for node in range(len(self._parents))]
            if max(depths) >= self.max_depth:
                raise ValueError(
                    f"a node at depth {max(depths)}; there are {self.max_depth} MTP layers, and "
                    "the first one guesses the token after the text"
                )
            rows = np.empty((n, self.vocab_size), np.float32)
            self._own = np.concatenate([self._own, np.empty((n, self._width), np.float32)])
            for depth in sorted(set(depths[n_before:])):
                new = [i for i in range(n_before, n_before + n) if depths[i] == depth]
                logits, states = self._evaluate_nodes(new, text, abort)
                rows[[i - n_before for i in new]] = logits
                self._own[[i + 1 for i in new]] = states
        except BaseException:
            self._drop_nodes(text)
            raise
        self._n_nodes = n_before + n
        self.n_past = text + self._n_nodes
        return Outputs(rows)

    def truncate(self, n_past: int) -> None:
        """Forget everything from `n_past` on, and all nodes."""
        if n_past < self.n_past:
            super().truncate(min(n_past, self.n_past - self._n_nodes))
            self._forget_nodes()

    def _forget_nodes(self) -> None:
        self._tokens, self._parents, self._n_nodes = [], [], 0

    def _append(self, tokens: Sequence[int], n_outputs: int, abort: Abort | None) -> None:
        """Let every layer read tokens of the text. The first layer reads them last, because its
        outputs are wanted.
        """
        start = self.n_past
        try:
            for layer in reversed(range(self.max_depth)):
                TextInContext.truncate(self, start)
                lib.llama_set_nextn_layer_offset(self._context, layer)
                super()._append(tokens, n_outputs, abort)
        except BaseException:  # drop tokens that only some layers have read
            TextInContext.truncate(self, start)
            raise
        last = len(tokens) - 1
        self._root = tokens[last], self._states[last].copy()

    def _evaluate_nodes(
        self, nodes: Sequence[int], text: int, abort: Abort | None
    ) -> tuple[States, States]:
        """Evaluate nodes of one depth with the layer for that depth; return their rows and
        states.
        """
        paths = {tuple(path_to(self._parents, node)) for node in nodes}
        paths |= {path[:n] for path in paths for n in range(1, len(path))}
        order = sorted(paths)  # depth first
        places = {path: i for i, path in enumerate(order)} | {(): -1}
        spans, positions = self._enter([places[path[:-1]] for path in order], text)
        token, state = self._root
        line = [path[-1] for path in order]
        self._states[0] = state
        self._states[1 : len(line) + 1] = self._own[[self._parents[node] + 1 for node in line]]
        part = Part([token, *[self._tokens[i] for i in line]], positions, spans, len(spans))
        lib.llama_set_nextn_layer_offset(self._context, len(max(order, key=len)))
        self._evaluate(self._batch.fill_parts([part]), len(spans), abort)
        at = [line.index(node) + 1 for node in nodes]
        logits_and_states = self._rows.first(len(spans)).logits[at], self._outputs(len(spans))[at]
        self.branches.truncate(text - 1)  # only the text's sequence keeps the root
        lib.llama_memory_seq_rm(self._memory, 0, text, -1)
        self.n_past = text
        return logits_and_states

    def _enter(self, parents: Sequence[int], text: int) -> tuple[list[range], list[int]]:
        """Drop the last token of the text, and return the sequences and positions for evaluating it
        again together with nodes after it.
        """
        self._n_nodes, self.n_past = 0, text
        n, most = len(parents), self.capabilities.max_rows - 1
        chunk_ends(self, n, n)
        if n > most:
            raise ValueError(f"paths of {n} nodes; at most {most} at once")
        TextInContext.truncate(self, text - 1)
        return self.branches.enter(parents, text - 1)

    def _drop_nodes(self, text: int) -> None:
        """Remove the nodes that a failed evaluation has left after a text; the text's last token
        may be gone, too.
        """
        self._forget_nodes()
        self.n_past = min(self.n_past, text)
        self.branches.truncate(min(self.n_past, text - 1))
        lib.llama_memory_seq_rm(self._memory, 0, self.n_past, -1)
        self._own = self._own[: int(self.n_past == text)]
