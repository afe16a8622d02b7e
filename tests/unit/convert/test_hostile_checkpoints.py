"""Checkpoints that somebody made to do harm: one sentence each, in bounded memory and time, and
nothing of them is run.
"""

import json
import os
import pickle
import random
import re
import resource
import struct
import subprocess
import sys
import textwrap
import zipfile

import numpy as np
import pytest

from edgespec import ConfigError, ModelError
from edgespec.convert.heads.pickles import read_pickle
from edgespec.convert.heads.reading import read_head
from edgespec.convert.heads.tensors import read_safetensors
from tests.helpers import head_files as files
from tests.helpers import hostile
from tests.helpers.head_makers import MAKERS
from tests.helpers.selection import every, share

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pipes, links and limits of Linux")

LAUGHS = b")q\x00" + b"".join(b"h%c\x86q%c" % (i, i + 1) for i in range(60))  # 2**60 tuples
MIB = 1 << 20


def told(path, read=read_head):
    """Return the sentence with which a checkpoint is refused, "" if it can be read."""
    try:
        head = read(path)
        for tensor in (head if isinstance(head, dict) else head.weights).values():
            tensor.array()
    except (ModelError, ConfigError) as error:
        sentence = str(error).replace(str(path.parent), "").replace(str(path), "")
        assert sentence.isprintable(), sentence
        assert len(sentence) < 700, sentence
        return sentence
    return ""


def weights_of(folder):
    return next(p for p in folder.iterdir() if p.suffix in (".safetensors", ".bin", ".pt"))


def with_another_header(data, rng):
    """Return a .safetensors with another value in its header."""
    n = struct.unpack("<Q", data[:8])[0]
    header = json.dumps(hostile.with_another_value(json.loads(data[8 : 8 + n]), rng)).encode()
    return struct.pack("<Q", len(header)) + header + data[8 + n :]


def with_another_pickle(path, rng):
    """Return a zip that torch could have written but for some bytes of its pickle."""
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    code = content["archive/data.pkl"]
    content["archive/data.pkl"] = hostile.flipped(code, rng, len(code))
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return path.read_bytes()


def spoil(folder, rng):
    """Change one file of a checkpoint."""
    path = rng.choice([weights_of(folder), folder / "config.json"])
    data = path.read_bytes()
    way = rng.choice(["cut", "bytes", "value", "value", "other", "huge"])
    if way == "cut":
        path.write_bytes(hostile.cut(data, rng))
    elif way == "bytes":
        path.write_bytes(hostile.flipped(data, rng, 2000))
    elif way == "value" and path.suffix == ".json":
        values = hostile.with_another_value(json.loads(data), rng)
        path.write_text(json.dumps(values))
    elif way == "value" and path.suffix == ".safetensors":
        path.write_bytes(with_another_header(data, rng))
    elif way == "value":
        path.write_bytes(with_another_pickle(path, rng))
    elif way == "other":
        path.unlink()
        hostile.take_the_place_of(path, rng)
    else:
        path.write_bytes(rng.choice([b"", b"[" * 100_000, b"{}" * 1000, data * 3, b"\xff" * 100]))


@pytest.mark.parametrize(
    ("kind", "naming"), [*((kind, "") for kind in MAKERS), ("dflash", "dflash bin")]
)
def test_whatever_is_in_a_checkpoint_is_a_head_or_a_sentence(kind, naming, tmp_path):
    made = MAKERS[kind]()
    for seed in range(share(200)):
        folder = files.write(tmp_path / str(seed), made, naming)
        spoil(folder, random.Random(seed))
        told(folder)


# --- pickles ------------------------------------------------------------------------------------


def pickled(tmp_path, tensor, name=b"X\x01\x00\x00\x00a"):
    """Write a checkpoint whose only tensor is this code."""
    return files.zipped(tmp_path / "a.bin", b"\x80\x02}(" + name + tensor + b"u.", [bytes(24)])


