"""The one place that merges what a request names with the defaults of its engine."""

import asyncio

import pytest

import edgespec
from edgespec import ConfigError, SamplingParams
from edgespec.sampling.defaults import GREEDY, SamplingDefaults

MODELS = SamplingDefaults(
    {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05}, "published"
)
OWN = SamplingParams(temperature=0.7, top_k=20, top_p=0.8, repetition_penalty=1.05)


def test_a_setting_that_is_named_replaces_that_setting_alone():
    assert MODELS.params({}) == OWN
    assert MODELS.params({"top_p": 1.0}) == SamplingParams(0.7, 20, repetition_penalty=1.05)
    assert MODELS.params({"temperature": 1.5}).top_k == 20
    named = {"repetition_penalty": 1.0, "max_tokens": 5, "seed": 3}
    assert MODELS.params(named) == SamplingParams(0.7, 20, 0.8, max_tokens=5, seed=3)


def test_at_temperature_0_only_what_is_named_counts():
    assert MODELS.params({"temperature": 0}) == SamplingParams()
    asked = {"temperature": 0.0, "presence_penalty": 1.0}
    assert MODELS.params(asked) == SamplingParams(presence_penalty=1.0)
    greedy = SamplingDefaults({"temperature": 0.0, "top_p": 0.8, "repetition_penalty": 1.1})
    assert greedy.params({}) == greedy.params({"top_k": 0}) == SamplingParams()
    warm = SamplingParams(0.5, top_p=0.8, repetition_penalty=1.1)
    assert greedy.params({"temperature": 0.5}) == warm


def test_without_defaults_it_is_greedy():
    assert GREEDY.params({}) == SamplingParams()
    assert GREEDY.params({"top_k": 3, "temperature": 1}) == SamplingParams(1, 3)


@pytest.mark.parametrize("named", [
    {"temperature": None}, {"temperature": "warm"}, {"temperature": -1}, {"warmth": 1},
])  # fmt: skip
def test_what_cannot_be_is_refused(named):
    for defaults in (MODELS, GREEDY):
        with pytest.raises(ConfigError):
            defaults.params(named)


def test_defaults_are_replaced_for_an_engine():
    assert MODELS.replaced({}) == MODELS
    assert MODELS.replaced({"top_k": 5}).params({"top_p": 0.5}).top_k == 5
    greedy = MODELS.replaced({"temperature": 0})
    assert greedy.params({}) == SamplingParams()
    assert greedy.params({"temperature": 1.0}) == SamplingParams(1.0)
    for wrong in ({"max_tokens": 5}, {"warmth": 1}, [("top_k", 5)], {"top_k": -2}):
        with pytest.raises(ConfigError, match=r"sampling|top_k"):
            MODELS.replaced(wrong)


@pytest.mark.parametrize(("named", "says"), [
    ({}, "temperature 0.7, top_k 20, top_p 0.8, repetition_penalty 1.05 (published)"),
    ({"temperature": 0}, "greedy (as asked)"),
    ({"temperature": 0, "presence_penalty": 1}, "greedy, presence_penalty 1 (as asked)"),
    ({"top_k": 0, "top_p": 1, "repetition_penalty": 1},
     "temperature 0.7 (top_k, top_p, repetition_penalty as asked, the rest published)"),
    ({"max_tokens": 3, "temperature": 1, "top_k": 0, "top_p": 1, "repetition_penalty": 1},
     "temperature 1 (as asked)"),
])  # fmt: skip
def test_it_says_how_and_who_says_so(named, says):
    assert MODELS.describe(named) == says
    assert str(GREEDY) == "greedy"


# --- an engine with defaults ---------------------------------------------------------------------


@pytest.fixture
def engine(monkeypatch):
    """Return an engine, and the settings that its requests had."""
    vocab = [bytes([i]) for i in range(256)] + ["<end>"]
    made = edgespec.assemble(
        edgespec.ToyModel(lambda tokens: [1 / 257] * 257, vocab_size=257),
        edgespec.ToyTokenizer(vocab, eog=[256]),
        speculative_config={"method": "none"},
        sampling=MODELS,
    )
    asked, run = [], made.run

    def noted(prompt, params, **more):
        asked.append(params)
        return run(prompt, params, **more)

    monkeypatch.setattr(made, "run", noted)
    with made:
        yield made, asked


def test_every_way_to_ask_has_them(engine):
    made, asked = engine
    made.generate("a", max_tokens=1)
    list(made.stream("a", max_tokens=1))
    asyncio.run(made.agenerate("a", max_tokens=1))
    chat = made.chat()
    chat.send("a", max_tokens=1)
    list(chat.stream("a", max_tokens=1))
    assert [(p.temperature, p.top_k, p.top_p, p.repetition_penalty) for p in asked] == [
        (0.7, 20, 0.8, 1.05)
    ] * 5
    assert {p.max_tokens for p in asked} == {1}
    made.generate("a", max_tokens=1, temperature=0)
    chat.send("a", max_tokens=1, top_k=3)
    assert asked[-2] == SamplingParams(max_tokens=1)
    assert (asked[-1].temperature, asked[-1].top_k) == (0.7, 3)


def test_forms_have_them_as_well(engine):
    pytest.importorskip("llguidance")
    made, asked = engine
    made.generate("a", choices=("yes", "no"))
    made.chat().send("a", schema={"type": "boolean"})
    assert [p.temperature for p in asked] == [0.7, 0.7]


def test_answers_and_the_engine_say_it(engine):
    made, _ = engine
    assert made.generate("a", max_tokens=1, temperature=0).stats.sampling == "greedy"
    said = made.generate("a", max_tokens=1).stats.to_dict()["sampling"]
    assert said == "temperature 0.7, top_k 20, top_p 0.8, repetition_penalty 1.05"
    assert made.describe()["sampling"] == str(made.sampling) == f"{said} (published)"


def test_what_is_assembled_from_parts_is_greedy():
    engine = edgespec.assemble(
        edgespec.ToyModel([[0.4, 0.6], [0.6, 0.4]]), edgespec.ToyTokenizer(["a", "b"])
    )
    with engine:
        assert engine.generate([0], max_tokens=4).token_ids == (1, 0, 1, 0)
        assert engine.describe()["sampling"] == "greedy"
