"""What templates may take, and that bounds change nothing of what they write."""

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec import TemplateError
from edgespec.chat import templates
from tests.helpers.chat_templates import plain

SAID = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": " é < & \n x "},
    {"role": "assistant", "content": "<think>so</think> yes"},
]
ORDINARY = [
    templates.CHATML,
    "{{ bos_token }}{% for m in messages %}{{ m['role'] ~ ': ' ~ m.content | trim }}\n{% endfor %}",
    "{% for m in messages[1:] %}{{ loop.index0 % 2 }}{{ loop.last }}{{ loop.length }}"
    "{{ (messages|length - 1) - loop.index0 }}{{ m | tojson(indent=2) }}{% endfor %}",
    "{% set ns = namespace(found=false, l=[]) %}{% for m in messages %}{% set ns.l = ns.l + [m] %}"
    "{% endfor %}{{ ns.l | map(attribute='role') | join(', ') }}{{ ns.l[::-1] | length }}",
    "{{ messages[2].content.split('</think>')[-1].lstrip('\n') }}{{ messages | list | first }}",
    "{{ 'a b'.replace(' ', '-') | upper }}{{ '{{}} {} 12345 {}'.format('x', 1) }}"
    "{{ [1, 2] + [3] }}{{ (1, 2) + (3,) }}{{ 'ab' * 3 }}",
    "{% macro f(x, y=2) %}[{{ x }}{{ y }}{{ caller() if caller }}]{% endmacro %}{{ f(1) }}"
    "{% call f(3) %}in{% endcall %}{{ 'a\nb' | indent(2) }}",
    "{% if 'system' in ['system', 'user'] and messages[0].role == 'system' %}S"
    "{% else %}N{% endif %}"
    "{{ {'a': [messages[0].role]} }}{{ missing ~ 'x' ~ 1 }}",
    "{% for k, v in messages[0].items() %}{{ k + '=' + v + ';' }}{% endfor %}{{ 1 + 2 + 0.5 }}"
    "{{ messages is sequence }}{{ messages[0] is mapping }}"
    "{{ messages | selectattr('role', 'equalto', 'user') | list | tojson }}"
    "{{ messages == messages[:] }}",
    "{% for m in messages %}{{ m.content.replace('a', 'bc') }}{{ '-'.join([m.role]) }}"
    "{{ '{}'.format(m.role) }}{% endfor %}",
]  # fmt: skip


@pytest.mark.parametrize("template", ORDINARY)
def test_bounds_change_nothing_of_what_is_written(template):
    assert templates.render(template, SAID, {"bos_token": "<s>"}) == plain(template, SAID, {})


@given(st.lists(st.text(), max_size=5))
def test_any_content_is_written_as_it_is(contents):
    messages = [{"role": "user", "content": text} for text in contents]
    for template in ORDINARY[:2]:
        assert templates.render(template, messages, {"bos_token": "<s>"}) == plain(
            template, messages, {}
        )


def test_long_conversations_are_within_the_bounds():
    messages = SAID[1:] * 2000
    assert len(templates.render(templates.CHATML, messages, {})) > 100_000
    long = [{"role": "user", "content": "x" * 5_000_000}]
    assert len(templates.render(templates.CHATML, long, {})) > 5_000_000


PARTS = (  # as SmolVLM's, which writes nothing of a content that is a text
    "{% for m in messages %}{{ m['role'] | capitalize }}:"
    "{% for part in m['content'] %}{% if part['type'] == 'text' %} {{ part['text'] }}{% endif %}"
    "{% endfor %};{% endfor %}"
)


def test_a_template_that_writes_only_parts_gets_texts_as_parts():
    text = "System: Be kind.;User:  é < & \n x ;Assistant: <think>so</think> yes;"
    assert templates.render(PARTS, SAID, {}) == text
    asked = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}]
    assert templates.render(PARTS, asked, {}) == "User: a;"
    assert templates.render("{{ messages | tojson }}", SAID[:1], {}).endswith('"Be kind."}]')
    assert templates.render("A fixed prompt.", SAID, {}) == "A fixed prompt."


def test_marks_for_training_are_known():
    template = "{% for m in messages %}{% generation %}{{ m.role }};{% endgeneration %}{% endfor %}"
    assert templates.render(template, SAID, {}) == "system;user;assistant;"


def test_adding_what_cannot_be_added_is_an_error():
    with pytest.raises(TemplateError, match="refused the conversation"):
        templates.render("{{ messages[0].content + 1 }}", SAID, {})


def test_a_date_is_written():
    year = str(datetime.datetime.now().year)
    assert templates.render("{{ strftime_now('%Y') }}", SAID, {}) >= year
