"""The frames of the verification protocol, byte by byte.

`python -m tests.unit.protocol.test_encoding` writes tests/data/protocol_vectors.json anew.
"""

import json
import math
import struct
import zlib
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec import SamplingParams, ToyTokenizer, VerifierFault, protocol
from edgespec.types import Logprob
from tests.helpers.selection import share

DATA = Path(__file__).parents[3] / "tests" / "data"
VECTORS = DATA / "protocol_vectors.json"
TOKEN, HASH = bytes(range(16)), bytes(range(16, 32))
GREEDY = SamplingParams()
DRAWN = SamplingParams(
    temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, repetition_penalty=1.1,
    presence_penalty=0.5, frequency_penalty=-0.25, logit_bias={7: -math.inf, 151643: 2.5},
    logprobs=2,
)  # fmt: skip
LOGPROBS = (Logprob(-0.5, ((5, -0.5), (151643, -1.25))), Logprob(-2.0))
OPTIONS = {"": 0, "deep": 2**64 - 1, "off": False, "on": True, "rate": -0.25, "ß": "größer"}
FRAMES = {
    "a new session": protocol.Open(2, protocol.NO_TOKEN, 151936, HASH, ""),
    "a session with options": protocol.Open(2, TOKEN, 49152, HASH, "qwen", OPTIONS),
    "a prompt": protocol.Begin(1, 0, 0, 3, GREEDY, 0, (1, 128, 151643)),
    "a conversation that goes on, all settings": protocol.Begin(
        300, 3, 0x8BB98613, 4, DRAWN, 2**64 - 1, (16383, 16384)
    ),
    "nothing new after what is there": protocol.Begin(2, 5, 7, 5, GREEDY, 42, ()),
    "a prompt with options": protocol.Begin(1, 0, 0, 1, GREEDY, 0, (1,), {"one": 1, "two": "2"}),
    "an answer that follows a schema": protocol.Begin(
        1, 0, 0, 1, GREEDY, 0, (1,), {"schema": '{"type": "boolean"}'}
    ),
    "an answer that is one of several": protocol.Begin(
        2, 1, 0x8BB98613, 3, DRAWN, 7, (5, 6), {"choices": '["größer", "kleiner"]'}
    ),
    "a whole answer with a limit of reasoning": protocol.Begin(
        3,
        0,
        0,
        1,
        GREEDY,
        0,
        (1,),
        {
            "answer": 'start: "a"',
            "reasoning_budget": 300,
            "reasoning_begin": "<think>",
            "reasoning_end": "</think>",
            "reasoning_open": True,
        },
    ),
    "a chain": protocol.Verify(0, 2051, 0xDEADBEEF, 0, (9707, 11, 1879, 0)),
    "a plain step": protocol.Verify(129, 17, 1, 32, ()),
    "a tree": protocol.Verify(7, 17, 1, 0, (5, 6, 7, 128, 9), (-1, 0, 0, -1, 3)),
    "a tree of 255 nodes": protocol.Verify(8, 17, 1, 0, (5,) * 255, (-1,) * 255),
    "the third node of a tree accepted": protocol.Answer(7, 3, 151643, 48211),
    "go on up to a round": protocol.More(1000),
    "stop": protocol.Cancel(),
    "opened": protocol.Opened(
        2, TOKEN, 8192, 31, 32, 151936, HASH, "qwen", ((1, 30000), (8, 120000)), 14
    ),
    "opened, chains only": protocol.Opened(2, TOKEN, 256, 7, 1, 100, HASH, ""),
    "reading": protocol.Progress(1, 512),
    "two of a draft accepted": protocol.Answer(0, 2, 151643, 48211),
    "with log-probabilities": protocol.Answer(3, 1, 0, 1, LOGPROBS),
    "the context is not known": protocol.Need(0, 0),
    "busy": protocol.Busy(250, "the cache is full"),
    "refused": protocol.Error(protocol.VOCABULARY, "größer"),
    "a constraint refused": protocol.Error(protocol.CONSTRAINT, "regex cannot be followed"),
}
EVERY = pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)


@EVERY
def test_what_is_written_is_read(frame):
    assert protocol.decode(protocol.encode(frame)) == frame


@EVERY
def test_every_cut_is_noticed_or_is_a_frame(frame):
    """A frame that ends in token ids may be cut between two of them, and says no more."""
    data = protocol.encode(frame)
    for end in range(len(data)):
        try:
            found = protocol.decode(data[:end])
        except VerifierFault:
            continue
        assert protocol.encode(found) == data[:end]
        assert isinstance(found, protocol.Begin | protocol.Verify | protocol.Answer)


@EVERY
def test_left_over_bytes(frame):
    data = protocol.encode(frame) + b"\0"
    if hasattr(frame, "ids"):
        assert protocol.decode(data).ids == (*frame.ids, 0)
    else:
        with pytest.raises(VerifierFault):
            protocol.decode(data)


