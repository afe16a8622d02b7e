"""What the constraint library cannot carry is refused when a form is compiled: every keyword at its
extremes, alone and with others, is refused or followed to the end.
"""

import random

import numpy as np
import pytest

from edgespec import ConfigError, SamplingParams, ToyTokenizer
from edgespec.constraints.compiler import Constraints
from edgespec.constraints.schemas import text_of
from tests.helpers.selection import first, sample

pytest.importorskip("llguidance")

# numbers of one to three digits make masks of numbers as expensive as large vocabularies do
DIGITS = [f"{n:0{width}d}" for width in (2, 3) for n in range(10**width)]
PIECES = [*map(chr, range(32, 127)), "\n", *DIGITS, "</s>"]
END = len(PIECES) - 1
CONSTRAINTS = Constraints(ToyTokenizer(PIECES, eog=[END]))
IN_NUMBERS = np.array([piece[0] in "0123456789.-" for piece in PIECES])

NUMBERS = [
    0, -0.0, 1, -1, 7, 97, 3600, 9973, 49_999, 99_991, 10**6, 10**9, 2**31, 2**53 + 1, 2**63, 2**64,
    -(2**63), 10**200, -(10**200), 10**400, 0.5, 0.01, 0.07, 0.0001, 1e-7, 99.73, 0.9973, 5e-324,
    1e308, -1e308, 123456789.123456789,
]  # fmt: skip
SIZES = [0, 1, 2, 100, 5000, 10**5, 10**6, 10**9, 2**31, 2**63, 10**30, -1, 0.5, 1e300]
PATTERNS = [
    "a{1000}", "(a|b)*a(a|b){20}", "(a|b)*a(a|b){200}", "(.*a.{30}){3}", "^(([a-z]+)*)+$",
    "((x{1,100}){1,100}){1,100}", "[a-z]{1,1000}@[a-z]{1,1000}", r"\d{1,3000}",
    "(a{0,50}b{0,50}){0,50}", "^.{0,5000}x.{0,5000}$", "(?i)[a-z]{500}", "(.*a.*b.*c.*d){6}",
    "", "(?=a)b", r"(a)\1", "[", "^$",
    ".*".join("abcdefghijkl"), "|".join(f"w{i}x{i * 7}" for i in range(3000)),
]  # fmt: skip
FORMATS = [
    "date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
    "iri", "json-pointer", "regex", "unknown", "",
]  # fmt: skip
ENUMS = [[], [None], [1, 1.0, True], [10**400], ["x" * 4000], [*range(300)], [{}], [[[]]], [1e308]]
OF_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
KEYWORDS = {
    "number": dict.fromkeys(OF_NUMBERS, NUMBERS),
    "integer": dict.fromkeys(OF_NUMBERS, NUMBERS),
    "string": {"minLength": SIZES, "maxLength": SIZES, "pattern": PATTERNS, "format": FORMATS},
    "array": {
        "minItems": SIZES, "maxItems": SIZES, "items": [{}, False], "uniqueItems": [True],
        "contains": [{"type": "integer"}], "prefixItems": [[{}] * n for n in (1, 50, 2000)],
    },
    "object": {
        "minProperties": SIZES, "maxProperties": SIZES, "additionalProperties": [False, {}],
        "patternProperties": [{pattern: {}} for pattern in PATTERNS],
        "required": [[f"k{i}" for i in range(n)] for n in (1, 300)],
        "properties": [{f"k{i}": {} for i in range(n)} for n in (1, 300, 3000)],
        "propertyNames": [{"maxLength": 3}],
    },
}  # fmt: skip


def alone():
    """Return schemas of one type with one keyword."""
    found = [
        {"type": kind, key: value}
        for kind, keywords in KEYWORDS.items()
        for key, values in keywords.items()
        for value in values
    ]
    return found + [{key: values} for values in ENUMS for key in ("enum", "const")]


def together(seed):
    """Return a schema of several keywords, perhaps within others."""
    rng = random.Random(seed)
    kind = rng.choice([*KEYWORDS, "number", "integer"])
    keys = rng.sample(sorted(KEYWORDS[kind]), min(rng.randint(2, 4), len(KEYWORDS[kind])))
    schema = {"type": kind} | {key: rng.choice(KEYWORDS[kind][key]) for key in keys}
    other = rng.choice(alone())
    return rng.choice([
        schema,
        {"type": "array", "items": schema, "minItems": 50},
        {"type": "object", "properties": {"a": other, "b": schema}, "required": ["a", "b"]},
        {"allOf": [schema, other]},
        {"anyOf": [schema, other]},
        {"$defs": {"a": schema}, "type": "array", "items": {"$ref": "#/$defs/a"}},
        {"type": "object", "additionalProperties": schema},
    ])  # fmt: skip


