"""The frames that a device and a verification server send each other, as dataclasses.

The device sends the first five types, the server sends the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..config import SamplingParams
from ..types import Logprob

VERSION = 2
SUBPROTOCOL = f"edgespec.verify.v{VERSION}"
"""The WebSocket subprotocol by which both sides agree on this version of the protocol."""

NO_TOKEN = bytes(16)

Options = Mapping[str, bool | int | float | str]
"""Options by name, in addition to the fields of a frame. Integers are unsigned, of 64 bits."""

# codes of an ERROR
PROTOCOL, MODEL, VOCABULARY, UNSUPPORTED = 1, 3, 4, 5
CONTEXT_FULL, LIMIT, INTERNAL, CLOSING, CONSTRAINT = 6, 7, 8, 9, 10


@dataclass(frozen=True, slots=True)
class Open:
    """A request to start or resume a session; the first frame of a connection.

    version: VERSION. token: the token of the session to resume, NO_TOKEN for a new session.
    vocab_size, vocab_hash: the size and the hash of the device's vocabulary. model: the name of
    the model that the device wants, "" for any. options: options for the whole session; a server
    refuses those that it does not know.
    """

    version: int
    token: bytes
    vocab_size: int
    vocab_hash: bytes
    model: str
    options: Options = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Begin:
    """A new context: the first `keep` tokens that the server has, followed by `ids`.

    generation: a number that PROGRESS repeats. checksum: the checksum of the `keep` tokens.
    n_prompt: penalties treat the first n_prompt tokens as prompt, the rest as output. params: the
    sampling settings. Only those that change a row of logits are sent, because the device decides
    where an answer ends. seed: the seed of every random draw. options: options for this context;
    they describe the constraint on the output, as in Constraint.description.
    """

    generation: int
    keep: int
    checksum: int
    n_prompt: int
    params: SamplingParams
    seed: int
    ids: tuple[int, ...]
    options: Options = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verify:
    """A request to check the draft `ids` after the first `length` tokens of the context.

    checksum: the checksum of these `length` tokens. round: a number above all earlier rounds of
    the session. ahead: how many more tokens the server may emit without a draft; each comes in the
    ANSWER of a further round. parents: the parents of a tree's nodes, as in sampling.trees; empty
    for a chain.
    """

    round: int
    length: int
    checksum: int
    ahead: int
    ids: tuple[int, ...]
    parents: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class More:
    """A permission to go on emitting tokens without drafts, up to this round."""

    round: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """A request to stop reading the prompt and to stop emitting tokens."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The answer to OPEN.

    token: the session's token; it differs from the token in OPEN if that session is gone.
    max_draft: the most tokens in the draft of a VERIFY. max_ahead: the most tokens that the server
    emits without a draft. costs: pairs (number of tokens, microseconds to evaluate them).
    max_leaves: the most leaves of a tree; 1 if the server verifies only chains.
    """

    version: int
    token: bytes
    n_ctx: int
    max_draft: int
    max_ahead: int
    vocab_size: int
    vocab_hash: bytes
    model: str
    costs: tuple[tuple[int, int], ...] = ()
    max_leaves: int = 1


@dataclass(frozen=True, slots=True)
class Progress:
    """A report that the first n_done tokens of the context are in the cache, reused ones included.

    The server is ready once n_done is the length of the context. The device may send VERIFY before
    that; the remaining tokens are then evaluated together with the draft.
    """

    generation: int
    n_done: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The verdict of a round: which drafted tokens are accepted, and the target's token after them.

    accepted: the number of the last accepted token in the draft, counted from 1; 0 if none is
    accepted. In a chain all tokens up to it are accepted, in a tree those on the path to it.
    server_us: microseconds since VERIFY came, or since the previous ANSWER. logprobs: the
    log-probabilities of the accepted tokens and of `token`, if the request asked for them.
    """

    round: int
    accepted: int
    token: int
    server_us: int
    logprobs: tuple[Logprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Need:
    """A report that the server does not have the context of a frame; the device must send BEGIN.

    have: how many tokens the server has; 0 for none. checksum: the checksum of these tokens.
    """

    have: int
    checksum: int


@dataclass(frozen=True, slots=True)
class Busy:
    """The server cannot do this now; the device should try again after retry_ms milliseconds."""

    retry_ms: int
    message: str


@dataclass(frozen=True, slots=True)
class Error:
    """The reason why the server ends this connection; code is one of the constants above."""

    code: int
    message: str


Frame = Open | Begin | Verify | More | Cancel | Opened | Progress | Answer | Need | Busy | Error