def rebuilt(offset=b"K\x00", shape=b"K\x02K\x03", strides=b"K\x03K\x01", n=b"K\x06", **changed):
    """Return the code of a tensor [2, 3], some of it changed."""
    kind = changed.get("kind", files.named("torch", "FloatStorage"))
    pid = b"(X\x07\x00\x00\x00storage" + kind + changed.get("key", b"X\x01\x00\x00\x000")
    pid += b"X\x03\x00\x00\x00cpu" + n + b"tQ"
    sizes = changed.get("sizes", b"(" + shape + b"t(" + strides + b"t")
    rebuild = files.named("torch._utils", "_rebuild_tensor_v2")
    return rebuild + b"(" + pid + offset + sizes + b"\x89}tR"


FLOAT = b"G" + struct.pack(">d", 1.0)
ODD = {
    "float": FLOAT, "true": b"\x88", "none": b"N", "text": b"X\x01\x00\x00\x001",
    "negative": b"J\xff\xff\xff\xff", "huge": b"\x8a\xff" + b"\x7f" * 255, "list": b"]",
    "nan": b"G" + struct.pack(">d", float("nan")),
    "2**62": b"\x8a\x08" + struct.pack("<q", 1 << 62), "laughs": LAUGHS,
}  # fmt: skip


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("place", ["offset", "shape", "strides", "n"])
def test_sizes_that_are_none(tmp_path, place, odd):
    code = ODD[odd] + (b"K\x01" if place in ("shape", "strides") else b"")
    assert told(pickled(tmp_path, rebuilt(**{place: code})), read_pickle)


@pytest.mark.parametrize(("changed", "said"), [
    ({"kind": files.named("torch", "QInt8Storage")}, "torch.QInt8Storage in it"),
    ({"kind": b"X\x0c\x00\x00\x00FloatStorage"}, "no storage"),
    ({"key": b"X\x09\x00\x00\x00../../etc"}, "has 0 bytes of 24"),
    ({"key": b"K\x00"}, "no storage"), ({"key": LAUGHS}, "no storage"),
    ({"n": b"K\x07"}, "has 24 bytes of 28"), ({"n": b"K\x05"}, "lies outside its 5 numbers"),
    ({"shape": b"K\x02" * 20, "strides": b"K\x00" * 20}, "20 sizes"),
    ({"shape": b"K\x02"}, "1 sizes and 2 strides"),
    ({"sizes": b"]]"}, "no whole number"),
    ({"sizes": LAUGHS * 2}, "no whole number"),
])  # fmt: skip
def test_storages_and_views_that_are_none(tmp_path, changed, said):
    assert said in told(pickled(tmp_path, rebuilt(**changed)), read_pickle)


def test_what_is_sound_is_read(tmp_path):
    path = pickled(tmp_path, rebuilt())
    assert read_pickle(path)["a"].array().tolist() == [[0, 0, 0], [0, 0, 0]]


CODES = {
    "a promise of bytes": b"\x8e" + struct.pack("<Q", 1 << 40),
    "a long number": b"\x8b\xff\xff\xff\x7f",
    "a promise of a frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 60),
    "a place in the memo": b"Nr\xff\xff\xff\x3f.", "a place that is empty": b"j\xff\xff\xff\x3f.",
    "depth": b"]" + b"(l" * 100_000 + b".", "tuples in tuples": b")" + b"\x85" * 500_000 + b".",
    "marks": b"(" * 1_000_000 + b".", "laughs": LAUGHS + b".",
    "a key of laughs": b"}" + LAUGHS + b"Ns.",
    "a name of laughs": LAUGHS + b"X\x01\x00\x00\x00a\x93.",
    "a name of lines": b"c" + b"a" * MIB + b"\n\n.",
    "nothing": b"", "an end": b".", "no end": b"N", "calls": b"N)R.",
    "what it is not": b"K\x01K\x02s.",
    "a line of digits": b"I" + b"9" * 100_000 + b"\n.", "an extension": b"\x82\x01.",
    "an object": b"(i__main__\nA\n.",
}  # fmt: skip


@pytest.mark.parametrize("name", CODES)
def test_programs_that_torch_does_not_write(tmp_path, name):
    assert told(files.zipped(tmp_path / "a.bin", CODES[name], []), read_pickle)


class _Payload:
    def __init__(self, path):
        self._path = path

    def __reduce__(self):
        return os.system, (f"touch {self._path}",)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("place", ["alone", "value", "key", "nested", "state"])
