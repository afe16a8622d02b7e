"""Calls of tools and budgets of reasoning on real weights; their template is one with tools."""

import json
from typing import Literal

import pytest

import edgespec
from edgespec import SamplingParams
from edgespec.chat.constraints import AnswerConstraints
from edgespec.chat.encoder import ConversationEncoder
from edgespec.chat.format import AnswerFormat
from edgespec.chat.options import AnswerOptions
from edgespec.chat.tools import tool_of
from tests.helpers import libllama
from tests.helpers.formats import TEMPLATES
from tests.helpers.selection import first

llama_cpp = libllama.require()
pytest.importorskip("llguidance")
pytestmark = [pytest.mark.model, pytest.mark.llama_cpp]


def chatml(template):
    """Return a template of the tests in the words of ChatML."""
    for name in ("system", "user", "assistant", "tool"):
        template = template.replace(f"<|{name}|>", f"<|im_start|>{name}\n")
    return template.replace("<|{{ m.role }}|>", "<|im_start|>{{ m.role }}\n").replace(
        "<|end|>", "<|im_end|>\n"
    )


def drive(direction: Literal["forward", "back"], centimetres: int, fast: bool = False) -> str:
    """Drive the robot.

    Args:
        direction: Forward or back.
        centimetres: How far.
    """


def look() -> str:
    """Look around."""


TOOLS = (tool_of(drive), tool_of(look))


@pytest.fixture(scope="module")
def engine(smollm2):
    speculation = {"method": "suffix,forced", "num_speculative_tokens": 6}
    with edgespec.load(smollm2, None, n_ctx=1024, speculative_config=speculation) as made:
        yield made


def asked(engine, name, options, text="Drive forward for twenty centimetres."):
    """Return the constraint, the prompt's ids and the reader of a question."""
    engine.tokenizer.chat_template = chatml(TEMPLATES[name])
    form = AnswerFormat.of(engine.tokenizer.chat_template, engine.tokenizer.special())
    encoder = ConversationEncoder(engine.tokenizer)
    prompt = encoder.render([{"role": "user", "content": text}], options=options)
    constraint = AnswerConstraints(engine.constraints, form).of(SamplingParams(), options, prompt)
    return constraint, encoder.encode(prompt), form.reader(options, prompt)


NAMES = ["object", "keys", "function", "parameters", "bare", "list"]


@pytest.mark.parametrize("name", first(1, NAMES, "more forms of calls with real weights"))
def test_required_calls_parse_and_speculation_changes_nothing(engine, name):
    options = AnswerOptions(TOOLS, "required", parallel_tool_calls=False)
    constraint, ids, reader = asked(engine, name, options)
    found = engine.generate(ids, constraint=constraint, max_tokens=150)
    plain = engine.generate(ids, constraint=constraint, max_tokens=150, disable_spec_decode=True)
    assert found.token_ids == plain.token_ids
    assert found.finish_reason == "stop"
    parts = [part for char in found.text for part in reader.feed(char)] + reader.end()
    (call,) = reader.calls
    assert reader.content == ""
    arguments = json.loads(call.arguments)
    assert set(arguments) <= {"direction", "centimetres", "fast"}
    if call.name == "drive":
        assert isinstance(arguments["centimetres"], int)
    assert "".join(part.text for part in parts) == call.arguments
    assert found.stats.num_accepted_draft_tokens > 5


@pytest.mark.long("real weights; tests/server/test_tool_forms.py has toys")
def test_sampled_answers_with_calls_parse(engine):
    for seed in range(4):
        constraint, ids, reader = asked(engine, "object", AnswerOptions(TOOLS, "required"))
        found = engine.generate(
            ids, constraint=constraint, max_tokens=120, temperature=1.0, seed=seed
        )
        reader.feed(found.text)
        reader.end()
        assert reader.content == ""
        assert found.finish_reason == "length" or reader.calls
        assert all(isinstance(json.loads(call.arguments), dict) for call in reader.calls)


@pytest.mark.long("reasons with real weights")
def test_a_budget_ends_reasoning(engine):
    options = AnswerOptions(TOOLS, "required", reasoning_budget=12)
    constraint, ids, reader = asked(engine, "opened", options)
    assert ids[-1:] == engine.tokenizer.encode("\n", add_special=False)
    found = engine.generate(ids, constraint=constraint, max_tokens=200)
    reader.feed(found.text)
    reader.end()
    assert reader.calls
    reasoning = found.text.partition("</think>")[0]
    assert len(engine.tokenizer.encode(reasoning, add_special=False)) <= 12 + 1
