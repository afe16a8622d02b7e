"""Answers as models of several families write them: what is read, and what grammars allow."""

import json

import numpy as np
import pytest

import edgespec
from edgespec import SamplingParams
from edgespec.chat.constraints import AnswerConstraints
from edgespec.chat.encoder import ConversationEncoder
from edgespec.chat.format import AnswerFormat
from edgespec.chat.options import AnswerOptions
from edgespec.chat.tools import Tool
from edgespec.constraints.compiler import Constraints
from tests.helpers.chat_templates import PUBLISHED, SPECIAL
from tests.helpers.formats import OWN, FormTokenizer

pytest.importorskip("llguidance")

CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "more": {"type": "object"},
        "all": {"type": "boolean"},
    },
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = (Tool("get", "Get it.", CITY), Tool("get_all", "Get all.", CITY), Tool("now"))
ROME = ("get", {"city": "Rome"})
MANY = ("get_all", {"city": "Rom 'a' \"b\" é", "days": -3, "more": {"a": ["x", None]}, "all": True})
GPT_OSS = "openai-gpt-oss-120b"
START = "<|start|>assistant"
ANALYSIS = "<|channel|>analysis<|message|>User says hi.<|end|>"
TO_GET = '<|channel|>commentary to=functions.get <|constrain|>json<|message|>{"city": "Rome"}'

ANSWERS = [  # template, answer, its content, its reasoning, its calls
    (GPT_OSS, f"{ANALYSIS}{START}<|channel|>final<|message|>Hello!", "Hello!", "User says hi.", []),
    (GPT_OSS, "<|channel|>final<|message|>a <b> c", "a <b> c", "", []),
    (GPT_OSS, f"{ANALYSIS}{START}{TO_GET}", "", "User says hi.", [ROME]),
    (
        GPT_OSS,
        f"{ANALYSIS}{START} to=functions.get<|channel|>commentary json<|message|>"
        '{"city": "Rome"}',
        "", "User says hi.", [ROME],
    ),
    (GPT_OSS, f"{TO_GET}", "", "", [ROME]),
    (
        GPT_OSS,
        f"{ANALYSIS}{START}<|channel|>commentary<|message|>I look.<|end|>{START}{TO_GET}",
        "I look.", "User says hi.", [ROME],
    ),
    (
        GPT_OSS,
        " to=functions.now<|channel|>commentary<|message|>{}",
        "", "", [("now", {})],
    ),
]  # fmt: skip
ANSWERS += [
    (
        "lfm_2",
        """So: <|tool_call_start|>[get(city="Rome"), now()]<|tool_call_end|>""",
        "So:", "", [ROME, ("now", {})],
    ),
    (
        "lfm_2",
        """<|tool_call_start|>[get_all(city='Rom \\'a\\' "b" é', days=-3, """
        """more={"a": ["x", null]}, all=True)]<|tool_call_end|>""",
        "", "", [MANY],
    ),
    ("lfm_2", "Just [f(x)] text.", "Just [f(x)] text.", "", []),
]  # fmt: skip
GEMMA = "google-gemma-4-31B-it"
THOUGHT = "<|channel>thought\nUser says hi.\n<channel|>"
ANSWERS += [
    (GEMMA, "Hello!", "Hello!", "", []),
    (GEMMA, '<|tool_call>call:get{city:<|"|>Rome<|"|>}<tool_call|>', "", "", [ROME]),
    (
        GEMMA,
        """So.<|tool_call>call:get_all{all:true,city:<|"|>Rom 'a' "b" é<|"|>,days:-3,"""
        """more:{a:[<|"|>x<|"|>,null]}}<tool_call|><|tool_call>call:now{}<tool_call|>""",
        "So.", "", [MANY, ("now", {})],
    ),
]  # fmt: skip
SMOLLM = "HuggingFaceTB-SmolLM3-3B"
SMOL_CALL = '<tool_call>\n{"name": "get", "arguments": {"city": "Rome"}}\n</tool_call>'
ANSWERS += [
    (SMOLLM, "<think>\nUser says hi.\n</think>\n\nHello!", "Hello!", "User says hi.", []),
    (SMOLLM, f"<think>\nHm.\n</think>\n\n{SMOL_CALL}", "", "Hm.", [ROME]),
]
V31, V32, V4 = (f"deepseek-ai-DeepSeek-{version}" for version in ("V3.1", "V3.2", "V4"))
V31_CALL = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get<｜tool▁sep｜>"
    '{"city": "Rome"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
)


