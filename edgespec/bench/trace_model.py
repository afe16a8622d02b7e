"""Models that replay recorded answers, and a clock of virtual seconds for them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..backends.base import Capabilities, Model
from ..cache.token_cache import common_prefix
from ..costs.curves import Curve
from ..errors import ConfigError
from ..sampling.trees import path_to
from ..types import Abort, Outputs
from .traces import N_TOP, Drafts, Ranked, Trace

VOCAB = 1 << 15
_N_NEVER = 128  # first ids, which no recorded token has; guessed where nothing is known
_UNKNOWN: Ranked = [(token, 0.5 ** (token + 1)) for token in range(N_TOP)]
_LEAST = 1e-6  # probability of a recorded token if its own was rounded to 0


class Clock:
    """A clock of virtual seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class TraceModel(Model):
    """A model that returns recorded rows, from traces whose tokens were numbered by `dense`.

    A row has the recorded tokens with their probabilities. The rest of the probability goes to
    tokens that are never right. After a wrong token, a target returns the row that it last returned
    after the same token in the answer, so that nothing new is learned from rejected tokens. A draft
    model has recorded rows for its own draft after its first wrong token. After other wrong tokens,
    it guesses tokens that are never right, with the probabilities of its recorded row at that
    depth.

    source: the name of the draft model in traces; None for the target.
    """

    capabilities = Capabilities(32, 512, max_leaves=31, grows=True)
    n_ctx = 1 << 20
    vocab_size = VOCAB

    def __init__(
        self, clock: Clock, curve: Curve, *, source: str | None = None, overhead: float = 0.0
    ) -> None:
        self._clock = clock
        self._curve = curve
        self._source = source
        self._overhead = overhead
        self._tokens: list[int] = []
        self._same = 0  # number of first tokens that equal the trace's
        self._seen: dict[int, Ranked] = {}  # for each token, the target's last row after it
        self._nodes: list[int] = []  # nodes of a tree, until `keep`
        self._parents: list[int] = []
        self._rows = np.full((0, VOCAB), -np.inf, np.float32)
        self._written: list[list[int]] = []  # for each row, the ids that are not -inf
        self.evaluated: list[tuple[int, int]] = []  # of this answer: (tokens, cached before)

    @property
    def n_past(self) -> int:
        """The number of tokens in the cache."""
        return len(self._tokens)

    def tell(self, trace: Trace) -> None:
        """Set the trace of the next answer. Raises ValueError if `dense` has not numbered it."""
        self._trace = trace
        self._drafts = trace.drafts[self._source] if self._source else None
        self._text = [*trace.prompt, *trace.output]
        if not _N_NEVER <= min(self._text) <= max(self._text) < VOCAB:
            raise ValueError(f"the tokens of trace {trace.id} were not numbered by `dense`")
        self.evaluated = []
        self._same = common_prefix(self._tokens, self._text)

    def decode(
        self, tokens: Sequence[int], n_logits: int = 1, abort: Abort | None = None
    ) -> Outputs:
        """Return logits rows [n_logits, vocab_size], and advance the clock."""
        self._take_time(len(tokens))
        self._nodes, self._parents = [], []
        rows = self._blank(n_logits)
        for i, token in enumerate(tokens, start=n_logits - len(tokens)):
            self._append(token)
            if i >= 0:
                self._fill(rows[i])
        return Outputs(rows)

    def decode_tree(
        self, tokens: Sequence[int], parents: Sequence[int], abort: Abort | None = None
    ) -> Outputs:
        """Return the rows of the root and the nodes, and advance the clock as for a chain."""
        self._take_time(len(tokens))
        n_before = len(tokens) - len(parents)
        for token in tokens[:n_before]:
            self._append(token)
        self._nodes, ends = list(tokens[n_before:]), {-1: len(self._tokens)}
        rows = self._blank(len(parents) + 1)
        self._fill(rows[0])
        for node, parent in enumerate(parents):  # depth-first: its parent's path is still there
            self._cut(ends[parent])
            self._append(self._nodes[node])
            ends[node] = len(self._tokens)
            self._fill(rows[node + 1])
        self._cut(ends[-1])
        return Outputs(rows)

    def grow(
        self, tokens: Sequence[int], parents: Sequence[int], abort: Abort | None = None
    ) -> Outputs:
        """Return the rows of more nodes of a tree, and advance the clock as for as many tokens."""
        self._take_time(len(tokens))
        root, first = len(self._tokens), len(self._nodes)
        self._nodes += tokens
        self._parents += parents
        rows = self._blank(len(tokens))
        for node, row in enumerate(rows, start=first):
            for before in path_to(self._parents, node):
                self._append(self._nodes[before])
            self._fill(row)
            self._cut(root)
        return Outputs(rows)

    def keep(self, path: Sequence[int]) -> None:
        """Append the nodes on a path of the last tree to the cache."""
        for node in path:
            self._append(self._nodes[node])
        self._nodes, self._parents = [], []

    def truncate(self, n_past: int) -> None:
        """Forget the tokens after the first `n_past`."""
        self._cut(n_past)

    def checkpoint(self) -> Any:
        """Raise NotImplementedError: this model can truncate instead."""
        raise NotImplementedError

    def restore(self, state: Any) -> None:
        """Raise NotImplementedError: this model can truncate instead."""
        raise NotImplementedError

    def close(self) -> None:
        """Do nothing: there is nothing to free."""

    def _cut(self, n: int) -> None:
        """Forget the tokens after the first n of the text."""
        del self._tokens[n:]
        self._same = min(self._same, n)

    def _take_time(self, n_tokens: int) -> None:
        n_past, timed = len(self._tokens), n_tokens
        if not self._drafts:  # a target's prefill costs every policy the same, so it takes no time
            timed = min(timed, n_past + timed - len(self._trace.prompt) + 1)
        if timed > 0:
            self.evaluated.append((timed, n_past))
            self._clock.now += self._curve(timed, n_past) + self._overhead

    def _append(self, token: int) -> None:
        if self._same == len(self._tokens) < len(self._text):
            self._same += self._text[self._same] == token
        self._tokens.append(token)

    def _blank(self, n: int) -> npt.NDArray[np.float32]:
        """Return `n` rows of -inf. Each call returns the same array."""
        for row, ids in zip(self._rows, self._written, strict=False):
            row[ids] = row[:_N_NEVER] = -np.inf
        self._written = []
        if n > len(self._rows):
            self._rows = np.full((n, VOCAB), -np.inf, np.float32)
        return self._rows[:n]

    def _fill(self, row: npt.NDArray[np.float32]) -> None:
        """Write the logits after the tokens so far into `row`."""
        ranked = self._known_row()
        left, least = 1.0, 1.0
        for token, prob in ranked:
            left, least = left - prob, max(prob, _LEAST)
            row[token] = math.log(least)
        row[ranked[0][0]] += 1e-4  # stays the likeliest if rounding made others equal
        if left > 0:  # for tokens that are never right, each less likely than recorded ones
            n = min(1 + int(left / (0.9 * least)), _N_NEVER - N_TOP)
            row[N_TOP : N_TOP + n] = math.log(min(left / n, 0.9 * least))
        self._written.append([token for token, _ in ranked])

    def _known_row(self) -> Ranked:
        position, wrong = self._same - len(self._trace.prompt), self._tokens[self._same :]
        if not 0 <= position < len(self._trace.output):
            return _UNKNOWN
        if self._drafts:
            return _drafted(self._drafts, position, wrong)
        if not wrong:
            self._seen[self._tokens[-1]] = self._trace.top[position]
        return self._seen.get(self._tokens[-1], _UNKNOWN)


