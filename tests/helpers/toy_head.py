"""A head on the toy backend, which checks what it is fed."""

from pathlib import Path

import numpy as np

from edgespec import EngineConfig, ToyModel
from edgespec.backends.base import FileHead
from edgespec.backends.features import Features


class ToyHead(ToyModel, FileHead):
    """A head that knows what a table or a function says, and remembers what it has read.

    read: of each token in its cache, the hidden states that it went in with, None for none; the
    target is a ToyModel, whose states tell position, token and layer.
    """

    path, n_ctx_train, config = Path("head"), 0, EngineConfig()
    n_threads = n_threads_batch = 1
    tokenizer = None

    def __init__(self, probs, *, layers=(1, 3), max_depth=0, most=512, **options):
        self.kind, self.n_states = options.pop("kind", "eagle3"), options.pop("n_states", 0)
        super().__init__(probs, **options)
        self.layers = tuple(layers)
        self.max_depth = max_depth
        self.placement: dict[str, str] = {}
        self.features = Features(most)
        self.start = 0
        self.read = []

    def decode(self, tokens, n_logits=1, abort=None):
        first = self.start + self.n_past
        outputs = super().decode(tokens, n_logits, abort)
        self.read += [self._state(position) for position in range(first, first + len(tokens))]
        return outputs

    def _state(self, position):
        try:
            states = self.features.of(position - 1, position)[0]
        except ValueError:
            return None
        assert [int(state[2]) for state in states] == list(self.layers)
        assert set(states[:, 0]) == {position - 1}
        at = position - 1 - self.start
        if at >= 0:
            assert set(states[:, 1]) == {self._tokens[at]}, "the states are another token's"
        return states

    def keep(self, path):
        assert not path, "a head keeps nothing of what it guessed"
        super().keep(path)
        del self.read[self.n_past :]

    def truncate(self, n_past):
        super().truncate(n_past)
        del self.read[self.n_past :]

    def fingerprint(self):
        return {}


class BlockToyHead(ToyHead):
    """A head that guesses all depths at once: what its nodes are says nothing to it."""

    kind = "dflash"

    def __init__(self, probs, **options):
        self._n_text = 0
        super().__init__(lambda tokens: probs(self._masked(tokens)), **options)

    def decode(self, tokens, n_logits=1, abort=None):
        self._n_text = self.n_past + len(tokens)
        return super().decode(tokens, n_logits, abort)

    def _masked(self, tokens):
        return [*tokens[: self._n_text], *[0] * (len(tokens) - self._n_text)]


def complete(head):
    """Return whether all that a head has read went in with the target's hidden states."""
    assert len(head.read) == head.n_past - len(head._nodes)
    return all(state is not None for state in head.read)


def states_of(tokens, layers, start=0):
    """Return what a toy target gives for tokens from a position on."""
    rows = [[(start + i, token, layer) for layer in layers] for i, token in enumerate(tokens)]
    return np.array(rows, np.float32)
