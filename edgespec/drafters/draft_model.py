"""A draft model with the target's vocabulary, which guesses its likeliest tokens or draws them.

One logits row gives several choices for the next token at no further cost. Guesses after one of
these choices cost an evaluation. `Growth` requests it only where it is worth its time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..backends.base import Model
from ..cache.prefixes import Prefixes
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
_ROOM = 31  # tokens that should fit after the text: the length of a draft


class _Said(NamedTuple):
    """The model's guesses after a text.

    drawn_from: the distribution to draw from, None where no token is drawn.
    """

    choices: Choices
    children: Children
    drawn_from: Distribution | None = None


_SILENT = _Said(NOTHING, ())


class Text:
    """A state of the drafter: the text so far, or a text that continues another by one token.

    before: the text that it continues, None for the text so far. path: the guessed tokens that it
    has after the text so far. after: the texts with one more token, by that token. said: the
    model's guesses after it, None until it is evaluated. place: the index of its node in the tree
    that grows at the end of the cache.
    """

    __slots__ = ("after", "before", "path", "place", "said")

    def __init__(self, before: Text | None = None, path: tuple[int, ...] = ()) -> None:
        self.before, self.path = before, path
        self.after: dict[int, Text] = {}
        self.said: _Said | None = None
        self.place: int | None = None

    def along(self, tokens: Sequence[int]) -> Iterator[Text]:
        """Yield the text after each of these tokens, as far as such texts were made by `step`."""
        text = self
        for token in tokens:
            if token not in text.after:
                return
            text = text.after[token]
            yield text

    def become_root(self) -> None:
        """Become the text so far. Guesses after it stay valid, except those that are drawn."""
        n, waiting = len(self.path), [self]
        self.before = None
        while waiting:
            text = waiting.pop()
            text.path = text.path[n:]
            if text.said and text.said.drawn_from:
                text.said = None
            waiting += text.after.values()


class ModelDrafter(Drafter):
    """Guesses with a model under the request's own sampling.

    It proposes its `top_k` likeliest tokens, or draws one where the acceptance rule says so. With
    coupled sampling it proposes the tokens that the shared random numbers rank first. In the role
    DRAWN it guesses one token after each text. It guesses nothing after a row whose largest
    probability is below `p_min`. That is decided before drawing, so acceptance rules stay exact.

    window: the part of the text that the model sees; by default as much as its context holds.
    needs_probs: compute probabilities for greedy requests too, although they do not need any.
    prefixes: keeps what the model has read, None for no such store.
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
        prefixes: Prefixes | None = None,
    ) -> None:
        self._cache = TokenCache(model, prefixes=prefixes)
        self._has_store = prefixes is not None
        self._model = model
        self._vocab = min(model.vocab_size, target_vocab_size)
        self._target_vocab = target_vocab_size
        self._top_k = self._n_choices = top_k
        self._p_min, self._needs_probs = p_min, needs_probs or p_min > 0
        self._rule = rule_of(acceptance)
        self._confidence = Confidence(by_depth=self.reads_states)
        self._window = window or Window(0, model.n_ctx)
        self._room = min(_ROOM, max(1, model.n_ctx // 4))
        can = model.capabilities
        self._can_grow, self._grows = can.grows and can.max_leaves > _TOGETHER, False
        self._context: list[int] = []
        self._start = 0  # number of tokens of the text that its window leaves out
        self._known = 0  # number of first tokens that cache and window surely share
        self._root = Text()
        self._end: Text | None = None  # where the cache ends
        self._grown: list[Text] = []  # nodes of a tree that grows there
        self._counted = False  # True once this step's first row was counted

    def begin(self, request: Request, role: Role) -> Requires | None:
        """Begin a request. The cache is aligned with it later, when the first guess is needed; but
        a kept prefix is loaded now, so that `work` tells what is left to read.
        """
        self._request, self._context = request, list(request.prompt)
        params = request.params
        samples, alone = params.temperature > 0, role is Role.DRAWN or self._top_k == 1
        self._coupled = samples and self._rule.couples(params)
        self._draws = samples and not self._coupled and self._rule.draws(alone)
        self._n_choices = 1 if role is Role.DRAWN or self._draws else self._top_k
        self._grows = self._can_grow and self._n_choices > 1
        self._sampler = Sampler(params, request.prompt, self._target_vocab, request.matcher())
        self._cache.begin(request.owner)
        self._root, self._end, self._grown = Text(), None, []
        self._counted = False
        if self._has_store and not self._start and self._fits(len(request.prompt)):
            self._cache.align(request.prompt)
        self._begin_at(*self._window.begin(self._start, self._cache.tokens, request.prompt))
        self._confidence.begin()
        return None

    def forecast(self) -> Forecast:
        """Return the expected outcome of the next draft, estimated from the last ones."""
        return Forecast(
            self._confidence.histogram,
            self._confidence.conditional_rate,
            n_choices=self._n_choices,
            together=min(_TOGETHER, self._model.capabilities.max_rows) if self._grows else 1,
            max_leaves=self._model.capabilities.max_leaves if self._grows else 1,
        )

    def root(self) -> Text:
        """Return the text so far."""
        return self._root

    def step(self, state: Text, token: int) -> Text:
        """Return the text with one more token; it is the same object at each call."""
        text = state.after.get(token)
        if text is None:
            text = state.after[token] = Text(state, (*state.path, token))
        return text

    def work(self, states: Sequence[Text]) -> Work | None:
        """Return the work of evaluating these states, including the text that is still unread.

        It is None if they do not fit into the context or hold tokens that the model does not have.
        """
        new = [text for text in states if text.said is None]
        if not new:
            return Work(0, 0)
        if all(map(self._follows, new)):
            n_cached = len(self._cache.tokens) + len(self._grown)
            return Work(len(new), n_cached) if self._fits(n_cached + len(new)) else None
        (text,) = new
        path = text.path
        start, known = self._placed(len(path))
        n_seen = len(self._context) - start
        if known == n_seen:
            known += common_prefix(self._cache.tokens[known:], path[:-1])
        known = min(known, n_seen + len(path) - 1)
        unread = [*self._context[start + known :], *path[max(0, known - n_seen) :]]
        if not self._fits(n_seen + len(path)) or max(unread) >= self._model.vocab_size:
            return None
        return Work(n_seen + len(path) - known, known)

    def expand(self, states: Sequence[Text]) -> list[Children]:
        """Return the model's guesses after each state; evaluate those that are new."""
        new = [text for text in states if text.said is None]
        if new:
            n_cached = len(self._cache.tokens) + len(self._grown)
            if self._end is not None and not self._fits(n_cached + len(new)):
                return [() for _ in states]
            for text, row in zip(new, self._rows(new), strict=True):
                text.said = self._say(text, row)
        return [text.said.children for text in states if text.said]

    def draw(self, state: Text) -> tuple[int, Distribution]:
        """Draw the token after a state; return it and the distribution it was drawn from."""
        said = state.said
        assert said
        assert said.drawn_from
        token = self._request.randomness.draw(said.drawn_from)
        choices = said.choices._replace(tokens=(token,))  # so that `_learn` learns from it
        state.said = said._replace(choices=choices)
        return token, said.drawn_from

    def accept(self, verified: Verified) -> None:
        """Learn from all emitted tokens, drafted or not, and keep the guesses that still hold."""
        tokens = verified.tokens
        self._learn(tokens)
        self._settle(tokens)
        self._sampler.accept(tokens)
        self._known = self._n_read(tokens)
        self._context.extend(tokens)
        self._end, self._counted = None, False
        self._root = self._still_true(tokens)

    def learned(self) -> dict[str, Any]:
        """Return the outcomes of drafts, as in `Learns`."""
        return {self.name: self._confidence.learned()}

    def relearn(self, state: Mapping[str, Any]) -> None:
        """Take what `learned` returned."""
        if self.name in state:
            self._confidence.relearn(state[self.name])

    def warm(self, request: Request) -> None:
        """Let the model read the whole prompt of a request, and keep its state."""
        if self._has_store:
            self.begin(request, Role.MATCHED)
            self._cache.decode(self._catch_up(()), 1, request.abort)
            self.save()

    def save(self) -> None:
        """Keep the state of the model's cache for later requests, if there is a store for it."""
        self._cache.save()

    def close(self) -> None:
        """Free the model."""
        self._model.close()

    def _learn(self, tokens: Sequence[int]) -> None:
        """Learn from the emitted tokens that the model had guesses for, until its guesses end."""
        depth = 0
        for text, token in zip((self._root, *self._root.along(tokens)), tokens, strict=False):
            if text.said:
                depth += 1
                self._confidence.observe(text.said.choices, token, depth)
            elif depth:
                return

    def _still_true(self, tokens: Sequence[int]) -> Text:
        """Return the new text so far, with the model's guesses after it if there are any."""
        *_, text = self._root, *self._root.along(tokens)
        if len(text.path) < len(tokens):
            return Text()
        text.become_root()
        return text

    def _follows(self, text: Text) -> bool:
        """Return whether a state directly continues the end of the cache or a node of its tree."""
        before = text.before
        return before is not None and (before is self._end or before.place is not None)

    def _fits(self, n: int) -> bool:
        return n <= self._model.n_ctx

    def _rows(self, texts: Sequence[Text]) -> Sequence[Row]:
        """Evaluate states; return their rows over the tokens that both model and target have."""
        abort = self._request.abort
        follow = all(map(self._follows, texts))
        if follow and self._grows:
            return self._tree_rows(texts)
        (text,) = texts
        pending = [text.path[-1]] if follow else self._catch_up(text.path)
        self._end = text
        return [self._cache.decode(pending, 1, abort).logits[0, : self._vocab]]

    def _tree_rows(self, texts: Sequence[Text]) -> Sequence[Row]:
        """Evaluate new nodes of the tree that grows at the end of the cache; return their rows."""
        places = [text.before.place for text in texts if text.before]
        parents = [-1 if place is None else place for place in places]
        tokens = [text.path[-1] for text in texts]
        rows = self._cache.grow(tokens, parents, self._request.abort).logits
        for text in texts:
            text.place = len(self._grown)
            self._grown.append(text)
        return list(rows[:, : self._vocab])

    def _say(self, text: Text, row: Row) -> _Said:
        """Return the model's guesses after a text.

        There are none if the model is not sure enough, or if none of its tokens is allowed.
        """
        try:
            choices, sure, drawn_from = self._choose(row, text.path)
        except DeadEnd:  # the text is impossible, or the model lacks the allowed tokens
            return _SILENT
        if not self._counted:
            self._confidence.count_draft(choices.confidence)
            self._counted = True
        if sure < self._p_min:
            return _Said(choices, ())
        probs = self._confidence.split(choices, 1 + len(text.path))
        if drawn_from:
            return _Said(choices, [(NOT_DRAWN, probs[0])], drawn_from)
        return _Said(choices, list(zip(choices.tokens, probs, strict=True)))

    def _choose(self, row: Row, path: Sequence[int]) -> tuple[Choices, float, Distribution | None]:
        """Return the choices after a path, the largest probability, and the distribution to draw
        from, None if no token is drawn.
        """
        k = self._n_choices
        if self._draws:
            q = self._sampler.distribution(row, path)
            return Choices((), confidence_class(q.largest())), q.largest(), q
        if self._coupled:
            q = self._sampler.distribution(row, path)
            position = self._request.n_unseen + len(self._context) + len(path)
            if k == 1:
                token = self._request.randomness.gumbel(position, q)
                return choices_of("race", [(token, 1.0)], q.largest()), q.largest(), None
            races = self._request.randomness.smallest(position, q, k)
            shares = [(token, races[0][1] / race) for token, race in races]
            return choices_of("race", shares, q.largest()), q.largest(), None
        if k == 1 and not self._needs_probs:
            return Choices((self._sampler.argmax(row, path),), _CERTAIN), 1.0, None
        shares, left = [], 1.0
        for token, prob in (likeliest := self._sampler.likeliest_few(row, k, path)):
            shares.append((token, prob / left))
            left = max(left - prob, 1e-9)
        return choices_of("likeliest", shares, likeliest[0][1]), likeliest[0][1], None

    def _catch_up(self, path: Sequence[int]) -> list[int]:
        """Align the cache with the text plus `path`; return the tokens still to be evaluated."""
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
        self._known = len(self._context) - start  # tokens after it may yet be rejected
        return pending

    def _settle(self, tokens: Sequence[int]) -> None:
        """End the tree that grows; keep those of its nodes that match `tokens` after the text."""
        if self._grown:
            on_path = [text.place for text in self._root.along(tokens)]
            self._end_tree([place for place in on_path if place is not None])

    def _end_tree(self, kept: Sequence[int]) -> None:
        """End the tree that grows; keep only the nodes `kept`, which are a path."""
        self._cache.keep(kept)
        for text in self._grown:
            text.place = None
        self._grown = []

    def _placed(self, n_ahead: int) -> tuple[int, int]:
        """Return where the window should begin, and how many of its tokens are then cached.
        n_ahead: the number of guessed tokens after the text so far.
        """
        n_text = len(self._context)
        return self._window.place(self._start, self._known, n_text, n_ahead + self._room)

    def _begin_at(self, start: int, known: int) -> None:
        """Let the window leave out `start` tokens of the text. known: how many of the window's
        first tokens are cached.
        """
        self._start, self._known = start, known

    def _n_read(self, tokens: Sequence[int]) -> int:
        """Return how many tokens of the window are cached once the context ends with `tokens`."""
        n = len(self._context) - self._start
        if self._known < n:
            return self._known
        return n + common_prefix(self._cache.tokens[n:], tokens)
