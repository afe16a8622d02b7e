"""A small model that drafts for a large one with the same vocabulary."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..backends.base import Model
from ..cache.token_cache import TokenCache
from ..config import Acceptance
from ..costs.online import Costs
from ..sampling.base import Request
from ..sampling.sampler import DeadEnd, Sampler
from ..types import (
    NO_THRESHOLDS,
    Distribution,
    Draft,
    DraftEstimate,
    Extension,
    Row,
    Thresholds,
    Verified,
)
from .confidence import Confidence, confidence_class
from .window import Window

_UNREAD = 32  # tokens: more are not read on the chance that a draft under way is accepted

Guess = tuple[int, int]
"""A drafted token and the confidence class of its row."""


class ModelDrafter:
    """Drafts with a model under the request's own sampling.

    At temperature 0, or with acceptance "deterministic", it proposes its likeliest token;
    else it draws, and hands out what it drew from. It stops before a token whose row's
    largest probability is below `p_min`: a decision from the row, made before drawing, so
    the acceptance rules stay exact. It may see a window of the text only, as it does where its
    context is shorter. costs: of its evaluations; without them estimates say zero.

    A request with a seed asks for the same text again. How much is drafted may depend on time,
    so with "block" such a request is drafted for by coupled sampling: its text does not depend
    on drafts at all.
    """

    name = "draft_model"

    def __init__(
        self,
        model: Model,
        target_vocab_size: int,
        *,
        p_min: float = 0.0,
        acceptance: Acceptance = "block",
        costs: Costs | None = None,
        window: int | None = None,
    ) -> None:
        self._cache = TokenCache(model)
        self._model = model
        self._vocab = min(model.vocab_size, target_vocab_size)
        self._target_vocab = target_vocab_size
        self._p_min = p_min
        self._acceptance = acceptance
        self._costs = costs
        self._confidence = Confidence()
        self._window = Window(window, model.n_ctx, costs)
        self._start = 0  # so many tokens of the text are left out of its view
        self._known = 0  # so much of cache and view is known to be equal
        self._guesses: list[Guess] = []  # the last draft
        self._head: list[int] = []  # that another drafted before it
        self._n_context = 0  # where the text ends

    def begin(self, request: Request) -> None:
        """Begin a request; the cache is aligned when the first draft is asked for."""
        self._request = request
        self._coupled = self._acceptance == "coupled" or (
            self._acceptance == "block" and request.params.seed is not None
        )
        self._greedy = request.params.temperature == 0 or self._acceptance == "deterministic"
        self._sampler = Sampler(
            request.params, request.prompt, self._target_vocab, request.matcher()
        )
        self._cache.begin(request.owner)
        self._begin_at(*self._window.begin(self._start, self._cache.tokens, request.prompt))
        self._n_context = len(request.prompt)
        self._guesses = []
        self._confidence.begin()

    def estimate(self, context: Sequence[int], limit: int) -> DraftEstimate:
        """Return an estimate by its last drafts: the tokens are not known before it drafts them."""
        histogram, rate = self._confidence.histogram, self._confidence.conditional_rate
        first = sum([share * prob for share, prob in histogram])
        probs = tuple(
            itertools.accumulate(itertools.repeat(rate, limit - 1), operator.mul, initial=first)
        )
        self._begin_at(*self._placed(context, limit))
        n_unread = max(1, len(context) - self._start - self._known)
        return DraftEstimate(self.name, probs, 0, self.extension(n_unread, len(context)))

    def extension(self, n_unread: int, n_context: int) -> Extension:
        """Return the gains and costs of evaluating the model, with `n_unread` tokens to read."""
        token_s = self._costs.draft_token_s if self._costs else 0.0
        return Extension(
            self._confidence.histogram,
            self._confidence.conditional_rate,
            token_s,
            functools.partial(self._catch_up_s, n_unread, n_context),
        )

    def propose(
        self, context: Sequence[int], limit: int, thresholds: Thresholds = NO_THRESHOLDS
    ) -> Draft:
        """Draft up to `limit` tokens, fewer where it is unsure."""
        self._guesses, self._head = [], list(context[self._n_context :])
        pending = self._catch_up(context, limit) if thresholds.extends(0, 1.0) else None
        if pending is None:
            return Draft(source=self.name)
        n_read = len(context) - self._start - self._known
        probs: list[Distribution] = []
        evaluated: list[int] = []
        wants_prob = bool(thresholds.keep) or self._p_min > 0
        tokens: list[int] = []
        acceptance_prob = 1.0
        while len(tokens) < limit and thresholds.extends(len(tokens), acceptance_prob):
            row = self._evaluate(pending)
            self._known = len(context) - self._start
            evaluated.append(1 if tokens else n_read)
            try:
                guess, sure, q = self._look(row, [*self._head, *tokens], wants_prob)
            except DeadEnd:  # the target may never go here, or knows more tokens
                break
            confidence = confidence_class(sure)
            if not tokens:
                self._confidence.count_draft(confidence)
            prob = acceptance_prob * self._confidence.probs[confidence]
            if sure < self._p_min or not thresholds.keeps(len(tokens), prob):
                break
            if q is not None:
                guess = self._draw(q, len(context) + len(tokens))
                probs.append(q)
            tokens.append(guess)
            self._guesses.append((guess, confidence))
            acceptance_prob = prob
            pending = [guess]
        drawn = None if self._greedy or self._coupled else tuple(probs)
        return Draft(tuple(tokens), self.name, drawn, acceptance_prob, tuple(evaluated))

    def look_ahead(
        self, context: Sequence[int], limit: int, until: Callable[[], bool]
    ) -> list[Guess]:
        """Return the draft after a `context` whose end is not accepted yet.

        It ends when `until` returns True. Nothing is drawn but by coupled sampling.
        """
        found: list[Guess] = []
        can = self._greedy or self._coupled
        can = can and len(context) - self._start - self._known <= _UNREAD
        can = can and self._placed(context, limit) == (self._start, self._known)
        pending = self._catch_up(context, limit) if can else None
        if pending is None:
            return found
        while len(found) < limit and not until():
            ahead = [*context[self._n_context :], *(token for token, _ in found)]
            row = self._evaluate(pending)
            self._known = self._n_context - self._start  # the rest may yet be rejected
            try:
                token, sure = self._sampler.likeliest(row, ahead)
            except DeadEnd:
                break
            if not self._greedy:
                q = self._sampler.distribution(row, ahead)
                token = self._draw(q, len(context) + len(found))
            if sure < self._p_min:
                break
            found.append((token, confidence_class(sure)))
            pending = [token]
        return found

    def acceptance_probs(self, guesses: Sequence[Guess]) -> tuple[float, ...]:
        """Return the acceptance probability up to each of the tokens that `look_ahead` found."""
        return self._confidence.acceptance_probs([confidence for _, confidence in guesses])

    def adopt(self, context: Sequence[int], found: Sequence[Guess], *, continued: bool) -> None:
        """Let tokens that `look_ahead` found begin the draft of this step, behind `context`.

        continued: the tokens that were proposed last follow them.
        """
        self._guesses = [*found, *(self._guesses if continued else ())]
        self._head = list(context[self._n_context :])

    def accept(self, verified: Verified) -> None:
        """Learn from the outcome of its own draft, as far as tokens were emitted."""
        tokens = verified.tokens
        self._sampler.accept(tokens)
        self._known = self._n_read(tokens)
        self._n_context += len(tokens)
        n = len(self._head)
        own = tokens[n:] if list(tokens[:n]) == self._head else ()
        for i, ((guess, confidence), token) in enumerate(zip(self._guesses, own, strict=False)):
            self._confidence.observe(confidence, guess == token, behind_accepted=i > 0)
            if guess != token:
                break
        self._guesses = []

    def learned(self) -> dict[str, Any]:
        """Return the outcomes of drafts, as Learns has it."""
        return {self.name: self._confidence.learned()}

    def relearn(self, state: Mapping[str, Any]) -> None:
        """Take what `learned` returned."""
        if self.name in state:
            self._confidence.relearn(state[self.name])

    def close(self) -> None:
        """Free the model."""
        self._model.close()

    def _evaluate(self, pending: Sequence[int]) -> Row:
        """Return the row after `pending`, over the tokens that the target has, too."""
        return self._cache.decode(pending, 1, self._request.abort).logits[0, : self._vocab]

    def _look(
        self, row: Row, ahead: Sequence[int], wants_prob: bool
    ) -> tuple[int, float, Distribution | None]:
        """Return likeliest token, largest probability, and the distribution if it draws."""
        if not self._greedy:
            q = self._sampler.distribution(row, ahead)
            return -1, q.largest(), q
        if wants_prob:
            return *self._sampler.likeliest(row, ahead), None
        return self._sampler.argmax(row, ahead), 1.0, None

    def _catch_up(self, context: Sequence[int], limit: int) -> list[int] | None:
        """Align the cache with the context and return the tokens still to be evaluated.

        Return None if the model cannot read them.
        """
        self._begin_at(*self._placed(context, limit))
        start, n_sinks, known = self._start, self._window.n_sinks, self._known
        n = self._cache.align(context, offset=start, n_sinks=n_sinks, known=known)
        pending, self._known = self._window.rest(context, start, n), n
        if n + len(pending) + limit > self._model.n_ctx or max(pending) >= self._model.vocab_size:
            return None
        step = self._model.capabilities.max_batch
        while len(pending) > step:
            self._cache.decode(pending[:step], 0, self._request.abort)
            pending = pending[step:]
        if not self._model.capabilities.truncate:
            if len(pending) > 1:
                self._cache.decode(pending[:-1], 0, self._request.abort)
            self._cache.protect()
            pending = pending[-1:]
        return pending

    def _placed(self, context: Sequence[int], limit: int) -> tuple[int, int]:
        """Return where the view of the text should begin, and how much of it is cached then.

        limit: tokens that have to fit behind it.
        """
        n_text = min(self._n_context, len(context))  # what is behind it may not stay
        return self._window.place(self._start, self._known, n_text, len(context) - n_text + limit)

    def _begin_at(self, start: int, known: int) -> None:
        """Let the view leave out so many tokens of the text; `known` of it are cached."""
        self._start, self._known = start, known
        if self._costs:
            self._costs.skipped = start

    def _catch_up_s(self, n_unread: int, n_context: int, n_known: int) -> float:
        """Return the seconds to read `n_unread` and `n_known` drafted tokens, but the last."""
        n = n_unread + n_known
        if n <= 1 or self._costs is None:
            return 0.0
        return self._costs.draft(n, n_context) - self._costs.draft(1, n_context)

    def _n_read(self, tokens: Sequence[int]) -> int:
        """Return how many tokens of its window are cached, with `tokens` after the context."""
        n = self._n_context - self._start
        if self._known < n:
            return self._known
        for cached, token in zip(self._cache.tokens[n:], tokens, strict=False):
            if cached != token:
                break
            n += 1
        return n

    def _draw(self, q: Distribution, position: int) -> int:
        randomness = self._request.randomness
        return randomness.gumbel(position, q) if self._coupled else randomness.draw(q)
