"""All ways in which JSON writes a character: what a model writes is what arrives."""

import json
import random

import numpy as np
import pytest

from edgespec import SamplingParams, ToyModel, ToyTokenizer
from edgespec.constraints.compiler import Constraints
from edgespec.loading.assembly import assemble
from tests.helpers.scripted_chats import MARKERS, ScriptedChat, called
from tests.helpers.selection import share

pytest.importorskip("llguidance")

WORDS = ["\\u", "\\u00", "e9", "\\ud83d", "\\ude", "\\/", "/\\", ":\\", "\\\\", "/", "//", '", "']
VOCAB = [*(bytes([i]) for i in range(256)), *(word.encode() for word in WORDS)]
END = len(VOCAB)
TOKENIZER = ToyTokenizer([*VOCAB, "</s>"], [END])
SHORT = {'"': '"', "\\": "\\", "/": "/", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
PLANES = [(0x20, 0x7F), (0, 0xA0), (0xA0, 0x800), (0x800, 0xD800), (0xE000, 0x10000)] + [
    (plane << 16, plane + 1 << 16) for plane in range(1, 17)
]
TEXTS = {"type": "array", "items": {"type": "string"}}


def text(rng):
    """Return a text with characters of all planes, of which many have a short escape."""
    return "".join(
        rng.choice([*SHORT]) if rng.random() < 0.3 else chr(rng.randrange(*rng.choice(PLANES)))
        for _ in range(rng.randrange(7))
    )


def escaped(char, rng):
    """Return a character as JSON may write it, mostly with an escape."""
    choice = rng.random()
    if choice < 0.5 and char in SHORT:
        return "\\" + SHORT[char]
    if choice < 0.9 or char in '"\\\x7f' or char < " ":
        units = char.encode("utf-16-be").hex()
        units = units.upper() if rng.random() < 0.5 else units
        return "".join("\\u" + units[i : i + 4] for i in range(0, len(units), 4))
    return char


def written(texts, rng):
    """Return the JSON of a list of texts."""
    inner = ("".join(escaped(char, rng) for char in each) for each in texts)
    return "[" + ",".join(f'"{each}"' for each in inner) + "]"


def scripted(script):
    """Return an engine whose model says the script in tokens of any size, and the next likeliest
    thing where a form does not let it.
    """
    rest = script.encode()
    rng = np.random.default_rng(len(script))
    steps = []
    while rest:
        fits = [token for token in range(END) if rest.startswith(VOCAB[token])]
        steps.append(int(rng.choice(fits)))
        rest = rest[len(VOCAB[steps[-1]]) :]
    steps.append(END)

    def probs(tokens):
        row = np.full(END + 1, 1e-9)
        row[steps[min(len(tokens) - 1, len(steps) - 1)]] = 1
        return row / row.sum()

    model = ToyModel(probs, vocab_size=END + 1, n_ctx=len(steps) + 100)
    return assemble(model, TOKENIZER, None, {"method": "suffix,forced"})


def said(script, **form):
    with scripted(script) as engine:
        return engine.generate("a", **form)


def test_what_is_escaped_arrives():
    rng = random.Random(1)
    n = 25
    for _ in range(share(10_000, of=100) // n):
        texts = [text(rng) for _ in range(n)]
        script = written(texts, rng)
        answer = said(script, schema=TEXTS)
        assert answer.text == script
        assert answer.parsed == texts


@pytest.mark.parametrize("schema", [
    {"type": "string"},
    {"type": "string", "maxLength": 12},
    {"type": "string", "minLength": 12, "maxLength": 12},
    {},
], ids=str)  # fmt: skip
def test_escapes_count_as_one_character(schema):
    script = r'"caf\u00e9:\/\/\ud83d\ude00\\/\"\u002F"'
    answer = said(script, schema=schema)
    assert answer.text == script
    assert answer.parsed == 'café://😀\\/"/'


@pytest.mark.parametrize("schema", [
    {"type": "object"},
    {"type": "object", "properties": {"b": {"type": "null"}},
     "additionalProperties": {"type": "integer"}},
], ids=str)  # fmt: skip
def test_escapes_in_names(schema):
    script = r'{"caf\u00e9\/":1}'
    assert said(script, schema=schema).parsed == {"café/": 1}


@pytest.mark.parametrize("schema", [
    *({"type": "string", "pattern": each} for each in ("^caf.*$", "caf", "^[^x]+$", r"^\S+$")),
    {"type": "array", "items": {"type": "string"}, "prefixItems": [{"pattern": "."}]},
    {"type": "object", "patternProperties": {"^c": {}}, "additionalProperties": False},
], ids=str)  # fmt: skip
def test_a_loose_pattern_offers_no_control_characters(schema):
    r"""Beside a pattern, llguidance reads \u only in front of control characters."""
    begun = {"string": '"caf', "array": '["caf', "object": '{"caf'}[schema["type"]]
    matcher = Constraints(TOKENIZER).of(SamplingParams(schema=schema)).matcher()
    matcher.accept(TOKENIZER.encode(begun, parse_special=False))
    mask = matcher.mask()
    assert not mask[VOCAB.index(b"\\u")]
    assert not matcher.allows(VOCAB.index(b"\\u"))
    assert mask["é".encode()[0]]


def test_a_strict_pattern_takes_no_escapes_from_other_texts():
    code = {"type": "string", "pattern": "^[A-Z]{3}$"}
    schema = {"type": "array", "prefixItems": [code, {"type": "string"}]}
    assert said(r'["ABC","\u00e9"]', schema=schema).parsed == ["ABC", "é"]


def test_control_characters_that_are_asked_for():
    bell = r'"\u0007"'
    assert said(bell, schema={"type": "string", "pattern": "^\\x07$"}).parsed == "\x07"
    assert said(bell, schema={"enum": ["\x07", "b"]}).parsed == "\x07"


def test_a_slash_under_a_pattern():
    schema = {"type": "string", "pattern": "^https:.*$", "maxLength": 30}
    assert said(r'"https:\/\/a\/b"', schema=schema).parsed == "https://a/b"


def test_escapes_in_the_arguments_of_tools():
    tool = {
        "name": "say",
        "parameters": {"type": "object", "properties": {"x": {"type": "string"}}},
    }
    script = called("say", r'{"x": "caf\u00e9 \/\ud83d\ude00"}')
    with ScriptedChat({"hi": script}, words=[*MARKERS, *WORDS]).engine() as engine:
        answer = engine.chat(tools=[tool]).send("hi")
    assert [json.loads(call.arguments) for call in answer.tool_calls] == [{"x": "café /😀"}]


def test_masks_after_a_backslash_are_the_same_however_one_gets_there():
    """Going back over a draft leaves no trace; the mask and `allows` agree."""
    form = Constraints(TOKENIZER).of(SamplingParams(schema={"type": "string"}))
    before = TOKENIZER.encode('"a:\\', parse_special=False)
    slash, other = VOCAB.index(b"/"), VOCAB.index(b"x")
    for drafted in ([], [slash], [slash, other], [slash, VOCAB.index(b"\\"), slash], [other]):
        matcher = form.matcher()
        matcher.accept(before)
        matcher.mask(drafted)
        mask = matcher.mask()
        assert mask[slash]
        assert not mask[other]
        assert [bool(mask[t]) for t in range(END)] == [matcher.allows(t) for t in range(END)]
        matcher.accept([slash, VOCAB.index(b'"')])
        assert not matcher.mask()[:END].any()


def test_other_forms_know_no_escapes():
    form = Constraints(TOKENIZER).of(SamplingParams(regex=r"a\\x|a/"))
    matcher = form.matcher()
    matcher.accept([VOCAB.index(b"a"), VOCAB.index(b"\\")])
    assert not matcher.allows(VOCAB.index(b"/"))
