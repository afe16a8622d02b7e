"""A GPU computes what the CPU computes, can be stopped, and can be left alone.

These run where llama.cpp can use a GPU; `.ci/devices` lets Mesa's software device be one.
"""

from __future__ import annotations

import numpy as np
import pytest

import edgespec
from edgespec import Aborted, EngineConfig
from edgespec.backends.base import share_on_gpu
from tests.helpers import libllama, tiny_heads, tiny_models

llama_cpp = libllama.require()
GPUS = llama_cpp.all_gpus()
pytestmark = [
    pytest.mark.llama_cpp,
    pytest.mark.skipif(not GPUS, reason="llama.cpp can use no GPU here"),
]
TOKENS = [(7 * i + 3) % 250 for i in range(200)]
TREE, PARENTS = [11, 12, 13, 50, 60], [-1, 0, 1, -1, 3]
ON_CPU = EngineConfig(n_ctx=512, n_gpu_layers=0)
ON_GPU = EngineConfig(n_ctx=512, device=GPUS[0].name if GPUS else "")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny_models.write(tmp_path_factory.mktemp("models"), "qwen2")


@pytest.fixture(scope="module")
def both(path):
    """Return the model on the GPU and the same on the CPU."""
    models = [llama_cpp.LlamaCppModel(path, config) for config in (ON_GPU, ON_CPU)]
    yield models
    for model in models:
        model.close()


@pytest.fixture
def pair(both):
    for model in both:
        model.tap(())
        model.truncate(0)
    return both


def near(a, b):
    """Return whether two arrays are the same but for the rounding of 16-bit products."""
    return np.sqrt(np.mean((a - b) ** 2)) < 0.01 * max(1.0, np.abs(b).max())


def test_layers_go_where_they_are_asked_to(pair):
    on_gpu, on_cpu = pair
    assert share_on_gpu(on_gpu.placement) == 1
    assert share_on_gpu(on_cpu.placement) == 0
    assert not any(GPUS[0].name in name for name in on_cpu.placement)  # not even a buffer
    assert GPUS[0].description in str(on_gpu.fingerprint()["gpus"])
    assert on_cpu.fingerprint()["gpus"] == []


@pytest.mark.parametrize("width", [1, 2, 4, 5, 8, 9, 20, 32])
def test_rows(pair, width):
    rows = [model.decode(TOKENS[: 40 + width], n_logits=width).logits.copy() for model in pair]
    assert near(*rows)


def test_long_prompts_in_pieces(pair):
    rows = [model.decode(TOKENS, n_logits=1, abort=lambda: None).logits.copy() for model in pair]
    assert near(*rows)


def test_trees_and_what_is_kept_of_them(pair):
    for model in pair:
        model.decode(TOKENS[:40], n_logits=0)
    trees = [model.decode_tree([10, *TREE], PARENTS).logits.copy() for model in pair]
    assert near(*trees)
    for model in pair:
        model.keep([3, 4])
    assert near(*(model.decode([70]).logits.copy() for model in pair))


@pytest.mark.parametrize("layers", [(0, 2, 3), (tiny_models.N_LAYER,)])
def test_hidden_states(pair, layers):
    for model in pair:
        model.tap(layers)
    states = [model.decode(TOKENS[:20], n_logits=1).hidden.copy() for model in pair]
    assert states[0].shape == (20, len(layers), tiny_models.WIDTH)
    assert near(*states)


def test_a_prompt_can_be_stopped_between_its_pieces(pair):
    model = pair[0]
    with pytest.raises(Aborted):
        model.decode(TOKENS * 2, n_logits=1, abort=lambda: "cancelled" if model.n_past else None)
    assert 0 < model.n_past < 2 * len(TOKENS)
    model.truncate(0)
    assert model.decode(TOKENS[:3]).logits.shape == (1, tiny_models.VOCABULARY)


@pytest.mark.parametrize(("target", "draft"), [("GPU", "CPU"), ("CPU", "GPU"), ("GPU", "GPU")])
def test_drafts_on_another_device_change_nothing(path, tmp_path, target, draft):
    configs = {"GPU": {"device": GPUS[0].name, "n_gpu_layers": -1}, "CPU": {"n_gpu_layers": 0}}
    small = tiny_models.write(tmp_path, "qwen2", n_layer=1)
    drafted = {"method": "draft_model", "num_speculative_tokens": 3, "draft_p_min": 0.0}
    asked = {"max_tokens": 24, "ignore_eos": True}
    texts = []
    for model, spec in ((None, {"method": "none"}), (small, drafted)):
        with edgespec.load(
            path, model, n_ctx=256, sampling={"temperature": 0}, speculative_config=spec,
            draft_options=configs[draft], **configs[target],
        ) as engine:  # fmt: skip
            texts.append(engine.generate(TOKENS[:20], **asked).token_ids)
            if model:
                placed = engine.describe()["draft"]["placement"]
                assert share_on_gpu(placed) == (draft == "GPU")
    assert texts[0] == texts[1]


def test_a_head_on_the_gpu(pair, tmp_path):
    target = pair[0]
    head = llama_cpp.open_head(tiny_heads.write(tmp_path / "head.gguf"), ON_GPU, target)
    try:
        assert share_on_gpu(head.placement) == 1
    finally:
        head.close()
