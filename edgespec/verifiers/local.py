"""A verifier whose target is in this process."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence

from ..backends.base import FINAL, BatchItem, Model, share_on_gpu
from ..backends.features import Features
from ..backends.tiles import tile_of, tiles_in
from ..cache.prefixes import Prefixes
from ..cache.token_cache import TokenCache
from ..config import SamplingParams
from ..costs.reading import FEWEST, ReadingTimes
from ..errors import Aborted, ConfigError, ContextFull
from ..sampling.base import Request
from ..sampling.verification import Verification
from ..scheduling.company import Member
from ..scheduling.turns import Evaluation, Turn
from ..types import REQUIRES_NOTHING, Abort, Draft, Outputs, Requires, Row, Rows, Verdict

_MARGIN = 1.5  # factor on the measured time to read: evaluations take longer after more tokens
_PIECE = 32  # tokens of a prompt that are evaluated together if pieces are fixed
_TEACHING = 8  # largest logits of a row that drafters of trees learn from


def n_deciding(params: SamplingParams) -> int:
    """Return how many of a row's largest logits decide everything; 0 if all logits may matter."""
    if params.has_penalties or params.logit_bias or params.logprobs is not None:
        return 0
    return 1 if params.temperature == 0 else params.top_k


class LocalVerifier:
    """Evaluates drafts with a model and checks them under the request's sampling.

    The cache outlives a request: the next request of the same owner reuses what it can.

    member: its place among those whose slots are evaluated together with the model's, None if there
    are no others. slot: the number of the model's slot there. in_pieces: prompts are read in pieces
    that do not depend on what else is evaluated. rule: the acceptance rule for drafts that carry
    probabilities; all other drafts are matched with the target's own choice. drafts: False if there
    are no drafts in any request. states: receives the hidden states that drafters require; a prefix
    that is loaded leaves a gap there. requires: the hidden states for the first request, given
    early because some engines take long to switch them on. prefixes: keeps what was read, None for
    no such store.
    """

    def __init__(
        self,
        model: Model,
        rule: str = "block",
        clock: Callable[[], float] = time.perf_counter,
        drafts: bool = True,
        states: Features | None = None,
        requires: Requires = REQUIRES_NOTHING,
        member: Member | None = None,
        slot: int = 0,
        in_pieces: bool = False,
        prefixes: Prefixes | None = None,
    ) -> None:
        self.member, self.slot = member, slot
        self._in_pieces = in_pieces
        self._states = states
        self._tapped: tuple[int, ...] = ()
        self._reads_slower = False
        self._is_on_gpu = share_on_gpu(model.placement) > 0
        self._cache = TokenCache(model, states, prefixes)
        if member:
            member.prefixes.add(slot, self._cache, member.is_active)
        self._model = model
        self._clock = clock
        self._rule = rule
        self._drafts = drafts
        self.n_ctx = model.n_ctx
        self.max_draft = model.capabilities.max_rows - 1
        self.max_leaves = model.capabilities.max_leaves
        self._tiles: list[range] = []  # the places of pictures in the prompt
        self._path: tuple[int, ...] | None = None  # accepted nodes of a tree, until `accept`
        self._reading = member.reading if member else ReadingTimes()
        self.require(requires)

    def n_reusable(self, owner: str, prompt: Sequence[int]) -> int:
        """Return how many of a prompt's first tokens are in the cache, 0 for another owner."""
        return self._cache.n_reusable(owner, prompt)

    def begin(self, request: Request) -> Iterator[int]:
        """Begin a request: prefill all but the last chunk, which the first `verify` evaluates."""
        if not request.prompt:
            raise ValueError("the prompt is empty: the target needs at least one token")
        if len(request.prompt) > self.n_ctx:
            raise ContextFull(
                f"the prompt has {len(request.prompt)} tokens, the context {self.n_ctx}; "
                "load the model with a larger n_ctx or shorten the prompt"
            )
        self._model.begin(request.left_s)
        self._request, self._path = request, None
        self._verification = Verification(
            request.params,
            request.randomness,
            request.prompt,
            self._model.vocab_size,
            rule=self._rule,
            matcher=request.matcher(),
        )
        self._context = list(request.prompt)
        self._tiles = tiles_in(self._context)
        if self._tiles and self._tiles[-1].stop == len(self._context):
            raise ConfigError("the prompt ends with a picture; let some text follow it")
        self._cache.begin(request.owner)
        self._tap(self._requires.layers)  # a prefill that failed may have switched them off
        self._model.restrict(self._n_wanted(request))
        self._model.expect_drafts(self._drafts and request.params.may_draft)
        return self._prefill()

    def require(self, requires: Requires) -> None:
        """Let the model return these hidden states from the next evaluation on."""
        self._requires = requires
        self._tap(requires.layers)

    def _tap(self, layers: tuple[int, ...]) -> None:
        """Let the model return the hidden states of these layers.

        On a GPU each switch takes long, so states that are no longer required stay switched on.
        """
        if layers == self._tapped or (not layers and self._is_on_gpu) or self._states is None:
            return
        untapped = self._exclusively(lambda: self._switch(layers))
        self._tapped = layers
        if layers and layers != self._states.layers:
            self._states.truncate(0)
            self._states.layers = layers
        self._reads_slower = self._model.capabilities.max_batch < untapped

    def _switch(self, layers: tuple[int, ...]) -> int:
        """Switch to these layers; return the most tokens of an evaluation without any."""
        if self._tapped:
            self._model.tap(())
        untapped = self._model.capabilities.max_batch
        self._model.tap(layers)
        return untapped

    def _exclusively(self, work: Callable[[], int]) -> int:
        """Do something to the model while nobody uses its evaluations' outputs."""
        return self.member.exclusively(work) if self.member else work()

    def _n_wanted(self, request: Request) -> int:
        """Return how many of a row's largest logits are needed, 0 for all of them."""
        n = 0 if request.constraint else n_deciding(request.params)
        teaches = n and self._drafts and request.params.may_draft and self.max_leaves > 1
        return max(n, _TEACHING) if teaches else n

    def _prefill(self) -> Iterator[int]:
        context = self._context
        if self.member:
            prefixes = self.member.prefixes
            self.member.exclusively(lambda: prefixes.begin(self.slot, context))
        n = self._cache.align(context, abort=self._request.abort, token_s=self._reading.token_s)
        yield n
        if self._tiles and n < self._tiles[-1].stop:  # the first `verify` evaluates text alone
            yield from self._read_untapped(n, self._tiles[-1].stop)
            n = len(self._cache.tokens)
        for point in self._cache.saving_points(context):
            yield from self._read(n, point)
            self._cache.save()
            n = point
        n_tapped = self._n_tapped()
        if n_tapped and len(context) - n > self._step:
            yield from self._read_untapped(n, len(context) - n_tapped)
            n = len(self._cache.tokens)
        while end := self._piece_end(n):
            yield from self._read(n, end)
            n = len(self._cache.tokens)

    def _piece_end(self, n: int) -> int:
        """Return where a piece of the prompt that begins at `n` ends; 0 if the rest is so short
        that the first `verify` evaluates it.

        A piece's keys and values may depend on how many tokens are evaluated together. If that must
        not be seen, pieces end at the same places whoever else is served.
        """
        step = self._step
        start = n // step * step if self._in_pieces else n
        return start + step if len(self._context) - start > step else 0

    def _read_untapped(self, n: int, end: int) -> Iterator[int]:
        """Evaluate tokens as `_read` does, without hidden states if those make it slower."""
        if is_slower := self._n_tapped() > 0:
            self._tap(())
        yield from self._read(n, end)
        if is_slower:
            self._tap(self._requires.layers)

    def _read(self, n: int, end: int) -> Iterator[int]:
        """Evaluate tokens `n` to `end` of the prompt, and yield the end of every chunk."""
        while n < end:
            tile = next((tile for tile in self._tiles if tile.stop > n), None)
            if tile and tile.start == n:
                self._look(self._context[n : tile.stop])
                n = tile.stop
                yield n
                continue
            step = self._step
            whole = (n // step + 1) * step if self._in_pieces else n + step
            stop = min(whole, end, tile.start if tile else end)
            chunk = self._context[n:stop]
            if self.member:
                turn = _Reading(self, chunk)
                self.member.step(turn)
                n += len(turn.chunk)
            else:
                self.evaluate(chunk, 0)
                n += len(chunk)
            yield n

    def _look(self, tokens: Sequence[int]) -> None:
        """Append a tile of a picture. It is encoded while other slots go on."""
        abort = self._request.abort
        assert self._model.eyes
        self._model.eyes.encode(tile_of(tokens), abort)
        decode = functools.partial(self._cache.decode, tokens, 0, abort)
        if self.member:
            self.member.exclusively(decode)
        else:
            decode()

    @property
    def _step(self) -> int:
        """The number of prompt tokens that are evaluated together, with room for a draft.

        An evaluation that is stopped leaves no result. So near a time limit the number is small
        enough for the time that is left.
        """
        can = self._model.capabilities
        n = max(can.max_batch - can.max_rows, can.max_batch // 2, 1)
        if self._in_pieces:
            n = min(n, _PIECE)
        elif self.member:
            n = min(n, self.member.most_read)
        while n > FEWEST and _MARGIN * n * self._reading.token_s > self._request.left_s():
            n = max(n // 2, FEWEST)
        return n

    def _n_tapped(self) -> int:
        """Return how many of a prompt's last tokens need hidden states; 0 for all tokens.

        For final hidden states an engine may have to compute the logits of all tokens, a few at a
        time. The states of other layers cost little.
        """
        if not self._states or not self._reads_slower or set(self._tapped) != {FINAL}:
            return 0
        return self._requires.latest or self._states.most

    def verify(self, draft: Draft) -> Verdict:
        """Evaluate the pending tokens and the draft in one pass; return the verdict."""
        item = self.prepare(draft)
        rows, seconds = self.evaluate(item.tokens, item.n_logits, item.parents)
        return self.conclude(draft, item, rows, seconds)

    def prepare(self, draft: Draft) -> BatchItem:
        """Return what has to be evaluated for a draft: the pending tokens, the draft and rows that
        only fill the evaluation.
        """
        pending, n_drafted = self._context[len(self._cache.tokens) :], len(draft.tokens)
        if n_drafted:
            self._cache.protect(n_drafted)
        n_filled = self._n_fillable(draft, len(pending))
        evaluated = [*pending, *draft.tokens, *draft.tokens[-1:] * n_filled]
        n, parents = n_drafted + n_filled, draft.parents
        if parents:  # they follow the last node, which is a leaf
            parents = (*parents, *range(n_drafted - 1, n - 1))
        return BatchItem(self.slot, evaluated, n + 1, parents)

    def conclude(self, draft: Draft, item: BatchItem, rows: Rows, seconds: float) -> Verdict:
        """Return the verdict on a draft. item, rows: what was evaluated, and its logits. seconds:
        the time that the evaluation took.
        """
        n_drafted = len(draft.tokens)
        n_filled = item.n_logits - 1 - n_drafted
        rows = rows[: n_drafted + 1]
        if draft.parents:
            path, token = self._verification.check_tree(draft, rows, len(self._context))
            self._path, n_accepted = path, len(path)
            tokens = (*[draft.tokens[node] for node in path], token)
            chosen_by: Rows | list[Row] = [rows[0], *[rows[node + 1] for node in path]]
        else:
            n_accepted, token = self._verification.check(draft, rows, len(self._context))
            tokens = (*draft.tokens[:n_accepted], token)
            chosen_by = rows if n_accepted == n_drafted else rows[: n_accepted + 1]
        logprobs = self._verification.logprobs(chosen_by, tokens)
        return Verdict(
            tokens, n_accepted, logprobs, len(item.tokens), seconds, chosen_by, rows[1:], n_filled
        )

    def _n_fillable(self, draft: Draft, n_pending: int) -> int:
        """Return how many rows beyond the draft are evaluated: as many as it asks for, within the
        limits of the model and its context; none in the step that ends the prefill.
        """
        n_rows, room = 1 + len(draft.tokens), self.n_ctx - len(self._context)
        most = min(self.max_draft + 1, room + 1) - n_rows
        return max(0, min(draft.n_filled, most)) if n_pending == 1 else 0

    @property
    def abort(self) -> Abort | None:
        """The function that tells why the request should stop."""
        return self._request.abort

    @property
    def n_pending(self) -> int:
        """The number of tokens that are evaluated together with the next draft."""
        return len(self._context) - len(self._cache.tokens)

    def expect(self, item: BatchItem) -> None:
        """Record what is evaluated next, together with others. Afterwards call `took` or
        `failed`.
        """
        self._cache.expect(item.tokens, len(item.parents))

    def took(self, outputs: Outputs) -> None:
        """Take the outputs of an evaluation together with others."""
        self._cache.took(outputs)

    def failed(self) -> None:
        """Take note that an evaluation together with others has failed."""
        self._cache.failed()

    def evaluate(
        self, tokens: Sequence[int], n_logits: int, parents: Sequence[int] = ()
    ) -> tuple[Rows, float]:
        """Evaluate tokens; return the rows of the last `n_logits` or of a tree, and the seconds."""
        abort, began = self._request.abort, self._clock()
        try:
            if parents:
                rows = self._cache.decode_tree(tokens, parents, abort).logits
            else:
                rows = self._cache.decode(tokens, n_logits, abort).logits
        except Aborted:
            self._reading.observe_stopped(len(tokens), self._clock() - began)
            raise
        seconds = self._clock() - began
        self._reading.observe(len(tokens), seconds)
        return rows, seconds

    def accept(self, tokens: Sequence[int]) -> None:
        """Keep the emitted tokens in the context; the last of them is never in the cache."""
        self._verification.accept(tokens)
        if self._path is not None:
            self._cache.keep(self._path)
            self._path = None
        self._context.extend(tokens)
        self._cache.truncate(len(self._context) - 1)

    def warm(self, request: Request) -> None:
        """Read the whole prompt of a request that gets no answer, and keep its state."""
        for _ in self.begin(request):
            pass
        self.evaluate(self._context[len(self._cache.tokens) :], 1)
        self.save()

    def save(self) -> None:
        """Keep the state of the cached tokens for later requests, if there is a store for it."""
        self._cache.save()

    def close(self) -> None:
        """Free the model."""
        if self.member:
            self.member.close()
        self._model.close()


class _Reading(Turn):
    """A part of a prompt to be evaluated. chunk: its tokens, fewer if others had to come first."""

    reads = True

    def __init__(self, verifier: LocalVerifier, chunk: Sequence[int]) -> None:
        super().__init__(verifier.abort)
        self._verifier, self.chunk = verifier, chunk
        self._expected = False

    @property
    def n_least(self) -> int:
        """The number of tokens that are wanted."""
        return len(self.chunk)

    def alone(self) -> None:
        """Evaluate all tokens."""
        self._verifier.evaluate(self.chunk, 0)

    def prepare(self, n_tokens: int, n_rows: int) -> Sequence[BatchItem]:
        """Return the first `n_tokens` tokens as an item."""
        self.chunk = self.chunk[:n_tokens]
        item = BatchItem(self._verifier.slot, self.chunk)
        self._verifier.expect(item)
        self._expected = True
        return [item]

    def take(self, outputs: Sequence[Outputs], evaluation: Evaluation) -> None:
        """Keep the hidden states."""
        self._verifier.took(outputs[0])

    def drop(self, outputs: Sequence[Outputs]) -> None:
        """Keep the hidden states: the tokens are in the cache."""
        self._verifier.took(outputs[0])

    def fail(self) -> None:
        """Forget the tokens."""
        if self._expected:
            self._verifier.failed()
        self._expected = False
