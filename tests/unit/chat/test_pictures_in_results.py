"""Pictures in results of tools: what templates write, and what takes their place."""

import json

import numpy as np
import pytest

from edgespec import ConfigError, ToolCall, picture
from edgespec.chat import pictures
from edgespec.chat.encoder import ConversationEncoder
from edgespec.chat.functions import Functions
from edgespec.chat.messages import checked, result_of
from edgespec.chat.pictures import LEFT_OUT, Album, as_result, marks_of
from tests.helpers.chat_templates import listed, source_of
from tests.unit.chat.test_histories import BROKEN, Tokenizer, answer, result, user

RED, BLUE = (picture(np.full((4, 6, 3), shade, np.uint8)) for shade in (20, 220))
ESCAPED = (  # a template that writes results so that no mark is left
    "{% for m in messages %}<{{ m.role }}>"
    "{{ m.content | length if m.role == 'tool' else m.content }}"
    "{{ m.tool_calls | map(attribute='id') | join if m.tool_calls else '' }}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def text(said):
    return {"type": "text", "text": said}


def shown(each):
    return {"type": "picture", "picture": each}


CALLS = answer("", "", ("call12345", "{}"), ("call12346", "{}"))
LOOKED = [
    user("Look."),
    CALLS,
    result("call12345", [text("See:"), shown(RED)]),
    result("call12346", [shown(BLUE)]),
]
LATER = [answer("A cat."), user("And?")]


def rendered(template, messages, **options):
    encoder = ConversationEncoder(Tokenizer(template)).with_album(Album(lambda _: [-2]))
    return encoder.render(messages, **options)


SAID = [*LOOKED[:2], result("call12345", "See:[red]"), result("call12346", "[blue]")]


@pytest.mark.parametrize("name", [name for name in listed() if name not in BROKEN])
def test_every_template_writes_a_picture_where_it_writes_the_text_of_a_result(name):
    template = source_of(name)
    for later in ([], LATER):
        said, asked = rendered(template, [*SAID, *later]), rendered(template, [*LOOKED, *later])
        red, blue = marks_of(asked)
        if "[red]" in said:
            assert asked.replace(red, "[red]").replace(blue, "[blue]") == said
        else:  # it writes no results; pictures are in a message of the user
            assert red + blue in asked


def test_pictures_that_a_template_does_not_write_follow_all_results():
    asked = rendered(ESCAPED, LOOKED)
    tools, _, after = asked.partition("<user>\udb00\udc00\udb00\udc01")
    assert tools.count("<tool>") == 2
    assert after == "<assistant>"
    later = rendered(ESCAPED, [*LOOKED, *LATER])
    assert later.startswith(asked)
    assert rendered(ESCAPED, [*LOOKED, user("So?")]).count("\udb00\udc00") == 1


@pytest.mark.parametrize(
    ("parts", "sees", "said"),
    [
        ([text("See:"), shown(RED)], False, f"See:\n\n{LEFT_OUT}"),
        ([shown(RED), text("a"), text("b")], False, f"{LEFT_OUT}\n\nab"),
        ([text("a"), text("b")], True, "ab"),
        ([], True, ""),
    ],
)
def test_a_result_without_pictures_is_text(parts, sees, said):
    assert as_result(parts, sees) == said


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("data:image/png;base64,AAAA", "not a picture of the formats"),
        ("data:image/png,AAAA", "is not data:image"),
        ("ftp://example.org/a.png", "not fetched from addresses"),
    ],
)
def test_a_picture_of_a_result_that_cannot_be_shown_is_told_and_not_refused(url, why):
    said = as_result([text("See:"), {"type": "image_url", "image_url": {"url": url}}], True)
    assert said.startswith("See:\n\n[An image was left out here: ")
    assert why in said


def test_a_result_shows_a_few_pictures_and_says_that_there_were_more():
    said = as_result([shown(RED)] * 10, True)
    assert [part["type"] for part in said] == ["picture"] * pictures.MOST_PICTURES + ["text"] * 2
    assert "at most 8 are taken" in said[-1]["text"]


def test_what_a_function_returns():
    assert result_of(RED) == [shown(RED)]
    assert result_of(["See:", RED]) == [text("See:"), shown(RED)]
    assert result_of([shown(RED)]) == [shown(RED)]
    assert result_of(["a", 1]) == '["a",1]'
    assert result_of(3) == "3"
    with pytest.raises(ConfigError, match="at most 8"):
        result_of([RED] * 9)


def test_a_function_may_return_a_picture():
    def look():
        return ["See:", RED]

    call = ToolCall(id="a", name="look", arguments="{}")
    assert Functions([look]).run(call) == [text("See:"), shown(RED)]


def test_a_saved_result_has_its_picture_by_its_file(tmp_path):
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "red.png"
    image.fromarray(RED.pixels()).save(path)
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        user("Look."),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "name": "look", "content": [shown(picture(path))]},
    ]
    saved = json.loads(json.dumps([pictures.saved(message) for message in messages]))
    assert checked(saved)[2]["content"][0]["picture"].digest == RED.digest
    path.unlink()
    assert "red.png cannot be read" in checked(saved)[2]["content"]
