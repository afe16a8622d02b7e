"""The types of fields in a frame: how each is written to bytes and read from them.

varint    unsigned LEB128 below 2^64, in as few bytes as possible
u8, u32, u64, f32, f64   little-endian
text      a varint with the number of its UTF-8 bytes, then these bytes
ids       varints up to the end of the frame
parents   a varint with their number, at most 255, then a byte for each: the parent + 1, so that 0
          is the root
options   a varint with their number, then for each, sorted by name: text name, u8 type, value.
          Type 0 is a bool, as the varint 0 or 1; type 1 a varint; type 2 an f64; type 3 a text
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ..config import SamplingParams
from ..errors import ConfigError, VerifierFault
from ..setting import settings_of
from ..types import Logprob
from .frames import Options

MAX_IDS = 1 << 20
_MAX_NODES = 255
_ID_LIMIT = 1 << 31
_COUNT_LIMIT = 1 << 16
MAX_TEXT = _COUNT_LIMIT - 1  # bytes of a text
_FLOATS = (
    "temperature", "top_p", "min_p",
    "repetition_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip
_NAMED = {  # settings that change logits rows but have no field in PARAMS travel as options
    name: setting
    for name, setting in settings_of(SamplingParams).items()
    if setting.shapes_rows and name not in (*_FLOATS, "top_k")
}


class Reader:
    """Reads the fields of a frame one by one. Raises VerifierFault if one is missing or wrong."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """Number of bytes that have not been read."""
        return len(self._data) - self._at

    def raw(self, n: int) -> bytes:
        """Read n bytes."""
        if n > self.left:
            raise VerifierFault(f"a frame ends {n - self.left} bytes before its fields do")
        self._at += n
        return self._data[self._at - n : self._at]

    def fixed(self, code: str) -> Any:
        """Read one value of a `struct` format, little-endian."""
        form = "<" + code
        return struct.unpack(form, self.raw(struct.calcsize(form)))[0]

    def varint(self, limit: int = 1 << 64) -> int:
        """Read a number below `limit`."""
        value = shift = 0
        while True:
            byte: int = self.fixed("B")
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift > 63:
                raise VerifierFault("a number in a frame has more than ten bytes")
        if value >= limit or (byte == 0 and shift > 7):
            raise VerifierFault(f"a number in a frame is {value}: too large, or written too long")
        return value

    def count(self) -> int:
        """Read how many items follow."""
        return self.varint(_COUNT_LIMIT)

    def token(self) -> int:
        """Read a token id."""
        return self.varint(_ID_LIMIT)

    def text(self) -> str:
        """Read a text in UTF-8."""
        try:
            return self.raw(self.count()).decode()
        except UnicodeDecodeError as error:
            raise VerifierFault("a text in a frame is not UTF-8") from error

    def ids(self) -> tuple[int, ...]:
        """Read token ids up to the end of the frame."""
        ids = []
        while self.left:
            ids.append(self.token())
            if len(ids) > MAX_IDS:
                raise VerifierFault(f"a frame has more than {MAX_IDS} token ids")
        return tuple(ids)

    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Read pairs of numbers; their count comes first."""
        return tuple((self.varint(), self.varint()) for _ in range(self.count()))


def varint(value: int) -> bytes:
    """Return a number as unsigned LEB128."""
    if not 0 <= value < 1 << 64:
        raise ValueError(f"{value} is no unsigned 64-bit number")
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _text(text: str) -> bytes:
    data = text.encode()
    while len(data) >= _COUNT_LIMIT:
        data = data[: _COUNT_LIMIT - 4].decode(errors="ignore").encode()
    return varint(len(data)) + data


def _whole_text(text: str) -> bytes:
    if len(text.encode()) >= _COUNT_LIMIT:
        raise ValueError(f"an option's text has {len(text)} characters: too many for a frame")
    return _text(text)


def _ids(values: Iterable[int]) -> bytes:
    return b"".join(map(varint, values))


def _pairs(pairs: Sequence[tuple[int, int]]) -> bytes:
    return varint(len(pairs)) + _ids(number for pair in pairs for number in pair)


def _params(params: SamplingParams) -> bytes:
    bias = sorted(params.logit_bias.items())
    return b"".join([
        struct.pack(f"<{len(_FLOATS)}d", *(getattr(params, name) for name in _FLOATS)),
        varint(params.top_k),
        varint(0 if params.logprobs is None else params.logprobs + 1),
        varint(len(bias)),
        *(varint(token) + struct.pack("<d", value) for token, value in bias),
    ])  # fmt: skip