def dsml(block):
    return (
        f'<｜DSML｜{block}>\n<｜DSML｜invoke name="get">\n'
        '<｜DSML｜parameter name="city" string="true">Rome</｜DSML｜parameter>\n'
        f"</｜DSML｜invoke>\n</｜DSML｜{block}>"
    )


def dsml_of_many(block):
    return (
        f'<｜DSML｜{block}>\n<｜DSML｜invoke name="get_all">\n'
        """<｜DSML｜parameter name="city" string="true">Rom 'a' "b" é</｜DSML｜parameter>\n"""
        '<｜DSML｜parameter name="days" string="false">-3</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="more" string="false">{"a": ["x", null]}</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="all" string="false">true</｜DSML｜parameter>\n'
        f"</｜DSML｜invoke>\n</｜DSML｜{block}>"
    )


ANSWERS += [
    (V31, f"I look.{V31_CALL}", "I look.", "", [ROME]),
    (V32, f"I look.\n\n{dsml('function_calls')}", "I look.", "", [ROME]),
    (V32, dsml_of_many("function_calls"), "", "", [MANY]),
    (V4, f"I look.\n\n{dsml('tool_calls')}", "I look.", "", [ROME]),
    (V4, dsml_of_many("tool_calls"), "", "", [MANY]),
]
COMMAND = "command_r7b"
PLAN = "<|START_THINKING|>User says hi.<|END_THINKING|>"
ACTION = """<|START_ACTION|>[
    {"tool_call_id": "0", "tool_name": "get", "parameters": {"city": "Rome"}},
    {"tool_call_id": "1", "tool_name": "now", "parameters": {}}
]<|END_ACTION|>"""
ANSWERS += [
    (COMMAND, "<|START_RESPONSE|>Hello!<|END_RESPONSE|>", "Hello!", "", []),
    (COMMAND, f"{PLAN}<|START_RESPONSE|>Hello!", "Hello!", "User says hi.", []),
    (COMMAND, f"{PLAN}{ACTION}", "", "User says hi.", [ROME, ("now", {})]),
    (COMMAND, ACTION, "", "", [ROME, ("now", {})]),
]
M3, NS = "MiniMax-M3", "]<]minimax[>["
M3_CALL = (
    f'{NS}<tool_call>\n{NS}<invoke name="get">{NS}<city>Rome{NS}</city>{NS}</invoke>\n'
    f"{NS}</tool_call>"
)
M3_MANY = (
    f"""{NS}<tool_call>\n{NS}<invoke name="get_all">{NS}<city>Rom 'a' "b" é{NS}</city>"""
    f"{NS}<days>-3{NS}</days>{NS}<more>{NS}<a>{NS}<item>x{NS}</item>{NS}<item>null{NS}</item>"
    f"{NS}</a>{NS}</more>{NS}<all>true{NS}</all>{NS}</invoke>\n{NS}</tool_call>"
)
ANSWERS += [
    (M3, "<mm:think>User says hi.</mm:think>Hello!", "Hello!", "User says hi.", []),
    (M3, "</mm:think>Hello!", "Hello!", "", []),
    (M3, f"</mm:think>I look.{M3_CALL}", "I look.", "", [ROME]),
    (M3, f"<mm:think>Hm.</mm:think>{M3_CALL}", "", "Hm.", [ROME]),
    (M3, M3_MANY, "", "", [(MANY[0], {**MANY[1], "more": {"a": ["x", "null"]}})]),
]
READ_ONLY = [  # what grammars do not allow, but models write where there is no grammar
    (
        GPT_OSS,
        f"{ANALYSIS}{START}{ANALYSIS}{START}<|channel|>commentary<|message|>So.<|end|>{START}"
        "<|channel|>final <|constrain|>json<|message|>{}<|return|>",
        "So.\n\n{}<|return|>", "User says hi.\n\nUser says hi.", [],
    ),
    (GPT_OSS, f"{ANALYSIS}{START}<|channel|>fin", "", "User says hi.", []),
    (GPT_OSS, "<|channel|>analysis", "", "", []),
    (
        "lfm_2",
        """<|tool_call_start|>[get_all(city = 'it's "ok"', days=5,all=False, more={'a': [True, """
        """None]})]<|tool_call_end|>""",
        "", "",
        [("get_all", {"city": 'it\'s "ok"', "days": 5, "all": False, "more": {"a": [True, None]}})],
    ),
    (
        "lfm_2",
        "<|tool_call_start|>[get(Rome)]<|tool_call_end|>",
        "<|tool_call_start|>[get(Rome)]<|tool_call_end|>", "", [],
    ),
    (
        GEMMA,
        '<|tool_call>call:get{ city: <|"|>Rome<|"|> }<tool_call|>Then.',
        "Then.", "", [ROME],
    ),
    (GEMMA, "<|tool_call>call:get{Rome}", "<|tool_call>call:get{Rome}", "", []),
    (COMMAND, "no marker at all", "no marker at all", "", []),
    (COMMAND, ACTION.replace("\n    ", ""), "", "", [ROME, ("now", {})]),
    (COMMAND, f"{PLAN}<|START_RESPONSE|>Hello!<|END_RES", "Hello!<|END_RES", "User says hi.", []),
    (M3, M3_CALL.replace("</city>", "</town>"), "", "", [ROME]),
    (M3, M3_CALL.replace("Rome", f"{NS}<x>"), M3_CALL.replace("Rome", f"{NS}<x>"), "", []),
    (GPT_OSS, "no marker at all", "no marker at all", "", []),
    (
        GPT_OSS,
        f"<|channel|>final<|message|>Hello!{START}<|channel|>final<|message|>Bye!",
        "Hello!\n\nBye!", "", [],
    ),
    (
        GPT_OSS,
        "<|channel|>commentary to=functions.other <|constrain|>json<|message|>{}",
        "<|channel|>commentary to=functions.other <|constrain|>json<|message|>{}", "", [],
    ),
]  # fmt: skip


