"""The files that keep what was learned from drafts, next to the measured costs.

They hold no text, only rates by kind of evidence, learned from requests without an owner. Tokens
that likely follow others are kept in a separate file that only the user can read. For a target on
another machine they are not kept at all. An engine begins with what the last engine with the same
models has learned, if it used the same disk. If two engines run at the same time, the files of the
engine that writes last remain.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from .. import kept_files
from ..backends import files
from ..corpus.collection import delete
from ..corpus.stored import Stored
from ..costs.profiles import Count, Entry, folder, forget_all, keep, kept
from ..drafters.base import Drafter, Learns, Tokens
from ..policies.draft_gain import DraftGain
from ..types import Abort
from .owners import OwnRates

logger = logging.getLogger("edgespec.kept")

_VERSION = 4  # version of the files; files of other versions are ignored
_KIND = "learned"
_OF_POLICY = {"accounts", "draft_gain"}  # names in what is learned
_MOST_BYTES = 64 << 20  # largest file of tokens that is read


class _Learned(Entry, frozen=True, kw_only=True):
    """Rates by kind of evidence. of: the stamps of the target's and the draft model's files."""

    of: list[Any]
    learned: dict[str, Any]


class Kept:
    """Keeps what drafters and policy have learned with these models, until a model changes.

    It is a piece of idle work that may be done any number of times. target: the target's file. For
    a target on another machine it is a function that returns the name of the model there. draft:
    the draft model's file, if there is one. tokens: True to keep learned tokens as well, if the
    target is a file.
    """

    doing = "keeping what was learned of drafts"
    urgent = False

    def __init__(
        self, target: Path | Callable[[], str], draft: Path | None, *, tokens: bool = True
    ) -> None:
        self._models = target, draft
        self._key, self._of = _key(self._models), _stamps(self._models)
        self._tokens = TokensFile(target) if tokens and isinstance(target, Path) else None
        self._rates = OwnRates(())
        self._last: dict[str, Any] = {}  # what was read or stored last, under all names
        self._process = os.getpid()

    def recall(self, rates: OwnRates, *others: OwnRates) -> None:
        """Give the kept rates and tokens to the parts that learned them, of all sessions.

        `save` later asks the first ones for what was learned. others: those of further sessions,
        which have the same store.
        """
        self._rates = rates
        learners = [part for each in (rates, *others) for part in each.learners]
        entry = kept(self._key, _Learned)
        if entry and entry.of == self._of:
            self._last = entry.learned
            for learner in learners:
                _attempt(functools.partial(learner.relearn, self._last))
        learning = [part for part in learners if isinstance(part, Drafter)]
        if self._tokens and learning and (tokens := self._tokens.read()):
            for part in learning:
                _attempt(functools.partial(part.relearn_tokens, tokens))

    def run(self, abort: Abort) -> bool:
        """Store what was learned so far and return True. Call this only while no request runs."""
        self.save()
        return True

    def save(self) -> None:
        """Store what was learned so far, if it is new; a failure is only logged."""
        if os.getpid() != self._process:
            return  # in a forked process everything belongs to the parent
        if not self._is_current():
            return  # a model was deleted or replaced, so what was learned with it is void
        try:
            learned = self._last | self._rates.learned()  # keep the rates of other drafters
            if learned != self._last and keep(self._key, {"of": self._of, "learned": learned}):
                self._last = learned
                if self._tokens:
                    self._tokens.write(self._rates.learners)
        except Exception as error:
            logger.warning("what was learned of drafts cannot be kept: %s", error)
            logger.debug("its traceback", exc_info=True)

    def _is_current(self) -> bool:
        """Return True if the models are still those that this object was made with."""
        with contextlib.suppress(OSError):
            return (_key(self._models), _stamps(self._models)) == (self._key, self._of)
        return False


class _Array(msgspec.Struct, frozen=True):
    """An int32 array: its shape and its bytes, little-endian."""

    shape: tuple[Count, ...]
    data: bytes

    def value(self) -> Tokens:
        """Return the array. Raises ValueError if the bytes do not fit its shape."""
        return np.frombuffer(self.data, "<i4").reshape(self.shape).astype(np.int32)


class _TokensFile(msgspec.Struct, frozen=True):
    """Tokens that were learned with a model. model: its name. of: the stamps of its files."""

    version: int
    model: str
    of: list[Any]
    arrays: dict[str, _Array]


class TokensFile:
    """The file with the tokens that drafters learned for a model. Only its owner can read it."""

    def __init__(self, model: Path) -> None:
        digest = hashlib.sha256(os.fsencode(model.resolve())).hexdigest()
        self.path = _tokens_folder() / f"{digest[:24]}.msgpack"
        self._model, self._of = files.label(model), files.stamps(model)
        self._was_there = False

    def read(self) -> dict[str, Tokens]:
        """Return the arrays of tokens by name, {} if there is no valid file."""
        content = kept_files.load(self.path, _read_tokens, "tokens are learned anew")
        if content is None or (content.version, content.of) != (_VERSION, self._of):
            return {}
        self._was_there = True
        return {name: array.value() for name, array in content.arrays.items()}

    def write(self, learners: Iterable[Learns]) -> None:
        """Replace the content of the file with the tokens that are learned by now.

        Nothing is written if there are no tokens, or if the file was deleted in the meantime.
        """
        if self._was_there and not self.path.exists():
            return
        tokens: dict[str, Tokens] = {}
        for part in learners:
            tokens |= part.learned_tokens() if isinstance(part, Drafter) else {}
        if not any(map(len, tokens.values())):
            return
        arrays = {
            name: _Array(array.shape, array.astype("<i4").tobytes())
            for name, array in tokens.items()
        }
        content = _TokensFile(_VERSION, self._model, self._of, arrays)
        try:
            kept_files.replace(self.path, [msgspec.msgpack.encode(content)])
            self._was_there = True
        except OSError as error:
            logger.info("tokens cannot be kept in %s: %s", self.path.parent, error)


def _read_tokens(path: Path) -> _TokensFile:
    content = msgspec.msgpack.decode(kept_files.read(path, _MOST_BYTES), type=_TokensFile)
    for array in content.arrays.values():
        array.value()
    return content


def draft_gain(target: Path, draft: Path) -> tuple[DraftGain, float]:
    """Return the stored gain of a draft model or head for a target, and its age in seconds.

    The gain is empty if a file has changed since. The age is inf if nothing is stored.
    """
    gain = DraftGain()
    entry = kept(_key((target, draft)), _Learned)
    if entry is None:
        return gain, math.inf
    if entry.of == _stamps((target, draft)):
        _attempt(functools.partial(gain.relearn, entry.learned))
    return gain, time.time() - entry.created


def keep_acceptance(target: Path, draft: Path, copy: Path) -> None:
    """Store for a copy of a draft model or head what drafters have learned with it, so that the
    first answers begin with that. What the policy has learned is left out: it depends on the other
    drafters, which were not there when the draft was tried alone. copy: may be the draft itself.
    """
    entry = kept(_key((target, draft)), _Learned)
    if entry and entry.of == _stamps((target, draft)):
        learned = {name: entry.learned[name] for name in entry.learned.keys() - _OF_POLICY}
        keep(_key((target, copy)), {"of": _stamps((target, copy)), "learned": learned})


def _key(models: Sequence[Path | Callable[[], str] | None]) -> dict[str, Any]:
    """Return the fingerprint under which the learned rates of a target and a draft are stored."""
    names = [model() if callable(model) else model and str(model.resolve()) for model in models]
    return {"kind": _KIND, "version": _VERSION, "models": names}


def _attempt(relearn: Callable[[], None]) -> None:
    """Call `relearn`, which takes what was stored; if it raises an error, only log the error."""
    try:
        relearn()
    except Exception as error:
        said = kept_files.one_line(error)
        logger.warning("what was learned of drafts is damaged, and left out: %s", said)
        logger.debug("its traceback", exc_info=True)


def forget_learned(path: Path) -> None:
    """Delete everything that was learned with a model as the target or as the draft model."""
    with contextlib.suppress(OSError):
        TokensFile(path).path.unlink()
    name = str(path.resolve())
    forget_all(lambda key: key.get("kind") == _KIND and name in key["models"])


def stored_tokens() -> list[Stored]:
    """Return a description of each file of learned tokens."""
    entries = []
    for path in kept_files.matching(_tokens_folder(), "*.msgpack"):
        content = kept_files.load(path, _read_tokens, "tokens are learned anew")
        if content:
            n_tokens = sum(array.shape[0] for array in content.arrays.values())
            size = path.stat().st_size
            entries.append(Stored("tokens", path.stem, content.model, (), 0, n_tokens, size))
    return entries


def forget_tokens() -> int:
    """Delete the tokens that were learned with all models; return the number of bytes freed."""
    return delete(*kept_files.matching(_tokens_folder(), "*"))


def _tokens_folder() -> Path:
    return folder() / "tokens"


def _stamps(models: Sequence[Path | Callable[[], str] | None]) -> list[list[list[Any]] | None]:
    """Return the stamps of each model's files, for JSON; None for a model without a file."""
    return [files.stamps(model) if isinstance(model, Path) else None for model in models]
