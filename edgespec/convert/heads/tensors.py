"""Tensors of a checkpoint, which are read one at a time, in any of the known number formats."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from ...backends.files import opened
from ...errors import ModelError, TruncatedModel
from ...kept_files import one_line

DTYPES: dict[str, Any] = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16,
    "I64": np.int64, "I32": np.int32, "BOOL": np.bool_, "U8": np.uint8,
}  # fmt: skip
_INTEGERS = ("I64", "I32", "BOOL", "U8")
MAX_DIMS, MAX_SIZE = 8, 1 << 48  # limits of a tensor
_LONGEST_HEADER = 8 << 20  # bytes; its values take ten times as much memory


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor that is still in its file.

    load: reads its numbers and returns them in its shape and the file's format; bfloat16 as uint16.
    """

    dtype: str
    shape: tuple[int, ...]
    load: Callable[[], npt.NDArray[Any]]

    @property
    def n_bytes(self) -> int:
        """The bytes that its numbers take in the file."""
        return math.prod(self.shape) * int(np.dtype(DTYPES[self.dtype]).itemsize)

    def array(self) -> npt.NDArray[Any]:
        """Read the tensor and return it as float32, or as int64 if the file has whole numbers."""
        raw = self.load()
        if self.dtype == "BF16":
            return (raw.astype(np.uint32) << 16).view(np.float32)
        return raw.astype(np.int64 if self.dtype in _INTEGERS else np.float32)


Tensors = Mapping[str, Tensor]


_Size = Annotated[int, msgspec.Meta(ge=0, le=MAX_SIZE)]


class _Entry(msgspec.Struct):
    dtype: str
    shape: Annotated[list[_Size], msgspec.Meta(max_length=MAX_DIMS)]
    data_offsets: tuple[_Size, _Size]


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a .safetensors file.

    The file has the header's length in eight bytes, a JSON header, and the numbers. Raises
    ModelNotFound, TruncatedModel, and ModelError for a header that makes no sense.
    """
    with opened(path) as file:
        size = file.seek(0, 2)
        file.seek(0)
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(_LONGEST_HEADER, size - 8):
            raise TruncatedModel(
                f"{path} is damaged or incomplete: a header of {length} bytes in a file of "
                f"{size}; fetch it again"
            )
        content = file.read(length)
    try:
        header = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        header.pop("__metadata__", None)
        entries = {k: msgspec.json.decode(v, type=_Entry) for k, v in header.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(
            f"{path} is damaged: its header is wrong ({one_line(error)}); fetch it again"
        ) from None
    tensors = {k: _tensor(path, k, each, 8 + length, size) for k, each in entries.items()}
    _check_order(path, entries.values(), size - 8 - length)
    return tensors


def _check_order(path: Path, entries: Iterable[_Entry], size: int) -> None:
    """Raise ModelError if there are gaps between the tensors or they overlap.

    The format allows neither.
    """
    end = 0
    for first, last in [*sorted(each.data_offsets for each in entries), (size, size)]:
        if first != end:
            raise ModelError(
                f"{path} is damaged: a tensor begins at byte {first}, and the one before it ends "
                f"at {end}; fetch it again"
            )
        end = last


def _tensor(path: Path, name: str, entry: _Entry, start: int, size: int) -> Tensor:
    """Return one tensor of a header, after checking that it lies in the file."""
    first, last = entry.data_offsets
    if entry.dtype not in DTYPES:
        raise ModelError(
            f"{path}: {name:.80} has the number format {entry.dtype:.40}; known are "
            f"{', '.join(DTYPES)}; take a checkpoint that is not quantised"
        )
    dtype = np.dtype(DTYPES[entry.dtype]).newbyteorder("<")
    n = math.prod(entry.shape)
    if last - first != n * dtype.itemsize:
        raise ModelError(
            f"{path} is damaged: {name:.80} of shape {entry.shape} has the bytes {first} to "
            f"{last}; fetch it again"
        )
    if start + last > size:
        raise TruncatedModel(
            f"{path} is incomplete: {name:.80} ends at byte {start + last} of {size}; fetch "
            "it again"
        )
    shape = tuple(entry.shape)

    def load() -> npt.NDArray[Any]:
        try:
            return np.fromfile(path, dtype, n, offset=start + first).reshape(shape)
        except (OSError, ValueError) as error:
            raise TruncatedModel(f"{path} was changed meanwhile: {error}; try again") from None

    return Tensor(entry.dtype, shape, load)
