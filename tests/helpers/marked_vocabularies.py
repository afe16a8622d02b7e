"""Vocabularies of every engine in which the markers of all call forms are user-defined tokens."""

import json
import re
from pathlib import Path

from edgespec.backends.toy import ToyTokenizer
from edgespec.chat.format import AnswerFormat
from edgespec.chat.templates import TAG
from tests.helpers import gguf_files as made
from tests.helpers.formats import TEMPLATES

CONTROL = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>")
_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4  # gguf.TokenType
_LETTERS = [chr(i) for i in range(33, 127)]


def markers_of(template: str) -> list[str]:
    """Return the markers of the form that a template tells."""
    return sorted(set(TAG.findall(AnswerFormat.of(template, {}).texts)))


MARKERS = sorted({marker for each in TEMPLATES.values() for marker in markers_of(each)})
HARMLESS = ("\n\n\n", "    ", "<b>", "</b>")
"""User-defined tokens that mean nothing to a template, as many vocabularies have."""
USER_DEFINED = (*MARKERS, *HARMLESS)


class MarkedToy(ToyTokenizer):
    """Bytes, user-defined tokens and control tokens."""

    def __init__(self, template: str | None = None) -> None:
        letters = [bytes([i]) for i in range(256)]
        entries = [*letters, *USER_DEFINED, *CONTROL]
        super().__init__(entries, eog=[len(entries) - 1], chat_template=template)
        self._ids = {text: 256 + i for i, text in enumerate((*USER_DEFINED, *CONTROL))}

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Return the token ids of `text`, the longest word that fits first."""
        words = (*USER_DEFINED, *(CONTROL if parse_special else ()))
        parts = re.split(f"({'|'.join(map(re.escape, sorted(words, key=len)[::-1]))})", text)
        return [
            token
            for part in parts
            for token in ([self._ids[part]] if part in words else part.encode())
        ]

    def has_control(self, text: str) -> bool:
        """Return True if a control token stands in the text."""
        return any(each in text for each in CONTROL)

    def control_texts(self) -> list[str]:
        """Return the texts of the control tokens."""
        return list(CONTROL)

    def user_defined_texts(self) -> list[str]:
        """Return the texts of the tokens that are read everywhere."""
        return list(USER_DEFINED)

    def piece(self, token: int) -> bytes:
        """Return the bytes of a token, none for control tokens."""
        return b"" if token >= self.vocab_size - len(CONTROL) else super().piece(token)


def write_sentencepiece(path: Path) -> Path:
    """Write a GGUF that puts a blank before each text, as Llama 2 does."""
    words = ["\u2581", *_LETTERS, "tool", "_call", "\u2581a"]
    tokens = [*made.TOKENS, *(each.encode() for each in (*words, *USER_DEFINED, *CONTROL))]
    kinds = [_NORMAL] * len(words) + [_USER_DEFINED] * len(USER_DEFINED) + [_CONTROL] * 5
    return made.write(
        path,
        llama__vocab_size=(made.UINT32, len(tokens)),
        tokenizer__ggml__tokens=(made.ARRAY, (made.STRING, tokens)),
        tokenizer__ggml__scores=(made.ARRAY, (made.FLOAT32, [0.0] * len(tokens))),
        tokenizer__ggml__token_type=(made.ARRAY, (made.INT32, [2, 3, 3] + [6] * 256 + kinds)),
    )


def write_bytes_pairs(path: Path, real: Path) -> Path:
    """Write a GGUF with the vocabulary of a real model, and the markers after its tokens."""
    import gguf

    def encoded(value):
        if isinstance(value, list):
            return [encoded(item) for item in value]
        return value.encode() if isinstance(value, str) else value

    fields = gguf.GGUFReader(real).fields
    names = [name for name in fields if name.startswith(("tokenizer.ggml.", "llama."))]
    told = {name: fields[name].contents() for name in names}
    told["tokenizer.ggml.tokens"] += [*USER_DEFINED, *CONTROL]
    told["tokenizer.ggml.token_type"] += [_USER_DEFINED] * len(USER_DEFINED) + [_CONTROL] * 5
    told["llama.vocab_size"] = len(told["tokenizer.ggml.tokens"])
    metadata = {"general.architecture": (made.STRING, b"llama")}
    for name in names:
        *array, kind = map(int, fields[name].types)
        each = made.ARRAY if array else kind
        metadata[name] = (each, (kind, encoded(told[name])) if array else encoded(told[name]))
    path.write_bytes(made.gguf_bytes(metadata, {}))
    return path


def write_tokenizer(folder: Path, *, sentencepiece: bool) -> Path:
    """Write a tokenizer.json over bytes; sentencepiece: with a blank before each text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

    folder.mkdir()
    merges = [("t", "o"), ("to", "o"), ("too", "l"), ("c", "a"), ("<", "/")]
    joined = ["".join(pair) for pair in merges]
    if sentencepiece:
        entries = ["<unk>", *(f"<0x{i:02X}>" for i in range(256)), "\u2581", *_LETTERS, *joined]
        model = models.BPE(
            {text: i for i, text in enumerate(entries)}, merges, unk_token="<unk>",
            byte_fallback=True, fuse_unk=True,
        )  # fmt: skip
    else:
        entries = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *joined]
        model = models.BPE({text: i for i, text in enumerate(entries)}, merges)
    tokenizer = Tokenizer(model)
    if sentencepiece:
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        )
        tokenizer.decoder = decoders.ByteFallback()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in USER_DEFINED])
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in CONTROL])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    return folder
