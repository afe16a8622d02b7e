"""ONNX models that see: rows, cuts, trees and stops with pictures, the same text with drafts as
without, damaged folders, and eyes that name colours.
"""

import functools
import json
import shutil
import time
from dataclasses import replace

import numpy as np
import onnx
import pytest

import edgespec
from edgespec import (
    Aborted,
    ConfigError,
    ContextFull,
    DecodeError,
    EngineConfig,
    EngineMissing,
    ModelError,
)
from edgespec.backends import files
from edgespec.backends.tiles import tile_of, tiles_in
from edgespec.pictures import picture
from tests.helpers.colours import COLOURS
from tests.helpers.reading import read
from tests.helpers.seeing import (
    ASKED,
    check_colours,
    check_drafts,
    check_dropped,
    check_stops,
    serving,
)
from tests.helpers.selection import share
from tests.helpers.weights import FOLDER

onnxruntime = pytest.importorskip("onnxruntime")
onnx_eyes = pytest.importorskip("tests.helpers.onnx_eyes")
onnx_models = pytest.importorskip("tests.helpers.onnx_models")
backend = pytest.importorskip("edgespec.backends.onnx", exc_type=EngineMissing)
pytest.importorskip("PIL")

KINDS = onnx_eyes.KINDS
BEFORE, AFTER = [5, 9, 20, 11], [7, 12, 30]
DECODERS = {
    "trees": {"bias": True},
    "positions": {"shared": False},
    "rows": {"keep": True},
    "half": {"half": True},
}
"""The options of tiny decoders: all take embeddings, and differ in their other inputs."""


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    """Return a function that writes a tiny model once, and returns the path of its decoder."""
    folder = tmp_path_factory.mktemp("tiny")

    @functools.cache
    def written(kind, options):
        source = onnx_models.save(folder / f"{options}-text", **DECODERS[options]).parent
        path = onnx_eyes.split(source, folder / f"{kind}-{options}", kind)
        onnx_eyes.add_random_encoder(path, kind)
        return path

    return lambda kind, options="trees": written(kind, options)


@pytest.fixture(params=KINDS)
def model(request, decoder):
    """Return a model with an empty cache."""
    made = backend.OnnxModel(decoder(request.param), EngineConfig(n_ctx=400, n_threads=1))
    yield made
    made.close()


def noise(seed=0):
    """Return a picture that is cut into several tiles by families that cut."""
    size = onnx_eyes.SIDE, 2 * onnx_eyes.SIDE, 3
    return np.random.default_rng(seed).integers(0, 256, size).astype(np.uint8)


def shown(model, seed=0, owner=""):
    return model.eyes.read(picture(noise(seed)), owner)


def close(rows, others):
    """Return whether logits of about 50 are equal but for rounding."""
    return np.allclose(rows, others, atol=1e-3)


@pytest.mark.parametrize("options", DECODERS)
def test_rows_of_text_are_those_of_the_model_that_was_split(decoder, options):
    path = decoder("llava", options)
    config, rows = EngineConfig(n_ctx=64, n_threads=1), []
    for each in (path, path.parents[2] / f"{options}-text/model.onnx"):
        model = backend.OnnxModel(each, config)
        model.decode(BEFORE, 0)
        rows.append(model.decode(AFTER, 3).logits.copy())
        model.close()
    np.testing.assert_array_equal(*rows)


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_is_read_as_by_the_graphs_alone(decoder, kind):
    """The whole text is given to onnxruntime in one call, with the encoder's output as it is."""
    path = decoder(kind, "positions")
    model = backend.OnnxModel(path, EngineConfig(n_ctx=400, n_threads=1))
    tokens = [*BEFORE, *shown(model), *AFTER]
    rows = read(model, tokens, 3)

    def graph(name):
        return onnxruntime.InferenceSession(path.with_name(f"{name}.onnx"))

    pixels = np.stack([model.eyes.family.normalised(t) for t in model.eyes.family.tiles(noise())])
    given = {"pixel_values": pixels}
    if kind == "idefics3":
        mask = np.ones((1, len(pixels), *pixels.shape[2:]), np.bool_)
        given = {"pixel_values": pixels[None], "pixel_attention_mask": mask}
    features = graph("vision_encoder").run(None, given)[0]
    ids = np.array([[max(token, 0) for token in tokens]])
    embeds = graph("embed_tokens").run(None, {"input_ids": ids})[0]
    embeds[0, [token < 0 for token in tokens]] = features.reshape(-1, features.shape[-1])
    session, n = graph("decoder_model_merged"), len(tokens)
    feeds = {"inputs_embeds": embeds, "attention_mask": np.ones((1, n), np.int64)}
    feeds["position_ids"] = np.arange(n)[None]
    for each in session.get_inputs():
        if each.name.startswith("past"):
            feeds[each.name] = np.zeros((1, each.shape[1], 0, each.shape[3]), np.float32)
    expected = session.run(["logits"], feeds)[0][0, -3:]
    np.testing.assert_allclose(rows, expected, atol=1e-4)
    model.close()


