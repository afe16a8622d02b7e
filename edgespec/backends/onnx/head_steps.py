"""The graphs of heads: how each kind uses the states and tokens that it reads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ...config import EngineConfig
from ...errors import DecodeError, ModelError, OutOfMemory
from ...kept_files import one_line
from ..context_length import LEAST
from .buffers import MAX_ROWS
from .graph import KEEP
from .session import ort

Floats = npt.NDArray[np.float32]
Run = Callable[[Any, Any], None]
"""A function that runs a session with a binding. Raises DecodeError, Aborted."""
Opened = Callable[[Path], Any]
"""A function that returns the session of a graph. Raises the errors of `open_session`."""

MAX_NODES = 256
HEAD, FUSE = "head.onnx", "fuse.onnx"
_MOST_SIZE = 1 << 24
_NO_HEAD = "it is no head as edgespec convert writes them"


class Nodes(NamedTuple):
    """Nodes to add to a tree that has `n_before` nodes so far. depths: 0 for a node after the
    root.
    """

    tokens: Sequence[int]
    parents: Sequence[int]
    depths: Sequence[int]
    n_before: int


class Described(NamedTuple):
    """The description that a head's graph gives of itself.

    inputs, outputs: shapes by name. notes: the metadata that its conversion wrote. n_ctx: the most
    tokens of its cache.
    """

    inputs: dict[str, Any]
    outputs: dict[str, Any]
    notes: Mapping[str, str]
    n_ctx: int


@contextlib.contextmanager
def described(session: Any, path: Path, config: EngineConfig) -> Iterator[Described]:
    """Yield the description of a graph. Raises ModelError if the `with` block looks for something
    that the graph does not have.
    """
    try:
        notes = session.get_modelmeta().custom_metadata_map
        n_ctx = int(notes.get("edgespec.n_ctx", LEAST))
        yield Described(
            {node.name: node.shape for node in session.get_inputs()},
            {node.name: node.shape for node in session.get_outputs()},
            notes,
            min(config.n_ctx or LEAST, size(n_ctx)),
        )
    except KeyError as error:
        raise ModelError(f"{path} lacks {error}: {_NO_HEAD}") from None
    except (TypeError, ValueError, IndexError, OverflowError, RuntimeError) as error:
        raise ModelError(f"{path} has {one_line(error)}: {_NO_HEAD}") from None


def size(value: Any) -> int:
    """Return `value`, a size in a graph. Raises ValueError if no head can have such a size."""
    if type(value) is not int or not 0 < value <= _MOST_SIZE:
        raise ValueError(f"a size of {value!r:.40}")
    return value


class Steps(Protocol):
    """The graphs of a head.

    n_ctx: the longest text in tokens, 0 for any length. n_states: as in `Head`. n_guesses: how many
    tokens they guess, 0 for any number. width: the length of a logits row. provider: the provider
    that runs them. Rows are views valid until the next call.
    """

    n_ctx: int
    n_states: int
    n_guesses: int
    width: int
    provider: str

    def read(
        self, tokens: Sequence[int], taps: Floats, n_past: int, n_rows: int, run: Run
    ) -> Floats:
        """Read tokens after the first `n_past`; return the logits rows of the last `n_rows` of
        them. The last token becomes the root of the tree that `guess` grows.

        taps: the target's states before each token, [n, layers * hidden_size].
        """

    def guess(self, nodes: Nodes, n_past: int, run: Run) -> Floats:
        """Add nodes to the tree and return a logits row for each. n_past: the tokens up to the
        root.
        """


class Layered:
    """A head with one layer and a cache of its own: EAGLE, MTP.

    chunk: the most tokens per call. n_ctx: the most tokens of the cache.
    """

    n_states = n_guesses = 0

    def __init__(self, folder: Path, config: EngineConfig, opened: Opened, chunk: int) -> None:
        self._head = opened(folder / HEAD)
        self.provider = provider_of(self._head)
        has_fuse = (folder / FUSE).is_file()
        self._fuse = opened(folder / FUSE) if has_fuse else None
        with described(self._head, folder / HEAD, config) as graph:
            self._d = size(graph.inputs["states"][-1])
            heads, width = (size(graph.inputs["past_key_values.0.key"][i]) for i in (1, 3))
            self.width, self.n_ctx = size(graph.outputs["logits"][-1]), graph.n_ctx
            self._cache_shape = (1, heads, self.n_ctx, width)
            self._make_buffers(chunk)

    def _make_buffers(self, chunk: int) -> None:
        """Allocate, once, the arrays that inputs and outputs are bound to."""
        n = max(chunk, MAX_ROWS)
        self._ids = np.zeros((1, n), np.int64)
        self._mask = np.ones((1, self.n_ctx), np.int64)
        self._line = np.arange(self.n_ctx, dtype=np.int64)[None]
        self._positions = np.zeros((1, n), np.int64)
        self._no_bias = np.zeros(n * self.n_ctx, np.float32)
        self._bias = np.zeros(MAX_ROWS * self.n_ctx, np.float32)
        self._fused = np.zeros((n, self._d), np.float32)
        self._states_in = np.zeros((MAX_ROWS, self._d), np.float32)
        self._next = np.zeros((n, self._d), np.float32)
        self._logits = np.zeros((MAX_ROWS, self.width), np.float32)
        self._n_rows = np.ones(1, np.int64)
        self._nodes = np.zeros((MAX_NODES + 1, self._d), np.float32)  # the root's, then the nodes'
        self._sees = np.zeros((MAX_NODES, MAX_NODES), bool)
        self._binding = self._head.io_binding()
        self._cache = [device_array(self._cache_shape, self.n_ctx, self.provider) for _ in range(2)]
        for kind, value in zip(("key", "value"), self._cache, strict=True):
            self._binding.bind_ortvalue_input(f"past_key_values.0.{kind}", value)
            self._binding.bind_ortvalue_output(f"present.0.{kind}", value)

    def read(
        self, tokens: Sequence[int], taps: Floats, n_past: int, n_rows: int, run: Run
    ) -> Floats:
        """Append tokens to the cache."""
        n, total = len(tokens), n_past + len(tokens)
        states = self._fuse_taps(taps, run) if self._fuse else taps
        bias = self._no_bias[: n * total]
        self._evaluate(tokens, states, self._line[:, n_past:total], bias, n_rows, run)
        self._nodes[0] = self._next[n - 1]
        return self._logits[:n_rows]

    def guess(self, nodes: Nodes, n_past: int, run: Run) -> Floats:
        """Append nodes after the tokens that were read; each node sees only its own path of the
        tree.
        """
        n, first = len(nodes.tokens), nodes.n_before
        total = n_past + first + n
        bias = self._bias[: n * total].reshape(n, total)
        bias[:] = 0
        for i, parent in enumerate(nodes.parents):
            sees = self._sees[first + i]
            sees[:] = False if parent < 0 else self._sees[parent]
            sees[first + i] = True
            bias[i, n_past:][~sees[: first + n]] = np.finfo(np.float32).min
            self._states_in[i] = self._nodes[parent + 1]
            self._positions[0, i] = n_past + nodes.depths[i]
        positions = self._positions[:, :n]
        self._evaluate(nodes.tokens, self._states_in[:n], positions, bias, n, run)
        self._nodes[first + 1 : first + 1 + n] = self._next[:n]
        return self._logits[:n]

    def _fuse_taps(self, taps: Floats, run: Run) -> Floats:
        assert self._fuse
        binding, n = self._fuse.io_binding(), len(taps)
        bind_input(binding, "hidden_states", taps[None])
        bind_output(binding, "states", self._fused[None, :n])
        run(self._fuse, binding)
        return self._fused[:n]

    def _evaluate(
        self,
        tokens: Sequence[int],
        states: Floats,
        positions: npt.NDArray[np.int64],
        bias: Floats,
        n_rows: int,
        run: Run,
    ) -> None:
        """Run the head and fill logits and next states. bias: n * total numbers, added to
        scores.
        """
        n, binding = len(tokens), self._binding
        total = bias.size // n
        self._ids[0, :n] = tokens
        self._n_rows[0] = n_rows = max(1, n_rows)
        bind_input(binding, "input_ids", self._ids[:, :n])
        bind_input(binding, "states", states[None])
        bind_input(binding, "position_ids", positions)
        bind_input(binding, "attention_bias", bias.reshape(1, 1, n, total))
        bind_input(binding, "attention_mask", self._mask[:, :total])
        bind_input(binding, KEEP, self._n_rows)
        bind_output(binding, "logits", self._logits[None, :n_rows])
        bind_output(binding, "next_states", self._next[None, :n])
        run(self._head, binding)


class Medusa:
    """Medusa heads, which read the target's last state: one call returns the rows of all depths."""

    n_ctx, n_states = 0, 1

    def __init__(self, folder: Path, config: EngineConfig, opened: Opened, chunk: int) -> None:
        self._head = opened(folder / HEAD)
        self.provider = provider_of(self._head)
        with described(self._head, folder / HEAD, config) as graph:
            self.n_guesses, self.width = map(size, graph.outputs["logits"][1:])
            n_numbers = size(graph.inputs["hidden_states"][-1])
        self._all = np.zeros((1, self.n_guesses, self.width), np.float32)
        self._rows = np.zeros((MAX_ROWS, self.width), np.float32)
        self._state = np.zeros((1, 1, n_numbers), np.float32)
        self._is_read = False

    def read(
        self, tokens: Sequence[int], taps: Floats, n_past: int, n_rows: int, run: Run
    ) -> Floats:
        """Return the first head's rows; Medusa ignores tokens and uses only the states."""
        self._is_read = False
        for i in range(n_rows):
            self._state[0, 0] = taps[len(taps) - n_rows + i]
            self._evaluate(run)
            self._rows[i] = self._all[0, 0]
        self._state[0, 0] = taps[-1]
        self._is_read = n_rows > 0
        return self._rows[:n_rows]

    def guess(self, nodes: Nodes, n_past: int, run: Run) -> Floats:
        """Return for each node the row of the head for its depth."""
        if not self._is_read:
            self._evaluate(run)
            self._is_read = True
        for i, depth in enumerate(nodes.depths):
            self._rows[i] = self._all[0, depth + 1]
        return self._rows[: len(nodes.depths)]

    def _evaluate(self, run: Run) -> None:
        binding = self._head.io_binding()
        bind_input(binding, "hidden_states", self._state)
        bind_output(binding, "logits", self._all)
        run(self._head, binding)


