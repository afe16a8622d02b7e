"""Values that travel between the parts. Nothing here imports anything of ours.

The values that every step makes are named tuples: making one takes a third of the time that a
frozen dataclass takes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Probs = npt.NDArray[np.float64]
Row = npt.NDArray[Any]
"""Logits of one position, [vocab_size]."""

Rows = npt.NDArray[Any]
"""Logits, [n, vocab_size], float32 from real engines and float64 from the toy: a view that
is valid until the model's next call, and must not be written to."""


class Outputs(NamedTuple):
    """The result of one call of a model: `logits`, [n, vocab_size], as described at `Rows`.

    hidden: hidden states of all tokens of the call, float32 [n_tokens, n_layers, hidden_size], a
    view valid until the next call; None from a model that was not asked for any.
    """

    logits: Rows
    hidden: npt.NDArray[np.float32] | None = None


FinishReason = Literal["stop", "length", "context_full", "time_limit", "repetition", "cancelled"]

Abort = Callable[[], FinishReason | None]
"""Asked between steps and now and then during a long evaluation: a reason stops it."""


class Distribution(NamedTuple):
    """A distribution over the tokens that the sampling transforms leave.

    ids: [n], strictly ascending. probs: float [n], sums to 1. Both are lists where top_k or
    top_p left few tokens (a few scalars are handled faster than small arrays), else int64 and
    float64 arrays. Every id that is not listed has probability zero; a listed one may, too.
    """

    ids: list[int] | Ids
    probs: list[float] | Probs

    def prob(self, token: int) -> float:
        """Return the probability of one token id."""
        i = bisect_left(self.ids, token)
        return float(self.probs[i]) if i < len(self.ids) and self.ids[i] == token else 0.0

    def largest(self) -> float:
        """Return the largest probability."""
        return max(self.probs) if isinstance(self.probs, list) else float(self.probs.max())

    def excess(self, scale: float, other: Distribution) -> list[float] | Probs:
        """Return max(scale * self - other, 0) at the ids of self."""
        if isinstance(self.probs, list):
            minus = other.prob
            pairs = zip(self.ids, self.probs, strict=True)
            return [max(scale * p - minus(t), 0.0) for t, p in pairs]
        result: Probs = np.maximum(scale * self.probs - other._at(np.asarray(self.ids)), 0)
        return result

    def _at(self, ids: Ids) -> Probs:
        """Return the probabilities of ascending `ids`, zero where a token is not listed."""
        own, probs = np.asarray(self.ids), np.asarray(self.probs)
        if np.array_equal(own, ids):
            return probs
        places = own.searchsorted(ids)
        places[places == len(own)] = 0
        return np.where(own[places] == ids, probs[places], 0.0)


class Requires(NamedTuple):
    """Says what a drafter needs of the target in an answer.

    layers: whose hidden states, as in `HiddenStates.tap`. latest: of how many latest tokens of the
    prompt at most; 0: of as many as are kept.
    """

    layers: tuple[int, ...] = ()
    latest: int = 0


REQUIRES_NOTHING = Requires()


class Work(NamedTuple):
    """An evaluation of a draft model: so many tokens after so many in its cache."""

    n_tokens: int
    n_cached: int


class Draft(NamedTuple):
    """Tokens proposed to the target.

    source: the drafters' names. probs: the distribution that each token was drawn from, or None for
    a draft that is deterministic, or drawn with the request's shared Gumbel noise. expected:
    estimated number of accepted tokens. evaluated: of a draft model for it. parents: of a tree, as
    in sampling.trees; empty for a chain.
    """

    tokens: tuple[int, ...] = ()
    source: str = "none"
    probs: tuple[Distribution, ...] | None = None
    expected: float = 0.0
    evaluated: tuple[Work, ...] = ()
    parents: tuple[int, ...] = ()


NO_DRAFT = Draft()


class Budget(NamedTuple):
    """The limits of a step, in tokens.

    limit: most drafted tokens. n_past: tokens in the context. n_emitted: tokens of the answer so
    far. remaining: most that the request can still emit. max_leaves: of a draft that is a tree; 1:
    the target takes chains only.
    """

    limit: int
    n_past: int = 0
    n_emitted: int = 0
    remaining: int = 1 << 30
    max_leaves: int = 1


