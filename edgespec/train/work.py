"""The part of a training that all kinds of drafts share: options, prompts and recorded answers."""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import kept_files
from ..backends import files
from ..backends.base import Tokenizer
from ..backends.features import MOST as MOST_STATES
from ..engine import Engine
from ..errors import ConfigError, EdgeSpecError
from ..loading.models import Reference, target_path
from .answers import MOST_ANSWER, N_SLOTS, prompt_ids, record, record_alone
from .gently import Pauses
from .opening import N_CTX, loaded
from .prompts import MOST, Files, Messages, fingerprint, own_prompts, read_prompts
from .recordings import ALONE, OWN_PROMPTS, Recordings

ADVICE = "run the same command again, which goes on from here"
MOST_CHECKED = 24  # conversations with which a draft is served
_HELD_OUT = 20  # one prompt of so many is held out
_PASSES = 8  # over the answers
_LOOKED_AT = 64  # prompts whose length is looked at
_USUAL = 100
"""Tokens of an answer: 75 were recorded on average in docs/results/distill_trim_qwen.json, and 120
in train_smollm2.json."""


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


class Work:
    """A training in its folder.

    target: the model as the user named it; path: its file. from_corpus: the user's own texts are
    prompts too, so the draft is private (is_private). times: the seconds of each step of the tools.
    pauses: waits while the machine is needed for something else, if the training is to go gently.
    """

    def __init__(
        self, target: Reference, prompts: Files, without: Files, folder: Path,
        options: TrainOptions, progress: Callable[[str], None], *,
        from_corpus: bool = False, gently: bool = False,
    ) -> None:  # fmt: skip
        self.options, self.folder, self.progress = options, folder, progress
        self.pauses = Pauses(progress, gently=gently)
        self.target, self.path = target, target_path(target)
        self.is_private = from_corpus or _only_mine(options.start)
        self._own = self._own_prompts() if from_corpus else []
        self.prompts: list[Messages] = read_prompts(prompts, without, self._own)
        self.times: dict[str, float] = {}
        self.recordings = Recordings(folder)

    def begun_with(self) -> dict[str, Any]:
        """Return the values, for JSON, that must not change between two runs."""
        return {"target": files.identity(self.path), "prompts": fingerprint(self.prompts)}

    def keep_own_prompts(self) -> None:
        """Write the user's own prompts to the folder, because there are others tomorrow."""
        if self._own:
            kept_files.replace(self.folder / OWN_PROMPTS, [json.dumps(self._own).encode()])

    def _own_prompts(self) -> list[Messages]:
        """Return the user's own prompts as they were when the training was begun."""
        path = self.folder / OWN_PROMPTS
        if path.exists():
            try:
                return kept_files.read_json(path, list[Messages], MOST)
            except ValueError as error:
                raise EdgeSpecError(f"{path} is damaged: {error}; give a new folder") from None
        return own_prompts(self.path)

    def longer(self, tokenizer: Tokenizer) -> float:
        """Return the number of tokens of a conversation for each token of its answer: of those that
        were recorded, or else of prompts that are spread over all of them.
        """
        if done := self.recordings.done:
            return sum(len(each.ids) for each in done) / sum(each.n_answer for each in done)
        sizes = []
        for messages in self.prompts[:: -(-len(self.prompts) // _LOOKED_AT)]:
            with contextlib.suppress(EdgeSpecError):  # it will count as failed
                sizes.append(len(prompt_ids(tokenizer, messages)))
        fitting = [size for size in sizes if size + MOST_ANSWER <= N_CTX]  # others are skipped
        return 1 + (float(np.mean(fitting)) if fitting else 0.0) / _USUAL

    @property
    def held_out(self) -> list[int]:
        """The numbers of the conversations that are only evaluated: all of some prompts."""
        prompts = [each.prompt for each in self.recordings.done]
        chosen = {n for n in prompts if zlib.crc32(b"%d" % n) % _HELD_OUT == 0}
        chosen = chosen or {prompts[0]}
        return [i for i, n in enumerate(prompts) if n in chosen]

    @property
    def checked(self) -> list[int]:
        """The numbers of the conversations with which the draft is served: those made alone, unless
        none of them is long enough.
        """
        done, able = self.recordings.done, self._checkable
        return [i for i in able if done[i].round == ALONE] or able[:MOST_CHECKED]

    @property
    def _checkable(self) -> list[int]:
        """The conversations that are held out, if possible without those whose prompts are so long
        that a head does not read their beginnings.
        """
        held_out, done = self.held_out, self.recordings.done
        return [i for i in held_out if done[i].n_prompt <= MOST_STATES] or held_out

    @property
    def asked(self) -> list[tuple[list[int], int]]:
        """The prompts of these conversations, each with the length of its answer."""
        checked = [self.recordings.done[i] for i in self.checked]
        return [(each.ids[: each.n_prompt], each.n_answer) for each in checked]

    @property
    def answers(self) -> list[list[int]]:
        """The answers that may be trained with."""
        held_out, done = set(self.held_out), self.recordings.done
        return [each.ids[each.n_prompt :] for i, each in enumerate(done) if i not in held_out]

    def frequent(
        self, n: int, vocab_size: int, always: Sequence[int] = (), rather: Sequence[int] = ()
    ) -> list[int]:
        """Return the `n` tokens to draft, ascending: those of `always`, the most frequent ones of
        the answers that may be trained with, then those of `rather`, then those with the lowest
        ids, which vocabularies made first.
        """
        counts = np.bincount(np.concatenate(self.answers), minlength=vocab_size).astype(float)
        counts[list(rather)] += 0.5
        counts[list(always)] = counts.max() + 1
        return sorted(np.argsort(-counts, kind="stable")[:n].tolist())

    def engine(self, n_slots: int = N_SLOTS) -> Engine:
        """Load the target with slots, and without drafts: with several answers at once, they are
        evaluated together.
        """
        self.progress("loading the target")
        return loaded(self.path, None, n_slots=n_slots, method="none")

    def answer(self, engine: Engine) -> None:
        """Record the answers that are missing."""
        self.progress("answers")
        record(engine, self.prompts, self.recordings, self.options.n_tokens, self.pauses)

    def answer_alone(self) -> None:
        """Record the answers with which the draft is checked, if any are missing."""
        done = self.recordings.done
        prompts = list(dict.fromkeys(done[i].prompt for i in self._checkable))[:MOST_CHECKED]
        asked = {each.prompt for each in self.recordings.all if each.round == ALONE}
        if not asked.issuperset(prompts):
            with self.engine(1) as engine:
                record_alone(engine, self.prompts, prompts, self.recordings, self.pauses)

    def check_answers(self) -> None:
        """Raise EdgeSpecError unless some answers are left when others are held out."""
        if len({each.prompt for each in self.recordings.done}) < 2:
            why = next((each.why for each in self.recordings.all if each.why), "no prompts")
            raise EdgeSpecError(
                "fewer than two prompts were answered, and one is held out for evaluation: "
                f"{why}; give more prompts"
            )


def _only_mine(start: str | os.PathLike[str] | None) -> bool:
    """Return True if a training begins with a draft that only its owner can read: it may have been
    made of private texts.
    """
    path = Path(start) if start else None
    return bool(path and os.name == "posix" and path.exists() and not path.stat().st_mode & 0o077)
