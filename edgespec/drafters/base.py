"""The contract of drafters, and the context in which one is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ..backends.base import Model, Tokenizer
from ..backends.features import Features
from ..config import SpeculativeConfig
from ..sampling.base import Request
from ..types import Distribution, Requires, Verified, Work

Tokens = npt.NDArray[np.int32]

State = Any
"""A text, as a drafter sees it: the answer so far and guesses after it."""

NOWHERE = None
"""The state of a text after which a drafter guesses nothing, whatever follows."""

NOT_DRAWN = -1
"""In place of a token that is drawn only if it is worth its time."""

Children = Sequence[tuple[int, float]]
"""Tokens that may follow a text, each with the probability that it is accepted after it."""

LEAST = 0.02  # on no device does it pay to draft tokens that are accepted this seldom
TRUST = 0.8  # what unlikely guesses are estimated at counts so much: the best of many is too good


class Role(IntEnum):
    """Says what a policy lets a drafter do in an answer.

    MATCHED: guess tokens, which are accepted where the target chooses the same. DRAWN: only one
    token after each text can pay; a model may draw it, and the acceptance rule weighs it then with
    what it was drawn from.
    """

    OFF = 0
    MATCHED = 1
    DRAWN = 2


class Forecast(NamedTuple):
    """Says how a model's next draft may turn out, by its last ones, and how it is evaluated.

    histogram: pairs (share of drafts, acceptance probability of their first token), one for each
    class of how sure the model was of it. rate: acceptance rate of a further token after accepted
    ones. n_choices: after one text. max_depth: most tokens on a path, 0 for any number. one_pass:
    the first evaluation guesses them all. together: most states of one evaluation. max_leaves: most
    leaves of a tree of evaluated states.
    """

    histogram: tuple[tuple[float, float], ...]
    rate: float
    n_choices: int = 1
    max_depth: int = 0
    one_pass: bool = False
    together: int = 1
    max_leaves: int = 1

    @property
    def first(self) -> float:
        """The acceptance probability of the first token of a draft."""
        return sum([share * prob for share, prob in self.histogram])


class Drafter:
    """Something cheap that guesses the target's next tokens. Subclasses say what differs.

    It says what may follow a text, and never decides what that is worth. name: under which
    statistics count its guesses. wide: most of its guesses are unlikely; it rests where those
    cannot pay. evaluates: it evaluates a model to guess, and has
    `forecast`, `work`, `expand` and `draw` in place of `children`.
    reads_states: it reads hidden states of the target, which take it time to give.
    """

    name = ""
    wide = False
    evaluates = False
    reads_states = False

    def begin(self, request: Request, role: Role) -> Requires | None:
        """Begin a request, and return what it needs of the target, if it needs anything.

        role: MATCHED or DRAWN. The state that an earlier request left must not matter.
        """
        return None

    def root(self) -> State:
        """Return the state of the text so far."""
        return ()

    def step(self, state: State, token: int) -> State:
        """Return the state after one more token, whoever guessed it."""
        return (*state, token)

    def children(self, state: State, least: float = 0.0) -> Children:
        """Return what may follow a state, the likeliest first; without a model, for nothing, and
        always the same. Children below `least` may be left out.
        """
        return ()

    def expand(self, states: Sequence[State]) -> list[Children]:
        """Evaluate the model, and return what may follow each state, the likeliest first: for a
        token that `draw` would draw, (NOT_DRAWN, probability) alone. Raises as `Model.decode`.
        """
        raise NotImplementedError

    def forecast(self) -> Forecast:
        """Return what the model is expected to guess."""
        raise NotImplementedError

    def work(self, states: Sequence[State]) -> Work | None:
        """Return what evaluating these states takes, all that is to be read before them included:
        no tokens where that was done before, None where it cannot be done.
        """
        raise NotImplementedError

    def draw(self, state: State) -> tuple[int, Distribution]:
        """Draw the token after a state that was expanded; return what it was drawn from as well."""
        raise NotImplementedError

    def accept(self, verified: Verified) -> None:
        """Learn from the emitted tokens, drafted or not."""

    def learned(self) -> Mapping[str, Any]:
        """Return what goes on in another process, as `Learns` has it; nothing by default."""
        return {}

    def relearn(self, state: Mapping[str, Any]) -> None:
        """Take what `learned` returned."""

    def learned_tokens(self) -> Mapping[str, Tokens]:
        """Return tokens of texts, which are private, by names of its own; none by default."""
        return {}

    def relearn_tokens(self, state: Mapping[str, Tokens]) -> None:
        """Take what `learned_tokens` returned, as `relearn`."""

    def close(self) -> None:
        """Free everything, and write what is kept. Calling it twice is harmless."""


@runtime_checkable
class Learns(Protocol):
    """A drafter or policy that goes on in another process with what it has learned.

    What is kept holds no text: rates by kind of evidence.
    """

    def learned(self) -> Mapping[str, Any]:
        """Return what was learned so far as plain data for JSON, under names of its own."""

    def relearn(self, state: Mapping[str, Any]) -> None:
        """Take what `learned` returned in an earlier process.

        It may hold names that this one does not know. Raises ValueError, TypeError or KeyError for
        values that cannot be, and is then as before.
        """


@dataclass(frozen=True, slots=True)
class DrafterContext:
    """The parts that a drafter may be made from.

    config: the user's settings, `config.options` among them. vocab_size: of the target. target:
    the target itself, None where it is on another machine. tokenizer: the target's.
    draft_model: the model that was loaded to draft with, if any. max_leaves: most leaves of a tree
    that the target evaluates; 1: it takes chains only. states: the target's hidden states by
    position, of the layers that drafters required; None where it gives none. draft_s: returns the
    seconds in which the draft model evaluates so many tokens after so many cached ones; None
    where that is not known.
    """

    config: SpeculativeConfig
    vocab_size: int
    target: Model | None = None
    tokenizer: Tokenizer | None = None
    draft_model: Model | None = None
    max_leaves: int = 1
    states: Features | None = None
    draft_s: Callable[[int, int], float | None] = lambda n_tokens, n_cached: None

    @property
    def is_remote(self) -> bool:
        """True if the target is on another machine."""
        return self.target is None
