"""Reads checkpoints that torch saved (.bin, .pt), without torch and without running their code."""

from __future__ import annotations

import math
import pickletools
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from ...backends.files import opened
from ...errors import ModelError, TruncatedModel
from ...kept_files import one_line
from .tensors import DTYPES, MAX_DIMS, MAX_SIZE, Tensor

_STORAGES = {
    "DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "LongStorage": "I64", "IntStorage": "I32", "BoolStorage": "BOOL", "ByteStorage": "U8",
}  # fmt: skip
_LONGEST_PICKLE = 4 << 20  # bytes: names and sizes of some ten thousand tensors
_LONGEST_INDEX = 4 << 20  # bytes of the zip's index of its records
_MOST_USES = 16  # of each byte of a file on average: tensors may share a storage


def read_pickle(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a state dict that torch saved: a zip with a pickle and storages.

    The pickle may name only torch's storages and the functions that rebuild tensors, which are
    replaced by functions of this module. Raises ModelNotFound, TruncatedModel, and ModelError for
    other contents.
    """
    with opened(path) as file:
        content = _Archive(path, file).load()
        size = file.seek(0, 2)
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise ModelError(f"{path} holds a {type(content).__name__}; a dict of tensors is expected")
    tensors = {name: each for name, each in content.items() if isinstance(each, Tensor)}
    if (promised := sum(each.n_bytes for each in tensors.values())) > _MOST_USES * size:
        raise ModelError(
            f"{path} is damaged: its tensors have {promised} bytes, and it has {size}; fetch it "
            "again"
        )
    return tensors


class _Storage(NamedTuple):
    """Numbers in the archive. Tensors are views of them."""

    dtype: str
    record: str
    n: int


class _StorageType(NamedTuple):
    dtype: str


class _Archive:
    """The zip that torch saved.

    Its records are read only if they are not compressed, as torch writes them, so no record is
    longer than the file.
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path, self._size = path, file.seek(0, 2)
        limited = _Limited(file, _LONGEST_INDEX)
        try:
            self._zip = zipfile.ZipFile(limited)
        except Exception as error:  # a damaged zip raises anything
            raise TruncatedModel(
                f"{path} is damaged or incomplete, or saved by a torch before 1.6: it is no zip as "
                f"torch.save writes it ({one_line(error)}); fetch it again, or take the "
                ".safetensors"
            ) from None
        limited.most = self._size
        names = self._zip.namelist()
        if len(set(names)) < len(names) or not "".join(names).isprintable():
            raise ModelError(
                f"{path} is damaged: it has a record twice, or one with an odd name; fetch it again"
            )
        pickles = [name for name in names if name.rpartition("/")[2] == "data.pkl"]
        if len(pickles) != 1:
            raise ModelError(f"{path} is a zip without one data.pkl: torch has not saved it")
        self._pickle = pickles[0]
        self._folder = self._pickle.removesuffix("data.pkl")
        self._records = frozenset(names)

    def load(self) -> Any:
        """Return the value that the pickle describes, with its tensors still in the file."""
        order = f"{self._folder}byteorder"
        if order in self._records and self.read(order, 16) != b"little":
            raise ModelError(f"{self.path} is in big-endian order; save it on another computer")
        code = self.read(self._pickle, _LONGEST_PICKLE)
        try:
            return _Values(self).of(code)
        except ModelError:
            raise
        except Exception as error:  # a damaged pickle raises anything
            raise ModelError(
                f"{self.path} is damaged: its data.pkl cannot be read ({one_line(error)}); fetch "
                "it again"
            ) from None

    def length(self, record: str) -> int:
        """Return the number of bytes of a record, or 0 if there is no such record.

        Raises ModelError for a record that is compressed, encrypted or not entirely in the file.
        """
        if record not in self._records:
            return 0
        info = self._zip.getinfo(record)
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise ModelError(
                f"{self.path} has a compressed or encrypted record ({record:.80}), and torch "
                "writes none; save it with torch.save, or take the .safetensors"
            )
        if info.file_size != info.compress_size or info.header_offset + info.file_size > self._size:
            raise TruncatedModel(
                f"{self.path} is damaged: its record {record:.80} of {info.file_size} bytes does "
                f"not lie in its {self._size}; fetch it again"
            )
        return info.file_size

    def read(self, record: str, most: int) -> bytes:
        """Return the bytes of a record. Raises ModelError if there are more than `most`."""
        if (n := self.length(record)) > most:
            raise ModelError(
                f"{self.path}: its {record:.80} has {n} bytes, at most {most} are expected; it is "
                "no checkpoint of a head"
            )
        try:
            return self._zip.read(record)
        except Exception as error:  # a damaged zip raises anything
            raise TruncatedModel(
                f"{self.path} is damaged: {one_line(error)}; fetch it again"
            ) from None

    def storage(self, reference: Any) -> _Storage:
        """Return the storage that a pickle refers to, after checking its length."""
        _, kind, key, _, n = reference
        if not isinstance(kind, _StorageType) or not _is_name(key) or not _is_size(n):
            raise ValueError("it refers to something that is no storage")
        record = f"{self._folder}data/{key}"
        needed = n * np.dtype(DTYPES[kind.dtype]).itemsize
        if (size := self.length(record)) < needed:
            raise TruncatedModel(
                f"{self.path} is incomplete: {record:.80} has {size} bytes of {needed}; fetch it "
                "again"
            )
        return _Storage(kind.dtype, record, n)

    def tensor(self, storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> Tensor:
        """Return a tensor, in place of torch._utils._rebuild_tensor_v2."""
        if not isinstance(storage, _Storage):
            raise ValueError("a tensor without a storage")
        if not all(isinstance(each, tuple) for each in (shape, strides)) or not all(
            map(_is_size, (offset, *shape, *strides))
        ):
            raise ValueError("a size that is no whole number, is negative or is huge")
        if len(shape) != len(strides) or len(shape) > MAX_DIMS:
            raise ValueError(f"{len(shape)} sizes and {len(strides)} strides")
        n_numbers = math.prod(shape)
        reach = sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        if n_numbers > storage.n or (n_numbers and offset + reach >= storage.n):
            raise TruncatedModel(
                f"{self.path} is damaged: a tensor of shape {list(shape)} lies outside its "
                f"{storage.n} numbers; fetch it again"
            )
        path = self.path

        def load() -> npt.NDArray[Any]:
            return _read(path, storage, offset, shape, strides)

        return Tensor(storage.dtype, shape, load)


class _Values:
    """Computes the value that a pickle describes.

    A pickle is a program for a stack machine. This machine knows the instructions that torch uses,
    and calls only the functions in `_named`. The memory of its values is proportional to the size
    of the pickle. Values may contain each other many times, so they are never compared or printed,
    which could take very long.
    """

    def __init__(self, archive: _Archive) -> None:
        self._archive = archive
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def of(self, code: bytes) -> Any:
        """Return the value of a pickle. Raises ModelError and other errors if it is damaged."""
        for instruction, argument, _ in pickletools.genops(code):
            self._step(instruction.name, argument)
        return self._stack.pop()

    def _step(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in _LITERALS:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self._memo[len(self._memo) if argument is None else argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        elif name == "MARK":
            self._marks.append(len(stack))
        elif name == "TUPLE":
            stack.append(tuple(self._since_mark()))
        elif name in _TUPLES:
            stack.append(tuple(self._top(_TUPLES[name])))
        elif name in ("SETITEM", "SETITEMS"):
            items = self._since_mark() if name == "SETITEMS" else self._top(2)
            _put(stack[-1], zip(items[::2], items[1::2], strict=True))
        elif name in ("APPEND", "APPENDS"):
            items = self._since_mark() if name == "APPENDS" else self._top(1)
            list.extend(stack[-1], items)
        elif name == "GLOBAL":
            stack.append(self._named(*argument.split(" ", 1)))
        elif name == "STACK_GLOBAL":
            stack.append(self._named(*self._top(2)))
        elif name == "BINPERSID":
            stack.append(self._archive.storage(stack.pop()))
        elif name == "REDUCE":
            function, arguments = self._top(2)
            stack.append(function(*arguments))
        elif name == "BUILD":
            stack.pop()  # attributes of a dict or a parameter, of no use here
        elif name not in _WITHOUT_EFFECT:
            raise ValueError(f"torch writes no {name}")

    def _top(self, n: int) -> list[Any]:
        """Remove the last n values from the stack and return them."""
        start = max(0, len(self._stack) - n)
        values = self._stack[start:]
        del self._stack[start:]
        return values

    def _since_mark(self) -> list[Any]:
        """Remove the values after the last mark from the stack and return them."""
        return self._top(max(0, len(self._stack) - self._marks.pop()))

    def _named(self, module: Any, name: Any) -> Any:
        """Return the replacement of a name in torch.

        Raises ModelError if tensors do not need the name.
        """
        if not _is_name(module) or not _is_name(name):
            raise ValueError("a name that is no text")
        if module == "torch" and name in _STORAGES:
            return _StorageType(_STORAGES[name])
        if (module, name) == ("collections", "OrderedDict"):
            return _ordered
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return self._archive.tensor
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return lambda data, *_: data
        raise ModelError(
            f"{self._archive.path} is a pickle with {module:.80}.{name:.80} in it, and only "
            "tensors are read, for others could run programs; take the .safetensors"
        )


_LITERALS = frozenset(
    ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE")
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Any] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_WITHOUT_EFFECT = ("PROTO", "FRAME", "STOP")


def _put(values: Any, items: Iterable[tuple[Any, Any]]) -> None:
    """Put items into a dict.

    Keys must be texts or numbers, because others may take very long to hash.
    """
    for key, value in items:
        if type(key) not in (str, int):
            raise ValueError("a key that is neither text nor number")
        dict.__setitem__(values, key, value)


def _ordered(items: Iterable[tuple[Any, Any]] = ()) -> dict[Any, Any]:
    """Return a dict, in place of collections.OrderedDict."""
    values: dict[Any, Any] = {}
    _put(values, items)
    return values


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable()


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_SIZE


class _Limited:
    """A file from which at most `most` bytes are read at once.

    Opening a zip reads its whole index, which then takes ten times as much memory.
    """

    def __init__(self, file: BinaryIO, most: int) -> None:
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable
        self.most, self._file = most, file

    def read(self, n: int = -1) -> bytes:
        """Read like a file. Raises ValueError for more than `most` bytes."""
        if n > self.most:
            raise ValueError(f"an index of {n} bytes, at most {self.most} are expected")
        return self._file.read(n if n >= 0 else self.most)


def _read(
    path: Path, storage: _Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> npt.NDArray[Any]:
    """Return a copy of a view of a storage. strides: steps in numbers, not bytes."""
    dtype = np.dtype(DTYPES[storage.dtype]).newbyteorder("<")
    with opened(path) as file:
        content = _Archive(path, file).read(storage.record, file.seek(0, 2))
    if len(content) < storage.n * dtype.itemsize:
        raise TruncatedModel(f"{path} was changed meanwhile; try again")
    numbers = np.frombuffer(content, dtype, storage.n)[offset:]
    steps = tuple(step * dtype.itemsize for step in strides)
    view = np.lib.stride_tricks.as_strided(numbers, shape, steps, writeable=False)
    copied: npt.NDArray[Any] = view.copy()
    return copied