def _read_params(reader: Reader) -> SamplingParams:
    values: dict[str, Any] = {name: reader.fixed("d") for name in _FLOATS}
    values["top_k"] = reader.token()
    n_logprobs = reader.count()
    values["logprobs"] = n_logprobs - 1 if n_logprobs else None
    n_bias = reader.count()
    bias = values["logit_bias"] = {reader.token(): reader.fixed("d") for _ in range(n_bias)}
    if list(bias) != sorted(bias) or len(bias) != n_bias:
        raise VerifierFault("a logit_bias in a frame is out of order")
    try:
        return SamplingParams(**values)
    except ConfigError as error:
        raise VerifierFault(f"sampling settings in a frame: {error}") from error


def with_named(params: SamplingParams, options: Options) -> Options:
    """Return the options of a BEGIN, extended by the changed settings that travel as options."""
    given = {name: getattr(params, name) for name in _NAMED}
    changed = {
        name: setting.kind(given[name])
        for name, setting in _NAMED.items()
        if given[name] != setting.default
    }
    return {**options, **changed}


def without_named(params: SamplingParams, options: Options) -> tuple[SamplingParams, Options]:
    """Return the settings and the options of a BEGIN. Settings that came as options are moved back
    to the other settings.
    """
    named: dict[str, Any] = {name: options[name] for name in options if name in _NAMED}
    others = {name: options[name] for name in options if name not in _NAMED}
    try:
        return (replace(params, **named) if named else params), others
    except ConfigError as error:
        raise VerifierFault(f"sampling settings in a frame: {error}") from error


def _logprobs(logprobs: Sequence[Logprob]) -> bytes:
    parts = [varint(len(logprobs))]
    for one in logprobs:
        parts.append(struct.pack("<f", one.logprob) + varint(len(one.top)))
        parts += [varint(token) + struct.pack("<f", value) for token, value in one.top]
    return b"".join(parts)


def _read_logprobs(reader: Reader) -> tuple[Logprob, ...]:
    n = reader.count()
    if not n:
        raise VerifierFault("an ANSWER without log-probabilities ends before them")
    logprobs = []
    for _ in range(n):
        value, n_top = reader.fixed("f"), reader.count()
        top = tuple((reader.token(), reader.fixed("f")) for _ in range(n_top))
        logprobs.append(Logprob(value, top))
    return tuple(logprobs)


def _parents(parents: Sequence[int]) -> bytes:
    return varint(len(parents)) + bytes(parent + 1 for parent in parents)


def _read_parents(reader: Reader) -> tuple[int, ...]:
    parents = tuple(byte - 1 for byte in reader.raw(reader.varint(_MAX_NODES + 1)))
    for node, parent in enumerate(parents):
        if parent >= node:
            raise VerifierFault(f"node {node} of a tree has parent {parent}: none before it")
    return parents


def _options(options: Options) -> bytes:
    parts = [varint(len(options))]
    for name in sorted(options):
        value = options[name]
        kind = next(i for i, (type_, _) in enumerate(_OPTIONS) if type(value) is type_)
        parts += [_text(name), bytes([kind]), _OPTIONS[kind][1].write(value)]
    return b"".join(parts)


def _read_options(reader: Reader) -> dict[str, Any]:
    names, options = [], {}
    for _ in range(reader.count()):
        names.append(reader.text())
        kind: int = reader.fixed("B")
        if kind >= len(_OPTIONS):
            raise VerifierFault(f"the option {names[-1]!r} in a frame is of unknown type {kind}")
        options[names[-1]] = _OPTIONS[kind][1].read(reader)
    if names != sorted(options):
        raise VerifierFault("the options in a frame are out of order")
    return options


def _read_bool(reader: Reader) -> bool:
    return bool(reader.varint(2))


class Field(NamedTuple):
    """One type of field: the function that writes its value, and the one that reads it."""

    write: Callable[[Any], bytes]
    read: Callable[[Reader], Any]


NUMBER = Field(varint, Reader.varint)
U8 = Field(lambda v: struct.pack("<B", v), lambda r: r.fixed("B"))
U32 = Field(lambda v: struct.pack("<I", v), lambda r: r.fixed("I"))
U64 = Field(lambda v: struct.pack("<Q", v), lambda r: r.fixed("Q"))
BYTES16 = Field(bytes, lambda r: r.raw(16))
TEXT = Field(_text, Reader.text)
IDS = Field(_ids, Reader.ids)
PAIRS = Field(_pairs, Reader.pairs)
PARAMS = Field(_params, _read_params)
LOGPROBS = Field(_logprobs, _read_logprobs)
PARENTS = Field(_parents, _read_parents)
OPTIONS = Field(_options, _read_options)
_OPTIONS: tuple[tuple[type, Field], ...] = (
    (bool, Field(varint, _read_bool)),
    (int, NUMBER),
    (float, Field(lambda v: struct.pack("<d", v), lambda r: r.fixed("d"))),
    (str, Field(_whole_text, Reader.text)),
)
