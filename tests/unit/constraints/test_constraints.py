"""Constraints on answers: what is allowed, what is forced, what is refused, what comes out."""

import dataclasses
import json
import math
import random
from typing import Literal

import msgspec
import numpy as np
import pytest

from edgespec import ConfigError, DecodeError, SamplingParams, SpeculativeConfig, ToyModel
from edgespec.backends.toy import ToyTokenizer
from edgespec.constraints import schemas
from edgespec.constraints.compiler import Constraints
from edgespec.decoding.drafting import Drafting
from edgespec.drafters.base import NOWHERE
from edgespec.drafters.forced import ForcedDrafter
from edgespec.drafters.suffix import SuffixDrafter
from edgespec.loading.assembly import assemble
from edgespec.policies.fixed import FixedDepth
from edgespec.sampling.base import Request
from edgespec.types import Budget
from edgespec.verifiers.local import LocalVerifier
from tests.helpers import constrained
from tests.helpers.constrained import END, TOKENIZER
from tests.helpers.constrained import N as VOCAB
from tests.helpers.selection import share

pytest.importorskip("llguidance")

COMMAND = {
    "type": "object",
    "properties": {
        "action": {"enum": ["move_forward", "turn_left", "stop"]},
        "distance": {"type": "integer", "minimum": 0, "maximum": 500},
        "sure": {"type": "boolean"},
    },
    "required": ["action", "distance", "sure"],
    "additionalProperties": False,
}


@dataclasses.dataclass
class Command:
    action: Literal["move_forward", "turn_left", "stop"]
    distance: int
    sure: bool


class Struct(msgspec.Struct):
    names: list[Literal["ab", "ba"]]


def compiled(**given):
    return Constraints(TOKENIZER).of(SamplingParams(**given))


def engine(method="auto"):
    target, draft = (
        ToyModel(constrained.probs_of(1, VOCAB), vocab_size=VOCAB, n_ctx=600) for _ in range(2)
    )
    config = SpeculativeConfig(method=method, num_speculative_tokens=4, draft_p_min=0.0)
    return assemble(target, TOKENIZER, draft, config)


def answer(method="auto", prompt="a", **given):
    with engine(method) as made:
        return made.generate(prompt, **({"max_tokens": 120} | given))


def tokens_of(text):
    return TOKENIZER.encode(text)


