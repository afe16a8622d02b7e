"""The makers of heads with random weights, one for each kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from edgespec.backends.heads import KINDS, Kind
from tests.helpers import head_files, moa_files, mtp_files

MAKERS: Mapping[Kind, Callable[[], head_files.Made]] = {
    "eagle": head_files.eagle,
    "eagle3": head_files.eagle3,
    "medusa": head_files.medusa,
    "mlp_speculator": head_files.mlp_speculator,
    "dflash": head_files.dflash,
    "mtp": mtp_files.qwen,
    "moa": moa_files.moa,
}

OF_STATES = {kind: make for kind, make in MAKERS.items() if KINDS[kind].reads != "cache"}
"""The makers of heads that run for any target, because they read no target's cache."""