@settings(max_examples=share(10_000), deadline=None)
@given(st.binary(max_size=80))
def test_random_messages(data):
    check_message(data)


@settings(max_examples=share(10_000), deadline=None)
@given(st.sampled_from([protocol.encode(frame) for frame in FRAMES.values()]), st.data())
def test_damaged_messages(whole, data):
    at = data.draw(st.integers(0, len(whole) - 1))
    check_message(whole[:at] + data.draw(st.binary(max_size=3)) + whole[at + 1 :])


def check_message(data):
    """Check that it is refused, or means one thing that can be written in one way."""
    try:
        found = protocol.decode(data)
    except VerifierFault:
        return
    again = protocol.decode(protocol.encode(found))
    assert protocol.encode(again) == protocol.encode(found)
    assert repr(again) == repr(found)  # NaN included


@given(st.lists(st.integers(-1, 254), max_size=40))
def test_parents(parents):
    """Each is written as one byte; one that is not before its node is refused."""
    frame = protocol.Verify(0, 1, 0, 0, (5,) * len(parents), tuple(parents))
    data = protocol.encode(frame)
    assert len(data) == len(protocol.encode(protocol.Verify(0, 1, 0, 0, frame.ids))) + len(parents)
    if all(parent < node for node, parent in enumerate(parents)):
        assert protocol.decode(data) == frame
    else:
        with pytest.raises(VerifierFault, match="none before it"):
            protocol.decode(data)


def test_an_option_is_written_whole_or_not_at_all():
    with pytest.raises(ValueError, match="65536 characters"):
        protocol.encode(protocol.Open(2, TOKEN, 1, HASH, "", {"grammar": "x" * 65536}))


@EVERY
def test_options_are_found_without_reading_what_follows_them(frame):
    data = protocol.encode(frame)
    expected = frame.options if isinstance(frame, protocol.Begin) else {}
    assert protocol.options_of(data) == expected
    for end in range(len(data) - len(getattr(frame, "ids", ()))):
        assert protocol.options_of(data[:end]) in ({}, expected)


@pytest.mark.parametrize(("written", "said"), [
    (b"\x01\x01a\x04\x00", "'a' in a frame is of unknown type 4"),
    (b"\x01\x01a\x00\x02", "too large"),
    (b"\x02\x01b\x00\x00\x01a\x00\x00", "out of order"),
    (b"\x02\x01a\x00\x00\x01a\x00\x00", "out of order"),
    (b"\x01\x01\xff\x00\x00", "UTF-8"),
    (b"\x7f", "ends"),
])  # fmt: skip
def test_options_that_are_none(written, said):
    data = protocol.encode(protocol.Open(2, TOKEN, 1, HASH, ""))
    with pytest.raises(VerifierFault, match=said):
        protocol.decode(data[:-1] + written)


@pytest.mark.parametrize(("data", "said"), [
    (b"", "empty"),
    (b"\x07", "unknown type 7"),
    ("text", "binary"),
    (b"\x04\x80\x00", "written too long"),
    (b"\x04" + b"\xff" * 10, "ten bytes"),
    (b"\x04" + b"\xff" * 9 + b"\x7f", "too large"),
    (b"\x85\x00\x01\xff", "UTF-8"),
    (b"\x03\x00\x00" + bytes(4) + b"\x00\x00" + b"\xff\xff\xff\xff\x0f", "too large"),
    (b"\x01\x01", "version 1 of the protocol came where this program speaks version 2"),
    (b"\x81\x03", "version 3 of the protocol came"),
])  # fmt: skip
def test_what_is_wrong_is_said(data, said):
    with pytest.raises(VerifierFault, match=said):
        protocol.decode(data)


@pytest.mark.parametrize(("offset", "value", "said"), [
    (0, struct.pack("<d", -1.0), "temperature"),
    (0, struct.pack("<d", math.nan), "temperature"),
    (8, struct.pack("<d", 1.5), "top_p"),
    (48, b"\x00\x66", "logprobs"),
])  # fmt: skip
def test_impossible_settings(offset, value, said):
    data = bytearray(protocol.encode(protocol.Begin(0, 0, 0, 1, GREEDY, 0, (5,))))
    at = data.index(struct.pack("<6d", 0, 1, 0, 1, 0, 0)) + offset
    data[at : at + len(value)] = value
    with pytest.raises(VerifierFault, match=said):
        protocol.decode(bytes(data))


def test_a_bias_that_is_no_number():
    params = replace(GREEDY, logit_bias={1: 1.5})
    data = protocol.encode(protocol.Begin(0, 0, 0, 1, params, 0, (5,)))
    for value in (math.nan, math.inf):
        with pytest.raises(VerifierFault, match="logit_bias of token 1 must be"):
            protocol.decode(data.replace(struct.pack("<d", 1.5), struct.pack("<d", value)))


