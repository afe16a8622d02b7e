"""Answers of an engine that has no GPUs, no heads or no copies in other formats. Its package
imports those that are true for it.
"""

from __future__ import annotations

from pathlib import Path

from ..config import EngineConfig
from ..errors import ModelError
from .base import FileHead, FileModel
from .heads import HeadFacts
from .projectors import ProjectorFacts


def gpus(config: EngineConfig) -> list[str]:
    """Return []: only the CPU computes."""
    return []


def ignores_gpu_layers(config: EngineConfig) -> bool:
    """Return True if layers on a GPU are asked for."""
    return config.n_gpu_layers > 0


def is_head(path: Path) -> bool:
    """Return False: the format has no heads."""
    return False


def has_own_head(path: Path) -> bool:
    """Return False: a model's file never contains a head."""
    return False


def head_facts(path: Path) -> HeadFacts:
    """Raise ModelError: the format has no heads."""
    raise ModelError(f"{path} is no head; its format has none")


def projector_facts(path: Path) -> ProjectorFacts | None:
    """Return None: the format has no projectors."""
    return None


def open_head(path: Path, config: EngineConfig, target: FileModel) -> FileHead:
    """Raise ModelError: the format has no heads."""
    raise ModelError(f"{path} is no head; its format has none")


def can_requantize() -> bool:
    """Return False: the engine writes no copies."""
    return False


def requantizable(path: Path) -> bool:
    """Return False: the engine writes no copies."""
    return False


def requantize(path: Path, target: Path) -> None:
    """Raise ModelError: the engine writes no copies."""
    raise ModelError(f"the engine of {path} writes no copies in other formats")
