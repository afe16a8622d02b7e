"""ONNX folders that somebody made to do harm: each runs or is refused in a sentence, and none ends
the process or makes it wait.
"""

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import textwrap

import pytest

from edgespec import ConfigError, DecodeError, EngineConfig, EngineMissing, ModelError
from tests.helpers import hostile
from tests.helpers.head_makers import OF_STATES
from tests.helpers.selection import every, share

onnx = pytest.importorskip("onnx")
pytest.importorskip("gguf")
backend = pytest.importorskip("edgespec.backends.onnx", exc_type=EngineMissing)
folders = pytest.importorskip("tests.helpers.head_folders")
head_steps = pytest.importorskip("edgespec.backends.onnx.head_steps")
onnx_models = pytest.importorskip("tests.helpers.onnx_models")

pytestmark = pytest.mark.skipif(os.name != "posix", reason="pipes and links of POSIX")

TEXT = [3, 200, 17, 5, 5, 90, 250, 41]
LONGEST = onnx_models.LONGEST
CONFIG = {"max_position_embeddings": LONGEST, "eos_token_id": [0, 1], "model_type": "llama",
          "hidden_size": 8, "text_config": {"num_hidden_layers": 1}}  # fmt: skip
NAMES = {"inputs": {"past_key_names": "past_key_values.%d.key"},
         "outputs": {"present_key_names": "present.%d.key"}}  # fmt: skip
GENAI = {"model": {"context_length": LONGEST, "eos_token_id": 1, "decoder": NAMES}}
SETTINGS = {"chat_template": [{"name": "default", "template": "{{ 1 }}"}],
            "bos_token": {"content": "<s>"}, "eos_token": "<|im_end|>"}  # fmt: skip


def write_model(folder):
    """Write a decoder with all that may lie beside it."""
    path = onnx_models.save(folder)
    for name, content in (
        ("config.json", CONFIG), ("generation_config.json", {"eos_token_id": [1]}),
        ("genai_config.json", GENAI), ("tokenizer_config.json", SETTINGS),
    ):  # fmt: skip
        (path.parent / name).write_text(json.dumps(content))
    (path.parent / "chat_template.jinja").write_text("{{ 1 }}")
    return path.parent


def write(folder, kind):
    """Write what is sound: a head, or a model."""
    folder.mkdir()
    if kind == "model":
        return write_model(folder)
    return folders.converted(folder, OF_STATES[kind]())


def use(folder, kind):
    """Do with a folder what edgespec does with it."""
    config = EngineConfig(n_ctx=48, n_threads=1, provider="cpu")
    if kind == "model":
        path = folder / "model.onnx"
        backend.target_sizes(path)
        backend.inspect_metadata(path)
        model = backend.open_model(path, config)
        model.tokenizer.special()
        model.tokenizer.piece(5)
        model.decode([2, 3, 4, 2])
        model.close()
        return
    backend.is_head(folder)
    backend.head_facts(folder)
    head = backend.open_head(folder, config, folders.target())
    head.features.append(0, folders.states(len(TEXT), len(head.layers)))
    head.decode(TEXT)
    if head.max_depth != 1:
        head.grow([4], [-1])
    head.close()


PLACES = ["../x", "/dev/zero", "gone", "short", "pipe", "device", ".", "", "circle"]


def elsewhere(weights, folder, place, rng):
    """Let a graph's weights be in another file, which may be anything."""
    weights.ClearField("raw_data")
    weights.data_location = onnx.TensorProto.EXTERNAL
    for key, content in (
        ("location", place), ("offset", rng.choice(["0", "-1", "99999999999", "x"])),
        ("length", rng.choice(["4", "-1", "99999999999999", "1e3"])),
    ):  # fmt: skip
        weights.external_data.add(key=key, value=content)
    (folder / "short").write_bytes(bytes(4))
    (folder.parent / "x").write_bytes(bytes(1 << 20))
    if place == "pipe":
        os.mkfifo(folder / place)
    if place in ("circle", "device"):
        (folder / place).symlink_to({"circle": place, "device": "/dev/zero"}[place])


