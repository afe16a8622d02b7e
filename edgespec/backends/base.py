"""Contracts of engines: backends, models with one sequence or several slots, tokenizers."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..config import EngineConfig
from ..errors import ConfigError
from ..types import Abort, Outputs
from .features import Features
from .heads import FINAL as FINAL
from .heads import KINDS, HeadFacts, Kind, TargetSizes


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Abilities and limits of an engine, as far as somebody decides by them.

    max_rows: most logits rows a call. max_batch: most tokens a native call. min_tokens: fewer take
    as long as so many. truncate: the tail of the memory can be dropped. rollback: without that,
    tokens at the end of the last call that can be dropped, but for its first. hidden_states: it
    gives those of its layers (`Model.tap`). max_leaves: most leaves of a tree of tokens; 1: it
    evaluates chains only. grows: it evaluates a tree a few nodes at a time (`Model.grow`). threads:
    their numbers can be changed while it is there (`Model.set_threads`).
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


class Model(ABC):
    """One engine with one sequence of tokens: what all models are made from, yours as well.

    A subclass sets `vocab_size`, `n_ctx` and `capabilities`, and has at least `n_past`, `decode`
    and `truncate`. All else is optional: it does nothing, or says that this model cannot do it.

    placement: what lies on which device, in the engine's words; empty where nothing says so.
    hidden_size: numbers of a hidden state, n_layer: layers; 0 where they are not known.
    cached_size: numbers of a token's keys and values in one layer of the cache, 0 where the cache
    is not lent. thread_limit: most threads at present, 0 for as many as are set; None for a model
    whose threads cannot be limited.
    """

    vocab_size: int
    n_ctx: int
    capabilities: Capabilities
    placement: Mapping[str, str] = MappingProxyType({})
    hidden_size: int = 0
    n_layer: int = 0
    cached_size: int = 0
    thread_limit: int | None = None

    @property
    @abstractmethod
    def n_past(self) -> int:
        """Number of tokens that the cache holds."""

    @property
    def sizes(self) -> TargetSizes:
        """The sizes that a head has to fit."""
        return TargetSizes(self.hidden_size, self.vocab_size, self.n_layer, self.cached_size)

    @abstractmethod
    def decode(
        self, tokens: Sequence[int], n_logits: int = 1, abort: Abort | None = None
    ) -> Outputs:
        """Append `tokens` to the cache and return the logits of the last `n_logits` of them.

        Outputs.logits: [n_logits, vocab_size], a view valid until the next call.
        Raises ContextFull (nothing was appended), Aborted and DecodeError (`n_past` tells
        how much was).
        """

    @abstractmethod
    def truncate(self, n_past: int) -> None:
        """Forget everything from position `n_past` on. Raises CannotTruncate."""

    def checkpoint(self) -> Any:
        """Return the state at the present `n_past`: by default its number, which is enough where
        the memory can be truncated.
        """
        return self.n_past

    def restore(self, state: Any) -> None:
        """Return to a checkpoint."""
        self.truncate(state)

    def decode_tree(
        self, tokens: Sequence[int], parents: Sequence[int], abort: Abort | None = None
    ) -> Outputs:
        """Append `tokens`, the last len(parents) of which are the nodes of a tree; for models whose
        capabilities.max_leaves is more than 1.

        parents: in depth-first order; parents[i] is the node that node i follows, -1 for the root,
        which is the token before all nodes. `keep` has to follow, or `truncate` to what was
        before the nodes. Outputs.logits: [len(parents) + 1, vocab_size], of the root and of each
        node. Raises as `decode`, and ValueError for more leaves than there can be.
        """
        raise NotImplementedError(f"{type(self).__name__} evaluates no trees (max_leaves is 1)")

    def grow(
        self, tokens: Sequence[int], parents: Sequence[int], abort: Abort | None = None
    ) -> Outputs:
        """Append nodes to a tree whose root is the cache's last token, appended by `decode`; for
        models whose capabilities.grows is True.

        Nodes are numbered in the order in which they are appended; parents: of each new one, the
        number of a node of an earlier call, -1 for the root. `keep` or `truncate` ends the tree.
        Outputs.logits: [len(tokens), vocab_size], of the new nodes. Raises as `decode_tree`; then
        no node is left.
        """
        raise NotImplementedError(f"{type(self).__name__} grows no trees (grows is False)")

    def keep(self, path: Sequence[int]) -> None:
        """Make the nodes of a path of the tree just evaluated, in order, the end of the cache; all
        other nodes are gone.
        """
        raise NotImplementedError(f"{type(self).__name__} evaluates no trees (max_leaves is 1)")

    def tap(self, layers: Sequence[int]) -> None:
        """Let each evaluation from now on give the hidden states of these layers, as
        `Outputs.hidden`, in this order; none at no cost.

        Layer i from 0 is what goes into layer i, the residual stream without a norm, as in
        hidden_states[i] of transformers; n_layer is what comes out of the last one. FINAL is that
        after the last norm. All tokens of a call have them, prompts and nodes of trees included.
        Raises ConfigError for a layer that this model cannot give; it is then as before.
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
        """Return keys and values of the tokens at these positions, [end - start, n_layer,
        cached_size], a copy: attention head by head, a head's keys before its values. Keys are
        rotated by their positions, where the model does so. For models with a cached_size.
        """
        raise NotImplementedError(f"{type(self).__name__} does not lend its cache")

    def begin(self, left_s: Callable[[], float]) -> None:
        """Begin a request that has to end within `left_s()` seconds, inf for no limit. Of use where
        how evaluations are done depends on that.
        """

    def restrict(self, top: int) -> None:
        """Allow rows from now on to be -inf outside their `top` largest logits; 0: whole rows. Of
        use where logits lie on a device of their own, from where whole rows take long.
        """

    def expect_drafts(self, expected: bool) -> None:
        """Learn if the evaluations from now on may be of drafts as well as of single tokens, which
        may be evaluated in another way where no drafts come between them.
        """

    def set_threads(self, n_threads: int, n_threads_batch: int) -> None:
        """Set the threads for one token and for several, from the next evaluation on; for models
        whose capabilities.threads is True.
        """
        raise NotImplementedError(f"the threads of {type(self).__name__} are fixed")

    def limit_threads(self, n_threads: int) -> None:
        """Use at most `n_threads` from the next evaluation on, 0 for as many as are set. The
        settings and the fingerprint stay as they are.
        """

    def close(self) -> None:
        """Free everything. Calling it twice is harmless."""


