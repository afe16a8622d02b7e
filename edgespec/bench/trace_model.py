"""Models that repeat recorded answers, on a clock of virtual seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..backends.base import Capabilities
from ..cache.token_cache import common_prefix
from ..costs.curves import Curve
from ..sampling.trees import path_to
from ..types import Abort, Outputs
from .traces import Trace

VOCAB = 4096


class Clock:
    """A clock of virtual seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class TraceModel:
    """A model that repeats what was recorded.

    Token ids are a trace's own, made dense, so that rows are short. A row holds the recorded token
    with its probability, and as few others as make it the likeliest.
    """

    capabilities = Capabilities(32, 512, max_leaves=31)
    n_ctx = 1 << 20
    vocab_size = VOCAB

    def __init__(
        self, clock: Clock, curve: Curve, *, is_draft: bool, overhead: float = 0.0
    ) -> None:
        self._clock = clock
        self._curve = curve
        self._is_draft = is_draft
        self._overhead = overhead
        self._tokens: list[int] = []
        self._same = 0  # so many of them are the answer's own
        self.evaluated: list[tuple[int, int]] = []  # for this answer: tokens, behind so many

    @property
    def n_past(self) -> int:
        """Tokens in the cache."""
        return len(self._tokens)

    def tell(self, trace: Trace) -> None:
        """Set the answer that comes next."""
        self._trace = trace
        self._text = [*trace.prompt, *trace.output]
        self.evaluated = []
        self._same = common_prefix(self._tokens, self._text)

    def decode(
        self, tokens: Sequence[int], n_logits: int = 1, abort: Abort | None = None
    ) -> Outputs:
        """Return rows [n_logits, vocab_size] and let the clock run."""
        self._take_time(len(tokens))
        rows = np.full((n_logits, self.vocab_size), -np.inf)
        for i, token in enumerate(tokens, start=n_logits - len(tokens)):
            self._append(token)
            if i >= 0:
                self._fill(rows[i])
        return Outputs(rows)

    def decode_tree(
        self, tokens: Sequence[int], parents: Sequence[int], abort: Abort | None = None
    ) -> Outputs:
        """Return rows of the root and the nodes, and let the clock run as for a chain."""
        self._take_time(len(tokens))
        n_before = len(tokens) - len(parents)
        for token in tokens[:n_before]:
            self._append(token)
        self._nodes, root = list(tokens[n_before:]), len(self._tokens)
        rows = np.full((len(parents) + 1, self.vocab_size), -np.inf)
        for node in range(-1, len(parents)):
            self.keep(path_to(parents, node))
            self._fill(rows[node + 1])
            self.truncate(root)
        return Outputs(rows)

    def keep(self, path: Sequence[int]) -> None:
        """Append the nodes of a path of the last tree."""
        for node in path:
            self._append(self._nodes[node])

    def truncate(self, n_past: int) -> None:
        """Forget the tokens after the first `n_past`."""
        del self._tokens[n_past:]
        self._same = min(self._same, n_past)

    def checkpoint(self) -> Any:
        """Raise NotImplementedError: it truncates."""
        raise NotImplementedError

    def restore(self, state: Any) -> None:
        """Raise NotImplementedError: it truncates."""
        raise NotImplementedError

    def close(self) -> None:
        """Do nothing: there is nothing to free."""

    def _take_time(self, n_tokens: int) -> None:
        n_past, timed = len(self._tokens), n_tokens
        if not self._is_draft:  # its prefill costs every policy the same, and counts for none
            timed = min(timed, n_past + timed - len(self._trace.prompt) + 1)
        if timed > 0:
            self.evaluated.append((timed, n_past))
            self._clock.now += self._curve(timed, n_past) + self._overhead

    def _append(self, token: int) -> None:
        if self._same == len(self._tokens) < len(self._text):
            self._same += self._text[self._same] == token
        self._tokens.append(token)

    def _fill(self, row: npt.NDArray[np.float64]) -> None:
        """Write the logits behind the tokens so far."""
        best, sure = self._next()
        position = len(self._tokens) - len(self._trace.prompt)
        on_text = self._same == len(self._tokens) and not self._is_draft
        if on_text and 0 <= position < len(self._trace.top):
            for token, prob in self._trace.top[position]:
                row[token] = np.log(max(prob, 1e-6))
            row[best] = max(row.max() + 1e-3, np.log(sure))
            return
        row[best] = np.log(sure)
        n_others = min(1 + int((1 - sure) / (0.9 * sure)), 62)
        others = (best + 64 * np.arange(1, n_others + 1)) % VOCAB
        row[others] = np.log((1.0001 - sure) / len(others))

    def _next(self) -> tuple[int, float]:
        position, behind = self._same - len(self._trace.prompt), len(self._tokens) - self._same
        if not 0 <= position < len(self._trace.output):
            return 0, 0.5
        if not self._is_draft:
            return (0 if behind else self._text[self._same]), 0.9
        chain = self._trace.chains[position]
        drafted = [token for token, _ in chain[:behind]]
        known = behind < len(chain) and drafted == self._tokens[self._same :]
        return chain[behind] if known else (0, chain[-1][1])


def dense(trace: Trace) -> Trace:
    """Return the trace over few token ids, from 1. Raises ValueError for too many of them."""
    ids: dict[int, int] = {}

    def short(token: int) -> int:
        return ids.setdefault(token, len(ids) + 1)

    chains = [[(short(t), min(p, 0.9999)) for t, p in chain] for chain in trace.chains]
    prompt, output = list(map(short, trace.prompt)), list(map(short, trace.output))
    if len(ids) >= VOCAB:
        raise ValueError(f"trace {trace.id} has more than {VOCAB} different tokens")
    top = [[(short(t), p) for t, p in row if t in ids or len(ids) < VOCAB - 1] for row in trace.top]
    return Trace(trace.id, trace.category, prompt, output, chains, top)
