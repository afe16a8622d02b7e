"""Reading a Mixture of Attentions: sizes from its tensors, and what is refused."""

import numpy as np
import pytest

from edgespec import ModelError, UnknownArchitecture
from edgespec.backends.heads import TargetSizes
from edgespec.convert.heads.checkpoint import check_target
from edgespec.convert.heads.reading import read_head
from tests.helpers import head_files as files
from tests.helpers import moa_files


def test_sizes_are_those_of_the_tensors(tmp_path):
    head = read_head(files.write(tmp_path, moa_files.moa(), "moa"))
    assert (head.n_heads, head.layers(8)) == (0, [()])
    check_target(head, TargetSizes(32, 259, 2, 64))
    parts = head.parts
    found = {name: (p.width, p.n_heads, p.n_kv_heads, p.head_dim) for name, p in parts.items()}
    assert found == {"layers": (64, 4, 4, 16), "text": (32, 4, 2, 8), "cross": (32, 4, 1, 8)}
    assert {part.feed_forward for part in parts.values()} == {files.FEED}
    assert parts["cross"].rotation == pytest.approx([1e4 ** (-i / 4) for i in range(4)])


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
