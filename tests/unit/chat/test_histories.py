"""Histories as clients send them back, rendered with every published chat template."""

import json
import re

import pytest

from edgespec import TemplateError, Tool, ToyTokenizer
from edgespec.chat.encoder import ConversationEncoder
from edgespec.chat.format import AnswerFormat
from edgespec.chat.options import AnswerOptions
from tests.helpers.chat_templates import SPECIAL, listed, source_of
from tests.helpers.selection import every

_CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = (Tool("get_weather", "Tells the weather.", _CITY),)
SYSTEM = {"role": "system", "content": "Be kind."}
CUT = '{"city": "Ul'


class Tokenizer(ToyTokenizer):
    """A tokenizer of one token, with a template and texts for its special tokens."""

    def __init__(self, template):
        super().__init__(["a", "</s>"], [1], chat_template=template)

    def special(self):
        return SPECIAL


def user(text):
    return {"role": "user", "content": text}


def answer(text, thought="", *calls):
    said = {"role": "assistant", "content": text, "reasoning_content": thought}
    named = [(id_, {"name": "get_weather", "arguments": given}) for id_, given in calls]
    listed_calls = [{"id": id_, "type": "function", "function": each} for id_, each in named]
    return said | ({"tool_calls": listed_calls} if calls else {})


def result(id_, text):
    return {"role": "tool", "tool_call_id": id_, "content": text}


HISTORIES = {
    "tools": [
        SYSTEM,
        user("Weather?"),
        answer("", "I look.", ("call12345", '{"city": "Köln"}')),
        result("call12345", "Rain."),
        answer("It rains.", "So."),
        user("And Ulm?"),
        answer("", "Again.", ("call12346", '{"city": "Ulm"}')),
        result("call12346", "Sun."),
        answer("Sun there.", "So."),
        user("Thanks."),
    ],
    "a loop": [
        user("Weather in two cities?"),
        answer("", "I look.", ("call12345", '{"city": "Köln"}')),
        result("call12345", "Rain."),
        answer("", "Again.", ("call12346", '{"city": "Ulm"}')),
        result("call12346", "Sun."),
        answer("Rain and sun.", "So."),
    ],
    "reasoning": [
        user("One?"),
        answer("Yes.", "Let me\nsee."),
        user("Two?"),
        answer("No.", "It is not."),
        user("Three?"),
    ],
    "empty and cut": [
        SYSTEM,
        user("One?"),
        answer("", "Hm."),
        user(""),
        answer("Cut her", "Hm."),
        user("Weather?"),
        answer(None, "Hm.", ("call_abc-0123456789", CUT)),
        result("call_abc-0123456789", ""),
        {"role": "system", "content": "Be brief."},
        user("Go on."),
        answer("Here.", "Hm.", ("toolu_0", "{}"), ("toolu_1", '{"city": "Rom"}')),
        result("toolu_0", "x"),
        result("toolu_1", []),
        {"role": "developer", "content": "Be late."},
        answer("Ok.", "Hm."),
        user("And?"),
    ],
}

