"""Reading checkpoints of DFlash: layers, windows, the mask token, and what is refused."""

import json

import numpy as np
import pytest

from edgespec import ConfigError, ModelError, UnknownArchitecture
from edgespec.backends.heads import TargetSizes
from edgespec.convert.heads.checkpoint import check_target
from edgespec.convert.heads.reading import read_head
from tests.helpers import head_files as files

SLIDING, FULL = "sliding_attention", "full_attention"


def read(folder, made=None, **config):
    made = made or files.dflash()
    made.config |= config
    return read_head(files.write(folder, made, "dflash"))


def test_a_block_and_what_it_is_made_of(tmp_path):
    head = read(tmp_path)
    assert (head.kind, head.n_heads, head.mask_token) == ("dflash", files.N_GUESSES, 250)
    assert (head.hidden_size, head.vocab_size, head.n_layer) == (32, 259, 8)
    assert (head.windows, head.causal) == ((0, 0), (False, False))
    assert (head.embedding_scale, head.logit_scale, head.softcap) == (1, 1, 0)
    assert head.d2t is None
    assert "lm_head.weight" not in head.weights
    check_target(head, TargetSizes(32, 259, 8))
    with pytest.raises(ConfigError, match="8 layers, and this one has 6"):
        check_target(head, TargetSizes(32, 259, 6))


def test_layers_are_counted_by_outputs_or_inputs(tmp_path):
    assert read(tmp_path / "a").layers(8) == [(2, 4, 5)]
    assert read(tmp_path / "b", files.dflash(speculators=True)).layers(8) == [(2, 4, 5)]
    own = files.dflash().config["dflash_config"] | {"target_layer_ids": [2, 4, 5]}
    head = read(tmp_path / "c", dflash_config=own)  # no guess by what EAGLE-3 usually reads
    assert head.layers(8) == [(3, 5, 6)]


def test_speculators_have_a_vocabulary_of_their_own(tmp_path):
    head = read(tmp_path, files.dflash(speculators=True, bias=True))
    assert head.d2t.tolist() == files.D2T.tolist()
    assert {"embed_tokens.weight", "lm_head.weight", "1.k.bias"} <= head.weights.keys()


@pytest.mark.parametrize(("config", "windows", "causal"), [
    ({"layer_types": [FULL, FULL], "sliding_window": 9}, (0, 0), (False, False)),
    ({"layer_types": [SLIDING, FULL], "sliding_window": 9}, (9, 0), (True, False)),
    ({"layer_types": [SLIDING, SLIDING], "sliding_window": 9, "is_causal": False}, (9, 9),
     (False, False)),
    ({"is_causal": True}, (0, 0), (True, True)),
    ({"causal": True, "is_causal": False}, (0, 0), (False, False)),
    ({"causal": True}, (0, 0), (True, True)),
    ({"use_swa": True, "swa_window_size": 5}, (5, 5), (False, False)),
    ({"use_swa": True, "layer_types": [FULL, FULL], "sliding_window": 7}, (7, 7), (False, False)),
    ({"use_swa": True, "layer_types": [FULL, SLIDING], "sliding_window": 7}, (0, 7),
     (False, True)),
])  # fmt: skip
def test_windows_and_causality(tmp_path, config, windows, causal):
    head = read(tmp_path, **config)
    assert (head.windows, head.causal) == (windows, causal)


def test_scales(tmp_path):
    head = read(
        tmp_path, input_embedding_scale=4.0, output_multiplier=0.2, final_logit_softcapping=20.0
    )
    assert (head.embedding_scale, head.logit_scale, head.softcap) == (4, 0.2, 20)


@pytest.mark.parametrize(("config", "said"), [
    ({"target_layer_ids": None}, "says no target_layer_ids"),
    ({"block_size": 1}, "a block_size of 1; at least 2"),
    ({"mask_token_id": None}, "the mask_token_id None; one of 259"),
    ({"mask_token_id": 259}, "the mask_token_id 259; one of 259"),
    ({"mask_token_id": -1}, "the mask_token_id -1"),
    ({"sample_from_anchor": True}, "the last token's own place"),
    ({"layer_types": [SLIDING, FULL]}, "says no sliding_window"),
    ({"layer_types": [FULL]}, "layer_types are"),
    ({"layer_types": [FULL, "linear_attention"]}, "layer_types are"),
    ({"block_size": "many"}, "block_size must be a whole number"),
    ({"hidden_act": "gelu"}, "its activation is gelu"),
])  # fmt: skip
def test_configs_that_do_not_fit_are_refused(tmp_path, config, said):
    own = files.dflash().config["dflash_config"]
    inside = {key: value for key, value in config.items() if key in own}
    outside = {key: value for key, value in config.items() if key not in own}
    with pytest.raises(ModelError, match=said):
        read(tmp_path, dflash_config=own | inside, **outside)


def test_a_part_of_the_vocabulary_needs_its_own_rows(tmp_path):
    made = files.dflash(speculators=True)
    del made.weights["lm_head.weight"]
    with pytest.raises(ModelError, match=r"the tensor lm_head\.weight is missing"):
        read(tmp_path, made)


def test_a_head_narrower_than_its_target_needs_matrices_of_its_own(tmp_path):
    made = files.dflash(target_hidden_size=64)
    made.weights["fc.weight"] = np.zeros((32, 192), np.float32)
    with pytest.raises(ModelError, match=r"the tensor embed_tokens\.weight is missing"):
        read(tmp_path, made)
    for name in ("embed_tokens", "lm_head"):
        made.weights[f"{name}.weight"] = np.zeros((259, 32), np.float32)
    assert read(tmp_path, made).hidden_size == 64


def test_later_kinds_are_refused_by_what_they_have_more(tmp_path):
    made = files.dflash(architectures=["DFlash2DraftModel"])
    made.weights["candidate_selector.hidden_projection.weight"] = np.zeros((3, 32), np.float32)
    with pytest.raises(UnknownArchitecture, match=r"not known here: candidate_selector\.hidden"):
        read(tmp_path, made)


def test_a_config_of_another_family_is_refused(tmp_path):
    made = files.dflash()
    folder = files.write(tmp_path, made, "dflash")
    (folder / "config.json").write_text(json.dumps(files.medusa().config))
    with pytest.raises(ModelError, match="says no hidden_size"):
        read_head(folder)
