"""ONNX decoders on onnxruntime: one session, one cache, inputs and outputs bound to buffers."""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import logging
import os
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...config import EngineConfig
from ...device import physical_cores, processor, thread_counts
from ...errors import (
    Aborted,
    ConfigError,
    DecodeError,
    EngineMissing,
    ModelError,
    ModelNotFound,
    OutOfMemory,
    TruncatedModel,
    UnknownArchitecture,
)
from ...types import Abort, Outputs, Rows
from ..base import Capabilities
from ..chunks import chunk_ends
from ..files import label, size_of
from ..separate import SeparateModels
from .graph import DEFAULT_N_CTX, KEEP, Graph, precision_of, read_graph, trained
from .tokenizer import HfTokenizer, read
from .top_rows import TopRows

try:
    import onnxruntime as ort
except ImportError as error:
    raise EngineMissing(
        f"ONNX models need onnxruntime, which cannot be imported here ({error}); install it "
        "with: pip install 'edgespec[onnx]' (CPU), 'edgespec[onnx-cuda]' or "
        "'edgespec[onnx-cuda12]'"
    ) from error

logger = logging.getLogger("edgespec.onnx")

MAX_ROWS = 32  # logits rows a call: a draft of 31 tokens
ABORTABLE = 16  # evaluations of more tokens than this can be stopped half-way
MAX_TOP = 64
_RESTRICTED = ("cuda",)  # devices from which whole rows take long
_POLL_S = 0.05
_CHUNK = 128  # tokens: longer ones are hardly faster on CPUs, and their work space is larger
_LOGITS_BYTES = 64 << 20  # of a chunk, where the graph gives rows that nobody wants
_NOISE = 0.1  # logits: rows that differ more are not the same row rounded differently
_SAME = 1e-3  # logits: rows that differ less rarely change a token


def open_model(path: Path, config: EngineConfig) -> OnnxModel:
    """A file, ready to evaluate tokens."""
    return OnnxModel(path, config)


@contextlib.contextmanager
def vocabulary(path: Path) -> Iterator[HfTokenizer]:
    """The tokenizer of a file, without its weights."""
    yield HfTokenizer(path.parent)