def source(name):
    return OWN.get(name) or (PUBLISHED / f"{name}.jinja").read_text("utf-8")


def prompt(name, options, messages=(), **variables):
    encoder = ConversationEncoder(FormTokenizer(source(name)), parse_special=True)
    asked = [{"role": "user", "content": "Well?"}, *messages]
    return encoder.render(asked, options=options)


def read(name, options, prompt, pieces):
    reader = AnswerFormat.of(source(name), SPECIAL).reader(options, prompt)
    parts = [part for piece in pieces for part in reader.feed(piece)] + reader.end()
    for kind, text in (("content", reader.content), ("reasoning", reader.reasoning)):
        assert "".join(part.text for part in parts if part.kind == kind) == text
    calls = [(call.name, json.loads(call.arguments)) for call in reader.calls]
    return reader.content, reader.reasoning, calls


def cuts(text):
    return [[text], list(text), *([text[:n], text[n:]] for n in range(1, len(text)))]


@pytest.mark.parametrize(("name", "answer", "content", "reasoning", "calls"), ANSWERS + READ_ONLY)
def test_answers_are_read_however_they_are_cut(name, answer, content, reasoning, calls):
    options = AnswerOptions(TOOLS)
    asked = prompt(name, options)
    for pieces in cuts(answer):
        assert read(name, options, asked, pieces) == (content, reasoning, calls)


