"""Filling in the middle of a text: the markers that models were trained with, and their prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..backends.base import Tokenizer
from ..backends.special_tokens import frame

_FAMILIES = (  # the markers before prefix, suffix and middle
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
    ("<|prefix|>", "<|suffix|>", "<|middle|>"),  # Falcon
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    ("<PRE>", "<SUF>", "<MID>"),
    ("[PREFIX]", "[SUFFIX]", ""),  # Codestral: the suffix comes first
)
_REPOSITORY = ("<|repo_name|>", "<|fim_repo|>", "<repo_name>", "<reponame>")
_FILE = ("<|file_sep|>", "<|file_separator|>", "<file_sep>")
_OTHERS = ("<|fim_pad|>", "<fim_pad>", "<fim-pad>", "▁<EOT>", "<EOT>", "</fim_middle>")
_LONGEST = 8  # characters a token: more of a text is not tokenized to fill a given number of tokens
_PROJECT, _UNNAMED = "myproject", "filename"  # llama.cpp's names for what has none


class Markers(NamedTuple):
    """The token ids that a vocabulary has for filling in.

    middle: None if the prefix comes last and is continued. repository, file: the markers before the
    names of a repository and of a file, None if there are none. all: these and all other markers;
    each of them ends an answer.
    """

    prefix: int
    suffix: int
    middle: int | None
    repository: int | None
    file: int | None
    all: frozenset[int]


@dataclass(frozen=True, slots=True)
class Infill:
    """A text with a hole.

    prefix, suffix: the text before and after the hole. begun: the text with which the answer
    begins. extra: other files as (name, text), the most important one last. cuts: True to leave out
    the text that is farthest from the hole if there is too much.
    """

    prefix: str
    suffix: str
    begun: str = ""
    extra: Sequence[tuple[str, str]] = ()
    cuts: bool = False


def markers_of(tokenizer: Tokenizer) -> Markers | None:
    """Return the markers of a vocabulary, None if it has none.

    They are the tokens that a model's file names for this purpose, or else tokens with the texts
    that known models use.
    """
    texts = [*tokenizer.control_texts(), *tokenizer.user_defined_texts()]
    known = set(texts)
    for family in (tokenizer.infill_texts(), *_FAMILIES):
        if family and all(text in known for text in family if text):
            break
    else:
        return None

    def ids(*candidates: str) -> list[int]:
        there = [text for text in candidates if text in known]
        return [_id(tokenizer, text) for text in there]

    prefix, suffix, *middle = ids(*family)
    repository, file = ids(*_REPOSITORY), ids(*_FILE)
    every = frozenset([prefix, suffix, *middle, *repository, *file, *ids(*_OTHERS)])
    return Markers(
        prefix, suffix, next(iter(middle), None), next(iter(repository), None),
        next(iter(file), None), every,
    )  # fmt: skip


def infill_ids(tokenizer: Tokenizer, markers: Markers, hole: Infill, limit: int) -> list[int]:
    """Return the prompt for a text with a hole, as token ids.

    The other files come first, each after its name, so that the beginning of the prompt stays the
    same while one of the parts near the hole changes. limit: the most tokens; if `hole.cuts` is
    False, the prompt may be longer.
    """

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special=False, parse_special=False)

    begin, begun = frame(tokenizer)[0], encode(hole.begun)
    prefix, suffix = hole.prefix, hole.suffix
    if hole.cuts:
        prefix, suffix = prefix[-_LONGEST * limit :], suffix[: _LONGEST * limit]
    before, after = encode(prefix), encode(suffix)
    room = limit - len(begin) - len(begun) - 3
    if hole.cuts and len(before) + len(after) > room:
        n_after = min(len(after), max(room // 4, room - len(before)))
        before, after = before[-max(1, room - n_after) :], after[: max(0, n_after)]
    files = _files(encode, markers, hole, room - len(before) - len(after))
    if markers.middle is None:
        parts = [[markers.suffix], after, [markers.prefix], before]
    else:
        parts = [[markers.prefix], before, [markers.suffix], after, [markers.middle]]
    return [*begin, *files, *(token for part in parts for token in part), *begun]


def _files(
    encode: Callable[[str], list[int]], markers: Markers, hole: Infill, room: int
) -> list[int]:
    """Return the tokens of the other files, without the first ones if there are too many."""
    if not hole.extra:
        return []
    if markers.file is None:
        begin: list[int] = []
        texts = [encode(f"{text}\n\n") for _, text in hole.extra]
        end: list[int] = []
    else:
        begin = [] if markers.repository is None else [markers.repository, *encode(f"{_PROJECT}\n")]
        texts = [[markers.file, *encode(f"{name}\n{text}")] for name, text in hole.extra]
        end = [markers.file, *encode(f"{_UNNAMED}\n")]
    kept = len(texts)
    while kept and hole.cuts and sum(map(len, (begin, *texts[-kept:], end))) > room:
        kept -= 1
    if not kept:
        return []
    return [*begin, *(token for text in texts[-kept:] for token in text), *end]


def _id(tokenizer: Tokenizer, text: str) -> int:
    """Return the id of a control or user-defined token."""
    ids = tokenizer.encode(text, add_special=False)
    if len(ids) == 1:
        return ids[0]
    return next(i for i in range(tokenizer.vocab_size) if tokenizer.token_text(i) == text.encode())
