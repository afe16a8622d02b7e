"""A libllama of ik_llama.cpp, a fork of llama.cpp, with the names and structures of llama.h.

The fork left llama.cpp in 2024: some functions have other names or other arguments, and some are
missing. What `declarations` does not require is left out here, so the parts of edgespec that need
it say that it is missing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import c_bool, c_char_p, c_float, c_int, c_int32, c_size_t, c_uint32
from ctypes import c_void_p as pointer
from typing import Any

from . import declarations as c

_LONGEST_VALUE = 256  # bytes of a metadata value that is read
_NO_TOKENS = 64  # bytes; the state of a sequence is larger if it has a token


class IkModelParams(ctypes.Structure):
    """llama_model_params of the fork, with the fields of llama.cpp's that edgespec sets."""

    _fields_ = [
        ("devices", pointer), ("n_gpu_layers", c_int32), ("mla", c_int32), ("split_mode", c_int),
        ("main_gpu", c_int32), ("max_gpu", c_int32), ("ncmoe", c_int32), ("type_k", c_int),
        ("type_v", c_int), ("max_ctx_size", c_uint32), ("n_seq_max", c_int32),
        ("n_ubatch", c_int32), ("amb", c_int32), ("fit_margin", c_int32), ("fit", c_bool),
        ("worst_graph_tokens", c_int32), ("layers_kv", c_int32 * 8), ("tensor_split", pointer),
        ("rpc_servers", pointer), ("progress_callback", c.ProgressCallback),
        ("progress_callback_user_data", pointer), ("kv_overrides", pointer),
        ("tensor_buft_overrides", pointer), ("vocab_only", c_bool), ("use_mmap", c_bool),
        ("use_mlock", c_bool), ("check_tensors", c_bool), ("repack_tensors", c_bool),
        ("use_thp", c_bool), ("validate_quants", c_bool), ("merge_qkv", c_bool),
        ("merge_up_gate_exps", c_bool), ("mtp", c_bool), ("dry_run", c_bool),
        ("flash_attn", c_bool),
    ]  # fmt: skip
    load_mtp = False  # MTP layers are never loaded: there are no functions for them

    @property
    def use_extra_bufts(self) -> bool:
        """True if weights are repacked for this processor, which needs a copy of them."""
        return bool(self.repack_tensors)

    @use_extra_bufts.setter
    def use_extra_bufts(self, on: bool) -> None:
        self.repack_tensors, self.use_mmap = on, not on


class IkContextParams(ctypes.Structure):
    """llama_context_params of the fork, with the fields of llama.cpp's that edgespec sets."""

    _fields_ = [
        ("seed", c_uint32), ("n_ctx", c_uint32), ("n_batch", c_uint32), ("n_ubatch", c_uint32),
        ("n_seq_max", c_uint32), ("n_threads", c_uint32), ("n_threads_batch", c_uint32),
        ("max_extra_alloc", c_int32), ("worst_case_tokens", c_int32),
        ("rope_scaling_type", c_int), ("pooling_type", c_int), ("attention_type", c_int),
        ("rope", c_float * 6), ("yarn_orig_ctx", c_uint32), ("defrag_thold", c_float),
        ("cb_eval", pointer), ("cb_eval_user_data", pointer), ("type_k", c_int),
        ("type_v", c_int), ("type_reduce", c_int), ("layers_kv", c_int32 * 8),
        ("logits_all", c_bool), ("embeddings", c_bool), ("offload_kqv", c_bool),
        ("flash_attn", c_bool), ("mla_attn", c_int), ("attn_max_batch", c_int),
        ("fused_moe_up_gate", c_bool), ("grouped_expert_routing", c_bool),
        ("fused_up_gate", c_bool), ("fused_mmad", c_bool), ("rope_cache", c_bool),
        ("graph_reuse", c_bool), ("min_experts", c_int), ("thresh_experts", c_float),
        ("only_active_experts", c_bool), ("k_cache_hadamard", c_bool),
        ("v_cache_hadamard", c_bool), ("split_mode_graph_scheduling", c_bool),
        ("scheduler_async", c_bool), ("mtp", c_bool), ("mtp_op_type", c_int),
        ("abort_callback", pointer), ("abort_callback_data", pointer),
        ("offload_policy", pointer), ("cuda_params", pointer),
    ]  # fmt: skip

    @property
    def flash_attn_type(self) -> int:
        """0 for no flash attention; the fork cannot choose by itself."""
        return int(self.flash_attn)

    @flash_attn_type.setter
    def flash_attn_type(self, kind: int) -> None:
        self.flash_attn = kind != 0


class IkBatch(ctypes.Structure):
    """llama_batch of the fork."""

    _fields_ = [
        *c.NativeBatch._fields_,
        ("all_pos_0", c_int32),
        ("all_pos_1", c_int32),
        ("all_seq_id", c_int32),
    ]


