"""A trained head in ONNX graphs, under the `Head` contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...config import EngineConfig
from ...device import fast_cores
from ...errors import ConfigError, ContextFull, ModelError
from ...types import Abort, Outputs
from ..base import Capabilities, FileHead, FileModel, Tokenizer
from ..cached_features import CachedFeatures
from ..chunks import chunk_ends
from ..context_length import LEAST
from ..features import Features
from ..heads import HeadFacts, Kind
from ..levels import decode_by_levels
from .abort import AbortableRun
from .buffers import MAX_ROWS
from .head_blocks import Blocks
from .head_folder import folder_of, head_facts
from .head_mixture import Mixture
from .head_steps import HEAD, MAX_NODES, Layered, Medusa, MlpSpeculator, Nodes, Steps
from .own_vocabulary import OwnVocabulary
from .session import check_packages, fingerprint, open_session, switches

_CHUNK = 128  # tokens per call
_STEPS: dict[Kind, Any] = {
    "eagle": Layered, "eagle3": Layered, "mtp": Layered, "medusa": Medusa,
    "mlp_speculator": MlpSpeculator, "dflash": Blocks, "moa": Mixture,
}  # fmt: skip


def open_head(path: Path, config: EngineConfig, target: FileModel) -> OnnxHead:
    """Load a head for a target; the target may run on a different engine. Raises the errors of
    `OnnxHead`.
    """
    return OnnxHead(path, config, target)


class OnnxHead(FileHead):
    """A trained head in a folder that `edgespec convert --head` wrote.

    path: the folder, or a graph in it. target: the model that it drafts for. The other fields are
    those of `Head`. opened: opens the session of a graph; given if another slot's head has opened
    the same graphs.

    Raises ModelNotFound, ModelError or a subclass; ConfigError if the head was made for another
    target.
    """

    def __init__(
        self,
        path: Path,
        config: EngineConfig,
        target: FileModel,
        opened: Callable[[Path], Any] | None = None,
    ) -> None:
        check_packages()
        folder = folder_of(path)
        facts = head_facts(folder)
        _check_target(folder, facts, target)
        self.config, self._target = config, target
        self.path = folder / (HEAD if (folder / HEAD).is_file() else "head.0.onnx")
        self.kind, self.layers = facts.kind, facts.layers
        self.max_depth, self.n_ctx_train = facts.max_depth, facts.n_ctx_train
        self.vocab_size = facts.sizes.vocab_size
        self.n_threads = self.n_threads_batch = config.threads(fast_cores())[0]
        self.capabilities = Capabilities(MAX_ROWS, _CHUNK, max_leaves=MAX_ROWS - 1, grows=True)
        self._opened = opened or cache(
            partial(open_session, config=config, n_threads=self.n_threads)
        )
        self._steps: Steps = _STEPS[self.kind](folder, config, self._opened, _CHUNK)
        if self._steps.n_guesses < self.max_depth and self._steps.n_guesses:
            raise ModelError(
                f"{folder}: the graph guesses {self._steps.n_guesses} tokens, and head.json says "
                f"{self.max_depth}; convert the head again"
            )
        self.n_ctx = self._steps.n_ctx or config.n_ctx or LEAST
        self._rows = OwnVocabulary(folder, self._steps.width, self.vocab_size)
        sizes = facts.sizes
        n_numbers = len(self.layers) * sizes.hidden_size or sizes.n_layer * sizes.cached_size
        self._taps = np.zeros((_CHUNK, n_numbers), np.float32)
        self.features = _features(facts, target)
        self.n_states, self.start = self._steps.n_states, 0
        self._n_read = 0  # number of tokens that `decode` has read
        self._run = AbortableRun(self.path)
        self._depths: list[int] = []  # of the nodes after those tokens
        self._has_root = False  # the state after the last token is known
        self.placement = {"provider": self._steps.provider, "trees": "yes"}

    def for_slot(self, target: FileModel) -> OnnxHead:
        """Return a head over the same graphs for another slot."""
        return OnnxHead(self.path, self.config, target, self._opened)

    @property
    def n_past(self) -> int:
        """The number of tokens and nodes that the cache holds."""
        return self._n_read + len(self._depths)

    @property
    def tokenizer(self) -> Tokenizer:  # type: ignore[override]
        """The target's tokenizer: a head has the vocabulary of its target."""
        return self._target.tokenizer

    def decode(
        self, tokens: Sequence[int], n_logits: int = 1, abort: Abort | None = None
    ) -> Outputs:
        """Read tokens that the target has evaluated, each with the target's states before it, which
        come from `features`; return float32 [n_logits, vocab_size], a view valid until the next
        call.
        """
        self._end_tree()
        rows = np.empty((0, self._steps.width), np.float32)
        done = 0
        for end in [*chunk_ends(self, len(tokens), n_logits), len(tokens)] if tokens else []:
            n_rows = n_logits if end == len(tokens) else 0
            rows = self._read(tokens[done:end], n_rows, abort)
            done = end
        return Outputs(self._rows.spread(rows))

    def grow(
        self, tokens: Sequence[int], parents: Sequence[int], abort: Abort | None = None
    ) -> Outputs:
        """Append nodes, each read with the head's own state after its parent; return float32
        [len(tokens), vocab_size], a view valid until the next call.
        """
        try:
            nodes = self._nodes(tokens, parents)
            rows = self._steps.guess(nodes, self._n_read, self._abortable(abort))
            self._depths += nodes.depths
        except BaseException:
            self._end_tree()
            raise
        return Outputs(self._rows.spread(rows))

    def decode_tree(
        self, tokens: Sequence[int], parents: Sequence[int], abort: Abort | None = None
    ) -> Outputs:
        """Read tokens up to the root, then grow the tree after it, one depth at a time."""
        return decode_by_levels(self, tokens, parents, abort)

    def keep(self, path: Sequence[int]) -> None:
        """Drop all nodes, because guesses never stay. Raises ValueError for a path that is not
        empty.
        """
        self._end_tree()
        if path:
            raise ValueError("a head keeps no guesses; truncate it and decode the tokens")

    def truncate(self, n_past: int) -> None:
        """Forget everything from `n_past` on, and all nodes."""
        if n_past >= self.n_past:
            return
        self._end_tree()
        if n_past < self._n_read:
            self._n_read, self._has_root = n_past, False

    def switches(self) -> dict[str, tuple[Any, Any]]:
        """Return the number of threads, the only such setting: a session is made for one number of
        them.
        """
        return switches(self.config, self.n_threads)

    def fingerprint(self) -> dict[str, Any]:
        """Return everything that the speed of this head depends on: device, build, file,
        settings.
        """
        return fingerprint(self.path, self.config, self.n_threads, self.placement)

    def close(self) -> None:
        """Free weights and cache."""
        self._steps = self._rows = None  # type: ignore[assignment]

    def _read(
        self, tokens: Sequence[int], n_rows: int, abort: Abort | None
    ) -> npt.NDArray[np.float32]:
        n = len(tokens)
        self._has_root = False
        taps = self._states_before(self.start + self._n_read, n)
        rows = self._steps.read(tokens, taps, self._n_read, n_rows, self._abortable(abort))
        self._n_read += n
        self._has_root = True
        return rows

    def _states_before(self, position: int, n: int) -> npt.NDArray[np.float32]:
        """Return the target's states before each of the `n` tokens from a position of the text on,
        [n, layers * hidden_size]; zeros where a state is missing.
        """
        first, known = position - 1, self.features
        start, end = max(first, known.start), min(first + n, known.end)
        if (start, end) == (first, first + n):
            return known.of(start, end).reshape(n, -1)
        taps = self._taps[:n]
        taps[:] = 0
        if start < end:
            taps[start - first : end - first] = known.of(start, end).reshape(end - start, -1)
        return taps

    def _nodes(self, tokens: Sequence[int], parents: Sequence[int]) -> Nodes:
        """Return nodes with their depths. Raises ContextFull, and ValueError for impossible
        nodes.
        """
        n_before = len(self._depths)
        if not self._has_root:
            raise ValueError("a tree grows from the last token that was decoded; decode it first")
        if len(tokens) > MAX_ROWS or n_before + len(tokens) > MAX_NODES:
            raise ValueError(
                f"{len(tokens)} nodes after {n_before}; at most {MAX_ROWS} a call and {MAX_NODES} "
                "in a tree"
            )
        if any(not -1 <= parent < n_before for parent in parents):
            raise ValueError(f"parents are {list(parents)}; there are {n_before} nodes so far")
        depths = [self._depths[parent] + 1 if parent >= 0 else 0 for parent in parents]
        if self.max_depth and max(depths, default=0) + 1 >= self.max_depth:
            raise ValueError(
                f"nodes at depth {max(depths) + 1}; the head guesses {self.max_depth} tokens, the "
                "first of them by `decode`"
            )
        if self.n_past + len(tokens) > self.n_ctx:
            raise ContextFull(
                f"{len(tokens)} nodes do not fit after {self.n_past} tokens in a context of "
                f"{self.n_ctx}; load the head with a larger n_ctx"
            )
        return Nodes(tokens, parents, depths, n_before)

    def _end_tree(self) -> None:
        self._depths = []

    def _abortable(self, abort: Abort | None) -> Callable[..., None]:
        """Return a function that runs a session with a binding, and that `abort` can stop."""
        return partial(self._run, abort=abort, n_past=self.n_past)


def _check_target(folder: Path, facts: HeadFacts, target: FileModel) -> None:
    """Raise ConfigError if the target has other sizes than the head needs, or if the head reads the
    target's cache and the target gives no access to it.
    """
    if why := facts.misfit(target.sizes):
        raise ConfigError(f"{folder} {why}; convert the head for this target")
    if facts.sizes.cached_size and not target.cached_size:
        raise ConfigError(
            f"{folder} reads the keys and values of its target, and only ONNX models lend theirs; "
            "convert the target with edgespec convert"
        )


def _features(facts: HeadFacts, target: FileModel) -> Features:
    """Return the features that a head reads: the target's hidden states, or the target's cache."""
    if facts.sizes.cached_size:
        return CachedFeatures(target)
    return Features(shape=(len(facts.layers), facts.sizes.hidden_size))
