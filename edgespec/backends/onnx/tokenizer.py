"""The tokenizer that lies next to an ONNX model: tokenizer.json and its companions."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...advice import install
from ...errors import EngineMissing, ModelError, ModelNotFound
from ...kept_files import one_line
from ..files import read_bytes
from ..special_tokens import matcher
from .companions import find, read

try:
    from tokenizers import Tokenizer
except ImportError as error:
    raise EngineMissing(f"ONNX models need {install('onnx')}") from error

_ENDS = (  # always end tokens: many configurations name only one of them
    "<|im_end|>", "<|endoftext|>", "</s>", "<|eot_id|>", "<end_of_turn>", "<eos>",
)  # fmt: skip
_CALLS = ("<|return|>", "<|call|>")  # of harmony: with the first token, the second one ends too
_DEFAULT = "default"
_FILES = {  # templates by their names, and the files that have them
    _DEFAULT: ("chat_template.jinja",),
    "tool_use": ("additional_chat_templates/tool_use.jinja", "tool_use.jinja"),
}
_MOST_BYTES, _MOST_TEMPLATE = 128 << 20, 4 << 20
_MOST_TOKENS = 1 << 24
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


class HfTokenizer:
    """The tokenizer in a tokenizer.json.

    folder: the folder of the model; `companions.find` says where files may lie. Raises
    ModelNotFound if there is no tokenizer.json, ModelError if it cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        path = find(folder, "tokenizer.json")
        if path is None:
            raise ModelNotFound(
                f"there is no tokenizer.json beside the model in {folder}; put one there"
            )
        content = read_bytes(path, _MOST_BYTES)
        try:
            self._tokenizer = Tokenizer.from_buffer(content)
            self._decoder = json.dumps(json.loads(content).get("decoder"))
        except Exception as error:  # the library raises bare exceptions
            raise ModelError(f"{path} cannot be read: {one_line(error)}; fetch it again") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        vocab = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size: int = max(vocab.values(), default=-1) + 1
        if self.vocab_size > _MOST_TOKENS:
            raise ModelError(
                f"{path} has the token {self.vocab_size - 1}; at most {_MOST_TOKENS} are expected: "
                "fetch it again"
            )
        settings = read(folder, "tokenizer_config.json")
        self.chat_template, self.tool_template = _templates(folder, settings)
        self._special = {name: _content(settings.get(name)) for name in ("bos_token", "eos_token")}
        added = self._tokenizer.get_added_tokens_decoder()
        self._control = {token for token, each in added.items() if each.special}
        self._user_defined = sorted(added.keys() - self._control)
        self._ends = frozenset(self._find_ends(folder))
        self._encoding = threading.Lock()

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Return token ids. With parse_special, the text of a special token becomes that token."""
        with self._encoding:  # the flag belongs to the tokenizer
            self._tokenizer.encode_special_tokens = not parse_special
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special).ids
        return ids

    def encode_pieces(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> Iterator[list[int]]:
        """Yield the ids of `encode`, all at once: the library takes linear time."""
        yield self.encode(text, add_special=add_special, parse_special=parse_special)

    def has_control(self, text: str) -> bool:
        """Return True if `encode` would read control tokens in `text`."""
        return bool(self._control_pattern.search(text))

    def control_texts(self) -> list[str]:
        """Return the texts of the control tokens, in the order of their ids."""
        return [self.token_text(token).decode() for token in sorted(self._control)]

    def user_defined_texts(self) -> list[str]:
        """Return the texts of added tokens that are not special, in the order of their ids."""
        return [self.token_text(token).decode() for token in self._user_defined]

    def infill_texts(self) -> None:
        """Return None: the files of ONNX models do not name markers."""

    @functools.cached_property
    def _control_pattern(self) -> re.Pattern[str]:
        return matcher(self.control_texts())

    @functools.cached_property
    def longest_token(self) -> int:
        """The most bytes of text that one token can stand for."""
        vocab = self._tokenizer.get_vocab(with_added_tokens=True)
        return max((len(text.encode("utf-8")) for text in vocab), default=1) or 1

    def token_text(self, token: int) -> bytes:
        """Return the vocabulary's entry for a token id; empty if the id has no entry."""
        return (self._tokenizer.id_to_token(token) or "").encode("utf-8")

    def piece(self, token: int) -> bytes:
        """Return the bytes of a token; empty for control tokens."""
        text = self._tokenizer.id_to_token(token)
        if text is None or token in self._control:
            return b""
        if "ByteLevel" in self._decoder:
            table = _byte_of()
            if all(char in table for char in text):
                return bytes(table[char] for char in text)
        elif match := _BYTE.fullmatch(text):
            return bytes([int(match[1], 16)])
        return text.replace("\u2581", " ").encode("utf-8")

    def is_eog(self, token: int) -> bool:
        """Return True if the token ends a generation."""
        return token in self._ends

    def special(self) -> dict[str, str]:
        """Return the texts of bos_token and eos_token, "" if there is none."""
        return self._special

    def _find_ends(self, folder: Path) -> Iterator[int]:
        for name in ("generation_config.json", "genai_config.json", "config.json"):
            content = read(folder, name)
            model = content.get("model") if isinstance(content.get("model"), dict) else content
            ids = (model or {}).get("eos_token_id")
            yield from (i for i in (ids if isinstance(ids, list) else [ids]) if type(i) is int)
        calls = _CALLS if self._tokenizer.token_to_id(_CALLS[0]) is not None else ()
        for text in (self._special["eos_token"], *_ENDS, *calls):
            token = self._tokenizer.token_to_id(text)
            if token is not None and token in self._control:
                yield token


def _templates(folder: Path, settings: dict[str, Any]) -> tuple[str | None, str | None]:
    """Return the chat template, and the template for requests with tools.

    A file overrides the template of the same name in tokenizer_config.json, which has one template
    or a list of templates with names.
    """
    given = settings.get("chat_template") or read(folder, "chat_template.json").get("chat_template")
    entries = given if isinstance(given, list) else [{"name": _DEFAULT, "template": given}]
    known = {e.get("name"): e.get("template") for e in entries if isinstance(e, dict)}
    for name, files in _FILES.items():
        path = next(filter(None, (find(folder, file) for file in files)), None)
        if path:
            known[name] = read_bytes(path, _MOST_TEMPLATE).decode("utf-8", "replace")
    default, tools = (known.get(name) for name in _FILES)
    return default if isinstance(default, str) else None, tools if isinstance(tools, str) else None


def _content(entry: Any) -> str:
    """Return the text of a special token, written as text or as an object."""
    text = entry.get("content") if isinstance(entry, dict) else entry
    return text if isinstance(text, str) else ""


@functools.cache
def _byte_of() -> dict[str, int]:
    """Return the byte that each character of a byte-level vocabulary stands for (GPT-2's table).
    Printable Latin-1 characters stand for their own byte. Characters from 256 on stand for the
    other bytes, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + i): byte for i, byte in enumerate(others)
    }


def entries(path: Path) -> HfTokenizer:
    """Return the vocabulary of a model. Raises the errors of `HfTokenizer`."""
    return HfTokenizer(path.parent)


@contextlib.contextmanager
def vocabulary(path: Path) -> Iterator[HfTokenizer]:
    """Open the tokenizer of a file without loading the weights. Raises the errors of
    `HfTokenizer`.
    """
    yield HfTokenizer(path.parent)
