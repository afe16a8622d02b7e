"""The memory of what was learned of drafts, beside the measured costs.

It holds rates by kind of evidence, and no text. An engine begins with what the last one of these
models has learned on this disk. Of two at the same time the one that writes last is remembered.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..backends import files
from ..costs.profiles import forget_all, keep, kept
from ..drafters.base import Learns
from ..types import Abort

logger = logging.getLogger("edgespec.kept")

_VERSION = 1  # of what is kept; another one is ignored
_KIND = "learned"


class Kept:
    """Keeps what drafters and policy have learned, for these model files.

    It is forgotten when one of them changes. As a work it may be done again and again.
    """

    doing = "keeping what was learned of drafts"

    def __init__(self, target: Path, draft: Path | None) -> None:
        paths = [path and str(path.resolve()) for path in (target, draft)]
        self._key = {"kind": _KIND, "models": paths}
        self._of = [_stamp(path) for path in (target, draft)]
        self._learners: Sequence[Learns] = ()
        self._last: dict[str, Any] = {}  # what of all names was read or kept last
        self._process = os.getpid()

    def recall(self, learners: Sequence[Learns]) -> None:
        """Give what is kept to those who learned it; `save` asks them later."""
        self._learners = learners
        found = kept(self._key)
        if found.get("version") == _VERSION and found.get("of") == self._of:
            self._last = found["learned"]
            for learner in learners:
                try:
                    learner.relearn(self._last)
                except Exception as error:
                    logger.warning("what was learned of drafts is damaged, and left out: %s", error)
                    logger.debug("its traceback", exc_info=True)

    def run(self, abort: Abort) -> bool:
        """Keep what was learned so far, while no request runs."""
        self.save()
        return True

    def save(self) -> None:
        """Keep what was learned so far, if it is new; a failure is only logged."""
        if os.getpid() != self._process:
            return  # what a forked process has is the parent's
        try:
            learned = dict(self._last)  # of drafters that other processes use, too
            for learner in self._learners:
                learned |= learner.learned()
            if learned != self._last and keep(
                self._key, {"version": _VERSION, "of": self._of, "learned": learned}
            ):
                self._last = learned
        except Exception as error:
            logger.warning("what was learned of drafts cannot be kept: %s", error)
            logger.debug("its traceback", exc_info=True)


def forget_learned(path: Path) -> None:
    """Delete what was learned with a model as the target or as the draft model."""
    name = str(path.resolve())
    forget_all(lambda key: key.get("kind") == _KIND and name in key["models"])


def _stamp(path: Path | None) -> list[list[Any]] | None:
    """Return what changes with the files of a model, for JSON."""
    if path is None:
        return None
    found = [(part.name, part.stat()) for part in files.parts(path)]
    return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in found]