def test_no_program_of_a_pickle_is_run(tmp_path, place, protocol):
    mark = tmp_path / "ran"
    payload = _Payload(mark)
    code = pickle.dumps({"alone": payload, "value": {"a": payload}, "key": {payload: 1},
                         "nested": {"a": [({"b": payload},)]}, "state": [payload] * 2}[place],
                        protocol)  # fmt: skip
    pickle.loads(code)
    assert mark.exists()
    mark.unlink()
    assert told(files.zipped(tmp_path / "a.bin", code, []), read_pickle)
    assert not mark.exists()


# --- zips ---------------------------------------------------------------------------------------

RECORDS = [("a/data.pkl", b"\x80\x02}."), ("a/data/0", bytes(24))]


def zipped(path, records, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in records:
            archive.writestr(name, data)
    return path


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(("records", "said"), [
    ([*RECORDS, RECORDS[1]], "a record twice"), ([*RECORDS, ("b/data.pkl", b"")], "one data.pkl"),
    ([("a/data.pkl", bytes(5 * MIB))], "at most"),
    ([*RECORDS, ("a/byteorder", b"big")], "big-endian"),
    ([*RECORDS, ("a/\x1b[2J", b"")], "odd name"),
    ([*RECORDS, ("a/byteorder", bytes(MIB))], "at most 16"), ([], "one data.pkl"),
])  # fmt: skip
def test_records_that_torch_does_not_write(tmp_path, records, said):
    assert said in told(zipped(tmp_path / "a.bin", records), read_pickle)


@pytest.mark.parametrize("compression", [
    zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA,
])  # fmt: skip
def test_compressed_records_are_not_unpacked(tmp_path, compression):
    path = zipped(tmp_path / "a.bin", RECORDS, compression)
    assert "compressed or encrypted" in told(path, read_pickle)


@pytest.mark.parametrize(("at", "form", "value", "said"), [
    (8, "<H", 1, "encrypted"), (10, "<H", 8, "compressed"), (10, "<H", 77, "compressed"),
    (20, "<I", 1 << 30, "does not lie"), (24, "<I", 1 << 30, "does not lie"),
    (42, "<I", 1 << 30, "does not lie"), (42, "<I", 1, "damaged"), (16, "<I", 7, "damaged"),
    (28, "<H", 60_000, "damaged|without"), (20, "<Q", (1 << 64) - 1, "damaged"),
])  # fmt: skip
def test_an_index_that_lies(tmp_path, at, form, value, said):
    path = zipped(tmp_path / "a.bin", RECORDS)
    data = bytearray(path.read_bytes())
    struct.pack_into(form, data, data.index(b"PK\1\2") + at, value)
    path.write_bytes(data)
    assert re.search(said, told(path, read_pickle))


def test_tensors_cannot_share_a_storage_without_end(tmp_path):
    named = b"".join(b"X\x04\x00\x00\x00%04d" % i + rebuilt() for i in range(4000))
    numbers = np.zeros(6, np.float32)
    path = files.zipped(tmp_path / "a.bin", b"\x80\x02}(" + named + b"u.", [numbers.tobytes()])
    assert told(path, read_pickle) == ""
    wide = rebuilt(shape=b"M\xff\xff", strides=b"K\x01", n=b"M\xff\xff")
    named = b"".join(b"X\x04\x00\x00\x00%04d" % i + wide for i in range(400))
    path = files.zipped(tmp_path / "a.bin", b"\x80\x02}(" + named + b"u.", [bytes(4 * 65535)])
    assert "its tensors have 104856000 bytes, and it has" in told(path, read_pickle)


# --- memory and time ----------------------------------------------------------------------------


def deep(path):
    content = b'{"a":' * (1 << 20)
    path.write_bytes(struct.pack("<Q", len(content)) + content)


def many(path):
    content = b"{%s}" % b",".join(
        b'"%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % i for i in range(140_000)
    )
    path.write_bytes(struct.pack("<Q", len(content)) + content)


def long_header(path):
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 1 << 30))
        file.truncate((1 << 30) + 8)


