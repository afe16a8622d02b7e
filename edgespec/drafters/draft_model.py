"""A model that drafts for a target with the same vocabulary: its likeliest tokens, or drawn ones.

Its further choices after a text cost nothing, for the row is there; what follows them costs an
evaluation, which growth asks for where it pays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..backends.base import Model
from ..cache.token_cache import TokenCache, common_prefix
from ..sampling.base import Request
from ..sampling.rules import rule_of
from ..sampling.sampler import DeadEnd, Sampler
from ..types import Distribution, Requires, Row, Verified, Work
from .base import NOT_DRAWN, Children, Drafter, Forecast, Role
from .confidence import NOTHING, Choices, Confidence, choices_of, confidence_class
from .window import Window

_CERTAIN = confidence_class(1.0)
_TOGETHER = 4  # nodes evaluated together
_ROOM = 31  # tokens that should fit after the text: a draft

Path = tuple[int, ...]
"""A state: the tokens after the text so far."""


class _Said(NamedTuple):
    """The model's guesses after a path. drawn_from: of a token that would be drawn."""

    choices: Choices
    children: Children
    drawn_from: Distribution | None = None


_SILENT = _Said(NOTHING, ())


class ModelDrafter(Drafter):
    """Guesses with a model under the request's own sampling.

    It proposes its `top_k` likeliest tokens, or draws one where the acceptance rule says so; with
    coupled sampling it proposes those that win their races first. In the role DRAWN it guesses one
    token after each text. It guesses nothing after a row whose largest probability is below
    `p_min`: a decision made before drawing, so the acceptance rules stay exact.

    It may see a window of the text only, as it does where its context is shorter. needs_probs:
    somebody reads the probabilities that a greedy request would not have computed.
    """

    name = "draft_model"
    evaluates = True

    def __init__(
        self,
        model: Model,
        target_vocab_size: int,
        *,
        top_k: int = 1,
        p_min: float = 0.0,
        acceptance: str = "block",
        window: Window | None = None,
        needs_probs: bool = True,
    ) -> None:
        self._cache = TokenCache(model)
        self._model = model
        self._vocab = min(model.vocab_size, target_vocab_size)
        self._target_vocab = target_vocab_size
        self._top_k = self._n_choices = top_k
        self._p_min, self._needs_probs = p_min, needs_probs or p_min > 0
        self._rule = rule_of(acceptance)
        self._confidence = Confidence()
        self._window = window or Window(0, model.n_ctx)
        self._room = min(_ROOM, max(1, model.n_ctx // 4))
        can = model.capabilities
        self._can_grow, self._grows = can.grows and can.max_leaves > _TOGETHER, False
        self._context: list[int] = []
        self._start = 0  # so many tokens of the text are left out of its view
        self._known = 0  # so much of cache and view is known to be equal
        self._said: dict[Path, _Said] = {}
        self._end: Path | None = None  # where the cache ends
        self._nodes: dict[Path, int] = {}  # of a tree that grows there
        self._counted = False  # this step's first row

    def begin(self, request: Request, role: Role) -> Requires | None:
        """Begin a request; the cache is aligned when the first guess is asked for."""
        self._request, self._context = request, list(request.prompt)
        params = request.params
        samples, alone = params.temperature > 0, role is Role.DRAWN or self._top_k == 1
        self._coupled = samples and self._rule.couples(params)
        self._draws = samples and not self._coupled and self._rule.draws(alone)
        self._n_choices = 1 if role is Role.DRAWN or self._draws else self._top_k
        self._grows = self._can_grow and self._n_choices > 1
        self._sampler = Sampler(params, request.prompt, self._target_vocab, request.matcher())
        self._cache.begin(request.owner)
        self._said, self._end, self._nodes = {}, None, {}
        self._counted = False
        self._begin_at(*self._window.begin(self._start, self._cache.tokens, request.prompt))
        self._confidence.begin()
        return None

    def forecast(self) -> Forecast:
        """Return what its last drafts were like."""
        return Forecast(
            self._confidence.histogram,
            self._confidence.conditional_rate,
            n_choices=self._n_choices,
            together=min(_TOGETHER, self._model.capabilities.max_rows) if self._grows else 1,
            max_leaves=self._model.capabilities.max_leaves if self._grows else 1,
        )

    def work(self, states: Sequence[Path]) -> Work | None:
        """Return what evaluating these states takes, the text that was not read included."""
        new = [path for path in states if path not in self._said]
        if not new:
            return Work(0, 0)
        if all(map(self._follows, new)):
            n_cached = len(self._cache.tokens) + len(self._nodes)
            return Work(len(new), n_cached) if self._fits(n_cached + len(new)) else None
        (path,) = new
        start, known = self._placed(len(path))
        n_seen = len(self._context) - start
        if known == n_seen:
            known += common_prefix(self._cache.tokens[known:], path[:-1])
        known = min(known, n_seen + len(path) - 1)
        unread = [*self._context[start + known :], *path[max(0, known - n_seen) :]]
        if not self._fits(n_seen + len(path)) or max(unread) >= self._model.vocab_size:
            return None
        return Work(n_seen + len(path) - known, known)

    def expand(self, states: Sequence[Path]) -> list[Children]:
        """Return what the model says after each state."""
        new = [path for path in states if path not in self._said]
        n_cached = len(self._cache.tokens) + len(self._nodes)
        if new and self._end is not None and not self._fits(n_cached + len(new)):
            return [() for _ in states]
        if new:
            for path, row in zip(new, self._rows(new), strict=True):
                self._said[path] = self._say(path, row)
        return [self._said[path].children for path in states]

    def draw(self, state: Path) -> tuple[int, Distribution]:
        """Draw the token after a state, and return what it was drawn from."""
        said = self._said[state]
        assert said.drawn_from
        token = self._request.randomness.draw(said.drawn_from)
        choices = said.choices._replace(tokens=(token,))  # this one can be learned from
        self._said[state] = said._replace(choices=choices)
        return token, said.drawn_from

    def accept(self, verified: Verified) -> None:
        """Learn from all that was emitted, drafted or not, and keep what runs through it."""
        tokens = verified.tokens
        self._learn(tokens)
        self._settle(tokens)
        self._sampler.accept(tokens)
        self._known = self._n_read(tokens)
        self._context.extend(tokens)
        self._end, self._counted = None, False
        self._said = self._still_true(tokens)

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

    def _learn(self, tokens: Sequence[int]) -> None:
        path: Path = ()
        is_behind = False
        for token in tokens:
            said = self._said.get(path)
            if said:
                self._confidence.observe_choices(said.choices, token, behind_accepted=is_behind)
            elif is_behind:
                return
            path, is_behind = (*path, token), said is not None

    def _still_true(self, tokens: Path) -> dict[Path, _Said]:
        """Return what it said after texts that go on where the emitted tokens end."""
        n = len(tokens)
        return {
            path[n:]: said
            for path, said in self._said.items()
            if path[:n] == tokens and not said.drawn_from
        }

    def _follows(self, path: Path) -> bool:
        """Return whether a state follows at once on what was evaluated last."""
        if self._end is None or not path:
            return False
        return path[:-1] == self._end or path[:-1] in self._nodes

    def _fits(self, n: int) -> bool:
        return n <= self._model.n_ctx

    def _rows(self, paths: Sequence[Path]) -> Sequence[Row]:
        """Evaluate states and return their rows, over the tokens that the target has, too."""
        abort = self._request.abort
        if not all(map(self._follows, paths)):
            (path,) = paths
            pending = self._catch_up(path)
        elif self._grows:
            return self._grown(paths)
        else:
            (path,) = paths
            pending = [path[-1]]
        self._end = path
        return [self._cache.decode(pending, 1, abort).logits[0, : self._vocab]]

    def _grown(self, paths: Sequence[Path]) -> Sequence[Row]:
        """Evaluate nodes of the tree that grows where the cache ends."""
        parents = [self._nodes.get(path[:-1], -1) for path in paths]
        tokens = [path[-1] for path in paths]
        rows = self._cache.grow(tokens, parents, self._request.abort).logits
        for path in paths:
            self._nodes[path] = len(self._nodes)
        return list(rows[:, : self._vocab])

    def _say(self, path: Path, row: Row) -> _Said:
        """Return what the model says after a path; nothing where it is not sure enough, or where
        none of its tokens is allowed.
        """
        try:
            choices, sure, drawn_from = self._choose(row, path)
        except DeadEnd:  # the target may never go here, or knows more tokens
            return _SILENT
        if not self._counted:
            self._confidence.count_draft(choices.confidence)
            self._counted = True
        if sure < self._p_min:
            return _Said(choices, ())
        probs = self._confidence.split(choices)
        if drawn_from:
            return _Said(choices, [(NOT_DRAWN, probs[0])], drawn_from)
        return _Said(choices, list(zip(choices.tokens, probs, strict=True)))

    def _choose(self, row: Row, path: Path) -> tuple[Choices, float, Distribution | None]:
        """Return the choices after a path, the largest probability, and what is drawn from."""
        k = self._n_choices
        if self._draws:
            q = self._sampler.distribution(row, path)
            return Choices((), confidence_class(q.largest())), q.largest(), q
        if self._coupled:
            q = self._sampler.distribution(row, path)
            position = len(self._context) + len(path)
            if k == 1:
                token = self._request.randomness.gumbel(position, q)
                return choices_of("race", [(token, 1.0)], q.largest()), q.largest(), None
            races = self._request.randomness.smallest(position, q, k)
            shares = [(token, races[0][1] / race) for token, race in races]
            return choices_of("race", shares, q.largest()), q.largest(), None
        if k == 1 and not self._needs_probs:
            return Choices((self._sampler.argmax(row, path),), _CERTAIN), 1.0, None
        shares, left = [], 1.0
        for token, prob in (found := self._sampler.likeliest_few(row, k, path)):
            shares.append((token, prob / left))
            left = max(left - prob, 1e-9)
        return choices_of("likeliest", shares, found[0][1]), found[0][1], None

    def _catch_up(self, path: Path) -> list[int]:
        """Align the cache with the text and a path and return the tokens still to be evaluated."""
        self._settle(path)
        self._begin_at(*self._placed(len(path)))
        start, n_sinks, known = self._start, self._window.n_sinks, self._known
        text = [*self._context, *path] if path else self._context
        n = self._cache.align(text, offset=start, n_sinks=n_sinks, known=known)
        pending = self._window.rest(text, start, n)
        self._known = min(n, len(self._context) - start)
        step, abort = self._model.capabilities.max_batch, self._request.abort
        while len(pending) > step:
            self._cache.decode(pending[:step], 0, abort)
            pending = pending[step:]
        if not self._model.capabilities.truncate:
            if len(pending) > 1:
                self._cache.decode(pending[:-1], 0, abort)
            self._cache.protect()
            pending = pending[-1:]
        self._known = len(self._context) - start  # what is after it may yet be rejected
        return pending

    def _settle(self, path: Sequence[int]) -> None:
        """End the tree that grows, and keep what it has of a path after the text."""
        if self._nodes and self._end is not None:
            kept = []
            for n in range(len(self._end) + 1, len(path) + 1):
                node = self._nodes.get(tuple(path[:n]))
                if node is None or tuple(path[: len(self._end)]) != self._end:
                    break
                kept.append(node)
            self._cache.keep(kept)
        self._nodes = {}

    def _placed(self, n_ahead: int) -> tuple[int, int]:
        """Return where the view of the text should begin, and how much of it is cached then."""
        n_text = len(self._context)
        return self._window.place(self._start, self._known, n_text, n_ahead + self._room)

    def _begin_at(self, start: int, known: int) -> None:
        """Let the view leave out so many tokens of the text; `known` of it are cached."""
        self._start, self._known = start, known

    def _n_read(self, tokens: Sequence[int]) -> int:
        """Return how many tokens of its window are cached, with `tokens` after the context."""
        n = len(self._context) - self._start
        if self._known < n:
            return self._known
        return n + common_prefix(self._cache.tokens[n:], tokens)