BROKEN = {
    "MiroThinker": "assigns to an attribute of a message, which Jinja refuses",
    "fireworks-ai-llama-3-firefunction-v2": "needs the variables `functions` and `datetime`",
}
"""Templates that no history can be rendered with, and why."""
CALLS = "adds an id to each call"
LAST = "writes the tools, or the system prompt, before the last message of the user"
OTHERWISE = "writes earlier calls otherwise than the model: other quotes, header or blanks"
OPENED = "opens or ends reasoning in the prompt, and writes earlier answers without that"
PROMPT = "ends the prompt with a text that it does not write before every earlier answer"
TEXT = "leaves out the text of an answer next to its calls"
THOUGHTS = "leaves out the reasoning of earlier turns"
TURN = "ends the turn of a tool otherwise when an answer follows"
REWRITES = {
    CALLS: {
        "unsloth-Apriel-1.5": "TLE",
    },
    LAST: {
        "Mistral-Small-3.2-24B-Instruct-2506": "TRE",
        "mistralai-Mistral-Nemo-Instruct-2407": "TRE",
    },
    OTHERWISE: {  # LFM2.5 and gpt-oss leave out the reasoning of earlier turns as well
        "deepseek-ai-DeepSeek-V4": "E",
        "deepseek-ai-DeepSeek-V4-Flash-0731": "E",
        "LFM2.5-8B-A1B": "TLRE",
        "openai-gpt-oss-120b": "TLRE",
    },
    OPENED: {
        "Apriel-1.6-15b-Thinker-fixed": "TLRE",
        "Cohere2MoE": "TLRE",
        "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "TLRE",
        "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "TLRE",
        "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "TLRE",
        "deepseek-ai-DeepSeek-V3.2": "TLRE",
        "google-gemma-4-31B-it": "TLRE",
        "google-gemma-4-31B-it-interleaved": "TLRE",
        "llama-cpp-deepseek-r1": "TLRE",
        "NVIDIA-Nemotron-Nano-v2": "TLRE",
        "Qwen-QwQ-32B": "TLRE",
    },
    PROMPT: {
        "CohereForAI-c4ai-command-r-plus-tool_use": "TLRE",
        "meetkai-functionary-medium-v3.2": "E",
    },
    TEXT: {
        "meta-llama-Llama-3.1-8B-Instruct": "E",
        "meta-llama-Llama-3.2-3B-Instruct": "E",
        "meta-llama-Llama-3.3-70B-Instruct": "E",
        "MiniMax-M1": "E",
    },
    THOUGHTS: {
        "GLM-4.6": "TRE",
        "GLM-4.7-Flash": "TRE",
        "GLM-5.2": "TRE",
        "MiniMax-M2": "TRE",
        "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "TRE",
        "openbmb-MiniCPM5-1B": "TRE",
        "Qwen-Qwen3-0.6B": "TRE",
        "Qwen3.5-4B": "TRE",
        "StepFun3.5-Flash": "TRE",
    },
    TURN: {
        "Apertus-8B-Instruct": "TL",
        "Bielik-11B-v3.0-Instruct": "T",
        "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "TLE",
        "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "TLE",
    },
}
"""Templates whose prompts do not begin with the prompt and the answer before, and why.

The letters are those of the histories: tools, a loop, reasoning, empty and cut.
docs/reference/chat-templates.md has the same list.
"""
LETTERS = {"tools": "T", "a loop": "L", "reasoning": "R", "empty and cut": "E"}


def options_of(form):
    return AnswerOptions(tools=TOOLS) if form.tools else None


def told(message, form, prompt):
    """Return a message of the assistant as the model can have said it after this prompt."""
    if message["role"] != "assistant" or form.beginning(prompt) != "none":
        return message
    return message | {"reasoning_content": ""}


def written(message, form, prompt):
    """Return a pattern for an answer in the model's own form, with any blanks between its parts.

    It is empty if the form of the model's answers is not known.
    """
    if not form.tools and not (form.reasoning and form.reasoning.key):
        return ""
    parts = []
    if form.reasoning and form.reasoning.key and (thought := message["reasoning_content"]):
        is_open = form.beginning(prompt) == "open"
        parts += ["" if is_open else form.reasoning.begin, thought, form.reasoning.end]
    parts.append(message["content"] or "")
    if form.tools and (calls := message.get("tool_calls")):
        cut = calls[0]["function"]["arguments"] == CUT
        whole = [json.loads(CUT + '"}' if cut else c["function"]["arguments"]) for c in calls]
        given = [
            call | {"function": call["function"] | {"arguments": arguments}}
            for call, arguments in zip(calls, whole, strict=True)
        ]
        text = form.tools.write(given if form.tools.is_parallel else given[:1])
        parts.append(text[: text.index("Ul") + 2] if cut else text)
    return r"\s*".join(re.escape(part.strip()) for part in parts)


def grows(encoder, form, history):
    """Return True if each prompt begins with the one before and the answer to it."""
    messages, before = [], ""
    for message in [*history, None]:
        if message is None or message["role"] == "assistant":
            prompt = encoder.render(messages, options=options_of(form))
            if not re.match(before, prompt):
                return False
        if message and message["role"] == "assistant":
            message = told(message, form, prompt)
            before = re.escape(prompt.rstrip()) + r"\s*" + written(message, form, prompt)
        messages.append(message)
    return True


