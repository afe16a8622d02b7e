"""Frames as bytes: the number of each type and the order of its fields.

One WebSocket is one session; one binary message is one frame; a frame is its type, then its
fields. `docs/concepts/protocol.md` describes them, `tests/data/protocol_vectors*.json` have
examples for other languages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from ..errors import VerifierFault
from .fields import (
    BYTES16,
    IDS,
    LOGPROBS,
    NUMBER,
    OPTIONS,
    PAIRS,
    PARAMS,
    PARENTS,
    TEXT,
    U8,
    U32,
    U64,
    Field,
    Reader,
)
from .frames import (
    Answer,
    Begin,
    Busy,
    Cancel,
    Error,
    Frame,
    More,
    Need,
    Open,
    Opened,
    Options,
    Progress,
    Verify,
)

_BEGIN_TYPE, ERROR = 0x02, 0x86
_Layout = Mapping[str, Field]
_OPEN: _Layout = {
    "version": U8, "token": BYTES16, "vocab_size": NUMBER, "vocab_hash": BYTES16, "model": TEXT,
}  # fmt: skip
_BEGIN: _Layout = {
    "generation": NUMBER, "keep": NUMBER, "checksum": U32, "n_prompt": NUMBER, "params": PARAMS,
    "seed": U64,
}  # fmt: skip
_VERIFY: _Layout = {"round": NUMBER, "length": NUMBER, "checksum": U32, "ahead": NUMBER}
_OPENED: _Layout = {
    "version": U8, "token": BYTES16, "n_ctx": NUMBER, "max_draft": NUMBER, "max_ahead": NUMBER,
    "vocab_size": NUMBER, "vocab_hash": BYTES16, "model": TEXT, "costs": PAIRS,
}  # fmt: skip
_ANSWER: _Layout = {
    "round": NUMBER, "accepted": NUMBER, "token": NUMBER, "server_us": NUMBER,
    "logprobs": LOGPROBS,
}  # fmt: skip
_VERSION_1: Mapping[int, tuple[type[Frame], _Layout]] = {
    0x01: (Open, _OPEN),
    _BEGIN_TYPE: (Begin, {**_BEGIN, "ids": IDS}),
    0x03: (Verify, {**_VERIFY, "ids": IDS}),
    0x04: (More, {"round": NUMBER}),
    0x05: (Cancel, {}),
    0x81: (Opened, _OPENED),
    0x82: (Progress, {"generation": NUMBER, "n_done": NUMBER}),
    0x83: (Answer, _ANSWER),
    0x84: (Need, {"have": NUMBER, "checksum": U32}),
    0x85: (Busy, {"retry_ms": NUMBER, "message": TEXT}),
    ERROR: (Error, {"code": U8, "message": TEXT}),
}
_VERSION_2: Mapping[int, tuple[type[Frame], _Layout]] = {
    **_VERSION_1,
    0x01: (Open, {**_OPEN, "options": OPTIONS}),
    _BEGIN_TYPE: (Begin, {**_BEGIN, "options": OPTIONS, "ids": IDS}),
    0x03: (Verify, {**_VERIFY, "parents": PARENTS, "ids": IDS}),
    0x81: (Opened, {**_OPENED, "max_leaves": NUMBER}),
}
_LAYOUTS = {1: _VERSION_1, 2: _VERSION_2}
_NUMBERS = {kind: number for number, (kind, _) in _VERSION_1.items()}
_Kind = TypeVar("_Kind")


def encode(frame: Frame, version: int = 1) -> bytes:
    """Write a frame as a message of a version; OPEN and OPENED say themselves of which one.

    An ANSWER without log-probabilities ends before them. Raises ValueError for what the version
    has no field for.
    """
    number = _NUMBERS[type(frame)]
    layout = _layout(number, getattr(frame, "version", version))
    for name in ("options", "parents"):
        if name not in layout and getattr(frame, name, None):
            raise ValueError(f"version 1 has no {name} in {type(frame).__name__.upper()}")
    parts = [bytes([number])]
    for name, field in layout.items():
        value = getattr(frame, name)
        if value or field is not LOGPROBS:
            parts.append(field.write(value))
    return b"".join(parts)


def decode(data: bytes | str, version: int = 1) -> Frame:
    """Read the frame of a message of a version; OPEN and OPENED say themselves of which one.

    Raises VerifierFault for anything that is not exactly one frame.
    """
    if isinstance(data, str):
        raise VerifierFault("a text message came; frames are binary")
    if not data:
        raise VerifierFault("an empty message came; a frame has at least its type")
    if data[0] not in _VERSION_1:
        raise VerifierFault(f"a frame of unknown type {data[0]} came")
    kind = _VERSION_1[data[0]][0]
    if kind in (Open, Opened) and len(data) > 1:
        version = data[1]
    reader = Reader(data[1:])
    values = {
        name: field.read(reader)
        for name, field in _layout(data[0], version).items()
        if field is not LOGPROBS or reader.left
    }
    if reader.left:
        raise VerifierFault(f"{reader.left} bytes stand after the fields of a frame")
    return kind(**values)


def options_of(data: bytes | str, version: int) -> Options:
    """Return the options of a BEGIN, whose token ids are not read, and none of other messages."""
    if isinstance(data, str) or not data.startswith(bytes([_BEGIN_TYPE])):
        return {}
    reader = Reader(data[1:])
    try:
        values = {
            name: field.read(reader)
            for name, field in _layout(_BEGIN_TYPE, version).items()
            if name != "ids"
        }
    except VerifierFault:
        return {}
    found: Options = values.get("options", {})
    return found


def _layout(number: int, version: int) -> _Layout:
    """Return the fields of a type of frame; of one in an unknown version those of the first."""
    return _LAYOUTS.get(version, _VERSION_1)[number][1]


def expect(kind: type[_Kind], frame: Frame) -> _Kind:
    """Return the frame if it is of this kind. Raises VerifierFault if not."""
    if not isinstance(frame, kind):
        raise VerifierFault(
            f"a frame {type(frame).__name__.upper()} came where {kind.__name__.upper()} was due"
        )
    return frame
