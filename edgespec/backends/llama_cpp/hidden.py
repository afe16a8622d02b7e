"""Reading hidden states from llama.cpp while it evaluates tokens.

For some architectures, the engine returns the inputs of layers. For architectures with MTP layers,
it returns the states that these layers read. For all architectures, it returns the final states,
but only together with logits for every token. For all other states, the engine shows every tensor
of an evaluation to a callback, which copies the wanted tensors. The callback is called about a
thousand times per evaluation, so it exists only in contexts that are made with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

import numpy as np

from ...errors import ConfigError, DecodeError, OutOfMemory
from ...types import Abort, Outputs
from ..base import FINAL
from ..features import States
from .abort import AbortableDecode
from .batch import Batch, Part, RowViews
from .context import LEAST_N_CTX, MAX_ROWS, ROLLBACK, Native, copy_text, new_context
from .declarations import LAYER_INPUTS, ROLLING_BACK, WATCHING, EvalCallback, missing
from .evaluation import TextInContext, exclusive
from .inspection import inspect_metadata
from .library import engine, lib
from .nextn import reads

logger = logging.getLogger("edgespec.llama_cpp")

# Architectures for which the engine returned the inputs of layers in tests. It can do so for more,
# but ends the process if it cannot. So for all others, a callback copies the same numbers.
GIVE_INPUTS = ("llama", "qwen3", "qwen3moe", "qwen35")
FIRST = "the first tensor"  # stands for a tensor whose name varies
# Architectures whose recurrent state could go back in tests.
ROLL_BACK = ("qwen35", "qwen35moe")
EMBEDDINGS = {  # tensors with the input of layer 0; other architectures change their embeddings
    "llama": FIRST, "qwen2": FIRST, "qwen3": FIRST, "qwen3moe": FIRST, "gemma3": "inp_scaled",
}  # fmt: skip
_N_WATCHED = 2  # tokens of the evaluation that lists all tensors

_Call = TypeVar("_Call", bound=Callable[..., Outputs])


def gives_states(call: _Call) -> _Call:
    """Wrap a method that evaluates tokens: it also returns hidden states if layers are tapped."""

    @functools.wraps(call)
    def evaluated(self: Tappable, tokens: Sequence[int], *args: Any, **kwargs: Any) -> Outputs:
        taps = self._taps
        is_seen = bool(tokens) and tokens[0] < 0  # tiles of pictures have no states for heads
        if taps is None or taps.collecting or is_seen:  # collecting: another method makes this call
            return call(self, tokens, *args, **kwargs)
        with taps.call(len(tokens)) as states:
            return call(self, tokens, *args, **kwargs)._replace(hidden=states)

    return cast(_Call, evaluated)


class Taps:
    """The hidden states of some layers, collected over the evaluations of one call.

    layers: as in `Model.tap`. of_outputs: the states are complete only for tokens whose logits are
    computed. watch: the callback that the context has to be made with; None if no callback is
    needed.
    """

    watch: Any = None

    def __init__(self, layers: tuple[int, ...], hidden_size: int, of_outputs: bool) -> None:
        self.layers, self.of_outputs = layers, of_outputs
        self.collecting = False
        self._width = hidden_size
        self._states = self._empty(0)
        self._n_done = 0

    def _empty(self, n_tokens: int) -> States:
        return np.empty((n_tokens, len(self.layers), self._width), np.float32)

    @contextlib.contextmanager
    def call(self, n_tokens: int) -> Iterator[States]:
        """Collect the states of a call's tokens in the array that is yielded."""
        self._states, self._n_done, self.collecting = self._empty(n_tokens), 0, True
        try:
            yield self._states
        finally:
            self._states, self.collecting = self._empty(0), False

    def begin(self) -> None:
        """Prepare for an evaluation."""

    def collect(self, n_tokens: int) -> None:
        """Take the states of the evaluation that has just ended. Raises DecodeError."""
        done = self._n_done
        self._read(self._states[done : done + n_tokens])
        self._n_done = done + n_tokens

    def switch(self, context: Any, on: bool) -> None:
        """Make a context return states, or stop it from doing so."""
        raise NotImplementedError

    def _read(self, states: States) -> None:
        raise NotImplementedError


