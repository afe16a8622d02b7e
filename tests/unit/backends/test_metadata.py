"""GGUF files that were made to do harm, or are damaged: read by our own reader first."""

import struct
import subprocess
import sys
from pathlib import Path

import pytest

import edgespec
from edgespec import ModelError, NotAGGUF, TruncatedModel
from edgespec.errors import EngineMissing, ModelNotFound
from tests.helpers import gguf_files as made

try:
    from edgespec.backends.llama_cpp import metadata, tokenizer, weights
except EngineMissing as missing:
    pytest.skip(str(missing), allow_module_level=True)

TOKENS = "tokenizer__ggml__tokens"


def strings(*values):
    return made.ARRAY, (made.STRING, list(values))


def test_the_tiny_model_is_one(tmp_path):
    with edgespec.load(made.write(tmp_path / "a.gguf"), None, n_ctx=64) as engine:
        assert engine.generate("ab", max_tokens=3, ignore_eos=True).stats.num_emitted_tokens == 3


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({TOKENS: strings(*[b"a"] * 259)}, "tokens 0 and 258 are both b'a'"),
        ({TOKENS: strings(*made.TOKENS[:-1], b"[EMPTY_4]"), "llama__vocab_size": None}, "<0xFF>"),
        ({TOKENS: strings(*[b"t%d" % i for i in range(259)])}, "256 of 256 byte tokens"),
        ({TOKENS: strings()}, "no vocabulary"),
        ({TOKENS: (made.UINT32, 7)}, "no list of strings"),
        ({"tokenizer__ggml__model": (made.STRING, b"none")}, "no tokenizer"),
        ({"tokenizer__ggml__model": (made.STRING, b"bert")}, "byte tokens"),
        ({"tokenizer__ggml__scores": (made.ARRAY, (made.FLOAT32, [0.0]))}, "has 1 values"),
        ({"tokenizer__ggml__token_type": (made.UINT32, 7)}, "has 0 values"),
        ({"llama__block_count": (made.UINT32, 2**31)}, "2147483648, expected 1 to 512"),
        ({"llama__block_count": (made.UINT32, 0)}, "is 0, expected 1"),
        ({"llama__context_length": (made.UINT32, 2**32 - 1)}, "4294967295, expected 1 to"),
        ({"llama__attention__head_count": (made.STRING, b"x")}, "expected 0 to"),
        ({"llama__attention__layer_norm_rms_epsilon": (made.FLOAT32, -1.0)}, "not negative"),
        ({"llama__expert_count": (made.UINT32, 3)}, "0 of 3 experts"),
        ({"llama__expert_used_count": (made.UINT32, 1)}, "1 of 0 experts"),
        ({"llama__nextn_predict_layers": (made.UINT32, 3)}, "more layers for next tokens"),
        ({"general__alignment": (made.UINT32, 1)}, "a multiple of 32"),
        ({"general__alignment": (made.UINT32, 0)}, "an alignment of 0"),
    ],
)
def test_metadata_that_would_end_the_process_is_an_error(tmp_path, changed, says):
    path = made.write(tmp_path / "a.gguf", **changed)
    for look in (edgespec.inspect, lambda path: edgespec.load(path, None)):
        with pytest.raises(ModelError, match=says) as caught:
            look(path)
        assert "fetch it again" in str(caught.value)


def test_a_file_that_ends_too_early_says_how_much_is_there(tmp_path):
    path = tmp_path / "a.gguf"
    whole = made.gguf_bytes(made.fields(), made.tensors())
    for kept in (4, 5, 23, 100, 2000, len(whole) - 1):
        path.write_bytes(whole[:kept])
        with pytest.raises(TruncatedModel, match=rf"has {kept} bytes, at least \d+ are needed"):
            edgespec.inspect(path)
    path.write_bytes(whole)
    assert metadata.read_header(path).data_end == len(whole)


@pytest.mark.parametrize(
    ("version", "says"), [(1, "version 1"), (4, "version 4"), (3 << 24, "big-endian")]
)
def test_versions_that_are_not_read(tmp_path, version, says):
    path = tmp_path / "a.gguf"
    path.write_bytes(made.gguf_bytes(made.fields(), made.tensors(), version))
    with pytest.raises(NotAGGUF, match=says):
        edgespec.inspect(path)


def test_lengths_are_not_trusted(tmp_path):
    path = tmp_path / "a.gguf"
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + made.text(b"key")
    nested = struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 50
    for body in (
        struct.pack("<IQ", 8, 2**63),
        struct.pack("<IIQ", 9, 8, 2**64 - 1),
        struct.pack("<IIQ", 9, 8, 1 << 20),
        struct.pack("<IIQ", 9, 4, 1 << 23),
        struct.pack("<I", 77),
        nested,
    ):
        path.write_bytes(head + body)
        with pytest.raises(TruncatedModel):
            metadata.read_header(path)
    for n_tensors, n_keys in ((2**64 - 1, 0), (0, 2**40)):
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_keys))
        with pytest.raises(TruncatedModel, match="at most"):
            metadata.read_header(path)


