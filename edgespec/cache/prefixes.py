"""Prefixes: the states of texts that a model has read, kept so that no prompt is read twice.

A text is kept in parts. Each part continues another one, so what many texts begin with is kept
once. Parts of one owner are never used for another owner; what belongs to EVERYBODY can be read by
all. The least recently used parts are dropped first.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .. import kept_files
from ..backends.base import Buffer
from ..device import available_memory
from .prefix_files import Identity, PrefixFile, PrefixFiles, touch

Tokens = npt.NDArray[np.int32]

EVERYBODY = "\0everybody"
"""The owner of prefixes that requests of all owners may use."""

BLOCK = 256  # tokens of a part: a text that branches off inside a part loads all of it
LEAST = 32  # tokens: reading fewer again takes next to no time
_SPARE = 256 << 20  # bytes that have to stay free for others
_LEARNS = 0.3  # weight of a new measurement
_LOAD_S, _READ_S = 1 / 2e9, 1 / 4e8  # seconds per byte from memory and disk, until measured


@dataclass(slots=True, eq=False)
class Part:
    """The state of a text's tokens from position `start` on.

    tokens: all tokens of the text, from position 0. before: the part that has the tokens before
    `start`, and maybe others after them; None if `start` is 0. state: None while it is only on
    disk. file: its file, None if it has none. used: when it was last used; later is larger.
    """

    tokens: Tokens
    start: int
    before: Part | None
    owner: str
    n_bytes: int
    state: Buffer | None
    file: PrefixFile | None = None
    used: int = 0
    n_after: int = 0  # parts that continue it

    def chain(self) -> list[Part]:
        """Return the parts that the text consists of, this one last."""
        parts = [self]
        while before := parts[0].before:
            parts.insert(0, before)
        return parts


@dataclass(slots=True)
class Match:
    """A kept text that begins like a prompt. n: the number of equal tokens. parts: what has to be
    loaded, in this order; before each, the cache is truncated to its `start`.
    """

    n: int
    parts: list[Part]

    def without(self, n_cached: int) -> Match:
        """Return the match for a cache that has the first `n_cached` tokens of the prompt."""
        ends = [part.start for part in self.parts[1:]] + [self.n]
        pairs = zip(self.parts, ends, strict=True)
        return Match(self.n, [part for part, end in pairs if end > n_cached])


@dataclass(slots=True)
class _Costs:
    """Seconds per byte, as measured in this process."""

    load_s: float = _LOAD_S
    read_s: float = _READ_S

    def of(self, parts: Sequence[Part]) -> float:
        """Return the expected seconds to load these parts."""
        return sum(
            part.n_bytes * (self.load_s + (self.read_s if part.state is None else 0))
            for part in parts
        )


@dataclass(slots=True, eq=False)
class PrefixStore:
    """The prefixes of all models of an engine, bounded in bytes. For several threads.

    most_bytes: most bytes of states in memory. files: the prefixes on disk, None for none.
    """

    most_bytes: int
    files: PrefixFiles | None = None
    _models: list[Prefixes] = field(default_factory=list)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _clock: Iterator[int] = field(default_factory=itertools.count)

    def of(self, identity: Identity | None) -> Prefixes:
        """Return the prefixes of a model, with those that are on disk. identity: everything that
        shapes its states, None for a model without a file, whose prefixes stay in memory.
        """
        prefixes = Prefixes(self, identity)
        if self.files and identity:
            for each in self.files.of(identity):
                prefixes.restore(each)
        self._models.append(prefixes)
        return prefixes

    @property
    def n_bytes(self) -> int:
        """The bytes of states in memory."""
        return sum(part.n_bytes for part in self._all() if part.state is not None)

    @property
    def keeps_all(self) -> bool:
        """True if everything is also kept on disk, whoever it belongs to."""
        return self.files is not None and self.files.keeps(is_everybodys=False)

    def describe(self) -> dict[str, Any]:
        """Return, for JSON, the bytes in memory and on disk, and the bounds."""
        with self._lock:
            told: dict[str, Any] = {"memory_bytes": self.n_bytes, "most_bytes": self.most_bytes}
            n_tokens = sum(len(part.tokens) - part.start for part in self._all())
        on_disk = {"disk_bytes": self.files.n_bytes()} if self.files else {}
        return told | {"tokens": n_tokens} | on_disk

    def clear(self) -> None:
        """Forget everything in memory."""
        with self._lock:
            for prefixes in self._models:
                prefixes.parts.clear()

    def close(self) -> None:
        """Write what is to be kept on disk, for some seconds at most."""
        if self.files:
            self.files.close()

    def _all(self) -> list[Part]:
        return [part for model in self._models for parts in model.parts.values() for part in parts]

    def touch(self, part: Part) -> None:
        """Note that a part is used, and after it the parts that it continues: they go last."""
        for each in reversed(part.chain()):
            each.used = next(self._clock)

    def make_room(self, n_bytes: int, kept: Part | None) -> bool:
        """Drop states until `n_bytes` more fit; return False if they cannot. kept: a part that is
        not dropped, and neither is what it continues.
        """
        if n_bytes > self.most_bytes:
            return False
        safe = kept.chain() if kept else []
        in_memory = [part for part in self._all() if part.state is not None]
        left = self.most_bytes - sum(part.n_bytes for part in in_memory)
        for part in sorted(in_memory, key=lambda part: part.used):
            if left >= n_bytes:
                return True
            if part in safe or (part.n_after and part.file is None):
                continue
            left += part.n_bytes
            part.state = None
            if part.file is None:
                self.drop(part)
        return left >= n_bytes

    def drop(self, part: Part) -> None:
        """Forget a part and all that continue it, whoever they belong to."""
        for after in [each for each in self._all() if each.before is part]:
            self.drop(after)
        for model in self._models:
            if part in (parts := model.parts.get(part.owner, [])):
                parts.remove(part)
                if not parts:
                    del model.parts[part.owner]
                if part.before:
                    part.before.n_after -= 1


class Prefixes:
    """The prefixes of one model. parts: the parts of each owner, under a salted hash of its
    name.
    """

    def __init__(self, store: PrefixStore, identity: Identity | None) -> None:
        self.parts: dict[str, list[Part]] = {}
        self._store, self._identity = store, identity
        self._costs = _Costs()
        self._salt = store.files.salt if store.files else b""

    @property
    def keeps_all(self) -> bool:
        """True if everything is also kept on disk, whoever it belongs to."""
        return self._store.keeps_all

    def match(self, owner: str, prompt: Sequence[int], *, whole: bool = False) -> Match | None:
        """Return the longest kept text that a prompt begins with, None if there is none. It ends
        before the prompt's last token, which has to be evaluated. whole: only complete texts can be
        used, as states of this model cannot be truncated.
        """
        tokens = np.asarray(prompt[:-1], np.int32)
        with self._store._lock:
            common = [(_n_common(part.tokens, tokens), part) for part in self._readable(owner)]
            fit = [(n, p) for n, p in common if n > p.start and (n == len(p.tokens) or not whole)]
            if not fit:
                return None
            n, part = max(fit, key=lambda one: (one[0], -len(one[1].tokens)))
            self._store.touch(part)
            return Match(n, part.chain())

    def n_known(self, owner: str, prompt: Sequence[int]) -> int:
        """Return how many of a prompt's first tokens any kept text begins with, whether its state
        can be used for that or not.
        """
        tokens = np.asarray(prompt[:-1], np.int32)
        with self._store._lock:
            return max((_n_common(p.tokens, tokens) for p in self._readable(owner)), default=0)

    def pays(self, match: Match, n_cached: int, token_s: float) -> bool:
        """Return whether loading is quicker than reading the tokens after the first `n_cached`.
        token_s: the seconds to read a token, 0 if unknown; then it is.
        """
        n = match.n - n_cached
        return n >= LEAST and (token_s == 0 or self._costs.of(match.parts) < n * token_s)

    def state_of(self, part: Part) -> Buffer | None:
        """Return the state of a part, from disk if need be; None if it is gone."""
        if (state := part.state) is not None or part.file is None:
            return state
        state, seconds = part.file.read()
        with self._store._lock:
            if state is None:
                self._store.drop(part)
                return None
            self._costs.read_s += _LEARNS * (seconds / len(state) - self._costs.read_s)
            if self._store.make_room(len(state), part):
                part.state = state
        return state

    def forget(self, part: Part) -> None:
        """Drop a part that a model refuses, and its file."""
        with self._store._lock:
            self._store.drop(part)
        if part.file:
            kept_files.remove(part.file.path)

    def loaded(self, part: Part, n_bytes: int, seconds: float) -> None:
        """Learn how long it took to load states of `n_bytes` into the model, of which `part` was
        the last.
        """
        touch(part)
        self._costs.load_s += _LEARNS * (seconds / n_bytes - self._costs.load_s)

    def missing(
        self, owner: str, tokens: Sequence[int], saves: Literal["", "whole", "prefix", "parts"]
    ) -> tuple[int, Part | None] | None:
        """Return from which position on the state of a text has to be saved, and the part that has
        the tokens before; None if enough is kept already, or memory is short.
        """
        text = np.asarray(tokens, np.int32)
        if len(text) < LEAST or available_memory() < _SPARE:
            return None
        with self._store._lock:
            common = [(_n_common(p.tokens, text), p) for p in self._readable(owner)]
            if saves == "whole":
                is_there = any(n == len(text) == len(p.tokens) for n, p in common)
                return None if is_there else (0, None)
            fit = [(n, p) for n, p in common if n >= LEAST and n > p.start]
            n, part = max(fit, key=lambda one: (one[0], -len(one[1].tokens)), default=(0, None))
            if part:
                self._store.touch(part)
            if len(text) - n < LEAST:
                return None
            return (n, part) if saves == "parts" else (0, None)

    def add(
        self, owner: str, tokens: Sequence[int], start: int, before: Part | None, state: Buffer
    ) -> Part | None:
        """Keep the state of a text from position `start` on; return the new part, None if there is
        no room for it. before: the part with the tokens before `start`, None if that is 0.
        """
        text, name = np.array(tokens, np.int32), self._name(owner)
        with self._store._lock:
            part = Part(text, start, before, name, len(state), state)
            if before and before not in self.parts.get(before.owner, ()):
                return None  # it was dropped in the meantime
            if not self._store.make_room(len(state), before):
                return None
            self._place(part)
            self._store.touch(part)
        files, identity = self._store.files, self._identity
        if files and identity and files.keeps(is_everybodys=owner == EVERYBODY):
            files.write(identity, part, is_everybodys=owner == EVERYBODY)
        return part

    def restore(self, file: PrefixFile) -> None:
        """Take a part that is on disk; its `before` must have been taken earlier."""
        header, before = file.header, None
        if header.before:
            before = next((p for p in self._every() if p.file and p.file.id == header.before), None)
            if before is None:
                return
        tokens = np.frombuffer(header.tokens, "<i4").astype(np.int32)
        self._place(Part(tokens, header.start, before, header.owner, file.n_bytes, None, file))

    def _place(self, part: Part) -> None:
        if part.before:
            part.before.n_after += 1
        self.parts.setdefault(part.owner, []).append(part)

    def _every(self) -> Iterator[Part]:
        return itertools.chain.from_iterable(self.parts.values())

    def _readable(self, owner: str) -> Iterator[Part]:
        names = dict.fromkeys((self._name(owner), self._name(EVERYBODY)))
        return itertools.chain.from_iterable(self.parts.get(name, ()) for name in names)

    def _name(self, owner: str) -> str:
        return hmac.new(
            self._salt, owner.encode("utf-8", "surrogatepass"), hashlib.sha256
        ).hexdigest()[:32]


def _n_common(a: Tokens, b: Tokens) -> int:
    """Return the length of the common prefix of two arrays."""
    n = min(len(a), len(b))
    different = a[:n] != b[:n]
    return int(different.argmax()) if different.any() else n
