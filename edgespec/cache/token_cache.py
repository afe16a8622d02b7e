"""The token cache: a model together with the exact tokens that its KV cache holds."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

from ..backends.base import Model
from ..backends.features import Features, States
from ..backends.tiles import tiles_in, whole_tiles
from ..errors import Aborted, CannotTruncate, DecodeError
from ..types import Abort, Outputs
from .prefixes import BLOCK, LEAST, Match, Prefixes

logger = logging.getLogger("edgespec.prefixes")

_APART = 128  # tokens between a saved state and the next one in a text
_RECENT = 64  # tokens: evaluating this many again, if a later request needs it, is quick


class TokenCache:
    """A model whose cache always holds a prefix of a context. Any engine's cache can be shortened.

    If the engine cannot drop the last tokens (recurrent and hybrid models), `protect` takes a
    checkpoint. `truncate` then restores the checkpoint and evaluates again the tokens that stay.
    features: stores the hidden states of the cached tokens. prefixes: keeps the states of texts
    that leave the cache; None for no such store. tokens: the tokens in the cache. owner: the user
    whose tokens they are.
    """

    def __init__(
        self, model: Model, features: Features | None = None, prefixes: Prefixes | None = None
    ) -> None:
        self.model = model
        self.features = features
        self._prefixes = prefixes if model.capabilities.saves else None
        self._is_whole = model.capabilities.saves == "whole"
        self._n_loaded = 0  # first tokens that cannot be truncated, as their state was loaded
        self._begins = False  # True until a request's first `align`
        self._node_states: States | None = None
        self.tokens: list[int] = []
        self._nodes: list[int] = []  # of a tree that waits for `keep`, after `tokens`
        self._n_expected = 0  # tokens of the last evaluation, without nodes
        self._checkpoint: tuple[int, Any] | None = None
        self.owner = ""

    def begin(self, owner: str) -> None:
        """Begin a request. The tokens of a different owner are dropped: otherwise the number of
        reused tokens, or the time to read the prompt, would reveal how that owner's text begins.
        """
        self._begins = True
        if owner != self.owner:
            self.save()
            self.truncate(0)
            self.owner = owner

    def n_reusable(self, owner: str, context: Sequence[int]) -> int:
        """Return how many of a context's first tokens are cached, 0 for an owner other than the
        last request's. Nothing changes.
        """
        return self._n_common(context) if owner == self.owner else 0

    def _n_common(self, context: Sequence[int], **left_out: int) -> int:
        """Return the length of the common prefix with a context, without a part of a tile at its
        end. left_out: arguments of `common_prefix`.
        """
        return whole_tiles(self.tokens, common_prefix(self.tokens, context, **left_out))

    def align(
        self,
        context: Sequence[int],
        *,
        offset: int = 0,
        n_sinks: int = 0,
        known: int = 0,
        abort: Abort | None = None,
        token_s: float = 0.0,
    ) -> int:
        """Drop all cached tokens after the common prefix with a context; return how many stay.

        The context's last token never stays in the cache: it is evaluated next. offset: the number
        of tokens that the cache leaves out after the first `n_sinks` of the context. known: the
        number of first tokens that are known to be equal and are not compared. token_s: the seconds
        to read a token, 0 if unknown. At a request's first call, a kept prefix is loaded if it has
        more of the context and that is quicker than reading.
        """
        if self._nodes:
            self._settle()
        self._forget_failed()  # another user of the model may have had a failed evaluation
        n = self._n_common(context, offset=offset, n_sinks=n_sinks, known=known)
        n = max(0, min(n, len(context) - offset - 1))
        begins, self._begins = self._begins, False
        if self._prefixes and begins and not offset:
            n = self._exchange(self._prefixes, context, n, token_s)
        self.truncate(n, abort)
        return n

    def _exchange(self, prefixes: Prefixes, context: Sequence[int], n: int, token_s: float) -> int:
        """Save what is about to be dropped, and load a kept prefix that has more of the context
        than the `n` tokens that are cached. Return how many of its tokens stay. That may be fewer
        than `n` if the cache cannot be cut there: the rest is read like a new prompt.
        """
        n_cached = n if self._can_cut(n) else self._n_protected(n)
        if len(self.tokens) - n_cached >= LEAST:
            self.save()
        match = prefixes.match(self.owner, context, whole=self._is_whole)
        if match is None:
            return n_cached
        match = match.without(n_cached)
        if not prefixes.pays(match, n_cached, token_s):
            return n_cached
        self._load(prefixes, match)
        return min(self._n_common(context), len(context) - 1)

    def _can_cut(self, n_past: int) -> bool:
        """Return whether the tokens after the first `n_past` can be dropped as they are."""
        if n_past in (0, len(self.tokens)):
            return True
        return self.model.capabilities.truncate and n_past >= self._n_loaded

    def _n_protected(self, n_past: int) -> int:
        """Return how many tokens the checkpoint has, 0 if it has more than `n_past` of them."""
        n = self._checkpoint[0] if self._checkpoint else 0
        return n if n <= n_past else 0

    def _load(self, prefixes: Prefixes, match: Match) -> None:
        """Load the parts of a match, as far as that works."""
        states = [prefixes.state_of(part) for part in match.parts]
        n_bytes, began = 0, time.perf_counter()
        for part, state in zip(match.parts, states, strict=True):
            if state is None:
                return
            self.truncate(part.start)
            text = part.tokens.tolist()
            try:
                self.model.load_state(state, len(text))
            except DecodeError:
                prefixes.forget(part)
                self._forget_failed()
                return
            self.tokens[part.start :] = text[part.start :]
            n_bytes += len(state)
        self._n_loaded = len(self.tokens) if self._is_whole else 0
        if match.parts:
            prefixes.loaded(match.parts[-1], n_bytes, time.perf_counter() - began)

    def save(self) -> None:
        """Keep the state of the cached tokens, if there is a store and it does not have it yet.
        Whatever fails, the cache stays usable. Only the text before the first picture is kept, and
        nothing if the engine saves no parts of its cache.
        """
        if self._prefixes is None:
            return
        if self._nodes:
            self._settle()
        self._forget_failed()
        saves, n = self.model.capabilities.saves, len(self.tokens)
        if n != self.model.n_past:
            return
        if tiles := tiles_in(self.tokens):
            n = tiles[0].start if saves == "parts" else 0
        if not (missing := self._prefixes.missing(self.owner, self.tokens[:n], saves)):
            return
        start, before = missing
        most = BLOCK if saves == "parts" else n
        try:
            while start < n:
                end = n if n - start < most + LEAST else start + most
                state = self.model.save_state(start, end)
                before = self._prefixes.add(self.owner, self.tokens[:end], start, before, state)
                if before is None:
                    return
                start = end
        except (DecodeError, MemoryError) as error:
            logger.debug("the state of %d tokens cannot be kept: %s", n - start, error)

    def park(self) -> None:
        """Move the cached tokens to the store, if there is one that has room for them. A later
        request loads them from there.
        """
        if self._prefixes is None or len(self.tokens) < LEAST:
            return
        self.save()
        if self._prefixes.n_known(self.owner, [*self.tokens, 0]) > len(self.tokens) - LEAST:
            self.truncate(0)

    def saving_points(self, context: Sequence[int]) -> list[int]:
        """Return after how many tokens the state should be saved while the rest of a context is
        read; [] if that is not needed, because longer states can be truncated.

        It is saved where other texts go on differently, and before the last token, for the same
        prompt and for one whose last message is edited. Llama.cpp's server takes its checkpoints of
        recurrent states at the ends of prompts, too.
        """
        if self._prefixes is None or not self._is_whole:
            return []
        at, end = len(self.tokens), len(context) - 1
        match = self._prefixes.match(self.owner, context, whole=True)
        saved, points = match.n if match else 0, []
        parting = self._prefixes.n_known(self.owner, context)
        if parting >= at and parting - saved >= LEAST:
            points.append(parting)
        if end > max([at, *points]) and end - max([saved, *points]) >= _APART:
            points.append(end)
        return points

    def truncate(self, n_past: int, abort: Abort | None = None) -> None:
        """Keep only the first `n_past` tokens."""
        if self._nodes:
            self._settle()
        n_past = min(n_past, len(self.tokens))
        if n_past >= max(len(self.tokens), self.model.n_past):
            return
        try:
            if 0 < n_past < self._n_loaded:
                raise CannotTruncate(f"the first {self._n_loaded} tokens were loaded as a whole")
            self.model.truncate(n_past)
            del self.tokens[n_past:]
            self._n_loaded = min(self._n_loaded, n_past)
            self._forget_beyond(n_past)
            if self.features:
                self.features.truncate(n_past)
        except CannotTruncate:
            self._replay(n_past, abort)

    def protect(self, n_next: int = 0) -> None:
        """Take a checkpoint if the engine needs one to drop the tokens that are evaluated next.

        n_next: most tokens of the next call; 0 for any number of tokens and calls.
        """
        able, n = self.model.capabilities, len(self.tokens)
        is_recent = self._checkpoint is not None and n - self._checkpoint[0] < _RECENT
        if able.truncate or (0 < n_next <= able.rollback and is_recent):
            return
        self._checkpoint = (n, self.model.checkpoint())

    def decode(
        self, tokens: Sequence[int], n_logits: int = 1, abort: Abort | None = None
    ) -> Outputs:
        """Call `Model.decode`; `self.tokens` stays equal to the cache even if the call fails."""
        self.expect(tokens)
        try:
            outputs = self.model.decode(tokens, n_logits, abort)
        except BaseException:
            self.failed()
            raise
        self.took(outputs)
        return outputs

    def expect(self, tokens: Sequence[int], n_nodes: int = 0) -> None:
        """Record the tokens of an evaluation before it is made; the last `n_nodes` of them are the
        nodes of a tree. Afterwards call `took` or `failed`.
        """
        if self._nodes:
            self._settle()
        n_before = len(tokens) - n_nodes
        self._n_expected = n_before
        self.tokens.extend(tokens[:n_before])
        self._nodes = list(tokens[n_before:])

    def took(self, outputs: Outputs) -> None:
        """Keep the hidden states of an evaluation that has succeeded."""
        if self.features:
            n_past, n, states = (
                len(self.tokens) - self._n_expected,
                self._n_expected,
                outputs.hidden if self.features.layers else None,  # others' may be switched on
            )
            self.features.append(n_past, None if states is None else states[:n])
            self._node_states = states[n:] if self._nodes and states is not None else None

    def adopt(self, tokens: Sequence[int]) -> None:
        """Record the tokens that were copied into the empty cache."""
        self.tokens = list(tokens)

    def failed(self) -> None:
        """Forget the tokens of an evaluation that has failed."""
        self._nodes = []
        self._forget_failed()

    def decode_tree(
        self, tokens: Sequence[int], parents: Sequence[int], abort: Abort | None = None
    ) -> Outputs:
        """Call `Model.decode_tree`; `keep` then adds the accepted nodes to `self.tokens`."""
        self.expect(tokens, len(parents))
        try:
            outputs = self.model.decode_tree(tokens, parents, abort)
        except BaseException:
            self.failed()
            raise
        self.took(outputs)
        return outputs

    def grow(
        self, tokens: Sequence[int], parents: Sequence[int], abort: Abort | None = None
    ) -> Outputs:
        """Call `Model.grow`; if it fails, all nodes of the tree are dropped."""
        try:
            outputs = self.model.grow(tokens, parents, abort)
        except BaseException:
            self.failed()
            raise
        self._nodes.extend(tokens)
        return outputs

    def _forget_failed(self) -> None:
        """Remove the tokens that a failed evaluation did not add to the model's cache."""
        del self.tokens[self.model.n_past :]
        self._forget_beyond(self.model.n_past)
        if self.features:
            self.features.truncate(len(self.tokens))

    def keep(self, path: Sequence[int]) -> None:
        """Append the nodes of a path to the cache, and drop the rest of the tree just evaluated."""
        nodes, self._nodes = self._nodes, []
        try:
            self.model.keep(path)
        except BaseException:
            self._forget_failed()
            raise
        if self.features and self._node_states is not None:
            self.features.append(len(self.tokens), self._node_states[list(path)])
        self._node_states = None
        self.tokens.extend([nodes[node] for node in path])

    def _settle(self) -> None:
        """Drop a tree for which `keep` was not called, because its request ended before that.

        If another user of the model has truncated it since, the nodes are already gone.
        """
        if self.model.n_past == len(self.tokens) + len(self._nodes):
            self.keep(())
        self._nodes = []

    def _forget_beyond(self, n_past: int) -> None:
        """Drop a checkpoint of more than `n_past` tokens: the others are no longer cached."""
        if self._checkpoint and self._checkpoint[0] > n_past:
            self._checkpoint = None

    def _replay(self, n_past: int, abort: Abort | None) -> None:
        """Restore the checkpoint, or an empty cache; evaluate again the tokens up to `n_past`."""
        wanted = self.tokens[:n_past]
        if self._checkpoint and self._checkpoint[0] <= n_past:
            kept, state = self._checkpoint
            self.model.restore(state)
        else:
            kept = self._n_loaded = 0
            self.model.truncate(0)
        self._checkpoint = None
        del self.tokens[kept:]
        if self.features:
            self.features.truncate(kept)
        for part in stretches(wanted, kept, self.model.capabilities.max_batch):
            if abort and abort():
                raise Aborted("stopped while rebuilding the cache")
            self.decode(wanted[part.start : part.stop], n_logits=0, abort=abort)


def stretches(tokens: Sequence[int], start: int, most: int) -> Iterator[range]:
    """Yield what to evaluate in one call each, from token `start` on: whole tiles of pictures, and
    at most `most` tokens of text.
    """
    at = start
    for tile in [*tiles_in(tokens[start:]), range(len(tokens) - start, len(tokens) - start)]:
        begin = start + tile.start
        yield from (range(i, min(i + most, begin)) for i in range(at, begin, most))
        at = start + tile.stop
        if tile:
            yield range(begin, at)


def common_prefix(
    a: Sequence[int], b: Sequence[int], *, offset: int = 0, n_sinks: int = 0, known: int = 0
) -> int:
    """Return the length of the common prefix of `a` and `b`, ignoring some tokens of `b`.

    offset: the number of tokens of `b` to ignore after its first `n_sinks`. known: the number of
    first tokens that are known to be equal. The function makes no copies: contexts are long, and it
    is called at every step.
    """
    n = max(0, min(len(a), len(b) - offset))
    if offset:
        for i in range(min(known, n), min(n_sinks, n)):
            if a[i] != b[i]:
                return i
        known = max(known, n_sinks)
    return next((i for i in range(min(known, n), n) if a[i] != b[offset + i]), n)
