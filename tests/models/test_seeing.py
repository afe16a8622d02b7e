"""Pictures in the cache of tiny models, for each kind of projector: rows, cuts, trees, stops."""

import contextlib
import ctypes
import functools
from dataclasses import replace

import numpy as np
import pytest

from edgespec import Aborted, CannotTruncate, ConfigError, ContextFull, EngineConfig
from edgespec.backends.tiles import tile_of, tiles_in
from edgespec.pictures import picture
from tests.helpers import libllama, projector_files
from tests.helpers.gguf_files import UINT32, gguf_bytes
from tests.helpers.projector_files import KINDS, noise
from tests.helpers.reading import read
from tests.helpers.seeing import check_dropped

llama_cpp = libllama.require()
if llama_cpp.is_fork():
    pytest.skip("ik_llama.cpp's library shows no pictures", allow_module_level=True)

from edgespec.backends.llama_cpp import mtmd  # noqa: E402
from edgespec.backends.llama_cpp.declarations import AbortCallback  # noqa: E402
from edgespec.backends.llama_cpp.library import lib  # noqa: E402

pytestmark = pytest.mark.llama_cpp

WINDOWED = " with a window"
NAMES = (*KINDS, f"gemma3{WINDOWED}")
BEFORE, AFTER = [1, 50, 60, 70], [80, 90, 100]


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Return a function that returns the model with a kind of projector, opened once."""
    folder = tmp_path_factory.mktemp("seeing")

    @functools.cache
    def model(name):
        kind = name.removesuffix(WINDOWED)
        window = 32 if name.endswith(WINDOWED) else 4096
        text = projector_files.write_text(folder / f"{name}.gguf", kind, window=window)
        path = projector_files.write(folder / f"mmproj-{name}.gguf", kind)
        return llama_cpp.LlamaCppModel(text, settings(path))

    made = model
    yield made
    for name in NAMES:
        made(name).close()


def settings(path, **more):
    """Return settings with which a row does not depend on the number of rows."""
    options = {"n_ctx": 512, "n_threads": 1, "flash_attn": "on", "use_extra_bufts": False}
    return EngineConfig(**options, type_v="bf16", mmproj=str(path), **more)


@pytest.fixture(params=NAMES)
def model(request, opened):
    """Return a model with an empty cache."""
    made = opened(request.param)
    made.truncate(0)
    made.kind = request.param.removesuffix(WINDOWED)
    return made


def shown(model, seed=0):
    return model.eyes.read(picture(noise(model.kind, seed)))


def close(rows, others):
    """Return whether rows are equal but for the rounding of float32 in matrices."""
    return np.allclose(rows, others, atol=1e-5)


def test_a_tile_is_evaluated_bit_for_bit_as_by_the_helper_of_llama_cpp(model):
    tokens = shown(model)
    rows = read(model, [*BEFORE, *tokens, *AFTER], 3)
    after_picture = model.position(model.n_past) - len(AFTER)
    assert after_picture == with_helper(model, tokens)
    batch = model._batch.fill(AFTER, after_picture, 3)
    assert model._decode_abortable(batch, None) == 0
    np.testing.assert_array_equal(model._rows.first(3).logits, rows)
    model._clear()


def with_helper(model, tokens):
    """Let mtmd's helper evaluate the tiles after the other tokens; return the next position."""
    pointer, number = ctypes.c_void_p, ctypes.c_int32
    helper = mtmd.opened().mtmd_helper_decode_image_chunk
    helper.restype = number
    helper.argtypes = [pointer] * 4 + [number] * 3 + [ctypes.POINTER(number), pointer, pointer]
    eyes, start = model.eyes, ctypes.c_int32(len(BEFORE))
    model.truncate(0)
    model.decode(BEFORE, 0)
    tiles = [tile_of(tokens[place.start : place.stop]) for place in tiles_in(tokens)]
    shown = tiles[0].picture
    chunks = eyes._tokenized(shown.width, shown.height, np.ascontiguousarray(shown.pixels()))
    around = [each for each, _ in eyes._listed(chunks)]
    images = [chunk for _, chunk in eyes._listed(chunks)]
    left = iter(tiles)
    for text, chunk in zip(around, images, strict=True):
        if chunk is None:
            batch = model._batch.fill(list(text), start.value, 0)
            assert model._decode_abortable(batch, None) == 0
            start.value += len(text)
        else:
            embeddings = np.ascontiguousarray(next(left).embeddings)
            code = helper(
                eyes._context, model._context, chunk, embeddings.ctypes.data, start.value,
                model.branches.text, 512, ctypes.byref(start), None, None,
            )  # fmt: skip
            assert code == 0
    eyes._mtmd.mtmd_input_chunks_free(chunks)
    return start.value


