"""Memory: guesses the tokens that followed the same words in earlier answers and in documents.

It follows REST (He et al. 2023, arXiv 2311.08252), which looks up documents in a suffix array, and
SuffixDecoding (arXiv 2411.04975), which remembers earlier answers. Remembered text may be stale:
guesses from it are calibrated separately, and begin with lower estimates than guesses from the
conversation itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ..backends.base import Tokenizer
from ..cache.token_cache import common_prefix
from ..config import SpeculativeConfig
from ..corpus import collection, suffix_array
from ..corpus.answers import JOURNAL, MOST_TOKENS, Answers
from ..corpus.folder import vocabulary_folder
from ..corpus.suffix_array import MIN_MATCH, SuffixArray
from ..sampling.base import Request
from ..types import Verified
from . import register
from .base import DrafterContext, Role
from .matches import MOST, Match, MatchDrafter

_CONTEXT = 16  # tokens before an answer that are remembered with it; longest ending looked up
_FEW = 4  # last tokens of a longer match that are looked up in all their places
_PREDICTED = 0.1  # share of a new answer assumed to be predicted: little of it was said before
_MOST_OWNERS = 32  # owners whose answers are remembered at the same time
_SHORTEST = 4  # tokens of the shortest answer that is worth remembering


class State(NamedTuple):
    """The last tokens of a text, and the match for them in each index."""

    ending: tuple[int, ...]
    matches: tuple[suffix_array.Match, ...]


class _Conversation:
    """A conversation as far as it was read and answered.

    tokens: its last prompt and the answer to it. answers: its earlier answers. runs: a request of
    it runs now.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.answers: list[list[int]] = []
        self.runs = False
        self._begin = 0  # position where the last answer begins

    def begin(self, prompt: Sequence[int]) -> None:
        """Begin a request that continues the conversation."""
        self.tokens, self._begin, self.runs = list(prompt), len(prompt), True

    def is_continued(self, prompt: Sequence[int]) -> bool:
        """Return whether a prompt continues the conversation; its last token may differ."""
        return common_prefix(self.tokens, prompt) >= len(self.tokens) - 1

    def end_answer(self) -> list[int]:
        """Take the tokens emitted since the prompt as an answer; return it, [] if it is short."""
        answer: list[int] = []
        if len(self.tokens) - self._begin >= _SHORTEST:
            answer = self.tokens[max(0, self._begin - _CONTEXT) :]
            self.answers.append(answer)
        self._begin = len(self.tokens)
        return answer


class _Owner:
    """The answers of one owner, and the conversations that are not over.

    A conversation's own answers are looked up only after it has ended. Until then prompt lookup
    drafts from them.
    """

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self._conversations: list[_Conversation] = []

    def begin(self, prompt: Sequence[int]) -> _Conversation:
        """Begin a request. The conversations that it does not continue end, except those in which a
        request runs.
        """
        self.end_answers()
        idle = [each for each in self._conversations if not each.runs]
        continued = [each for each in idle if each.is_continued(prompt)]
        last = max(continued, key=lambda each: len(each.tokens), default=_Conversation())
        for each in idle:
            if each is not last:
                self.answers.add(each.answers)
        self._conversations = [each for each in self._conversations if each.runs] + [last]
        last.begin(prompt)
        return last

    def end_answers(self) -> None:
        """Write the answers to the journal that have ended since the last call."""
        for each in self._conversations:
            if not each.runs and (answer := each.end_answer()):
                self.answers.write(answer)


class Memories:
    """The earlier answers of all owners, for the drafters of several sessions.

    answers: returns the memory for the answers of an owner, by the owner's name.
    """

    def __init__(self, answers: Callable[[str], Answers]) -> None:
        self._new_answers = answers
        # the owner who asked least recently comes first; answers on disk are read now, not while a
        # request waits
        self._owners = {"": _Owner(answers(""))}
        self._lock = threading.Lock()

    def begin(self, name: str, prompt: Sequence[int]) -> tuple[_Conversation, list[SuffixArray]]:
        """Begin a request of an owner; return its conversation and the indexes to look up."""
        with self._lock:
            owner = self._owners.pop(name, None) or _Owner(self._new_answers(name))
            self._owners[name] = owner
            while len(self._owners) > _MOST_OWNERS:
                del self._owners[next(iter(self._owners))]
            return owner.begin(prompt), owner.answers.arrays

    def close(self) -> None:
        """Write the last answers to disk, if they are kept there."""
        with self._lock:
            for owner in self._owners.values():
                owner.end_answers()


