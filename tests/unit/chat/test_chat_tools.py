"""Conversations with tools and reasoning, on a scripted toy model: bytes as tokens."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import enum
import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest

import edgespec
from edgespec import ConfigError, ContextFull, ToolCall, ToyModel, ToyTokenizer
from edgespec.chat import chat as chat_module

pytest.importorskip("llguidance")

TEMPLATE = (
    "{% if tools %}<system>Tools:{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}</>"
    "{% endif %}"
    "{% for m in messages %}"
    "<{{ m.role }}>"
    "{% if m.role == 'assistant' and m.reasoning_content %}"
    "{{ '<think>' + m.reasoning_content + '</think>' }}{% endif %}"
    "{{ m.content }}"
    "{% for call in m.tool_calls or [] %}"
    "\n<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}"
    "</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
PLAIN = TEMPLATE.replace("reasoning_content", "nothing").replace("<think>", "").replace(
    "</think>", ""
)  # fmt: skip
VOCAB = [bytes([i]) for i in range(256)] + ["</>", "<user>", "<assistant>", "<system>", "<tool>"]
EOS, ASSISTANT = 256, 258


def call(name: str, **arguments) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class ControlTokenizer(ToyTokenizer):
    """A tokenizer with control tokens: they add no text, and texts of users do not hold them."""

    def __init__(self, control: tuple[str, ...], template: str) -> None:
        super().__init__([*VOCAB, *control], eog=[EOS], chat_template=template)
        self._control = [*VOCAB[EOS:], *control] if control else []

    def encode(self, text, *, add_special=True, parse_special=True):
        return super().encode(text) if parse_special else list(text.encode())

    def has_control(self, text):
        return any(control in text for control in self._control)

    def control_texts(self):
        return self._control

    def piece(self, token):
        return b"" if token >= len(VOCAB) else super().piece(token)


def tool_engine(*answers: str, n_ctx: int = 4000, template: str = TEMPLATE, control=()):
    """Return an engine that gives one answer after the other, token by token."""
    tokenizer = ControlTokenizer(tuple(control), template)
    scripts = [tokenizer.encode(answer) for answer in answers]

    def probs(tokens):
        at = max((i for i, token in enumerate(tokens) if token == ASSISTANT), default=-1)
        n = sum(token == ASSISTANT for token in tokens) - 1
        script = scripts[min(max(n, 0), len(scripts) - 1)]
        said = len(tokens) - at - 1
        p = np.full(tokenizer.vocab_size, 1e-9)
        p[script[said] if said < len(script) else EOS] = 1
        return p / p.sum()

    model = ToyModel(probs, vocab_size=tokenizer.vocab_size, n_ctx=n_ctx)
    return edgespec.assemble(model, tokenizer)


@contextlib.contextmanager
def tool_chat(*answers: str, tools=(), **options):
    """Yield a chat with an engine that gives one answer after the other."""
    with tool_engine(*answers, **options) as engine:
        yield engine.chat(tools=tools)


def look(direction: Literal["left", "right"]) -> dict:
    """Say what is seen."""
    return {"seen": "a cat", "direction": direction}


def drive(centimetres: int, fast: bool = False) -> str:
    """Drive forward."""
    return f"drove {centimetres}, {fast}"


def test_a_function_is_called_and_the_model_goes_on():
    with tool_engine("I look. " + call("look", direction="left"), "A cat!") as engine:
        chat = engine.chat(tools=[look, drive])
        answer = chat.send("What is there?")
        assert (answer.text.strip(), answer.finish_reason) == ("I look.", "stop")
        (made,) = answer.tool_calls
        assert (made.name, json.loads(made.arguments)) == ("look", {"direction": "left"})
        result = chat.run_tool(made)
        assert json.loads(result) == {"seen": "a cat", "direction": "left"}
        done = chat.send_results([result])
        assert (done.text, done.tool_calls) == ("A cat!", ())
        roles = [m["role"] for m in chat.messages]
        assert roles == ["user", "assistant", "tool", "assistant"]
        assert chat.messages[2] == {
            "role": "tool", "tool_call_id": made.id, "name": "look", "content": result,
        }  # fmt: skip


def test_the_calls_stay_in_the_cache_as_they_were_generated():
    script = "I look.\n" + call("look", direction="left")
    with tool_engine(script, call("drive", centimetres=5), "ok", template=PLAIN) as engine:
        chat = engine.chat(tools=[look, drive])
        first = chat.send("go")
        second = chat.send_results([{"x": 1}])
        prompt = first.stats.num_prompt_tokens + len(script)
        assert second.stats.num_cached_tokens >= prompt
        third = chat.send_results(["done"])
        assert third.text == "ok"
        assert third.stats.num_cached_tokens >= second.stats.num_prompt_tokens


def test_a_template_that_wants_the_call_before_the_result_gets_it():
    strict = PLAIN.replace(
        "<{{ m.role }}>",
        "{% if m.role == 'tool' and not messages[loop.index0 - 1].tool_calls %}"
        "{{ raise_exception('a result without a call') }}{% endif %}<{{ m.role }}>",
    )
    with tool_engine("Yes " + call("drive", centimetres=5), "ok", template=strict) as engine:
        chat = engine.chat(tools=[drive])
        chat.send("go")
        assert chat.send_results(["done"]).text == "ok"


def test_events_tell_reasoning_calls_and_content_apart():
    script = "<think>left or right?</think>Let me see. " + call("look", direction="left")
    with tool_engine(script) as engine:
        events = list(engine.chat(tools=[look]).stream("go"))
    kinds = {"reasoning": "", "content": "", "call": ""}
    for event in events:
        assert event.text == "".join(p.text for p in event.parts if p.kind == "content")
        for part in event.parts:
            kinds[part.kind] += part.text
    done = events[-1].completion
    assert kinds["reasoning"] == done.reasoning == "left or right?"
    assert kinds["content"] == done.text
    assert done.text.strip() == "Let me see."
    assert kinds["call"] == done.tool_calls[0].arguments


def test_reasoning_is_apart_without_tools_and_under_a_schema():
    with tool_engine("<think>hm</think>Hello.") as engine:
        chat = engine.chat()
        answer = chat.send("hi")
        assert (answer.reasoning, answer.text) == ("hm", "Hello.")
        assert chat.messages[-1] == {
            "role": "assistant", "content": "Hello.", "reasoning_content": "hm",
        }  # fmt: skip
        other = engine.chat()
        other.load_dict(json.loads(json.dumps(chat.to_dict())))
        assert other.messages == chat.messages
    with tool_engine('<think>{"a": 0}</think>{"a":1}') as engine:
        schema = {
            "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
            "additionalProperties": False,
        }  # fmt: skip
        answer = engine.chat().send("hi", schema=schema)
        assert (answer.reasoning, answer.parsed) == ('{"a": 0}', {"a": 1})


def test_reasoning_between_control_tokens():
    control = ("<think>", "</think>")
    with tool_chat("<think>hm</think>Hello.", "<b>Bye.", control=control) as chat:
        answer = chat.send("a text with </think> in it")
        assert (answer.reasoning, answer.text) == ("hm", "Hello.")
        assert chat.send("b").text == "<b>Bye."


def test_calls_between_control_tokens():
    control = ("<tool_call>", "</tool_call>")
    script = call("look", direction="left"), "A cat."
    with tool_chat(*script, template=PLAIN, control=control, tools=[look]) as chat:
        (made,) = chat.send("look").tool_calls
        assert json.loads(made.arguments) == {"direction": "left"}
        assert chat.send_results(["<tool_call> is text here"]).text == "A cat."


def test_a_budget_ends_reasoning():
    with tool_engine("<think>" + "on and on " * 20 + "</think>Done.") as engine:
        answer = engine.chat(reasoning_budget=12).send("hi", max_tokens=200)
        assert len(answer.reasoning) <= 12
        assert "on and on on and on" not in answer.reasoning
        assert engine.chat().send("hi", reasoning_budget=0, max_tokens=60).reasoning == ""


def test_several_calls_and_results_by_id_or_in_order():
    script = call("look", direction="left") + "\n" + call("look", direction="right")
    with tool_chat(script, "Both.", tools=[look]) as chat:
        one, two = chat.send("look around").tool_calls
        assert one.id != two.id
        for wrong in ([1], {one.id: 1}, {one.id: 1, "x": 2}, "text", 3):
            with pytest.raises(ConfigError, match=r"the last answer made"):
                chat.send_results(wrong)
        assert chat.send_results({two.id: "R", one.id: "L"}).text == "Both."
        assert [m["content"] for m in chat.messages if m["role"] == "tool"] == ["L", "R"]
        with pytest.raises(ConfigError, match="made no calls"):
            chat.send_results([])


def test_one_call_where_only_one_is_allowed_and_none_where_none_is():
    script = call("look", direction="left") + "\n" + call("look", direction="right")
    with tool_engine(script) as engine:
        chat = engine.chat(tools=[look])
        assert len(chat.send("look", parallel_tool_calls=False).tool_calls) == 1
        assert engine.chat(tools=[look]).send("look", tool_choice="none").tool_calls == ()


def test_a_call_is_asked_for():
    with tool_chat("I will not.", template=PLAIN, tools=[look, drive]) as chat:
        (made,) = chat.send("x", tool_choice="look", max_tokens=300).tool_calls[:1]
        assert made.name == "look"
        assert json.loads(made.arguments)["direction"] in ("left", "right")
        chat.tools = [look]
        assert chat.send("x", tool_choice="required", max_tokens=300).tool_calls


@pytest.mark.parametrize("template", [TEMPLATE, PLAIN])
def test_a_call_that_is_asked_for_is_not_put_off_by_blanks_without_end(template):
    with tool_engine("ok", template=template) as engine:
        options = edgespec.AnswerOptions((edgespec.Tool("look"),), tool_choice="required")
        constraint = engine.constraint(edgespec.SamplingParams(), options, "<assistant>")
        blank = ord(" ")
        allowed = [constraint.matcher().allows(blank, [blank] * n) for n in range(6)]
        assert not all(allowed)  # after what is not allowed everything is


def test_calls_without_results_stand_as_no_result():
    with tool_chat(call("drive", centimetres=5), "Fine.", tools=[drive]) as chat:
        assert chat.send("go").tool_calls
        assert chat.send("never mind").text == "Fine."
        assert [m["role"] for m in chat.messages] == [
            "user", "assistant", "tool", "user", "assistant",
        ]  # fmt: skip
        assert chat.messages[2]["content"] == "no result"


def test_results_may_wait_for_the_next_message():
    with tool_chat(call("drive", centimetres=5), "Fine.", tools=[drive]) as chat:
        made = chat.send("go").tool_calls
        chat.add_results([chat.run_tool(each) for each in made])
        assert chat.send("and?").text == "Fine."
        roles = [m["role"] for m in chat.messages]
        assert roles == ["user", "assistant", "tool", "user", "assistant"]
        assert chat.messages[2]["content"] != "no result"
        with pytest.raises(ConfigError, match="made no calls"):
            chat.add_results([])


@pytest.mark.parametrize("settings", [{}, {"reasoning_budget": 5}])
def test_ends_cannot_be_ignored_where_an_answer_is_complete_somewhere(settings):
    with (
        tool_chat("Fine.", tools=[] if settings else [drive]) as chat,
        pytest.raises(ConfigError, match="leave ignore_eos out"),
    ):
        chat.send("go", ignore_eos=True, **settings)


def test_an_answer_cut_inside_a_call_makes_none_and_the_chat_goes_on():
    with tool_chat(call("drive", centimetres=5), "Fine.", tools=[drive]) as chat:
        cut = chat.send("go", max_tokens=25)
        assert (cut.finish_reason, cut.tool_calls) == ("length", ())
        assert "tool_calls" not in chat.messages[-1]
        assert chat.send("and?").text == "Fine."


def test_a_stream_closed_inside_reasoning_stays_as_reasoning():
    with tool_chat("<think>a long thought</think>Hello.", "Fine.") as chat:
        events = chat.stream("hi")
        thought = ""
        for event in events:
            thought += "".join(p.text for p in event.parts if p.kind == "reasoning")
            if len(thought) >= 6:
                break
        events.close()
        assert chat.messages[-1]["content"] == ""
        assert chat.messages[-1]["reasoning_content"].startswith("a long")
        assert chat.send("and?").text == "Fine."


def test_turns_leave_with_their_calls_and_results():
    answers = (call("drive", centimetres=5), "ok") * 10
    with tool_engine(*answers, n_ctx=900) as engine:
        chat = engine.chat(tools=[drive])
        for i in range(8):
            if chat.send(f"question {i} {'x' * 40}", max_tokens=120).tool_calls:
                chat.send_results(["done"], max_tokens=120)
            assert chat.messages[chat.n_dropped]["role"] == "user"
        assert chat.n_dropped > 2
        assert sum(message["role"] == "tool" for message in chat.messages) > 2
        with pytest.raises(ContextFull, match="this message has"):
            engine.chat(tools=[drive]).send("x" * 900)


def test_a_result_that_does_not_fit_leaves_the_calls_open():
    with tool_chat(call("drive", centimetres=5), "ok", n_ctx=1000, tools=[drive]) as chat:
        chat.send("go")
        before = chat.to_dict()
        with pytest.raises(ContextFull):
            chat.send_results(["x" * 1000])
        assert chat.to_dict() == before
        assert chat.send_results(["short"]).text == "ok"


def test_chats_with_calls_are_saved_and_loaded():
    with tool_engine(call("drive", centimetres=5), "ok", "again") as engine:
        chat, other = engine.chat(tools=[drive]), engine.chat(tools=[drive])
        chat.send("go")
        saved = json.loads(json.dumps(chat.to_dict()))
        other.load_dict(saved)
        assert other.to_dict() == saved
        assert other.send_results(["done"]).text == "ok"
        other.load_dict(json.loads(json.dumps(other.to_dict())))
        assert other.send("and?").text == "again"


USER, MADE = {"role": "user", "content": "a"}, {
    "role": "assistant", "content": "",
    "tool_calls": [{"id": "c", "function": {"name": "drive", "arguments": "{}"}}],
}  # fmt: skip
RESULT = {"role": "tool", "tool_call_id": "c", "content": "r"}
TWO = MADE | {"tool_calls": [*MADE["tool_calls"], MADE["tool_calls"][0] | {"id": "d"}]}
SAID = {"role": "assistant", "content": "b"}


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([USER, MADE, USER, SAID], 'message 2 .*: "tool"'),
        ([USER, SAID, RESULT, SAID], 'message 2 .*: "user"'),
        ([USER, MADE, RESULT, RESULT, SAID], "message 3"),
        ([USER, MADE, RESULT | {"tool_call_id": "d"}, SAID], "message 2 .* no call"),
        ([USER, SAID, USER], "must end with an answer"),
        ([USER, TWO, RESULT], "must end with an answer"),
        ([USER, MADE, RESULT | {"content": 3}, SAID], "message 2"),
        ([USER, MADE | {"tool_calls": 3}], "message 1 .* calls"),
        ([USER, MADE | {"tool_calls": [{"id": "c"}]}], "message 1 .* calls"),
        ([USER, SAID | {"reasoning_content": 3}], "message 1"),
    ],
)
def test_saved_calls_that_cannot_be_change_nothing(messages, says):
    with tool_chat("ok", tools=[drive]) as chat:
        chat.send("go")
        before = chat.to_dict()
        with pytest.raises(ConfigError, match=says):
            chat.load_dict({"system": None, "messages": messages})
        assert chat.to_dict() == before


def test_a_chat_that_ends_with_results_is_read_with_the_next_message():
    with tool_chat("ok", "and then", tools=[drive]) as chat:
        chat.load_dict({"system": None, "messages": [USER, MADE, RESULT]})
        assert chat.send("go on").text == "and then"


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Lamp:
    colour: Colour
    at: tuple[int, int]


def light(lamps: list[Lamp], seconds: float = 1.5, note: list[str] = ["kept"]) -> str:  # noqa: B006
    """Switch lamps on."""
    return f"{lamps[0].colour.name} {lamps[0].at} {seconds} {note}"


def breaks() -> None:
    raise ValueError("no battery")


class Strange:
    def __repr__(self) -> str:
        raise RuntimeError("no text either")


def strange() -> object:
    return Strange()


def test_run_tool_gives_types_and_makes_everything_text():
    with tool_engine("ok", n_ctx=1200) as engine:
        chat = engine.chat(tools=[light, drive, breaks, strange, {"name": "elsewhere"}])

        def ran(name, arguments, allow=None):
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            return chat.run_tool(ToolCall("1", name, text), allow)

        lamps = [{"colour": "red", "at": [1, 2]}]
        assert ran("light", {"lamps": lamps, "seconds": 2}) == "RED (1, 2) 2.0 ['kept']"
        assert ran("drive", {"centimetres": 3}) == "drove 3, False"
        for wrong in ({"centimetres": "3"}, {}, {"centimetres": 3, "to": 1}, [3], "{", "[" * 9999):
            assert ran("drive", wrong).startswith("the arguments of drive do not fit: ")
        assert ran("elsewhere", {}).startswith("there is no function 'elsewhere'; there are: light")
        assert ran("os.system", {"command": "x"}).startswith("there is no function 'os.system'")
        assert ran("breaks", {}) == "breaks failed: ValueError: no battery"
        assert ran("strange", {}) == "strange failed: RuntimeError: no text either"
        asked = []
        refused = ran("drive", {"centimetres": 3}, lambda call: asked.append(call.name))
        assert refused == "drive was not run: it was not allowed"
        ran("drive", {"centimetres": "3"}, lambda call: asked.append(call.name))
        assert asked == ["drive"]


def test_run_tool_gives_dates_keys_that_are_numbers_and_models_of_pydantic():
    pydantic = pytest.importorskip("pydantic")

    class Place(pydantic.BaseModel):
        x: int = pydantic.Field(ge=0)

    def go(place: Place, at: datetime.date, names: dict[int, str]) -> str:
        """Go somewhere."""
        return f"{place.x} {at.year} {names[7]}"

    go.__annotations__["place"] = Place  # is local here
    with tool_chat("ok", tools=[go]) as chat:
        given = {"place": {"x": 3}, "at": "2026-11-25", "names": {"7": "N"}}
        assert chat.run_tool(ToolCall("1", "go", json.dumps(given))) == "3 2026 N"
        wrong = json.dumps(given | {"place": {"x": -1}})
        assert "greater than or equal to 0" in chat.run_tool(ToolCall("1", "go", wrong))


def test_a_long_result_is_cut_with_a_sentence():
    def read() -> str:
        """Read a file."""
        return "x" * (1 << 20)

    with tool_chat("ok", n_ctx=2000, tools=[read]) as chat:
        text = chat.run_tool(ToolCall("1", "read", "{}"))
        assert text == "x" * 500 + "\n[cut: the first 500 of 1048576 characters]"


@pytest.mark.parametrize(
    ("tools", "says"),
    [
        ([3], "a tool is a function"),
        (look, "a list of functions"),
        ({"name": "x"}, "a list of functions"),
        ([look, look], "two tools"),
        ([{"type": "function"}], "a tool as a mapping"),
        ([lambda x: x], "lambda"),
    ],
)
def test_what_is_no_tool_is_refused(tools, says):
    with tool_engine("ok") as engine:
        with pytest.raises(ConfigError, match=says):
            engine.chat(tools=tools)
        chat = engine.chat(tools=[look])
        with pytest.raises(ConfigError, match=says):
            chat.tools = tools
        assert [tool.name for tool in chat.tools] == ["look"]
        with pytest.raises(ConfigError, match="reasoning_budget"):
            engine.chat(reasoning_budget=-2)
        with pytest.raises(ConfigError, match="did you mean 'reasoning_budget'"):
            engine.chat(reasoning_budgets=2)
        with pytest.raises(ConfigError, match="tool_choice"):
            chat.send("x", tool_choice="nothing")


def test_tools_are_added_and_keep_their_functions():
    with tool_chat("ok", tools=[drive]) as chat:
        chat.tools = [*chat.tools, look]
        assert chat.run_tool(ToolCall("1", "drive", '{"centimetres": 3}')) == "drove 3, False"
        chat.tools = [edgespec.Tool("drive")]
        assert "there is no function" in chat.run_tool(ToolCall("1", "drive", "{}"))
        with pytest.raises(ConfigError, match=r"set chat\.tools"):
            chat.send("go", tools=[look])
        chat.tools = ()
        assert chat.send("go").text == "ok"


OPENED = (  # as Qwen3's and DeepSeek's: the prompt opens reasoning, and later turns do not show it
    "{% for m in messages %}<{{ m.role }}>"
    "{{ m.content.split('</think>')[-1] if m.content is string else '' }}"
    "</>{% endfor %}{% if add_generation_prompt %}<assistant><think>\n{% endif %}"
)


def test_reasoning_that_the_prompt_opens_and_forgets():
    answers = ("<think>\nfirst thought</think>One.", "<think>\nsecond</think>Two.")
    with tool_engine(*answers, template=OPENED) as engine:  # which writes their first 8 bytes
        chat = engine.chat()
        one = chat.send("a")
        assert (one.reasoning, one.text) == ("first thought", "One.")
        two = chat.send("b")
        assert (two.reasoning, two.text) == ("second", "Two.")
        asked = [*chat.messages, {"role": "user", "content": "c"}]
        rendered = chat._context.fit(asked).rendered
        assert "thought" not in rendered
        assert rendered.startswith("<user>a</><assistant>One.</><user>b</>")
        cut = chat.send("c", max_tokens=3)
        assert (cut.reasoning, cut.text, cut.finish_reason) == ("sec", "", "length")
        assert chat.send("d").text == "Two."


@pytest.mark.parametrize("template", [OPENED, TEMPLATE])
def test_an_answer_that_was_cut_in_its_reasoning_or_in_a_call_goes_on(template):
    opening = "<think>\n" if template == OPENED else ""  # which the prompt writes
    thought = "first thought</think>One. " if opening else "<think>first thought</think>One. "
    with tool_engine(opening + thought + "That is all.", template=template) as engine:
        for n_tokens in (10, 12, len(thought) - 2, len(thought) + 3):
            chat = engine.chat()
            cut = chat.send("a", max_tokens=n_tokens)
            whole = list(chat.stream_continued())[-1].completion
            assert cut.reasoning + whole.reasoning == "first thought"
            assert cut.text + whole.text == "One. That is all."
            assert chat.messages[-1]["reasoning_content"] == "first thought"
            assert chat.messages[-1]["content"] == "One. That is all."
        loaded = engine.chat()
        loaded.load_dict(chat.to_dict())
        with pytest.raises(ConfigError, match="with reasoning that was loaded cannot go on"):
            loaded.stream_continued()
    with tool_chat(call("look", direction="up"), tools=[look]) as chat:
        assert chat.send("a", max_tokens=40).tool_calls == ()
        (made,) = list(chat.stream_continued())[-1].completion.tool_calls
        assert json.loads(made.arguments) == {"direction": "up"}
        with pytest.raises(ConfigError, match="there is no cut answer"):
            chat.stream_continued()


def test_a_call_that_a_form_spells_is_text():
    spelled = "x " + call("look", direction="up")
    with tool_chat(spelled, call("look", direction="left"), tools=[look]) as chat:
        answer = chat.send("a", regex="x (?s:.*)")
        assert (answer.text, answer.tool_calls) == (spelled, ())
        (made,) = chat.send("b", regex="x (?s:.*)").tool_calls
        assert json.loads(made.arguments) == {"direction": "left"}


def test_a_model_that_does_not_know_tools_is_refused_at_once():
    template = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</>{% endfor %}"
    with (
        tool_engine("ok", template=template) as engine,
        pytest.raises(ConfigError, match="cannot call tools"),
    ):
        engine.chat(tools=[look])


def test_settings_of_one_answer_are_those_of_answers():
    names = {field.name for field in dataclasses.fields(edgespec.AnswerOptions)}
    assert set(chat_module._OF_ANSWERS) == names - {"tools"}


def test_a_plain_chat_loads_nothing_of_tools():
    code = (
        "import sys\n"
        "from tests.unit.chat.test_chat import chat_engine\n"
        "with chat_engine() as engine: print(engine.chat().send('hi').text)\n"
        "late = ('llguidance', *(f'edgespec.chat.{n}' for n in ('format', 'tools', 'functions')))\n"
        "print([m for m in sys.modules if m.startswith(late)])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "ok then\n[]\n"
