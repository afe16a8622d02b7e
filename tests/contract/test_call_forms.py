"""What every form of calls has to do, however its texts are.

What is written in a form is allowed and read back, and so is all that its grammar generates.
"""

import json
import random
from itertools import pairwise

import numpy as np
import pytest

from edgespec import SamplingParams
from edgespec.chat import call_forms
from edgespec.chat.constraints import AnswerConstraints
from edgespec.chat.encoder import ConversationEncoder
from edgespec.chat.format import AnswerFormat
from edgespec.chat.options import AnswerOptions
from edgespec.chat.probes import Probe
from edgespec.chat.tools import Tool
from edgespec.constraints.compiler import Constraints
from tests.helpers.chat_templates import PUBLISHED, SPECIAL, published
from tests.helpers.formats import OWN, TEMPLATES, FormTokenizer

pytest.importorskip("llguidance")
validators = pytest.importorskip("jsonschema_rs")


def of_file(name):
    return (PUBLISHED / f"{name}.jinja").read_text("utf-8")


EXAMPLES = {  # a template for each form that is not learned: a published one, or one written here
    "command_r7b": OWN["command_r7b"],
    "deepseek_3": of_file("deepseek-ai-DeepSeek-V3.1"),
    "deepseek_dsml": of_file("deepseek-ai-DeepSeek-V4"),
    "gemma_4": of_file("google-gemma-4-31B-it"),
    "gpt_oss": of_file("openai-gpt-oss-120b"),
    "granite_3": of_file("ibm-granite-granite-3.3-2B-Instruct"),
    "lfm_2": OWN["lfm_2"],
    "minimax_m3": of_file("MiniMax-M3"),
    "smollm_3": of_file("HuggingFaceTB-SmolLM3-3B"),
}
MODELS = {  # with what the names of published templates of these forms begin
    "command_r7b": ("CohereForAI-c4ai-command-r7b", "Cohere2"),
    "deepseek_3": "deepseek-ai-DeepSeek-V3.1",
    "deepseek_dsml": ("deepseek-ai-DeepSeek-V3.2", "deepseek-ai-DeepSeek-V4"),
    "gemma_4": "google-gemma-4",
    "gpt_oss": "openai-gpt-oss",
    "granite_3": "ibm-granite-granite-3",
    "lfm_2": "LFM2",
    "minimax_m3": "MiniMax-M3",
    "smollm_3": "HuggingFaceTB-SmolLM3",
}
FORMS = TEMPLATES | EXAMPLES
SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "maxLength": 12},
        "n": {"type": "integer"},
        "unit": {"enum": ["c", "f"]},
        "more": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
        "free": {"type": "string"},
    },
    "required": ["text", "unit"],
    "additionalProperties": False,
}
TOOLS = (Tool("get", "Get it.", SCHEMA), Tool("get_all", "Get all.", SCHEMA), Tool("now"))
CALLS = [
    ("get_all", {"text": 'a "é" {b} <x', "n": -3, "unit": "c", "more": [True]}),
    ("get", {"text": "", "unit": "f"}),
    ("now", {}),
]
REQUIRED = AnswerOptions(TOOLS, "required")


def messages(calls):
    return [
        {"id": f"abcdef{i:03}", "type": "function", "function": {"name": name, "arguments": given}}
        for i, (name, given) in enumerate(calls)
    ]


def constraint(name):
    made = Constraints(FormTokenizer(FORMS[name]))
    return AnswerConstraints(made, AnswerFormat.of(FORMS[name], SPECIAL)).of(
        SamplingParams(), REQUIRED, ""
    )


def read(name, pieces):
    """Return the calls of an answer that comes in pieces, and its content."""
    reader = AnswerFormat.of(FORMS[name], SPECIAL).reader(REQUIRED, "")
    for piece in pieces:
        reader.feed(piece)
    reader.end()
    return [(call.name, json.loads(call.arguments)) for call in reader.calls], reader.content


def test_every_form_has_a_template_here():
    own = {entry.name for entry in call_forms.known.own()}
    assert own == {call_forms.LEARNED, *EXAMPLES}