class MemoryDrafter(MatchDrafter):
    """Guesses from indexes of earlier answers and of documents.

    vocab_size: the target's vocabulary size; ids beyond it are never guessed. documents: the
    indexes of documents. memories: the earlier answers; None to remember no answers.
    """

    name = "memory"

    def __init__(
        self,
        vocab_size: int,
        documents: Sequence[SuffixArray] = (),
        memories: Memories | None = None,
    ) -> None:
        super().__init__()
        self._vocab_size = vocab_size
        self._documents = list(documents)
        self._memories = memories
        self._conversation: _Conversation | None = None
        self._arrays: list[SuffixArray] = []
        self._state = State((), ())
        self._known: dict[tuple[int, tuple[int, ...]], dict[int, float]] = {}

    def begin(self, request: Request, role: Role) -> None:
        """Begin a request: remember the last answer, and look up the prompt's end in the indexes
        that the owner may see.
        """
        self.end()
        remembered: list[SuffixArray] = []
        if self._memories:
            begun = self._memories.begin(request.owner, request.prompt)
            self._conversation, remembered = begun
        self._arrays, self._known = remembered + self._documents, {}
        ending = tuple(request.prompt[-_CONTEXT:])
        self._state = State(ending, tuple(array.find(ending) for array in self._arrays))
        self._predicted = _PREDICTED

    def root(self) -> State:
        """Return the last tokens of the text so far, and the match for them in each index."""
        return self._state

    def step(self, state: State, token: int) -> State:
        """Return the state after one more token.

        An index that had no match before the token has none after it.
        """
        return self._stepped(state, token, 0)

    def _stepped(self, state: State, token: int, least: int) -> State:
        ending = (*state.ending, token)[-_CONTEXT:]
        matches = []
        for array, match in zip(self._arrays, state.matches, strict=True):
            longer = array.narrow(match, token)
            if not longer.length:
                longer = array.find(ending, max(match.length, least))
            matches.append(longer)
        return State(ending, tuple(matches))

    def accept(self, verified: Verified) -> None:
        """Read the emitted tokens, and learn which guesses were right."""
        state = self._state
        for token in verified.tokens:
            self._learn(state, token)
            state = self._stepped(state, token, MIN_MATCH)
            if self._conversation:
                self._conversation.tokens.append(token)
        self._state = state

    def end(self) -> None:
        """End the request: its answer is remembered as soon as another one begins."""
        if self._conversation:
            self._conversation.runs, self._conversation = False, None

    def close(self) -> None:
        """Write the last answers to disk, if they are kept there."""
        self.end()
        if self._memories:
            self._memories.close()

    def matches(self, state: State) -> Iterator[Match]:
        """Yield the match in each index, the longest first."""
        n_remembered = len(self._arrays) - len(self._documents)
        by_length = sorted(enumerate(state.matches), key=lambda entry: -entry[1].length)
        for place, match in by_length:
            if not match.length:
                return
            followed = self._arrays[place].continuations(match, MOST)
            possible = [each for each in followed if 0 <= each[0] < self._vocab_size]
            shares = self._shares(place, state.ending[-_FEW:]) if match.length > _FEW else None
            yield Match(match.length, possible, (place < n_remembered,), shares)

    def _shares(self, place: int, few: tuple[int, ...]) -> dict[int, float]:
        """Return the tokens that followed these in an index, each with the share of the places.
        Once computed, they are kept for the request.
        """
        if (place, few) not in self._known:
            array = self._arrays[place]
            followed = array.continuations(array.find(few))
            self._known[place, few] = {token: hits / times for token, hits, times in followed}
        return self._known[place, few]


def _documents(config: SpeculativeConfig, tokenizer: Tokenizer | None) -> list[SuffixArray]:
    """Return the index of the documents named in `config`, or else of those that were added.

    The list is empty if there are no documents.
    """
    if tokenizer is None:
        return []
    paths = config.draft_corpus
    if paths is None:
        named = collection.added(tokenizer)
    else:
        named = collection.named(tokenizer, paths) if paths else None
    return [named] if named else []


def _answers(
    config: SpeculativeConfig, tokenizer: Tokenizer | None
) -> Callable[[str], Answers] | None:
    """Return the function that makes an owner's memory of answers, None if memory is off.

    Only the memory of requests without an owner is kept on disk.
    """
    if config.draft_memory == "off":
        return None
    journal: Path | None = None
    if config.draft_memory == "disk" and tokenizer:
        journal = vocabulary_folder(tokenizer) / JOURNAL
    return lambda owner: Answers(MOST_TOKENS // 4) if owner else Answers(journal=journal)


@register("memory", "memory", automatic=True)
def make(context: DrafterContext) -> MemoryDrafter:
    """Make the drafter of method "memory"."""
    config, tokenizer, shared = context.config, context.tokenizer, context.shared
    documents = shared.part("documents", lambda: _documents(config, tokenizer))
    answers = _answers(config, tokenizer)
    memories = shared.part("memories", lambda: Memories(answers) if answers else None)
    return MemoryDrafter(context.vocab_size, documents, memories)
