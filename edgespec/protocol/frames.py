"""The frames: what a device and a verification server say to each other, as values.

The first five types come from the device, the others from the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..config import SamplingParams
from ..types import Logprob

VERSION = 2
SUBPROTOCOL = f"edgespec.verify.v{VERSION}"
"""The name under which WebSockets agree on this version of the protocol."""

NO_TOKEN = bytes(16)

Options = Mapping[str, bool | int | float | str]
"""What is asked for by name beyond the fields of a frame; integers are unsigned, of 64 bits."""

# codes of an ERROR
PROTOCOL, MODEL, VOCABULARY, UNSUPPORTED = 1, 3, 4, 5
CONTEXT_FULL, LIMIT, INTERNAL, CLOSING, CONSTRAINT = 6, 7, 8, 9, 10


@dataclass(frozen=True, slots=True)
class Open:
    """Start or resume a session; the first frame of a connection.

    version: VERSION. token: of the session to resume, NO_TOKEN for a new one.
    vocab_size, vocab_hash: of the device's tokenizer. model: the name that it wants, "" for any.
    options: for the whole session; a server refuses those that it does not know.
    """

    version: int
    token: bytes
    vocab_size: int
    vocab_hash: bytes
    model: str
    options: Options = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Begin:
    """Set the context: `keep` tokens that the server has, of this checksum, then `ids`.

    The first n_prompt tokens are prompt to penalties, the rest output. seed: of every draw. Of
    params only what changes a row of logits travels; where an answer ends the device decides.
    options: as in OPEN, for this context. They say what the output has to follow, as
    Constraint.description has it.
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
    """Check the draft `ids` after the first `length` tokens of the context.

    checksum: of these tokens. round: above every round of the session before. ahead: how many
    more tokens the server may emit by itself, each as the answer of a round of its own. parents:
    of a tree, as in sampling.trees; empty for a chain.
    """

    round: int
    length: int
    checksum: int
    ahead: int
    ids: tuple[int, ...]
    parents: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class More:
    """Go on emitting tokens without drafts, up to this round."""

    round: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop reading the prompt and stop emitting tokens."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The answer to OPEN.

    token: another one than was asked for where that session is gone. max_draft: most tokens of
    a VERIFY. max_ahead: most tokens that the server emits by itself. costs: pairs of a number of
    tokens and the microseconds that their evaluation takes. max_leaves: most leaves of a tree; 1
    where the server verifies chains only.
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
    """The first n_done tokens of the context are in the cache, the reused ones included.

    Once these are all the server is ready; what is left is evaluated with the first VERIFY.
    """

    generation: int
    n_done: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The verdict of a round: drafted tokens are accepted, and one of the target's own follows.

    accepted: the last accepted token of the draft, counted from 1; 0: none is. Of a chain that is
    how many are, of a tree those on the path to it are. server_us: microseconds since VERIFY came,
    or since the answer before. logprobs: of the accepted tokens and of `token`, if the request
    asked for them.
    """

    round: int
    accepted: int
    token: int
    server_us: int
    logprobs: tuple[Logprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Need:
    """The context that a frame named is unknown to the server: send BEGIN.

    have: how many tokens the server has, of this checksum; 0 for none.
    """

    have: int
    checksum: int


@dataclass(frozen=True, slots=True)
class Busy:
    """The server cannot serve this now: try again after retry_ms milliseconds."""

    retry_ms: int
    message: str


@dataclass(frozen=True, slots=True)
class Error:
    """The server gives up this connection; code is one of the constants above."""

    code: int
    message: str


Frame = Open | Begin | Verify | More | Cancel | Opened | Progress | Answer | Need | Busy | Error