def inspect_metadata(path: Path) -> dict[str, str]:
    """What companions and graph say of a model, by the names that a GGUF has for it, and how it
    runs here. Loads the weights: what kernels do with single tokens has to be tried.
    """
    config = read(path.parent, "config.json")
    model = OnnxModel(path, EngineConfig(n_ctx=64))
    try:
        graph = model._graph
        return {
            "general.architecture": config.get("model_type", "unknown"),
            "general.name": path.parent.name,
            "quantisation": precision_of(path, graph),
            "context_length": str(trained(path.parent)),
            "vocab_size": str(graph.vocab_size),
            "block_count": str(len(graph.past) // 2),
            "attention.head_count_kv": str(graph.heads),
            "attention.key_length": str(graph.head_size),
            "attention.value_length": str(graph.head_size),
            "element_size": str(np.dtype(graph.dtype).itemsize),
            "has_chat_template": str(bool(model.tokenizer.chat_template)),
        } | {f"engine.{name}": value for name, value in model.placement.items()}
    finally:
        model.close()


class OnnxModel:
    """An ONNX decoder under the `Model` contract.

    path: an .onnx file, its tokenizer.json beside it or above a folder onnx/. The graph has the
    inputs and outputs of onnx-community's repositories, of onnxruntime-genai's folders or of
    plain exports with past keys and values.
    n_ctx: as asked for, at most what the graph was made for: its rotations are a table.
    placement: the provider that really runs it, and how its cache is kept ("shared": one
    buffer that the graph appends to in place; "grown": a longer one every time).
    pads: single tokens are evaluated as two, because this graph's kernels give another row for
    one alone, by row_noise logits, and a draft would change the text.

    Raises ModelNotFound, TruncatedModel, UnknownArchitecture, OutOfMemory, ModelError;
    ConfigError for a provider that is not there.
    """

    def __init__(self, path: str | os.PathLike[str], config: EngineConfig | None = None) -> None:
        self.path = Path(os.path.abspath(path))
        self.config = config or EngineConfig()
        check_packages()
        self.n_threads = self.n_threads_batch = self.config.n_threads or physical_cores()
        self._session: Any = _open(self.path, self.config, self.n_threads)
        self._graph = read_graph(self.path, self._session)
        self.tokenizer = HfTokenizer(self.path.parent)
        self.vocab_size = self._graph.vocab_size
        self.n_ctx_train = longest = trained(self.path.parent)
        self.n_ctx = min(self.config.n_ctx or DEFAULT_N_CTX, longest)
        self._keeps = KEEP in self._graph.inputs
        self.provider: str = self._session.get_providers()[0].removesuffix("ExecutionProvider")
        self._device = "cuda" if self.provider == "CUDA" else "cpu"
        chunk = self._chunk()
        self.capabilities = Capabilities(
            MAX_ROWS, chunk, hidden_states=self._graph.hidden > 0, tree=bool(self._graph.mask)
        )
        self._n_past = 0
        self.pads = False
        self._binding: Any = None
        self._top: TopRows | None = None
        self._n_top = 0
        self._make_buffers(chunk)
        self._cache: Any = _Grown(self._graph, self._device)
        self._choose_cache()
        self.row_noise = self._measure_noise()
        if self.pads:  # the last token needs another one behind it
            self.n_ctx = min(self.n_ctx, longest - 1)
            self.capabilities = replace(self.capabilities, min_tokens=2)
        self.placement = {
            "provider": self.provider,
            "cache": "shared" if isinstance(self._cache, _Shared) else "grown",
            "single tokens": self._alone(),
            "trees": "the graph takes masks for them" if self._graph.mask else "no",
        }

    @property
    def n_past(self) -> int:
        """How many tokens the cache holds."""
        return self._n_past

    def decode(
        self, tokens: Sequence[int], n_logits: int = 1, abort: Abort | None = None
    ) -> Outputs:
        """Append tokens; float32 [n_logits, vocab_size], a view valid until the next call."""
        done = 0
        for end in chunk_ends(self, len(tokens), n_logits):
            self._evaluate(tokens[done:end], 0, abort)
            done = end
        return Outputs(self._evaluate(tokens[done:] if done else tokens, n_logits, abort))

    def hidden_states(self) -> npt.NDArray[np.float32]:
        """Final hidden states of the last call's last tokens, [n, width], a view valid until
        the next call; [0, 0] where the graph does not give them.
        """
        states = self._hidden[: self._n_hidden]
        return states if states.dtype == np.float32 else states.astype(np.float32)

    def truncate(self, n_past: int) -> None:
        """Forget everything from `n_past` on."""
        if n_past < self._n_past:
            self._cache.truncate(n_past)
            self._n_past = n_past

    def checkpoint(self) -> int:
        """The length: what is behind it can be dropped."""
        return self._n_past

    def restore(self, state: int) -> None:
        """Return to a checkpoint."""
        self.truncate(state)

    def switches(self) -> dict[str, tuple[Any, Any]]:
        """Threads: the session is made for a number of them."""
        others = [n for n in thread_counts() if n != self.n_threads]
        return {"n_threads": (self.n_threads, others[-1])} if others else {}

    def restrict(self, top: int) -> None:
        """From now on rows may be -inf outside their `top` largest logits, of which at most
        MAX_TOP are wanted; 0: whole rows. Without a device of its own they stay whole.
        """
        able = self._device in _RESTRICTED and self._graph.logits_dtype is np.float32
        n_top = top if able and top <= MAX_TOP else 0
        if n_top and self._top is None:
            n_rows = len(self._logits) if self._keeps else MAX_ROWS + 1
            name = f"{self.provider}ExecutionProvider"
            try:
                self._top = TopRows(name, self._device, n_rows, self.vocab_size)
            except Exception as error:
                raise OutOfMemory(
                    f"no room for {n_rows} rows on {self.provider}: {error}; take a smaller n_ctx"
                ) from error
        if bool(n_top) != bool(self._n_top):
            self._bound = 0, 0
        self._n_top = n_top

    def fingerprint(self) -> dict[str, Any]:
        """What the speed of this model depends on: device, build, file, settings. How long the
        context may become is not among it.
        """
        settings = asdict(self.config)
        del settings["on_busy"], settings["n_ctx"], settings["requantize"]
        return identity(self.path) | {
            "placement": self.placement,
            "settings": settings | {"n_threads": self.n_threads},
        }

    def batched(self, n_slots: int, n_ctx: int) -> SeparateModels:
        """A cache of `n_ctx` tokens for each of so many sequences over the same session. Raises
        OutOfMemory.
        """
        return SeparateModels([self._twin(n_ctx) for _ in range(n_slots)])

    def _twin(self, n_ctx: int) -> OnnxModel:
        """Another cache over the same weights."""
        twin = copy.copy(self)
        twin.n_ctx = min(n_ctx, self.n_ctx)
        twin._n_past, twin._n_top, twin._top = 0, 0, None
        twin._make_buffers(self.capabilities.max_batch)
        if isinstance(self._cache, _Shared):
            twin._cache = _Shared(self._graph, self._device, twin.n_ctx + 2)
        else:
            twin._cache = _Grown(self._graph, self._device)
        return twin

    def close(self) -> None:
        """Free weights and cache."""
        self._session = self._binding = self._cache = self._top = None

    def _chunk(self) -> int:
        """Tokens a call: few enough that logits which nobody wants stay small."""
        size = min(self.config.n_batch, _CHUNK if self._device == "cpu" else 512)
        if self._keeps:
            return size
        row = self.vocab_size * np.dtype(self._graph.logits_dtype).itemsize
        return min(size, max(_LOGITS_BYTES // int(row), MAX_ROWS))

    def _make_buffers(self, chunk: int) -> None:
        """What inputs are bound to: written to before every call, never allocated again."""
        graph, length = self._graph, self.n_ctx + 2
        self._ids = np.zeros((1, chunk + 1), graph.inputs["input_ids"])
        self._mask = np.ones((1, length), graph.inputs.get("attention_mask", np.int64))
        self._positions = np.arange(length, dtype=graph.inputs.get("position_ids", np.int64))[None]
        self._n_kept = np.ones(graph.keep_shape, graph.inputs.get(KEEP, np.int64))
        rows = MAX_ROWS + 1 if self._keeps else chunk + 1
        self._logits = np.empty((rows, self.vocab_size), graph.logits_dtype)
        n_hidden = chunk + 1 if graph.hidden else 0
        self._hidden = np.empty((n_hidden, graph.hidden), graph.hidden_dtype)
        self._n_hidden = 0
        self._new_binding()

    def _new_binding(self) -> None:
        self._binding = self._session.io_binding()
        self._bound = 0, 0  # tokens and rows that it is for

    def _evaluate(self, tokens: Sequence[int], n_logits: int, abort: Abort | None) -> Rows:
        n = len(tokens)
        width = 2 if n == 1 and self.pads else n
        self._ids[0, :n] = tokens
        self._ids[0, n:width] = tokens[-1]
        n_rows = self._bind(width, n_logits + width - n)
        self._run(abort if n > ABORTABLE else None)
        self._cache.keep(self._binding)
        self._n_past += n
        if width > n:
            self._cache.truncate(self._n_past)
        self._n_hidden = n if self._graph.hidden else 0
        end = n_rows - (width - n)
        if self._top and self._n_top and n_logits and n_rows <= self._top.n_rows:
            return self._top.rows(end, self._n_top)[end - n_logits :]
        rows = self._logits[end - n_logits : end]
        return rows if rows.dtype == np.float32 else rows.astype(np.float32)

    def _bind(self, width: int, n_wanted: int) -> int:
        """Inputs and outputs of one call; how many rows of logits it will give."""
        graph, total = self._graph, self._n_past + width
        n_rows = max(1, n_wanted) if self._keeps else width
        if graph.mask:
            self._bind_input(graph.mask, self._causal(width))
        if "attention_mask" in graph.inputs and graph.mask != "attention_mask":
            self._bind_input("attention_mask", self._mask[:, :total])
        if "position_ids" in graph.inputs:
            self._bind_input("position_ids", self._positions[:, self._n_past : total])
        if self._bound != (width, n_rows) or isinstance(self._cache, _Grown):
            self._bind_shapes(width, n_rows)
        return n_rows

    def _bind_shapes(self, width: int, n_rows: int) -> None:
        """What stays bound from one call of this shape to the next."""
        graph, binding = self._graph, self._binding
        self._cache.bind(binding)
        self._bind_input("input_ids", self._ids[:, :width])
        if self._keeps:
            self._n_kept[...] = n_rows
            self._bind_input(KEEP, self._n_kept)
        if self._top and self._n_top and n_rows <= self._top.n_rows:
            self._top.bind(binding, n_rows)
        else:
            shape, address = (1, n_rows, self.vocab_size), self._logits.ctypes.data
            binding.bind_output("logits", "cpu", 0, graph.logits_dtype, shape, address)
        if graph.hidden:
            shape, address = (1, width, graph.hidden), self._hidden.ctypes.data
            binding.bind_output("hidden_states", "cpu", 0, graph.hidden_dtype, shape, address)
        self._bound = width, n_rows

    def _bind_input(self, name: str, array: npt.NDArray[Any]) -> None:
        self._binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)

    def _causal(self, width: int) -> npt.NDArray[Any]:
        """A mask that is added to scores: every token sees what is before it, and itself."""
        dtype, total = self._graph.inputs[self._graph.mask], self._n_past + width
        mask: npt.NDArray[Any] = np.zeros((1, 1, width, total), dtype)
        lowest = np.full((width, width), np.finfo(dtype).min, dtype)
        mask[0, 0, :, self._n_past :] = np.triu(lowest, 1)
        self._square = mask  # bound by its address: it must outlive the call
        return mask

    def _run(self, abort: Abort | None) -> None:
        options = ort.RunOptions() if abort else None
        try:
            with _watched(abort, options):
                self._session.run_with_iobinding(self._binding, options)
        except Exception as error:  # the library's own kinds have no common root
            if options and options.terminate:
                raise Aborted(f"stopped after {self._n_past} tokens") from None
            raise DecodeError(f"{self.path}: {_plainly(str(error))}") from error

    def _choose_cache(self) -> None:
        """A cache that the graph appends to in place, if that gives the rows of one that grows."""
        expected = self._probe(2, 1)
        self._new_binding()
        self._cache = _Shared(self._graph, self._device, self.n_ctx + 2)
        try:
            found = self._probe(2, 1)
        except DecodeError as error:
            logger.debug("%s cannot append in place: %s", self.path, error)
            found = None
        if found is None or not np.allclose(found, expected, atol=_NOISE):
            self._new_binding()
            self._cache = _Grown(self._graph, self._device)
        self.truncate(0)

    def _measure_noise(self) -> float:
        """How many logits a row changes by with the number of tokens beside it; decides `pads`.

        On CPUs int4 kernels that quantise activations (accuracy_level 4) sum a single row in
        another way than several; widths from two on agree. No token is evaluated alone but the
        one that is looked at: its keys and values would carry the difference on.
        """
        tokens = [(7 * i + 3) % self.vocab_size for i in range(min(20, self.n_ctx))]
        if len(tokens) < 5:  # no room for a draft either
            return 0.0
        self.decode(tokens[:3], n_logits=0)

        def first(width: int) -> npt.NDArray[Any]:
            row: npt.NDArray[Any] = (
                self.decode(tokens[3 : 3 + width], n_logits=width).logits[0].copy()
            )
            self.truncate(3)
            return row

        several, alone = first(2), first(1)
        others = [first(n) for n in (3, 4, 9, 17) if n <= len(tokens) - 3]
        self.truncate(0)
        among = max((float(abs(several - other).max()) for other in others), default=0.0)
        apart = float(abs(several - alone).max())
        wanted = self.config.batch_invariant is not False
        self.pads = wanted and apart > _SAME and among < apart / 4
        return among if self.pads else max(among, apart)

    def _alone(self) -> str:
        """What is promised of tokens that are evaluated alone, in words."""
        how = "evaluated as two" if self.pads else "evaluated alone"
        if self.row_noise > _SAME:
            return f"{how}, rows differ by {self.row_noise:.2g}: near ties may fall otherwise"
        if self.pads:
            return f"{how}, so that drafts change nothing"
        return f"{how}, the same rows as among others"

    def _probe(self, *widths: int) -> npt.NDArray[Any]:
        """The last row of tokens that are evaluated in such pieces."""
        self._n_past = 0
        self._cache.truncate(0)
        tokens = [(7 * i + 3) % self.vocab_size for i in range(sum(widths))]
        for width in widths:
            row = self.decode(tokens[self._n_past : self._n_past + width]).logits
        probed: npt.NDArray[Any] = row[0].copy()
        return probed


@contextlib.contextmanager
def _watched(abort: Abort | None, options: Any) -> Iterator[None]:
    """Meanwhile `abort` is asked from another thread; a reason ends the evaluation."""
    if abort is None:
        yield
        return
    options.terminate = abort() is not None
    finished = threading.Event()

    def watch() -> None:
        while not finished.wait(_POLL_S):
            if abort():
                options.terminate = True
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


class _Shared:
    """One buffer a layer, past and present: the graph appends in place, and to roll back is to
    forget a number.
    """

    def __init__(self, graph: Graph, device: str, size: int) -> None:
        shape = (1, graph.heads, size, graph.head_size)
        self._names = list(zip(graph.past, graph.present, strict=True))
        self._bound: Any = None
        try:
            self._values = [
                ort.OrtValue.ortvalue_from_shape_and_type(shape, graph.dtype, device, 0)
                for _ in self._names
            ]
        except Exception as error:
            raise OutOfMemory(
                f"no cache of {size} tokens could be made: {error}; take a smaller n_ctx"
            ) from error

    def bind(self, binding: Any) -> None:
        if self._bound is binding:
            return
        for (past, present), value in zip(self._names, self._values, strict=True):
            binding.bind_ortvalue_input(past, value)
            binding.bind_ortvalue_output(present, value)
        self._bound = binding

    def keep(self, binding: Any) -> None:
        pass

    def truncate(self, n_past: int) -> None:
        pass


class _Grown:
    """What the graph returned is what it gets: a new, longer buffer each time."""

    def __init__(self, graph: Graph, device: str) -> None:
        self._graph, self._device = graph, device
        self._values: list[Any] = []
        self.truncate(0)

    def bind(self, binding: Any) -> None:
        binding.clear_binding_outputs()
        for name, value in zip(self._graph.past, self._values, strict=True):
            binding.bind_ortvalue_input(name, value)
        for name in self._graph.present:
            binding.bind_output(name, self._device)

    def keep(self, binding: Any) -> None:
        self._values = binding.get_outputs()[: len(self._values)]  # they were bound first

    def truncate(self, n_past: int) -> None:
        graph = self._graph
        if n_past:
            parts = [np.ascontiguousarray(v.numpy()[:, :, :n_past]) for v in self._values]
        else:
            empty: npt.NDArray[Any] = np.empty((1, graph.heads, 0, graph.head_size), graph.dtype)
            parts = [empty] * len(graph.past)
        self._values = [ort.OrtValue.ortvalue_from_numpy(p, self._device, 0) for p in parts]


def _plainly(said: str) -> str:
    """The library's reason without its error codes, source lines and signatures."""
    said = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : |Load model from \S+ failed:\s*", "", said)
    said = re.sub(r"\S*onnxruntime\S*\.(cc|h):\d+ .*\)( const)? (?=[A-Z])", "", said)
    said = said.replace("Exception during initialization: ", "").strip().rstrip(".")
    return said if len(said) <= 300 else f"{said[:300]}…"


# --- the library and its builds ---------------------------------------------------------------


@functools.cache
def check_packages() -> None:
    """Both packages bring the same files, and the one installed last wins in part.

    Raises ConfigError where both are installed.
    """
    there = []
    for name in ("onnxruntime", "onnxruntime-gpu"):
        try:
            there.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    if len(there) > 1:
        raise ConfigError(
            f"{' and '.join(there)} are both installed and overwrite each other; uninstall both, "
            "then install one"
        )


def versions() -> dict[str, str]:
    """What this engine is made of."""
    return {"onnxruntime": ort.__version__}


def supports_gpu_offload() -> bool:
    """Whether this build has a provider for a GPU."""
    return "CUDAExecutionProvider" in ort.get_available_providers()


def ignores_gpu_layers(config: EngineConfig) -> bool:
    """Return False: a provider runs the whole graph, layers are not counted."""
    return False


def all_providers() -> list[str]:
    """What this build can run on, best first."""
    return [name.removesuffix("ExecutionProvider") for name in ort.get_available_providers()]


def identity(path: Path) -> dict[str, Any]:
    """A file on this device with this build, whatever the settings."""
    with path.open("rb") as file:
        head = hashlib.sha256(file.read(1 << 20)).hexdigest()[:16]
    return {
        "engine": f"onnxruntime {ort.__version__}",
        "device": ort.get_device(),
        "processor": processor(),
        "file": [label(path), size_of(path), head],
    }


def providers(config: EngineConfig) -> list[str]:
    """The providers to ask for, best first. Raises ConfigError for one that is not there."""
    there: list[str] = ort.get_available_providers()
    names = {name.removesuffix("ExecutionProvider").lower(): name for name in there}
    wanted = config.provider.lower().removesuffix("executionprovider")
    if wanted == "auto":
        wanted = "cuda" if config.n_gpu_layers and "cuda" in names else "cpu"
    if wanted not in names:
        raise ConfigError(
            f"this build of onnxruntime has no provider {config.provider!r}; it has "
            f"{', '.join(sorted(names))}. CUDA comes with edgespec[onnx-cuda]"
        )
    return list(dict.fromkeys([names[wanted], "CPUExecutionProvider"]))


def _open(path: Path, config: EngineConfig, n_threads: int) -> Any:
    if not path.is_file():
        raise ModelNotFound(f"cannot read {path}; give an .onnx file that exists")
    options = ort.SessionOptions()
    options.intra_op_num_threads = n_threads
    options.log_severity_level = 4  # what fails comes back as an exception
    # Threads that go on spinning after an evaluation take the CPUs from the other engine of a
    # pair: with two cores llama.cpp then takes 1.7 times as long.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    wanted = providers(config)
    if "CUDA" in wanted[0] and hasattr(ort, "preload_dlls"):
        ort.preload_dlls()
    try:
        session = ort.InferenceSession(os.fspath(path), options, providers=wanted)
    except Exception as error:  # the library's own kinds have no common root
        raise _load_error(path, str(error)) from error
    found = session.get_providers()[0]
    if found != wanted[0]:
        message = f"{path}: {wanted[0]} could not be started, {found} runs it"
        if config.provider != "auto":
            raise ConfigError(f"{message}; check the driver and its libraries")
        logger.warning("%s", message)
    return session


def _load_error(path: Path, message: str) -> ModelError:
    said, lower = _plainly(message), message.lower()
    if "escapes model directory" in lower:
        return ModelError(
            f"{path}: this build of onnxruntime refuses weights behind a link, as the hub's cache "
            "has them; update it, or copy the folder"
        )
    if "filesystem error" in lower or "no such file" in lower or "does not exist" in lower:
        return ModelNotFound(f"{path}: a file with its weights is missing: {said}; fetch it again")
    if "protobuf" in lower or "out of bounds" in lower or "external data" in lower:
        return TruncatedModel(f"{path} is damaged, incomplete or no ONNX model: {said}")
    if any(word in lower for word in ("opset", "ir version", "ir_version", "not a registered")):
        return UnknownArchitecture(
            f"{path}: {said}; this build of onnxruntime does not know the graph: update it"
        )
    if "alloc" in lower:
        return OutOfMemory(f"{path}: {said}; take a smaller model or quantisation")
    return ModelError(f"{path} cannot be loaded: {said}")
