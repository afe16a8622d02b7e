"""Forms that are long, deep or full of options: refused in a sentence, or followed. What ended the
process, or took gigabytes, ends it here as well if it is let through.
"""

import json
import threading

import pytest

from edgespec import ConfigError, SamplingParams
from tests.helpers.selection import every, first
from tests.unit.constraints.test_extreme_schemas import CONSTRAINTS, END, PIECES, answer

pytest.importorskip("llguidance")

SMALL_STACK = 512 << 10  # what threads have on macOS


def rules(n, between, last):
    return "\n".join([*(f"a{i}{between}a{i + 1}" for i in range(n)), f"a{n}{between}{last}"])


def references(n):
    definitions = {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(n)} | {f"a{n}": {}}
    return json.dumps({"$defs": definitions, "$ref": "#/$defs/a0"})


def fields(n):
    definitions = {
        f"a{i}": {"properties": {"x": {"$ref": f"#/$defs/a{i + 1}"}}, "required": ["x"]}
        for i in range(n)
    }
    return json.dumps({"$defs": definitions | {f"a{n}": {}}, "$ref": "#/$defs/a0"})


FORMS = {
    "references": ("schema", references, 5000),
    "references of fields": ("schema", fields, 2500),
    "rules": ("grammar", lambda n: "start: a0\n" + rules(n, ": ", '"x"'), 4000),
    "terminals": ("grammar", lambda n: "start: A0\n" + rules(n, ": ", '"x"').upper(), 4000),
    "llama.cpp's rules": ("grammar", lambda n: "root ::= a0\n" + rules(n, " ::= ", '"x"'), 3000),
    "brackets of an expression": ("regex", lambda n: "(" * n + "a" + ")" * n, 10**5),
    "open brackets": ("regex", lambda n: "(" * n, 10**5),
    "alternatives in each other": ("regex", lambda n: "(a|" * n + "b" + ")" * n, 10**5),
    "repetitions": ("regex", lambda n: "a*" * n, 10**5),
    "anything": ("regex", lambda n: ".*" * n + "x", 10**5),
    "options": ("regex", lambda n: "a?" * n, 10**5),
    "letters": ("regex", lambda n: "a" * n, 10**5),
    "a count": ("regex", lambda n: f"(a{{{n}}}){{{n}}}", 10**5),
    "brackets of a grammar": ("grammar", lambda n: "start: " + "(" * n + '"a"' + ")" * n, 10**5),
    "options of a grammar": ("grammar", lambda n: "start: " + '"x"? ' * n, 10**5),
    "stars of a terminal": ("grammar", lambda n: "start: A\nA: " + '"x"* ' * n, 10**5),
    "an expression of a grammar": ("grammar", lambda n: "start: /" + "a*" * n + "/", 10**5),
    "doubling": ("grammar", lambda n: "start: a0\n" + "\n".join(
        f"a{i}: a{i + 1} a{i + 1}" for i in range(n)) + f'\na{n}: "x"', 2000),
    "a grammar of itself": ("grammar", lambda n: "start: " + "start " * n + '| "a"', 10**5),
    "choices": ("choices", lambda n: tuple(f"c{i}" for i in range(n)), 10**5),
    "a pattern": ("schema", lambda n: json.dumps({"pattern": "a*" * n}), 10**5),
    "patterns": ("schema", lambda n: json.dumps(
        {"properties": {f"a{i}": {"pattern": f".*{i}"} for i in range(n)}}), 4000),
    "names by patterns": ("schema", lambda n: json.dumps({"patternProperties": {"a*" * n: {}}}),
                          10**5),
    "lists in lists": ("schema", lambda n: '{"items":' * n + "{}" + "}" * n, 10**5),
    "a deep value": ("schema", lambda n: '{"enum":[' + "[" * n + "]" * n + "]}", 10**5),
}  # fmt: skip
SIZES = first(2, [1.0, 0.03, 0.3, 0.1, 0.003], "sizes between the smallest and the largest")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", every(2, FORMS, "more forms"))
def test_a_form_of_any_size_is_refused_or_followed(name, size):
    kind, make, most = FORMS[name]
    form = make(int(most * size))
    refusals, failures = [], []

    def follow() -> None:
        try:
            answer(CONSTRAINTS.of(SamplingParams(**{kind: form})), seed=1, n=8)
        except ConfigError as error:
            refusals.append(str(error))
        except BaseException as error:
            failures.append(error)

    before = threading.stack_size(SMALL_STACK)
    try:
        thread = threading.Thread(target=follow)
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    assert not failures
    assert all(20 < len(said) < 600 for said in refusals), refusals


@pytest.mark.parametrize(("kind", "form", "said"), [
    ("regex", "a" * 5000, "it has 5002 bytes, and may have 4096"),
    ("grammar", "start: " + '"x"? ' * 9000, "9000 parts may be left out, and 8000"),
    ("schema", '{"patternProperties": {"%s": {}}}' % ("a" * 9000), "more than 8192 characters"),
])  # fmt: skip
def test_why_a_long_form_is_refused(kind, form, said):
    with pytest.raises(ConfigError, match=said):
        CONSTRAINTS.of(SamplingParams(**{kind: form}))


def test_a_device_is_bound_as_well():
    with pytest.raises(ConfigError, match="9000 parts may be left out"):
        CONSTRAINTS.described({"answer": "start: " + '"x"? ' * 9000})


@pytest.mark.parametrize(("given", "said"), [
    ({"choices": ("x" * 5000,)}, "a choice has 5000 characters"),
    ({"grammar": 'start: "' + "x" * 5000 + '"'}, "a text has 5002 characters"),
    ({"grammar": "start: /" + "x" * 5000 + "/"}, "a text has 5002 characters"),
    ({"grammar": "start: A\nA: " + " & ".join(f"/.*c{i}/" for i in range(60))}, "59 times &"),
    ({"schema": {"allOf": [{"pattern": f".*c{i}"} for i in range(60)]}}, "60 schemas"),
    ({"grammar": "root ::= " + "(" * 5000 + '"a"' + ")" * 5000}, "it is nested too deeply"),
    ({"choices": ("\udcff",)}, "it is not valid Unicode"),
    ({"regex": "\udcff"}, "it is not valid Unicode"),
    ({"schema": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}},
     "a text without end"),
])  # fmt: skip
def test_what_would_take_too_long_is_refused_in_plain_words(given, said):
    with pytest.raises(ConfigError, match=said):
        CONSTRAINTS.of(SamplingParams(**given))


def test_a_grammar_may_ask_for_the_token_that_ends_answers():
    made = CONSTRAINTS.of(SamplingParams(grammar='start: "a" </s> | "b" </s> "c"'))
    for begin in "ab":
        matcher = made.matcher()
        matcher.accept([PIECES.index(begin)])
        assert list(matcher.mask().nonzero()[0]) == [END]
        assert matcher.allows(END)
        matcher.accept([END])
        assert matcher.has_ended