def _drafted(drafts: Drafts, position: int, wrong: Sequence[int]) -> Ranked:
    """Return a draft model's row after the text before `position`, followed by wrong tokens."""
    if not wrong:
        return drafts.rows[position]
    line = [drafts.rows[position], *drafts.tails.get(position, drafts.rows[position + 1 :])]
    row = line[min(len(wrong), len(line) - 1)]
    own = [best for (best, _), *_ in line[: len(wrong)]]
    if own == wrong and len(wrong) < len(line):
        return row
    return [(token, prob) for token, (_, prob) in enumerate(row)]


def dense(traces: Iterable[Trace]) -> list[Trace]:
    """Return traces whose tokens are renumbered to ids below VOCAB, in the same way in all traces.

    If there are not enough ids, likely tokens of the target are left out unless they are in a text
    or a draft. Raises ConfigError if there are not enough ids for the texts and drafts.
    """
    traces = list(traces)
    ids: dict[int, int] = {}
    for token in itertools.chain(*map(_needed, traces)):
        ids.setdefault(token, _N_NEVER + len(ids))
    if len(ids) > VOCAB - _N_NEVER:
        raise ConfigError(
            f"{len(traces)} answers with {len(ids)} different tokens are too many to replay "
            f"together, at most {VOCAB - _N_NEVER} can be; record fewer"
        )
    for token, _ in itertools.chain(*itertools.chain(*(trace.top for trace in traces))):
        if len(ids) < VOCAB - _N_NEVER:
            ids.setdefault(token, _N_NEVER + len(ids))
    return [_renumbered(trace, ids) for trace in traces]


def _needed(trace: Trace) -> Iterator[int]:
    """Yield the tokens of a trace that a replay cannot do without."""
    yield from trace.prompt
    yield from trace.output
    for drafts in trace.drafts.values():
        for row in itertools.chain(drafts.rows, *drafts.tails.values()):
            yield from (token for token, _ in row)


def _renumbered(trace: Trace, ids: dict[int, int]) -> Trace:
    def rows(found: Iterable[Ranked]) -> list[Ranked]:
        return [[(ids[token], p) for token, p in row if token in ids] for row in found]

    drafts = {
        name: Drafts(rows(drafts.rows), {i: rows(tail) for i, tail in drafts.tails.items()})
        for name, drafts in trace.drafts.items()
    }
    prompt, output = ([ids[token] for token in text] for text in (trace.prompt, trace.output))
    return Trace(trace.id, trace.category, prompt, output, rows(trace.top), drafts)
