"""A toy model, which is a table or a function, and a toy tokenizer, with the contracts of a real
engine.

The tests prove with the toy model that decoding is lossless. You can use it to test programs that
embed edgespec.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import Aborted, CannotTruncate, ConfigError, ContextFull, DecodeError
from ..sampling.trees import path_to
from ..types import Abort, Outputs
from .base import FINAL, Buffer, Capabilities, Model

NextProbs = Callable[[Sequence[int]], npt.ArrayLike]


class ToyModel(Model):
    """A model whose next-token probabilities come from a table or a function.

    probs: [vocab_size, vocab_size], where row t has the probabilities after token t; or a function
    from all tokens so far to [vocab_size] probabilities (with `vocab_size` given). Logits rows are
    float64 log-probabilities, -inf where a probability is zero. With truncate=False, it behaves
    like a recurrent model: it goes back only to checkpoints, and evaluates no trees. The hidden
    state of a token in a layer has three numbers: the token's position, the token's id, and the
    layer's number.
    """

    hidden_size = 3
    n_layer = 4

    def __init__(
        self,
        probs: npt.ArrayLike | NextProbs,
        *,
        vocab_size: int | None = None,
        n_ctx: int = 256,
        truncate: bool = True,
        max_rows: int = 32,
        max_batch: int = 64,
    ) -> None:
        if callable(probs):
            if vocab_size is None:
                raise ConfigError("a toy model from a function needs vocab_size=…")
            self._next: NextProbs = probs
            self.vocab_size = vocab_size
        else:
            table = np.asarray(probs, np.float64)
            if table.ndim != 2 or table.shape[0] != table.shape[1]:
                raise ConfigError(f"a toy table must be [vocab, vocab], got {table.shape}")
            self._next = lambda tokens: table[tokens[-1]]
            self.vocab_size = table.shape[0]
        self.n_ctx = n_ctx
        self.capabilities = Capabilities(
            max_rows,
            max_batch,
            truncate,
            hidden_states=True,
            max_leaves=max_rows if truncate else 1,
            grows=truncate,
            saves="parts" if truncate else "whole",
        )
        self.n_evaluated = 0
        self._layers: tuple[int, ...] = ()
        self._tokens: list[int] = []
        self._nodes: list[int] = []  # nodes of a tree that waits for `keep`
        self._parents: list[int] = []

    @property
    def n_past(self) -> int:
        """The number of tokens that the cache holds."""
        return len(self._tokens)

    def decode(
        self, tokens: Sequence[int], n_logits: int = 1, abort: Abort | None = None
    ) -> Outputs:
        """Append tokens and return their logits, float64 [n_logits, vocab_size]."""
        if self.n_past + len(tokens) > self.n_ctx:
            raise ContextFull(f"{self.n_past} + {len(tokens)} tokens, but n_ctx is {self.n_ctx}")
        if abort and len(tokens) > 1 and abort():
            raise Aborted("stopped by the caller")
        rows = np.empty((n_logits, self.vocab_size))
        self._nodes, self._parents = [], []
        for i, token in enumerate(tokens, start=n_logits - len(tokens)):
            self._tokens.append(int(token))
            if i >= 0:
                rows[i] = self._row(self._tokens)
        self.n_evaluated += len(tokens)
        start = self.n_past - len(tokens)
        return Outputs(rows, self._states(range(start, self.n_past), tokens))

    def tap(self, layers: Sequence[int]) -> None:
        """Make later evaluations return the hidden states of these layers."""
        for layer in layers:
            if not FINAL <= layer <= self.n_layer:
                raise ConfigError(f"a toy model has the layers 0 to {self.n_layer}, not {layer}")
        self._layers = tuple(layers)

    def _states(
        self, positions: Iterable[int], tokens: Sequence[int]
    ) -> npt.NDArray[np.float32] | None:
        if not self._layers:
            return None
        pairs = zip(positions, tokens, strict=True)
        return np.array(
            [[(position, token, layer) for layer in self._layers] for position, token in pairs],
            np.float32,
        ).reshape(len(tokens), len(self._layers), self.hidden_size)

    def decode_tree(
        self, tokens: Sequence[int], parents: Sequence[int], abort: Abort | None = None
    ) -> Outputs:
        """Append tokens and a tree; return float64 [len(parents) + 1, vocab_size]."""
        n_before = len(tokens) - len(parents)
        if self.n_past + len(tokens) > self.n_ctx:
            raise ContextFull(f"{self.n_past} + {len(tokens)} tokens, but n_ctx is {self.n_ctx}")
        first, ahead = self.decode(tokens[:n_before], 1, abort)
        rows, after = self.grow(tokens[n_before:], parents)
        states = None if ahead is None or after is None else np.concatenate([ahead, after])
        return Outputs(np.concatenate([first, rows]), states)

    def grow(
        self, tokens: Sequence[int], parents: Sequence[int], abort: Abort | None = None
    ) -> Outputs:
        """Append nodes to a tree; return float64 [len(tokens), vocab_size]."""
        if self.n_past + len(tokens) > self.n_ctx:
            self.keep(())
            raise ContextFull(f"no room for {len(tokens)} nodes, n_ctx is {self.n_ctx}")
        text = self._tokens[: len(self._tokens) - len(self._nodes)]
        new = range(len(self._nodes), len(self._nodes) + len(tokens))
        self._nodes += [int(token) for token in tokens]
        self._parents += parents
        self._tokens = [*text, *self._nodes]
        self.n_evaluated += len(tokens)
        paths = [path_to(self._parents, node) for node in new]
        rows = [self._row([*text, *(self._nodes[i] for i in path)]) for path in paths]
        positions = [len(text) + len(path) - 1 for path in paths]
        return Outputs(np.stack(rows), self._states(positions, tokens))

    def keep(self, path: Sequence[int]) -> None:
        """Keep the nodes of a path of the last tree, and drop the others."""
        del self._tokens[len(self._tokens) - len(self._nodes) :]
        self._tokens += [self._nodes[node] for node in path]
        self._nodes, self._parents = [], []

    def _row(self, tokens: Sequence[int]) -> npt.NDArray[np.float64]:
        with np.errstate(divide="ignore"):
            return np.log(np.asarray(self._next(tuple(tokens)), np.float64))

    def truncate(self, n_past: int) -> None:
        """Forget everything from `n_past` on."""
        if n_past < len(self._tokens):
            if n_past and not self.capabilities.truncate:
                raise CannotTruncate("this toy model was made with truncate=False")
            del self._tokens[n_past:]
            self._nodes, self._parents = [], []

    def checkpoint(self) -> Any:
        """Return the tokens so far."""
        return tuple(self._tokens)

    def restore(self, state: Any) -> None:
        """Go back to a checkpoint."""
        self._tokens = list(state)

    def save_state(self, start: int, end: int) -> Buffer:
        """Return the tokens from `start` to `end` as int32."""
        return np.array(self._tokens[start:end], np.int32).tobytes()

    def load_state(self, state: Buffer, end: int) -> None:
        """Append the tokens of a saved state."""
        tokens = np.frombuffer(state, np.int32).tolist() if len(state) % 4 == 0 else []
        if len(tokens) != end - self.n_past:
            self._tokens = []
            raise DecodeError(f"a state of {len(tokens)} tokens cannot end at position {end}")
        self._tokens += tokens


class ToyTokenizer:
    """A tokenizer over a list of texts, which always reads the longest entry that fits.

    vocab: the text of each token, bytes or str. eog: the ids that end a generation; they add no
    text. chat_template, tool_template: the template of all requests, and that of requests with
    tools, if it is another one.
    """

    def __init__(
        self,
        vocab: Sequence[str | bytes],
        eog: Sequence[int] = (),
        chat_template: str | None = None,
        tool_template: str | None = None,
    ) -> None:
        self._vocab = [t.encode() if isinstance(t, str) else t for t in vocab]
        self._eog = frozenset(eog)
        self.vocab_size = len(vocab)
        self.chat_template = chat_template
        self.tool_template = tool_template
        self._by_first_byte: dict[int, list[int]] = {}  # ids of entries, the longest entry first
        for i in sorted(range(len(vocab)), key=lambda i: -len(self._vocab[i])):
            if self._vocab[i]:
                self._by_first_byte.setdefault(self._vocab[i][0], []).append(i)

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Return the token ids of `text`. Raises ConfigError if no entry fits."""
        data, at, ids = text.encode(), 0, []
        while at < len(data):
            candidates = self._by_first_byte.get(data[at], [])
            best = next((i for i in candidates if data.startswith(self._vocab[i], at)), None)
            if best is None:
                raise ConfigError(f"the toy vocabulary has no entry for {data[at : at + 16]!r}")
            ids.append(best)
            at += len(self._vocab[best])
        return ids

    def encode_pieces(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> Iterator[list[int]]:
        """Yield the ids of `encode`, all at once."""
        yield self.encode(text, add_special=add_special, parse_special=parse_special)

    def has_control(self, text: str) -> bool:
        """Return False: there are no control tokens."""
        return False

    def control_texts(self) -> list[str]:
        """Return an empty list: there are no control tokens."""
        return []

    def user_defined_texts(self) -> list[str]:
        """Return an empty list: no entry is more than its text."""
        return []

    def infill_texts(self) -> None:
        """Return None: there is no file that names markers."""

    @property
    def longest_token(self) -> int:
        """The length of the longest entry, in bytes."""
        return max(map(len, self._vocab))

    def token_text(self, token: int) -> bytes:
        """Return the vocabulary's entry for a token id."""
        return self._vocab[token]

    def piece(self, token: int) -> bytes:
        """Return the vocabulary's entry for a token id; empty for end tokens."""
        return b"" if token in self._eog else self._vocab[token]

    def is_eog(self, token: int) -> bool:
        """Return True if the token ends a generation."""
        return token in self._eog

    def special(self) -> dict[str, str]:
        """Return empty texts: there are no special tokens."""
        return {"bos_token": "", "eos_token": ""}
