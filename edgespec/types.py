"""Values passed between the parts of edgespec. This module imports no other edgespec module.

Values made at every step are named tuples, which are made in a third of the time of frozen
dataclasses.
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
"""Logits, [n, vocab_size], float32 from real engines and float64 from the toy model. A view that is
valid until the model's next call; never write to it."""


class Outputs(NamedTuple):
    """The result of one model call. logits: [n, vocab_size], as described at `Rows`.

    hidden: the hidden states of all tokens of the call, float32 [n_tokens, n_layers, hidden_size],
    a view valid until the next call; None if the model was not asked for any.
    """

    logits: Rows
    hidden: npt.NDArray[np.float32] | None = None


FinishReason = Literal["stop", "length", "context_full", "time_limit", "repetition", "cancelled"]

Abort = Callable[[], FinishReason | None]
"""A function called between steps, and from time to time during a long evaluation. Work stops when
it returns a reason."""


class Distribution(NamedTuple):
    """A distribution over the tokens that are left after the sampling transforms.

    ids: [n], strictly ascending. probs: float [n], sums to 1. Both are lists if top_k or top_p left
    few tokens (Python handles a few scalars faster than small arrays), else int64 and float64
    arrays. A token that is not listed has probability 0; a listed token may also have 0.
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
        """Return max(scale * p - p_other, 0) for each id of this distribution, in order."""
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
    """The hidden states of the target that a drafter needs during an answer.

    layers: the layers whose hidden states it needs, as in `Model.tap`. latest: at most this many
    last tokens of the prompt need states; 0 for all tokens whose states are kept.
    """

    layers: tuple[int, ...] = ()
    latest: int = 0


REQUIRES_NOTHING = Requires()


class Work(NamedTuple):
    """One evaluation of a draft model: `n_tokens` tokens after `n_cached` cached ones."""

    n_tokens: int
    n_cached: int


class Draft(NamedTuple):
    """Tokens proposed to the target.

    source: the names of the drafters. probs: the distribution that each token was drawn from; None
    if the draft is deterministic, or was drawn with the Gumbel noise that it shares with the
    target. expected: the estimated number of accepted tokens. evaluated: the evaluations of draft
    models that made it. parents: the parent of each node of a tree, as in sampling.trees; empty for
    a chain. n_filled: rows to evaluate in addition, because that takes less time; they are no part
    of the draft.
    """

    tokens: tuple[int, ...] = ()
    source: str = "none"
    probs: tuple[Distribution, ...] | None = None
    expected: float = 0.0
    evaluated: tuple[Work, ...] = ()
    parents: tuple[int, ...] = ()
    n_filled: int = 0


NO_DRAFT = Draft()


class Budget(NamedTuple):
    """The limits of a step, in tokens.

    limit: most drafted tokens. n_past: tokens in the context. n_emitted: tokens of the answer so
    far. remaining: most tokens that the request can still emit. max_leaves: most leaves of a draft
    that is a tree; 1 if the target takes only chains. plain_s: the seconds of a step together
    with those of other streams, all without drafts and none reading its prompt; 0 for a stream that
    is alone.
    """

    limit: int
    n_past: int = 0
    n_emitted: int = 0
    remaining: int = 1 << 30
    max_leaves: int = 1
    plain_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Logprob:
    """The natural-log probability of an emitted token under the target's unmodified logits.

    top: the likeliest tokens at its position, best first, as pairs (token, log-probability).
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Verified(NamedTuple):
    """The result of a step as drafters see it. tokens: emitted tokens, cut where the answer ends.

    rows: the target's logits row that each emitted token was chosen from, views valid until
    `accept` returns; empty if the target is on another machine. drafted: all tokens of the draft,
    accepted or not. drafted_rows: the logits row after each drafted token; valid or empty as `rows`
    is.
    """

    tokens: tuple[int, ...]
    rows: Rows | Sequence[Row] = ()
    drafted: tuple[int, ...] = ()
    drafted_rows: Rows | Sequence[Row] = ()


class Verdict(NamedTuple):
    """The result of a verification: `n_accepted` drafted tokens and one of the target's own.

    tokens: the accepted tokens, then the recovered (after a rejection) or bonus token.
    n_evaluated: the number of tokens that the target evaluated, n_filled of which only filled rows.
    seconds: the time this took. rows: the logits row that each token was chosen from, views valid
    until the next verification; empty if the target is on another machine. drafted_rows: the logits
    row after each drafted token, accepted or not.
    """

    tokens: tuple[int, ...]
    n_accepted: int
    logprobs: tuple[Logprob, ...] | None = None
    n_evaluated: int = 0
    seconds: float = 0.0
    rows: Rows | Sequence[Row] = ()
    drafted_rows: Rows | Sequence[Row] = ()
    n_filled: int = 0