def bomb(path):
    """Write a few megabytes that unpack to a gigabyte."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("a/data.pkl", b"\x80\x02}.")
        with archive.open("a/byteorder", "w") as record:
            for _ in range(1024):
                record.write(bytes(MIB))


def bomb_that_lies(path):
    """Write the same with an index that says that it is short."""
    bomb(path)
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, data.rindex(b"PK\1\2") + 24, 6)
    path.write_bytes(data)


def many_records(path):
    entry = b"PK\1\2" + bytes(24) + struct.pack("<H", 0) + bytes(16)
    index = entry * 1_000_000
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, len(index), 0, 0)
    path.write_bytes(index + end)


def allocating(path):
    files.zipped(path, CODES["a place in the memo"], [])


def laughing(path):
    files.zipped(path, CODES["a key of laughs"], [])


def steps(path):
    files.zipped(path, b"N" + b"2" * (4 * MIB - 2) + b".", [])


def long_pickle(path):
    files.zipped(path, b"K\x01" * (2 * MIB - 1) + b".", [])


HUGE = {
    "x.safetensors": (deep, many, long_header),
    "x.bin": (bomb, bomb_that_lies, many_records, allocating, laughing, steps, long_pickle),
}  # fmt: skip


@pytest.mark.parametrize("make", every(3, [*HUGE["x.safetensors"], *HUGE["x.bin"]], "more files"))
def test_little_memory_is_taken(tmp_path, make):
    """In a process that cannot have more than a gigabyte, and takes less than 256 MiB for it."""
    path = tmp_path / next(name for name, makes in HUGE.items() if make in makes)
    make(path)
    program = f"""
        import re
        from pathlib import Path
        from edgespec import ModelError
        from edgespec.convert.heads.pickles import read_pickle
        from edgespec.convert.heads.tensors import read_safetensors
        path = Path({str(path)!r})
        read = read_pickle if path.suffix == ".bin" else read_safetensors
        peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
        before = peak()
        try:
            read(path)
        except ModelError as error:
            print(len(str(error)))
        print((peak() - before) // 1024)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)),
    )
    assert done.returncode == 0, done.stderr
    *length, taken = map(int, done.stdout.split())
    print(make.__name__, taken, "MiB")
    assert taken < 256, taken
    assert all(n < 500 for n in length), length
    assert length or make is many


# --- what lies beside ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "/x.safetensors", "..", "", "x.bin", "a/../x"]
)
def test_an_index_names_files_beside_it(tmp_path, name):
    (tmp_path / "x.safetensors").write_bytes(files.safetensors({}))
    index = tmp_path / "head" / "model.safetensors.index.json"
    index.parent.mkdir()
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    assert "expected is a .safetensors file in the same folder" in told(index.parent)


@pytest.mark.parametrize("value", [None, [], 3, {"a": 3}, {"a": None}, {"a": ["x"]}])
def test_an_index_of_other_types(tmp_path, value):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": value}))
    assert "weight_map" in told(tmp_path)


@pytest.mark.parametrize("config", [
    {"head_dim": 1 << 40}, {"num_hidden_layers": 10**12}, {"hidden_size": 1e300}, {"head_dim": -16},
    {"rope_theta": -5.0}, {"rope_scaling": {"type": "linear", "factor": 0}},
    {"rope_scaling": {"rope_theta": [1]}}, {"rope_scaling": {"type": "linear", "factor": 1e-320}},
    {"partial_rotary_factor": 1e300}, {"license": "x" * 1000}, {"vocab_size": True},
    {"eagle_aux_hidden_state_layer_ids": [1] * 600}, {"rope_scaling": {"type": ["x"] * 1000}},
    {"num_attention_heads": 1, "head_dim": None, "hidden_size": 1 << 24},
])  # fmt: skip
def test_a_config_with_numbers_that_cannot_be(tmp_path, config):
    folder = files.write(tmp_path, files.eagle3(), "specforge")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    assert told(folder)


def test_as_many_guesses_as_a_config_says(tmp_path):
    folder = files.write(tmp_path, files.mlp_speculator(tied=True), "mlp_speculator")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"n_predict": 10**12}))
    assert "n_predict must be at most 4096" in told(folder)


def test_offsets_that_are_someone_elses(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(files.safetensors({"a": np.zeros(4, np.float32)}) + bytes(8))
    assert "begins at byte 24" in told(path, read_safetensors)