@pytest.mark.parametrize(("name", "answer", "content", "reasoning", "calls"), ANSWERS)
def test_answers_are_allowed(name, answer, content, reasoning, calls):
    for choice in ("auto", "required") if calls and not content else ("auto",):
        options, tokenizer = AnswerOptions(TOOLS, choice), FormTokenizer(source(name))
        constraint = AnswerConstraints(
            Constraints(tokenizer), AnswerFormat.of(source(name), SPECIAL)
        ).of(SamplingParams(), options, prompt(name, options))
        matcher = constraint.matcher()
        for token in tokenizer.encode(answer):
            matcher.accept([token])
        assert matcher.allows(tokenizer.end)


@pytest.mark.parametrize(
    ("name", "answer", "content", "reasoning"), [each[:4] for each in ANSWERS if not each[4]]
)
def test_reasoning_is_separate_without_tools_too(name, answer, content, reasoning):
    options = AnswerOptions()
    asked = prompt(name, options)
    assert read(name, options, asked, answer) == (content, reasoning, [])


CALL = {
    "id": "abcdef000",
    "type": "function",
    "function": {"name": "get", "arguments": '{"city": "Rome"}'},
}
RESULT = {"role": "tool", "tool_call_id": "abcdef000", "name": "get", "content": "sunny"}