MODEL_DEFAULTS = {"main_gpu": 0, "vocab_only": False, "use_mmap": True, "check_tensors": False}
CONTEXT_DEFAULTS = {
    "n_ctx": 512, "n_batch": 2048, "n_ubatch": 512, "n_seq_max": 1, "type_k": 1, "type_v": 1,
    "embeddings": False, "offload_kqv": True, "abort_callback": None,
}  # fmt: skip
_RENAMED = {
    "llama_model_free": "llama_free_model",
    "llama_model_n_ctx_train": "llama_n_ctx_train",
    "llama_model_n_layer": "llama_n_layer",
    "llama_n_ctx_seq": "llama_n_ctx",
    "llama_memory_seq_rm": "llama_kv_cache_seq_rm",
    "llama_memory_seq_cp": "llama_kv_cache_seq_cp",
    "llama_memory_seq_pos_min": "llama_kv_cache_seq_pos_min",
    "llama_memory_seq_pos_max": "llama_kv_cache_seq_pos_max",
    "llama_state_seq_get_size_ext": "llama_state_seq_get_size",
    "llama_state_seq_get_data_ext": "llama_state_seq_get_data",
    "llama_tokenize": "llama_vocab_tokenize",
    "llama_token_to_piece": "llama_token_to_piece_vocab",
}
_DIFFERENT: dict[str, tuple[Any, list[Any]]] = {
    "llama_model_default_params": (IkModelParams, []),
    "llama_model_load_from_file": (pointer, [c_char_p, IkModelParams]),
    "llama_context_default_params": (IkContextParams, []),
    "llama_init_from_model": (pointer, [pointer, IkContextParams]),
    "llama_batch_init": (IkBatch, [c_int32, c_int32, c_int32]),
    "llama_batch_free": (None, [IkBatch]),
    "llama_decode": (c_int32, [pointer, IkBatch]),
    "llama_encode": (c_int32, [pointer, IkBatch]),
}
_OWN: dict[str, tuple[Any, list[Any]]] = {  # used here only
    "llama_kv_cache_clear": (None, [pointer]),
    "llama_token_get_attr": (c_int32, [pointer, c_int32]),
    "llama_state_seq_set_data": (c_size_t, [pointer, pointer, c_size_t, c_int32, c_uint32]),
}


class IkLibrary:
    """The fork's functions under the names of llama.h, declared. Raises AttributeError if the
    library lacks one that edgespec requires.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._models: dict[int, int] = {}  # of each vocabulary
        written = vars(type(self))
        for name, (returned, taken) in (c.REQUIRED | _DIFFERENT | _OWN).items():
            if name not in written:
                function = library[_RENAMED.get(name, name)]
                function.restype, function.argtypes = returned, taken
                setattr(self, name, function)
        self._vocabulary_of = library["llama_model_get_vocab"]
        self._vocabulary_of.restype, self._vocabulary_of.argtypes = pointer, [pointer]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"ik_llama.cpp does not have the function {name}")

    def llama_get_memory(self, context: Any) -> Any:
        """Return the context: functions of memory take it here."""
        return context

    def llama_memory_clear(self, memory: Any, data: bool) -> None:
        """Forget everything."""
        self.llama_kv_cache_clear(memory)

    def llama_model_get_vocab(self, model: Any) -> Any:
        """Return a model's vocabulary, and note whose it is."""
        vocabulary = self._vocabulary_of(model)
        self._models[vocabulary] = model
        return vocabulary

    def llama_vocab_get_attr(self, vocabulary: Any, token: int) -> int:
        """Return the attributes of a token, which belong to the model here."""
        return int(self.llama_token_get_attr(self._models[vocabulary], token))

    def llama_model_n_head(self, model: Any) -> int:
        """Return the number of attention heads."""
        return self._number(model, "attention.head_count", 1)

    def llama_model_n_head_kv(self, model: Any) -> int:
        """Return the number of heads of keys and values."""
        return self._number(model, "attention.head_count_kv", self.llama_model_n_head(model))

    def llama_model_n_swa(self, model: Any) -> int:
        """Return the length of the sliding window, 0 if there is none."""
        return self._number(model, "attention.sliding_window", 0)

    def llama_state_seq_set_data_ext(
        self, context: Any, data: Any, size: int, sequence: int, flags: int
    ) -> int:
        """Set the state of a sequence. The fork ends the process if that state is empty."""
        if size < _NO_TOKENS:
            return size
        return int(self.llama_state_seq_set_data(context, data, size, sequence, flags))

    def _number(self, model: Any, key: str, default: int) -> int:
        """Return a number in a model's metadata, from a key of its architecture."""
        architecture = self._text(model, "general.architecture")
        try:
            return int(self._text(model, f"{architecture}.{key}"))
        except ValueError:
            return default

    def _text(self, model: Any, key: str) -> str:
        text = ctypes.create_string_buffer(_LONGEST_VALUE)
        size = self.llama_model_meta_val_str(model, key.encode(), text, len(text))
        return text.value.decode("utf-8", "replace") if size >= 0 else ""


STRUCTURES: Mapping[str, tuple[type[ctypes.Structure], Mapping[str, Any]]] = {
    "llama_model_default_params": (IkModelParams, MODEL_DEFAULTS),
    "llama_context_default_params": (IkContextParams, CONTEXT_DEFAULTS),
}
"""Functions that return settings: their structures and some of their values."""
