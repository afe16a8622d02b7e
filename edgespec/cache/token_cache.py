"""A model and the exact tokens that its cache holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..backends.base import Model
from ..backends.features import Features, States
from ..errors import Aborted, CannotTruncate
from ..types import Abort, Outputs

_RECENT = 64  # tokens: reading so many again, when a later request needs it, takes no time


class TokenCache:
    """A model whose cache is kept equal to a prefix of some context, whatever the engine allows.

    Where the engine cannot drop a tail (recurrent and hybrid models), `protect` takes a
    checkpoint, and truncating goes back to it and evaluates again what is to stay. features: takes
    the hidden states of the cached tokens.
    """

    def __init__(self, model: Model, features: Features | None = None) -> None:
        self.model = model
        self.features = features
        self._node_states: States | None = None
        self.tokens: list[int] = []
        self._nodes: list[int] = []  # of a tree that waits for `keep`, after `tokens`
        self._checkpoint: tuple[int, Any] | None = None
        self._owner = ""

    def begin(self, owner: str) -> None:
        """Begin a request. Tokens of another owner are dropped: what is reused of them, and how
        fast a prompt is read, would tell how theirs begin.
        """
        if owner != self._owner:
            self.truncate(0)
            self._owner = owner

    def align(
        self,
        context: Sequence[int],
        *,
        offset: int = 0,
        n_sinks: int = 0,
        known: int = 0,
        abort: Abort | None = None,
    ) -> int:
        """Drop what is not a prefix of a context and return how many tokens stay.

        The last token stays out: it is the one to be evaluated next. offset: so many tokens after
        the first `n_sinks` are left out of the context. known: how many are certainly equal and
        are not compared again.
        """
        if self._nodes:
            self._settle()
        self._forget_failed()  # an evaluation of somebody else's may have
        n = common_prefix(self.tokens, context, offset=offset, n_sinks=n_sinks, known=known)
        n = max(0, min(n, len(context) - offset - 1))
        self.truncate(n, abort)
        return n

    def truncate(self, n_past: int, abort: Abort | None = None) -> None:
        """Keep the first `n_past` tokens."""
        if self._nodes:
            self._settle()
        n_past = min(n_past, len(self.tokens))
        if n_past >= max(len(self.tokens), self.model.n_past):
            return
        try:
            self.model.truncate(n_past)
            del self.tokens[n_past:]
            self._forget_beyond(n_past)
            if self.features:
                self.features.truncate(n_past)
        except CannotTruncate:
            self._replay(n_past, abort)

    def protect(self, n_next: int = 0) -> None:
        """Take a checkpoint if the engine needs one to drop the tokens that come next: at most
        `n_next` in one call, 0 for any number.
        """
        able, n = self.model.capabilities, len(self.tokens)
        is_recent = self._checkpoint is not None and n - self._checkpoint[0] < _RECENT
        if able.truncate or (0 < n_next <= able.rollback and is_recent):
            return
        self._checkpoint = (n, self.model.checkpoint())

    def decode(
        self, tokens: Sequence[int], n_logits: int = 1, abort: Abort | None = None
    ) -> Outputs:
        """Call `Model.decode`; `tokens` stays equal to the cache also when it fails."""
        if self._nodes:
            self._settle()
        n_past = len(self.tokens)
        self.tokens.extend(tokens)
        try:
            outputs = self.model.decode(tokens, n_logits, abort)
        except BaseException:
            self._forget_failed()
            raise
        if self.features:
            self.features.append(n_past, outputs.hidden)
        return outputs

    def decode_tree(
        self, tokens: Sequence[int], parents: Sequence[int], abort: Abort | None = None
    ) -> Outputs:
        """Call `Model.decode_tree`; the nodes are not among `tokens` before `keep`."""
        if self._nodes:
            self._settle()
        n_before, n_past = len(tokens) - len(parents), len(self.tokens)
        self.tokens.extend(tokens[:n_before])
        try:
            outputs = self.model.decode_tree(tokens, parents, abort)
        except BaseException:
            self._forget_failed()
            raise
        self._nodes = list(tokens[n_before:])
        if self.features and outputs.hidden is not None:
            self.features.append(n_past, outputs.hidden[:n_before])
            self._node_states = outputs.hidden[n_before:]
        return outputs

    def grow(
        self, tokens: Sequence[int], parents: Sequence[int], abort: Abort | None = None
    ) -> Outputs:
        """Call `Model.grow`; if it fails, all nodes are gone."""
        try:
            outputs = self.model.grow(tokens, parents, abort)
        except BaseException:
            self._nodes = []
            self._forget_failed()
            raise
        self._nodes.extend(tokens)
        return outputs

    def _forget_failed(self) -> None:
        """Drop what a failed evaluation did not append."""
        del self.tokens[self.model.n_past :]
        self._forget_beyond(self.model.n_past)
        if self.features:
            self.features.truncate(len(self.tokens))

    def keep(self, path: Sequence[int]) -> None:
        """Make the nodes of a path of the tree just evaluated the end of the cache."""
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
        """Drop a tree of which nothing was kept: its request has ended in between.

        Somebody else may have cut the model since.
        """
        if self.model.n_past == len(self.tokens) + len(self._nodes):
            self.keep(())
        self._nodes = []

    def _forget_beyond(self, n_past: int) -> None:
        """Drop a checkpoint of tokens that are gone: it stands for another text."""
        if self._checkpoint and self._checkpoint[0] > n_past:
            self._checkpoint = None

    def _replay(self, n_past: int, abort: Abort | None) -> None:
        """Go back to the checkpoint, or to nothing, and evaluate again what is to stay."""
        wanted = self.tokens[:n_past]
        if self._checkpoint and self._checkpoint[0] <= n_past:
            kept, state = self._checkpoint
            self.model.restore(state)
        else:
            kept = 0
            self.model.truncate(0)
        self._checkpoint = None
        del self.tokens[kept:]
        if self.features:
            self.features.truncate(kept)
        for i in range(kept, n_past, self.model.capabilities.max_batch):
            if abort and abort():
                raise Aborted("stopped while rebuilding the cache")
            self.decode(wanted[i : i + self.model.capabilities.max_batch], n_logits=0, abort=abort)


def common_prefix(
    a: Sequence[int], b: Sequence[int], *, offset: int = 0, n_sinks: int = 0, known: int = 0
) -> int:
    """Return the length of the common prefix of `a` and `b` without the `offset` tokens after its
    first `n_sinks`; the first `known` are equal.

    It makes no copies: contexts are long, and this is called at every step.
    """
    n = max(0, min(len(a), len(b) - offset))
    if offset:
        for i in range(min(known, n), min(n_sinks, n)):
            if a[i] != b[i]:
                return i
        known = max(known, n_sinks)
    return next((i for i in range(min(known, n), n) if a[i] != b[offset + i]), n)