def test_a_frame_of_another_kind():
    with pytest.raises(VerifierFault, match="CANCEL came where OPEN was due"):
        protocol.expect(protocol.Open, protocol.Cancel())


def test_long_messages_are_cut_between_characters():
    found = protocol.decode(protocol.encode(protocol.Error(1, "ö" * 70_000)))
    assert set(found.message) == {"ö"}
    assert len(found.message.encode()) < 1 << 16


@given(st.lists(st.integers(0, 2**31 - 1), max_size=50), st.integers(0, 50))
def test_checksums_of_every_length(ids, keep):
    context = protocol.Context(ids)
    for n in range(len(ids) + 1):
        plain = zlib.crc32(b"".join(i.to_bytes(4, "little") for i in ids[:n]))
        assert context.checksum(n) == plain
        assert context.has(n, plain)
    assert not context.has(len(ids) + 1, 0)
    keep = min(keep, len(ids))
    context.truncate(keep)
    context.extend(ids[keep:])
    assert context.tokens == ids
    assert context.checksum(len(ids)) == plain


def test_vocabularies_differ_where_an_entry_does():
    same = [protocol.vocabulary_hash(ToyTokenizer(["a", "bc"]), 2) for _ in range(2)]
    assert same[0] == same[1]
    assert len(same[0]) == 16
    for other in (["ab", "c"], ["a", "b"], ["bc", "a"]):
        assert protocol.vocabulary_hash(ToyTokenizer(other), 2) != same[0]
    assert protocol.vocabulary_hash(ToyTokenizer(["a", "bc", "d"]), 2) == same[0]


def test_bytes_of_a_step():
    """At steady state a draft of four tokens of a large vocabulary takes 22 bytes up."""
    up = protocol.encode(protocol.Verify(120, 4000, 1, 0, (151_000,) * 4))
    down = protocol.encode(protocol.Answer(120, 4, 151_000, 90_000))
    assert (len(up), len(down)) == (22, 9)


def vectors():
    """Return for other languages frames as fields and as bytes, and what they are computed with."""
    vocab = ["a", "bc", "", "größer"]
    draft = protocol.encode(protocol.Verify(0, 1, 0, 0, ()))[:-1]
    opening = protocol.encode(protocol.Open(2, TOKEN, 1, HASH, ""))[:-1]
    return {
        "version": protocol.VERSION,
        "subprotocol": protocol.SUBPROTOCOL,
        "frames": [
            {"name": name, "frame": written(frame), "hex": protocol.encode(frame).hex()}
            for name, frame in FRAMES.items()
        ],
        "checksums": [
            {"ids": ids, "crc32": protocol.Context(ids).checksum(len(ids))}
            for ids in ([], [0], [1, 128, 151643], [2**31 - 1] * 3)
        ],
        "vocabulary_hashes": [
            {"entries": vocab[:n], "hash": protocol.vocabulary_hash(ToyTokenizer(vocab), n).hex()}
            for n in (0, 2, 4)
        ],
        "vocabularies": [
            {
                "pieces": vocab, "ends": [2],
                "hex": protocol.vocabulary(ToyTokenizer(vocab, eog=[2]), HASH).hex(),
            },
        ],
        "refused": [
            data.hex()
            for data in (
                b"", b"\x07", b"\x04\x80\x00", b"\x05\x00", b"\x82\x01", b"\x01\x01", b"\x81\x01",
                draft, draft + b"\x02\x00\x02\x05\x06", draft + b"\x02\x00", draft + b"\x80\x02",
                opening, opening + b"\x01\x01a\x04", opening + b"\x02\x01b\x00\x00\x01a\x00\x00",
            )
        ],
    }  # fmt: skip


def written(frame):
    """Return a frame as JSON has it: of `params` only what travels."""
    fields = {"type": type(frame).__name__.upper()} | asdict(frame)
    if "params" in fields:
        params = {name: fields["params"][name] for name in WIRED}
        params["logit_bias"] = {str(k): plain(v) for k, v in params["logit_bias"].items()}
        fields["params"] = params
    return {name: plain(value) for name, value in fields.items()}


def plain(value):
    if isinstance(value, bytes):
        return value.hex()
    return {"-inf": True} if value == -math.inf else value


WIRED = (
    "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "top_k", "logprobs", "logit_bias",
)  # fmt: skip


def as_text():
    return json.dumps(vectors(), indent=1, ensure_ascii=False) + "\n"


def test_the_vectors_in_the_repository():
    assert VECTORS.read_text("utf-8") == as_text(), (
        "run: python -m tests.unit.protocol.test_encoding"
    )
    for data in vectors()["refused"]:
        with pytest.raises(VerifierFault):
            protocol.decode(bytes.fromhex(data))


if __name__ == "__main__":
    VECTORS.write_text(as_text(), "utf-8")