def answer(constraint, seed, n=150):
    """Write a random answer of at most n tokens, mostly in numbers where these are allowed."""
    matcher, rng = constraint.matcher(), random.Random(seed)
    for _ in range(n):
        mask = matcher.mask()
        assert mask.any()
        numbers = mask & IN_NUMBERS
        allowed = numbers if numbers.any() and rng.random() < 0.9 else mask
        token = int(rng.choice(np.flatnonzero(allowed)))
        matcher.accept([token])
        if token == END:
            break


def compiled(schema):
    """Return a compiled schema, or None and why it is refused."""
    try:
        return CONSTRAINTS.of(SamplingParams(schema=schema)), ""
    except ConfigError as error:
        return None, str(error)


def follow(schema, seed=0):
    """Return whether a schema can be compiled; if so, answers never fail."""
    constraint, said = compiled(schema)
    if constraint is None:
        assert 20 < len(said) < 500, said
        return False
    for i in range(3):
        answer(constraint, seed + i)
    return True


def test_every_keyword_at_its_extremes():
    followed = [follow(schema) for schema in sample(alone())]
    assert 0.3 < sum(followed) / len(followed) < 0.95


def test_keywords_together():
    followed = [follow(together(seed), seed) for seed in sample(range(1500), of=11)]
    assert 0.1 < sum(followed) / len(followed) < 0.95


@pytest.mark.parametrize("kind", ["number", "integer"])
@pytest.mark.parametrize("step", first(2, [9973, 3600, 10_000, 99.73, 8192], "more steps"))
@pytest.mark.parametrize("limits", [{}, {"maximum": 10**12}, {"minimum": -0.5, "maximum": 1e15}])
def test_many_multiples_in_a_range_are_followed(kind, step, limits):
    schema = {"type": "array", "items": {"type": kind, "multipleOf": step} | limits, "minItems": 99}
    assert follow(schema)


@pytest.mark.parametrize("least", [-(2**63), -(2**63) + 1, -(10**200), -9.3e18, 0])
@pytest.mark.parametrize("most", [-(2**63), -(2**63) + 1, -(10**200), -9.3e18])
@pytest.mark.parametrize("prefix", ["m", "exclusiveM"])
def test_limits_that_ended_the_process(least, most, prefix):
    schema = {"type": "integer", f"{prefix}inimum": least, f"{prefix}aximum": most}
    with pytest.raises(
        ConfigError, match=r"aximum is -.*, and may be -9223372036854774784 at least"
    ):
        CONSTRAINTS.of(SamplingParams(schema=schema))


def test_a_range_of_64_bits_is_followed():
    assert follow({"type": "integer", "minimum": 0, "maximum": 2**63 - 1})
    assert follow({"type": "integer", "minimum": -(2**53) + 1, "maximum": 2**53 - 1})


def test_a_number_that_failed_in_the_middle_of_an_answer():
    schema = {"type": "integer", "multipleOf": 49999, "maximum": 10**9}
    with pytest.raises(ConfigError, match="multipleOf 49999 makes 49999 remainders"):
        CONSTRAINTS.of(SamplingParams(schema=schema))


def of(*steps):
    return [{"type": "integer", "multipleOf": step} for step in steps]


@pytest.mark.parametrize(("schema", "is_followed"), [
    ({"properties": dict(zip("abc", of(60, 7, 3600), strict=True))}, True),
    ({"properties": {"a": {"allOf": of(60, 7, 3600)}}}, False),
    ({"allOf": [{"properties": {"a": each}} for each in of(60, 7, 3600)]}, False),
    ({"$defs": {"x": of(49)[0]}, "properties": {"a": {"$ref": "#/$defs/x", "multipleOf": 3600}}},
     False),
    ({"additionalProperties": of(49)[0], "patternProperties": {"a": of(3600)[0]}}, False),
])  # fmt: skip
def test_multiples_of_separate_fields_are_counted_apart(schema, is_followed):
    if is_followed:
        text_of(schema)
    else:
        with pytest.raises(ConfigError, match="remainders with the others"):
            text_of(schema)
