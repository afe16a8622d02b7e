"""The contract of a kind of draft."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ...engine import Engine
from ..planning import TrainingPlan
from ..work import Work


@dataclass(frozen=True, slots=True)
class MadeDraft:
    """A draft that a kind has made.

    path: the file that drafts, a GGUF or an ONNX graph. checkpoint: the folder of its card.
    title, license: of the card; facts: the rows of its table. simulated: the acceptance at each
    place of a draft, for drafts of 1, 2, … tokens, in the answers of `Work.checked`; empty if the
    kind simulates nothing.
    """

    path: Path
    checkpoint: Path
    title: str
    license: str
    facts: Mapping[str, str]
    simulated: Sequence[Sequence[float]] = field(default=())


class Kind(ABC):
    """Plans and makes one kind of draft. Its files are in a folder of its own, `folder`, in that of
    the training; `Work` has what all kinds share: target, prompts and recorded answers.
    """

    name: ClassVar[str]

    def __init__(self, work: Work) -> None:
        self.work = work
        self.folder: Path = work.folder / self.name

    def begun_with(self) -> dict[str, Any]:
        """Return the values, for JSON, that must not change between two runs, in addition to target
        and prompts.
        """
        return {}

    @abstractmethod
    def plan(self, engine: Engine) -> TrainingPlan:
        """Measure this device and return the plan. engine: the target with slots."""

    @abstractmethod
    def make(self, python: Path) -> MadeDraft:
        """Make the draft from the recorded answers, or go on with it after a kill.

        python: the interpreter that has the tools of `convert`.
        """
