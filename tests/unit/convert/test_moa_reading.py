"""Reading a Mixture of Attentions: sizes from its tensors, and what is refused."""

import numpy as np
import pytest

from edgespec import ModelError, UnknownArchitecture
from edgespec.convert.heads import check_target, read_head
from tests.helpers import head_files as files
from tests.helpers import moa_files


@pytest.mark.parametrize("naming", ["moa", "moa bin"])
@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_what_is_published_becomes_a_description(tmp_path, naming, dtype):
    made = moa_files.moa()
    head = read_head(files.write(tmp_path, made, naming, dtype))
    assert (head.kind, head.n_heads, head.layers(8)) == ("moa", 0, [()])
    assert (head.hidden_size, head.vocab_size) == (32, 259)
    check_target(head, 32, 259, 2)
    expected = files.rounded(made, dtype)
    assert head.weights.keys() == expected.keys()
    for name, array in expected.items():
        assert np.array_equal(head.array(name), array), name


def test_sizes_are_those_of_the_tensors(tmp_path):
    parts = read_head(files.write(tmp_path, moa_files.moa(), "moa")).parts
    found = {name: (p.width, p.n_heads, p.n_kv_heads, p.head_dim) for name, p in parts.items()}
    assert found == {"layers": (64, 4, 4, 16), "text": (32, 4, 2, 8), "cross": (32, 4, 1, 8)}
    assert {part.feed_forward for part in parts.values()} == {files.FEED}
    assert parts["cross"].rotation == pytest.approx([1e4 ** (-i / 4) for i in range(4)])


@pytest.mark.parametrize("gone", [
    "layer_self_attention.self_attn.k_proj.weight", "cross_attention.mlp.down_proj.weight",
    "self_attention.input_layernorm.weight",
])  # fmt: skip
def test_a_missing_tensor_is_named(tmp_path, gone):
    made = moa_files.moa()
    del made.published[gone]
    with pytest.raises(ModelError, match=f"the tensor {gone} is missing"):
        read_head(files.write(tmp_path, made, "moa"))


@pytest.mark.parametrize(("name", "expected"), [
    ("Ekv2E.weight", "[32, 64]"), ("self_attention.self_attn.v_proj.weight", "[16, 32]"),
    ("cross_attention.post_attention_layernorm.weight", "[32]"),
])  # fmt: skip
def test_a_wrong_shape_is_told(tmp_path, name, expected):
    made = moa_files.moa()
    made.published[name] = np.zeros((5, 7), np.float32)
    with pytest.raises(ModelError) as raised:
        read_head(files.write(tmp_path, made, "moa"))
    assert f"has the shape [5, 7], expected {expected}" in str(raised.value)


@pytest.mark.parametrize(("config", "said"), [
    ({"target_layer_inference": 2}, "the target's last 2 layers"),
    ({"num_attention_heads": 0}, "says 0 heads in states of 32"),
    ({"num_attention_heads": 3}, "says 3 heads in states of 32"),
    ({"hidden_size": 48}, "in states of 48.* reads 32 numbers"),
    ({"hidden_act": "gelu"}, "the activation gelu"),
    ({"rope_scaling": {"rope_type": "yarn"}}, "'yarn' rotations are not known"),
])  # fmt: skip
def test_configs_that_do_not_fit_are_refused(tmp_path, config, said):
    with pytest.raises(ModelError, match=said):
        read_head(files.write(tmp_path, moa_files.moa(**config), "moa"))


def test_tensors_that_are_not_known_are_refused(tmp_path):
    made = moa_files.moa()
    made.published["token_map"] = np.ones(3, np.float32)
    with pytest.raises(UnknownArchitecture, match="not known here: token_map"):
        read_head(files.write(tmp_path, made, "moa"))