@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("name", every(4, listed(), "more published templates"))
def test_prompts_only_grow_unless_the_template_rewrites(name, history):
    source = source_of(name)
    encoder, form = ConversationEncoder(Tokenizer(source)), AnswerFormat.of(source, SPECIAL)
    if name in BROKEN:
        with pytest.raises(TemplateError):
            grows(encoder, form, HISTORIES[history])
    else:
        known = {name: letters for each in REWRITES.values() for name, letters in each.items()}
        rewrites = LETTERS[history] in known.get(name, "")
        assert grows(encoder, form, HISTORIES[history]) is not rewrites


# --- one kind of message at a time --------------------------------------------------------------


GEMMA_2 = """\
{% for message in messages %}
{% if message.role == "system" %}{{ raise_exception("System role not supported") }}{% endif %}
{% if (message.role == "user") != (loop.index0 % 2 == 0) %}
{{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
{% endif %}
{{ "<start_of_turn>" + message.role + "\\n" + message.content | trim + "<end_of_turn>\\n" }}
{%- endfor %}
"""
"""A template by the rules of Gemma 2's, which does not know the system and tools."""


def rendered(name, *messages, tools=TOOLS):
    encoder = ConversationEncoder(Tokenizer(GEMMA_2 if name == "Gemma 2" else source_of(name)))
    return encoder.render(messages, options=AnswerOptions(tools=tools) if tools else None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ('{"city": "Rom", "days": [1, 2', '{"city": "Rom", "days": [1, 2]}'),
        ('{"city": "Ro\\u00', '{"city": "Ro"}'),
        ('{"city": "Rom", "da', '{"city": "Rom"}'),
        ('{"city"', "{}"),
        ("", "{}"),
        ("null", "{}"),
        ("[1]", '{"arguments": [1]}'),
        ('"Rom"', '{"arguments": "Rom"}'),
        ("Rom!", '{"arguments": "Rom!"}'),
    ],
)
def test_arguments_that_are_no_object_become_one(arguments, said):
    asked = [user("?"), answer("", "", ("a", arguments)), result("a", "20")]
    assert f'"arguments": {said}}}\n</tool_call>' in rendered("Qwen-Qwen2.5-7B-Instruct", *asked)


@pytest.mark.parametrize(
    "name",
    ["Qwen3-Coder", "Qwen3.5-4B", "GLM-4.6", "GLM-4.7-Flash", "MiniMax-M2", "ByteDance-Seed-OSS"],
)
def test_a_call_that_was_cut_can_be_sent_back(name):
    asked = [user("?"), answer("", "", ("a", CUT)), result("a", "20")]
    assert "Ul" in rendered(name, *asked)


@pytest.mark.parametrize(
    "name",
    [
        "Qwen-Qwen2.5-7B-Instruct",
        "Qwen-Qwen3-0.6B",
        "Reka-Edge",
        "meetkai-functionary-medium-v3.2",
        "mistralai-Ministral-3-14B-Reasoning-2512",
        "openai-gpt-oss-120b",
    ],
)
def test_arguments_stay_as_they_were_written(name):
    """They take JSON text, write it as it is, or give objects to `tojson`."""
    given = '{"city":"caf\\u00e9", "n": [1e5, 1.10],  "é": "\\/"}'
    asked = [user("?"), answer("", "", ("a", given)), result("a", "20")]
    assert given in rendered(name, *asked, tools=())
    cut = '{"city":"caf\\u00e9", "n": [1e5'
    asked[1] = answer("", "", ("a", cut))
    assert cut + "]}" in rendered(name, *asked, tools=())


@pytest.mark.parametrize("nothing", ["", None, []])
@pytest.mark.parametrize("role", ["user", "assistant"])
def test_an_empty_message_keeps_its_place(role, nothing):
    talk = [user("One?"), answer("Two."), user("Three?"), answer("Four."), user("Five?")]
    talk[2 if role == "user" else 1]["content"] = nothing
    text = rendered("mistralai-Ministral-3-14B-Reasoning-2512", *talk, tools=())
    said = "Two.</s>[INST][/INST]Four." if role == "user" else "[/INST]</s>[INST]Three?"
    assert said in text


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "Qwen-Qwen2.5-7B-Instruct",
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nTwo?",
        ),
        ("Qwen3.5-4B", "<|im_start|>user\nBe brief.\n\nTwo?<|im_end|>"),
        ("MiniMax-M2", "]~b]user\nBe brief.\n\nTwo?[e~["),
    ],
)
def test_a_system_message_later_changes_nothing_before_it(name, said):
    """It stays where it is, or goes into the message that follows."""
    talk = [SYSTEM, user("One?"), answer("Yes.")]
    later = {"role": "system", "content": "Be brief."}
    assert said in rendered(name, *talk, later, user("Two?"), tools=())
    alone = rendered(name, *talk, later, tools=())
    first = rendered(name, *talk[:2], tools=())
    assert alone.startswith(first[: first.index("One?") + 4])
    assert alone.index("Be brief.") > alone.index("Yes.")


