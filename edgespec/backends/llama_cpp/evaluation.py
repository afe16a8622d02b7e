"""A text in the cache of a llama.cpp context, and the evaluations that append to it."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from ...config import NOT_SPEED, EngineConfig
from ...errors import Aborted, CannotTruncate, ContextFull, DecodeError
from ...types import Abort
from ..base import Capabilities, FileModel, share_on_gpu
from ..tiles import Tile
from .abort import AbortableDecode
from .batch import Batch, RowViews
from .branches import N_SEQUENCES, Branches
from .context import MAX_ROWS, Native, can_branch, can_truncate, limited_threads, placement
from .declarations import ROLLING_BACK, missing
from .devices import gpus
from .inspection import identity
from .library import lib
from .tokenizer import LlamaCppTokenizer

_Call = TypeVar("_Call", bound=Callable[..., Any])
_Run = Callable[[Any, int, "Abort | None"], int]


class Shown(NamedTuple):
    """A tile in a text. end: the number of the token after it. shift: by how much the position of
    that token differs from its number.
    """

    tile: Tile
    end: int
    shift: int


def exclusive(call: _Call) -> _Call:
    """Wrap a method that uses the native context: only one thread at a time may do so."""

    @functools.wraps(call)
    def called(self: TextInContext, *args: Any, **kwargs: Any) -> Any:
        with self.lock:
            return call(self, *args, **kwargs)

    return cast(_Call, called)


class TextInContext(FileModel):
    """The common part of models and heads: a text in a native context, and a tree after it. It runs
    evaluations, handles those that fail, and sets threads.

    texts: all texts in the same context, this one included. Only one of them may be evaluated at a
    time, and the first one owns the context. ids: the ids of this text's sequences. branches: its
    tree. lends: a head looks at this text's cache, so the context must not be replaced. shown: the
    tiles of pictures in this text.
    """

    path: Path
    config: EngineConfig
    placement: dict[str, str]
    thread_limit: int
    shown: Sequence[Shown] = ()
    texts: list[Any]
    ids: range
    lends = False
    _batch: Batch
    _rows: RowViews

    _n_past = 0

    @property
    def n_past(self) -> int:
        """The number of tokens that the cache holds."""
        return self._n_past

    @n_past.setter
    def n_past(self, n: int) -> None:
        if self.shown and n < self._n_past:
            self.shown = [each for each in self.shown if each.end <= n]
        self._n_past = n

    def position(self, n_past: int) -> int:
        """Return the position of the token after the first `n_past`. Pictures may take more or
        fewer positions than they have tokens.
        """
        if not self.shown:
            return n_past
        return n_past + next((s.shift for s in reversed(self.shown) if s.end <= n_past), 0)

    def _take(self, native: Native) -> None:
        """Use these loaded weights and the context over them."""
        self.native = native
        self._close: Any = weakref.finalize(self, native.free)
        self.lock = threading.RLock()
        model, context = native.model, native.context
        self.tokenizer = LlamaCppTokenizer(model, owner=self)
        self.vocab_size: int = self.tokenizer.vocab_size
        self.n_ctx_train: int = lib.llama_model_n_ctx_train(model)
        self.n_threads: int = lib.llama_n_threads(context)
        self.n_threads_batch: int = lib.llama_n_threads_batch(context)
        self.placement = placement(native.log)
        self.thread_limit = 0
        self.capabilities: Capabilities = Capabilities(
            MAX_ROWS, 0, truncate=self._can_truncate(), grows=True, threads=True
        )
        self.n_past = 0
        self._n_nodes = 0  # number of nodes in a tree that waits for `keep`
        self.texts, self.ids, self._most = [self], range(self._n_sequences()), 0
        self._use(context)

    @exclusive
    def truncate(self, n_past: int) -> None:
        """Forget everything from `n_past` on."""
        if n_past >= self.n_past:
            return
        self._check_rollback(n_past)
        if cut := next((s for s in self.shown if s.end - s.tile.n_tokens < n_past < s.end), None):
            raise CannotTruncate(
                f"{self.path.name}: the {cut.tile.n_tokens} tokens of a picture before {cut.end} "
                f"cannot be cut at {n_past}"
            )
        position = self.position(n_past)
        if self.branches.reach > position:
            self.branches.truncate(position)
            self._n_nodes = 0
        held = self.n_past
        if not self._cut(n_past):
            raise CannotTruncate(
                f"{self.path.name}: the memory of this model cannot be cut at {n_past} "
                f"of {held} tokens"
            )
        self.n_past = n_past
        self._n_last = 0  # the engine can go back only once after each evaluation

    def _check_rollback(self, n_past: int) -> None:
        """Raise CannotTruncate if more than `rollback` tokens would be dropped, or the first token
        of the last evaluation. A recurrent state cannot go back that far, but the engine would
        report success.
        """
        n_dropped, able = self.n_past - n_past, self.capabilities
        if n_past and able.rollback and n_dropped > min(able.rollback, self._n_last - 1):
            raise CannotTruncate(
                f"{self.path.name}: {n_dropped} tokens cannot be dropped after an evaluation of "
                f"{self._n_last}, at most {able.rollback} and not its first"
            )

    def set_threads(self, n_threads: int, n_threads_batch: int) -> None:
        """Set the number of threads for evaluating one token, and the number for several tokens,
        from the next evaluation on.
        """
        self.n_threads, self.n_threads_batch = n_threads, n_threads_batch
        self.limit_threads(0)

    def limit_threads(self, n_threads: int) -> None:
        """Use at most `n_threads` threads from the next evaluation on; 0 removes the limit."""
        self.thread_limit = n_threads
        limited = limited_threads(n_threads, self.n_threads, self.n_threads_batch)
        lib.llama_set_n_threads(self._context, *limited)

    @property
    def flash_attn(self) -> bool:
        """True if flash attention is on, because the settings ask for it or the engine chose it."""
        return self.config.flash_attn == "on" or any(
            "Flash Attention enabled" in line for line in self.native.log
        )

    def fingerprint(self) -> dict[str, Any]:
        """Return everything that the speed of this model depends on: device, build, file, settings.
        The length of the context is left out.
        """
        settings = {k: v for k, v in asdict(self.config).items() if k not in NOT_SPEED}
        threads = {"n_threads": self.n_threads, "n_threads_batch": self.n_threads_batch}
        return identity(self.path) | {
            "layers": self.placement.get("layers", ""),
            "gpus": gpus(self.config) if share_on_gpu(self.placement) else [],
            "settings": settings | threads,
        }

    @property
    def is_open(self) -> bool:
        """True before `close`."""
        return bool(self._close.alive)

    def close(self) -> None:
        """Free context and weights."""
        self._close()

    def _use(self, context: Any) -> None:
        """Use a different context, which must be empty; the first text does so before others."""
        first = self.texts[0]
        self._context, self._memory = context, lib.llama_get_memory(context)
        self.n_ctx: int = self._most or lib.llama_n_ctx(context)
        self._window: int = lib.llama_model_n_swa(self.native.model)
        self.branches: Branches = Branches(context, self.ids, self._window)
        can_roll_back = not self._can_truncate() and not missing(lib, ROLLING_BACK)
        self._n_last = 0  # tokens of the last evaluation, 0 if some were cut
        self.capabilities = replace(
            self.capabilities,
            rollback=lib.llama_n_rs_seq(context) if can_roll_back else 0,
            max_batch=lib.llama_n_batch(context),
            max_leaves=self.branches.max_leaves,
        )
        self._batch: Batch = Batch(self.capabilities.max_batch, self.branches.text)
        self._rows: RowViews = RowViews(context, self.vocab_size, MAX_ROWS)
        self._decode_abortable: AbortableDecode = (
            AbortableDecode(context) if first is self else first._decode_abortable
        )

    def _can_truncate(self) -> bool:
        """Return True if the cache can drop its tail."""
        return can_truncate(self.native.model)

    def _n_sequences(self) -> int:
        """Return the number of sequences that the context was made with."""
        return N_SEQUENCES if can_branch(self.native.model, self.config) else 1

    def _drop_tree(self, start: int) -> None:
        """Remove everything that a failed tree has left after `start`. The engine itself cleans
        only one sequence.
        """
        self.branches.truncate(self.position(start))
        self._n_nodes = 0
        self.n_past = min(self.n_past, start + 1)
        self.truncate(start)

    def _run(self, batch: Any, n_tokens: int, abort: Abort | None) -> int:
        """Evaluate a native batch and return llama_decode's code."""
        return self._decode_abortable(batch, abort)

    def _evaluate(
        self, batch: Any, n_tokens: int, abort: Abort | None, run: _Run | None = None
    ) -> None:
        """Evaluate a native batch and count its tokens. run: the function that evaluates it and
        returns llama_decode's code, by default `_run`.
        """
        try:
            with self.lock:
                code = (run or self._run)(batch, n_tokens, abort)
        except BaseException:  # Ctrl-C is raised after the evaluation: its result is lost
            self.n_past = self._drop_partial()
            raise
        self._n_last = n_tokens
        if code == 0 and not self._decode_abortable.ctrl_c:
            self.n_past += n_tokens
        else:
            self._stopped(code, n_tokens)

    def _stopped(self, code: int, n_tokens: int) -> None:
        """Raise the exception for an evaluation that ended with `code`, or that Ctrl-C has
        stopped.
        """
        self.n_past = self.n_past + n_tokens if code == 0 else self._drop_partial()
        if self._decode_abortable.ctrl_c:
            self._decode_abortable.ctrl_c = False
            raise KeyboardInterrupt
        if code == 1:
            raise ContextFull(
                f"no room in the cache for {n_tokens} tokens after {self.n_past} "
                f"(n_ctx {self.n_ctx}); load the model with a larger n_ctx"
            )
        if code == 2:
            raise Aborted(f"stopped after {self.n_past} tokens")
        failed_at, self.n_past = self.n_past, 0  # the contents of the cache are unknown
        self._clear()
        raise DecodeError(
            f"{self.path.name}: llama_decode failed with code {code} at {failed_at} tokens"
        )

    def appended(self, n_tokens: int, n_nodes: int) -> None:
        """Count tokens that an evaluation of several texts has appended, the last `n_nodes` of them
        as nodes of a tree.
        """
        self._n_last, self._n_nodes = n_tokens, n_nodes
        self.n_past += n_tokens

    def drop_unfinished(self) -> None:
        """Remove what a failed evaluation of several texts has left."""
        self.branches.truncate(self.position(self.n_past))
        self.n_past = self._drop_partial()

    def _drop_partial(self) -> int:
        """Remove the tokens that a failed call has appended; return how many tokens are left."""
        rolls_back = self.capabilities.rollback > 0  # but maybe not to this call's begin
        if not rolls_back and self._cut(self.n_past):
            return self.n_past
        self._clear()  # a recurrent state that is half-way cannot be used
        return 0

    def _clear(self) -> None:
        """Forget the whole text, whatever the cache holds of it."""
        self.branches.clear()
        if len(self.texts) == 1:
            lib.llama_memory_clear(self._memory, False)

    def _cut(self, n_past: int) -> bool:
        """Remove the text from `n_past` on. Return False if the engine cannot do that, or if what
        is left lacks cells that a token at `n_past` sees: they may have left the sliding window,
        and other texts may use their space.
        """
        text = self.branches.text
        if not lib.llama_memory_seq_rm(self._memory, text, self.position(n_past), -1):
            return False
        if not (self._window and n_past and len(self.texts) > 1) or self.sees(n_past):
            return True
        self._clear()
        self.n_past = 0
        return False

    def sees(self, n_past: int) -> bool:
        """Return True if the cache has all cells that a token at `n_past` sees."""
        if not self._window or not n_past:
            return True
        first: int = lib.llama_memory_seq_pos_min(self._memory, self.branches.text)
        return 0 <= first <= max(0, self.position(n_past) - self._window + 1)
