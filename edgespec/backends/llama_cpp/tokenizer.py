"""The vocabulary of a GGUF."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .library import lib
from .weights import load_weights


class LlamaCppTokenizer:
    """The vocabulary of a GGUF. `owner` keeps the native model alive."""

    def __init__(self, model: Any, owner: object = None) -> None:
        self._owner = owner
        self._vocab = lib.llama_model_get_vocab(model)
        self.vocab_size: int = lib.llama_vocab_n_tokens(self._vocab)
        template = lib.llama_model_chat_template(model, None)
        self.chat_template: str | None = template.decode("utf-8", "replace") if template else None
        self._special = {
            "bos_token": self._text_of(lib.llama_vocab_bos(self._vocab)),
            "eos_token": self._text_of(lib.llama_vocab_eos(self._vocab)),
        }
        self._pieces: dict[int, bytes] = {}  # of the tokens met so far
        self._ends: dict[int, bool] = {}

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Return token ids; parse_special reads special tokens written in `text` as such."""
        data = text.encode("utf-8", "replace")
        size = len(data) + 8
        while True:
            ids = (ctypes.c_int32 * size)()
            n = lib.llama_tokenize(
                self._vocab, data, len(data), ids, size, add_special, parse_special
            )
            if n >= 0:
                return ids[:n]
            size = -n  # a space that the tokenizer puts in front may take several tokens

    def token_text(self, token: int) -> bytes:
        """Return the vocabulary's own entry."""
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
        """Return the texts of bos_token and eos_token, "" where there is none."""
        return self._special

    def _text_of(self, token: int) -> str:
        return self.token_text(token).decode("utf-8", "replace") if token >= 0 else ""


@contextlib.contextmanager
def vocabulary(path: Path) -> Iterator[LlamaCppTokenizer]:
    """Open the tokenizer of a file without its weights. Raises as `load_weights`."""
    model, _ = load_weights(path, vocab_only=True)
    try:
        yield LlamaCppTokenizer(model)
    finally:
        lib.llama_model_free(model)
