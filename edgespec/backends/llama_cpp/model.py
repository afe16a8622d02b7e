"""GGUF models through the low-level API of llama-cpp-python.

One `LlamaCppModel` is one set of weights with one context of one sequence; several live in
one process. Logits are computed for wanted rows only and read as views of native memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import logging
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...config import EngineConfig
from ...device import available_memory, physical_cores, processor
from ...errors import (
    Aborted,
    CannotTruncate,
    ContextFull,
    DecodeError,
    EngineMissing,
    ModelError,
    ModelNotFound,
    NotAGGUF,
    OutOfMemory,
    TruncatedModel,
    UnknownArchitecture,
)
from ...types import Abort, Outputs, Rows
from ..base import BatchItem, Capabilities
from ..chunks import ends

try:
    import llama_cpp.llama_cpp as lib
    from llama_cpp import __version__ as lib_version
except ImportError as error:
    raise EngineMissing(
        f"GGUF models need llama-cpp-python, which cannot be imported here ({error}); "
        "install it with: pip install 'edgespec[gguf]'"
    ) from error

logger = logging.getLogger("edgespec.llama_cpp")

MAX_ROWS = 32  # logits rows a call: one row of 152k floats is 0.6 MB
DEFAULT_N_CTX = 8192
LEAST_N_CTX = 256  # llama.cpp makes no smaller one, but would take smaller batches
ABORTABLE = 16  # evaluations of more tokens than this can be stopped half-way
_MANY_ROWS = 64  # logits rows a call of several sequences
_LONG = 520  # cached tokens: from 512 on attention may take another kernel
_WIDEST = 16  # rows that are compared with rows computed alone

_LEVELS = {3: logging.INFO, 4: logging.INFO}  # what matters comes back as an exception
_KV_TYPES = {
    name: getattr(lib, f"GGML_TYPE_{name.upper()}")
    for name in ("f32", "f16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
} | {"bf16": 30}
_KV_BYTES = {  # of 32 elements
    "f32": 128, "f16": 64, "bf16": 64,
    "q8_0": 34, "q5_1": 24, "q5_0": 22, "q4_1": 20, "q4_0": 18,
}  # fmt: skip
_ABOVE_Q4_0 = {  # LLAMA_FTYPE: what has as many bits a weight as Q4_0, or more
    0, 1, 3, 7, 8, 9,  # F32, F16, Q4_1, Q8_0, Q5_0, Q5_1
    14, 15, 16, 17, 18, 32,  # Q4_K_S, Q4_K_M, Q5_K_S, Q5_K_M, Q6_K, BF16
}  # fmt: skip
_FLASH = {"auto": -1, "off": 0, "on": 1}
_DEVICE_CALLS = ("count", "get", "description", "type", "memory")
_GPU_KINDS = (1, 2)  # ggml_backend_dev_type: GPU, integrated GPU

_get_logits = lib._lib["llama_get_logits"]  # with the address itself as the result
_get_logits.argtypes, _get_logits.restype = [lib.llama_context_p_ctypes], ctypes.c_void_p

_started = threading.Lock()
_log_listeners: list[Callable[[str], None]] = []


@lib.llama_log_callback  # type: ignore[untyped-decorator]
def _on_native_log(level: int, text: bytes, _: Any) -> None:
    """Native log lines go to `logging`, and to whoever is loading a model just now."""
    line = text.decode("utf-8", "replace").rstrip()
    if line.strip(". "):
        logger.log(_LEVELS.get(level, logging.DEBUG), "%s", line)
        for listen in _log_listeners:
            listen(line)


def _start() -> None:
    """Initialise the native library once."""
    if _started.acquire(blocking=False):  # never released: once a process
        lib.llama_log_set(_on_native_log, ctypes.c_void_p(0))
        lib.llama_backend_init()


@contextlib.contextmanager
def _native_log() -> Iterator[list[str]]:
    """What the library says meanwhile: its return codes do not tell why something failed."""
    lines: list[str] = []
    _log_listeners.append(lines.append)
    try:
        yield lines
    finally:
        _log_listeners.remove(lines.append)


def supports_gpu_offload() -> bool:
    """Whether this build of llama.cpp can put layers on a GPU."""
    _start()
    return bool(lib.llama_supports_gpu_offload())


def ignores_gpu_layers(config: EngineConfig) -> bool:
    """Return True if `config` asks for layers on a GPU and this build can use none."""
    return config.n_gpu_layers > 0 and not supports_gpu_offload()


def versions() -> dict[str, str]:
    """What this engine is made of."""
    return {"llama-cpp-python": lib_version, "numpy": np.__version__}


def features() -> list[str]:
    """What the build uses of the processor: AVX2, AVX512, NEON, …"""
    words = lib.llama_print_system_info().decode("utf-8", "replace").replace("|", ":").split(":")
    found = (word.partition("=") for word in words if "=" in word)
    return [name.strip() for name, _, value in found if value.strip() != "0"]


def gpus() -> list[dict[str, Any]]:
    """Devices beside the CPU that this build can use: name, free and total bytes."""
    _start()
    try:
        native = [getattr(lib._lib, f"ggml_backend_dev_{name}") for name in _DEVICE_CALLS]
    except AttributeError:  # a build without the registry
        return []
    count, get, describe, kind, memory = native
    count.restype, get.restype, get.argtypes = ctypes.c_size_t, ctypes.c_void_p, [ctypes.c_size_t]
    describe.restype, describe.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    kind.restype, kind.argtypes = ctypes.c_int, [ctypes.c_void_p]
    memory.restype, memory.argtypes = None, [ctypes.c_void_p, *[ctypes.c_void_p] * 2]
    found = []
    for device in map(get, range(count())):
        if kind(device) in _GPU_KINDS:
            free, total = ctypes.c_size_t(), ctypes.c_size_t()
            memory(device, ctypes.byref(free), ctypes.byref(total))
            name = describe(device).decode("utf-8", "replace")
            found.append({"name": name, "free": free.value, "total": total.value})
    return found


def identity(path: Path) -> dict[str, Any]:
    """A file on this device with this build, whatever the settings."""
    with path.open("rb") as file:
        head = hashlib.sha256(file.read(1 << 20)).hexdigest()[:16]
    return {
        "engine": f"llama-cpp-python {lib_version}",
        "device": lib.llama_print_system_info().decode("utf-8", "replace"),
        "processor": processor(),
        "file": [path.name, path.stat().st_size, head],
    }


def load_weights(
    path: Path, *, n_gpu_layers: int = 0, vocab_only: bool = False, use_extra_bufts: bool = True
) -> tuple[Any, list[str]]:
    """The native model and what was said while loading. Raises ModelError and its kinds."""
    _start()
    check_file(path)
    params = lib.llama_model_default_params()
    params.n_gpu_layers = n_gpu_layers if n_gpu_layers >= 0 else 0x7FFFFFFF
    params.vocab_only = vocab_only
    params.use_extra_bufts = use_extra_bufts
    with _native_log() as lines:
        model = lib.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        raise _load_error(path, lines)
    return model, lines


def check_file(path: Path) -> None:
    """Raises ModelNotFound or NotAGGUF."""
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelNotFound(
            f"cannot read {path}: {error.strerror}; give a GGUF file that exists"
        ) from error
    if not magic:
        raise NotAGGUF(f"{path} is empty; fetch it again")
    if magic != b"GGUF":
        raise NotAGGUF(
            f"{path} is not a GGUF: it begins with {magic!r}, a GGUF with b'GGUF'; "
            "give a file that ends in .gguf (safetensors and PyTorch files need converting)"
        )


def _load_error(path: Path, lines: Sequence[str]) -> ModelError:
    said = " ".join(lines).lower()
    reason = next(
        (line.partition(": ")[2] or line for line in lines if "error" in line.lower()),
        lines[-1] if lines else "no reason given",
    )
    if "unknown model architecture" in said or "unsupported model architecture" in said:
        return UnknownArchitecture(
            f"{path}: {reason}; this build of llama.cpp does not know the model: "
            "update llama-cpp-python or take another model"
        )
    if any(w in said for w in ("failed to allocate", "out of memory", "unable to allocate")):
        return OutOfMemory(f"{path}: {reason}; take a smaller model or quantisation")
    if any(
        w in said
        for w in (
            "corrupted or incomplete",
            "file bounds",
            "failed to read",
            "failed to load model from file",
            "invalid",
            "unexpectedly",
        )
    ):
        return TruncatedModel(
            f"{path} is damaged or incomplete ({path.stat().st_size} bytes): {reason}; "
            "fetch it again"
        )
    return ModelError(f"{path} cannot be loaded: {reason}")


def requantizable(path: Path) -> bool:
    """Whether a Q4_0 of this file would be another thing, and hardly a worse one. Raises as
    `load_weights`.
    """
    file_type = inspect_metadata(path).get("general.file_type", "")
    return file_type.isdecimal() and int(file_type) in _ABOVE_Q4_0


def requantize(path: Path, target: Path) -> None:
    """Write the model with all its weights as Q4_0. Raises ModelError."""
    _start()
    params = lib.llama_model_quantize_default_params()
    params.ftype = lib.LLAMA_FTYPE_MOSTLY_Q4_0
    params.allow_requantize = params.pure = True
    with _native_log() as lines:
        code = lib.llama_model_quantize(
            os.fsencode(path), os.fsencode(target), ctypes.byref(params)
        )
    if code:
        reason = lines[-1] if lines else f"code {code}"
        raise ModelError(f"{path} cannot be requantised: {reason}")


def open_model(path: Path, config: EngineConfig) -> LlamaCppModel:
    """A file, ready to evaluate tokens."""
    return LlamaCppModel(path, config)


class LlamaCppModel:
    """A GGUF under the `Model` contract.

    placement: what went where, as the engine reported it ("CPU model buffer" → MiB, …).
    config: as it runs; batch_invariant decides some settings. So many rows as stay equal to the
    last bit are then the most a call, and are evaluated in a call of their own. n_past: how many
    tokens the cache holds.

    Raises ModelNotFound, NotAGGUF, TruncatedModel, UnknownArchitecture, OutOfMemory.
    """

    def __init__(self, path: str | os.PathLike[str], config: EngineConfig | None = None) -> None:
        self.path = Path(path)
        self.config = _settled(config or EngineConfig())
        self._close: Callable[[], Any] = lambda: None
        self._model, self._context, lines = self._load()
        self._close = weakref.finalize(self, _free, self._model, self._context)
        self._memory = lib.llama_get_memory(self._context)
        self.tokenizer = LlamaCppTokenizer(self._model, owner=self)
        self.vocab_size: int = self.tokenizer.vocab_size
        self.n_ctx: int = lib.llama_n_ctx(self._context)
        self.n_ctx_train: int = lib.llama_model_n_ctx_train(self._model)
        self.n_threads: int = lib.llama_n_threads(self._context)
        self.n_threads_batch: int = lib.llama_n_threads_batch(self._context)
        self.flash_attn = self.config.flash_attn == "on" or any(
            "Flash Attention enabled" in line for line in lines
        )
        recurrent = lib.llama_model_is_recurrent(self._model)
        hybrid = lib.llama_model_is_hybrid(self._model)
        self.capabilities = Capabilities(
            MAX_ROWS, lib.llama_n_batch(self._context), truncate=not (recurrent or hybrid)
        )
        self.placement = _placement(lines)
        self.n_past = 0
        self._batch = _Batch(self.capabilities.max_batch)
        self._rows_address = 0
        self._views: list[Rows] = []  # of 0, 1, 2, … rows
        self._aborting: Abort | None = None
        self._ctrl_c = False
        self._evaluating = threading.Lock()  # contexts of the same weights take turns
        self._on_abort = lib.ggml_abort_callback(self._should_abort)
        self._apart = False
        if self.config.batch_invariant:
            self._keep_rows_equal()

    def decode(
        self, tokens: Sequence[int], n_logits: int = 1, abort: Abort | None = None
    ) -> Outputs:
        """Append tokens; float32 [n_logits, vocab_size], a view valid until the next call."""
        done = 0
        for end in ends(self, len(tokens), n_logits):
            self._decode_chunk(tokens[done:end], 0, abort)
            done = end
        if self._apart and 0 < n_logits < len(tokens) - done:
            end = len(tokens) - n_logits
            self._decode_chunk(tokens[done:end], 0, abort)
            done = end
        self._decode_chunk(tokens[done:] if done else tokens, n_logits, abort)
        none = np.empty((0, self.vocab_size), np.float32)
        return Outputs(self._rows(n_logits) if n_logits else none)

    def truncate(self, n_past: int) -> None:
        """Forget everything from `n_past` on."""
        if n_past >= self.n_past:
            return
        if not lib.llama_memory_seq_rm(self._memory, 0, n_past, -1):
            raise CannotTruncate(
                f"{self.path.name}: the memory of this model cannot be cut at {n_past} "
                f"of {self.n_past} tokens"
            )
        self.n_past = n_past

    def checkpoint(self) -> tuple[int, Any]:
        """The part of the state that cannot be truncated."""
        flags = lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
        size = lib.llama_state_seq_get_size_ext(self._context, 0, flags)
        data = (ctypes.c_uint8 * size)()
        if lib.llama_state_seq_get_data_ext(self._context, data, size, 0, flags) != size:
            raise DecodeError(f"{self.path.name}: the engine gave no checkpoint of its state")
        return self.n_past, data

    def restore(self, state: tuple[int, Any]) -> None:
        """Return to a checkpoint."""
        n_past, data = state
        flags = lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
        if not n_past:
            self.truncate(0)
            return
        if not lib.llama_state_seq_set_data_ext(self._context, data, len(data), 0, flags):
            raise DecodeError(f"{self.path.name}: the engine refused its own checkpoint")
        if not lib.llama_memory_seq_rm(self._memory, 0, n_past, -1):
            raise DecodeError(f"{self.path.name}: nothing can be dropped behind a checkpoint")
        self.n_past = n_past

    def set_threads(self, n_threads: int, n_threads_batch: int) -> None:
        """Threads for one token and for several, from the next evaluation on."""
        lib.llama_set_n_threads(self._context, n_threads, n_threads_batch)
        self.n_threads, self.n_threads_batch = n_threads, n_threads_batch

    def switches(self) -> dict[str, tuple[Any, Any]]:
        """Flash attention and repacked weights; batch_invariant has decided them."""
        if self.config.batch_invariant:
            return {}
        repacks = self.config.use_extra_bufts
        return {
            "flash_attn": (self.config.flash_attn, "off" if self.flash_attn else "on"),
            "use_extra_bufts": (repacks, not repacks),
        }

    def fingerprint(self) -> dict[str, Any]:
        """What the speed of this model depends on: device, build, file, settings. How long the
        context may become is not among it.
        """
        settings = asdict(self.config)
        del settings["on_busy"], settings["n_ctx"], settings["requantize"]
        threads = {"n_threads": self.n_threads, "n_threads_batch": self.n_threads_batch}
        return identity(self.path) | {
            "layers": self.placement.get("layers", ""),
            "settings": settings | threads,
        }

    def batched(self, n_slots: int, n_ctx: int) -> LlamaCppBatchedModel:
        """A cache of `n_ctx` tokens for so many sequences over the same weights, which must be
        closed before them. Raises OutOfMemory, ModelError.
        """
        return LlamaCppBatchedModel(self, n_slots, n_ctx)

    def close(self) -> None:
        """Free context and weights."""
        self._close()

    def _keep_rows_equal(self) -> None:
        """As many rows a call as are, to the last bit, those of tokens evaluated one by one.

        On CPUs each kind of weights has its width from which llama.cpp takes another kernel.
        """
        n_rows = 1
        if self.capabilities.truncate:
            lengths = {min(length, self.n_ctx - _WIDEST) for length in (8, _LONG)}
            n_rows = min((self._equal_rows(n) for n in lengths if n > 0), default=1)
        self._apart = n_rows > 1
        if not self._apart:
            self.placement["rows"] = "differ with their number: near ties may fall otherwise"
            return
        self.capabilities = replace(self.capabilities, max_rows=n_rows)
        self.placement["rows"] = f"the same for 1 to {n_rows} tokens: drafts change nothing"

    def _equal_rows(self, n_past: int) -> int:
        """How many rows may be computed at once behind so many tokens."""
        tokens = [(7 * i + 3) % self.vocab_size for i in range(n_past + _WIDEST)]
        self.decode(tokens[:n_past], n_logits=0)
        alone = [self.decode([token]).logits[0].copy() for token in tokens[n_past:]]
        n = 1
        while n < len(alone):
            self.truncate(n_past)
            rows = self.decode(tokens[n_past : n_past + n + 1], n_logits=n + 1).logits
            if not all(map(np.array_equal, rows, alone)):
                break
            n += 1
        self.truncate(0)
        return n

    def _load(self) -> tuple[Any, Any, list[str]]:
        """Weights and context; where "everything that fits" does not fit on the GPU, fewer
        layers are tried.
        """
        choices = _layer_choices(self.path, self.config.n_gpu_layers)
        for i, n_gpu_layers in enumerate(choices):
            try:
                return self._load_with(n_gpu_layers)
            except OutOfMemory as error:
                if i + 1 == len(choices):
                    raise
                logger.info("%s; trying %d layers on the GPU", error, choices[i + 1])
        raise AssertionError("there is always a choice")

    def _load_with(self, n_gpu_layers: int) -> tuple[Any, Any, list[str]]:
        model, lines = load_weights(
            self.path, n_gpu_layers=n_gpu_layers, use_extra_bufts=self.config.use_extra_bufts
        )
        if not lib.llama_model_has_decoder(model) or lib.llama_model_has_encoder(model):
            lib.llama_model_free(model)
            raise ModelError(f"{self.path} is not a decoder-only language model")
        if n_gpu_layers == 0:
            self._check_fits(model)
        with _native_log() as more:
            context = lib.llama_init_from_model(model, self._context_params(model))
        if not context:
            lib.llama_model_free(model)
            reason = next((m for m in more if "fail" in m.lower()), "no reason given")
            raise OutOfMemory(
                f"{self.path.name}: no context of {self._n_ctx(model)} tokens could be made "
                f"({reason}); take a smaller n_ctx or a quantised KV cache (type_k, type_v)"
            )
        return model, context, lines + more

    def _check_fits(self, model: Any) -> None:
        """Operating systems promise memory that they do not have: ask before the cache is
        written to, not after.
        """
        available = available_memory()
        if available is None or lib.llama_model_is_recurrent(model):
            return
        if lib.llama_model_is_hybrid(model):
            return
        head = lib.llama_model_n_embd(model) // lib.llama_model_n_head(model)
        width = lib.llama_model_n_layer(model) * lib.llama_model_n_head_kv(model) * head
        bytes_of_32 = _KV_BYTES[self.config.type_k] + _KV_BYTES[self.config.type_v]
        needed = self._n_ctx(model) * width * bytes_of_32 // 32
        if needed > available:
            lib.llama_model_free(model)
            raise OutOfMemory(
                f"{self.path.name}: a KV cache of {self._n_ctx(model)} tokens needs "
                f"{needed / 2**30:.1f} GiB, {available / 2**30:.1f} GiB are free; take a smaller "
                "n_ctx or a quantised KV cache (type_k, type_v)"
            )

    def _context_params(self, model: Any) -> Any:
        config, params = self.config, lib.llama_context_default_params()
        cores = physical_cores()
        params.n_ctx = max(self._n_ctx(model), LEAST_N_CTX)
        params.n_batch = params.n_ubatch = min(config.n_batch, params.n_ctx)
        params.n_outputs_max = MAX_ROWS
        params.n_threads = config.n_threads or cores
        params.n_threads_batch = config.n_threads_batch or config.n_threads or cores
        params.flash_attn_type = _FLASH[config.flash_attn]
        params.type_k = _KV_TYPES[config.type_k]
        params.type_v = _KV_TYPES[config.type_v]
        return params

    def _n_ctx(self, model: Any) -> int:
        trained = lib.llama_model_n_ctx_train(model)
        return self.config.n_ctx or min(trained, DEFAULT_N_CTX)

    def _decode_chunk(self, tokens: Sequence[int], n_logits: int, abort: Abort | None) -> None:
        batch = self._batch.fill(tokens, self.n_past, n_logits)
        with self._evaluating:
            if abort is None or len(tokens) <= ABORTABLE:
                code = lib.llama_decode(self._context, batch)
            else:
                code = self._decode_abortable(batch, abort)
        self.n_past = self.n_past + len(tokens) if code == 0 else self._drop_partial()
        if self._ctrl_c:
            self._ctrl_c = False
            raise KeyboardInterrupt
        if code == 0:
            return
        if code == 1:
            raise ContextFull(
                f"no room in the cache for {len(tokens)} tokens behind {self.n_past} "
                f"(n_ctx {self.n_ctx}); load the model with a larger n_ctx"
            )
        if code == 2:
            raise Aborted(f"stopped after {self.n_past} tokens")
        raise DecodeError(
            f"{self.path.name}: llama_decode failed with code {code} at {self.n_past} tokens"
        )

    def _rows(self, n: int) -> Rows:
        """The engine's output buffer; new views only where the engine has moved it."""
        address = _get_logits(self._context)
        if address != self._rows_address:
            buffer = (ctypes.c_float * (MAX_ROWS * self.vocab_size)).from_address(address)
            rows = np.ctypeslib.as_array(buffer).reshape(MAX_ROWS, self.vocab_size)
            self._views = [rows[:n] for n in range(MAX_ROWS + 1)]
            self._rows_address = address
        return self._views[n]

    def _decode_abortable(self, batch: Any, abort: Abort) -> int:
        if abort():
            return 2
        self._aborting = abort
        lib.llama_set_abort_callback(self._context, self._on_abort, None)
        try:
            with self._ctrl_c_noted():
                code: int = lib.llama_decode(self._context, batch)
            return code
        finally:
            lib.llama_set_abort_callback(self._context, lib.ggml_abort_callback(), None)
            self._aborting = None

    def _should_abort(self, _: Any) -> bool:
        return self._ctrl_c or (self._aborting is not None and self._aborting() is not None)

    @contextlib.contextmanager
    def _ctrl_c_noted(self) -> Iterator[None]:
        """What Python's own handler raises within a callback of native code would be lost."""
        on_main = threading.current_thread() is threading.main_thread()
        if not on_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return

        def note(*_: Any) -> None:
            self._ctrl_c = True

        signal.signal(signal.SIGINT, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _drop_partial(self) -> int:
        """After a failed call: the part of the chunk that went in is dropped again."""
        if lib.llama_memory_seq_rm(self._memory, 0, self.n_past, -1):
            return self.n_past
        lib.llama_memory_clear(self._memory, False)  # a recurrent state half-way is no state
        return 0


class LlamaCppBatchedModel:
    """Several sequences over the weights of one model, evaluated together.

    They share one cache: a common beginning is kept once, and a long sequence may have what
    others leave. With batch_invariant each has its own part of it and is evaluated by itself,
    so that its rows do not depend on the others.
    """

    def __init__(self, model: LlamaCppModel, n_slots: int, n_ctx: int) -> None:
        if not model.capabilities.truncate:
            raise ModelError(
                f"{model.path.name}: the memory of this model cannot be cut, so it cannot serve "
                "several sequences; take one without a recurrent state"
            )
        self.vocab_size, self.n_slots = model.vocab_size, n_slots
        self.max_batch = model.capabilities.max_batch
        self.max_draft_rows = model.capabilities.max_rows
        self.shares_prefixes = not model._apart
        self._model = model
        params = model._context_params(model._model)
        params.n_ctx = n_ctx if self.shares_prefixes else n_ctx * n_slots
        params.n_batch = params.n_ubatch = self.max_batch
        params.n_seq_max, params.kv_unified = n_slots, self.shares_prefixes
        params.n_outputs_max = self.max_rows = max(_MANY_ROWS, n_slots)
        self._context = lib.llama_init_from_model(model._model, params)
        if not self._context:
            raise OutOfMemory(
                f"{model.path.name}: no cache of {params.n_ctx} tokens for {n_slots} sequences "
                "could be made; take fewer of either"
            )
        self.n_ctx: int = lib.llama_n_ctx_seq(self._context)
        self._close = weakref.finalize(self, lib.llama_free, self._context)
        self._memory = lib.llama_get_memory(self._context)
        self._batch = _Batch(self.max_batch)
        self._n_past = [0] * n_slots

    def decode(self, items: Sequence[BatchItem]) -> list[Outputs]:
        """Append tokens to their slots; views valid until the next call."""
        rows = self._decode(items) if self.shares_prefixes else map(self._alone, items)
        return [Outputs(logits) for logits in rows]

    def truncate(self, sequence: int, n_past: int) -> None:
        """Forget everything of a sequence from `n_past` on."""
        if n_past < self._n_past[sequence]:
            if not lib.llama_memory_seq_rm(self._memory, sequence, n_past, -1):
                raise CannotTruncate(f"sequence {sequence} cannot be cut at {n_past} tokens")
            self._n_past[sequence] = n_past

    def copy(self, source: int, target: int, n_past: int) -> None:
        """Let an empty sequence begin with the first tokens of another."""
        lib.llama_memory_seq_cp(self._memory, source, target, 0, n_past)
        self._n_past[target] = n_past

    def close(self) -> None:
        """Free the cache."""
        self._close()

    def _alone(self, part: BatchItem) -> Rows:
        """A draft in a call of its own, what is before it in another one."""
        tokens, n = part.tokens, len(part.tokens) - part.n_logits
        if n and part.n_logits:
            self._decode([BatchItem(part.slot, tokens[:n])])
            tokens = tokens[n:]
        rows: Rows = self._decode([BatchItem(part.slot, tokens, part.n_logits)])[0].copy()
        return rows

    def _decode(self, parts: Sequence[BatchItem]) -> list[Rows]:
        batch = self._batch.fill_parts(parts, self._n_past)
        with self._model._evaluating:
            code = lib.llama_decode(self._context, batch)
        if code == 1:
            raise ContextFull(
                f"no room in the cache for {batch.n_tokens} tokens more of {len(parts)} sequences"
            )
        if code:
            raise DecodeError(f"{self._model.path.name}: llama_decode failed with code {code}")
        for part in parts:
            self._n_past[part.slot] += len(part.tokens)
        return self._rows([part.n_logits for part in parts])

    def _rows(self, counts: Sequence[int]) -> list[Rows]:
        total = sum(counts)
        if not total:
            return [np.empty((0, self.vocab_size), np.float32) for _ in counts]
        address = _get_logits(self._context)
        buffer = (ctypes.c_float * (total * self.vocab_size)).from_address(address)
        rows = np.ctypeslib.as_array(buffer).reshape(total, self.vocab_size)
        return np.split(rows, np.cumsum(counts)[:-1])


def _settled(config: EngineConfig) -> EngineConfig:
    """With batch_invariant the settings under which llama.cpp's rows depend least on their
    number: repacked weights and attention without flash have kernels for four rows, and
    flash attention over f16 values one for a single row behind 512 tokens.
    """
    if not config.batch_invariant:
        return config
    type_v = "bf16" if config.type_v == "f16" else config.type_v
    return replace(config, flash_attn="on", use_extra_bufts=False, type_v=type_v)


def _free(model: Any, context: Any) -> None:
    lib.llama_free(context)
    lib.llama_model_free(model)


def _layer_choices(path: Path, wanted: int) -> list[int]:
    """Numbers of GPU layers to try, in this order."""
    if not supports_gpu_offload():
        return [0]
    if wanted >= 0:
        return [wanted]
    n_layer = int(inspect_metadata(path).get("block_count", "0")) + 1
    return [-1, *sorted({n_layer * part // 4 for part in (3, 2, 1)}, reverse=True), 0]


def _placement(lines: Sequence[str]) -> dict[str, str]:
    """Where the engine says it put layers and buffers."""
    found: dict[str, str] = {}
    for line in lines:
        _, _, text = line.partition(": ")
        if "buffer size =" in text:
            name, _, size = text.partition(" buffer size =")
            found[" ".join(name.split())] = size.strip()
        elif text.startswith("offloaded "):
            found["layers"] = text
    return found


class _Batch:
    """One native batch of one sequence, filled through NumPy views."""

    def __init__(self, size: int) -> None:
        self._batch = lib.llama_batch_init(size, 0, 1)
        self._free = weakref.finalize(self, lib.llama_batch_free, self._batch)
        self._token = np.ctypeslib.as_array(self._batch.token, (size,))
        self._pos = np.ctypeslib.as_array(self._batch.pos, (size,))
        self._logits = np.ctypeslib.as_array(self._batch.logits, (size,))
        self._tokens = self._token.data.cast("B").cast("i")
        self._positions = self._pos.data.cast("B").cast("i")
        self._flags = self._logits.data.cast("B").cast("b")
        self._counting = np.arange(size, dtype=np.int32)
        np.ctypeslib.as_array(self._batch.n_seq_id, (size,))[:] = 1
        for i in range(size):
            self._batch.seq_id[i][0] = 0

    def fill(self, tokens: Sequence[int], n_past: int, n_logits: int) -> Any:
        n = self._batch.n_tokens = len(tokens)
        if n <= 8:  # every step: a few plain stores are cheaper than array arithmetic
            for i, token in enumerate(tokens):
                self._tokens[i], self._positions[i] = token, n_past + i
                self._flags[i] = i >= n - n_logits
            return self._batch
        self._token[:n] = tokens
        self._pos[:n] = self._counting[:n] + n_past
        self._logits[:n] = 0
        self._logits[n - n_logits : n] = 1
        return self._batch

    def fill_parts(self, parts: Sequence[BatchItem], n_past: Sequence[int]) -> Any:
        """Tokens of several sequences, each behind what it has."""
        at = 0
        for part in parts:
            end = at + len(part.tokens)
            self._token[at:end] = part.tokens
            self._pos[at:end] = self._counting[: end - at] + n_past[part.slot]
            self._logits[at:end] = self._counting[: end - at] >= end - at - part.n_logits
            for i in range(at, end):
                self._batch.seq_id[i][0] = part.slot
            at = end
        self._batch.n_tokens = at
        return self._batch


class LlamaCppTokenizer:
    """The vocabulary of a GGUF. `owner` keeps the native model alive."""

    def __init__(self, model: Any, owner: object = None) -> None:
        self._owner = owner
        self._vocab = lib.llama_model_get_vocab(model)
        self.vocab_size: int = lib.llama_vocab_n_tokens(self._vocab)
        template = lib.llama_model_chat_template(model, None)
        self.chat_template: str | None = template.decode("utf-8", "replace") if template else None
        self._special = {
            "bos_token": self._text_of(lib.llama_vocab_bos(self._vocab)),
            "eos_token": self._text_of(lib.llama_vocab_eos(self._vocab)),
        }
        self._pieces: dict[int, bytes] = {}  # of the tokens met so far
        self._ends: dict[int, bool] = {}

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Token ids; special tokens written out in `text` are recognised with parse_special."""
        data = text.encode("utf-8", "replace")
        size = len(data) + 8
        while True:
            ids = (ctypes.c_int32 * size)()
            n = lib.llama_tokenize(
                self._vocab, data, len(data), ids, size, add_special, parse_special
            )
            if n >= 0:
                return ids[:n]
            size = -n  # a space that the tokenizer puts in front may take several tokens

    def token_text(self, token: int) -> bytes:
        """The vocabulary's own entry."""
        text: bytes = lib.llama_vocab_get_text(self._vocab, token)
        return text

    def piece(self, token: int) -> bytes:
        """Bytes of a token; empty for control tokens."""
        known = self._pieces.get(token)
        if known is None:
            known = self._pieces[token] = self._native_piece(token)
        return known

    def _native_piece(self, token: int) -> bytes:
        size = 64
        while True:
            text = ctypes.create_string_buffer(size)  # another thread may ask at the same time
            n = lib.llama_token_to_piece(self._vocab, token, text, size, 0, False)
            if n >= 0:
                return text.raw[:n]
            size = -n

    def is_eog(self, token: int) -> bool:
        """Whether the token ends a generation."""
        known = self._ends.get(token)
        if known is None:
            known = self._ends[token] = bool(lib.llama_vocab_is_eog(self._vocab, token))
        return known

    def special(self) -> dict[str, str]:
        """Texts of bos_token and eos_token, "" where there is none."""
        return self._special

    def _text_of(self, token: int) -> str:
        return self.token_text(token).decode("utf-8", "replace") if token >= 0 else ""


@contextlib.contextmanager
def vocabulary(path: Path) -> Iterator[LlamaCppTokenizer]:
    """The tokenizer of a file, without its weights. Raises as `load_weights`."""
    model, _ = load_weights(path, vocab_only=True)
    try:
        yield LlamaCppTokenizer(model)
    finally:
        lib.llama_model_free(model)


def read_metadata(model: Any) -> dict[str, str]:
    """Metadata of a loaded native model."""
    buffer = ctypes.create_string_buffer(1 << 16)
    found = {}
    for i in range(lib.llama_model_meta_count(model)):
        lib.llama_model_meta_key_by_index(model, i, buffer, len(buffer))
        key = buffer.value.decode("utf-8", "replace")
        lib.llama_model_meta_val_str_by_index(model, i, buffer, len(buffer))
        found[key] = buffer.value.decode("utf-8", "replace")
    return found


def inspect_metadata(path: Path) -> dict[str, str]:
    """Metadata of a file, the architecture's prefix cut off ("qwen2.block_count" →
    "block_count"), without loading weights. Raises as `load_weights`.
    """
    model, _ = load_weights(path, vocab_only=True)
    try:
        metadata = read_metadata(model)
        metadata["vocab_size"] = str(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model)))
        metadata["has_chat_template"] = str(bool(lib.llama_model_chat_template(model, None)))
    finally:
        lib.llama_model_free(model)
    prefix = metadata.get("general.architecture", "") + "."
    return {k.removeprefix(prefix): v for k, v in metadata.items()}
