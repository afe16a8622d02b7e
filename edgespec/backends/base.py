"""The contracts of an engine: its backend, its models (with one sequence or several slots), its
tokenizer.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from ..config import EngineConfig
from ..errors import CannotTruncate, ConfigError
from ..pictures import Picture
from ..types import Abort, Outputs
from .features import Features
from .heads import FINAL as FINAL
from .heads import KINDS, HeadFacts, Kind, TargetSizes
from .projectors import ProjectorFacts
from .tiles import Tile

Buffer = bytes | bytearray | memoryview
"""The saved state of some tokens."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Abilities and limits of an engine, for callers to base decisions on.

    max_rows: the most logits rows per call. max_batch: the most tokens per native call. min_tokens:
    a call with fewer tokens takes as long as one with this many. truncate: the tail of the cache
    can be dropped. rollback: if truncate is False, the most tokens that can be dropped from the end
    of the last call; the first token of the call always stays. hidden_states: the engine can return
    the hidden states of its layers (`Model.tap`). max_leaves: the most leaves of a token tree; 1 if
    the engine evaluates only chains. grows: it can evaluate a tree a few nodes at a time
    (`Model.grow`). threads: the numbers of threads can be changed after loading
    (`Model.set_threads`). saves: which states can be saved and loaded (`Model.save_state`). "":
    none; "whole": that of all cached tokens, and a loaded state cannot be truncated; "prefix": the
    same, and it can be truncated; "parts": that of any consecutive tokens.
    """

    max_rows: int
    max_batch: int
    truncate: bool = True
    hidden_states: bool = False
    max_leaves: int = 1
    min_tokens: int = 1
    rollback: int = 0
    grows: bool = False
    threads: bool = False
    saves: Literal["", "whole", "prefix", "parts"] = ""


class Eyes(ABC):
    """The part of a model that sees. It may be used by several threads.

    most_tokens: the most tokens of a picture without those around its tiles, 0 if that is not
    known.
    """

    most_tokens: int = 0

    @abstractmethod
    def read(self, picture: Picture, owner: str = "") -> list[int]:
        """Return the tokens of a picture, which stand in a prompt like token ids: those of its
        tiles, and the ids that the model has around them. Nothing is encoded yet.

        owner: the user whose picture it is; what is computed for it is not used for others. Raises
        ConfigError for a picture that the model cannot take.
        """

    @abstractmethod
    def encode(self, tile: Tile, abort: Abort | None = None) -> npt.NDArray[np.float32]:
        """Return the embeddings of a tile, float32 [n_tokens, width]; compute them if they are not
        known. Raises Aborted and DecodeError.
        """


class Model(ABC):
    """The base class of all models, also of your own: an engine that holds one sequence of tokens.

    A subclass sets `vocab_size`, `n_ctx` and `capabilities`, and implements at least `n_past`,
    `decode` and `truncate`. Every other method is optional: by default it does nothing, or raises
    an error which says that this model cannot do it.

    placement: the device of each part of the model, in the engine's words; empty if the engine does
    not report it. `share_on_gpu` reads two keys: "layers", which begins with "offloaded 20/29
    layers", and "provider", where any value except "CPU" stands for a GPU. hidden_size: the width
    of a hidden state, 0 if unknown. n_layer: the number of layers, 0 if unknown. cached_size: in
    one layer of the cache, the count of numbers in one token's keys and values; 0 if the model
    gives no access to its cache. thread_limit: the most threads that may be used at present. 0
    means no limit other than the settings; None means that the threads of this model cannot be
    limited. eyes: the part that sees pictures, None if there is none; `why_blind` then says why.
    """

    vocab_size: int
    n_ctx: int
    capabilities: Capabilities
    eyes: Eyes | None = None
    why_blind: str = "this model reads text alone"
    placement: Mapping[str, str] = MappingProxyType({})
    hidden_size: int = 0
    n_layer: int = 0
    cached_size: int = 0
    thread_limit: int | None = None

    @property
    @abstractmethod
    def n_past(self) -> int:
        """The number of tokens that the cache holds."""

    @property
    def sizes(self) -> TargetSizes:
        """The sizes of this model, which a head for it has to match."""
        return TargetSizes(self.hidden_size, self.vocab_size, self.n_layer, self.cached_size)

    @abstractmethod
    def decode(
        self, tokens: Sequence[int], n_logits: int = 1, abort: Abort | None = None
    ) -> Outputs:
        """Append `tokens` to the cache and return the logits of the last `n_logits` of them.

        A model with eyes also takes the tokens of one tile of a picture, in a call of their own and
        without logits. Outputs.logits: [n_logits, vocab_size], a view valid until the next call.
        Raises ContextFull (nothing was appended), Aborted and DecodeError (some tokens may have
        been appended; `n_past` tells how many).
        """

    @abstractmethod
    def truncate(self, n_past: int) -> None:
        """Forget everything from position `n_past` on. Raises CannotTruncate."""

    def checkpoint(self) -> Any:
        """Return the state at the current `n_past`, for `restore`. By default it is the number
        `n_past` itself, which is enough if the cache can be truncated.
        """
        return self.n_past

    def restore(self, state: Any) -> None:
        """Go back to a state that `checkpoint` returned."""
        self.truncate(state)

    def save_state(self, start: int, end: int) -> Buffer:
        """Return a copy of the cache's content for the tokens from position `start` to `end`, in
        the engine's own form. Call it only while no tree waits for `keep`.

        start: 0 unless capabilities.saves is "parts". end: `n_past` unless it is "parts". Raises
        DecodeError if the engine gives no copy.
        """
        raise NotImplementedError(f"{type(self).__name__} saves no states (saves is '')")

    def load_state(self, state: Buffer, end: int) -> None:
        """Append the tokens from `n_past` to `end`, whose state `save_state` returned for the same
        positions after the same tokens. Raises DecodeError if the engine refuses the state; the
        cache is then empty.
        """
        raise NotImplementedError(f"{type(self).__name__} loads no states (saves is '')")

    def decode_tree(
        self, tokens: Sequence[int], parents: Sequence[int], abort: Abort | None = None
    ) -> Outputs:
        """Append `tokens`; the last len(parents) of them are the nodes of a tree. Only for models
        whose capabilities.max_leaves is more than 1.

        parents: the parent of each node, in depth-first order. parents[i] is the node before node
        i; -1 is the root, which is the token before all nodes. Afterwards call `keep`, or
        `truncate` to a position before the nodes. Outputs.logits: [len(parents) + 1, vocab_size],
        the row of the root, then one for each node. Raises the errors of `decode`, and ValueError
        for more leaves than max_leaves.
        """
        raise NotImplementedError(f"{type(self).__name__} evaluates no trees (max_leaves is 1)")

    def grow(
        self, tokens: Sequence[int], parents: Sequence[int], abort: Abort | None = None
    ) -> Outputs:
        """Append nodes to a tree. Its root is the last token that `decode` has appended. Only for
        models whose capabilities.grows is True.

        Nodes are numbered in the order in which they are appended. parents: for each new node, the
        number of its parent, which is a node of an earlier call, or -1 for the root. `keep` or
        `truncate` ends the tree. Outputs.logits: [len(tokens), vocab_size], one row for each new
        node. Raises the errors of `decode_tree`; after an error, no node of the tree is left.
        """
        raise NotImplementedError(f"{type(self).__name__} grows no trees (grows is False)")

    def keep(self, path: Sequence[int]) -> None:
        """Keep a path of the tree just evaluated: its nodes, in order, become the end of the cache,
        and all other nodes are dropped.
        """
        raise NotImplementedError(f"{type(self).__name__} evaluates no trees (max_leaves is 1)")

    def tap(self, layers: Sequence[int]) -> None:
        """Make every later evaluation return the hidden states of these layers, in this order, as
        `Outputs.hidden`. If `layers` is empty, evaluations return no states and cost nothing extra.

        The number i stands for the input of layer i, counted from 0. This is the residual stream
        before any norm: hidden_states[i] in transformers. n_layer stands for the output of the last
        layer, and FINAL for the same output after the last norm. All tokens of a call get their
        states, also the tokens of prompts and the nodes of trees. Raises ConfigError for a layer
        whose states this model cannot return; nothing changes in that case.
        """
        if layers:
            raise ConfigError(
                f"{type(self).__name__} gives no hidden states, and those of the layers "
                f"{list(layers)} are asked for; draft with something else than a head"
            )

    @property
    def n_cached(self) -> int:
        """The number of tokens whose keys and values `cached` can return."""
        return 0

    def cached(self, start: int, end: int) -> npt.NDArray[np.float32]:
        """Return a copy of the keys and values of the tokens from position `start` to `end`, [end -
        start, n_layer, cached_size]. A row lists the attention heads one after the other, each with
        its keys before its values. Keys are already rotated by their positions if the model rotates
        them. Only for models whose cached_size is not 0.
        """
        raise NotImplementedError(f"{type(self).__name__} does not lend its cache")

    def begin(self, left_s: Callable[[], float]) -> None:
        """Tell the model that a request begins, which has to end within `left_s()` seconds (inf: no
        limit). Models override this if they adapt their evaluations to the time that is left.
        """

    def restrict(self, top: int) -> None:
        """Allow logits rows from now on to be -inf outside their `top` largest values; 0 asks for
        complete rows. This saves time if logits lie on a GPU, because copying complete rows from
        there is slow.
        """

    def expect_drafts(self, expected: bool) -> None:
        """Tell the model whether later evaluations may contain drafts, or only single tokens.
        Without drafts, it may evaluate single tokens in a different way.
        """

    def set_threads(self, n_threads: int, n_threads_batch: int) -> None:
        """Set the number of threads for evaluating one token, and the number for several tokens,
        from the next evaluation on. Only for models whose capabilities.threads is True.
        """
        raise NotImplementedError(f"the threads of {type(self).__name__} are fixed")

    def limit_threads(self, n_threads: int) -> None:
        """Use at most `n_threads` threads from the next evaluation on; 0 removes the limit. The
        settings and the fingerprint do not change.
        """

    def close(self) -> None:
        """Free everything. Calling it twice is harmless."""


class Vocabulary(Protocol):
    """The entries of a vocabulary, by token id."""

    @property
    def vocab_size(self) -> int:
        """The number of tokens."""

    def token_text(self, token: int) -> bytes:
        """Return the vocabulary's entry for a token id. Vocabularies are compared by their
        entries.
        """


class Tokenizer(Vocabulary, Protocol):
    """A vocabulary that converts text to token ids and back. Engines see only ids.

    chat_template: the model's chat template, or None. tool_template: the template for requests with
    tools, or None if the model has no template of its own for them.
    """

    chat_template: str | None
    tool_template: str | None

    @property
    def longest_token(self) -> int:
        """The most bytes of text that one token can stand for."""

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Return the token ids of `text`. With add_special, BOS comes first if the model wants one.

        parse_special: read the text of a control token as that token, not as characters.
        """

    def encode_pieces(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> Iterator[list[int]]:
        """Yield the ids of `encode` in pieces, so that a caller can stop between two pieces."""

    def has_control(self, text: str) -> bool:
        """Return True if `encode` would read control tokens in `text`."""

    def control_texts(self) -> list[str]:
        """Return the texts of the control tokens, always in the same order."""

    def user_defined_texts(self) -> list[str]:
        """Return the texts of the user-defined tokens, always in the same order. `encode`
        recognises them wherever they are written. Control tokens are not among them.
        """

    def infill_texts(self) -> tuple[str, str, str] | None:
        """Return the texts of the tokens that the model's file names as markers before the prefix,
        the suffix and the middle of a text to fill in; None if it names none.
        """

    def piece(self, token: int) -> bytes:
        """Return the bytes that a token adds to the text; empty for control tokens."""

    def is_eog(self, token: int) -> bool:
        """Return True if the token ends a generation (EOS, EOT, …)."""

    def special(self) -> dict[str, str]:
        """Return the texts of bos_token and eos_token, for templates."""


class FileModel(Model):
    """A model opened from a file, with everything that loading, measuring and tuning need.

    tokenizer: the file's own vocabulary. n_ctx_train: the context length in tokens that it was
    trained for, 0 if unknown. n_ctx_short: in a longer context, the engine rotates all keys
    differently; 0 if it never does.
    """

    path: Path
    n_ctx_train: int
    n_ctx_short: int = 0
    config: EngineConfig
    n_threads: int
    n_threads_batch: int
    tokenizer: Tokenizer

    @abstractmethod
    def fingerprint(self) -> dict[str, Any]:
        """Return everything that the model's speed depends on, as JSON values: device, build, file
        and settings. It contains the `Backend.identity` of the file.
        """

    def switches(self) -> dict[str, tuple[Any, Any]]:
        """Return the settings that are fixed at load and may be faster with a different value. Each
        name maps to its present value and the value to try.
        """
        return {}

    def batched(self) -> BatchedModel:
        """Return a model with slots over these weights. The first one is this model itself, and
        more can be added.
        """
        raise ConfigError(f"{self.path} keeps one sequence only, so it cannot verify for others")

    def n_more(self, most: int) -> int:
        """Return how many more caches of this model's size fit into memory, at most `most`."""
        return 0


def share_on_gpu(placement: Mapping[str, str]) -> float:
    """Return the share (0 to 1) of a model's layers that GPUs evaluate, as its placement says."""
    if layers := re.match(r"offloaded (\d+)/([1-9]\d*) layers", placement.get("layers", "")):
        return int(layers[1]) / int(layers[2])
    return float(placement.get("provider", "CPU") != "CPU")


class Head(Model):
    """A trained head as a model: a small drafter that reads tokens together with the target's
    hidden states.

    The token at position p of the text is read with the target's hidden states at p - 1, or with
    zeros if there are none. So its logits row guesses the token at p + 1. `decode` reads tokens
    that the target has evaluated. `grow` continues with guesses: its nodes are read with the head's
    own states, and never become part of the text. `keep` accepts only an empty path: it drops all
    nodes, and leaves the tokens that `decode` has read.

    kind: one of `heads.KINDS`. layers: the target's layers whose hidden states the head reads;
    empty if it reads keys and values (`Model.cached`) instead. max_depth: the longest path of
    tokens that it can guess, 0 for any length. features: the target's hidden states, by position in
    the text. n_states: the head reads only the states of the latest `n_states` tokens; 0 means all
    tokens that it has not read yet. start: the first token in its cache, as a position in the text;
    the drafter sets it while the cache is empty.
    """

    kind: Kind
    layers: tuple[int, ...]
    max_depth: int
    features: Features
    n_states: int
    start: int

    @property
    def one_pass(self) -> bool:
        """True if one evaluation guesses all tokens of a path."""
        return KINDS[self.kind].one_pass

    @property
    def reads_first_token(self) -> bool:
        """True if it also reads a text's first token, which has no state before it."""
        return KINDS[self.kind].reads_first_token


class FileHead(FileModel, Head):
    """A trained head that was loaded from a file."""

    def for_slot(self, target: FileModel) -> FileHead | None:
        """Return a head over the same weights for another slot of its target, with an empty cache
        of its own; None if this head drafts for one slot only. Close it before this one. Raises
        OutOfMemory.
        """
        return None


@dataclass(frozen=True, slots=True)
class BatchItem:
    """Tokens to append to one slot. Logits rows are wanted for the last `n_logits` of them.

    parents: if given, the last len(parents) tokens are the nodes of a tree, as in
    `Model.decode_tree`; n_logits is then len(parents) + 1.
    """

    slot: int
    tokens: Sequence[int]
    n_logits: int = 0
    parents: Sequence[int] = ()


class BatchedModel(ABC):
    """A model with several slots. Each slot is a `Model` with a sequence of its own, which may also
    be evaluated alone; `decode` evaluates tokens of several slots in one call.

    models: the model of each slot. Only one of them may be evaluated at a time. max_rows: the most
    logits rows per call, over all items. max_batch: the most tokens per call. shares_prefixes:
    slots are evaluated together, and `copy` is possible and costs little. thread_limit: as in
    `Model`.
    """

    models: Sequence[Model]
    max_rows: int
    max_batch: int
    shares_prefixes: bool = False
    thread_limit: int | None = None

    @property
    def n_slots(self) -> int:
        """The number of slots; they are numbered from 0."""
        return len(self.models)

    @property
    def vocab_size(self) -> int:
        """The width of logits rows."""
        return self.models[0].vocab_size

    @property
    def n_ctx(self) -> int:
        """The most tokens of one slot, where slots differ that of the last one."""
        return self.models[-1].n_ctx

    @property
    def max_draft_rows(self) -> int:
        """The most logits rows of one item."""
        return self.models[-1].capabilities.max_rows

    @property
    def max_leaves(self) -> int:
        """The most leaves of a slot's tree; 1 if only chains are possible."""
        return self.models[-1].capabilities.max_leaves

    @property
    def n_parked(self) -> int:
        """The number of cache cells that rejected nodes still occupy. They are freed when other
        tokens need the space.
        """
        return 0

    @property
    def n_free(self) -> int:
        """The number of tokens for which there is room, whatever the other slots hold."""
        return self.n_ctx

    @abstractmethod
    def add(self, n_slots: int, n_ctx: int = 0, *, together: bool = False) -> None:
        """Add slots of `n_ctx` tokens each, 0 for as many as the first slot holds, or fewer if
        memory is short. together: all added slots hold only `n_ctx` tokens together, if they can
        share a cache. The texts of the other slots stay. Raises OutOfMemory and ModelError; then
        nothing has changed.
        """

    @abstractmethod
    def decode(self, items: Sequence[BatchItem]) -> list[Outputs]:
        """Append tokens to their slots and return the outputs of every item, as views valid until
        the next call. After a tree, call `keep`, or `truncate` to a position before its nodes.
        Raises ContextFull (nothing was appended) and DecodeError (slots may have lost tokens).
        """

    def keep(self, slot: int, path: Sequence[int]) -> None:
        """Keep a path of the slot's last tree, as `Model.keep` does."""
        self.models[slot].keep(path)

    def truncate(self, slot: int, n_past: int) -> None:
        """Forget everything in a slot from position `n_past` on. Raises CannotTruncate; the slot is
        then empty.
        """
        model = self.models[slot]
        try:
            model.truncate(n_past)
        except CannotTruncate:
            model.truncate(0)
            raise

    def copy(self, source: int, target: int, n_past: int) -> None:
        """Fill the empty slot `target` with the first `n_past` tokens of the slot `source`. Raises
        CannotTruncate if `source` has lost the beginning of these tokens.
        """
        raise NotImplementedError(f"{type(self).__name__} shares no prefixes")

    def unshare(self, slot: int, n_past: int) -> None:
        """Take note that a slot shares no more than its first `n_past` tokens with other slots."""

    def limit_threads(self, n_threads: int) -> None:
        """Use at most `n_threads` threads from the next evaluation on, as `Model.limit_threads`
        does.
        """
        for model in self.models:
            model.limit_threads(n_threads)

    def close(self) -> None:
        """Free the slots that were added. The first one stays with its owner."""


class Backend(Protocol):
    """An engine and its file format: a package in `edgespec.backends` that `backends.of` imports.
    `backends.defaults` has the answers of an engine without GPUs, heads or copies.
    """

    def open_model(self, path: Path, config: EngineConfig) -> FileModel:
        """Load a model file and return the model, ready to evaluate tokens. Raises ModelError or a
        subclass.
        """

    def vocabulary(self, path: Path) -> AbstractContextManager[Tokenizer]:
        """Open a file's tokenizer without loading the weights. Raises ModelError or a subclass."""

    def entries(self, path: Path) -> Vocabulary:
        """Return a file's vocabulary without opening the file with an engine: only its entries can
        be read. Raises ModelError or a subclass.
        """

    def inspect_metadata(self, path: Path) -> dict[str, str]:
        """Return a file's metadata as texts, under the keys that a GGUF has, without the
        architecture's prefix. Raises ModelError or a subclass.

        "has_chat_template" ("True" or "False") and "vocab_size" must be there. Other keys that are
        read (`measure.inspection.inspect`): "general.architecture", "general.name", "quantisation"
        (or "general.file_type", a number of llama.cpp's), "context_length", "block_count",
        "embedding_length", "attention.head_count", "attention.head_count_kv",
        "attention.key_length", "attention.value_length", "element_size" (bytes of an element of the
        KV cache, 2 by default), "blind" (why it can see with no projector), and "engine.NAME" for
        how the model runs on this device.
        """

    def published_sampling(self, model: Any) -> dict[str, Any]:
        """Return the sampling settings that a model's file recommends, under the names of
        generation_config.json. The values are not checked. Raises ModelError or a subclass.

        model: a FileModel of this backend.
        """

    def identity(self, path: Path) -> dict[str, Any]:
        """Return values that identify a file, this device and this build of the engine, and that do
        not depend on settings. "file" is `files.identity(path)`: by it the measured times of a
        model are found. "processor" is `device.processor()`.
        """

    def versions(self) -> dict[str, str]:
        """Return the versions of the packages that the engine is made of."""

    def gpus(self, config: EngineConfig) -> list[str]:
        """Return the GPUs that compute a part of a model with these settings; empty if only the CPU
        computes. Each is a text with the GPU's name and everything that its speed depends on.
        Raises ConfigError for a device that does not exist.
        """

    def ignores_gpu_layers(self, config: EngineConfig) -> bool:
        """Return True if `config` asks for layers on a GPU, but this build cannot use a GPU. An
        engine that does not count layers returns False.
        """

    def head_facts(self, path: Path) -> HeadFacts:
        """Return the description of a head, read from its files. Raises ModelError or a
        subclass.
        """

    def target_sizes(self, path: Path) -> TargetSizes:
        """Return the sizes that a head for this model has to match, as far as they are known
        without loading the model. Raises ModelError or a subclass.
        """

    def is_head(self, path: Path) -> bool:
        """Return True if a file is a head and not a complete model. Raises ModelError or a
        subclass.
        """

    def projector_facts(self, path: Path) -> ProjectorFacts | None:
        """Return the description of a projector; None for a file that is something else. Raises
        ModelError or a subclass, and ConfigError for a projector that does not see.
        """

    def has_own_head(self, path: Path) -> bool:
        """Return True if a model's file also contains a head for the model. `open_head` opens this
        head if `path` is the model's own path. Raises ModelError or a subclass.
        """

    def open_head(self, path: Path, config: EngineConfig, target: FileModel) -> FileHead:
        """Load a head for a target; the target may run on a different engine. Raises ModelError or
        a subclass, and ConfigError if the head was made for another target; the message names the
        differences.
        """

    def can_requantize(self) -> bool:
        """Return True if the installed library can write a copy of a model in a format that CPUs
        evaluate faster; only then are `requantizable` and `requantize` called.
        """

    def requantizable(self, path: Path) -> bool:
        """Return True if that copy would have a different format and be hardly less accurate.
        Raises ModelError or a subclass.
        """

    def requantize(self, path: Path, target: Path) -> None:
        """Write the faster copy of the model `path` to `target`. Raises ModelError."""
