"""Reading the layer for multi-token prediction from a target's own checkpoint, and refusals."""

import numpy as np
import pytest

from edgespec import UnknownArchitecture
from edgespec.backends.heads import TargetSizes
from edgespec.convert.heads.checkpoint import check_target
from edgespec.convert.heads.reading import read_head
from tests.helpers import head_files as files
from tests.helpers import mtp_files

MAKERS = {
    "Qwen3.5": lambda: mtp_files.qwen(),
    "Qwen3.5, untied": lambda: mtp_files.qwen(tied=False),
    "Qwen3.5 without the target's matrices": lambda: mtp_files.qwen(own=False),
    "MiMo": lambda: mtp_files.mimo(),
    "MiMo without the target's matrices": lambda: mtp_files.mimo(own=False),
}


@pytest.mark.parametrize("naming", ["mtp", "mtp bin"])
@pytest.mark.parametrize("name", list(MAKERS))
def test_every_naming_becomes_the_same_description(tmp_path, name, naming):
    made = MAKERS[name]()
    head = read_head(files.write(tmp_path, made, naming))
    assert (head.kind, head.n_heads) == ("mtp", 0)
    assert (head.hidden_size, head.vocab_size, head.n_layer) == (32, 259, 8)
    assert head.layers(8) == [(-1,)]
    assert head.states_first == (name[:4] == "MiMo")
    assert head.weights.keys() == made.weights.keys()
    for each, array in made.weights.items():
        assert head.weights[each].shape == array.shape
        assert np.array_equal(head.array(each), array), each
    check_target(head, TargetSizes(32, 259, 8))


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_norms_counted_from_zero_and_gates_are_found_in_every_number_format(tmp_path, dtype):
    made = mtp_files.qwen()
    head = read_head(files.write(tmp_path, made, "mtp", dtype))
    for name, array in made.weights.items():
        most = 2**-7 if dtype == "BF16" else 2**-10
        assert np.allclose(head.array(name), array, rtol=most, atol=most), name


def test_rotations_of_a_part_of_each_head(tmp_path):
    head = read_head(files.write(tmp_path, mtp_files.qwen(), "mtp"))
    assert head.decoder.head_dim == mtp_files.QWEN_HEAD
    assert head.decoder.rotation == pytest.approx([1e4 ** (-i / 8) for i in range(8)])


EXPERTS, LATENT = "is a mixture of experts", r"has latent attention \(MLA\)"
REFUSED = [
    ("mtp.layers.0.mlp.experts.0.up_proj", EXPERTS),
    ("mtp.layers.0.mlp.gate", EXPERTS),
    ("mtp.layers.0.mlp.shared_expert.up_proj", EXPERTS),
    ("mtp.layers.1.self_attn.q_proj", r"not known here: mtp\.layers\.1"),
    ("mtp.embed_tokens", r"not known here: mtp\.embed_tokens"),
    ("model.mtp_layers.1.input_proj", r"not known here: mtp_layers\.1"),
    ("model.mtp_layers.0.mlp.experts.0.up_proj", EXPERTS),
]


@pytest.mark.parametrize(("more", "said"), REFUSED)
def test_layers_that_are_not_dense_are_refused(tmp_path, more, said):
    made = mtp_files.mimo() if "mtp_layers" in more else mtp_files.qwen()
    made.published[f"{more}.weight"] = np.ones((2, 2), np.float32)
    with pytest.raises(UnknownArchitecture, match=said):
        read_head(files.write(tmp_path, made, "mtp"))


@pytest.mark.parametrize(("beside", "said"), [
    ("mlp.experts.0.up_proj", EXPERTS), ("self_attn.kv_a_proj_with_mqa", LATENT),
    ("self_attn.q_proj", r"is of another naming \(layers\.61\.eh_proj"),
])  # fmt: skip
def test_layers_of_other_namings_are_refused_with_what_works(tmp_path, beside, said):
    made = mtp_files.mimo()
    made.published = {
        f"model.layers.61.{name}.weight": np.ones((2, 2), np.float32)
        for name in ("eh_proj", beside)
    }
    with pytest.raises(UnknownArchitecture, match=f"its MTP layer {said}.*a GGUF of the model"):
        read_head(files.write(tmp_path, made, "mtp"))


def test_targets_without_such_a_layer_are_no_heads(tmp_path):
    made = mtp_files.qwen()
    made.published = {n: a for n, a in made.published.items() if not n.startswith("mtp.")}
    with pytest.raises(UnknownArchitecture, match="is no head as edgespec knows them"):
        read_head(files.write(tmp_path, made, "mtp"))
