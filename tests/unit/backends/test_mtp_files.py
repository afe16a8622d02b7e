"""GGUF files with MTP layers that cannot be evaluated, and targets that they were not made for."""

import functools

import numpy as np
import pytest

from edgespec import ConfigError, ModelError, TruncatedModel
from tests.helpers import tiny_models, tiny_mtp
from tests.helpers.gguf_files import ARRAY, INT32, STRING, TOKENS, UINT32, gguf_bytes
from tests.helpers.llama_heads import CONFIG, TEXT, OtherEngine, cut, lives, llama_cpp

nextn = llama_cpp.nextn

pytestmark = pytest.mark.llama_cpp

LAYER = f"blk.{tiny_models.N_LAYER}."


def without(architecture, *names):
    weights = tiny_mtp.mtp_weights(architecture)
    return {name: value for name, value in weights.items() if name not in names}


def missing(architecture, part, folder):
    """Write a target whose MTP layer lacks a weight."""
    weights = without(architecture, f"{LAYER}{part}.weight")
    return tiny_mtp.write(folder, architecture, weights=weights)


def too_many(architecture, folder):
    """Write a target with more MTP layers than llama.cpp has a graph for."""
    return tiny_mtp.write(folder, architecture, 2)


def only_declared(folder):
    """Write a target whose MTP layer is in a file of its own."""
    names = [name for name in tiny_mtp.mtp_weights("hy_v3") if name.startswith(LAYER)]
    return tiny_mtp.write(folder, "hy_v3", weights=without("hy_v3", *names))


LACKING = [
    ("hy_v3", "ffn_up"), ("hy_v3", "attn_k"), ("mimo2", "attn_qkv"), ("mimo2", "ffn_gate"),
    ("qwen35", "attn_q"),
]  # fmt: skip
TARGETS = {  # that load, and draft with something else
    **{" without ".join(case): functools.partial(missing, *case) for case in LACKING},
    "two layers of qwen35": functools.partial(too_many, "qwen35"),
    "two layers of glm4moe": functools.partial(too_many, "glm4moe"),
    "elsewhere": only_declared,
}
REFUSED = [  # by the engine, which loads no target without them
    ("hy_v3", "nextn.enorm"), ("qwen35", "post_attention_norm"), ("glm4moe", "ffn_up_shexp"),
    ("glm4moe", "ffn_gate_inp"),
]  # fmt: skip


@pytest.mark.parametrize("case", TARGETS)
def test_a_target_without_usable_layers_is_used_without_them(case, tmp_path):
    path = TARGETS[case](tmp_path)
    assert not llama_cpp.has_own_head(path)
    assert not llama_cpp.is_head(path)
    target = llama_cpp.LlamaCppModel(path, CONFIG)
    assert target.decode(TEXT).logits.shape == (1, len(TOKENS))
    with pytest.raises(ModelError, match=r"it lacks blk.6|with \d MTP layers"):
        llama_cpp.open_head(path, CONFIG, target)
    target.close()


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_what_the_engine_needs_of_the_layers_is_named(case, tmp_path):
    path = missing(*case, tmp_path)
    assert not llama_cpp.has_own_head(path)
    with pytest.raises(ModelError, match=case[1]):
        llama_cpp.LlamaCppModel(path, CONFIG)


def test_layers_of_another_target_are_refused(tmp_path):
    path = tiny_mtp.write(tmp_path, "hy_v3", alone=True)
    for changed, message in (
        ({"hidden_size": 64}, "32 numbers a state, and this one has 64"),
        ({"n_layer": 5}, "with 6 layers, and this one has 5"),
        ({"vocab_size": 300}, "259 tokens of vocabulary, and this one has 300"),
    ):
        with pytest.raises(ConfigError, match=message):
            llama_cpp.open_head(path, CONFIG, OtherEngine(**changed))


@pytest.mark.parametrize("architecture", ["llama", "deepseek2"])
def test_layers_that_cannot_be_evaluated_are_heads_all_the_same(tmp_path, architecture):
    """Nobody takes them for models, and the message says what can be evaluated."""
    metadata = tiny_models.metadata(architecture, 1)
    metadata[f"{architecture}.nextn_predict_layers"] = (UINT32, 1)
    path = tmp_path / "mtp.gguf"
    path.write_bytes(gguf_bytes(metadata, without("hy_v3", "blk.0.attn_norm.weight")))
    assert llama_cpp.is_head(path)
    with pytest.raises(ModelError, match=f"architecture '{architecture}', with 1 MTP layers; give"):
        llama_cpp.open_head(path, CONFIG, OtherEngine())


