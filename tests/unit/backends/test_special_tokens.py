"""Cutting texts at special tokens."""

import re

from hypothesis import given
from hypothesis import strategies as st

from edgespec.backends.special_tokens import Special, SpecialTokens, frame, matcher
from edgespec.backends.toy import ToyTokenizer

TEXTS = st.text("ab<>\n ", max_size=40)
TOKENS = st.dictionaries(
    st.text("ab<>\n", min_size=1, max_size=4),
    st.builds(Special, st.booleans(), st.booleans(), st.booleans()),
    max_size=6,
)


def partition(text, tokens, order):
    """Split a text as llama.cpp does: at one token after the other."""
    fragments = [text] if text else []
    for token in order:
        found = []
        for fragment in fragments:
            while isinstance(fragment, str) and token in fragment:
                before, _, fragment = fragment.partition(token)
                if tokens[token].lstrip:
                    before = before.rstrip(" \n")
                if tokens[token].rstrip:
                    fragment = fragment.lstrip(" \n")
                found += [before, (token,)]
            found.append(fragment)
        fragments = [fragment for fragment in found if fragment]
    return fragments


@given(TEXTS, TOKENS, st.randoms())
def test_pieces_hold_the_tokens_that_the_whole_text_holds(text, tokens, random):
    order = random.sample(list(tokens), len(tokens))
    order.sort(key=len, reverse=True)
    pieces = list(SpecialTokens(tokens).pieces(text))
    assert "".join(piece.text for piece in pieces) == text
    assert partition(text, tokens, order) == [
        fragment for piece in pieces for fragment in partition(piece.text, tokens, order)
    ]
    for piece in pieces:
        held = partition(piece.text, tokens, order)
        assert piece.control or not any(
            tokens[fragment[0]].control for fragment in held if isinstance(fragment, tuple)
        )


def test_long_texts_become_many_pieces():
    tokens = {"<end>": Special(control=True), "\n": Special(False), "\n\n": Special(False)}
    special = SpecialTokens(tokens)
    assert len(list(special.pieces("a<end>" * 1000))) == 2000
    assert len(list(special.pieces("a line\n" * 10_000))) > 60
    assert len(list(special.pieces("\n" * 100_000))) > 90
    assert [piece.text for piece in special.pieces("a\nb")] == ["a\nb"]
    assert list(special.pieces("")) == []


@given(st.sets(st.text("ab.*|", min_size=1, max_size=4)), TEXTS | st.text("ab.*|", max_size=40))
def test_a_matcher_finds_the_longest(texts, text):
    longest_first = sorted(texts, key=len, reverse=True)
    expected = re.findall("|".join(map(re.escape, longest_first)) or "(?!)", text)
    assert matcher(texts).findall(text) == expected


def test_frame():
    class Framing(ToyTokenizer):
        def encode(self, text, *, add_special=True, parse_special=True):
            ids = super().encode(text)
            return [0, *ids, 1] if add_special else ids

    assert frame(Framing(["<s>", "</s>", "a"])) == ([0], [1])
    assert frame(ToyTokenizer(["a"])) == ([], [])
