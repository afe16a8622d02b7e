"""The declarations of mtmd.h that edgespec uses, and the library that has them: llama.cpp's
libmtmd, which turns pictures into embeddings.

Its helper functions are used only for their log. They would decode pictures themselves, and run
`ffprobe` for some.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import c_bool, c_char_p, c_int, c_int32, c_size_t, c_uint32
from ctypes import c_void_p as pointer
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from . import library, search
from .declarations import missing

TEXT, IMAGE = 0, 1  # kinds of chunks
_NAMES = ("libmtmd.so", "libmtmd.so.0", "libmtmd.dylib", "libmtmd.0.dylib", "mtmd.dll")


class Params(ctypes.Structure):
    """mtmd_context_params: the settings with which a projector is loaded."""

    _fields_ = [
        ("use_gpu", c_bool),
        ("device", pointer),
        ("print_timings", c_bool),
        ("n_threads", c_int),
        ("image_marker", c_char_p),
        ("media_marker", c_char_p),
        ("flash_attn_type", c_int),
        ("warmup", c_bool),
        ("image_min_tokens", c_int),
        ("image_max_tokens", c_int),
        ("cb_eval", pointer),
        ("cb_eval_user_data", pointer),
        ("batch_max_tokens", c_int32),
        ("progress_callback", pointer),
        ("progress_callback_user_data", pointer),
    ]


class InputText(ctypes.Structure):
    """mtmd_input_text: a text among the parts of an input."""

    _fields_ = [
        ("text", c_char_p),
        ("text_len", c_size_t),
        ("add_special", c_bool),
        ("parse_special", c_bool),
    ]


class InputPart(ctypes.Structure):
    """mtmd_input_part: a text or a picture."""

    _fields_ = [("text", ctypes.POINTER(InputText)), ("bitmap", pointer)]


class Position(ctypes.Structure):
    """mtmd_decoder_pos: the position of a token of a picture."""

    _fields_ = [(axis, c_uint32) for axis in "txyz"]


DEFAULTS = {  # that mtmd_context_params_default returns, if `Params` fits
    "use_gpu": True, "device": None, "print_timings": True, "n_threads": 4,
    "media_marker": b"<__media__>", "flash_attn_type": -1, "warmup": True, "image_min_tokens": -1,
    "image_max_tokens": -1, "cb_eval": None, "batch_max_tokens": 1024, "progress_callback": None,
}  # fmt: skip

_Signature = tuple[Any, list[Any]]  # the type of a function's result, those of its arguments
_FUNCTIONS: dict[str, _Signature] = {
    "mtmd_helper_log_set": (None, [pointer, pointer]),
    "mtmd_context_params_default": (Params, []),
    "mtmd_init_from_file": (pointer, [c_char_p, pointer, Params]),
    "mtmd_free": (None, [pointer]),
    "mtmd_support_vision": (c_bool, [pointer]),
    "mtmd_decode_use_mrope": (c_bool, [pointer]),
    "mtmd_decode_use_non_causal": (c_bool, [pointer, pointer]),
    "mtmd_bitmap_init": (pointer, [c_uint32, c_uint32, pointer]),
    "mtmd_bitmap_free": (None, [pointer]),
    "mtmd_input_chunks_init": (pointer, []),
    "mtmd_input_chunks_free": (None, [pointer]),
    "mtmd_input_chunks_size": (c_size_t, [pointer]),
    "mtmd_input_chunks_get": (pointer, [pointer, c_size_t]),
    "mtmd_tokenize_from_parts": (
        c_int32, [pointer, pointer, ctypes.POINTER(ctypes.POINTER(InputPart)), c_size_t, c_bool],
    ),
    "mtmd_input_chunk_get_type": (c_int, [pointer]),
    "mtmd_input_chunk_get_n_tokens": (c_size_t, [pointer]),
    "mtmd_input_chunk_get_n_pos": (c_int32, [pointer]),
    "mtmd_input_chunk_get_tokens_text": (
        ctypes.POINTER(c_int32), [pointer, ctypes.POINTER(c_size_t)]
    ),
    "mtmd_input_chunk_get_tokens_image": (pointer, [pointer]),
    "mtmd_image_tokens_get_decoder_pos": (Position, [pointer, c_int32, c_size_t]),
    "mtmd_encode_chunk": (c_int32, [pointer, pointer]),
    "mtmd_get_output_embd": (pointer, [pointer]),
}  # fmt: skip
_OF_LLAMA: dict[str, _Signature] = {"llama_model_n_embd_inp": (c_int32, [pointer])}


@functools.cache
def opened() -> Any:
    """Return libmtmd with its functions declared. It is opened at the first call. Raises
    ConfigError if this llama.cpp has none, or one with a different mtmd.h.
    """
    library.start()
    mtmd, where = _library()
    lacks = missing(mtmd, _FUNCTIONS) + missing(library.opened(), _OF_LLAMA)
    if lacks:
        raise ConfigError(
            f"{library.engine()} shows no pictures: {where} does not have the function {lacks[0]}; "
            f"{search.INSTALL}"
        )
    unlike = search.misfit(mtmd, "mtmd_context_params_default", Params, DEFAULTS)
    if unlike:
        raise ConfigError(
            f"{library.engine()} shows no pictures: its mtmd.h is not the one that edgespec knows "
            f"({unlike}); {search.INSTALL}"
        )
    for functions, of in ((_FUNCTIONS, mtmd), (_OF_LLAMA, library.opened())):
        for name, (returned, taken) in functions.items():
            function = getattr(of, name)
            function.restype, function.argtypes = returned, taken
    mtmd.mtmd_helper_log_set(ctypes.cast(library.log_callback, pointer), None)
    return mtmd


def _library() -> tuple[ctypes.CDLL, str]:
    """Return the library that has mtmd.h's functions, undeclared, and its name: libllama itself, or
    a file next to it.
    """
    candidate = library.candidate()
    here = library.opened()
    if not missing(here, ["mtmd_init_from_file"]):
        return here, candidate.located
    paths = (Path(candidate.path).with_name(name) for name in _NAMES)
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise ConfigError(
            f"{library.engine()} shows no pictures: it comes without libmtmd; {search.INSTALL}"
        )
    try:
        return ctypes.CDLL(str(path)), str(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be loaded: {error}") from error