@pytest.mark.parametrize("name", FORMS)
def test_calls_as_they_are_written_are_allowed_and_read(name):
    form = AnswerFormat.of(FORMS[name], SPECIAL).tools
    calls = CALLS if form.is_parallel else CALLS[:1]
    written = form.write(messages(calls))
    matcher, tokenizer = constraint(name).matcher(), FormTokenizer(FORMS[name])
    for token in tokenizer.encode(written):
        if not tokenizer.is_eog(token):
            matcher.accept([token])
    assert matcher.allows(tokenizer.end)
    for cut in range(len(written)):
        assert read(name, [written[:cut], written[cut:]]) == (calls, ""), cut
    assert read(name, written) == (calls, "")


@pytest.mark.parametrize("name", FORMS)
def test_every_call_that_the_grammar_generates_is_read(name):
    """Answers at random, with many beginnings of markers, are calls that follow their schemas."""
    rng, made = random.Random(5), constraint(name)
    tokenizer = FormTokenizer(FORMS[name])
    markers = [each for each in AnswerFormat.of(FORMS[name], SPECIAL).texts.split("\n") if each]
    validator = validators.validator_for(SCHEMA)
    n_read = 0
    for _ in range(25):
        matcher, ids, begun = made.matcher(), [], []
        while len(ids) < 600 and not matcher.has_ended:
            allowed = np.flatnonzero(matcher.mask())
            if not begun and rng.random() < 0.3:
                begun = tokenizer.encode(rng.choice(markers))
            wanted = begun.pop(0) if begun else tokenizer.end
            if wanted not in allowed:
                wanted, begun = int(rng.choice(list(allowed))), []
            ids.append(wanted)
            matcher.accept([wanted])
        if not tokenizer.is_eog(ids[-1]):
            continue
        pieces = [made.shown.get(token) or tokenizer.piece(token) for token in ids]
        text = b"".join(pieces).decode("utf-8", "replace")
        cuts = [0, *sorted(rng.sample(range(len(text) + 1), 3)), len(text)]
        calls, content = read(name, [text[a:b] for a, b in pairwise(cuts)])
        assert (bool(calls), content) == (True, ""), text
        for called, arguments in calls:
            assert arguments == {} if called == "now" else validator.is_valid(arguments), text
        n_read += len(calls)
    assert n_read >= 10


UNWRITTEN = [  # forms whose template does not write calls
    name for name in EXAMPLES if not AnswerFormat.of(FORMS[name], SPECIAL).tools.is_in_template
]


@pytest.mark.parametrize("name", UNWRITTEN)
def test_calls_of_earlier_answers_are_written_in_the_form(name):
    form = AnswerFormat.of(FORMS[name], SPECIAL)
    called = {"role": "assistant", "content": "", "tool_calls": messages(CALLS)}
    history = [
        {"role": "user", "content": "Well?"}, called,
        {"role": "tool", "tool_call_id": "abcdef000", "name": "get_all", "content": "4711"},
    ]  # fmt: skip
    encoder = ConversationEncoder(FormTokenizer(FORMS[name]), parse_special=True)
    rendered = encoder.render(history, options=AnswerOptions(TOOLS))
    assert rendered.count(form.tools.write(messages(CALLS))) == 1
    assert rendered.index("get_all") < rendered.index("4711")


class Marker(FormTokenizer):
    """A tokenizer that has the marker of calls as a control token."""

    def __init__(self, template, marker):
        super().__init__(template)
        self._marker = marker

    def control_texts(self):
        return [*super().control_texts(), self._marker]

    def has_control(self, text):
        return self._marker in text or super().has_control(text)


@pytest.mark.parametrize("name", UNWRITTEN)
def test_markers_of_earlier_calls_are_tokens_and_those_in_arguments_are_text(name):
    form = AnswerFormat.of(FORMS[name], SPECIAL).tools
    marker = form.trigger
    calls = messages([("get", {"text": f"{marker}{form.begin}", "unit": "c"})])
    history = [
        {"role": "user", "content": f"Say {marker}"},
        {"role": "assistant", "content": f"No {marker}", "tool_calls": calls},
    ]
    render = ConversationEncoder(Marker(FORMS[name], marker)).render
    rendered = render(history, options=AnswerOptions(TOOLS))
    told = render(history[:1], options=AnswerOptions(TOOLS))
    assert rendered.count(marker) == told.count(marker) + 1


@pytest.mark.parametrize("path", published(), ids=lambda path: path.stem)
def test_at_most_one_form_that_is_not_learned_knows_a_template(path):
    probe = Probe(path.read_text("utf-8"), SPECIAL)
    others = [name for name in EXAMPLES if call_forms.known.entry(name).make(probe, None)]
    assert others == [name for name, begin in MODELS.items() if path.stem.startswith(begin)]
