"""The contract of drafters, and the context that a drafter is made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from ..backends.base import Model, Tokenizer
from ..backends.features import Features
from ..cache.prefixes import Prefixes
from ..config import SpeculativeConfig
from ..sampling.base import Request
from ..types import Distribution, Requires, Verified, Work

Tokens = npt.NDArray[np.int32]

T = TypeVar("T")

State = Any
"""A drafter's own representation of a text: the answer so far, and guesses after it."""

NOWHERE = None
"""The state of a text after which a drafter guesses nothing, whatever follows."""

NOT_DRAWN = -1
"""A placeholder for a token that is drawn only if it turns out to be worth its time."""

Children = Sequence[tuple[int, float]]
"""Tokens that may follow a text, each with the probability that the target accepts it there."""

LEAST = 0.02  # tokens with a lower acceptance probability are not worth their time on any device
TRUST = 0.8  # factor on estimates of unlikely guesses: the highest of many estimates is too high


class Role(IntEnum):
    """The part that a policy lets a drafter play in an answer.

    OFF: it does not draft. MATCHED: it guesses tokens, which are accepted where the target chooses
    the same ones. DRAWN: only one token after each text can be worth its time. A model may draw
    that token; the acceptance rule then uses the distribution that it was drawn from.
    """

    OFF = 0
    MATCHED = 1
    DRAWN = 2


class Forecast(NamedTuple):
    """The expected outcome of a model's next draft, estimated from its last ones.

    It also says how the model is evaluated. histogram: pairs (share of drafts, acceptance
    probability of their first token), one for each class of the model's confidence in that token.
    rate: the acceptance rate of a token that follows accepted ones. n_choices: the number of tokens
    guessed after one text. max_depth: most tokens on a path, 0 for no limit. one_pass: the first
    evaluation guesses all tokens of a path. together: most states in one evaluation. max_leaves:
    most leaves of a tree of evaluated states.
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
    """Something cheap that guesses the target's next tokens. Subclasses override what differs.

    A drafter says which tokens may follow a text; it never decides whether they are worth their
    time. name: the name under which statistics count its guesses. wide: most of its guesses are
    unlikely, so it is not used where unlikely guesses are not worth their time. evaluates: it
    evaluates a model to guess, and has `forecast`, `work`, `expand` and `draw` in place of
    `children`. reads_states: it reads hidden states of the target, which cost the target time.
    """

    name = ""
    wide = False
    evaluates = False
    reads_states = False

    def begin(self, request: Request, role: Role) -> Requires | None:
        """Begin a request; return what the drafter needs from the target, None for nothing.

        role: MATCHED or DRAWN. What an earlier request left behind must have no effect.
        """
        return None

    def root(self) -> State:
        """Return the state of the text so far."""
        return ()

    def step(self, state: State, token: int) -> State:
        """Return the state after one more token, which any drafter may have guessed."""
        return (*state, token)

    def children(self, state: State, least: float = 0.0) -> Children:
        """Return the tokens that may follow a state, the likeliest first.

        This evaluates no model, takes next to no time, and gives the same result each time. Tokens
        with a probability below `least` may be left out.
        """
        return ()

    def expand(self, states: Sequence[State]) -> list[Children]:
        """Evaluate the model; return the tokens that may follow each state, the likeliest first.

        Where `draw` would draw the token, the only entry is (NOT_DRAWN, probability). Raises the
        errors of `Model.decode`.
        """
        raise NotImplementedError

    def forecast(self) -> Forecast:
        """Return the expected outcome of the model's next draft."""
        raise NotImplementedError

    def work(self, states: Sequence[State]) -> Work | None:
        """Return the work of evaluating these states, None if they cannot be evaluated.

        It includes all tokens that have to be read first. It has 0 tokens if the states were
        evaluated before.
        """
        raise NotImplementedError

    def draw(self, state: State) -> tuple[int, Distribution]:
        """Draw the token after an expanded state; return it and the distribution it was drawn
        from.
        """
        raise NotImplementedError

    def accept(self, verified: Verified) -> None:
        """Learn from the emitted tokens, drafted or not."""

    def end(self) -> None:
        """End the request, however it ended. After that, other sessions may use what they share
        with this drafter (see `Shared`). Ending a request twice is harmless.
        """

    def learned(self) -> Mapping[str, Any]:
        """Return what was learned, for a later process, as in `Learns`; nothing by default."""
        return {}

    def relearn(self, state: Mapping[str, Any]) -> None:
        """Take what `learned` returned."""

    def learned_tokens(self) -> Mapping[str, Tokens]:
        """Return learned arrays that contain tokens of texts, by names that the drafter chooses.

        Such tokens are private. By default there are none.
        """
        return {}

    def relearn_tokens(self, state: Mapping[str, Tokens]) -> None:
        """Take what `learned_tokens` returned in an earlier process."""

    def warm(self, request: Request) -> None:
        """Let a model read the prompt of a request that gets no answer, and keep its state."""

    def save(self) -> None:
        """Keep the state of a model's cache for later requests, if there is a store for it."""

    def close(self) -> None:
        """Free all resources, and write to disk what is saved. Calling it twice is harmless."""


@runtime_checkable
class Learns(Protocol):
    """A drafter or policy that can hand on what it has learned to a later process.

    Only rates by kind of evidence are handed on, never text.
    """

    def learned(self) -> Mapping[str, Any]:
        """Return what was learned so far, as plain data for JSON. The part chooses the names."""

    def relearn(self, state: Mapping[str, Any]) -> None:
        """Take what `learned` returned in an earlier process.

        `state` may hold unknown names, which are ignored. Raises ValueError, TypeError or KeyError
        for impossible values; nothing has changed then.
        """


class Shared:
    """The parts that the drafters of an engine's sessions share. Each session has its own drafters,
    in a thread of its own, so these parts need locks.
    """

    def __init__(self) -> None:
        self._parts: dict[str, Any] = {}

    def part(self, name: str, make: Callable[[], T]) -> T:
        """Return the part of a name; the first call makes it."""
        if name not in self._parts:
            self._parts[name] = make()
        part: T = self._parts[name]
        return part


@dataclass(frozen=True, slots=True)
class DrafterContext:
    """The parts that a drafter may be made from.

    config: the user's settings; they include `config.options`. vocab_size: the target's vocabulary
    size. target: the target itself, None if it is on another machine. tokenizer: the target's
    tokenizer. draft_model: the model that was loaded to draft with, if any. max_leaves: most leaves
    of a tree that the target evaluates; 1 if it takes chains only. states: the target's hidden
    states by position, for the layers that drafters required; None if it gives none. draft_s: a
    function of n_tokens and n_cached. It returns the seconds in which the draft model evaluates
    `n_tokens` tokens after `n_cached` cached ones, None if they are not known. prefixes: keeps what
    the draft model has read, None for no such store. shared: what the drafters of several sessions
    share; contexts of the same engine have the same one.
    """

    config: SpeculativeConfig
    vocab_size: int
    target: Model | None = None
    tokenizer: Tokenizer | None = None
    draft_model: Model | None = None
    max_leaves: int = 1
    states: Features | None = None
    draft_s: Callable[[int, int], float | None] = lambda n_tokens, n_cached: None
    prefixes: Prefixes | None = None
    shared: Shared = field(default_factory=Shared)

    @property
    def is_remote(self) -> bool:
        """True if the target is on another machine."""
        return self.target is None