class GivenStates(Taps):
    """States that the engine itself returns: the inputs of layers, and the final states.

    nextn: the layer whose states the engine gives to MTP layers, None if it gives none.
    """

    _context: Any = None

    def __init__(
        self, layers: tuple[int, ...], hidden_size: int, of_outputs: bool, nextn: int | None
    ) -> None:
        super().__init__(layers, hidden_size, of_outputs)
        self._nextn = nextn

    def switch(self, context: Any, on: bool) -> None:
        """Make a context return states, or stop it from doing so."""
        self._context = context
        for layer in self.layers:
            if layer == self._nextn:
                lib.llama_set_embeddings_nextn(context, on, False)
            elif layer == FINAL:
                lib.llama_set_embeddings(context, on)
            else:
                lib.llama_set_embeddings_layer_inp(context, layer, on)

    def _read(self, states: States) -> None:
        for i, layer in enumerate(self.layers):
            if layer == self._nextn:
                address = lib.llama_get_embeddings_nextn(self._context)
            elif layer == FINAL:
                address = lib.llama_get_embeddings(self._context)
            else:
                address = lib.llama_get_embeddings_layer_inp(self._context, layer)
            n_tokens = len(states)
            native = (ctypes.c_float * (n_tokens * self._width)).from_address(address)
            states[:, i] = np.ctypeslib.as_array(native).reshape(n_tokens, self._width)