def test_the_tokens_around_pictures(model):
    tokens = shown(model)
    names = [model.tokenizer.token_text(token).decode() for token in tokens if token >= 0]
    if model.eyes.family.kind == "llava":
        assert not names
    else:
        beside = "<fake_token_around_image>"
        assert [name for name in names if name.startswith("<")] == [
            beside, "<row_1_col_1>", beside, "<row_1_col_2>", beside, "<global-img>", beside,
        ]  # fmt: skip
        assert model.eyes.most_tokens == 5 * onnx_eyes.N_TOKENS
    sizes = [len(place) for place in tiles_in(tokens)]
    assert set(sizes) == {onnx_eyes.N_TOKENS}


def test_another_picture_gives_other_rows_and_the_same_one_is_encoded_once(model):
    rows = read(model, [*BEFORE, *shown(model, 1), *AFTER], 3)
    n_encoded = model.eyes.n_encoded
    model.truncate(0)
    np.testing.assert_array_equal(read(model, [*BEFORE, *shown(model, 1), *AFTER], 3), rows)
    assert model.eyes.n_encoded == n_encoded
    model.truncate(0)
    assert not np.allclose(read(model, [*BEFORE, *shown(model, 2), *AFTER], 3), rows, atol=0.1)
    assert model.eyes.n_encoded == 2 * n_encoded
    assert shown(model, 1, "me") != shown(model, 1, "them")


def test_pieces_of_a_picture_and_of_the_text_after_it(model):
    tokens = [*BEFORE, *shown(model)]
    rows = read(model, [*tokens, *AFTER], 3)
    whole = model.capabilities
    try:
        for most in (5, 7, 16):
            model.truncate(0)
            model.capabilities = replace(whole, max_batch=most)
            assert close(read(model, [*tokens, *AFTER], 3), rows)
    finally:
        model.capabilities = whole
    model.truncate(len(tokens))
    singly = [model.decode([token]).logits[0].copy() for token in AFTER]
    assert close(singly, rows)


def test_a_cut_text_goes_on_as_if_it_had_never_been_longer(model):
    one, two = shown(model, 0), shown(model, 1)
    tokens = [*BEFORE, *one, *AFTER, *two, *AFTER]
    rows = read(model, tokens, 3)
    for n in (len(tokens) - 2, len(tokens) - 3, len(BEFORE) + len(one) + 1, len(BEFORE), 2, 0):
        model.truncate(n)
        rest = tokens[n:]
        assert close(read(model, rest, min(len(rest), 3))[-2:], rows[-2:]), n


def test_trees_after_a_picture(model):
    assert model.placement["trees"] == "yes"
    tokens = [*BEFORE, *shown(model)]
    line = read(model, [*tokens, 8, 11, 12, 7, 6], 5)
    model.truncate(len(tokens))
    rows = model.decode_tree([8, 9, 10, 11, 12], (-1, 0, -1, 2)).logits
    assert close(rows[[0, 3, 4]], line[:3])
    model.keep((2, 3))
    assert close(model.decode([7, 6], 2).logits, line[3:])
    model.truncate(len(tokens))
    model.decode_tree([8, 9, 10, 11, 12], (-1, 0, -1, 2))
    model.keep((2, 3))
    again = read(model, [*shown(model, 3), 7, 6], 2)
    model.truncate(0)
    expected = read(model, [*tokens, 8, 11, 12, *shown(model, 3), 7, 6], 2)
    assert close(again, expected)


