"""Finding special tokens in texts, in time that grows only with the length of the text."""

from __future__ import annotations

import bisect
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .base import Tokenizer

_Trie = dict[str, Any]
_SPACES = " \t\n\v\f\r"
_PIECE = 1024  # the least number of characters between two cuts


def matcher(texts: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that finds any of `texts`. If several begin at the same place, it finds the
    longest.

    It is compiled from a trie. In a plain alternation of thousands of texts, `re` would try every
    text at every place.
    """
    trie: _Trie = {}
    for text in texts:
        node = trie
        for char in text:
            node = node.setdefault(char, {})
        node[""] = {}
    return re.compile(_pattern(trie) if trie else r"(?!)", re.DOTALL)


def _pattern(node: _Trie) -> str:
    branches = [re.escape(char) + _pattern(below) for char, below in node.items() if char]
    if not branches:
        return ""
    ends = "?" if "" in node else ""
    return f"(?:{'|'.join(branches)}){ends}"


class Borders:
    """Checks whether the beginning or the end of a text could become part of a token once more text
    is put before or after it.
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        self._tokens = tokens
        self._forward = sorted(tokens)
        self._backward = sorted(token[::-1] for token in tokens)
        self._longest = max(map(len, tokens), default=0)

    def at_begin(self, text: str) -> bool:
        """Return True if the beginning of `text`, or all of it, could become part of a longer
        token.
        """
        if len(text) < self._longest and any(text in token for token in self._tokens):
            return True
        return self._is_open(self._backward, text[: self._longest][::-1])

    def at_end(self, text: str) -> bool:
        """Return True if the end of `text` could become part of a longer token."""
        return self._is_open(self._forward, text[-self._longest :] if self._longest else "")

    @staticmethod
    def _is_open(tokens: list[str], text: str) -> bool:
        """Return True if one of the sorted tokens begins with a suffix of `text` and is longer than
        that suffix.
        """
        for k in range(len(text)):
            following = bisect.bisect_right(tokens, text[k:])
            if following < len(tokens) and tokens[following].startswith(text[k:]):
                return True
        return False


class Special(NamedTuple):
    """The properties of a special token.

    control: it is a control token. lstrip, rstrip: it swallows the blanks before it, or after it.
    """

    control: bool
    lstrip: bool = False
    rstrip: bool = False


class Piece(NamedTuple):
    """A part of a text. control: it may contain control tokens."""

    text: str
    control: bool


class SpecialTokens:
    """Cuts texts at special tokens, so that the ids of the pieces are the ids of the whole text.

    An engine looks for one special token after the other, the longest first, and encodes the text
    between them separately. So a text may be cut next to a special token unless a longer special
    token overlaps it: the engine finds the same token in the whole text. If tokens overlap in
    another way, the text stays in one piece. A token also stays in one piece with the blanks that
    it swallows.

    tokens: the texts that are read as special tokens; none of them is empty.
    """

    def __init__(self, tokens: Mapping[str, Special]) -> None:
        self._tokens = tokens
        self._sorted = sorted(tokens)
        strips = any(token.lstrip or token.rstrip for token in tokens.values())
        self._swallowed = {text for text in tokens if strips and text != text.strip(_SPACES)}
        self._find = matcher(tokens)
        self._overlap = functools.lru_cache(maxsize=None)(self._overlapping)

    def pieces(self, text: str) -> Iterator[Piece]:
        """Yield the pieces of a text in order. A control token is a piece of its own if it can be
        cut out.
        """
        begin, unsafe, control = 0, 0, False
        for match in self._find.finditer(text):
            token, (start, end) = self._tokens[match[0]], match.span()
            reach = self._reach(match[0], start >= unsafe, text, end)
            clean = start >= unsafe and reach == end and match[0] not in self._swallowed
            unsafe = max(unsafe, reach)
            wanted = clean and (token.control or start - begin >= _PIECE)
            if wanted and not (token.lstrip and text[start - 1 : start] in _SPACES):
                if start > begin:
                    yield Piece(text[begin:start], control)
                begin, control = start, False
            control = control or token.control or reach > end
            if wanted and not (token.rstrip and text[end : end + 1] in _SPACES):
                yield Piece(text[begin:end], control)
                begin, control = end, False
        if begin < len(text):
            yield Piece(text[begin:], control)

    def _reach(self, found: str, alone: bool, text: str, end: int) -> int:
        """Return the end of the tokens that begin inside the token `found`. If there are none,
        return `end`, the end of `found` itself.

        alone: no earlier token overlaps `found`; then only a longer token can take its place.
        """
        overlap = self._overlap(found, alone)
        beyond = overlap.match(text, end) if overlap else None
        return beyond.end() if beyond else end

    def _overlapping(self, found: str, longer: bool) -> re.Pattern[str] | None:
        """Return a pattern for the text after `found`: it matches the rest of another token that
        begins inside `found`. Return None if there is no such token.

        longer: consider only tokens that are at least as long as `found`.
        """
        rests = set()
        for k in range(1, len(found)):
            tail = found[k:]
            for token in self._sorted[bisect.bisect_right(self._sorted, tail) :]:
                if not token.startswith(tail):
                    break
                if not longer or (token != found and len(token) >= len(found)):
                    rests.add(token[len(tail) :])
        return matcher(rests) if rests else None


def frame(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Return the ids that add_special puts before and after a text."""
    whole = tokenizer.encode("a", parse_special=False)
    text = tokenizer.encode("a", add_special=False, parse_special=False)
    begin = next(i for i in range(len(whole)) if whole[i : i + len(text)] == text)
    return whole[:begin], whole[begin + len(text) :]
