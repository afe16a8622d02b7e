"""An ONNX decoder as a `Model`: one session, one cache, inputs and outputs bound to buffers."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...config import EngineConfig
from ...device import available_memory, fast_cores, total_memory
from ...errors import ConfigError, DecodeError, OutOfMemory
from ...types import Abort, Outputs
from ..base import Buffer, Capabilities, FileModel
from ..chunks import chunk_ends
from ..context_length import default_n_ctx
from ..files import DRAFTED_IDS, VISION, to_fetch_again
from ..keeping_eyes import embeddings_of
from ..projectors import open_eyes
from ..separate import SeparateModels
from ..tiles import Tile, tile_of
from .abort import AbortableRun
from .buffers import MAX_ROWS, Buffers
from .cache import Cache, GrownCache, SharedCache, keys_and_values
from .companions import find, n_ctx_train, number, read, settings
from .embedding import Embedding, Tokens
from .eyes import OnnxEyes
from .graph import KEEP, Graph, read_graph
from .own_vocabulary import OwnVocabulary
from .probes import Padding, choose_cache, measure_noise, obstacle_to_trees
from .session import check_packages, fingerprint, open_session, switches
from .taps import check_layers, copied, joined
from .tokenizer import HfTokenizer
from .top_rows import TopRows

MAX_TOP = 64
_RESTRICTED = ("cuda",)  # devices from which copying complete rows is slow
_CHUNK = 128  # tokens; longer chunks are hardly faster on CPUs, and need more memory
_LOGITS_BYTES = 64 << 20  # most for a chunk's logits, if the graph also returns unused rows


def open_model(path: Path, config: EngineConfig) -> OnnxModel:
    """Load a file and return the model, ready to evaluate tokens. Raises the errors of
    `OnnxModel`.
    """
    return OnnxModel(path, config)


def published_sampling(model: OnnxModel) -> dict[str, Any]:
    """Return the contents of generation_config.json, {} if there is none. Raises ModelError."""
    return read(model.path.parent, "generation_config.json")


class OnnxModel(FileModel):
    """An ONNX decoder under the `Model` contract.

    path: an .onnx file. Its tokenizer.json lies next to it, or in the folder above if the graph is
    in a folder onnx/. The graph has the inputs and outputs of onnx-community's repositories, of
    onnxruntime-genai's folders or of plain exports with past keys and values. n_ctx: the requested
    length, but at most the length that the graph was made for, because its rotary embeddings are a
    table of that length. placement: the provider that really runs the graph, and how its cache is
    kept ("shared": one buffer that the graph appends to in place; "grown": a new, longer buffer
    every time). windows: "positions" if sliding windows count positions, not places in the cache.
    A graph that `edgespec train --kind trim` made has only some tokens in its output layer: the
    others are -inf in its rows. pads: at present, a single token is evaluated as two tokens,
    because this graph's kernels return a different row for a token that is evaluated alone
    (`probes.Padding` says when this is done).

    Raises ModelNotFound, TruncatedModel, UnknownArchitecture, OutOfMemory, ModelError; ConfigError
    for a provider that is not available.
    """

    def __init__(self, path: str | os.PathLike[str], config: EngineConfig | None = None) -> None:
        self.path = Path(os.path.abspath(path))
        self.config = config or EngineConfig()
        check_packages()
        self.n_threads = self.n_threads_batch = self.config.threads(fast_cores())[0]
        self._run = AbortableRun(self.path)
        self._session: Any = open_session(self.path, self.config, self.n_threads)
        self.graph: Graph = read_graph(self.path, self._session)
        self._embed = Embedding.of(self.path, self.config, self._session)
        metadata = self._session.get_modelmeta().custom_metadata_map
        self.windows: str = metadata.get("edgespec.windows", "")
        self.tokenizer = HfTokenizer(self.path.parent)
        self.vocab_size = self.graph.vocab_size
        self.n_ctx_train = longest = n_ctx_train(self.path.parent)
        self.provider: str = self._session.get_providers()[0].removesuffix("ExecutionProvider")
        self.device = "cuda" if self.provider == "CUDA" else "cpu"
        self.n_ctx = min(self.config.n_ctx or self._usual_n_ctx(), longest)
        chunk = self._chunk()
        self.capabilities = Capabilities(MAX_ROWS, chunk, hidden_states=bool(self.graph.hidden))
        self.n_layer, self.hidden_size = self.graph.n_layer, self.graph.hidden_size
        self.cached_size = 2 * self.graph.heads * self.graph.head_size
        self._n_past = 0  # tokens in the cache
        self._nodes: Sequence[int] = ()  # the tokens of the tree just evaluated
        self._unread: list[int] = []  # kept tokens to evaluate again, before the next tokens
        self.pads = False
        self._top: TopRows | None = None
        self._own: OwnVocabulary | None = None
        self._buffers = self._new_buffers(chunk)
        self._cache: Cache = GrownCache(self.graph, self.device)
        choose_cache(self)
        noise = measure_noise(self)
        if self.device == "cpu" or isinstance(self._cache, GrownCache):
            self.capabilities = replace(self.capabilities, saves="parts")
        obstacle = obstacle_to_trees(self)
        if not obstacle:
            self.capabilities = replace(self.capabilities, max_leaves=MAX_ROWS - 1)
        self._padding: Padding = noise.padding(self.config.batch_invariant)
        self.pads = self._padding != "never"
        if self.pads:  # padding needs one place after the last token
            self.n_ctx = min(self.n_ctx, longest - 1)
            self.capabilities = replace(self.capabilities, min_tokens=2)
        if find(self.path.parent, DRAFTED_IDS):
            self._own = self._own_vocabulary()
            self.vocab_size = self._whole_vocab_size()
        self.placement = {
            "provider": self.provider,
            "cache": "shared" if isinstance(self._cache, SharedCache) else "grown",
            "single tokens": noise.in_words(self._padding),
            "trees": f"no: {obstacle}" if obstacle else "yes",
        }
        self._see()

    @property
    def n_past(self) -> int:
        """The number of tokens that the cache holds."""
        return self._n_past + len(self._unread)

    def decode(
        self, tokens: Sequence[int], n_logits: int = 1, abort: Abort | None = None
    ) -> Outputs:
        """Append tokens; return float32 [n_logits, vocab_size], a view valid until the next
        call.
        """
        if tokens and tokens[0] < 0:
            return self._show(tile_of(tokens), n_logits, abort)
        done, parts = 0, []
        for end in chunk_ends(self, len(tokens), n_logits):
            parts += copied(self._evaluate(tokens[done:end], 0, abort).hidden)
            done = end
        rows, last = self._evaluate(tokens[done:] if done else tokens, n_logits, abort)
        return Outputs(rows, joined(parts, last))

    def decode_tree(
        self, tokens: Sequence[int], parents: Sequence[int], abort: Abort | None = None
    ) -> Outputs:
        """Append tokens, the last of which are a tree; return float32 [len(parents) + 1,
        vocab_size].
        """
        n_rows = len(parents) + 1
        n_before = len(tokens) - n_rows
        chunk_ends(self, len(tokens), n_rows)
        parts = []
        if n_before:
            parts += copied(self.decode(tokens[:n_before], 0, abort).hidden)
        if self.n_past or len(parents) < 2:
            after = [-1, *(parent + 1 for parent in parents)] if parents else []
            rows, last = self._evaluate(tokens[n_before:], n_rows, abort, after)
        else:  # without a past, attention computes positions itself
            root = self.decode(tokens[:1], 1, abort)
            above, parts = root.logits.copy(), copied(root.hidden)
            rows, last = self._evaluate(tokens[1:], n_rows - 1, abort, parents)
            rows = np.concatenate([above, rows])
        self._nodes = tokens[n_before + 1 :]
        return Outputs(rows, joined(parts, last))

    def keep(self, path: Sequence[int]) -> None:
        """Keep these nodes of the tree just evaluated as the cache's tail; drop the others."""
        start = self._n_past - len(self._nodes)
        try:
            n_kept = self._cache.gather(start, [start + node for node in path])
        except BaseException:  # no room for the copies, or Ctrl-C
            self._nodes = ()
            self.truncate(start)
            raise
        self._unread = [self._nodes[node] for node in path[n_kept:]]
        self._n_past, self._nodes = start + n_kept, ()

    def tap(self, layers: Sequence[int]) -> None:
        """Make later evaluations return the hidden states of these layers, which may include FINAL.
        Raises ConfigError for a layer whose states the graph does not return.
        """
        check_layers(self.path, self.graph, layers)
        self._buffers.tap(layers)

    @property
    def n_cached(self) -> int:
        """The number of tokens whose keys and values are in the cache."""
        return self._n_past

    def cached(self, start: int, end: int) -> npt.NDArray[np.float32]:
        """Return a copy of the keys and values of tokens, [end - start, layers, cached_size]."""
        return keys_and_values(self._cache, start, end)

    def truncate(self, n_past: int) -> None:
        """Forget everything from `n_past` on."""
        del self._unread[max(0, n_past - self._n_past) :]
        if n_past < self._n_past:
            self._cache.truncate(n_past)
            self._n_past = n_past

    def save_state(self, start: int, end: int) -> Buffer:
        """Return the keys and values of the tokens from `start` to `end`."""
        self._settle(None)
        return np.stack(self._cache.rows(start, end)).data.cast("B")

    def load_state(self, state: Buffer, end: int) -> None:
        """Append tokens whose keys and values were saved."""
        graph, n_past = self.graph, self._n_past
        shape = len(graph.past), graph.heads, end - n_past, graph.head_size
        if self._unread or len(state) != math.prod(shape) * np.dtype(graph.dtype).itemsize:
            self.truncate(0)
            raise DecodeError(f"{self.path}: a saved state is not of the tokens {n_past} to {end}")
        rows = np.frombuffer(state, graph.dtype).reshape(shape)
        self._cache.append(list(rows), n_past)
        self._n_past = end

    def switches(self) -> dict[str, tuple[Any, Any]]:
        """Return the number of threads. It is the only such setting: a session is made for one
        number of threads.
        """
        return switches(self.config, self.n_threads)

    def expect_drafts(self, expected: bool) -> None:
        """Choose whether a single token is evaluated as two tokens. For some graphs, this depends
        on whether drafts may come.
        """
        self.pads = self._padding == "always" or (expected and self._padding == "beside drafts")

    def restrict(self, top: int) -> None:
        """Allow rows from now on to be -inf outside their `top` largest logits; 0, or more than
        MAX_TOP, asks for complete rows. Rows are always complete unless the graph runs on CUDA and
        returns float32 logits.
        """
        able = self.device in _RESTRICTED and self.graph.logits_dtype is np.float32
        able = able and self._own is None
        n_top = top if able and top <= MAX_TOP else 0
        if n_top and self._top is None:
            self._top = self._new_top()
        self._buffers.fetch_top(self._top if n_top else None, n_top)

    def fingerprint(self) -> dict[str, Any]:
        """Return everything that the speed of this model depends on: device, build, file,
        settings.
        """
        return fingerprint(self.path, self.config, self.n_threads, self.placement)

    def batched(self) -> SeparateModels:
        """Return a model whose first slot is this model; others share its session."""
        return SeparateModels([self], self._twin)

    def n_more(self, most: int) -> int:
        """Return how many more caches of this model's size fit into memory, at most `most`."""
        fits = (n for n in range(most, 0, -1) if self._usual_n_ctx(n) >= self.n_ctx)
        return next(fits, 0)

    @property
    def blind(self) -> str:
        """The reason why no encoder can be used with this graph, "" if one can."""
        return "" if self._embed else "the decoder reads token ids, so pictures have no place in it"

    def _see(self) -> None:
        """Open the vision encoder that the settings name, or the one next to the decoder."""
        missing = f"there is no {VISION}….onnx in {self.path.parent}; {to_fetch_again(self.path)}"
        lacks = self.blind or missing
        opened = open_eyes(self.path, self.config.mmproj, lacks, self._opened_eyes)
        self.eyes, self.why_blind = opened
        if self.eyes:
            seen_with = f"{self.eyes.path.name} ({self.eyes.family.kind})"
            self.placement = {**self.placement, "projector": seen_with}

    def _opened_eyes(self, path: Path) -> OnnxEyes:
        if self._embed is None:
            raise ConfigError(f"{path.name} cannot be used: {self.blind}; set mmproj to none")
        return OnnxEyes(
            path,
            config=self.config,
            n_threads=self.n_threads,
            tokenizer=self.tokenizer,
            width=self._embed.width,
        )

    def _show(self, tile: Tile, n_logits: int, abort: Abort | None) -> Outputs:
        """Append a tile; encode it first if its embeddings are not known."""
        embeddings = embeddings_of(self, tile, n_logits, abort)
        start, most = self.n_past, self.capabilities.max_batch
        try:
            self._settle(abort)
            for at in range(0, tile.n_tokens, most):
                self._evaluate(embeddings[at : at + most], 0, abort)
        except BaseException:
            self.truncate(start)
            raise
        return Outputs(self._buffers.rows(0, 0, 0))

    def use(self, cache: Cache) -> None:
        """Use a different cache, which must be empty."""
        self._buffers.renew()
        self._cache, self._n_past, self._unread = cache, 0, []

    def close(self) -> None:
        """Free weights and cache."""
        self._session = self._buffers = self._cache = self._top = None  # type: ignore[assignment]
        self._embed = self.eyes = None

    def _usual_n_ctx(self, n_caches: int = 1) -> int:
        """Return the context length if none is asked for. The memory of a GPU is not known.

        n_caches: the number of caches of this length.
        """
        graph, on_cpu = self.graph, self.device == "cpu"
        free, total = (available_memory(), total_memory()) if on_cpu else (0, 0)
        size = graph.heads * graph.head_size * np.dtype(graph.dtype).itemsize
        token_bytes = len(graph.past) * size
        copies = 2  # a cache that grows holds the past while the graph returns the present
        return default_n_ctx(self.n_ctx_train, copies * token_bytes, free, total, n_caches)

    def _twin(self, n_ctx: int, n_caches: int = 1) -> OnnxModel:
        """Return a model over the same weights with a cache of its own; n_ctx: 0 for the usual
        length if there are so many caches.
        """
        n_ctx = n_ctx or self._usual_n_ctx(n_caches)
        twin = copy.copy(self)
        twin.n_ctx = min(n_ctx, self.n_ctx)
        twin._top = None
        twin._own = self._own_vocabulary() if self._own else None  # its buffer is not shared
        twin._run = AbortableRun(self.path)
        twin.expect_drafts(True)
        twin._buffers = twin._new_buffers(self.capabilities.max_batch)
        shared = isinstance(self._cache, SharedCache)
        twin.use(
            SharedCache(self.graph, self.device, twin.n_ctx + 2)
            if shared
            else GrownCache(self.graph, self.device)
        )
        return twin

    def _own_vocabulary(self) -> OwnVocabulary:
        """Return what turns rows over a trimmed graph's tokens into rows over all. Raises
        ModelError.
        """
        folder = self.path.parent
        return OwnVocabulary(folder, self.graph.vocab_size, self._whole_vocab_size())

    def _whole_vocab_size(self) -> int:
        """Return the number of tokens before the graph was trimmed."""
        folder = self.path.parent
        return number(folder, settings(folder), "vocab_size") or self.tokenizer.vocab_size

    def _new_top(self) -> TopRows:
        n_rows = self._buffers.n_rows if KEEP in self.graph.inputs else MAX_ROWS + 1
        try:
            name = f"{self.provider}ExecutionProvider"
            return TopRows(name, self.device, n_rows, self.vocab_size)
        except Exception as error:
            raise OutOfMemory(
                f"no room for {n_rows} rows on {self.provider}: {error}; take a smaller n_ctx"
            ) from error

    def _chunk(self) -> int:
        """Return the most tokens per call. It is small enough for unused logits to take little
        memory.
        """
        size = min(self.config.n_batch, _CHUNK if self.device == "cpu" else 512)
        if KEEP in self.graph.inputs:
            return size
        row = self.vocab_size * np.dtype(self.graph.logits_dtype).itemsize
        return min(size, max(_LOGITS_BYTES // int(row), MAX_ROWS))

    def _settle(self, abort: Abort | None) -> None:
        """Evaluate the kept tokens that wait to be evaluated again."""
        if unread := self._unread:
            self._unread = []
            self._evaluate(unread, 0, abort)

    def _new_buffers(self, chunk: int) -> Buffers:
        return Buffers(self._session, self.graph, chunk, self.n_ctx, self._embed)

    def _evaluate(
        self,
        tokens: Tokens,
        n_logits: int,
        abort: Abort | None,
        after: Sequence[int] = (),
    ) -> Outputs:
        """Append tokens. after: for a tree, the index of the token before each token on its path;
        -1 is the last token of the past.
        """
        if len(self._unread) + len(tokens) > self.capabilities.max_batch:
            self._settle(abort)
        if n_first := len(self._unread):
            tokens = [*self._unread, *tokens]
            after = after and [*range(-1, n_first - 1), *(i + n_first for i in after)]
        n = len(tokens)
        width = 2 if n == 1 and self.pads else n
        n_added = width - n
        buffers, cache = self._buffers, self._cache
        n_rows = buffers.bind(tokens, width, self._n_past, n_logits + n_added, cache)
        if after:
            buffers.branch(after, self._n_past)
        self._run(self._session, buffers.native, abort, self._n_past)
        cache.keep(buffers.native)
        self._n_past += n
        self._unread = []
        if n_added:
            cache.truncate(self._n_past)
        rows = buffers.rows(n_logits, n_rows - n_added, n_rows)
        if self._own:
            rows = self._own.spread(rows)
        return Outputs(rows, buffers.hidden(n_first, n))
