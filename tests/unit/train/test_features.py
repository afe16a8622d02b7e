"""Hidden states of recorded conversations on disk."""

import numpy as np
import pytest

from edgespec.train.features import bfloat16, bytes_a_token, extract
from edgespec.train.gently import Pauses
from edgespec.train.recordings import Recording
from edgespec.types import Outputs

WIDTH = 3
NEVER = Pauses(print, gently=False)
CONVERSATIONS = [Recording(i, 0, "done", "", [i] * (3 + i), 2) for i in range(5)]


class Target:
    """A target whose states are the token, the position, and the number of the layer."""

    hidden_size = WIDTH

    def __init__(self, fails_at=99):
        self.n_calls, self.fails_at, self.n_past, self.layers = 0, fails_at, 0, ()

    def tap(self, layers):
        self.layers = layers

    def truncate(self, n_past):
        self.n_past = n_past

    def decode(self, tokens, n_logits=1):
        self.n_calls += 1
        if self.n_calls > self.fails_at:
            raise KeyboardInterrupt
        states = np.zeros((len(tokens), len(self.layers), WIDTH), np.float32)
        states[..., 0] = np.array(tokens)[:, None]
        states[..., 1] = np.arange(self.n_past, self.n_past + len(tokens))[:, None]
        states[..., 2] = self.layers
        return Outputs(np.zeros((n_logits, 1)), states)


def test_states_of_all_tokens_one_after_the_other(tmp_path):
    extract(Target(), (2, 4, 6), CONVERSATIONS, tmp_path, NEVER)
    raw = np.fromfile(tmp_path / "features.bin", np.uint16).reshape(-1, 4, WIDTH)
    states = (raw.astype(np.uint32) << 16).view(np.float32)
    assert len(states) == sum(len(each.ids) for each in CONVERSATIONS)
    assert raw.nbytes == len(states) * bytes_a_token(WIDTH)
    ends = np.cumsum([len(each.ids) for each in CONVERSATIONS])
    for mine, each in zip(np.split(states, ends), CONVERSATIONS, strict=False):
        assert (mine[..., 0] == each.prompt).all()
        assert (mine[:, 0, 1] == np.arange(len(each.ids))).all()
        assert (mine[:, :, 2] == [2, 4, 6, -1]).all()


@pytest.mark.parametrize("n_cut", [0, 1, 25])
@pytest.mark.parametrize("fails_at", [0, 1, 3])
def test_a_run_that_was_killed_goes_on(tmp_path, fails_at, n_cut):
    (whole := tmp_path / "whole").mkdir()
    (killed := tmp_path / "killed").mkdir()
    extract(Target(), (2, 4, 6), CONVERSATIONS, whole, NEVER)
    with pytest.raises(KeyboardInterrupt):
        extract(Target(fails_at), (2, 4, 6), CONVERSATIONS, killed, NEVER)
    data = killed / "features.bin"
    data.write_bytes(data.read_bytes()[: max(0, data.stat().st_size - n_cut)])
    target = Target()
    extract(target, (2, 4, 6), CONVERSATIONS, killed, NEVER)
    assert data.read_bytes() == (whole / "features.bin").read_bytes()
    assert target.n_calls == 5 - fails_at + (n_cut > 0 and fails_at > 0)


def test_more_conversations_are_added_to_those_that_are_there(tmp_path):
    extract(Target(), (2, 4, 6), CONVERSATIONS[:2], tmp_path, NEVER)
    target = Target()
    extract(target, (2, 4, 6), CONVERSATIONS, tmp_path, NEVER)
    assert target.n_calls == 3
    n_tokens = sum(len(each.ids) for each in CONVERSATIONS)
    assert (tmp_path / "features.bin").stat().st_size == n_tokens * bytes_a_token(WIDTH)


@pytest.mark.parametrize(("number", "rounded"), [
    (1.0, 1.0), (-25000.0, -24960.0), (1.00390625, 1.0), (1.01171875, 1.015625), (3e38, 3e38)
])  # fmt: skip
def test_bfloat16_rounds_to_the_nearest_and_in_the_middle_to_even(number, rounded):
    bits = bfloat16(np.array([number], np.float32))
    found = (bits.astype(np.uint32) << 16).view(np.float32)[0]
    assert found == pytest.approx(rounded, rel=0.004 if number > 1e38 else 1e-7)