def test_a_system_message_without_a_message_of_the_user_after_it_becomes_one():
    """It must not move into a later message of the user: the prompt would change before that."""
    talk = [user("One?"), {"role": "system", "content": "Be brief."}]
    first = rendered("Qwen3.5-4B", *talk, tools=())
    then = rendered("Qwen3.5-4B", *talk, answer("Yes."), user("Two?"), tools=())
    assert first.count("<|im_start|>user") == 2
    assert then.startswith(first[: first.index("Be brief.") + 20])


def test_a_template_without_a_system_role_reads_its_text_in_the_first_message():
    text = rendered("Gemma 2", SYSTEM, user("One?"), tools=())
    assert "<start_of_turn>user\nBe kind.\n\nOne?<end_of_turn>" in text


def test_two_messages_of_the_user_are_joined_only_where_roles_must_alternate():
    talk = [user("One?"), user("Two?")]
    joined = rendered("mistralai-Mistral-Nemo-Instruct-2407", *talk, tools=())
    assert "[INST]One?\n\nTwo?[/INST]" in joined
    assert rendered("Qwen3-Coder", *talk, tools=()).count("<|im_start|>user") == 2


def test_a_user_may_speak_after_a_result_and_the_assistant_first():
    talk = [answer("Hi."), *HISTORIES["a loop"][:3], user("Stop.")]
    text = rendered("mistralai-Mistral-Nemo-Instruct-2407", *talk)
    assert "Rain.\\n\\nStop." in text or "Rain.\n\nStop." in text
    assert "[INST][/INST]Hi.</s>" in text


@pytest.mark.parametrize(
    "name", ["mistralai-Mistral-Nemo-Instruct-2407", "Mistral-Small-3.2-24B-Instruct-2506"]
)
def test_ids_that_a_template_refuses_are_mapped(name):
    ids = ["toolu_01A09q90qw90lq917835lq9", "call_1", "abcdefghi"]
    calls = [(each, "{}") for each in ids]
    text = rendered(name, user("?"), answer("", "", *calls), *(result(i, i[:3]) for i in ids))
    written = re.findall(r'(?:\[CALL_ID\]|"id": "|"call_id": "|\[TOOL_RESULTS\])(\w{9})\b', text)
    assert len(written) == 6, text
    assert written[:3] == written[3:]
    assert len(set(written)) == 3
    assert written[2] == "abcdefghi"


@pytest.mark.parametrize(
    "name", ["meta-llama-Llama-3.2-3B-Instruct", "openai-gpt-oss-120b", "GigaChat3-10B-A1.8B"]
)
def test_calls_of_one_message_are_all_written(name):
    """Llama refuses a second call, and the others leave it out."""
    calls = [("call_1", '{"city": "Rom"}'), ("call_2", '{"city": "Ulm"}')]
    asked = [user("?"), answer("", "", *calls), result("call_1", "Rain."), result("call_2", "Sun.")]
    text = rendered(name, *asked, tools=())
    places = [text.index(each) for each in ("Rom", "Rain.", "Ulm", "Sun.")]
    assert places == sorted(places)


def test_calls_and_results_are_text_for_a_template_that_refuses_them():
    text = rendered("Gemma 2", *HISTORIES["a loop"][:3], tools=())
    assert '{"name": "get_weather", "arguments": {"city": "Köln"}}<end_of_turn>' in text
    assert "<start_of_turn>user\nRain.<end_of_turn>" in text


def test_a_result_without_a_call_is_text():
    assert "<|start|>user<|message|>20<|end|>" in rendered(
        "openai-gpt-oss-120b", user("?"), answer("No."), result("a", "20"), tools=()
    )