def test_numbers_strings_and_nested_lists_are_read(tmp_path):
    nested = (made.ARRAY, [(made.UINT8, [1, 2]), (made.STRING, [b"x"])])
    path = made.write(tmp_path / "a.gguf", x__list=(made.ARRAY, nested), x__n=(made.INT64, -5))
    found = metadata.read_header(path)
    assert (found.metadata["x.list"], found.metadata["x.n"]) == ([[1, 2], [b"x"]], -5)
    assert (found.vocab_size, found.token_text(1)) == (259, b"<s>")
    assert found.text("general.name") == "tiny"


def test_parts_that_are_missing_are_named(tmp_path):
    first = made.write(tmp_path / "m-00001-of-00003.gguf")
    with pytest.raises(ModelNotFound, match=r"m-00002-of-00003.gguf, m-00003-of-00003.gguf; fetch"):
        edgespec.inspect(first)
    for i in (2, 3):
        made.write(tmp_path / f"m-0000{i}-of-00003.gguf")
    assert edgespec.inspect(first).file_size == 3 * first.stat().st_size
    with pytest.raises(ModelError, match="a later part of a model of 3 files; give m-00001"):
        edgespec.inspect(tmp_path / "m-00002-of-00003.gguf")
    (tmp_path / "m-00002-of-00003.gguf").write_bytes(first.read_bytes()[:-1])
    with pytest.raises(TruncatedModel, match="m-00002"):
        edgespec.load(first, None)


def test_what_is_looked_at_is_not_opened_by_the_engine(tmp_path, monkeypatch):
    monkeypatch.setattr(weights.lib, "llama_model_load_from_file", None)
    path = made.write(tmp_path / "big.gguf", x__more=(made.STRING, b"x" * 999))
    made.write(tmp_path / "fits.gguf")
    other = [t.replace(b"0x61", b"0x6161") for t in made.TOKENS]
    made.write(tmp_path / "hostile.gguf", tokenizer__ggml__tokens=strings(*[b"a"] * 259))
    made.write(tmp_path / "other.gguf", tokenizer__ggml__tokens=strings(*other))
    made.write(tmp_path / "none.gguf", llama__attention__head_count=(made.UINT32, 0))
    fits = {f.reference: f for f in edgespec.fitting_drafts(path)}
    assert fits["fits.gguf"].fits
    assert "both b'a'" in fits["hostile.gguf"].why
    assert not fits["other.gguf"].fits
    assert edgespec.inspect(tmp_path / "none.gguf").kv_bytes(64) > 0
    assert edgespec.inspect(path).has_chat_template


def test_block_sizes_are_those_of_the_format():
    gguf = pytest.importorskip("gguf")
    known = {int(kind): sizes for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    ours = metadata.BLOCKS
    assert {kind: ours[kind] for kind in known if kind in ours} == ours


ENGINE = """
import logging, sys
from pathlib import Path
from edgespec import EdgeSpecError, EngineConfig
from edgespec.backends import llama_cpp
for path in sorted(Path(sys.argv[1]).glob("*.gguf")):
    print(path.name, flush=True)
    try:
        with llama_cpp.vocabulary(path) as tokenizer:
            tokenizer.encode("hello world")
        model = llama_cpp.LlamaCppModel(path, EngineConfig(n_ctx=64, n_threads=1))
        model.decode([1])
        model.close()
    except EdgeSpecError:
        pass
"""


def test_no_random_damage_ends_the_process(tmp_path):
    whole = made.gguf_bytes(made.fields(), made.tensors())
    head = len(whole) - sum(w.nbytes for w in made.tensors().values())
    for i, data in enumerate(made.damaged(whole, head, 120)):
        (tmp_path / f"{i:03}.gguf").write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-c", ENGINE, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, (done.stdout[-200:], done.stderr[-2000:])
    assert Path(done.stdout.split()[-1]).name == "119.gguf"


def test_the_template_for_tools_is_read(tmp_path):
    template = (made.STRING, b"{{ tools }}")
    path = made.write(tmp_path / "m.gguf", tokenizer__chat_template__tool_use=template)
    with tokenizer.vocabulary(path) as known:
        assert known.chat_template == "{{ messages[0].content }}"
        assert known.tool_template == "{{ tools }}"
    with tokenizer.vocabulary(made.write(tmp_path / "other.gguf")) as known:
        assert known.tool_template is None
