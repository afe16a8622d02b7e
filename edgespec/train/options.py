"""The options of a training."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ..errors import ConfigError

_PASSES = 8  # over the answers


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """The options of a training.

    kind: the kind of draft, a name in `edgespec.train_kinds`, or "auto". n_tokens: tokens of
    answers to train with. minutes: the time of the training itself; 0 for eight passes over the
    answers. vocabulary: most tokens that the draft may guess; the most frequent ones are taken.
    seed: of all random numbers. depth: steps of the training-time test. batch_tokens: most tokens
    of a batch. rate: the highest learning rate, 0 for that of the kind. n_steps: optimiser steps in
    place of passes or minutes, 0 for these. n_layers: layers of a draft model that are trained, the
    last ones. start: what is trained further; its kind says what that can be.
    """

    kind: str = "auto"
    n_tokens: int = 100_000
    minutes: float = 0.0
    vocabulary: int = 8192
    seed: int = 0
    depth: int = 3
    batch_tokens: int = 1024
    rate: float = 0.0
    n_steps: int = 0
    n_layers: int = 4
    start: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        for name in ("n_tokens", "vocabulary", "depth", "batch_tokens", "n_layers"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be more than 0, got {getattr(self, name)!r:.40}")
        for name in ("minutes", "seed", "n_steps", "rate"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} must be at least 0, got {getattr(self, name)!r:.40}")

    @property
    def passes(self) -> int:
        """The passes over the answers, 0 if the minutes decide."""
        return 0 if self.minutes else _PASSES
