"""Rows of which only the largest logits are fetched from a device; the complete rows stay there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .session import ort

GRAPH = Path(__file__).with_name("topk.onnx")  # one TopK node; tests/helpers/onnx_models.py made it


class TopRows:
    """The complete logits rows of at most `n_rows` tokens on a device, and the same rows on the
    host with only their largest values.

    A row on the host is -inf except for the fetched values, so argmax and top_k return what they
    would return for the complete row. All calls write to one buffer of rows, and each call first
    erases what the previous call wrote.
    """

    def __init__(self, provider: str, device: str, n_rows: int, vocab_size: int) -> None:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        providers = list(dict.fromkeys([provider, "CPUExecutionProvider"]))
        self._session = ort.InferenceSession(GRAPH, options, providers=providers)
        self._device = device
        self.n_rows = n_rows
        self.logits = ort.OrtValue.ortvalue_from_shape_and_type(
            (1, n_rows, vocab_size), np.float32, device, 0
        )
        self._rows = np.full((n_rows, vocab_size), -np.inf, np.float32)
        self._written: tuple[npt.NDArray[Any], npt.NDArray[Any]] | None = None
        self._k = np.ones(1, np.int64)

    def bind(self, binding: Any, n: int) -> None:
        """Make a graph write the logits of `n` tokens here."""
        shape = (1, n, self._rows.shape[1])
        address = self.logits.data_ptr()
        binding.bind_output("logits", self._device, 0, np.float32, shape, address)

    def rows(self, n: int, top: int) -> npt.NDArray[np.float32]:
        """Return [n, vocab_size]: the `top` largest logits of each of the n tokens, -inf
        elsewhere.
        """
        vocab_size = self._rows.shape[1]
        values, ids = (np.empty((1, n, top), dtype) for dtype in (np.float32, np.int64))
        self._k[0] = top
        binding = self._session.io_binding()
        shape, address = (1, n, vocab_size), self.logits.data_ptr()
        binding.bind_input("logits", self._device, 0, np.float32, shape, address)
        binding.bind_input("k", "cpu", 0, np.int64, (1,), self._k.ctypes.data)
        binding.bind_output("values", "cpu", 0, np.float32, values.shape, values.ctypes.data)
        binding.bind_output("ids", "cpu", 0, np.int64, ids.shape, ids.ctypes.data)
        self._session.run_with_iobinding(binding)
        if self._written:
            self._rows[self._written] = -np.inf
        at = np.repeat(np.arange(n), top), ids.ravel()
        self._rows[at] = values.ravel()
        self._written = at
        return self._rows[:n]