class WatchedStates(Taps):
    """States that a callback copies out of an evaluation.

    names: the names of the tensors, one for each layer; FIRST is the first tensor of an evaluation.
    """

    def __init__(
        self, layers: tuple[int, ...], hidden_size: int, of_outputs: bool, names: Sequence[str]
    ) -> None:
        super().__init__(layers, hidden_size, of_outputs)
        self._places = {name.encode(): names.index(name) for name in names}
        self._first_place = names.index(FIRST) if FIRST in names else -1
        self._of = [names.index(name) for name in names]  # a layer given twice has one place
        self._place, self._n_asked = -1, 0
        self._copies: dict[int, States] = {}
        self.watch = EvalCallback(self._watched)

    def switch(self, context: Any, on: bool) -> None:
        """Do nothing: the context was made with the callback."""

    def begin(self) -> None:
        """Prepare for an evaluation."""
        self._n_asked = 0
        self._copies = {}

    def _watched(self, tensor: Any, asked: bool, _: Any) -> bool:
        """Return True if a tensor is wanted, when the engine asks. The engine calls again after it
        has computed a wanted tensor: then copy the tensor, and return True to let the evaluation go
        on.
        """
        if not asked:
            self._copy(tensor, self._place)
            return True
        self._n_asked += 1
        self._place = self._places.get(lib.ggml_get_name(tensor), -1)
        if self._n_asked == 1 and self._first_place >= 0:
            self._place = self._first_place
        return self._place >= 0

    def _copy(self, tensor: Any, place: int) -> None:
        n_bytes = lib.ggml_nbytes(tensor)
        copy = np.empty((n_bytes // (4 * self._width), self._width), np.float32)
        if copy.nbytes == n_bytes:
            lib.ggml_backend_tensor_get(tensor, copy.ctypes.data, 0, n_bytes)
            self._copies[place] = copy

    def _read(self, states: States) -> None:
        for i, place in enumerate(self._of):
            copy = self._copies.get(place)
            if copy is None or len(copy) != len(states):
                raise DecodeError(
                    f"hidden states of layer {self.layers[i]} came of "
                    f"{0 if copy is None else len(copy)} of {len(states)} tokens; begin the "
                    "request anew"
                )
            states[:, i] = copy


class WholeBatch(Batch):
    """A batch in which the engine computes logits for every token, wanted or not.

    n_more: how many unwanted rows come before the wanted ones.
    """

    n_more = 0

    def fill(self, tokens: Sequence[int], n_past: int, n_logits: int) -> Any:
        """Return the native batch, as `Batch.fill` does."""
        self.n_more = len(tokens) - n_logits
        return super().fill(tokens, n_past, len(tokens))

    def fill_parts(self, parts: Sequence[Part]) -> Any:
        """Return the native batch, as `Batch.fill_parts` does. All its tokens give logits."""
        self.n_more = 0
        return super().fill_parts(parts)


class WholeRows(RowViews):
    """The wanted rows of an evaluation, which come after the unwanted ones of a `WholeBatch`."""

    def __init__(self, context: Any, vocab_size: int, batch: WholeBatch) -> None:
        super().__init__(context, vocab_size, MAX_ROWS)
        self._batch = batch

    def first(self, n: int) -> Outputs:
        """Return the first `n` wanted rows of the last evaluation."""
        n_more = self._batch.n_more if n else 0
        return Outputs(super().first(n_more + n).logits[n_more:])


class Tappable(TextInContext):
    """A context that can return hidden states."""

    _taps: Taps | None = None
    _wished: tuple[int, ...] = ()  # the layers that `tap` was last called with
    _n_cells = 0  # cells of a context with several texts
    joint_states: States | None = None

    def _take(self, native: Native) -> None:
        self.hidden_size = lib.llama_model_n_embd(native.model)
        self.n_layer = lib.llama_model_n_layer(native.model)
        super()._take(native)

    @exclusive
    def tap(self, layers: Sequence[int]) -> None:
        """Make every later evaluation return the hidden states of these layers, as `Model.tap`
        says.

        For FINAL and n_layer, the engine has to compute the logits of every token, in pieces of
        `max_rows` tokens. This is not needed for states that MTP layers read. While layers are
        tapped, a recurrent state can go back if the engine supports it. If a new context has to be
        made, the cache is copied to it; meanwhile, memory is needed for both contexts. Texts in one
        context return the same states: those that one of them was tapped for. Raises ConfigError
        and OutOfMemory.
        """
        before, self._wished = self._wished, tuple(layers)
        wanted = next((text._wished for text in self.texts if text._wished), ())
        try:
            taps, was = self._taps_for(wanted) if wanted else None, self._taps
            if taps and was and was.layers == wanted:
                return
            if not self._renew_for(taps, was) and was:
                was.switch(self._context, False)
        except BaseException:
            self._wished = before
            raise
        self._turn_on(taps)

    def _turn_on(self, taps: Taps | None) -> None:
        """Let the present context return states."""
        if taps:
            taps.switch(self._context, True)
        for text in self.texts:
            text._taps = taps
            text._take_outputs(bool(taps and taps.of_outputs))

    @property
    def gives_all_rows(self) -> bool:
        """True if an evaluation has to compute the logits of every token."""
        return self._taps is not None and self._taps.of_outputs

    def evaluate_native(self, batch: Any, n_tokens: int) -> int:
        """Evaluate a native batch of several texts; return llama_decode's code. Afterwards
        `joint_states` has the hidden states of its tokens, [n_tokens, n_layers, hidden_size]; None
        if no layers are tapped.
        """
        self.joint_states = None
        with self.lock:
            if self._taps is None:
                return self._run(batch, n_tokens, None)
            with self._taps.call(n_tokens) as states:
                code = self._run(batch, n_tokens, None)
            self.joint_states = states
            return code

    def _taps_for(self, layers: tuple[int, ...]) -> Taps:
        """Return the taps for these layers. Raises ConfigError. Changes nothing yet."""
        n_layer, name = self.n_layer, self.path.name
        for layer in layers:
            if layer != FINAL and layer not in range(n_layer + 1):
                raise ConfigError(
                    f"{name}: there is no layer {layer!r}; this model has the layers 0 to "
                    f"{n_layer - 1}, {n_layer} is what comes out of the last one, and {FINAL} the "
                    "final states: take a head that was made for this model"
                )
        architecture, after = self._architecture, {FINAL, n_layer}.intersection(layers)
        nextn = reads(architecture, n_layer)
        inputs = {layer for layer in layers if layer not in (FINAL, nextn)}
        given = architecture in GIVE_INPUTS and not missing(lib, LAYER_INPUTS)
        if not inputs or (given and n_layer not in inputs):
            return GivenStates(layers, self.hidden_size, bool(after - {nextn}), nextn)
        if lacks := missing(lib, WATCHING):
            raise ConfigError(
                f"{name}: hidden states of its layers need {' and '.join(lacks)}, which "
                f"{engine()} does not have; take a target of another architecture or install "
                "another libllama"
            )
        return WatchedStates(layers, self.hidden_size, bool(after), self._names(layers))

    @functools.cached_property
    def _architecture(self) -> str:
        return inspect_metadata(self.path).get("general.architecture", "")

    def _names(self, layers: tuple[int, ...]) -> list[str]:
        """Return the names of the tensors with the states of these layers. Raises ConfigError if
        one of the tensors does not exist.
        """
        fit = _N_WATCHED * self.hidden_size * 4
        there = {name for name, size in self._tensors if size == fit} | {FIRST}
        special = {FINAL: "result_norm", 0: EMBEDDINGS.get(self._architecture)}
        names = [special.get(layer, f"l_out-{layer - 1}") for layer in layers]
        for layer, name in zip(layers, names, strict=True):
            if name not in there:
                raise ConfigError(
                    f"{self.path.name}: {engine()} does not give the hidden states of layer "
                    f"{layer} for models of the architecture {self._architecture}; draft with "
                    "something else"
                )
        return cast(list[str], names)

    @functools.cached_property
    def _tensors(self) -> list[tuple[str, int]]:
        """The name and the size in bytes of each tensor of a short evaluation, which takes place in
        a separate context. Raises DecodeError, OutOfMemory.
        """
        seen: list[tuple[str, int]] = []

        def note(tensor: Any, asked: bool, _: Any) -> bool:
            if asked:
                name = lib.ggml_get_name(tensor).decode("utf-8", "replace")
                seen.append((name, lib.ggml_nbytes(tensor)))
            return not asked

        watch = EvalCallback(note)
        config = replace(self.config, n_ctx=LEAST_N_CTX, n_batch=32)
        context, _ = new_context(self.path, self.native.model, config, watch)
        try:
            batch = Batch(_N_WATCHED)
            if AbortableDecode(context).calling_back(
                batch.fill([0] * _N_WATCHED, 0, _N_WATCHED), None
            ):
                raise DecodeError(f"{self.path.name}: the engine cannot evaluate two tokens")
        finally:
            lib.llama_free(context)
        return seen

    def _renew_for(self, taps: Taps | None, was: Taps | None) -> bool:
        """Replace the context if the new taps or the previous ones have a callback, or if
        `rollback` has to change; return True if it was replaced. Raises the errors of `_renew`. But
        if only `rollback` was to change and memory is short, the old context stays.
        """
        watched = bool((taps and taps.watch) or (was and was.watch))
        rollback = ROLLBACK if taps and self._can_roll_back else 0
        if not watched and rollback == self.capabilities.rollback:
            return False
        try:
            self._renew(taps.watch if taps else None, rollback)
        except OutOfMemory as error:
            if watched:
                raise
            logger.info("%s; the context stays as it is", error)
            return False
        return True

    @property
    def _can_roll_back(self) -> bool:
        return self._architecture in ROLL_BACK and not missing(lib, ROLLING_BACK)

    def _renew(self, watch: Any, rollback: int, n_ctx: int = 0) -> None:
        """Replace the context by a new one with the same texts in its cache. n_ctx: its length if
        that changes. Raises OutOfMemory, DecodeError.
        """
        old = self._context
        context = self._made(watch, rollback, n_ctx or self._n_cells or self.n_ctx)
        try:
            for text in self.texts:
                copy_text(old, context, text.branches.text)
        except BaseException:
            lib.llama_free(context)
            raise
        self._move(context)
        lib.llama_free(old)

    def _made(self, watch: Any, rollback: int, n_ctx: int) -> Any:
        """Return a new context for these texts. Raises OutOfMemory."""
        n_sequences = self.texts[-1].ids.stop if len(self.texts) > 1 else 0
        config = replace(self.config, n_ctx=n_ctx)
        path, model = self.path, self.native.model
        context, _ = new_context(path, model, config, watch, rollback, n_sequences)
        return context

    def _move(self, context: Any) -> None:
        """Let all texts use a different context, which holds copies of them."""
        self.native.context = context  # in place: the finalizer that frees it stays the same
        for text in self.texts:
            n_past = text.n_past - text._n_nodes
            text._use(context)
            text.n_past, text._n_nodes = n_past, 0
        self.limit_threads(self.thread_limit)

    def _take_outputs(self, whole: bool) -> None:
        """Compute the logits of all tokens of an evaluation if `whole` is True, else only the
        wanted ones.
        """
        max_batch = lib.llama_n_batch(self._context)
        if whole:
            max_batch = min(max_batch, self.capabilities.max_rows)
            self._batch = batch = WholeBatch(max_batch, self.branches.text)
            self._rows = WholeRows(self._context, self.vocab_size, batch)
        else:
            self._batch = Batch(max_batch, self.branches.text)
            self._rows = RowViews(self._context, self.vocab_size, MAX_ROWS)
        self.capabilities = replace(self.capabilities, max_batch=max_batch)

    def _run(self, batch: Any, n_tokens: int, abort: Abort | None) -> int:
        """Evaluate a native batch, collect the states and return llama_decode's code. An exception
        that Ctrl-C raised within a callback would be lost, so `AbortableDecode` only notes Ctrl-C.
        """
        taps = self._taps
        if taps is None:
            return super()._run(batch, n_tokens, abort)
        taps.begin()
        if taps.watch:
            code = self._decode_abortable.calling_back(batch, abort)
        else:
            code = super()._run(batch, n_tokens, abort)
        if code == 0:
            taps.collect(n_tokens)
        return code

    def _run_untapped(self, batch: Any, abort: Abort | None) -> int:
        """Evaluate a native batch without collecting states; return llama_decode's code."""
        taps = self._taps
        if taps is None or not (taps.watch or taps.of_outputs):
            return self._decode_abortable(batch, abort)
        if taps.of_outputs:  # else the engine would compute logits for every token of the batch
            taps.switch(self._context, False)
        try:
            taps.begin()
            return self._decode_abortable.calling_back(batch, abort)
        finally:
            if taps.of_outputs:
                taps.switch(self._context, True)

    def _use(self, context: Any) -> None:
        """Use a different context, which must be empty and without taps."""
        self._taps = None
        super()._use(context)