def test_kept_tokens_that_wait_are_read_before_a_picture(model):
    tokens = [*BEFORE, *shown(model), *AFTER]
    rows = read(model, tokens, 3)
    model.truncate(0)
    model.decode(BEFORE[:-1], 0)
    model._unread = BEFORE[-1:]  # as on a GPU after a tree
    assert close(read(model, tokens[len(BEFORE) :], 3), rows)


@pytest.mark.parametrize("stage", ["before", "while it is encoded", "while it is evaluated"])
def test_a_stopped_picture_leaves_the_text_before_it(model, stage, monkeypatch):
    read(model, BEFORE)
    tokens = shown(model, 10 + len(stage))
    place = tiles_in(tokens)[0]
    picked, stopped = tokens[place.start : place.stop], []
    if stage == "before":
        stopped.append(1)
    else:
        stops = model.eyes if stage == "while it is encoded" else model
        run, calls = stops._run, []

        def stopping(*given):
            calls.append(1)
            if len(calls) == (2 if stops is model else 1):  # after a part of the tile
                stopped.append(1)
            return run(*given)

        monkeypatch.setattr(stops, "_run", stopping)
        model.capabilities = replace(model.capabilities, max_batch=5)
    with pytest.raises(Aborted):
        model.decode(picked, 0, lambda: "cancelled" if stopped else None)
    assert model.n_past == len(BEFORE)
    assert (tile_of(picked).embeddings is None) is (stage != "while it is evaluated")
    monkeypatch.undo()
    rows = read(model, AFTER, 3)
    model.truncate(0)
    assert close(read(model, [*BEFORE, *AFTER], 3), rows)


def test_an_encoding_ends_when_it_is_stopped(tmp_path, decoder):
    """The encoder takes seconds; it is stopped from the thread that watches."""
    folder = shutil.copytree(decoder("llava").parents[1], tmp_path / "slow")
    onnx_eyes.slow_down(folder / "onnx/vision_encoder.onnx", 2500, 60)
    model = backend.OnnxModel(
        folder / "onnx/decoder_model_merged.onnx", EngineConfig(n_ctx=64, n_threads=1)
    )
    began = time.perf_counter()
    stop = began + 0.2
    tokens = shown(model)
    with pytest.raises(Aborted, match="while a picture was encoded"):
        model.decode(tokens, 0, lambda: "cancelled" if time.perf_counter() > stop else None)
    assert model.n_past == 0
    assert model.eyes.n_encoded == 0
    model.close()


def test_a_client_that_stops_does_not_wait_for_its_picture(decoder, monkeypatch):
    with edgespec.load(decoder("idefics3"), draft=None, n_ctx=400, n_threads=1) as engine:
        check_stops(engine, [*BEFORE, *engine.read(picture(noise(50))), *AFTER], monkeypatch)


def test_a_full_context_is_told_before_anything_is_encoded(model):
    tokens = shown(model, 20)
    place = tiles_in(tokens)[0]
    read(model, [5] * (model.n_ctx - len(place) + 1))
    with pytest.raises(ContextFull, match=f"{len(place)} tokens do not fit"):
        model.decode(tokens[place.start : place.stop], 0)
    assert not model.eyes.n_encoded
    with pytest.raises(ValueError, match="one tile"):
        model.decode(tokens[place.start : place.stop - 1], 0)


def test_slots_with_pictures_beside_text(model):
    from edgespec.backends.base import BatchItem

    alone = read(model, [*BEFORE, *shown(model), *AFTER], 3)
    slots = model.batched()
    slots.add(2, 300)
    read(slots.models[1], [*BEFORE, *shown(model)])
    read(slots.models[2], [*BEFORE, 9, 9])
    joint = slots.decode([BatchItem(1, AFTER, 3), BatchItem(2, AFTER, 3)])
    assert close(joint[0].logits, alone)
    assert not np.allclose(joint[1].logits, alone, atol=1e-2)
    assert model.eyes.n_encoded == len(tiles_in(shown(model)))
    slots.close()


