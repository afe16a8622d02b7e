"""Heads on onnxruntime, opened beside their references."""

from __future__ import annotations

import numpy as np

from edgespec import EngineConfig
from edgespec.backends.onnx import open_head
from tests.helpers import head_folders as folders


class Opened:
    """A head, its reference, and the states of a text."""

    def __init__(self, folder, made, **options):
        self.folder, self.made = folder, made
        self.options = {"n_ctx": 64, "n_threads": 1} | options
        self.reference = folders.Reference(made)
        self.head = self.another()
        self.taps = folders.states(64, len(self.head.layers))  # of positions 0, 1, …

    def another(self):
        config = EngineConfig(**self.options)
        return open_head(self.folder, config, folders.target())

    def before(self, n):
        """Return the states before each token of a text: zeros before the first."""
        return np.concatenate([np.zeros_like(self.taps[:1]), self.taps[: n - 1]])

    def rows(self, text, path=()):
        return self.reference.rows(text, self.before(len(text)), list(path))

    def depth(self, most):
        return min(most, self.head.max_depth - 1) if self.head.max_depth else most


def close(found, expected):
    finite = np.isfinite(expected)
    assert np.array_equal(finite, np.isfinite(found))
    scale = max(1, abs(expected[finite]).max())
    assert abs(found[finite] - expected[finite]).max() <= 1e-5 * scale
