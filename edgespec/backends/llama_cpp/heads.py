"""Opening trained heads on llama.cpp, with the class for each kind."""

from __future__ import annotations

from pathlib import Path

from ...config import EngineConfig
from ...errors import ConfigError
from ..base import FileModel
from .assistant import LlamaCppAssistant
from .declarations import CHAINS, HEADS, missing
from .dflash import LlamaCppDFlash
from .eagle import LlamaCppEagle
from .head import LlamaCppHead
from .head_files import fitting
from .library import engine, lib
from .mtp import LlamaCppMtp, LlamaCppMtpChain

_CLASSES: dict[str, type[LlamaCppHead]] = {
    "eagle3": LlamaCppEagle, "mtp": LlamaCppMtp, "dflash": LlamaCppDFlash
}  # fmt: skip


def open_head(path: Path, config: EngineConfig, target: FileModel) -> LlamaCppHead:
    """Load a head for a target. The head is in a file of its own, or in the target's file if `path`
    is that of the target. Raises ModelError or a subclass, and ConfigError if head and target do
    not fit or the library cannot evaluate heads.
    """
    _check_library(Path(path), "heads", HEADS)
    file = fitting(Path(path), target)
    if file.assists:
        return LlamaCppAssistant(Path(path), config, target, file)
    if file.n_mtp > 1:
        _check_library(Path(path), "several MTP layers", CHAINS)
        return LlamaCppMtpChain(Path(path), config, target, file)
    return _CLASSES[file.facts.kind](Path(path), config, target, file)


def _check_library(path: Path, what: str, functions: tuple[str, ...]) -> None:
    """Raise ConfigError if the library lacks one of these functions."""
    if lacks := missing(lib, functions):
        raise ConfigError(
            f"{path.name}: {what} need {' and '.join(lacks)}, which {engine()} does not have; "
            "install another libllama or draft with something else"
        )