class MlpSpeculator:
    """An MLP speculator: a small state, and a graph for each depth. Depths beyond use the last
    graph.
    """

    n_ctx, n_states, n_guesses = 0, 1, 0

    def __init__(self, folder: Path, config: EngineConfig, opened: Opened, chunk: int) -> None:
        self._heads: list[Any] = []
        while (path := folder / f"head.{len(self._heads)}.onnx").is_file() or not self._heads:
            self._heads.append(opened(path))
        self.provider = provider_of(self._heads[0])
        with described(self._heads[0], folder / "head.0.onnx", config) as graph:
            names = ("logits", "next_states")
            self.width, inner = (size(graph.outputs[name][-1]) for name in names)
        self._logits = np.zeros((MAX_ROWS, self.width), np.float32)
        self._rows = np.zeros((MAX_ROWS, self.width), np.float32)
        self._states = np.zeros((MAX_NODES + 1, inner), np.float32)  # the root's, then the nodes'

    def read(
        self, tokens: Sequence[int], taps: Floats, n_past: int, n_rows: int, run: Run
    ) -> Floats:
        """Run the first graph with the last tokens and the target's states before them."""
        n = max(1, n_rows)
        states = np.empty((n, self._states.shape[1]), np.float32)
        self._evaluate(0, tokens[-n:], np.ascontiguousarray(taps[-n:]), states, run)
        self._states[0] = states[-1]
        return self._logits[:n_rows]

    def guess(self, nodes: Nodes, n_past: int, run: Run) -> Floats:
        """Run the next graphs with the nodes and the states of their parents, one depth at a
        time.
        """
        for depth in sorted(set(nodes.depths)):
            of_depth = [i for i, each in enumerate(nodes.depths) if each == depth]
            states = self._states[[nodes.parents[i] + 1 for i in of_depth]]
            after = np.empty_like(states)
            self._evaluate(depth + 1, [nodes.tokens[i] for i in of_depth], states, after, run)
            self._states[[nodes.n_before + 1 + i for i in of_depth]] = after
            self._rows[of_depth] = self._logits[: len(of_depth)]
        return self._rows[: len(nodes.depths)]

    def _evaluate(
        self, depth: int, tokens: Sequence[int], states: Floats, after: Floats, run: Run
    ) -> None:
        session, n = self._heads[min(depth, len(self._heads) - 1)], len(tokens)
        ids, binding = np.array([tokens], np.int64), session.io_binding()
        bind_input(binding, "input_ids", ids)
        bind_input(binding, "states", states[None])
        bind_output(binding, "logits", self._logits[None, :n])
        bind_output(binding, "next_states", after[None])
        run(session, binding)


