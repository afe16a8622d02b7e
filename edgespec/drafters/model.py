"""A small model that drafts for a large one with the same vocabulary."""

from __future__ import annotations

import bisect
import itertools
import operator
from collections.abc import Callable, Sequence

from ..backends.base import Model, Tokenizer
from ..cache.token_cache import TokenCache, common_prefix
from ..config import Acceptance
from ..errors import VocabularyMismatch
from ..sampling.base import Request
from ..sampling.sampler import Sampler
from ..types import NO_THRESHOLDS, Distribution, Draft, Offer, Rows, Thresholds
from .calibration import Calibration

_SURE = (0.3, 0.45, 0.6, 0.7, 0.8, 0.87, 0.92, 0.96, 0.985, 0.995)
_ASSUMED = (0.25, 0.45, 0.58, 0.67, 0.78, 0.86, 0.91, 0.95, 0.97, 0.98, 0.99)  # accepted, by class
_ASSUMED_FOLLOW = 0.85  # accepted, of tokens behind accepted ones
_GLANCE = 32  # tokens: more are not read on the chance that what is under way is accepted
_RECENT = 24  # drafts that the recent past consists of
_ASSUMED_SHARE = 0.6  # of what an answer's first draft is expected to be like; else like others
_REMEMBERED = 40  # outcomes of a kind: how often it agrees depends on what the text is about
_STARTS = (1.5, 1.6, 1.6, 1.5, 1.5, 1.5, 1.5, 1.6, 1.7, 2.0, 8.0)  # assumed, by class