class StepStats(NamedTuple):
    """The figures of one step: a draft and its verification.

    Times are in seconds. n_evaluated, n_filled: as in Verdict. draft_evaluated: as `evaluated` in
    Draft. widths: the number of nodes of a tree at each depth; empty for a chain. plain_s: the
    seconds that this step would have taken without anybody's drafts, together with the other
    streams that were evaluated with it; the times are then those of all. It is 0 for a stream that
    was alone. n_beside: the rows that the drafts of other streams took.
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
    n_filled: int = 0
    plain_s: float = 0.0
    n_beside: int = 0


@dataclass(slots=True)
class Stats:
    """The figures of one request: its costs and gains. Times are in seconds.

    mean_acceptance_length: 1 + accepted / steps. draft_acceptance_rate: accepted / drafted.
    acceptance_histogram: the number of steps that accepted exactly i drafted tokens, i = 0, 1, …
    drafted_per_position, accepted_per_position: the number of tokens drafted and accepted at
    position i of a draft, i = 0, 1, …
    num_spec_steps: all steps, plain ones included. num_draft_steps: the steps with a draft.
    num_filled_rows: rows that were evaluated beyond the drafts because that took less time.
    tokens_per_second: emitted tokens after the first / seconds since the first.
    plain_s: the seconds that plain decoding would have taken for the tokens after the first,
    calculated from its measured costs on this device. speedup: plain_s / seconds since the first
    token. It is None if the costs were not measured, if nothing was drafted, and if the answer was
    ended because it repeated itself: drafting repetitions well is no gain.
    num_repeated_tokens: the number of repeated tokens at the end of such an answer.
    num_accepted_prediction_tokens, num_rejected_prediction_tokens: the accepted and rejected
    drafted tokens that also follow the same two tokens in the request's prediction.
    speculation, sampling: descriptions of how the request was drafted and sampled, for people.
    """

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_prefilled_tokens: int = 0
    num_emitted_tokens: int = 0
    num_spec_steps: int = 0
    num_draft_steps: int = 0
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    num_filled_rows: int = 0
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
        self.num_filled_rows += step.n_filled
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
        """Seconds of plain decoding / seconds since the first token; None if it is not known."""
        if not self.num_draft_tokens or self.num_repeated_tokens:
            return None
        if not self.plain_s or self.decode_s <= 0:
            return None
        return self.plain_s / self.decode_s

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and rates for JSON, times in ms, and `timings` as llama.cpp has it."""
        plain = {k: v for k, v in asdict(self).items() if not k.endswith("_s")}
        n_decoded, n_read = max(1, self.num_emitted_tokens - 1), self.num_prefilled_tokens
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
                "prompt_per_token_ms": _rate(1e3 * self.time_to_first_token_s, n_read),
                "prompt_per_second": _rate(n_read, self.time_to_first_token_s),
                "cache_n": self.num_cached_tokens,
                "predicted_n": self.num_emitted_tokens,
                "predicted_ms": round(1e3 * self.decode_s, 3),
                "predicted_per_token_ms": round(1e3 * self.decode_s / n_decoded, 3),
                "predicted_per_second": round(self.tokens_per_second, 3),
                "draft_n": self.num_draft_tokens,
                "draft_n_accepted": self.num_accepted_draft_tokens,
            },
        }


def _rate(amount: float, of: float) -> float:
    """Return a quotient for JSON, 0 if there is nothing to divide by."""
    return round(amount / of, 3) if of else 0.0


def _reach(counts: list[int], n: int) -> list[int]:
    """Extend `counts` with zeros to at least `n` entries and return it."""
    counts.extend([0] * (n - len(counts)))
    return counts


class Thought(NamedTuple):
    """The texts before and after reasoning at the beginning of an answer.

    is_open: the prompt ends inside the reasoning.
    """

    begin: str
    end: str
    is_open: bool


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function call that the model asks for. arguments: JSON text, as the model generated it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of an answer: of its content, of its reasoning, or of a tool call.

    Parts of kind "call": the first part of call number `index` has its `id` and `name`; the `text`
    of the later parts is the JSON text of its arguments, piece by piece.
    """

    kind: Literal["content", "reasoning", "call"]
    text: str = ""
    index: int = 0
    id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Completion:
    """The answer of a finished request.

    token_ids: all emitted tokens, including the EOS token or the tokens of a stop string. text: the
    text of these tokens, cut before a stop string. stop_reason: the stop string or the id of the
    end token that ended the answer. logprobs: one entry for each token if the request asked for
    them. parsed: the value of an answer under a schema; None if the answer was cut, or if the
    schema is a type that refuses the value. reasoning, tool_calls: the reasoning and the calls in a
    chat's answer; `text` is the rest of the answer. notes: sentences on parts of a schema that were
    not enforced while the answer was generated.
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
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestStatus:
    """A request that runs. It tells nothing about texts and owners.

    slot: the number of its slot, from 0. state: "reading" until the first token of the answer,
    "answering" after it. num_read_tokens: the tokens of the prompt that were read or reused, of
    num_prompt_tokens in all. running_s: seconds since the request got its slot.
    """

    slot: int
    state: Literal["reading", "answering"]
    num_prompt_tokens: int
    num_read_tokens: int
    num_emitted_tokens: int
    running_s: float


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """The state of an engine at one moment; `dataclasses.asdict` makes it ready for JSON.

    n_waiting: the number of requests that wait for a slot. running: the requests that have one.
    """

    n_slots: int
    n_waiting: int
    running: tuple[RequestStatus, ...]


class Event(NamedTuple):
    """One event of a request, as a stream yields it.

    "prefill": `n_done` of `n_total` prompt tokens are in the cache. `picture` names the picture, or
               the part of one, that is encoded next; "" if none is.
    "notice":  `text` is a message for the user (such as: turns were dropped from a full context).
    "token":   `token` was emitted; `text` is the text that can be shown now (it may be empty while
               a character or a possible stop string is incomplete); `from_draft` is True if the
               token was drafted.
    "done":    `text` is the rest of the text, which was held back; `completion` is the whole
               answer.

    parts: the pieces of reasoning, calls and content that this event adds, in order, in a chat with
    tools or with a model that reasons. `text` is then only the content.
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
    picture: str = ""