class Vocabulary(Protocol):
    """The entries of a vocabulary, by token id."""

    @property
    def vocab_size(self) -> int:
        """The number of tokens."""

    def token_text(self, token: int) -> bytes:
        """Return the vocabulary's own entry of an id, by which vocabularies are compared."""


class Tokenizer(Vocabulary, Protocol):
    """A vocabulary: text becomes token ids and back. Engines see ids only."""

    chat_template: str | None

    @property
    def longest_token(self) -> int:
        """The most bytes of text that one token can stand for."""

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Return the token ids of `text`, with add_special after BOS where the model wants one.

        parse_special: read control tokens written in `text` as such, not as characters.
        """

    def encode_pieces(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> Iterator[list[int]]:
        """Yield the ids of `encode` a piece at a time, so that a caller may stop between them."""

    def has_control(self, text: str) -> bool:
        """Return True if `encode` would read control tokens in `text`."""

    def control_texts(self) -> list[str]:
        """Return the texts of the control tokens, always in the same order."""

    def user_defined_texts(self) -> list[str]:
        """Return the texts of the tokens that are no control tokens, and that `encode` reads
        wherever they are written, always in the same order.
        """

    def piece(self, token: int) -> bytes:
        """Return the bytes that a token adds to the text; empty for control tokens."""

    def is_eog(self, token: int) -> bool:
        """Return True if the token ends a generation (EOS, EOT, …)."""

    def special(self) -> dict[str, str]:
        """Return the texts of bos_token and eos_token, for templates."""


class FileModel(Model):
    """A model opened from a file, with what loading, measuring and tuning ask of it.

    tokenizer: the file's own vocabulary. n_ctx_train: tokens of context that it was trained for, 0
    where nothing says so.
    """

    path: Path
    n_ctx_train: int
    config: EngineConfig
    n_threads: int
    n_threads_batch: int
    tokenizer: Tokenizer

    @abstractmethod
    def fingerprint(self) -> dict[str, Any]:
        """Return what the model's speed depends on, for JSON: device, build, file and settings."""

    def switches(self) -> dict[str, tuple[Any, Any]]:
        """Return settings that are fixed at load and may be faster otherwise, each with its
        present value and another one.
        """
        return {}

    def batched(self, n_slots: int, n_ctx: int) -> BatchedModel:
        """Return a cache of `n_ctx` tokens with `n_slots` slots over the same weights. Raises
        OutOfMemory.
        """
        raise ConfigError(f"{self.path} keeps one sequence only, so it cannot verify for others")