class KeptRows:
    """A cache of `n` rows of `size` numbers, on the device that a provider computes on. Raises
    OutOfMemory.
    """

    def __init__(self, n: int, size: int, provider: str) -> None:
        self._array = device_array((n, size), n, provider)
        self._size = size

    def bind_input(self, binding: Any, name: str, start: int, end: int) -> None:
        """Make a graph read the rows from `start` to `end`, as [1, end - start, size]."""
        _bind(binding.bind_input, name, *self._part(start, end))

    def bind_output(self, binding: Any, name: str, start: int, end: int) -> None:
        """Make a graph write the rows from `start` to `end`, as [1, end - start, size]."""
        _bind(binding.bind_output, name, *self._part(start, end))

    def _part(self, start: int, end: int) -> tuple[str, int, Any, tuple[int, ...], int]:
        address = self._array.data_ptr() + start * self._size * np.dtype(np.float32).itemsize
        return self._array.device_name(), 0, np.float32, (1, end - start, self._size), address


def device_array(shape: tuple[int, ...], n_ctx: int, provider: str) -> Any:
    """Return a float32 array on the device that a provider computes on. Raises OutOfMemory.

    n_ctx: the number of tokens that it is for, for the message.
    """
    device = "cuda" if provider == "CUDA" else "cpu"
    try:
        return ort.OrtValue.ortvalue_from_shape_and_type(shape, np.float32, device, 0)
    except Exception as error:  # the library's exceptions have no common base class
        raise OutOfMemory(
            f"no cache of {n_ctx} tokens could be made: {error}; take a smaller n_ctx"
        ) from error


def provider_of(session: Any) -> str:
    """Return the name of the provider that runs a session."""
    return str(session.get_providers()[0].removesuffix("ExecutionProvider"))


def bind_input(binding: Any, name: str, array: npt.NDArray[Any]) -> None:
    """Bind an array as an input. The array has to exist until the session has run."""
    _bind(binding.bind_input, name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)


def bind_output(binding: Any, name: str, array: npt.NDArray[Any]) -> None:
    """Bind an array that an output is written to. The array has to exist until the session has
    run.
    """
    _bind(binding.bind_output, name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)


def _bind(bind: Callable[..., None], name: str, *array: Any) -> None:
    """Bind an input or output. Raises DecodeError if the graph does not have it."""
    try:
        bind(name, *array)
    except Exception as error:  # the library's exceptions have no common base class
        raise DecodeError(f"the head's graph does not take or give {name}: {_NO_HEAD}") from error
