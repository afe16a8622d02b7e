import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec import ConfigError, RepetitionDetection, SamplingParams, ToyTokenizer
from edgespec.decoding.output import Output

VOCAB = ["a", "b", "ab", "STOP", "ST", "OP", "é", b"\xc3", b"\xa9", "</s>"]
TOKENIZER = ToyTokenizer(VOCAB, eog=[9])
A, B, AB, STOP, ST, OP, E, C3, A9, EOS = range(10)


def feed(chunks, **params):
    output = Output(TOKENIZER, SamplingParams(**params))
    shown = ""
    for chunk in chunks:
        shown += "".join(text for _, text in output.cut(chunk))
        if output.finish_reason:
            break
    shown += output.flush()
    assert shown == output.text
    return output


def splits(tokens):
    """Every way of cutting a token list into drafts."""
    for cuts in itertools.product([False, True], repeat=len(tokens) - 1):
        chunks, chunk = [], [tokens[0]]
        for token, cut in zip(tokens[1:], cuts, strict=True):
            if cut:
                chunks.append(chunk)
                chunk = []
            chunk.append(token)
        yield [*chunks, chunk]


@pytest.mark.parametrize(("tokens", "params", "text", "n", "reason", "stop"), [
    ([A, B, EOS, A, B], {}, "ab", 3, "stop", EOS),
    ([A, B, EOS, A], {"ignore_eos": True, "max_tokens": 4}, "aba", 4, "length", None),
    ([A, ST, OP, B], {"stop": ("STOP",)}, "a", 3, "stop", "STOP"),
    ([A, STOP, B], {"stop": ("TO",)}, "aS", 2, "stop", "TO"),
    ([A, ST, A, B, B], {"stop": ("STOP",), "max_tokens": 4}, "aSTab", 4, "length", None),
    ([A, B, A, B], {"stop": ("bab", "ba")}, "a", 3, "stop", "ba"),
    ([AB, AB, B], {"stop": ("abb",)}, "ab", 3, "stop", "abb"),
    ([A, B, A], {"stop_token_ids": (B,)}, "a", 2, "stop", B),
    ([A, ST, EOS], {"stop": ("STOP",)}, "aST", 3, "stop", EOS),
    ([C3, A9, A], {"max_tokens": 3}, "éa", 3, "length", None),
    ([A, C3], {"max_tokens": 2}, "a\ufffd", 2, "length", None),
    ([A, E, B], {"stop": ("éb",)}, "a", 3, "stop", "éb"),
    ([A, B], {"max_tokens": 1}, "a", 1, "length", None),
])  # fmt: skip
def test_the_same_however_drafts_are_cut(tokens, params, text, n, reason, stop):
    for chunks in splits(tokens):
        output = feed(chunks, **params)
        assert output.text == text
        assert output.token_ids == tokens[:n]
        assert (output.finish_reason, output.stop_reason) == (reason, stop)


def test_nothing_of_a_stop_string_is_ever_shown():
    output = Output(TOKENIZER, SamplingParams(stop=("STOP",)))
    assert output.cut([A, ST]) == [(A, "a"), (ST, "")]
    assert output.cut([B]) == [(B, "STb")]


def test_eos_token_adds_no_text_and_the_first_reason_stays():
    output = feed([[A, EOS]])
    output.finish("cancelled")
    assert output.finish_reason == "stop"


def is_repeated(tokens, rule):
    """How many tokens at the end the rule of vLLM calls a repetition, looked at anew each time."""
    for size in range(rule.min_pattern_size, rule.max_pattern_size + 1):
        n = max(size * rule.min_count, rule.min_tokens)
        tail = tokens[-n:]
        if n <= len(tokens) and tail[size:] == tail[:-size]:
            return n
    return 0


@given(
    tokens=st.lists(st.sampled_from([A, B, C3]), min_size=1, max_size=40),
    most=st.integers(1, 6), least=st.integers(1, 6), count=st.integers(2, 4),
    in_all=st.sampled_from([0, 7, 12]), again=st.integers(1, 8), copies=st.integers(0, 6),
)  # fmt: skip
def test_repetition_ends_an_answer_at_the_first_token_where_the_rule_holds(
    tokens, most, least, count, in_all, again, copies
):
    least = min(least, most)
    rule = RepetitionDetection(most, least, count, in_all)
    tokens = tokens + tokens[-again:] * copies
    ends = [n for n in range(1, len(tokens) + 1) if is_repeated(tokens[:n], rule)]
    output = feed([tokens], repetition_detection=rule)
    assert output.finish_reason == ("repetition" if ends else None)
    if ends:
        assert output.token_ids == tokens[: ends[0]]
        assert output.n_repeated == is_repeated(output.token_ids, rule)


RULE = {"max_pattern_size": 2, "min_count": 3}


@pytest.mark.parametrize(("tokens", "params", "reason"), [
    ([A, B] * 3 + [A], {}, "repetition"),
    ([A, A, A], {"max_tokens": 3}, "length"),
    ([A, A, A], {"stop": ("aaa",)}, "stop"),
    ([A, B, B, B], {"stop_token_ids": (A,)}, "stop"),
    ([A, A, A, EOS], {"regex": "a*"}, "stop"),
    ([A, A, A, EOS], {"repetition_detection": {"max_pattern_size": 0}}, "stop"),
    ([A, A, A, EOS], {"repetition_detection": None}, "stop"),
])  # fmt: skip
def test_other_reasons_come_first_and_a_form_is_never_ended_by_repetition(tokens, params, reason):
    for chunks in splits(tokens):
        assert feed(chunks, **{"repetition_detection": RULE} | params).finish_reason == reason


@pytest.mark.parametrize(("rule", "says"), [
    ({"max_patern_size": 3}, "did you mean 'max_pattern_size'"),
    ({"max_pattern_size": 3}, "min_count must be at least 2"),
    ({"max_pattern_size": 3, "min_count": 1}, "min_count must be at least 2"),
    ({"max_pattern_size": 2, "min_pattern_size": 3, "min_count": 2}, "more than max_pattern_size"),
    ({"max_pattern_size": 1025, "min_count": 2}, "between 0 and 1024"),
    (7, "made of named options"),
])  # fmt: skip
def test_an_impossible_rule_is_refused(rule, says):
    with pytest.raises(ConfigError, match=says):
        SamplingParams(repetition_detection=rule)