def test_embeddings_are_dropped_by_bytes_and_computed_again(model):
    check_dropped(model, shown(model, 30), shown(model, 31))


@pytest.fixture(scope="module")
def draft(tmp_path_factory, decoder):
    """Return a draft model that often agrees with the tiny models."""
    source = decoder("llava").parents[2] / "trees-text"
    folder = shutil.copytree(source, tmp_path_factory.mktemp("draft") / "model")
    shutil.copy(decoder("llava").parents[1] / "tokenizer.json", folder)
    made, rng = onnx.load(folder / "model.onnx"), np.random.default_rng(9)
    for each in made.graph.initializer:
        array = onnx.numpy_helper.to_array(each)
        if array.dtype == np.float32 and array.ndim == 2:
            changed = array + 0.03 * array.std() * rng.standard_normal(array.shape)
            each.CopyFrom(onnx.numpy_helper.from_array(changed.astype(np.float32), each.name))
    onnx.save(made, folder / "model.onnx")
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_text_with_drafts_is_the_text_without(decoder, draft, kind):
    def load(drafts, spec):
        return edgespec.load(
            decoder(kind),
            draft=draft if drafts else None,
            n_ctx=400,
            n_threads=1,
            prompt_cache="memory",
            speculative_config=spec,
        )

    no_end = {0: -99, 1: -99}
    check_drafts(load, noise, (4, 30), share(30, 8), max_tokens=48, logit_bias=no_end)


def changed(folder, name, change):
    """Change a JSON file of a model."""
    path = folder / name
    told = json.loads(path.read_text())
    change(told)
    path.write_text(json.dumps(told))


