"""A machine with its own clock, on which evaluations take what a test says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgespec import EngineConfig, ToyModel
from edgespec.backends.base import FileModel
from edgespec.errors import Aborted

_STEP_S = 0.01  # an evaluation asks `abort` so often


class SlowMachine:
    """seconds(n_threads, n_tokens): what an evaluation takes. loading_s: what opening a model
    takes. now: its clock, in seconds.
    """

    def __init__(self, seconds: Callable[[int, int], float], loading_s: float = 0.5) -> None:
        self.seconds, self.loading_s = seconds, loading_s
        self.now = 0.0
        self.n_opened = 0

    def clock(self) -> float:
        """Return the time."""
        return self.now

    def open_model(self, path: Path, config: EngineConfig) -> SlowModel:
        """Open a model, as `edgespec.loading.models.open_model`."""
        self.now += self.loading_s
        self.n_opened += 1
        return SlowModel(self, path, config)


class SlowModel(ToyModel, FileModel):
    """A model in a file on such a machine, with two threads unless the settings say another."""

    n_ctx_train = 0
    tokenizer = None

    def __init__(self, machine: SlowMachine, path: Path, config: EngineConfig) -> None:
        super().__init__([[0.5, 0.5], [0.5, 0.5]], n_ctx=256)
        self.machine, self.path, self.config = machine, path, config
        self.n_threads, self.n_threads_batch = config.threads(2)
        self.capabilities = replace(self.capabilities, threads=True)
        self.placement = {}

    def decode(self, tokens, n_logits=1, abort=None):
        """Append tokens when their time has passed. Raises Aborted."""
        n_threads = self.n_threads if len(tokens) == 1 else self.n_threads_batch
        left = self.machine.seconds(n_threads, len(tokens))
        while left > 0:
            if abort and abort():
                raise Aborted("stopped")
            self.machine.now += min(left, _STEP_S)
            left -= _STEP_S
        return super().decode(tokens, n_logits)

    def set_threads(self, n_threads: int, n_threads_batch: int) -> None:
        """Set the threads."""
        self.n_threads, self.n_threads_batch = n_threads, n_threads_batch

    def fingerprint(self) -> dict[str, Any]:
        """Return what its speed depends on."""
        return {"file": self.path.name, "threads": [self.n_threads, self.n_threads_batch]}