def test_another_picture_gives_other_rows_and_the_same_one_is_encoded_once(model):
    rows = read(model, [*BEFORE, *shown(model, 1), *AFTER], 3)
    n_encoded = model.eyes.n_encoded
    model.truncate(0)
    np.testing.assert_array_equal(read(model, [*BEFORE, *shown(model, 1), *AFTER], 3), rows)
    assert model.eyes.n_encoded == n_encoded
    model.truncate(0)
    assert not np.allclose(read(model, [*BEFORE, *shown(model, 2), *AFTER], 3), rows, atol=0.1)
    assert model.eyes.n_encoded > n_encoded


def test_the_same_picture_of_another_owner_is_another_one(model):
    pixels = picture(noise(model.kind, 3))
    mine, theirs = (model.eyes.read(pixels, owner) for owner in ("me", "them"))
    assert len(mine) == len(theirs)
    assert mine != theirs
    assert mine == model.eyes.read(pixels, "me")


def test_chains_and_single_tokens_after_a_picture(model):
    tokens = [*BEFORE, *shown(model)]
    rows = read(model, [*tokens, *AFTER], 3)
    model.truncate(len(tokens))
    singly = [model.decode([token]).logits[0].copy() for token in AFTER]
    assert close(singly, rows)


def test_a_cut_text_goes_on_as_if_it_had_never_been_longer(model):
    one, two = shown(model, 0), shown(model, 1)
    tokens = [*BEFORE, *one, *AFTER, *two, *AFTER]
    rows = read(model, tokens, 3)
    for n in (len(tokens) - 2, len(tokens) - 3, len(BEFORE) + len(one) + 1, len(BEFORE), 2, 0):
        model.truncate(n)
        assert model.n_past == n
        rest = tokens[n:]
        assert close(read(model, rest, min(len(rest), 3))[-2:], rows[-2:]), n


def test_no_text_is_cut_inside_a_tile(model):
    tokens = [*BEFORE, *shown(model)]
    read(model, [*tokens, *AFTER])
    place = tiles_in(tokens)[-1]
    with pytest.raises(CannotTruncate, match=rf"{len(place)} tokens of a picture"):
        model.truncate(place.stop - 1)
    assert model.n_past == len(tokens) + len(AFTER)


def test_trees_after_a_picture_and_when_parked_cells_are_packed(model):
    tokens = [*BEFORE, *shown(model)]
    read(model, [*tokens, *AFTER])
    model.truncate(len(tokens))
    line = read(model, [80, 91, 92, 7, 8], 5)
    for packs in (False, True):
        model.truncate(len(tokens))
        rows = model.decode_tree([80, 90, 100, 91, 92], (-1, 0, -1, 2)).logits
        np.testing.assert_array_equal(rows[[0, 3, 4]], line[:3])
        model.keep((2, 3))
        assert model.branches.n_parked == 2
        if packs:
            model.branches.pack(model.position(model.n_past))
            assert not model.branches.n_parked
        np.testing.assert_array_equal(model.decode([7, 8], 2).logits, line[3:])


