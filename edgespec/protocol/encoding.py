"""Frames as bytes: the number of each type and the order of its fields.

One WebSocket is one session; one binary message is one frame; a frame is its type, then its
fields. `docs/concepts/protocol.md` describes them, `tests/data/protocol_vectors.json` has examples
for other languages.
"""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from ..errors import VerifierFault
from .fields import BYTES16, IDS, LOGPROBS, NUMBER, PAIRS, PARAMS, TEXT, U8, U32, U64, Field, Reader
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
    Progress,
    Verify,
)

ERROR = 0x86
_LAYOUTS: dict[int, tuple[type[Frame], tuple[Field, ...]]] = {
    0x01: (Open, (U8, BYTES16, NUMBER, BYTES16, TEXT)),
    0x02: (Begin, (NUMBER, NUMBER, U32, NUMBER, PARAMS, U64, IDS)),
    0x03: (Verify, (NUMBER, NUMBER, U32, NUMBER, IDS)),
    0x04: (More, (NUMBER,)),
    0x05: (Cancel, ()),
    0x81: (Opened, (U8, BYTES16, NUMBER, NUMBER, NUMBER, NUMBER, BYTES16, TEXT, PAIRS)),
    0x82: (Progress, (NUMBER, NUMBER)),
    0x83: (Answer, (NUMBER, NUMBER, NUMBER, NUMBER, LOGPROBS)),
    0x84: (Need, (NUMBER, U32)),
    0x85: (Busy, (NUMBER, TEXT)),
    ERROR: (Error, (U8, TEXT)),
}
_NUMBERS = {kind: number for number, (kind, _) in _LAYOUTS.items()}
_Kind = TypeVar("_Kind")


def encode(frame: Frame) -> bytes:
    """Write a frame as a message. An ANSWER without log-probabilities ends before them."""
    number = _NUMBERS[type(frame)]
    parts = [bytes([number])]
    for described, field in zip(dataclasses.fields(frame), _LAYOUTS[number][1], strict=True):
        value = getattr(frame, described.name)
        if value or field is not LOGPROBS:
            parts.append(field.write(value))
    return b"".join(parts)


def decode(data: bytes | str) -> Frame:
    """Read the frame of a message. Raises VerifierFault for anything that is not exactly one."""
    if isinstance(data, str):
        raise VerifierFault("a text message came; frames are binary")
    if not data:
        raise VerifierFault("an empty message came; a frame has at least its type")
    if data[0] not in _LAYOUTS:
        raise VerifierFault(f"a frame of unknown type {data[0]} came")
    kind, layout = _LAYOUTS[data[0]]
    reader = Reader(data[1:])
    values = [field.read(reader) for field in layout if field is not LOGPROBS or reader.left]
    if reader.left:
        raise VerifierFault(f"{reader.left} bytes stand behind the fields of a frame")
    return kind(*values)


def expect(kind: type[_Kind], frame: Frame) -> _Kind:
    """Return the frame if it is of this kind. Raises VerifierFault if not."""
    if not isinstance(frame, kind):
        raise VerifierFault(
            f"a frame {type(frame).__name__.upper()} came where {kind.__name__.upper()} was due"
        )
    return frame
