"""The target as devices see it: what they are told about it, and which devices it can serve."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ... import protocol
from ...backends.base import BatchedModel, Tokenizer
from ...config import CONSTRAINTS
from ...constraints.compiler import Constraints
from ...errors import ConfigError
from ...sampling.base import Constraint
from ..settings import names
from .types import DeviceSession

_KEPT_HASHES = 8  # one for each size of a device's vocabulary
_KEPT_CONSTRAINTS = 64
_PADDING = 0.95  # vocabularies of one family differ by padding, never by more than this ratio


KNOWN_OPTIONS = frozenset({
    *CONSTRAINTS, "answer", "reasoning_budget", "reasoning_begin", "reasoning_end",
    "reasoning_open",
})  # fmt: skip
"""The options of a BEGIN: together they describe a constraint."""


class ServedTarget:
    """The name, the vocabulary and the sizes of the target that devices verify against.

    name: the name under which devices may ask for the model. costs: returns pairs (number of
    tokens, microseconds to evaluate them). constraints: compiles the constraints
    on answers; by default a compiler that only devices use. vocab_size: the width of the target's
    logits, which may be padded beyond the size of the tokenizer's vocabulary.
    """

    def __init__(
        self,
        model: BatchedModel,
        tokenizer: Tokenizer,
        name: str = "",
        costs: Callable[[], Sequence[tuple[int, int]]] = tuple,
        constraints: Constraints | None = None,
    ) -> None:
        self.name = name
        self.vocab_size = model.vocab_size
        self.n_ctx = model.n_ctx
        self.max_draft = model.max_draft_rows - 1
        self.max_leaves = model.max_leaves
        self._tokenizer = tokenizer
        self._costs = costs
        self._constraints = constraints or Constraints(tokenizer)
        self._kept = functools.lru_cache(_KEPT_CONSTRAINTS)(self._compiled)
        self._hashes: dict[int, bytes] = {}
        self._hash(tokenizer.vocab_size)

    def refusal(self, asked: protocol.Open) -> protocol.Error | None:
        """Return the error for a device that cannot be served, None if it can be."""
        if asked.options:
            return protocol.Error(protocol.UNSUPPORTED, unknown_options(asked.options))
        if asked.model and not names(asked.model, self.name):
            return protocol.Error(
                protocol.MODEL, f"this server has {self.name!r}, not {asked.model[:200]!r}"
            )
        ours, theirs = self._tokenizer.vocab_size, asked.vocab_size
        if not _PADDING * ours <= theirs <= ours / _PADDING:
            return protocol.Error(
                protocol.VOCABULARY,
                f"the device's vocabulary has {theirs} tokens, the target's {ours}: take a "
                "tokenizer of the target's own family",
            )
        if theirs <= ours and asked.vocab_hash != self._hash(theirs):
            return protocol.Error(
                protocol.VOCABULARY,
                "the device's vocabulary is not the target's: take a tokenizer of its own family",
            )
        return None

    def opened(self, session: DeviceSession, max_ahead: int) -> protocol.Opened:
        """Return the answer to a device that was admitted."""
        n = self._tokenizer.vocab_size
        return protocol.Opened(
            protocol.VERSION, session.token, self.n_ctx, self.max_draft, max_ahead,
            n, self._hash(n), self.name, tuple(self._costs()), self.max_leaves,
        )  # fmt: skip

    def constraint(self, options: protocol.Options, owner: str = "") -> Constraint | None:
        """Return the constraint that a device's options describe, None if they describe none.

        A constraint that is not cached is compiled now. May be called from any thread. Raises
        ConfigError if the constraint cannot be compiled.
        """
        kept = self._kept(owner, tuple((k, type(v), v) for k, v in sorted(options.items())))
        if isinstance(kept, str):
            raise ConfigError(kept)
        return kept

    def _compiled(
        self, owner: str, options: tuple[tuple[str, type, Any], ...]
    ) -> Constraint | str | None:
        """Return a constraint, or the error text if it cannot be compiled; both are cached."""
        try:
            return self._constraints.described({name: value for name, _, value in options}, owner)
        except ConfigError as error:
            return str(error)

    def _hash(self, n: int) -> bytes:
        if n not in self._hashes:
            if len(self._hashes) >= _KEPT_HASHES:
                del self._hashes[next(reversed(self._hashes))]
            self._hashes[n] = protocol.vocabulary_hash(self._tokenizer, n)
        return self._hashes[n]


def unknown_options(options: Iterable[str]) -> str:
    """Return the error message for options that this server does not know."""
    named = ", ".join(repr(name[:50]) for name in list(options)[:5])
    return f"this server does not know the options {named}; leave them out, or ask a newer server"