@pytest.mark.parametrize("method", ["none", "suffix,forced", "draft_model", "auto"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answers_follow_a_schema(method, temperature):
    for seed in range(4):
        prompt = "ab"[: 1 + seed % 2]
        found = answer(method, prompt, temperature=temperature, seed=seed, schema=COMMAND)
        assert found.finish_reason == "stop"
        assert found.parsed == json.loads(found.text)
        assert found.parsed["action"] in COMMAND["properties"]["action"]["enum"]
        assert 0 <= found.parsed["distance"] <= 500
        plain = answer("none", prompt, temperature=temperature, seed=seed, schema=COMMAND)
        if not temperature:
            assert found.token_ids == plain.token_ids


def test_forced_tokens_are_drafted_and_the_end_as_well():
    found = answer("forced", choices=("move_forward",))
    assert found.text == "move_forward"
    counts = found.stats.drafts_by_source["forced"]
    assert counts["accepted"] > 2
    again = compiled(choices=("ab",)).matcher()
    again.accept(tokens_of("ab"))
    assert again.forced() == [END]


def test_values_of_types():
    found = answer(schema=Command)
    assert isinstance(found.parsed, Command)
    assert isinstance(answer(schema=Struct, seed=1, temperature=0.5).parsed, Struct | None)
    assert isinstance(answer(schema=bool).parsed, bool)
    assert answer(schema=json.dumps(COMMAND)).parsed["action"]


def test_values_of_pydantic_models():
    pydantic = pytest.importorskip("pydantic")

    class Order(pydantic.BaseModel):
        action: Literal["stop", "go"]
        sure: bool

        @pydantic.field_validator("sure")
        @classmethod
        def must_be_sure(cls, value):
            if not value:
                raise ValueError("be sure")
            return value

    for seed in range(6):
        found = answer(schema=Order, temperature=1.0, seed=seed)
        assert found.finish_reason == "stop"
        assert (found.parsed is None) == (not json.loads(found.text)["sure"])


def test_a_cut_answer_has_no_value_and_says_length():
    found = answer(schema=COMMAND, max_tokens=3)
    assert (found.finish_reason, found.parsed) == ("length", None)
    assert answer(choices=("ab",)).parsed is None  # the text is all there is


def test_a_value_that_python_cannot_nest_is_none():
    nested = '{"a":' * 100_000 + "1" + "}" * 100_000
    assert schemas.value_of({"type": "object"}, nested) is None
    assert schemas.value_of(dict, nested) is None


@pytest.mark.parametrize("kind", ["chains", "trees"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_draft_ends_where_its_model_may_say_nothing(kind, temperature):
    """The model drafts its way to where a bias forbids all that the form allows; the target does
    not go there.
    """
    ids = {TOKENIZER.piece(i): i for i in range(VOCAB)}
    given = {
        "choices": ("abx", "y"), "temperature": temperature, "seed": 11,
        "logit_bias": {ids[b"b"]: -math.inf, ids[b"ab"]: -math.inf},
    }  # fmt: skip
    verifier = LocalVerifier(constrained.toy(), "coupled")
    assert constrained.local().generate("xyz", **given).text == "y"
    for seed in range(1, 9):
        engine = constrained.engine(verifier, kind, draft_seed=seed)
        assert engine.generate("xyz", **given).text == "y"


def test_other_forms():
    assert answer(choices=('say "ab"', "\\left")).text in ('say "ab"', "\\left")
    assert answer(regex="[0-9]{3}-(ab)+x", temperature=1.0, seed=4, max_tokens=200).text[3] == "-"
    gbnf = 'root ::= "move" ("_" word)? "x"\nword ::= "left" | "forward"'
    assert answer(grammar=gbnf).text in ("movex", "move_leftx", "move_forwardx")
    lark = 'start: "move" /[ab]/ "x"'
    assert answer(grammar=lark).text in ("moveax", "movebx")


def test_rows_may_be_longer_or_shorter_than_the_vocabulary():
    from edgespec.sampling.sampler import Sampler

    matcher = compiled(choices=("ab", "b")).matcher()
    for n in (VOCAB + 7, VOCAB - 1):
        row = np.arange(n, dtype=np.float32)
        sampler = Sampler(SamplingParams(choices=("ab", "b")), [0], n, matcher)
        allowed = {*tokens_of("ab"), *tokens_of("a"), *tokens_of("b")}
        assert sampler.argmax(row) in allowed
        assert row[0] == 0, "rows are not written to"
        ids = Sampler(SamplingParams(temperature=1, choices=("ab",)), [0], n, matcher)
        found = ids.distribution(row)
        assert {t for t, p in zip(found.ids, found.probs, strict=True) if p > 0} <= allowed


def test_random_drafts_leave_the_state_of_a_fresh_matcher():
    rng = random.Random(0)
    constraint = compiled(schema=COMMAND)
    n_allowed = n_refused = 0
    while n_allowed + n_refused < share(10_000):
        used, emitted = constraint.matcher(), []
        while len(emitted) < 40:
            ahead = _ahead(used, rng)
            ok = all(used.allows(t, ahead[:i]) for i, t in enumerate(ahead))
            n_allowed, n_refused = n_allowed + ok, n_refused + (not ok)
            fresh = constraint.matcher()
            fresh.accept(emitted)
            assert used.forced() == fresh.forced()
            assert np.array_equal(used.mask(), fresh.mask())
            if ok or follows(constraint, emitted + ahead):
                assert np.array_equal(used.mask(ahead), fresh.mask(ahead))
            else:
                assert used.mask(ahead).all()
            token = int(rng.choice(np.flatnonzero(used.mask())))
            emitted.append(token)
            used.accept([token])
            if token == END:
                assert used.forced() == []
                break
    assert min(n_allowed, n_refused) > share(1_000)


def follows(constraint, ids):
    """Return True if tokens follow a form, in whatever way they write the text."""
    try:
        constraint.matcher().accept(ids)
    except DecodeError:
        return False
    return True


def _ahead(matcher, rng):
    """Return a draft: forced tokens, allowed ones, and now and then one that is not."""
    ahead = []
    for _ in range(rng.randrange(1, 7)):
        forced = list(matcher.forced(ahead))
        if forced and rng.random() < 0.5:
            ahead += forced[: rng.randrange(1, 4)]
        elif rng.random() < 0.2:
            ahead.append(rng.randrange(VOCAB))
        else:
            ahead.append(int(rng.choice(np.flatnonzero(matcher.mask(ahead)))))
        if END in ahead:
            break
    return [t for t in ahead if t != END] or [tokens_of("{")[0]]


def test_emitting_what_is_not_allowed_is_an_error():
    matcher = compiled(choices=("ab",)).matcher()
    with pytest.raises(DecodeError, match="do not follow the constraint"):
        matcher.accept(tokens_of("x"))
    with pytest.raises(DecodeError, match="do not follow"):
        matcher.accept([END])


BAD = {
    "two forms": ({"schema": {}, "regex": "a"}, "schema and regex were given"),
    "a token that ends": ({"regex": "a", "stop_token_ids": (1,)}, "regex and stop_token_ids"),
    "ignored ends": ({"choices": ("a",), "ignore_eos": True}, "choices and ignore_eos"),
    "no JSON": ({"schema": "{"}, "schema is no JSON"),
    "too deep": ({"schema": "[" * 200_000}, "schema is no JSON"),
    "no number": ({"schema": {"multipleOf": math.nan}}, "schema cannot be written as JSON"),
    "no schema": ({"schema": "[1]"}, "a schema is a JSON object"),
    "no type": ({"schema": object()}, "schema must be a mapping"),
    "an unknown keyword": ({"schema": {"type": "strange"}}, "schema cannot be followed"),
    "a missing reference": ({"schema": {"$ref": "#/$defs/a"}}, "schema cannot be followed"),
    "a broken expression": ({"regex": "(a"}, "regex cannot be followed"),
    "no choices": ({"choices": ()}, "choices is empty; give at least one text"),
    "a broken grammar": ({"grammar": "start: nothing"}, "grammar cannot be followed"),
    "a broken GBNF": ({"grammar": 'root ::= ("a"'}, "grammar cannot be followed"),
    "an empty choice": ({"choices": ("a", "")}, "a choice must not be empty"),
    "no text": ({"regex": 3}, "regex must be text"),
    "choices of numbers": ({"choices": (1,)}, "choices must be several str"),
    "a megabyte": ({"schema": {"enum": ["a" * 100] * 10_000}}, "and may have"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_constraints_are_one_sentence(case):
    given, message = BAD[case]
    with pytest.raises(ConfigError, match=message) as error:
        compiled(**given)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("kind", "text", "message"), [
    ("schema", "{", "schema cannot be followed"),
    ("schema", "[" * 60_000, "schema cannot be followed"),
    ("schema", json.dumps("[" * 60_000), "schema is no JSON"),
    ("schema", '{"multipleOf": NaN}', "schema cannot be written as JSON"),
    ("schema", "[]", "schema must be a mapping"),
    ("choices", "ab", "choices cannot be followed: it is no JSON"),
    ("choices", "[" * 60_000, "choices cannot be followed: it is no JSON"),
    ("choices", '{"a": 1}', "must be a list of texts"),
    ("choices", '["a", 1]', "must be a list of texts"),
    ("choices", "[]", "choices are empty"),
    ("choices", '[""]', "not empty"),
    ("regex", "(" * 60_000, "regex cannot be followed"),
    ("answer", "start: nothing", "answer cannot be followed"),
    ("grammar", "root ::= " + "(" * 60_000, "grammar cannot be followed"),
    ("grammar", 'root ::= "a\\', "grammar cannot be followed"),
    ("grammar", 'root ::= "a"{²}', "grammar cannot be followed"),
    ("grammar", "", "grammar cannot be followed: No 'root' rule"),
    ("grammar", "root ::= other", "grammar cannot be followed: Rule 'other' not found"),
])  # fmt: skip
def test_texts_from_elsewhere(kind, text, message):
    """What a device sends was not checked by SamplingParams."""
    constraints = Constraints(TOKENIZER)
    for _ in range(2):
        with pytest.raises(ConfigError, match=message) as error:
            constraints.described({kind: text})
        assert "\n" not in str(error.value)


def test_what_it_was_compiled_from_compiles_again():
    for given in ({"schema": Command}, {"regex": "a+"}, {"grammar": 'root ::= "a"'},
                  {"choices": ("ab", "ö")}):  # fmt: skip
        first = compiled(**given)
        again = Constraints(TOKENIZER).described(first.description)
        assert (again.matcher().mask() == first.matcher().mask()).all()


def test_nothing_is_loaded_without_a_constraint():
    with engine() as made:
        made.generate("a", max_tokens=3)
        assert "_words" not in vars(made.constraints)


def test_a_model_without_an_end_is_refused():
    endless = Constraints(ToyTokenizer(["a", "b"]))
    with pytest.raises(ConfigError, match="no token that ends an answer"):
        endless.of(SamplingParams(regex="a"))


def test_the_cache_of_compiled_constraints_is_used():
    made = Constraints(TOKENIZER)
    assert made.of(SamplingParams(schema=COMMAND)) is made.of(SamplingParams(schema=dict(COMMAND)))
    assert made.of(SamplingParams()) is None


def begun(text, **given):
    """Return lookups and forced tokens after a text, under a form of the answer."""
    params = SamplingParams(**given)
    constraint = Constraints(TOKENIZER).of(params)
    drafting = Drafting([SuffixDrafter(1), ForcedDrafter()], FixedDepth(8, max_leaves=8))
    drafting.begin(Request(tokens_of(text), params, None, constraint=constraint))
    return drafting


def drafted(text, **given):
    return begun(text, **given).grow(Budget(8, max_leaves=8)).draft


def test_lookups_are_cut_where_the_form_would_refuse():
    text = "left then right, left"
    assert TOKENIZER.piece(drafted(text).tokens[0]) == b" "
    free = drafted(text, regex=" then .*")
    assert free.tokens[: len(tokens_of(" then"))] == tuple(tokens_of(" then"))
    cut = drafted(text, regex=" th[0-9]+")
    assert cut.tokens == tuple(tokens_of(" th"))
    assert not drafted(text, regex="[0-9]+").tokens


def test_forced_tokens_cost_nothing_without_a_form():
    suffix, forced = begun("abab").drafters
    assert suffix.root() is not NOWHERE
    assert forced.root() is NOWHERE
    assert begun("abab", regex="a").drafters[1].root() is not NOWHERE
    assert answer("forced", max_tokens=5).token_ids == answer("none", max_tokens=5).token_ids


def test_a_token_is_allowed_where_the_mask_allows_it():
    """Where only one text can follow, masks allow one way to write it in tokens."""
    rng = random.Random(3)
    for given in ({"schema": COMMAND}, {"choices": ("move_forward", "move_left", "aab")}):
        for _ in range(10):
            matcher, text = compiled(**given).matcher(), []
            while len(text) < 40 and (not text or text[-1] != END):
                mask = matcher.mask().copy()
                assert [matcher.allows(token) for token in range(VOCAB)] == mask.tolist()
                assert [matcher.mask()[token] for token in range(VOCAB)] == mask.tolist()
                text.append(int(rng.choice(list(np.flatnonzero(mask)))))
                matcher.accept(text[-1:])
