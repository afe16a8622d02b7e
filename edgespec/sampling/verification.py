"""Verification: from the target's logits rows and a draft to the accepted tokens and one more."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..config import SamplingParams
from ..types import Distribution, Draft, Logprob, Row, Rows
from . import acceptance, trees
from .base import Matcher, Randomness
from .rules import rule_of
from .sampler import Sampler, logprob


class Verification:
    """The sampling and acceptance of one request, wherever its logits rows were computed.

    prompt, output: the request's tokens so far. rule: the acceptance rule for drafts with
    probabilities; all other drafts are matched with the target's own choice. matcher: the state of
    the request's constraint.
    """

    def __init__(
        self,
        params: SamplingParams,
        randomness: Randomness,
        prompt: Sequence[int],
        vocab_size: int,
        *,
        output: Sequence[int] = (),
        rule: str = "block",
        matcher: Matcher | None = None,
    ) -> None:
        self._params = params
        self._randomness = randomness
        self._matcher = matcher
        self._sampler = Sampler(params, prompt, vocab_size, matcher)
        self._sampler.accept(output)
        self._rule = rule_of(rule)

    def check(self, draft: Draft, rows: Rows, position: int) -> tuple[int, int]:
        """Return the number of accepted drafted tokens, and the token that follows them.

        rows: [len(draft) + 1, vocab_size]. position: the position of the first drafted token.
        """
        tokens, sampler = draft.tokens, self._sampler
        if self._params.temperature == 0:
            return acceptance.match(tokens, lambda i: sampler.argmax(rows[i], tokens[:i]))

        @functools.cache
        def target(i: int) -> Distribution:
            return sampler.distribution(rows[i], tokens[:i])

        if draft.probs is None:
            return acceptance.coupled(tokens, target, self._randomness, position)
        return self._rule.chain(tokens, draft.probs, target, self._randomness)

    def check_tree(self, draft: Draft, rows: Rows, position: int) -> tuple[trees.Path, int]:
        """Return the accepted nodes of a tree, and the token that follows them.

        rows: [len(draft) + 1, vocab_size], the logits after the root, then after each node.
        position: the position of the root's children.
        """
        tokens, parents, sampler = draft.tokens, draft.parents, self._sampler

        def on_path(choose: Callable[[Row, list[int]], Any]) -> Callable[[trees.Path], Any]:
            return lambda path: choose(
                rows[path[-1] + 1 if path else 0], [tokens[node] for node in path]
            )

        if self._params.temperature == 0:
            return trees.match(tokens, parents, on_path(sampler.argmax))
        target = functools.cache(on_path(sampler.distribution))
        if draft.probs is None:
            return trees.coupled(tokens, parents, target, self._randomness, position)
        return self._rule.tree(tokens, parents, draft.probs, target, self._randomness)

    def accept(self, tokens: Sequence[int]) -> None:
        """Add emitted tokens to the history."""
        self._sampler.accept(tokens)

    @property
    def has_ended(self) -> bool:
        """True once a token has ended an answer under a constraint."""
        return self._matcher is not None and self._matcher.has_ended

    def n_to_end(self, tokens: Sequence[int]) -> int:
        """Return the number of tokens up to and including the first that ends the answer under its
        constraint; the number of all tokens if none does.
        """
        ends = self._matcher.ends if self._matcher else ()
        return next((i + 1 for i, token in enumerate(tokens) if token in ends), len(tokens))

    def logprobs(self, rows: Iterable[Row], tokens: Sequence[int]) -> tuple[Logprob, ...] | None:
        """Return the log-probabilities of `tokens`, or None if the request did not ask for them.

        rows: the logits row of each token, [vocab_size].
        """
        n_top = self._params.logprobs
        if n_top is None:
            return None
        return tuple(logprob(row, t, n_top) for row, t in zip(rows, tokens, strict=False))
