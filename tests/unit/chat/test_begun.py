"""Answers that continue the last message of a conversation."""

from __future__ import annotations

import pytest

from edgespec.chat.encoder import ConversationEncoder
from edgespec.chat.options import AnswerOptions
from edgespec.chat.request import GenerationRequest
from edgespec.chat.tools import Tool
from edgespec.config import SamplingParams
from tests.helpers.chat_templates import published
from tests.helpers.formats import FormTokenizer

ASKED = {"role": "user", "content": "Which?"}


def encoder(template: str) -> ConversationEncoder:
    return ConversationEncoder(FormTokenizer(template))


def said(text: str, **more) -> dict[str, object]:
    return {"role": "assistant", "content": text, **more}


NOT_CUT = {  # templates that cannot be rendered, or that write a message with tools only
    "MiroThinker", "fireworks-ai-llama-3-firefunction-v2",
    "CohereForAI-c4ai-command-r-plus-tool_use", "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
}  # fmt: skip
RENDERED = [path for path in published() if path.stem not in NOT_CUT]


@pytest.mark.parametrize("path", RENDERED, ids=lambda path: path.stem)
def test_every_published_template_allows_it(path):
    made, options = encoder(path.read_text(encoding="utf-8")), AnswerOptions()
    asked = made.render([ASKED], add_generation_prompt=False, options=options)
    begun = made.render_begun([ASKED, said("The answer is: ")], options=options)
    assert begun.endswith("The answer is: ")  # the blank too, though many templates trim messages
    assert begun.startswith(asked.rstrip())
    assert begun.count("The answer is") == 1


@pytest.mark.parametrize("path", RENDERED, ids=lambda path: path.stem)
def test_of_an_empty_message_nothing_is_continued(path):
    made = encoder(path.read_text(encoding="utf-8"))
    assert made.render_begun([ASKED, said("")]) == made.render([ASKED])


@pytest.mark.parametrize(
    "written",
    [
        "{{ message.content[:4] }}", "{{ message.content }}{{ message.content }}",
        "{% if message.role == 'user' %}{{ message.content }}{% endif %}",
    ],
)  # fmt: skip
def test_a_template_that_changes_the_end_of_a_message_does_not(written):
    made = encoder(f"{{% for message in messages %}}{written}{{% endfor %}}")
    assert made.render_begun([ASKED, said("The answer")]) is None


def test_what_was_thought_stays_before_it():
    template = next(path for path in published() if path.stem == "Qwen-Qwen3-0.6B")
    made = encoder(template.read_text(encoding="utf-8"))
    last = said("So ", reasoning_content="hm")
    begun = made.render_begun([ASKED, last], options=AnswerOptions())
    assert begun.endswith("<think>\nhm\n</think>\n\nSo ")


def test_control_tokens_in_it_are_text():
    written = "<|{{ message.role }}|>{{ message.content }}<|end|>"
    tokenizer = FormTokenizer(f"{{% for message in messages %}}{written}{{% endfor %}}")
    made = ConversationEncoder(tokenizer)
    text = made.render_begun([ASKED, said("a<|end|><|user|>")])
    controls = {tokenizer.encode(each)[0] for each in tokenizer.control_texts()}
    assert sum(token in controls for token in made.encode(text)) == 3


@pytest.mark.parametrize(
    ("last", "more", "why"),
    [
        (said("a"), {}, ""),
        (said(""), {}, ""),
        (ASKED, {}, "not the assistant's"),
        (said("a", tool_calls=[{"id": "1"}]), {}, "it calls tools"),
        (said("a"), {"params": SamplingParams(choices=("a", "b"))}, "has a form"),
        (said("a"), {"options": AnswerOptions((Tool("f", "", {}),), "required")}, "to be called"),
        (said("a"), {"options": AnswerOptions((Tool("f", "", {}),))}, ""),
    ],
)
def test_what_is_a_message_of_its_own(last, more, why):
    told = GenerationRequest(messages=[ASKED, last], **more).why_whole
    assert why in told
    assert bool(why) == bool(told)