def test_a_result_of_a_call_that_is_given_as_text_is_a_result():
    """Python's `Chat` gives answers as their texts first, and then what the template takes."""
    said = {"role": "assistant", "content": "get_weather()", "called": {"a": "get_weather"}}
    with pytest.raises(TemplateError, match="no previous assistant message with a tool call"):
        rendered("openai-gpt-oss-120b", user("?"), said, result("a", "20"), tools=())


def test_a_result_follows_its_call():
    talk = [user("?"), answer("", "", ("a", "{}")), user("Quick!"), result("a", "20")]
    text = rendered("Qwen3-Coder", *talk)
    assert text.index("20\n</tool_response>") < text.index("Quick!")


def test_a_result_has_the_name_of_its_tool():
    template = (
        "{% for m in messages if m.role == 'tool' %}{{ m.name }}: {{ m.content }}{% endfor %}"
    )
    encoder = ConversationEncoder(Tokenizer(template))
    assert encoder.render(HISTORIES["a loop"][:3]) == "get_weather: Rain."


def test_an_error_names_the_message():
    """Its number is that of the message as it was sent, not of those that the template got."""
    talk = [SYSTEM, user("One?"), answer(""), user("Two?"), {"role": "critic", "content": "Hm."}]
    with pytest.raises(TemplateError) as caught:
        rendered("Qwen3.5-4B", *talk, answer("Three"), user("Four?"), tools=())
    assert caught.value.index == 4
    assert "messages[4], of the role 'critic': Unexpected message role" in str(caught.value)
    assert "leave it out" in str(caught.value)


def test_an_error_about_no_message_names_none():
    encoder = ConversationEncoder(Tokenizer("{{ functions.x }}{{ messages[0].content }}"))
    with pytest.raises(TemplateError, match="leave them out one by one") as caught:
        encoder.render([user("?")])
    assert caught.value.index is None


# --- an answer in the form that each template teaches ------------------------------------------


ENDED = {"meetkai-functionary-medium-v3.1"}  # its calls are separate, and a token ends the answer


@pytest.mark.parametrize("cut", [None, 1, 3])
@pytest.mark.parametrize("name", every(4, listed(), "more published templates"))
def test_an_answer_in_the_models_own_form_is_read_back(name, cut):
    """The model thinks and calls a tool twice, in pieces of `cut` characters."""
    source = source_of(name)
    form = AnswerFormat.of(source, SPECIAL)
    if name in BROKEN or not form.tools:
        pytest.skip(f"{name}: {form.why_no_tools or BROKEN.get(name, '')}")
    options = AnswerOptions(tools=TOOLS)
    prompt = ConversationEncoder(Tokenizer(source)).render([user("Weather?")], options=options)
    calls = [{"city": "Köln"}, {"city": 'Ulm "am" Fluss'}][: 1 + form.tools.is_parallel]
    given = [
        {"id": f"call1234{i}", "function": {"name": "get_weather", "arguments": each}}
        for i, each in enumerate(calls)
    ]
    thought = "I look." if form.reasoning and form.beginning(prompt) != "none" else ""
    begin = form.reasoning.begin if thought and form.beginning(prompt) != "open" else ""
    between = form.content.between if form.content and thought else ""
    end = form.reasoning.end + between if thought else ""
    text = f"{begin}{thought}{end}{form.tools.write(given)}"
    reader = form.reader(options, prompt)
    pieces = [text] if cut is None else [text[i : i + cut] for i in range(0, len(text), cut)]
    parts = [part for piece in pieces for part in reader.feed(piece)] + reader.end()
    assert [json.loads(call.arguments) for call in reader.calls] == calls
    assert reader.reasoning == thought
    assert reader.content == (form.tools.end if name in ENDED else "")
    said = [part.text for part in parts if part.kind == "call"]
    assert "".join(said) == "".join(call.arguments for call in reader.calls)


@pytest.mark.parametrize("name", every(4, listed(), "more published templates"))
def test_a_tool_without_parameters_is_told(name):
    source = source_of(name)
    if name in BROKEN or not AnswerFormat.of(source, SPECIAL).tools:
        pytest.skip(f"{name} takes no tools")
    options = AnswerOptions(tools=(Tool("now", "Tells the time.", {}),))
    asked = ConversationEncoder(Tokenizer(source)).render([user("When?")], options=options)
    assert "now" in asked
