"""The frames of the verification protocol, byte by byte.

`python -m tests.unit.protocol.test_wire` writes tests/data/protocol_vectors.json anew.
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

VECTORS = Path(__file__).parents[3] / "tests" / "data" / "protocol_vectors.json"
TOKEN, HASH = bytes(range(16)), bytes(range(16, 32))
GREEDY = SamplingParams()
DRAWN = SamplingParams(
    temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, repetition_penalty=1.1,
    presence_penalty=0.5, frequency_penalty=-0.25, logit_bias={7: -math.inf, 151643: 2.5},
    logprobs=2,
)  # fmt: skip
LOGPROBS = (Logprob(-0.5, ((5, -0.5), (151643, -1.25))), Logprob(-2.0))
FRAMES = {
    "a new session": protocol.Open(1, protocol.NO_TOKEN, 151936, HASH, ""),
    "a session resumed, a model by name": protocol.Open(1, TOKEN, 49152, HASH, "smollm2-135m"),
    "a prompt, greedy": protocol.Begin(1, 0, 0, 3, GREEDY, 0, (1, 128, 151643)),
    "a conversation that goes on, all settings": protocol.Begin(
        300, 3, 0x8BB98613, 4, DRAWN, 2**64 - 1, (16383, 16384)
    ),
    "nothing new behind what is there": protocol.Begin(2, 5, 7, 5, GREEDY, 42, ()),
    "a draft": protocol.Verify(0, 2051, 0xDEADBEEF, 0, (9707, 11, 1879, 0)),
    "a plain step, 32 more": protocol.Verify(129, 17, 1, 32, ()),
    "go on up to a round": protocol.More(1000),
    "stop": protocol.Cancel(),
    "opened": protocol.Opened(
        1, TOKEN, 8192, 31, 32, 151936, HASH, "qwen", ((1, 30000), (8, 120000))
    ),
    "opened, costs unknown": protocol.Opened(1, TOKEN, 256, 7, 1, 100, HASH, ""),
    "reading": protocol.Progress(1, 512),
    "two of a draft accepted": protocol.Answer(0, 2, 151643, 48211),
    "with log-probabilities": protocol.Answer(3, 1, 0, 1, LOGPROBS),
    "the context is not known": protocol.Need(0, 0),
    "busy": protocol.Busy(250, "the cache is full"),
    "refused": protocol.Error(protocol.VOCABULARY, "größer"),
}


@pytest.mark.parametrize("name", FRAMES)
def test_what_is_written_is_read(name):
    assert protocol.decode(protocol.encode(FRAMES[name])) == FRAMES[name]


@pytest.mark.parametrize("name", FRAMES)
def test_every_cut_is_noticed_or_is_a_frame(name):
    """A frame that ends in token ids may be cut between two of them, and says no more."""
    data = protocol.encode(FRAMES[name])
    for end in range(len(data)):
        try:
            found = protocol.decode(data[:end])
        except VerifierFault:
            continue
        assert protocol.encode(found) == data[:end]
        assert isinstance(found, protocol.Begin | protocol.Verify | protocol.Answer)


@pytest.mark.parametrize("name", [n for n, f in FRAMES.items() if not hasattr(f, "ids")])
def test_left_over_bytes(name):
    with pytest.raises(VerifierFault):
        protocol.decode(protocol.encode(FRAMES[name]) + b"\0")


@settings(max_examples=10_000, deadline=None)
@given(st.binary(max_size=80))
def test_random_messages(data):
    check_message(data)


@settings(max_examples=5_000, deadline=None)
@given(st.sampled_from([protocol.encode(f) for f in FRAMES.values()]), st.data())
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


@pytest.mark.parametrize(("data", "said"), [
    (b"", "empty"),
    (b"\x07", "unknown type 7"),
    ("text", "binary"),
    (b"\x04\x80\x00", "written too long"),
    (b"\x04" + b"\xff" * 10, "ten bytes"),
    (b"\x04" + b"\xff" * 9 + b"\x7f", "too large"),
    (b"\x85\x00\x01\xff", "UTF-8"),
    (b"\x03\x00\x00" + bytes(4) + b"\x00" + b"\xff\xff\xff\xff\x0f", "too large"),
])  # fmt: skip
def test_what_is_wrong_is_said(data, said):
    with pytest.raises(VerifierFault, match=said):
        protocol.decode(data)


@pytest.mark.parametrize(("offset", "value", "said"), [
    (0, struct.pack("<d", -1.0), "temperature"),
    (0, struct.pack("<d", math.nan), "temperature"),
    (8, struct.pack("<d", 0.0), "top_p"),
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
    """At steady state a draft of four tokens of a large vocabulary takes 20 bytes up."""
    up = protocol.encode(protocol.Verify(120, 4000, 1, 0, (151_000,) * 4))
    down = protocol.encode(protocol.Answer(120, 4, 151_000, 90_000))
    assert (len(up), len(down)) == (21, 9)


def vectors():
    """For other languages: frames as fields and as bytes, and what they are computed with."""

    def plain(value):
        if isinstance(value, bytes):
            return value.hex()
        return {"-inf": True} if value == -math.inf else value

    def written(frame):
        found = {"type": type(frame).__name__.upper()}
        for key, value in asdict(frame).items():
            if key == "params":
                value = {
                    name: {str(k): plain(v) for k, v in x.items()} if name == "logit_bias" else x
                    for name, x in value.items()
                    if name in WIRED
                }
            found[key] = plain(value)
        return found

    vocab = ["a", "bc", "", "größer"]
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
            data.hex() for data in (b"", b"\x07", b"\x04\x80\x00", b"\x05\x00", b"\x82\x01")
        ],
    }  # fmt: skip


WIRED = (
    "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "top_k", "logprobs", "logit_bias",
)  # fmt: skip


def as_text():
    return json.dumps(vectors(), indent=1, ensure_ascii=False) + "\n"


def test_the_vectors_in_the_repository():
    assert VECTORS.read_text("utf-8") == as_text(), "run: python -m tests.unit.protocol.test_wire"
    for data in vectors()["refused"]:
        with pytest.raises(VerifierFault):
            protocol.decode(bytes.fromhex(data))


if __name__ == "__main__":
    VECTORS.write_text(as_text(), "utf-8")