class ModelDrafter:
    """Drafts with a model under the request's own sampling.

    At temperature 0, or with acceptance "deterministic", it proposes its likeliest token;
    else it draws, and hands out what it drew from. It stops before a token whose row's
    largest probability is below `p_min`: a decision from the row, made before drawing, so
    the acceptance rules stay exact. Its context may be shorter than the target's: it then
    sees the end of the text only.

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
    ) -> None:
        self._cache = TokenCache(model)
        self._model = model
        self._vocab = min(model.vocab_size, target_vocab_size)
        self._target_vocab = target_vocab_size
        self._p_min = p_min
        self._acceptance = acceptance
        self._starts = list(_STARTS)  # of all drafts, so many began this sure
        self._recent = list(_STARTS)  # the same of this request's last drafts
        self._start = 0  # where its window of the context begins
        self._known = 0  # so much of cache and window is known to be equal
        self._calibration = Calibration(memory=_REMEMBERED)
        self._survivals = list(_ASSUMED)  # as it is calibrated now, by class
        self._follow = _ASSUMED_FOLLOW
        self._begins: tuple[tuple[float, float], ...] = ()  # an Offer's starts, until they change
        self._guesses: list[tuple[int, int]] = []  # the last draft: token, kind of its row
        self._n_context = self._position = 0  # where the text ends, where the last draft began

    def begin(self, request: Request) -> None:
        """A new request; the cache is aligned when the first draft is asked for."""
        self._request = request
        self._coupled = self._acceptance == "coupled" or (
            self._acceptance == "block" and request.params.seed is not None
        )
        self._sampler = Sampler(request.params, request.prompt, self._target_vocab)
        self._start = 0
        self._known = common_prefix(self._cache.tokens, request.prompt[:-1])
        self._n_context = self._position = len(request.prompt)
        self._guesses = []
        assumed = _ASSUMED_SHARE * _RECENT / sum(_STARTS)
        learned = (1 - _ASSUMED_SHARE) * _RECENT / sum(self._starts)
        counts = zip(_STARTS, self._starts, strict=True)
        self._recent = [assumed * n + learned * seen for n, seen in counts]
        self._begins = ()

    def offer(self, context: Sequence[int], limit: int) -> Offer:
        """From how sure it was of late: what it would draft is not known before it drafts."""
        if not self._begins:
            total = sum(self._recent)
            shares = [n / total for n in self._recent]
            self._begins = tuple(zip(shares, self._survivals, strict=True))
        first = sum([share * survival for share, survival in self._begins])
        further = itertools.repeat(self._follow, limit - 1)
        survival = tuple(itertools.accumulate(further, operator.mul, initial=first))
        n_pending = max(1, len(context) - self._start - self._known)
        return Offer(self.name, survival, n_pending, self._begins, self._follow)

    def propose(
        self, context: Sequence[int], limit: int, thresholds: Thresholds = NO_THRESHOLDS
    ) -> Draft:
        """Up to `limit` tokens; fewer where it is unsure."""
        self._guesses = []
        self._position = len(context)
        survival = 1.0
        if not thresholds.extends(0, survival):
            return Draft(source=self.name)
        pending = self._catch_up(context, limit)
        if pending is None:
            return Draft(source=self.name)
        n_read = len(context) - self._start - self._known
        tokens: list[int] = []
        probs: list[Distribution] = []
        evaluated: list[int] = []
        greedy = self._request.params.temperature == 0 or self._acceptance == "deterministic"
        how_sure = bool(thresholds.keep) or self._p_min > 0
        while len(tokens) < limit and thresholds.extends(len(tokens), survival):
            row = self._cache.decode(pending, 1, self._request.abort).logits[0, : self._vocab]
            self._known = len(context) - self._start
            evaluated.append(n_read if not tokens else 1)
            if greedy:
                if how_sure:
                    token, sure = self._sampler.likeliest(row, tokens)
                else:
                    token, sure = self._sampler.argmax(row, tokens), 1.0
            else:
                q = self._sampler.distribution(row, tokens)
                sure = q.largest()
            kind = _kind(sure)
            if not tokens:
                self._count_start(kind)
            ahead = survival * self._survivals[kind]
            if sure < self._p_min or not thresholds.keeps(len(tokens), ahead):
                break
            if not greedy:
                token = self._draw(q, len(context) + len(tokens))
                probs.append(q)
            tokens.append(token)
            self._guesses.append((token, kind))
            survival = ahead
            pending = [token]
        return Draft(
            tuple(tokens),
            self.name,
            None if greedy or self._coupled else tuple(probs),
            survival,
            tuple(evaluated),
        )

    def look_ahead(
        self, context: Sequence[int], limit: int, until: Callable[[], bool]
    ) -> list[tuple[int, int]]:
        """What it would draft after `context`, which nobody has accepted yet: (token, kind of
        its row), until there is no more time. Nothing is drawn but by coupled sampling.
        """
        greedy = self._request.params.temperature == 0 or self._acceptance == "deterministic"
        found: list[tuple[int, int]] = []
        n = len(context) - self._start
        near = n - self._known <= _GLANCE and n + limit <= self._model.n_ctx
        pending = self._catch_up(context, limit) if near and (greedy or self._coupled) else None
        if pending is None:
            return found
        while len(found) < limit and not until():
            ahead = [token for token, _ in found]
            row = self._cache.decode(pending, 1, self._request.abort).logits[0, : self._vocab]
            self._known = self._n_context - self._start  # the draft behind it may yet be rejected
            token, sure = self._sampler.likeliest(row, ahead)
            if not greedy:
                q = self._sampler.distribution(row, ahead)
                token = self._draw(q, len(context) + len(found))
            if sure < self._p_min:
                break
            found.append((token, _kind(sure)))
            pending = [token]
        return found

    def survival(self, found: Sequence[tuple[int, int]]) -> tuple[float, ...]:
        """Of tokens that `look_ahead` found, one behind the other."""
        each = [self._survivals[kind] for _, kind in found]
        return tuple(itertools.accumulate(each, operator.mul))

    def adopt(self, position: int, found: Sequence[tuple[int, int]], *, continued: bool) -> None:
        """Tokens that `look_ahead` found begin the draft of this step; the last one that was
        proposed is `continued` behind them, or there is none.
        """
        self._guesses = [*found, *(self._guesses if continued else ())]
        self._position = position

    def accept(self, tokens: Sequence[int], rows: Rows | None) -> None:
        """Learn from a verdict of its own draft, as far as the text goes."""
        self._sampler.accept(tokens)
        self._known = self._n_read(tokens)
        self._n_context += len(tokens)
        skipped = self._position - (self._n_context - len(tokens))  # drafted by another before it
        said = zip(self._guesses, tokens[skipped:], strict=False)
        for i, ((guess, kind), token) in enumerate(said):
            self._learn(kind, guess == token, follows=i > 0)
            if guess != token:
                break
        self._guesses = []

    def close(self) -> None:
        """Free the model."""
        self._model.close()

    def _catch_up(self, context: Sequence[int], limit: int) -> list[int] | None:
        """Align the cache with the context; the tokens still to be evaluated, None where the
        model cannot read them.
        """
        n_ctx = self._model.n_ctx
        if len(context) - self._start + limit > n_ctx:
            self._start = max(0, len(context) - n_ctx // 2)
            self._known = 0
        n = self._cache.align(context, offset=self._start, known=self._known)
        self._known = n
        pending = list(context[self._start + n :])
        if len(pending) + limit > n_ctx or max(pending) >= self._model.vocab_size:
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

    def _learn(self, kind: int, hit: bool, *, follows: bool) -> None:
        self._calibration.observe(kind, hit)
        self._survivals[kind] = self._calibration.estimate(kind, _ASSUMED[kind])
        if follows:
            self._calibration.observe("follow", hit)
            self._follow = self._calibration.estimate("follow", _ASSUMED_FOLLOW)
        self._begins = ()

    def _count_start(self, kind: int) -> None:
        self._starts = [(1 - 1 / (8 * _RECENT)) * n for n in self._starts]
        self._recent = [(1 - 1 / _RECENT) * n for n in self._recent]
        self._starts[kind] += 1
        self._recent[kind] += 1
        self._begins = ()

    def _n_read(self, tokens: Sequence[int]) -> int:
        """How much of its window is in the cache, with `tokens` behind the context."""
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
        if self._coupled:
            return randomness.gumbel(position, q)
        return randomness.draw(q)


def _kind(sure: float) -> int:
    """Rows in classes, by their largest probability."""
    return bisect.bisect_left(_SURE, sure)


def check_vocabulary(target: Tokenizer, draft: Tokenizer) -> None:
    """Raises VocabularyMismatch at the first id that means different things.

    A vocabulary padded at its end (Qwen pads to different sizes) is not a difference, nor is an
    id that one of them has no entry for.
    """
    common = min(target.vocab_size, draft.vocab_size)
    for token in range(common):
        ours, theirs = target.token_text(token), draft.token_text(token)
        if ours != theirs and ours and theirs:
            raise VocabularyMismatch(
                f"draft and target have different vocabularies: token {token} is {ours!r} in the "
                f"target and {theirs!r} in the draft; take a draft of the target's own family"
            )
    longer, name = (target, "target") if target.vocab_size > common else (draft, "draft")
    if common < 0.95 * longer.vocab_size:
        raise VocabularyMismatch(
            f"the {name}'s vocabulary has {longer.vocab_size} tokens, the other one only "
            f"{common}: that is more than padding; take a draft of the target's own family"
        )
