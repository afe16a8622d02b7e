import itertools

import pytest

from edgespec import SamplingParams, ToyTokenizer
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