def test_pictures_among_parked_cells(model):
    tokens = [*BEFORE, *shown(model, 0), 80, 91, 92, *shown(model, 1), *AFTER]
    rows = read(model, tokens, 3)
    n = len(BEFORE) + len(shown(model))
    model.truncate(n)
    model.decode_tree([80, 90, 100, 91, 92], (-1, 0, -1, 2))
    model.keep((2, 3))
    read(model, tokens[n + 3 : -3])
    model.branches.pack(model.position(model.n_past))
    np.testing.assert_array_equal(model.decode(AFTER, 3).logits, rows)


@pytest.mark.parametrize("stage", ["before", "while it is encoded", "while it is evaluated"])
def test_a_stopped_picture_leaves_the_text_before_it(model, stage):
    read(model, BEFORE)
    tokens = shown(model, 10 + len(stage))
    place = tiles_in(tokens)[0]
    picked = tokens[place.start : place.stop]
    if stage == "while it is evaluated":
        model.eyes.encode(tile_of(picked))
    calls = []

    def abort():
        calls.append(1)
        n = {"before": 0, "while it is encoded": 1, "while it is evaluated": 0}[stage]
        return "cancelled" if len(calls) > n else None

    with pytest.raises(Aborted):
        model.decode(picked, 0, abort)
    assert model.n_past == len(BEFORE)
    if stage == "while it is encoded":
        assert tile_of(picked).embeddings is None
    rows = read(model, AFTER, 3)
    model.truncate(0)
    np.testing.assert_array_equal(read(model, [*BEFORE, *AFTER], 3)[-1], rows[-1])


@contextlib.contextmanager
def stopping(model, after):
    """Let the engine stop an evaluation after so many of its questions whether it should; yield the
    list of these questions.
    """
    asked = []
    answer = AbortCallback(lambda _: asked.append(1) or len(asked) > after)
    lib.llama_set_abort_callback(model._context, answer, None)
    try:
        yield asked
    finally:
        model._decode_abortable = type(model._decode_abortable)(model._context)