def share_on_gpu(placement: Mapping[str, str]) -> float:
    """Return the share of a model's layers that GPUs evaluate, from 0 to 1, by its placement."""
    if layers := re.match(r"offloaded (\d+)/([1-9]\d*) layers", placement.get("layers", "")):
        return int(layers[1]) / int(layers[2])
    return float(placement.get("provider", "CPU") != "CPU")


class Head(Model):
    """A trained draft as a model: it reads tokens together with the target's hidden states.

    A token at position p of the text goes in with the hidden states of the target at p - 1, zeros
    where there are none; so the row after it guesses the token at p + 1. `decode` reads tokens
    that the target has evaluated. `grow` guesses on: its nodes go in with the head's own states,
    and never stay; `keep` takes an empty path only, and leaves the tokens that `decode` read.

    kind: one of `heads.KINDS`. layers: of the target, whose hidden states it reads; none where it
    reads keys and values (`Model.cached`) in their place. max_depth: most tokens on a path that it
    guesses, 0 for any number. features: where the hidden states are found, by position in the text.
    n_states: it reads those of so many latest tokens; 0: of all tokens that it has not read. start:
    position of its cache's first token in the text; set where the cache is empty.
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
        """True if it reads a text's first token, before which there is no state."""
        return KINDS[self.kind].reads_first_token


class FileHead(FileModel, Head):
    """A trained draft in a file."""


@dataclass(frozen=True, slots=True)
class BatchItem:
    """Tokens to append to one slot; logits are wanted of the last `n_logits` of them.

    parents: the last of the tokens are the nodes of a tree, as in `Model.decode_tree`; n_logits
    is then len(parents) + 1.
    """

    slot: int
    tokens: Sequence[int]
    n_logits: int = 0
    parents: Sequence[int] = ()


class BatchedModel(ABC):
    """A model with several slots, a sequence of tokens each, evaluated together in one call.

    n_ctx: most tokens of one slot; n_slots: slots are numbered from 0. max_rows: most
    rows of logits a call, all items together; max_draft_rows: of one item. max_batch: most
    tokens a call. max_leaves: most leaves of a slot's tree; 1: only chains. shares_prefixes: `copy`
    is possible, and costs little. thread_limit: as in `Model`.
    """

    vocab_size: int
    n_ctx: int
    n_slots: int
    max_rows: int
    max_draft_rows: int
    max_batch: int
    max_leaves: int = 1
    shares_prefixes: bool = False
    thread_limit: int | None = None

    @property
    def n_parked(self) -> int:
        """Number of the cache's cells that rejected nodes take until they are in the way."""
        return 0

    @abstractmethod
    def decode(self, items: Sequence[BatchItem]) -> list[Outputs]:
        """Append tokens to their slots and return the logits of every item, views valid until the
        next call. After a tree `keep` has to follow, or `truncate` to what was before its nodes.
        Raises ContextFull (nothing was appended), and DecodeError: slots may have lost something.
        """

    def keep(self, slot: int, path: Sequence[int]) -> None:
        """Make the nodes of a path of the slot's last tree, in order, its end; all other nodes are
        gone.
        """
        raise NotImplementedError(f"{type(self).__name__} evaluates no trees (max_leaves is 1)")

    @abstractmethod
    def truncate(self, slot: int, n_past: int) -> None:
        """Forget everything of a slot from `n_past` on. Raises CannotTruncate; the slot is then
        empty.
        """

    def copy(self, source: int, target: int, n_past: int) -> None:
        """Let an empty slot begin with the first tokens of another. Raises CannotTruncate if the
        other has lost what they begin with.
        """
        raise NotImplementedError(f"{type(self).__name__} shares no prefixes")

    def limit_threads(self, n_threads: int) -> None:
        """Use at most `n_threads` from the next evaluation on, as `Model.limit_threads`."""

    @abstractmethod
    def close(self) -> None:
        """Free the caches. The weights stay with the model."""