def with_another_graph(path, rng):
    """Change a graph where it has names, types, sizes, operators or weights in other files."""
    model = onnx.load(path, load_external_data=False)
    graph = model.graph
    value = rng.choice([*graph.input, *graph.output])
    tensor = value.type.tensor_type
    way = rng.choice(
        ["name", "type", "size", "rank", "operator", "note", "weights", "gone", "dims"]
    )
    if way == "name":
        value.name = rng.choice(["x", "", "\n" * 9, "logits", "input_ids"])
    elif way == "type":
        tensor.elem_type = rng.choice([0, 1, 6, 7, 8, 9, 10, 11, 16, 99])
    elif way == "size" and tensor.shape.dim:
        rng.choice(tensor.shape.dim).dim_value = rng.choice([-1, 0, 1, 3, 1 << 31, (1 << 62)])
    elif way == "rank":
        del tensor.shape.dim[rng.randrange(3) :]
    elif way == "operator":
        rng.choice(graph.node).op_type = rng.choice(["Lorem", "Reshape", "MatMul", "", "Loop"])
    elif way == "note":
        for prop in model.metadata_props:
            prop.value = str(rng.choice(hostile.VALUES))
    elif way == "gone":
        del graph.node[rng.randrange(len(graph.node))]
    elif graph.initializer and way == "dims":
        rng.choice(graph.initializer).dims.append(rng.choice([0, -1, 2, 1 << 40, 1 << 62]))
    elif graph.initializer:
        elsewhere(rng.choice(graph.initializer), path.parent, rng.choice(PLACES), rng)
    path.write_bytes(model.SerializeToString())


def spoil(folder, rng):
    """Change one file of a folder."""
    path = rng.choice(sorted(p for p in folder.iterdir() if p.is_file()))
    data = path.read_bytes()
    way = rng.choice(["cut", "bytes", "value", "value", "value", "other", "huge"])
    if way == "cut":
        path.write_bytes(hostile.cut(data, rng))
    elif way == "bytes":
        path.write_bytes(hostile.flipped(data, rng, 4000))
    elif way == "value" and path.suffix == ".json":
        path.write_text(json.dumps(hostile.with_another_value(json.loads(data), rng)))
    elif way == "value" and path.suffix == ".onnx":
        with_another_graph(path, rng)
    elif way == "other":
        path.unlink()
        hostile.take_the_place_of(path, rng)
    else:
        path.write_bytes(rng.choice([b"", b"[" * 100_000, b"{}" * 1000, data * 2, b"\xff" * 100]))


def try_all(folder, kind, first, last):
    """Use mutations of a folder; print the number of each, and what is no sentence."""
    with contextlib.redirect_stdout(sys.stderr):
        sound = write(folder / "sound", kind)
    use(sound, kind)
    for seed in range(first, last):
        print(seed, file=sys.stderr, flush=True)
        place = folder / "x" / "y"
        shutil.copytree(sound, place)
        spoil(place, random.Random(seed))
        try:
            use(place, kind)
        except (ModelError, ConfigError, DecodeError) as error:
            sentence = str(error).replace(str(place), "")
            if len(sentence) > 700 or not sentence.isprintable():
                print(seed, repr(sentence[:400]))
        shutil.rmtree(place.parent)
    print("lives")


@pytest.mark.parametrize("given", [None, "rows", True, 1.0, 0, -1, 1 << 25, 1 << 62])
def test_sizes_that_a_head_cannot_have(given):
    with pytest.raises(ValueError, match="a size of"):
        head_steps.size(given)


def test_a_note_cannot_promise_more_than_a_graph_has(tmp_path):
    folder = write(tmp_path / "head", "medusa")
    note = json.loads((folder / "head.json").read_text())
    (folder / "head.json").write_text(json.dumps(note | {"max_depth": 400}))
    with pytest.raises(ModelError, match=r"the graph guesses 3 tokens, and head\.json says 400"):
        use(folder, "medusa")


@pytest.mark.parametrize("place", PLACES)
def test_weights_that_are_elsewhere(tmp_path, place):
    path = onnx_models.save(tmp_path / "model")
    model = onnx.load(path)
    weights = max(model.graph.initializer, key=lambda each: len(each.raw_data))
    rng = random.Random(0)
    n_bytes = str(len(weights.raw_data))
    elsewhere(weights, path.parent, place, rng)
    for entry in weights.external_data:
        if entry.key != "location":
            entry.value = {"offset": "0", "length": n_bytes}[entry.key]
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError):
        backend.open_model(path, EngineConfig(n_ctx=48, n_threads=1))


@pytest.mark.parametrize("kind", every(3, ["model", *OF_STATES], "more kinds of heads"))
def test_nothing_ends_the_process(tmp_path, kind):
    program = f"""
        from pathlib import Path
        from tests.unit.backends.test_hostile_onnx import try_all
        try_all(Path({str(tmp_path)!r}), {kind!r}, 0, {share(200)})
    """
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "lives"  # the steps of writing heads come before
