"""Compiled constraints, and matchers that follow an answer through them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..cache.token_cache import common_prefix
from ..errors import DecodeError
from ..types import Thought
from .keywords import in_our_words
from .slashes import SlashMatcher
from .vocabulary import Words

if TYPE_CHECKING:
    import llguidance

_LARGE = 1 << 14  # bytes above which a form counts as large
_MOST_SAID = 300  # characters of an error of llguidance, which may repeat complete expressions


class Grammar:
    """A compiled constraint.

    shown: the ids of control tokens that are read as text, and their texts. description: the text
    that it was compiled from, with the kind of the text as the key. has_json: True if the only
    texts in which a backslash has a meaning are those of JSON. notes: sentences on what is not
    enforced.
    """

    def __init__(
        self,
        matcher: llguidance.LLMatcher,
        words: Words,
        shown: Mapping[int, bytes] | None = None,
        description: Mapping[str, bool | int | str] | None = None,
        *,
        has_json: bool = False,
        notes: Sequence[str] = (),
    ) -> None:
        self._matcher = matcher
        self._words = words
        self._has_json = has_json
        self.shown = shown or {}
        self.description = description or {}
        self.notes = notes
        self.thought: Thought | None = None

    def of_chat(
        self, shown: Mapping[int, bytes], notes: Sequence[str], thought: Thought | None
    ) -> Grammar:
        """Return a copy for the answers of a chat.

        shown: the ids of control tokens that are read as text, and their texts. notes: replace the
        notes. thought: the texts around the reasoning.
        """
        copy = Grammar(
            self._matcher, self._words, shown, self.description, has_json=self._has_json,
            notes=notes,
        )  # fmt: skip
        copy.thought = thought
        return copy

    def matcher(self) -> GrammarMatcher:
        """Return a matcher at the beginning of an answer."""
        size = sum(len(value) for value in self.description.values() if isinstance(value, str))
        return GrammarMatcher(
            self._matcher.deep_copy(), self._words, is_large=size > _LARGE, has_json=self._has_json
        )

    def may_begin_with(self, text: str) -> bool:
        """Return True if an answer may begin with a text; the text may end with a control token."""
        words, given = self._words, text.encode()
        ends = [token for token in words.special_token_ids if given.endswith(words.tokens[token])]
        spelled = [[*words(given.removesuffix(words.tokens[token])), token] for token in ends]
        whole = [ids for ids in (words(given), *spelled) if words.text(ids) == given]
        return any(self._matcher.deep_copy().validate_tokens(ids) == len(ids) for ids in whole)


class Unlimited:
    """A constraint that allows everything.

    It only names control tokens that are read as text, and the texts around the reasoning.
    """

    def __init__(self, shown: Mapping[int, bytes], thought: Thought | None = None) -> None:
        self.shown = shown
        self.thought = thought
        self.description: Mapping[str, bool | int | str] = {}
        self.notes: Sequence[str] = ()

    def matcher(self) -> None:
        """Return None: everything is allowed."""


class GrammarMatcher:
    """The position of an answer in a grammar, now and after drafted tokens.

    The matcher of llguidance stays after the tokens `ahead` of the last call, because the rows of a
    draft come one after the other. A token that ends answers is allowed where the text is complete;
    it is not passed to llguidance. is_large: look for forced tokens only where the mask shows that
    there may be some, because llguidance holds the GIL meanwhile.
    """

    def __init__(
        self,
        matcher: llguidance.LLMatcher,
        words: Words,
        *,
        is_large: bool = False,
        has_json: bool = False,
    ) -> None:
        self._is_large = is_large
        self._inner = matcher
        self._matcher = SlashMatcher(matcher, words, reads_slashes=has_json)
        self._ahead: list[int] = []
        self._words = words
        self.ends = frozenset(words.ends)
        self.has_ended = False
        self._all = np.ones(len(words.tokens), bool)

    def mask(self, ahead: Sequence[int] = ()) -> npt.NDArray[np.bool_]:
        """Return a mask of the tokens allowed after the text and `ahead`, [vocab_size].

        After a token that is not allowed, all tokens are allowed.
        """
        return self._mask() if self._go(ahead) else self._all

    def allows(self, token: int, ahead: Sequence[int] = ()) -> bool:
        """Return whether a token is allowed after the text and `ahead`."""
        if not self._go(ahead):
            return True
        if token in self.ends:
            return self._may_end(token)
        if self._matcher.n_valid([token]) == 0:
            return self._go([*ahead, token])
        forced = self._forced()  # of several tokenisations of a forced text, only one is allowed
        return not forced or token == forced[0]

    def forced(self, ahead: Sequence[int] = ()) -> list[int]:
        """Return the tokens of the only text that is allowed next.

        If the grammar allows no more text, this is the token that ends answers. The list is empty
        if more than one text is allowed.
        """
        if self.has_ended or not self._go(ahead):
            return []
        if self._inner.is_stopped():
            return [self._words.usual_end]
        return self._forced()

    def accept(self, tokens: Sequence[int]) -> None:
        """Add emitted tokens to the text. Raises DecodeError if one is not allowed."""
        ends = len(tokens) > 0 and tokens[-1] in self.ends
        text = tokens[:-1] if ends else tokens
        if not self._go(text) or (ends and not self._may_end(tokens[-1])):
            raise DecodeError(
                f"the tokens {list(tokens)} do not follow the constraint of the request"
            )
        self._ahead, self.has_ended = [], ends
        if ends:
            self._words.usual_end = int(tokens[-1])

    def _may_end(self, token: int) -> bool:
        """Return whether a token may end the answer.

        It may if the text is complete, or if the grammar itself asks for that token.
        """
        return self._inner.is_accepting() or bool(self._mask()[token])

    def _mask(self) -> npt.NDArray[np.bool_]:
        mask = self._matcher.mask()
        self._check()
        return mask

    def _forced(self) -> list[int]:
        if self._is_large and not self._words.begin_alike(self._mask()):
            return []
        return self._inner.compute_ff_tokens()

    def _go(self, ahead: Sequence[int]) -> bool:
        """Move to the state after `ahead` and return True; return False if that is not allowed."""
        if self.has_ended:
            return not ahead
        n = common_prefix(self._ahead, ahead)
        if n < len(self._ahead):
            self._matcher.unread(len(self._ahead) - n)
            del self._ahead[n:]
        rest = ahead[n:]
        if rest:
            if not self._matcher.read(rest):
                return False
            self._check()
            self._ahead += [int(token) for token in rest]
        return True

    def _check(self) -> None:
        if self._inner.is_error():
            raise DecodeError(
                f"the constraint of the request failed: {plainly(self._inner.get_error())}"
            )


def plainly(error: str) -> str:
    """Return an error message of llguidance on one line, in edgespec's words where they are known.

    Debug output after the message is left out, and so is the copy of the regular expression with a
    mark under it.
    """
    if error.startswith("NoExtension"):  # llguidance's name for a state that nothing can follow
        return "it allows no answer at all"
    if "ff_tokens" in error:
        return "it demands a text without end, or one of more than 50,000 characters"
    if error.startswith("Unable to determine if regex is empty"):
        return "its patterns for one text are too complex together"
    error = re.sub(r"regex parse error:.*?\n *error: ", "", error, flags=re.DOTALL)
    said = " ".join(re.split(r"\n<|\n *\d+ \|", error)[0].split())
    said = in_our_words(said)
    return said if len(said) <= _MOST_SAID else f"{said[:_MOST_SAID]}…"