@pytest.mark.parametrize("most", [512, 5])  # tokens of a native call, if tiles may be cut
def test_a_stop_at_any_point_of_an_evaluation_leaves_the_text_before_it(model, most, monkeypatch):
    tokens = shown(model, 40)
    rows = read(model, [*BEFORE, *tokens, *AFTER], 3)
    monkeypatch.setattr(model, "capabilities", replace(model.capabilities, max_batch=most))
    place = tiles_in(tokens)[0]
    head, picked = [*BEFORE, *tokens[: place.start]], tokens[place.start : place.stop]
    model.truncate(len(head))
    with stopping(model, 10**6) as asked:
        model.decode(picked, 0, lambda: None)
    for after in range(0, len(asked), max(1, len(asked) // 16)):
        model.truncate(len(head))
        with stopping(model, after), pytest.raises(Aborted):
            model.decode(picked, 0, lambda: None)
        assert model.n_past == len(head)
    model.decode(picked, 0)
    monkeypatch.undo()
    assert close(read(model, [*tokens[place.stop :], *AFTER], 3), rows)


def test_a_full_context_is_told_before_anything_is_encoded(model):
    n_encoded, tokens = model.eyes.n_encoded, shown(model, 20)
    place = tiles_in(tokens)[0]
    read(model, [5] * (model.n_ctx - len(place) + 1))
    with pytest.raises(ContextFull, match=f"{len(place)} tokens do not fit"):
        model.decode(tokens[place.start : place.stop], 0)
    assert model.eyes.n_encoded == n_encoded


def test_a_part_of_a_tile_is_refused(model):
    tokens = shown(model)
    place = tiles_in(tokens)[0]
    for part in (tokens[place.start : place.stop - 1], [*tokens[place.start : place.stop], 5]):
        with pytest.raises(ValueError, match="one tile"):
            model.decode(part, 0)


def test_slots_with_pictures_beside_text(model):
    alone = read(model, [*BEFORE, *shown(model), *AFTER], 3)
    slots = model.batched()
    slots.add(2, 512)
    try:
        for slot, tokens in ((1, [*BEFORE, *shown(model)]), (2, [*BEFORE, 9, 9])):
            read(slots.models[slot], tokens)
        items = [llama_cpp_item(1, AFTER), llama_cpp_item(2, AFTER)]
        joint = [outputs.logits.copy() for outputs in slots.decode(items)]
        assert close(joint[0], alone)
        slots.models[0].truncate(0)
        n = len(BEFORE) + len(shown(model))
        slots.copy(1, 0, n)
        assert close(slots.models[0].decode(AFTER, 3).logits, alone)
    finally:
        slots.close()
        model.truncate(0)


def llama_cpp_item(slot, tokens):
    from edgespec.backends.base import BatchItem

    return BatchItem(slot, tokens, len(tokens))


def test_embeddings_are_dropped_by_bytes_and_computed_again(opened):
    model = opened("mlp")
    model.kind = "mlp"
    check_dropped(model, shown(model, 30), shown(model, 31))


def test_a_batch_holds_a_tile_whose_tokens_see_each_other(tmp_path):
    text = projector_files.write_text(tmp_path / "text.gguf", "gemma3")
    path = projector_files.write(tmp_path / "mmproj.gguf", "gemma3")
    model = llama_cpp.LlamaCppModel(text, settings(path, n_batch=32))
    assert model.eyes.most_together == 16
    assert lib.llama_n_batch(model._context) == 32
    model._widen_batch(70)
    assert model.capabilities.max_batch == 128
    model.close()
    with pytest.raises(ConfigError, match="can have 600 tokens, the context has 512"):
        model._widen_batch(600)


@pytest.mark.parametrize("kind", KINDS)
def test_the_header_tells_the_most_tokens_that_the_engine_makes(tmp_path, kind):
    told = projector_files.metadata(kind, 32) | {"clip.vision.preproc_image_size": (UINT32, 336)}
    path = tmp_path / "mmproj.gguf"
    path.write_bytes(gguf_bytes(told, projector_files.weights(kind, 32)))
    text = projector_files.write_text(tmp_path / "text.gguf", kind)
    with contextlib.closing(llama_cpp.LlamaCppModel(text, settings(path))) as model:
        assert model.eyes.most_tokens == llama_cpp.projector_facts(path).most_tokens > 0


def test_the_projector_next_to_a_model_is_used_and_none_reads_text_alone(tmp_path, caplog):
    text = projector_files.write_text(tmp_path / "text.gguf", "mlp")
    for sees in (False, True):
        if sees:
            projector_files.write(tmp_path / "mmproj-x.gguf", "mlp")
        model = llama_cpp.LlamaCppModel(text, settings(""))
        assert bool(model.eyes) is sees
        assert sees or "no mmproj-….gguf in" in model.why_blind
        model.close()
    model = llama_cpp.LlamaCppModel(text, settings("none"))
    assert model.eyes is None
    model.close()
    projector_files.write(tmp_path / "mmproj-x.gguf", "mlp", 64)
    model = llama_cpp.LlamaCppModel(text, settings(""))
    assert model.eyes is None
    assert "makes embeddings of 64 numbers" in model.why_blind
    assert "pictures cannot be shown" in caplog.text
    model.close()
    with pytest.raises(ConfigError, match="this model reads 32"):
        llama_cpp.LlamaCppModel(text, settings(tmp_path / "mmproj-x.gguf"))


def test_a_vocabulary_without_the_tokens_around_pictures_is_refused(tmp_path):
    from tests.helpers import tiny_models

    text = tiny_models.write(tmp_path, "llama", 2)
    path = projector_files.write(tmp_path / "mmproj.gguf", "idefics3")
    with pytest.raises(ConfigError, match="vocabulary does not have"):
        llama_cpp.LlamaCppModel(text, settings(path))