WRONG = {
    "shape": {f"{LAYER}nextn.eh_proj.weight": np.zeros((32, 32), np.float32)},
    "norm": {f"{LAYER}nextn.hnorm.weight": np.zeros(16, np.float32)},
    "attention": {f"{LAYER}attn_q.weight": np.zeros((16, 32), np.float32)},
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("alone", [False, True])
def test_weights_of_a_wrong_shape_are_refused(tmp_path, case, alone):
    weights = tiny_mtp.mtp_weights("hy_v3") | WRONG[case]
    path = tiny_mtp.write(tmp_path, "hy_v3", weights=weights, alone=alone)
    name = next(iter(WRONG[case])).removesuffix(".weight")
    others = (CONFIG, OtherEngine()) if alone else (CONFIG,)
    with pytest.raises(ModelError, match=name):
        (llama_cpp.open_head if alone else llama_cpp.LlamaCppModel)(path, *others)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("alone", [False, True])
def test_a_truncated_file_is_refused(tmp_path, part, alone):
    path = tiny_mtp.write(tmp_path, "hy_v3", alone=alone)
    cut(path, part)
    for use in (llama_cpp.has_own_head, llama_cpp.is_head):
        with pytest.raises(TruncatedModel):
            use(path)
    with pytest.raises(TruncatedModel):
        llama_cpp.open_head(path, CONFIG, OtherEngine())


def test_more_layers_than_there_are_is_damage(tmp_path):
    path = tiny_mtp.write(tmp_path, "hy_v3", nextn_predict_layers=(UINT32, 8))
    with pytest.raises(ModelError, match="more layers for next tokens than layers"):
        llama_cpp.has_own_head(path)
    path = tiny_mtp.write(tmp_path, "hy_v3", nextn_predict_layers=(UINT32, 7))
    assert not llama_cpp.has_own_head(path)
    path = tiny_mtp.write(tmp_path, "hy_v3", nextn_predict_layers=(ARRAY, (INT32, [1])))
    with pytest.raises(ModelError, match=r"nextn_predict_layers is .*whole number"):
        llama_cpp.has_own_head(path)
    path = tiny_mtp.write(tmp_path, "hy_v3", nextn_predict_layers=(STRING, b"1"))
    with pytest.raises(ModelError, match=r"nextn_predict_layers is .*whole number"):
        llama_cpp.has_own_head(path)


def test_a_library_without_the_functions(tmp_path, monkeypatch):
    path = tiny_mtp.write(tmp_path, "hy_v3", 2)
    target = llama_cpp.LlamaCppModel(path, CONFIG)
    monkeypatch.setattr("edgespec.backends.llama_cpp.heads.CHAINS", ("llama_no_such_function",))
    with pytest.raises(ConfigError, match="several MTP layers need llama_no_such_function, which"):
        llama_cpp.open_head(path, CONFIG, target)
    target.close()
    monkeypatch.setattr(nextn, "HEADS", ("llama_no_such_function",))
    nextn._layers.cache_clear()
    assert not llama_cpp.has_own_head(path)
    target = llama_cpp.LlamaCppModel(path, CONFIG)
    target.tap([-1])
    assert target._taps.of_outputs
    assert target.decode(TEXT).hidden.shape == (len(TEXT), 1, tiny_models.WIDTH)
    target.close()
    nextn._layers.cache_clear()


def test_nothing_ends_the_process(tmp_path):
    """Most of these targets would, if their layers came to be evaluated."""
    program = f"""
        from pathlib import Path
        from edgespec import ConfigError, ModelError
        from tests.unit.backends import test_mtp_files as t
        for case, written in t.TARGETS.items():
            path = written(Path({str(tmp_path)!r}))
            target = t.llama_cpp.LlamaCppModel(path, t.CONFIG)
            try:
                t.llama_cpp.open_head(path, t.CONFIG, target).decode(t.TEXT)
                print("opened", case)
            except (ConfigError, ModelError):
                pass
            target.tap([-1])
            target.decode(t.TEXT * 20)
        for n in (1, 3):
            path = t.tiny_mtp.write(Path({str(tmp_path)!r}), "hy_v3", n)
            target = t.llama_cpp.LlamaCppModel(path, t.CONFIG)
            head = t.llama_cpp.open_head(path, t.CONFIG, target)
            head.decode(t.TEXT * 20, 32)
            head.grow([4] * 15, [-1] * 15)
            for nodes in ([4] * 40, [4]):
                try:
                    head.grow(nodes, [-1] * len(nodes))
                except ValueError:
                    head.decode([1])
        print("lives")
    """
    lives(program)


@pytest.mark.parametrize("end", ["", "del target, head", "head.close(); target.close()"])
def test_layers_go_before_their_target(tmp_path, end):
    """Also where the target's context was made anew after the head was opened."""
    program = f"""
        import gc
        from pathlib import Path
        from tests.unit.backends import test_mtp_files as t
        path = t.tiny_mtp.write(Path({str(tmp_path)!r}), "hy_v3")
        target = t.llama_cpp.LlamaCppModel(path, t.CONFIG)
        head = t.llama_cpp.open_head(path, t.CONFIG, target)
        target.tap([2])
        target.tap(head.layers)
        head.features.append(0, target.decode(t.TEXT).hidden)
        head.decode(t.TEXT)
        {end or "pass"}
        gc.collect()
        print("lives")
    """
    lives(program)
