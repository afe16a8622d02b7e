"""Tensors of a checkpoint: read one at a time, whatever the file's number format."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ...errors import ModelError, ModelNotFound, TruncatedModel

DTYPES: dict[str, Any] = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16,
    "I64": np.int64, "I32": np.int32, "BOOL": np.bool_, "U8": np.uint8,
}  # fmt: skip
_INTEGERS = ("I64", "I32", "BOOL", "U8")
_LONGEST_HEADER = 100 << 20


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor that is still in its file. load: returns its numbers as the file has them, bfloat16
    as uint16, in its shape.
    """

    dtype: str
    shape: tuple[int, ...]
    load: Callable[[], npt.NDArray[Any]]

    def array(self) -> npt.NDArray[Any]:
        """Read it: float32, or int64 if the file has whole numbers."""
        raw = self.load()
        if self.dtype == "BF16":
            return (raw.astype(np.uint32) << 16).view(np.float32)
        return raw.astype(np.int64 if self.dtype in _INTEGERS else np.float32)


Tensors = Mapping[str, Tensor]


class _Entry(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a .safetensors file: eight bytes of length, a JSON header, the numbers.

    Raises ModelNotFound, TruncatedModel, and ModelError for a header that makes no sense.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(_LONGEST_HEADER, size - 8):
                raise TruncatedModel(
                    f"{path} is damaged or incomplete: a header of {length} bytes in a file of "
                    f"{size}; fetch it again"
                )
            content = file.read(length)
    except OSError as error:
        raise ModelNotFound(f"cannot read {path}: {error.strerror}; give one that exists") from None
    try:
        header = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        header.pop("__metadata__", None)
        entries = {k: msgspec.json.decode(v, type=_Entry) for k, v in header.items()}
    except msgspec.DecodeError as error:
        raise ModelError(f"{path} is damaged: its header is wrong ({error}); fetch it again") from (
            None
        )
    return {name: _tensor(path, name, each, 8 + length, size) for name, each in entries.items()}


def _tensor(path: Path, name: str, entry: _Entry, start: int, size: int) -> Tensor:
    """Return one tensor of a header after checking that it lies in the file."""
    first, last = entry.data_offsets
    if entry.dtype not in DTYPES:
        raise ModelError(
            f"{path}: {name} has the number format {entry.dtype}; known are {', '.join(DTYPES)}; "
            "take a checkpoint that is not quantised"
        )
    dtype = np.dtype(DTYPES[entry.dtype]).newbyteorder("<")
    n = math.prod(entry.shape)
    if min(entry.shape, default=0) < 0 or first < 0 or last - first != n * dtype.itemsize:
        raise ModelError(
            f"{path} is damaged: {name} of shape {entry.shape} has the bytes {first} to {last}; "
            "fetch it again"
        )
    if start + last > size:
        raise TruncatedModel(
            f"{path} is incomplete: {name} ends at byte {start + last} of {size}; fetch it again"
        )
    shape = tuple(entry.shape)

    def load() -> npt.NDArray[Any]:
        try:
            return np.fromfile(path, dtype, n, offset=start + first).reshape(shape)
        except (OSError, ValueError) as error:
            raise TruncatedModel(f"{path} was changed meanwhile: {error}; try again") from None

    return Tensor(entry.dtype, shape, load)
