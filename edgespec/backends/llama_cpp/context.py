"""A native context over loaded weights: its settings, its memory, its place on the GPU."""

from __future__ import annotations

import ctypes
import itertools
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...config import EngineConfig
from ...device import available_memory, fast_cores, total_memory
from ...errors import DecodeError, ModelError, OutOfMemory
from ..context_length import default_n_ctx
from ..files import size_of
from .branches import N_SEQUENCES
from .ctrl_c import noting_ctrl_c
from .declarations import GGML_TYPES
from .devices import Gpu, chosen
from .inspection import inspect_metadata
from .library import lib, native_log
from .nextn import has_own_head
from .weights import load_weights

logger = logging.getLogger("edgespec.llama_cpp")

MAX_ROWS = 32  # logits rows per call; one row of 152k floats is 0.6 MB
MANY_ROWS = 64  # logits rows per call for several texts together
ROLLBACK = 3  # tokens; each needs memory for one state, all together slow a token by some percent
LEAST_N_CTX = 256  # llama.cpp makes no smaller context, but would accept smaller batches

_SPARE = 256 << 20  # bytes for everything but weights, at least
_KV_BYTES = {  # bytes of 32 elements
    "f32": 128, "f16": 64, "bf16": 64,
    "q8_0": 34, "q5_1": 24, "q5_0": 22, "q4_1": 20, "q4_0": 18,
}  # fmt: skip
_FLASH = {"auto": -1, "off": 0, "on": 1}


@dataclass(slots=True)
class Native:
    """Weights and a context over them. The context may be replaced.

    log: the lines that the library logged while both were made. other: a second context over other
    weights, which the context uses; None if there is no such context. owns_model: the weights are
    freed together with the context. eyes: the projector over these weights, None for none; it is
    freed with them.
    """

    model: Any
    context: Any
    log: list[str]
    other: Any = None
    owns_model: bool = True
    eyes: Any = None

    def free(self) -> None:
        """Free the contexts, then the weights."""
        lib.llama_free(self.context)
        if self.other:
            lib.llama_free(self.other)
        if self.owns_model:
            if self.eyes:
                self.eyes.close()
            lib.llama_model_free(self.model)


def open_native(path: Path, config: EngineConfig) -> Native:
    """Load weights and make a context for one text over them. A negative n_gpu_layers means all
    layers that fit: if the whole model does not fit on the GPU, fewer layers are tried. Raises
    ModelError or a subclass.
    """
    gpus = chosen(config)
    choices = _layer_choices(path, config.n_gpu_layers) if gpus else [0]
    for n_gpu_layers, fewer in itertools.pairwise(choices):
        try:
            return _open_with(path, config, n_gpu_layers, gpus)
        except OutOfMemory as error:
            logger.warning(
                "%s does not fit on the GPU (%s); trying %d layers there", path.name, error, fewer
            )
    return _open_with(path, config, choices[-1], gpus)


