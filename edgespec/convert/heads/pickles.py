"""Checkpoints that torch saved (.bin, .pt), read without torch and without running anything."""

from __future__ import annotations

import collections
import io
import math
import pickle
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...errors import ModelError, ModelNotFound, TruncatedModel
from .tensors import DTYPES, Tensor

_STORAGES = {
    "DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "LongStorage": "I64", "IntStorage": "I32", "BoolStorage": "BOOL", "ByteStorage": "U8",
}  # fmt: skip
_LONGEST_PICKLE = 64 << 20


def read_pickle(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a state dict that torch saved: a zip of a pickle and of storages.

    The pickle may name torch's storages and the functions that rebuild tensors, nothing else; these
    are stood in for here. Raises ModelNotFound, TruncatedModel, and ModelError for other contents.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            found = _Archive(path, archive).load()
    except OSError as error:
        raise ModelNotFound(f"cannot read {path}: {error.strerror}; give one that exists") from None
    except zipfile.BadZipFile:
        raise TruncatedModel(
            f"{path} is damaged or incomplete, or saved by a torch before 1.6: it is no zip as "
            "torch.save writes it; fetch it again, or take the .safetensors"
        ) from None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise ModelError(f"{path} holds a {type(found).__name__}; a dict of tensors is expected")
    return {name: tensor for name, tensor in found.items() if isinstance(tensor, Tensor)}


class _Storage(NamedTuple):
    """Numbers in the archive, that tensors are views of."""

    dtype: str
    record: str
    n: int


class _StorageType(NamedTuple):
    dtype: str


class _Archive:
    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path = path
        self._archive = archive
        names = [name for name in archive.namelist() if name.rpartition("/")[2] == "data.pkl"]
        if len(names) != 1:
            raise ModelError(f"{path} is a zip without one data.pkl: torch has not saved it")
        self._pickle = names[0]
        self.folder = names[0].removesuffix("data.pkl")

    def load(self) -> Any:
        if self._archive.getinfo(self._pickle).file_size > _LONGEST_PICKLE:
            raise ModelError(f"{self.path}: its data.pkl is too long for names of tensors")
        order = f"{self.folder}byteorder"
        if order in self._archive.namelist() and self._archive.read(order) != b"little":
            raise ModelError(f"{self.path} is in big-endian order; save it on another computer")
        try:
            return _Unpickler(self, self._archive.read(self._pickle)).load()
        except (ModelError, zipfile.BadZipFile):
            raise
        except Exception as error:  # a damaged pickle raises anything
            raise ModelError(
                f"{self.path} is damaged: its data.pkl cannot be read ({error}); fetch it again"
            ) from None

    def storage(self, dtype: str, key: str, n: int) -> _Storage:
        """Return a storage after checking its length."""
        record = f"{self.folder}data/{key}"
        needed = n * np.dtype(DTYPES[dtype]).itemsize
        try:
            size = self._archive.getinfo(record).file_size
        except KeyError:
            size = 0
        if size < needed:
            raise TruncatedModel(
                f"{self.path} is incomplete: {record} has {size} bytes of {needed}; fetch it again"
            )
        return _Storage(dtype, record, n)


class _Unpickler(pickle.Unpickler):
    """An unpickler to which the names in the file are words: each stands for something of ours."""

    def __init__(self, archive: _Archive, content: bytes) -> None:
        super().__init__(io.BytesIO(content))
        self._of = archive

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands in for a name. Raises ModelError for all but tensors."""
        if module == "torch" and name in _STORAGES:
            return _StorageType(_STORAGES[name])
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _Rebuild(self._of.path)
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return _Parameter()
        raise ModelError(
            f"{self._of.path} is a pickle with {module}.{name} in it, and only tensors are read, "
            "for others could run programs; take the .safetensors"
        )

    def persistent_load(self, pid: Any) -> _Storage:
        """Return the storage that the pickle refers to."""
        kind, storage, key, _, n = pid
        if kind != "storage" or not isinstance(storage, _StorageType):
            raise ModelError(f"{self._of.path} refers to a {kind!r:.40}; storages are expected")
        return self._of.storage(storage.dtype, str(key), int(n))


class _Parameter:
    """A stand-in for torch._utils._rebuild_parameter."""

    __slots__ = ()

    def __call__(self, data: Any, *_: Any) -> Any:
        return data


class _Rebuild:
    """A stand-in for torch._utils._rebuild_tensor_v2."""

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(
        self, storage: _Storage, offset: int, shape: Sequence[int], strides: Sequence[int], *_: Any
    ) -> Tensor:
        if not isinstance(storage, _Storage) or len(shape) != len(strides):
            raise ValueError("a tensor without a storage")
        if min([offset, *shape, *strides]) < 0:
            raise ValueError("a negative size")
        n_numbers = math.prod([int(n) for n in shape])
        reach = sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        if n_numbers > storage.n or (n_numbers and offset + reach >= storage.n):
            raise TruncatedModel(
                f"{self._path} is damaged: a tensor of shape {list(shape)} lies outside its "
                f"{storage.n} numbers; fetch it again"
            )
        path = self._path

        def load() -> npt.NDArray[Any]:
            return _read(path, storage, offset, tuple(shape), tuple(strides))

        return Tensor(storage.dtype, tuple(shape), load)


def _read(
    path: Path, storage: _Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> npt.NDArray[Any]:
    """Return a copy of a view of a storage; strides count numbers."""
    dtype = np.dtype(DTYPES[storage.dtype]).newbyteorder("<")
    try:
        with zipfile.ZipFile(path) as archive:
            content = archive.read(storage.record)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise TruncatedModel(f"{path} is damaged: {error}; fetch it again") from None
    numbers = np.frombuffer(content, dtype, storage.n)[offset:]
    steps = tuple(step * dtype.itemsize for step in strides)
    view = np.lib.stride_tricks.as_strided(numbers, shape, steps, writeable=False)
    copied: npt.NDArray[Any] = view.copy()
    return copied
