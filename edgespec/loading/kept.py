"""The memory of what was learned of drafts, beside the measured costs.

It holds rates by kind of evidence, and no text; tokens that likely follow others lie in a file of
their own, which nobody else may read. An engine begins with what the last one of these models has
learned on this disk. Of two at the same time the one that writes last is remembered.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..backends import files
from ..corpus.collection import delete
from ..corpus.stored import Stored
from ..costs.profiles import folder, forget_all, keep, kept
from ..drafters.base import Learns, LearnsTokens, Tokens
from ..policies.draft_gain import DraftGain
from ..types import Abort

logger = logging.getLogger("edgespec.kept")

_VERSION = 1  # of what is kept; another one is ignored
_KIND = "learned"
_STAMP = "model"  # of a file of tokens: what it was learned of


class Kept:
    """Keeps what drafters and policy have learned, for these model files.

    It is forgotten when one of them changes. As a work it may be done again and again. tokens: keep
    those as well.
    """

    doing = "keeping what was learned of drafts"

    def __init__(self, target: Path, draft: Path | None, *, tokens: bool = True) -> None:
        self._paths = target, draft
        self._key = _key(self._paths)
        self._of = [_stamp(path) for path in self._paths]
        self._tokens = TokensFile(target) if tokens else None
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
                _attempt(functools.partial(learner.relearn, self._last))
        learning = [part for part in learners if isinstance(part, LearnsTokens)]
        if self._tokens and learning and (tokens := self._tokens.read()):
            for part in learning:
                _attempt(functools.partial(part.relearn_tokens, tokens))

    def run(self, abort: Abort) -> bool:
        """Keep what was learned so far, while no request runs."""
        self.save()
        return True

    def save(self) -> None:
        """Keep what was learned so far, if it is new; a failure is only logged."""
        if os.getpid() != self._process:
            return  # what a forked process has is the parent's
        if not self._is_current():
            return  # a model was deleted or replaced, and what was learned of it with it
        try:
            learned = dict(self._last)  # of drafters that other processes use, too
            for learner in self._learners:
                learned |= learner.learned()
            if learned != self._last and keep(
                self._key, {"version": _VERSION, "of": self._of, "learned": learned}
            ):
                self._last = learned
                if self._tokens:
                    self._tokens.write(self._learners)
        except Exception as error:
            logger.warning("what was learned of drafts cannot be kept: %s", error)
            logger.debug("its traceback", exc_info=True)

    def _is_current(self) -> bool:
        """Return True if the models' files are those that it was made with."""
        with contextlib.suppress(OSError):
            return [_stamp(path) for path in self._paths] == self._of
        return False


class TokensFile:
    """The file of the tokens that were learned of a model, for its user only."""

    def __init__(self, model: Path) -> None:
        digest = hashlib.sha256(os.fsencode(model.resolve())).hexdigest()
        self.path = _tokens_folder() / f"{digest[:24]}.npz"
        stamp = json.dumps([_VERSION, files.label(model), _stamp(model)])
        self._stamp = np.frombuffer(stamp.encode(), np.uint8)
        self._was_there = False

    def read(self) -> dict[str, Tokens]:
        """Return what was written by names, {} for nothing."""
        try:
            with np.load(self.path, allow_pickle=False) as file:
                if np.array_equal(file[_STAMP], self._stamp):
                    self._was_there = True
                    return {name: file[name] for name in file.files if name != _STAMP}
        except OSError:
            pass
        except Exception as error:
            logger.warning("%s is damaged, and left out: %s", self.path, error)
        return {}

    def write(self, learners: Iterable[Learns]) -> None:
        """Replace the file by what is learned now, if that is anything, and if nobody has deleted
        the file meanwhile.
        """
        if self._was_there and not self.path.exists():
            return
        tokens: dict[str, Any] = {}
        for part in learners:
            tokens |= part.learned_tokens() if isinstance(part, LearnsTokens) else {}
        if not any(map(len, tokens.values())):
            return
        tokens[_STAMP] = self._stamp
        partial = self.path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.parent.chmod(0o700)
            with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                np.savez(file, **tokens)
            partial.replace(self.path)
            self._was_there = True
        except OSError as error:
            with contextlib.suppress(OSError):
                partial.unlink()
            logger.info("tokens cannot be kept in %s: %s", self.path.parent, error)


def draft_gain(target: Path, draft: Path) -> tuple[DraftGain, float]:
    """Return what a draft model or head has gained for a target by what is kept of these files, and
    how many seconds ago that was kept last. Nothing is known of files that have changed.
    """
    gain = DraftGain()
    found = kept(_key((target, draft)))
    if found.get("version") == _VERSION and found.get("of") == [_stamp(target), _stamp(draft)]:
        _attempt(functools.partial(gain.relearn, found["learned"]))
    return gain, time.time() - found.get("created", 0.0)


def _key(paths: Sequence[Path | None]) -> dict[str, Any]:
    """Return the fingerprint of what is learned with a target and a draft model."""
    return {"kind": _KIND, "models": [path and str(path.resolve()) for path in paths]}


def _attempt(relearn: Callable[[], None]) -> None:
    """Let somebody take what was kept; what it refuses is left out."""
    try:
        relearn()
    except Exception as error:
        logger.warning("what was learned of drafts is damaged, and left out: %s", error)
        logger.debug("its traceback", exc_info=True)


def forget_learned(path: Path) -> None:
    """Delete what was learned with a model as the target or as the draft model."""
    with contextlib.suppress(OSError):
        TokensFile(path).path.unlink()
    name = str(path.resolve())
    forget_all(lambda key: key.get("kind") == _KIND and name in key["models"])


def stored_tokens() -> list[Stored]:
    """Return the files of tokens that were learned of models."""
    found = []
    for path in sorted(_tokens_folder().glob("*.npz")):
        model, n_tokens = "", 0
        with contextlib.suppress(Exception), np.load(path, allow_pickle=False) as file:
            _, model, _ = json.loads(file[_STAMP].tobytes())
            n_tokens = sum(len(file[name]) for name in file.files if name != _STAMP)
        found.append(Stored("tokens", path.stem, model, (), 0, n_tokens, path.stat().st_size))
    return found


def forget_tokens() -> int:
    """Delete the tokens that were learned of all models, and return the bytes that are free now."""
    return delete(*_tokens_folder().glob("*"))


def _tokens_folder() -> Path:
    return folder() / "tokens"


def _stamp(path: Path | None) -> list[list[Any]] | None:
    """Return what changes with the files of a model, for JSON."""
    if path is None:
        return None
    found = [(part.name, part.stat()) for part in files.parts(path)]
    return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in found]