def _layer_choices(path: Path, wanted: int) -> list[int]:
    """Return the numbers of GPU layers to try one after another."""
    if wanted >= 0:
        return [wanted]
    n_layer = int(inspect_metadata(path).get("block_count", "0")) + 1
    return [-1, *sorted({n_layer * part // 4 for part in (3, 2, 1)}, reverse=True), 0]


def _open_with(path: Path, config: EngineConfig, n_gpu_layers: int, gpus: Sequence[Gpu]) -> Native:
    model, log = load_weights(
        path,
        n_gpu_layers=n_gpu_layers,
        gpus=gpus if n_gpu_layers else (),
        use_extra_bufts=config.use_extra_bufts,
        load_mtp=has_own_head(path),
    )
    try:
        if not lib.llama_model_has_decoder(model) or lib.llama_model_has_encoder(model):
            raise ModelError(f"{path} is not a decoder-only language model")
        if not config.n_ctx:
            config = replace(config, n_ctx=usual_n_ctx(path, model, config, n_gpu_layers))
        if n_gpu_layers == 0:
            check_fits(path, model, config, config.n_ctx)
        context, more = new_context(path, model, config)
    except BaseException:
        lib.llama_model_free(model)
        raise
    return Native(model, context, log + more)


def new_context(
    path: Path,
    model: Any,
    config: EngineConfig,
    watch: Any = None,
    rollback: int = 0,
    n_sequences: int = 0,
) -> tuple[Any, list[str]]:
    """Make a context over loaded weights; return it and the lines that the library logged. Raises
    OutOfMemory.

    watch: an EvalCallback that is called for every tensor; the caller has to keep it alive.
    rollback: how many tokens a recurrent state can go back. n_sequences: the number of sequences of
    a context with several texts, 0 for one text.
    """
    params = context_params(model, config)
    if n_sequences:
        params.n_seq_max, params.kv_unified = n_sequences, True
        params.n_outputs_max = max(MANY_ROWS, n_sequences)
    params.n_rs_seq = rollback
    params.cb_eval = ctypes.cast(watch, ctypes.c_void_p) if watch else None
    return init_context(path, model, params)


def init_context(path: Path, model: Any, params: Any) -> tuple[Any, list[str]]:
    """Make a context with these native settings; return it and the lines that the library logged.
    Raises OutOfMemory.
    """
    pressed = threading.Event()
    with native_log() as log, noting_ctrl_c(pressed.set):
        context = lib.llama_init_from_model(model, params)
    if pressed.is_set():
        lib.llama_free(context)
        raise KeyboardInterrupt
    if not context:
        reason = next((line for line in log if "fail" in line.lower()), "no reason given")
        raise OutOfMemory(
            f"{path.name}: no context of {params.n_ctx} tokens could be made "
            f"({reason}); take a smaller n_ctx or a quantised KV cache (type_k, type_v)"
        )
    return context, log


def copy_text(source: Any, target: Any, sequence: int) -> None:
    """Copy the text of a sequence to the same sequence of a different context of the same model.
    Raises DecodeError.
    """
    size = lib.llama_state_seq_get_size_ext(source, sequence, 0)
    state = (ctypes.c_uint8 * size)()
    if lib.llama_state_seq_get_data_ext(source, state, size, sequence, 0) != size or (
        size and not lib.llama_state_seq_set_data_ext(target, state, size, sequence, 0)
    ):
        raise DecodeError("the engine gives no copy of its cache; begin the request anew")


def check_fits(path: Path, model: Any, config: EngineConfig, n_ctx: int) -> None:
    """Raise OutOfMemory if a cache of `n_ctx` tokens is larger than the free memory. An operating
    system may promise memory that it does not have, and fail only when the cache is written to. A
    context that is longer than the model was trained for must also leave memory for everything
    else.
    """
    available = available_memory()
    if available is None or not can_truncate(model):  # a recurrent state is small
        return
    each = _token_bytes(model, config)
    trained = lib.llama_model_n_ctx_train(model)
    margin = max(available // 8, 2**30)
    most = max(int((available - margin) / each), min(trained, int(available / each)))
    if n_ctx > most:
        raise OutOfMemory(
            f"{path.name}: a KV cache of {n_ctx} tokens needs {n_ctx * each / 2**30:.1f} GiB, "
            f"{available / 2**30:.1f} GiB are free; take a smaller n_ctx (at most {most}; the "
            f"model was trained for {trained}) or a quantised KV cache (type_k, type_v)"
        )


def usual_n_ctx(
    path: Path, model: Any, config: EngineConfig, n_gpu_layers: int, n_caches: int = 1
) -> int:
    """Return the context length of a loaded model if none is asked for.

    n_gpu_layers: the number of layers on GPUs, in whose memory their cache lies. n_caches: the
    number of caches of this length.
    """
    gpus = chosen(config) if n_gpu_layers else []
    free, total = sum(gpu.free for gpu in gpus), sum(gpu.total for gpu in gpus)
    if not gpus:  # weights that are mapped from the file count as free, but are needed
        free, total = available_memory() - size_of(path), total_memory()
    trained = lib.llama_model_n_ctx_train(model)
    return default_n_ctx(trained, _token_bytes(model, config), free, total, n_caches)


def _token_bytes(model: Any, config: EngineConfig) -> float:
    """Return the bytes of a KV cache for each token, an upper bound if some layers have none."""
    head = lib.llama_model_n_embd(model) // max(1, lib.llama_model_n_head(model))
    width: int = lib.llama_model_n_layer(model) * lib.llama_model_n_head_kv(model) * head
    return (_KV_BYTES[config.type_k] + _KV_BYTES[config.type_v]) * width / 32


def can_truncate(model: Any) -> bool:
    """Return True if the cache of a native model can drop its tail. It can unless the model has a
    recurrent state.
    """
    return not (lib.llama_model_is_recurrent(model) or lib.llama_model_is_hybrid(model))


def can_branch(model: Any, config: EngineConfig) -> bool:
    """Return True if contexts over a native model can evaluate trees. Trees need a cache that can
    be truncated, and attention that ignores the cells of other branches, as flash attention does.
    """
    return can_truncate(model) and config.flash_attn != "off"


def context_params(model: Any, config: EngineConfig) -> Any:
    """Return the native settings for a context with one text."""
    params, cores = lib.llama_context_default_params(), fast_cores()
    params.n_ctx = max(config.n_ctx, LEAST_N_CTX)
    params.n_batch = params.n_ubatch = min(config.n_batch, params.n_ctx)
    params.n_outputs_max = MAX_ROWS
    if can_branch(model, config):
        params.n_seq_max, params.kv_unified = N_SEQUENCES, True
    params.n_threads, params.n_threads_batch = config.threads(cores)
    params.flash_attn_type = _FLASH[config.flash_attn]
    params.type_k = GGML_TYPES[config.type_k]
    params.type_v = GGML_TYPES[config.type_v]
    return params


def limited_threads(limit: int, n_threads: int, n_threads_batch: int) -> tuple[int, int]:
    """Return both numbers of threads, each reduced to `limit` at most; 0 means no limit."""
    most = limit or max(n_threads, n_threads_batch)
    return min(n_threads, most), min(n_threads_batch, most)


def with_equal_rows(config: EngineConfig) -> EngineConfig:
    """Return `config`, changed for batch_invariant if it asks for that: each row then depends as
    little as possible on the number of rows per evaluation. Repacked weights and attention without
    flash are avoided because they have kernels for four rows. Flash attention over f16 values is
    avoided because it has a kernel for a single row after 512 tokens.
    """
    if not config.batch_invariant:
        return config
    type_v = "bf16" if config.type_v == "f16" else config.type_v
    return replace(config, flash_attn="on", use_extra_bufts=False, type_v=type_v)


def with_room(path: Path, config: EngineConfig) -> EngineConfig:
    """Return `config`, without repacked weights if memory is short: they are a second copy of the
    file's, which cannot be dropped and read again as those can.
    """
    if not config.use_extra_bufts or not path.is_file():
        return config
    if config.n_gpu_layers and chosen(config):  # its weights are in the GPU's memory
        return config
    free, needed = available_memory(), size_of(path) + _SPARE
    if free >= needed:
        return config
    logger.warning(
        "%s: the weights are not repacked for this processor, which would need %d MiB; %d MiB are "
        "free", path.name, needed >> 20, free >> 20,
    )  # fmt: skip
    return replace(config, use_extra_bufts=False)


def placement(log: Sequence[str]) -> dict[str, str]:
    """Return the devices of layers and buffers, as the engine's log reports them."""
    buffers: dict[str, str] = {}
    for line in log:
        _, _, text = line.partition(": ")
        if "buffer size =" in text:
            name, _, size = text.partition(" buffer size =")
            buffers[" ".join(name.split())] = size.strip()
        elif text.startswith("offloaded "):
            buffers["layers"] = text
    return buffers