class Backend(Protocol):
    """An engine and its file format: a package of this room, which `backends.of` imports."""

    def open_model(self, path: Path, config: EngineConfig) -> FileModel:
        """Load a file, ready to evaluate tokens. Raises ModelError and its kinds."""

    def vocabulary(self, path: Path) -> AbstractContextManager[Tokenizer]:
        """Open a file's tokenizer without its weights. Raises ModelError and its kinds."""

    def entries(self, path: Path) -> Vocabulary:
        """Return a file's vocabulary to look at: no engine opens the file. Raises ModelError and
        its kinds.
        """

    def inspect_metadata(self, path: Path) -> dict[str, str]:
        """Return what a file says about itself, under the names of GGUF's metadata without the
        architecture's prefix ("block_count", "context_length", …). Raises ModelError and its kinds.
        """

    def published_sampling(self, model: Any) -> dict[str, Any]:
        """Return what the file of a FileModel of this backend recommends for sampling, unchecked,
        under the names of generation_config.json. Raises ModelError and its kinds.
        """

    def identity(self, path: Path) -> dict[str, Any]:
        """Return what stands for a file on this device with this build, whatever the settings."""

    def versions(self) -> dict[str, str]:
        """Return the versions of the packages that the engine is made of."""

    def gpus(self, config: EngineConfig) -> list[str]:
        """Return the names of the GPUs that compute a part of a model with these settings, with
        all that their speed depends on; none where only the CPU computes. Raises ConfigError for
        a device that is not there.
        """

    def ignores_gpu_layers(self, config: EngineConfig) -> bool:
        """Return True if `config` names a number of layers for a GPU that this build cannot use;
        False from an engine that does not count layers.
        """

    def head_facts(self, path: Path) -> HeadFacts:
        """Return what a head's files say. Raises ModelError and its kinds."""

    def target_sizes(self, path: Path) -> TargetSizes:
        """Return the sizes of a model that heads may be made for, as far as they are told without
        loading it. Raises ModelError and its kinds.
        """

    def is_head(self, path: Path) -> bool:
        """Return True if a file is a head and no model of its own. Raises ModelError and its
        kinds.
        """

    def has_own_head(self, path: Path) -> bool:
        """Return True if the file of a model has a head for it, which `open_head` opens under the
        model's own path. Raises ModelError and its kinds.
        """

    def open_head(self, path: Path, config: EngineConfig, target: FileModel) -> FileHead:
        """Load a head for a target, which may run on another engine. Raises ModelError and its
        kinds; where the head was made for another target, a ConfigError that says how they differ.
        """

    def can_requantize(self) -> bool:
        """Return True if the library that runs here can write a copy of a model in a format that
        CPUs evaluate faster; only then `requantizable` and `requantize` are called.
        """

    def requantizable(self, path: Path) -> bool:
        """Return True if the copy would be in another format, and hardly a worse one. Raises
        ModelError and its kinds.
        """

    def requantize(self, path: Path, target: Path) -> None:
        """Write the copy. Raises ModelError."""