def test_a_form_holds_between_the_markers_of_content():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    for name, begin, end in (
        (GPT_OSS, f"{ANALYSIS}{START}<|channel|>final<|message|>", ""),
        (COMMAND, f"{PLAN}<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ):
        options, tokenizer = AnswerOptions(TOOLS), FormTokenizer(source(name))
        form = AnswerFormat.of(source(name), SPECIAL)
        asked = prompt(name, options)
        for params in (SamplingParams(schema=schema), SamplingParams(regex='.?"?a?.*')):
            constraint = AnswerConstraints(Constraints(tokenizer), form).of(params, options, asked)
            matcher = constraint.matcher()
            matcher.accept(tokenizer.encode(f'{begin}{{"a":1}}{end}'))
            assert matcher.allows(tokenizer.end)
        reader = form.reader(options, asked, has_form=True)
        reader.feed(f'{begin}{{"a":1}}{end}')
        reader.end()
        assert reader.content == '{"a":1}'


def called(**fields):
    return {"role": "assistant", "content": "", "tool_calls": [CALL], **fields}


def test_gpt_oss_gets_its_analysis_only_between_a_call_and_its_result():
    options = AnswerOptions(TOOLS)
    call = called(reasoning_content="Look at Rome.")
    asked = prompt(GPT_OSS, options, [call, RESULT])
    assert asked.count("<|channel|>analysis<|message|>Look at Rome.<|end|>") == 1
    assert 'to=functions.get<|channel|>commentary json<|message|>{"city": "Rome"}<|call|>' in asked
    answer = {"role": "assistant", "content": "Sunny.", "reasoning_content": "It is."}
    later = prompt(GPT_OSS, options, [call, RESULT, answer, {"role": "user", "content": "And?"}])
    assert "Look at Rome." not in later
    assert "It is." not in later
    both = called(content="I look.", reasoning_content="Look at Rome.")
    assert "Look at Rome.\n\nI look.<|end|>" in prompt(GPT_OSS, options, [both, RESULT])


def test_gemma_4_thinks_if_it_is_asked_to():
    for variables, answer, expected in (
        ({"enable_thinking": True}, f"{THOUGHT}Hello!", ("Hello!", "User says hi.\n", [])),
        ({}, "Hello!", ("Hello!", "", [])),
    ):
        options = AnswerOptions(template_kwargs=variables)
        asked = prompt(GEMMA, options)
        for pieces in cuts(answer):
            content, reasoning, calls = read(GEMMA, options, asked, pieces)
            assert (content, reasoning.strip(), calls) == (expected[0], expected[1].strip(), [])


@pytest.mark.parametrize(
    ("name", "call"),
    [
        (GEMMA, '<|tool_call>call:get{city:<|"|>Rome<|"|>}'),
        (V31, V31_CALL),
        (V32, dsml("function_calls")),
        (V4, dsml("tool_calls")),
        (M3, M3_CALL),
    ],
)
def test_the_prompt_of_the_next_turn_holds_the_call_as_it_was_written(name, call):
    options = AnswerOptions(TOOLS)
    later = prompt(name, options, [called(), RESULT])
    assert later.index(call) < later.index("sunny")


def test_smollm_3_is_told_its_tools_whatever_its_template_takes():
    options = AnswerOptions(TOOLS)
    asked = prompt(SMOLLM, options)
    assert asked.index("</tools>") < asked.index("Well?")
    assert asked.count('"name": "get_all"') == 1
    for key in ("xml_tools", "tools"):
        name = f"smollm_3 {key}"
        assert AnswerFormat.of(source(name), SPECIAL).tools
        asked = prompt(name, options)
        assert (asked.count("get_all"), asked.count("### Tools")) == (1, 1)


def test_deepseek_3_1_is_told_its_tools_and_thinks_if_it_is_asked_to():
    options = AnswerOptions(TOOLS, template_kwargs={"thinking": True})
    asked = prompt(V31, options)
    assert asked.index("### get_all\nDescription: Get all.") < asked.index("<｜User｜>")
    assert asked.endswith("<think>")
    assert read(V31, options, asked, f"Hm.</think>{V31_CALL}") == ("", "Hm.", [ROME])


def test_a_template_for_tools_renders_requests_with_tools_only():
    tokenizer = FormTokenizer("{% for m in messages %}{{ m.content }}{% endfor %}")
    tokenizer.tool_template = source(V4)
    encoder = ConversationEncoder(tokenizer, parse_special=True)
    asked = [{"role": "user", "content": "Well?"}]
    assert encoder.render(asked) == encoder.render(asked, options=AnswerOptions()) == "Well?"
    assert "get_all" in encoder.render(asked, options=AnswerOptions(TOOLS))
    assert AnswerFormat.of_tokenizer(tokenizer).tools == AnswerFormat.of(source(V4), SPECIAL).tools


SPOKEN = [
    (name, answer, content, reasoning, calls)
    for name, answer, content, reasoning, calls in ANSWERS
    if name in (GPT_OSS, GEMMA, COMMAND, V4, M3)
]


@pytest.mark.parametrize(("name", "answer", "content", "reasoning", "calls"), SPOKEN)
def test_a_model_that_speaks_in_control_tokens_is_read(name, answer, content, reasoning, calls):
    tokenizer = FormTokenizer(source(name))
    said = [*tokenizer.encode(answer), tokenizer.end]

    def probs(tokens):
        ends = (n for n in range(len(said), 0, -1) if list(tokens[-n:]) == said[:n])
        row = np.full(tokenizer.vocab_size, 1e-9)
        row[said[min(next(ends, 0), len(said) - 1)]] = 1
        return row / row.sum()

    target = edgespec.ToyModel(probs, vocab_size=tokenizer.vocab_size, n_ctx=8192)
    tools = [tool.to_dict() for tool in TOOLS]
    for given in [tools] if calls else [tools, None]:
        with edgespec.assemble(target, tokenizer) as engine:
            chat = engine.chat(tools=given) if given else engine.chat()
            whole = chat.send("Well?", max_tokens=2 * len(said), temperature=0)
        found = [(call.name, json.loads(call.arguments)) for call in whole.tool_calls]
        assert (whole.text, whole.reasoning, found) == (content, reasoning, calls)
        assert whole.finish_reason == "stop"