@dataclass(frozen=True, slots=True)
class Logprob:
    """The natural-log probability of an emitted token under the target's unmodified logits.

    top: the likeliest tokens at its position, best first, as pairs (token, log-probability).
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Verified(NamedTuple):
    """The result of a step as drafters see it: the emitted `tokens`, cut where the answer ends.

    rows: the target's logits that each of them was chosen by, views until `accept` returns; none
    where the target is on another machine. drafted: all tokens of the draft, accepted or not.
    drafted_rows: the logits after each of them, as `rows`.
    """

    tokens: tuple[int, ...]
    rows: Rows | Sequence[Row] = ()
    drafted: tuple[int, ...] = ()
    drafted_rows: Rows | Sequence[Row] = ()


class Verdict(NamedTuple):
    """The result of a verification: `n_accepted` drafted tokens and one of the target's own.

    tokens: the accepted ones, then the recovered (after a rejection) or bonus token.
    n_evaluated: tokens that went through the target. seconds: time in the target. rows: the logits
    that each token was chosen by, views until the next verification; none from another machine.
    drafted_rows: those after each drafted token, accepted or not.
    """

    tokens: tuple[int, ...]
    n_accepted: int
    logprobs: tuple[Logprob, ...] | None = None
    n_evaluated: int = 0
    seconds: float = 0.0
    rows: Rows | Sequence[Row] = ()
    drafted_rows: Rows | Sequence[Row] = ()


class StepStats(NamedTuple):
    """The figures of one step, a draft and its verification.

    Times are in seconds. draft_evaluated: as `evaluated` in Draft. widths: of a tree, how many
    nodes it had at each depth; empty for a chain.
    """

    source: str
    n_drafted: int
    n_accepted: int
    n_emitted: int
    n_evaluated: int
    n_past: int
    draft_s: float
    verify_s: float
    total_s: float
    draft_evaluated: tuple[Work, ...] = ()
    widths: tuple[int, ...] = ()


@dataclass(slots=True)
class Stats:
    """The figures of one request: what it cost and gained. Times are in seconds.

    mean_acceptance_length: 1 + accepted / steps. draft_acceptance_rate: accepted / drafted.
    acceptance_histogram: steps that accepted exactly i drafted tokens, i = 0, 1, …
    accepted_per_position: drafted tokens accepted at position i of a draft, i = 0, 1, …
    num_spec_steps counts every step, plain ones included; num_draft_steps those with a draft.
    tokens_per_second: emitted tokens after the first over the time since the first.
    speedup: what plain decoding would have taken for these tokens, by what it was measured to
    take on this device (plain_s), over the time since the first; None where it was not measured,
    where nothing was drafted, and for an answer that was ended because it repeated itself:
    drafting that is no gain.
    num_repeated_tokens: at the end of such an answer.
    num_accepted_prediction_tokens, num_rejected_prediction_tokens: of the drafted tokens, those
    that the request's prediction has after the same two tokens.
    speculation, sampling: how the request was decoded, in words.
    """

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_prefilled_tokens: int = 0
    num_emitted_tokens: int = 0
    num_spec_steps: int = 0
    num_draft_steps: int = 0
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    num_repeated_tokens: int = 0
    num_accepted_prediction_tokens: int = 0
    num_rejected_prediction_tokens: int = 0
    acceptance_histogram: list[int] = field(default_factory=list)
    drafted_per_position: list[int] = field(default_factory=list)
    accepted_per_position: list[int] = field(default_factory=list)
    drafts_by_source: dict[str, dict[str, int]] = field(default_factory=dict)
    time_to_first_token_s: float = 0.0
    decode_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    total_s: float = 0.0
    plain_s: float = 0.0
    speculation: str = ""
    sampling: str = ""

    def add(self, step: StepStats) -> None:
        """Count one step."""
        self.num_spec_steps += 1
        self.num_draft_steps += step.n_drafted > 0
        self.num_draft_tokens += step.n_drafted
        self.num_accepted_draft_tokens += step.n_accepted
        self.num_emitted_tokens += step.n_emitted
        self.draft_s += step.draft_s
        self.verify_s += step.verify_s
        _reach(self.acceptance_histogram, step.n_accepted + 1)[step.n_accepted] += 1
        widths = step.widths or (1,) * step.n_drafted
        drafted = _reach(self.drafted_per_position, len(widths))
        accepted = _reach(self.accepted_per_position, len(widths))
        for i, width in enumerate(widths):
            drafted[i] += width
        for i in range(step.n_accepted):
            accepted[i] += 1
        if step.n_drafted:
            source = self.drafts_by_source.setdefault(
                step.source, {"steps": 0, "drafted": 0, "accepted": 0}
            )
            source["steps"] += 1
            source["drafted"] += step.n_drafted
            source["accepted"] += step.n_accepted

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted drafted tokens / steps."""
        return 1 + self.num_accepted_draft_tokens / max(1, self.num_spec_steps)

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted drafted tokens / drafted tokens."""
        return self.num_accepted_draft_tokens / max(1, self.num_draft_tokens)

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens after the first / seconds since the first."""
        return (self.num_emitted_tokens - 1) / self.decode_s if self.decode_s > 0 else 0.0

    @property
    def speedup(self) -> float | None:
        """Seconds of plain decoding / seconds since the first token; None if there is no such."""
        if not self.num_draft_tokens or self.num_repeated_tokens:
            return None
        if not self.plain_s or self.decode_s <= 0:
            return None
        return self.plain_s / self.decode_s

    def to_dict(self) -> dict[str, Any]:
        """Return fields and rates for JSON, times in ms, with llama.cpp's `timings`."""
        plain = {k: v for k, v in asdict(self).items() if not k.endswith("_s")}
        n_decoded = max(1, self.num_emitted_tokens - 1)
        return plain | {
            "mean_acceptance_length": round(self.mean_acceptance_length, 4),
            "draft_acceptance_rate": round(self.draft_acceptance_rate, 4),
            "time_to_first_token_ms": round(1e3 * self.time_to_first_token_s, 3),
            "mean_itl_ms": round(1e3 * self.decode_s / n_decoded, 3),
            "tokens_per_second": round(self.tokens_per_second, 3),
            "speedup": round(self.speedup, 4) if self.speedup else None,
            "draft_ms": round(1e3 * self.draft_s, 3),
            "verify_ms": round(1e3 * self.verify_s, 3),
            "total_ms": round(1e3 * self.total_s, 3),
            "timings": {
                "prompt_n": self.num_prefilled_tokens,
                "prompt_ms": round(1e3 * self.time_to_first_token_s, 3),
                "cache_n": self.num_cached_tokens,
                "predicted_n": self.num_emitted_tokens,
                "predicted_ms": round(1e3 * self.decode_s, 3),
                "predicted_per_second": round(self.tokens_per_second, 3),
                "draft_n": self.num_draft_tokens,
                "draft_n_accepted": self.num_accepted_draft_tokens,
            },
        }


