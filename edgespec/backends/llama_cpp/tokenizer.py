"""The vocabulary of a GGUF."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..special_tokens import Special, SpecialTokens, frame, matcher
from .declarations import FILLING, missing
from .library import lib
from .weights import load_weights

# llama_token_attr
_UNKNOWN, _CONTROL, _USER_DEFINED, _LSTRIP, _RSTRIP = 1, 8, 16, 128, 256
_HIDDEN = _UNKNOWN | _CONTROL  # read only with parse_special
_SHORT = 2048  # bytes; longer texts are split: the time of a call is quadratic in special tokens


def _template(model: Any, name: bytes | None) -> str | None:
    """Return the chat template with a name (None: the default) from the file, or None."""
    template = lib.llama_model_chat_template(model, name)
    return template.decode("utf-8", "replace") if template else None


class LlamaCppTokenizer:
    """The vocabulary of a GGUF. owner: an object that keeps the native model alive."""

    def __init__(self, model: Any, owner: object = None) -> None:
        self._owner = owner
        self._vocab = lib.llama_model_get_vocab(model)
        self.vocab_size: int = lib.llama_vocab_n_tokens(self._vocab)
        self.chat_template = _template(model, None)
        self.tool_template = _template(model, b"tool_use")
        self._special = {
            "bos_token": self._text_of(lib.llama_vocab_bos(self._vocab)),
            "eos_token": self._text_of(lib.llama_vocab_eos(self._vocab)),
        }
        self._pieces: dict[int, bytes] = {}  # of the tokens asked for so far
        self._ends: dict[int, bool] = {}

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Return token ids. With parse_special, the text of a control token becomes that token."""
        pieces = self.encode_pieces(text, add_special=add_special, parse_special=parse_special)
        return list(itertools.chain.from_iterable(pieces))

    def encode_pieces(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> Iterator[list[int]]:
        """Yield the ids of `encode` in pieces. Long texts are cut at special tokens.

        llama.cpp searches a text once for every special token of the vocabulary. The time for that
        is quadratic in the number of special tokens in the text. Pieces without special tokens are
        not searched.
        """
        data = text.encode("utf-8", "replace")
        if len(data) <= _SHORT:
            yield self._encode(data, add_special, parse_special)
            return
        before, after = frame(self) if add_special else ([], [])
        yield before
        special = self._special_tokens if parse_special else self._user_defined
        controls: dict[str, list[int]] = {}
        for piece in special.pieces(data.decode("latin-1")):  # one character per byte
            control = parse_special and piece.control
            ids = controls.get(piece.text) if control else None
            if ids is None:
                ids = self._encode(piece.text.encode("latin-1"), False, control)
                if control:  # kept here: usually a single token, which may occur very often
                    controls[piece.text] = ids
            yield ids
        yield after

    def _encode(self, data: bytes, add_special: bool, parse_special: bool) -> list[int]:
        size = len(data) + 8
        while True:
            ids = (ctypes.c_int32 * size)()
            n = lib.llama_tokenize(
                self._vocab, data, len(data), ids, size, add_special, parse_special
            )
            if n >= 0:
                return ids[:n]
            size = -n  # a space that the tokenizer puts in front may take several tokens

    def has_control(self, text: str) -> bool:
        """Return True if `encode` would read control tokens in `text`."""
        if len(text) <= _SHORT and "_control" not in self.__dict__:  # no walk over the vocabulary
            data = text.encode("utf-8", "replace")
            return self._encode(data, False, True) != self._encode(data, False, False)
        return bool(self._control.search(text))

    def control_texts(self) -> list[str]:
        """Return the texts of the control tokens, in the order of their ids."""
        hidden = (token for token, attr in self._attrs if attr & _HIDDEN)
        return [text for token in hidden if (text := self._text_of(token))]

    def user_defined_texts(self) -> list[str]:
        """Return the texts of the user-defined tokens, in the order of their ids."""
        return [self._text_of(token) for token, attr in self._attrs if not attr & _HIDDEN]

    def infill_texts(self) -> tuple[str, str, str] | None:
        """Return the texts of the markers before prefix, suffix and middle that the metadata names,
        or that llama.cpp recognises; None if there are not all three.
        """
        if missing(lib, FILLING):
            return None
        prefix, suffix, middle = (self._text_of(getattr(lib, n)(self._vocab)) for n in FILLING)
        return (prefix, suffix, middle) if prefix and suffix and middle else None

    @functools.cached_property
    def _control(self) -> re.Pattern[str]:
        return matcher(self.control_texts())

    @functools.cached_property
    def longest_token(self) -> int:
        """The most bytes of text that one token can stand for."""
        return max(map(len, map(self.token_text, range(self.vocab_size))), default=1) or 1

    @functools.cached_property
    def _attrs(self) -> list[tuple[int, int]]:
        """The special tokens of the vocabulary, each with its attributes."""
        attr = functools.partial(lib.llama_vocab_get_attr, self._vocab)
        attrs = enumerate(map(attr, range(self.vocab_size)))
        return [(token, attr) for token, attr in attrs if attr & (_HIDDEN | _USER_DEFINED)]

    @functools.cached_property
    def _special_tokens(self) -> SpecialTokens:
        return self._splitter(_HIDDEN | _USER_DEFINED, excluded=0)

    @functools.cached_property
    def _user_defined(self) -> SpecialTokens:
        return self._splitter(_USER_DEFINED, excluded=_HIDDEN)

    def _splitter(self, kinds: int, excluded: int) -> SpecialTokens:
        texts = {
            self.token_text(token).decode("latin-1"): Special(
                bool(attr & _HIDDEN), bool(attr & _LSTRIP), bool(attr & _RSTRIP)
            )
            for token, attr in self._attrs
            if attr & kinds and not attr & excluded
        }
        texts.pop("", None)
        return SpecialTokens(texts)

    def token_text(self, token: int) -> bytes:
        """Return the vocabulary's entry for a token id."""
        text: bytes = lib.llama_vocab_get_text(self._vocab, token)
        return text

    def piece(self, token: int) -> bytes:
        """Return the bytes of a token; empty for control tokens."""
        known = self._pieces.get(token)
        if known is None:
            known = self._pieces[token] = self._native_piece(token)
        return known

    def _native_piece(self, token: int) -> bytes:
        size = 64
        while True:
            text = ctypes.create_string_buffer(size)  # another thread may ask at the same time
            n = lib.llama_token_to_piece(self._vocab, token, text, size, 0, False)
            if n >= 0:
                return text.raw[:n]
            size = -n

    def is_eog(self, token: int) -> bool:
        """Return True if the token ends a generation."""
        known = self._ends.get(token)
        if known is None:
            known = self._ends[token] = bool(lib.llama_vocab_is_eog(self._vocab, token))
        return known

    def special(self) -> dict[str, str]:
        """Return the texts of bos_token and eos_token, "" if there is none."""
        return self._special

    def _text_of(self, token: int) -> str:
        return self.token_text(token).decode("utf-8", "replace") if token >= 0 else ""


@contextlib.contextmanager
def vocabulary(path: Path) -> Iterator[LlamaCppTokenizer]:
    """Open the tokenizer of a file without loading the weights. Raises the errors of
    `load_weights`.
    """
    model, _ = load_weights(path, vocab_only=True)
    try:
        yield LlamaCppTokenizer(model)
    finally:
        lib.llama_model_free(model)
