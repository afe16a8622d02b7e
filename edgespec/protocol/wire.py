"""The verification protocol: what a device and a server say to each other, byte by byte.

One WebSocket is one session; one binary message is one frame; a frame is its type, then its
fields. `docs/protocol.md` describes them, `docs/protocol_vectors.json` has examples for other
languages.

    varint    unsigned LEB128 below 2^64, in as few bytes as it can be written
    u8, u32, u64, f32, f64   little-endian; text: varint of its UTF-8 bytes, then these
    ids       varints up to the end of the frame
"""

from __future__ import annotations

import array
import hashlib
import struct
import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from ..backends.base import Tokenizer
from ..config import SamplingParams
from ..errors import ConfigError, VerifierFault
from ..types import Logprob

VERSION = 1
SUBPROTOCOL = "edgespec.verify.v1"
NO_TOKEN = bytes(16)
MAX_IDS = 1 << 20
_ID_LIMIT = 1 << 31

# ERROR codes
PROTOCOL, VERSION_UNKNOWN, MODEL, VOCABULARY, UNSUPPORTED = 1, 2, 3, 4, 5
CONTEXT_FULL, LIMIT, INTERNAL, CLOSING = 6, 7, 8, 9


@dataclass(frozen=True, slots=True)
class Open:
    """The first frame of a connection. token: of the session to resume, NO_TOKEN for a new one.
    vocab_size, vocab_hash: of the device's tokenizer; model: the name it wants, "" for any.
    """

    version: int
    token: bytes
    vocab_size: int
    vocab_hash: bytes
    model: str


@dataclass(frozen=True, slots=True)
class Begin:
    """A context to go on from: `keep` tokens that the server has, of this checksum, then `ids`.
    The first n_prompt tokens are prompt to penalties, the rest output. seed: of every draw. Of
    params only what bears on a row travels: where an answer ends is the device's to see.
    """

    generation: int
    keep: int
    checksum: int
    n_prompt: int
    params: SamplingParams
    seed: int
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Verify:
    """Verification `ids` behind the first `length` tokens of the context, whose checksum is given.
    ahead: so many tokens more the server may emit by itself, each as a verdict of a round of
    its own. round: above every round of the session before.
    """

    round: int
    length: int
    checksum: int
    ahead: int
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class More:
    """While the server emits tokens by itself: up to which round it may."""

    round: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop reading the prompt, stop emitting."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The answer to OPEN. max_draft: most tokens a VERIFY; max_ahead: most tokens by itself.
    costs: microseconds of an evaluation, by number of tokens. The token is another one than was
    asked for where that session is gone.
    """

    version: int
    token: bytes
    n_ctx: int
    max_draft: int
    max_ahead: int
    vocab_size: int
    vocab_hash: bytes
    model: str
    costs: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """So many tokens of the context are in the cache, the reused ones first; all of them: it is
    ready, and what is left goes with the first VERIFY.
    """

    generation: int
    n_done: int


@dataclass(frozen=True, slots=True)
class Answer:
    """A verdict: n_accepted drafted tokens and one of the target's own. server_us: since VERIFY
    came, or since the answer before. logprobs: of the accepted tokens and of `token`, if asked for.
    """

    round: int
    n_accepted: int
    token: int
    server_us: int
    logprobs: tuple[Logprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Need:
    """The server does not have the context that a frame spoke of, only `have` tokens of this
    checksum (or none): send BEGIN.
    """

    have: int
    checksum: int


@dataclass(frozen=True, slots=True)
class Busy:
    """No room just now: try again after so long."""

    retry_ms: int
    message: str


@dataclass(frozen=True, slots=True)
class Error:
    """The connection ends here."""

    code: int
    message: str


Frame = (
    Open | Begin | Verify | More | Cancel | Opened | Progress | Answer | Need | Busy | Error
)  # fmt: skip


class Reader:
    """Takes the fields of a frame one by one. Raises VerifierFault where they are not there."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """Bytes that nobody has taken."""
        return len(self._data) - self._at

    def raw(self, n: int) -> bytes:
        """So many bytes."""
        if n > self.left:
            raise VerifierFault(f"a frame ends {n - self.left} bytes before its fields do")
        self._at += n
        return self._data[self._at - n : self._at]

    def fixed(self, code: str) -> Any:
        """One value of a `struct` format."""
        form = "<" + code
        return struct.unpack(form, self.raw(struct.calcsize(form)))[0]

    def varint(self, limit: int = 1 << 64) -> int:
        """A number below `limit`."""
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

    def text(self) -> str:
        """UTF-8."""
        try:
            return self.raw(self.varint(1 << 16)).decode()
        except UnicodeDecodeError as error:
            raise VerifierFault("a text in a frame is not UTF-8") from error

    def ids(self) -> tuple[int, ...]:
        """Token ids up to the end."""
        found = []
        while self.left:
            found.append(self.varint(_ID_LIMIT))
            if len(found) > MAX_IDS:
                raise VerifierFault(f"a frame has more than {MAX_IDS} token ids")
        return tuple(found)

    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Pairs of numbers, their count first."""
        n = self.varint(1 << 16)
        return tuple((self.varint(), self.varint()) for _ in range(n))