def _reach(counts: list[int], n: int) -> list[int]:
    """Extend `counts` by zeros to at least `n` entries and return it."""
    counts.extend([0] * (n - len(counts)))
    return counts


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that a model wants called. arguments: JSON text, as it was generated."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of an answer: what it says, its reasoning, or a call of a tool.

    "call": the first part of call `index` has its id and its name, later ones go on with the JSON
    text of its arguments.
    """

    kind: Literal["content", "reasoning", "call"]
    text: str = ""
    index: int = 0
    id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Completion:
    """The answer of a finished request.

    token_ids: everything emitted, the EOS token or the tokens of a stop string included.
    text: what they say, cut before a stop string. stop_reason: the stop string, or the id of
    the end token, that ended it. logprobs: one entry a token when they were asked for.
    parsed: the value of an answer under a schema; None where it was cut, or the schema is a type
    that refuses it. reasoning, tool_calls: of a chat's answer; `text` is what else is in it.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None
    stats: Stats
    logprobs: tuple[Logprob, ...] | None = None
    parsed: Any = None
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


class Event(NamedTuple):
    """One thing that happened during a request, as a stream yields it.

    "prefill": `n_done` of `n_total` prompt tokens are in the cache.
    "notice":  `text` is something the user should know (turns dropped from a full context).
    "token":   `token` was emitted; `text` is what can be shown now (it may be empty while a
               character or a possible stop string is incomplete); `from_draft` says whether
               it was drafted.
    "done":    `text` is what was held back, `completion` the whole answer.

    parts: in a chat with tools, or with a model that writes reasoning, the pieces of reasoning,
    calls and content that this event adds, in their order; `text` is the content alone.
    """

    type: Literal["prefill", "notice", "token", "done"]
    token: int | None = None
    text: str = ""
    from_draft: bool = False
    logprob: Logprob | None = None
    n_done: int = 0
    n_total: int = 0
    completion: Completion | None = None
    parts: tuple[Part, ...] = ()
