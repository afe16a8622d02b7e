"""Converts frames to bytes and back, with the number of each type and the order of its fields.

One WebSocket carries one session, and one binary message carries one frame: a byte for its type,
then its fields. `docs/concepts/protocol.md` describes the frames, and
`tests/data/protocol_vectors.json` has examples for implementations in other languages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
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
    with_named,
    without_named,
)
from .frames import (
    VERSION,
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
_LAYOUTS: Mapping[int, tuple[type[Frame], _Layout]] = {
    0x01: (Open, {
        "version": U8, "token": BYTES16, "vocab_size": NUMBER, "vocab_hash": BYTES16,
        "model": TEXT, "options": OPTIONS,
    }),
    _BEGIN_TYPE: (Begin, {
        "generation": NUMBER, "keep": NUMBER, "checksum": U32, "n_prompt": NUMBER,
        "params": PARAMS, "seed": U64, "options": OPTIONS, "ids": IDS,
    }),
    0x03: (Verify, {
        "round": NUMBER, "length": NUMBER, "checksum": U32, "ahead": NUMBER, "parents": PARENTS,
        "ids": IDS,
    }),
    0x04: (More, {"round": NUMBER}),
    0x05: (Cancel, {}),
    0x81: (Opened, {
        "version": U8, "token": BYTES16, "n_ctx": NUMBER, "max_draft": NUMBER,
        "max_ahead": NUMBER, "vocab_size": NUMBER, "vocab_hash": BYTES16, "model": TEXT,
        "costs": PAIRS, "max_leaves": NUMBER,
    }),
    0x82: (Progress, {"generation": NUMBER, "n_done": NUMBER}),
    0x83: (Answer, {
        "round": NUMBER, "accepted": NUMBER, "token": NUMBER, "server_us": NUMBER,
        "logprobs": LOGPROBS,
    }),
    0x84: (Need, {"have": NUMBER, "checksum": U32}),
    0x85: (Busy, {"retry_ms": NUMBER, "message": TEXT}),
    ERROR: (Error, {"code": U8, "message": TEXT}),
}  # fmt: skip
_NUMBERS = {kind: number for number, (kind, _) in _LAYOUTS.items()}
_Kind = TypeVar("_Kind")


def encode(frame: Frame) -> bytes:
    """Return a frame as a message. An ANSWER without log-probabilities leaves this field out."""
    if isinstance(frame, Begin):
        frame = replace(frame, options=with_named(frame.params, frame.options))
    number = _NUMBERS[type(frame)]
    parts = [bytes([number])]
    for name, field in _LAYOUTS[number][1].items():
        value = getattr(frame, name)
        if value or field is not LOGPROBS:
            parts.append(field.write(value))
    return b"".join(parts)


def decode(data: bytes | str) -> Frame:
    """Return the frame in a message. Raises VerifierFault unless it is exactly one valid frame."""
    if isinstance(data, str):
        raise VerifierFault("a text message came; frames are binary")
    if not data:
        raise VerifierFault("an empty message came; a frame has at least its type")
    if data[0] not in _LAYOUTS:
        raise VerifierFault(f"a frame of unknown type {data[0]} came")
    kind, layout = _LAYOUTS[data[0]]
    if "version" in layout and len(data) > 1 and data[1] != VERSION:
        raise VerifierFault(
            f"a frame of version {data[1]} of the protocol came where this program speaks version "
            f"{VERSION}: install the same release of edgespec on device and server"
        )
    reader = Reader(data[1:])
    values = {
        name: field.read(reader)
        for name, field in layout.items()
        if field is not LOGPROBS or reader.left
    }
    if reader.left:
        raise VerifierFault(f"{reader.left} bytes stand after the fields of a frame")
    frame = kind(**values)
    if not isinstance(frame, Begin):
        return frame
    params, options = without_named(frame.params, frame.options)
    return replace(frame, params=params, options=options)


def options_of(data: bytes | str) -> Options:
    """Return the options of a BEGIN without reading its token ids, {} for any other message."""
    if isinstance(data, str) or not data.startswith(bytes([_BEGIN_TYPE])):
        return {}
    reader = Reader(data[1:])
    try:
        values = {
            name: field.read(reader)
            for name, field in _LAYOUTS[_BEGIN_TYPE][1].items()
            if name != "ids"
        }
        return without_named(values["params"], values["options"])[1]
    except VerifierFault:
        return {}


def expect(kind: type[_Kind], frame: Frame) -> _Kind:
    """Return the frame if it is of this type. Raises VerifierFault if not."""
    if not isinstance(frame, kind):
        raise VerifierFault(
            f"a frame {type(frame).__name__.upper()} came where {kind.__name__.upper()} was due"
        )
    return frame