def varint(value: int) -> bytes:
    """Unsigned LEB128."""
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
    while len(data) >= 1 << 16:
        data = data[: (1 << 16) - 4].decode(errors="ignore").encode()
    return varint(len(data)) + data


def _varints(values: Iterable[int]) -> bytes:
    return b"".join(map(varint, values))


# --- sampling ----------------------------------------------------------------------------------

_FLOATS = (
    "temperature", "top_p", "min_p",
    "repetition_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip


def _write_params(params: SamplingParams) -> bytes:
    bias = sorted(params.logit_bias.items())
    return b"".join([
        struct.pack("<6d", *(getattr(params, name) for name in _FLOATS)),
        varint(params.top_k),
        varint(0 if params.logprobs is None else params.logprobs + 1),
        varint(len(bias)),
        *(varint(token) + struct.pack("<d", value) for token, value in bias),
    ])  # fmt: skip


def _read_params(reader: Reader) -> SamplingParams:
    values: dict[str, Any] = {name: reader.fixed("d") for name in _FLOATS}
    values["top_k"] = reader.varint(_ID_LIMIT)
    n_logprobs = reader.varint(1 << 16)
    values["logprobs"] = n_logprobs - 1 if n_logprobs else None
    n_bias = reader.varint(1 << 16)
    values["logit_bias"] = {reader.varint(_ID_LIMIT): reader.fixed("d") for _ in range(n_bias)}
    found = values["logit_bias"]
    if list(found) != sorted(found) or len(found) != n_bias:
        raise VerifierFault("a logit_bias in a frame is out of order")
    try:
        return SamplingParams(**values)
    except ConfigError as error:
        raise VerifierFault(f"sampling settings in a frame: {error}") from error


# --- log-probabilities -------------------------------------------------------------------------


def _write_logprobs(logprobs: Sequence[Logprob]) -> bytes:
    parts = [varint(len(logprobs))]
    for one in logprobs:
        parts.append(struct.pack("<f", one.logprob) + varint(len(one.top)))
        parts += [varint(token) + struct.pack("<f", value) for token, value in one.top]
    return b"".join(parts)


def _read_logprobs(reader: Reader) -> tuple[Logprob, ...]:
    found = []
    n = reader.varint(1 << 16)
    if not n:
        raise VerifierFault("an ANSWER without log-probabilities ends before them")
    for _ in range(n):
        value, n_top = reader.fixed("f"), reader.varint(1 << 16)
        top = tuple((reader.varint(_ID_LIMIT), reader.fixed("f")) for _ in range(n_top))
        found.append(Logprob(value, top))
    return tuple(found)


# --- frames ------------------------------------------------------------------------------------

_Write = Callable[[Any], bytes]
_Read = Callable[[Reader], Any]
_NUMBER: tuple[_Write, _Read] = varint, Reader.varint
_U8: tuple[_Write, _Read] = lambda v: struct.pack("<B", v), lambda r: r.fixed("B")
_U32: tuple[_Write, _Read] = lambda v: struct.pack("<I", v), lambda r: r.fixed("I")
_U64: tuple[_Write, _Read] = lambda v: struct.pack("<Q", v), lambda r: r.fixed("Q")
_BYTES16: tuple[_Write, _Read] = bytes, lambda r: r.raw(16)
_TEXT: tuple[_Write, _Read] = _text, Reader.text
_IDS: tuple[_Write, _Read] = _varints, Reader.ids
_PARAMS: tuple[_Write, _Read] = _write_params, _read_params
_PAIRS: tuple[_Write, _Read] = (
    lambda v: varint(len(v)) + _varints(x for pair in v for x in pair),
    Reader.pairs,
)
_LOGPROBS: tuple[_Write, _Read] = _write_logprobs, _read_logprobs

_FORMS: dict[int, tuple[type, tuple[tuple[_Write, _Read], ...]]] = {
    0x01: (Open, (_U8, _BYTES16, _NUMBER, _BYTES16, _TEXT)),
    0x02: (Begin, (_NUMBER, _NUMBER, _U32, _NUMBER, _PARAMS, _U64, _IDS)),
    0x03: (Verify, (_NUMBER, _NUMBER, _U32, _NUMBER, _IDS)),
    0x04: (More, (_NUMBER,)),
    0x05: (Cancel, ()),
    0x81: (
        Opened,
        (_U8, _BYTES16, _NUMBER, _NUMBER, _NUMBER, _NUMBER, _BYTES16, _TEXT, _PAIRS),
    ),
    0x82: (Progress, (_NUMBER, _NUMBER)),
    0x83: (Answer, (_NUMBER, _NUMBER, _NUMBER, _NUMBER, _LOGPROBS)),
    0x84: (Need, (_NUMBER, _U32)),
    0x85: (Busy, (_NUMBER, _TEXT)),
    0x86: (Error, (_U8, _TEXT)),
}
ERROR = 0x86
_KINDS = {kind: number for number, (kind, _) in _FORMS.items()}
_Kind = TypeVar("_Kind")


def encode(frame: Frame) -> bytes:
    """A frame as a message. An ANSWER without log-probabilities ends before them."""
    number = _KINDS[type(frame)]
    parts = [bytes([number])]
    for field, (write, _) in zip(fields(frame), _FORMS[number][1], strict=True):
        value = getattr(frame, field.name)
        if value or not isinstance(frame, Answer) or field.name != "logprobs":
            parts.append(write(value))
    return b"".join(parts)


def decode(data: bytes | str) -> Frame:
    """The frame of a message. Raises VerifierFault for anything else, left-over bytes included."""
    if isinstance(data, str):
        raise VerifierFault("a text message came; frames are binary")
    if not data:
        raise VerifierFault("an empty message came; a frame has at least its type")
    if data[0] not in _FORMS:
        raise VerifierFault(f"a frame of unknown type {data[0]} came")
    kind, forms = _FORMS[data[0]]
    reader = Reader(data[1:])
    read = [read for _, read in forms]
    if kind is Answer and not _has_logprobs(data):
        read = read[:-1]
    found: Frame = kind(*(take(reader) for take in read))
    if reader.left:
        raise VerifierFault(f"{reader.left} bytes stand behind the fields of a frame")
    return found


def _has_logprobs(data: bytes) -> bool:
    """Whether anything stands behind the four numbers of an ANSWER."""
    reader = Reader(data[1:])
    for _ in range(4):
        reader.varint()
    return bool(reader.left)


def expect(kind: type[_Kind], frame: Frame) -> _Kind:
    """The frame, if it is of this kind. Raises VerifierFault."""
    if not isinstance(frame, kind):
        raise VerifierFault(
            f"a frame {type(frame).__name__.upper()} came where {kind.__name__.upper()} was due"
        )
    return frame


# --- contexts and vocabularies -----------------------------------------------------------------


class Context:
    """Token ids and, for every length, the CRC-32 of the ids before it, each as a u32."""

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.tokens: list[int] = []
        self._checksums = [0]
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens."""
        checksum = self._checksums[-1]
        for token in tokens:
            checksum = zlib.crc32(struct.pack("<I", token), checksum)
            self.tokens.append(token)
            self._checksums.append(checksum)

    def truncate(self, length: int) -> None:
        """Keep the first tokens."""
        del self.tokens[length:], self._checksums[length + 1 :]

    def checksum(self, length: int) -> int:
        """Of the first `length` tokens."""
        return self._checksums[length]

    def has(self, length: int, checksum: int) -> bool:
        """Whether its first tokens are these."""
        return length <= len(self.tokens) and self._checksums[length] == checksum


def checksum(tokens: Sequence[int]) -> int:
    """CRC-32 of token ids, each as a u32."""
    data = array.array("I", tokens)
    if sys.byteorder == "big":
        data.byteswap()
    return zlib.crc32(data.tobytes())


def vocabulary_hash(tokenizer: Tokenizer, n: int) -> bytes:
    """The first 16 bytes of the SHA-256 of the first `n` entries: each its length as a u32, then
    its bytes.
    """
    digest = hashlib.sha256()
    for token in range(n):
        text = tokenizer.token_text(token)
        digest.update(struct.pack("<I", len(text)) + text)
    return digest.digest()[:16]


def vocabulary(tokenizer: Tokenizer, digest: bytes) -> bytes:
    """What a device without a tokenizer needs: which tokens end an answer and what each adds to
    a text. digest: the `vocabulary_hash` of all entries.
    """
    every = range(tokenizer.vocab_size)
    ends = [token for token in every if tokenizer.is_eog(token)]
    written = bytearray([VERSION])
    written += varint(tokenizer.vocab_size) + digest + varint(len(ends))
    for token in ends:
        written += varint(token)
    for token in every:
        piece = tokenizer.piece(token)
        written += varint(len(piece)) + piece
    return bytes(written)