def spoil(name):
    """Return a function that spoils the folder of a model."""

    def encoder(folder, **options):
        path, width = folder / "onnx/vision_encoder.onnx", options.get("width", 32)
        last = np.full((onnx_eyes.HIDDEN, width), options.get("value", 0.01))
        onnx_eyes.write_encoder(path, options.get("kind", "llava"), last)

    def graph(folder, change):
        path = folder / "onnx/vision_encoder.onnx"
        made = onnx.load(path)
        change(made.graph)
        onnx.save(made, path)

    def rename_input(graph):
        graph.input[0].name = graph.node[0].input[0] = "pixels"

    def half_of_the_tokens(folder):
        encoder(folder)
        path = folder / "onnx/vision_encoder.onnx"
        made = onnx.load(path)
        made.graph.node[-1].output[0] = "all"
        for each, value in (("from", 0), ("to", 8), ("axis", 1)):
            made.graph.initializer.append(onnx.numpy_helper.from_array(np.array([value]), each))
        cut = onnx.helper.make_node("Slice", ["all", "from", "to", "axis"], ["image_features"])
        made.graph.node.append(cut)
        del made.graph.output[0].type.tensor_type.shape.dim[:]
        onnx.save(made, path)

    config, settings = "config.json", "preprocessor_config.json"
    return {
        "encoder": lambda f: (f / "onnx/vision_encoder.onnx").unlink(),
        "truncated": lambda f: (f / "onnx/vision_encoder.onnx").write_bytes(b"\x08\x09garbage"),
        "width": lambda f: encoder(f, width=48),
        "infinite": lambda f: encoder(f, value=np.nan),
        "tokens": half_of_the_tokens,
        "input": lambda f: graph(f, rename_input),
        "family": lambda f: changed(f, config, lambda c: c.update(model_type="qwen2_vl")),
        "settings": lambda f: (f / settings).unlink(),
        "json": lambda f: (f / settings).write_text("{"),
        "size": lambda f: changed(f, settings, lambda c: c.update(size={"height": 9, "width": 9})),
        "embedding": lambda f: (f / "onnx/embed_tokens.onnx").unlink(),
        "not an embedding": lambda f: shutil.copy(
            f / "onnx/vision_encoder.onnx", f / "onnx/embed_tokens.onnx"
        ),
        "narrow embedding": lambda f: shutil.copy(
            f.parent / "narrow.onnx", f / "onnx/embed_tokens.onnx"
        ),
    }[name]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("encoder", "there is no vision_encoder….onnx in .*; fetch it from the same repository"),
        ("truncated", "is damaged, incomplete or no ONNX model"),
        ("width", "makes embeddings of 48 numbers, this model reads 32"),
        ("input", "takes pixels, tensor"),
        ("family", "model_type 'qwen2_vl', and pictures are prepared for the families idefics3"),
        ("settings", "there is no preprocessor_config.json with the model"),
        ("json", "is no JSON"),
        ("size", "reads pictures of 56x56 pixels, and preprocessor_config.json makes 9x9"),
    ],
)
def test_a_folder_that_cannot_see_reads_text_and_says_why(decoder, tmp_path, name, message):
    folder = shutil.copytree(decoder("llava").parents[1], tmp_path / "model")
    spoil(name)(folder)
    with edgespec.load(folder, draft=None, n_ctx=64, n_threads=1) as engine:
        assert engine.eyes is None
        done = engine.run(BEFORE, edgespec.SamplingParams(max_tokens=2))
        assert [event.completion for event in done][-1].token_ids
        with pytest.raises(ConfigError, match=f"reads text alone: .*{message}") as error:
            engine.chat().send(["What is it?", noise()])
        assert "\n" not in str(error.value)
    if name != "encoder":  # one that is named has to work
        named = folder / "onnx/vision_encoder.onnx"
        with pytest.raises((ModelError, ConfigError), match=message):
            edgespec.load(folder, draft=None, n_ctx=64, mmproj=named)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tokens", "makes 8 embeddings of a picture, and the model's settings say 16"),
        ("infinite", "makes numbers of the picture that are not finite"),
    ],
)
def test_what_only_an_encoding_shows(decoder, tmp_path, name, message):
    folder = shutil.copytree(decoder("llava").parents[1], tmp_path / "model")
    spoil(name)(folder)
    with edgespec.load(folder, draft=None, n_ctx=64, n_threads=1) as engine:
        with pytest.raises((ConfigError, DecodeError), match=message):
            engine.chat().send([noise(), "x"], max_tokens=2)
        assert engine.chat().send("x", max_tokens=2).token_ids


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("embedding", "reads embeddings, and there is no embed_tokens….onnx next to it"),
        ("not an embedding", "takes pixel_values and returns .* input_ids and numbers"),
        ("narrow embedding", "makes embeddings of 16 numbers, .* reads 32"),
    ],
)
def test_a_decoder_without_its_embedding_is_refused(decoder, tmp_path, name, message):
    folder = shutil.copytree(decoder("llava").parents[1], tmp_path / "model")
    node, value = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    table = onnx.numpy_helper.from_array(np.zeros((64, 16), np.float32), "table")
    graph = onnx.helper.make_graph(
        [node("Gather", ["table", "input_ids"], ["inputs_embeds"])],
        "embedding",
        [value("input_ids", onnx.TensorProto.INT64, [1, "n"])],
        [value("inputs_embeds", onnx.TensorProto.FLOAT, [1, "n", 16])],
        [table],
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    made = onnx.helper.make_model(graph, opset_imports=opset, ir_version=9)
    onnx.save(made, tmp_path / "narrow.onnx")
    spoil(name)(folder)
    with pytest.raises(ModelError, match=message):
        edgespec.load(folder, draft=None, n_ctx=64)


def test_a_stage_that_is_missing_in_the_hubs_cache_is_named_with_what_fetches_it(decoder, tmp_path):
    home = tmp_path / "models--org--m/snapshots/abc"
    shutil.copytree(decoder("llava").parents[1], home)
    path = home / "onnx/decoder_model_merged.onnx"
    fetch = "`edgespec pull hf:org/m/onnx/decoder_model_merged.onnx`"
    (home / "onnx/vision_encoder.onnx").unlink()
    with edgespec.load(path, draft=None, n_ctx=64) as engine:
        assert "there is no vision_encoder….onnx in" in engine.target.why_blind
        assert engine.target.why_blind.endswith(f"; fetch it with {fetch}")
    (home / "onnx/embed_tokens.onnx").unlink()
    with pytest.raises(ModelError, match=f"no embed_tokens….onnx next to it.*; fetch .* {fetch}"):
        edgespec.load(path, draft=None, n_ctx=64)


def test_positions_of_several_axes_are_refused(decoder, tmp_path):
    folder = shutil.copytree(decoder("llava", "positions").parents[1], tmp_path / "model")
    path = folder / "onnx/decoder_model_merged.onnx"
    made = onnx.load(path)
    shape = ["axes", "batch", "sequence"]
    value = onnx.helper.make_tensor_value_info("position_ids", onnx.TensorProto.INT64, shape)
    inputs = [value if each.name == "position_ids" else each for each in made.graph.input]
    del made.graph.input[:]
    made.graph.input.extend(inputs)
    onnx.save(made, path)
    with pytest.raises(ModelError, match="several axes, such as Qwen2-VL"):
        edgespec.load(folder, draft=None)


def test_settings_that_leave_pictures_out(decoder):
    path = decoder("llava")
    with (
        edgespec.load(path, draft=None, n_ctx=64, mmproj="none") as engine,
        pytest.raises(ConfigError, match="left out, because mmproj is none"),
    ):
        engine.chat().send(["x", noise()])
    text = path.parents[2] / "trees-text/model.onnx"
    with (
        edgespec.load(text, draft=None, n_ctx=64) as engine,
        pytest.raises(ConfigError, match="the decoder reads token ids"),
    ):
        engine.chat().send(["x", noise()])
    encoder = path.with_name("vision_encoder.onnx")
    with pytest.raises(ConfigError, match="reads token ids"):
        edgespec.load(text, draft=None, mmproj=encoder)
    with pytest.raises(ConfigError, match=r"vision_encoder\.onnx is a projector"):
        edgespec.load(encoder)


def test_an_encoder_next_to_a_decoder_that_reads_ids(decoder, tmp_path):
    seeing = decoder("llava")
    folder = shutil.copytree(seeing.parents[1], tmp_path / "model")
    for graph in (folder / "onnx").glob("*.onnx"):
        if not files.is_projector(graph.name):
            graph.unlink()
    shutil.copy(seeing.parents[2] / "trees-text/model.onnx", path := folder / "onnx/model.onnx")
    why = "the decoder reads token ids, so pictures have no place in it"
    info = edgespec.inspect(path)
    assert (info.projector, info.why_blind) == (None, why)
    with edgespec.load(path, draft=None, n_ctx=64) as engine:
        assert why in engine.target.why_blind
    finding = {each.subject: each for each in edgespec.diagnose(path, None, budget_s=1)}["pictures"]
    assert (finding.level, why in finding.text) == ("problem", True)
    (folder / "onnx/vision_encoder.onnx").unlink()
    assert edgespec.inspect(path).why_blind == ""


def test_the_files_of_a_model(decoder, tmp_path):
    folder = shutil.copytree(decoder("llava").parents[1], tmp_path / "model") / "onnx"
    plain = folder / "decoder_model_merged.onnx"
    assert files.only_graph(folder.parent) == plain
    assert {path.name for path in files.parts(plain)} == {plain.name, "embed_tokens.onnx"}
    for name in ("decoder_model_merged", "embed_tokens"):
        shutil.copy(folder / f"{name}.onnx", folder / f"{name}_q4.onnx")
    (folder / "embed_tokens_q4.onnx_data").write_bytes(b"")
    small = folder / "decoder_model_merged_q4.onnx"
    assert files.stage(small, files.EMBEDDING).name == "embed_tokens_q4.onnx"
    assert files.stage(small, files.VISION).name == "vision_encoder.onnx"
    assert {path.name for path in files.parts(small)} == {
        small.name, "embed_tokens_q4.onnx", "embed_tokens_q4.onnx_data",
    }  # fmt: skip
    (folder / "vision_encoder.onnx").rename(folder / "vision_encoder_fp16.onnx")
    assert files.projectors(small) == [folder / "vision_encoder_fp16.onnx"]


def test_inspect_and_doctor_name_the_encoder(decoder):

    path = decoder("idefics3")
    info = edgespec.inspect(path)
    encoder = path.with_name("vision_encoder.onnx")
    assert (
        info.projector.in_words() == "vision_encoder.onnx (idefics3), at most 80 tokens a picture"
    )
    assert info.projector.size == encoder.stat().st_size
    assert edgespec.inspect_projector(encoder) == info.projector
    said = [each.text for each in edgespec.diagnose(path, None)]
    assert any("it sees with vision_encoder.onnx (idefics3), at most 80" in text for text in said)


@pytest.fixture(scope="module")
def seeing(tmp_path_factory):
    """Return a function that returns the folder of SmolLM2 with eyes that see colours."""
    source = FOLDER / "smollm2-135m-onnx-int4"
    if not source.is_dir():
        pytest.skip("smollm2-135m-onnx-int4 is not in $EDGESPEC_TEST_MODELS")
    folder = tmp_path_factory.mktemp("smollm2")

    @functools.cache
    def made(kind):
        path = onnx_eyes.split(source, folder / kind, kind)
        onnx_eyes.add_fitted_encoder(path, kind)
        return path.parents[1]

    return made


@pytest.mark.model
@pytest.mark.parametrize("kind", KINDS)
def test_eyes_name_colours(seeing, kind):
    with edgespec.load(seeing(kind), draft=None, n_ctx=1024, n_threads=1) as engine:
        check_colours(engine, onnx_eyes.flat, least=9)


@pytest.mark.model
def test_rows_of_smollm2_are_those_of_the_graph_that_was_split(seeing):
    rows, config = [], EngineConfig(n_ctx=64, n_threads=1)
    for path in (seeing("llava") / "onnx/decoder_model_merged.onnx",
                 FOLDER / "smollm2-135m-onnx-int4/model.onnx"):  # fmt: skip
        model = backend.OnnxModel(path, config)
        tokens = model.tokenizer.encode("The capital of France is Paris, and the sky is blue.")
        rows += [model.decode(tokens, 5).logits.copy(), model.decode([314]).logits.copy()]
        rows.append(model.decode_tree([314, 40, 41], (-1, -1)).logits.copy())
        model.close()
    for mine, others in zip(rows[:3], rows[3:], strict=True):
        np.testing.assert_array_equal(mine, others)


@pytest.mark.model
def test_the_command_line_shows_pictures(seeing, tmp_path, monkeypatch):
    from click.testing import CliRunner
    from PIL import Image

    from edgespec_cli.main import cli

    monkeypatch.chdir(tmp_path)
    for name in COLOURS:
        Image.fromarray(onnx_eyes.flat(COLOURS[name])).save(f"{name}.png")
    model = ("-m", str(seeing("idefics3")), "-md", "none", "-c", "1024", "-t", "1")
    asked = ("--temp", "0", "-n", "16")

    def said(*args, lines="", code=0):
        result = CliRunner().invoke(cli, args, input=lines, prog_name="edgespec")
        assert result.exit_code == code, result.output
        return result

    shown = "".join(f"/clear\n/image {name}.png\n{ASKED}\n" for name in COLOURS)
    answers = said("chat", *model, *asked, lines=shown).stdout.lower()
    assert sum(name in answers for name in COLOURS) >= 9
    assert "red" in said("run", *model, *asked, "--image", "red.png", ASKED).stdout.lower()
    blind = said("run", *model, "--mmproj", "none", "--image", "red.png", "hi", code=2)
    assert "reads text alone: its projector is left out" in blind.stderr


@pytest.mark.model
def test_an_api_shows_pictures(seeing):
    from tests.models.test_pictures import data_url

    named = 0
    with edgespec.load(seeing("llava"), draft=None, n_ctx=1024, n_threads=1) as engine:
        client = serving(engine)
        for name, colour in COLOURS.items():
            content = [
                {"type": "image_url", "image_url": {"url": data_url(onnx_eyes.flat(colour))}},
                {"type": "text", "text": ASKED},
            ]
            body = {"temperature": 0, "max_tokens": 16}
            body["messages"] = [{"role": "user", "content": content}]
            said = client.post("/v1/chat/completions", json=body).json()
            named += name in said["choices"][0]["message"]["content"].lower()
    assert named >= 9
