"""What templates may take, and that bounds change nothing of what they write."""

import datetime
import functools
import json

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec import TemplateError
from edgespec.decoding import templates
from edgespec.decoding.template_budget import Budget

SAID = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": " é < & \n x "},
    {"role": "assistant", "content": "<think>so</think> yes"},
]
DOUBLED = "{% set ns = namespace(x='a', y=['a']) %}{% for i in range(60) %}BODY{% endfor %}"
LOOPS = "{% for a in r %}{% for b in r %}{% for c in r %}{% for d in r %}{% endfor %}{% endfor %}"
TOO_MUCH = [
    "{{ 'a' * 10**10 }}",
    "{% set n = 10000 %}{{ n**n }}",
    "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
    "{% set r = range(1000)|list %}" + LOOPS + "{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% set x %}{% for i in range(100000) %}" + "A" * 100_000 + "{% endfor %}{% endset %}",
    DOUBLED.replace("BODY", "{% set ns.x = ns.x + ns.x %}"),
    DOUBLED.replace("BODY", "{% set ns.x = ns.x ~ ns.x %}"),
    DOUBLED.replace("BODY", "{% set ns.y = ns.y + ns.y %}"),
    DOUBLED.replace("BODY", "{% set ns.y = [ns.y, ns.y] %}"),
    DOUBLED.replace("BODY", "{% set ns.y = (ns.y, ns.y) %}"),
    DOUBLED.replace("BODY", "{% set ns.y = {'a': ns.y, 'b': ns.y} %}"),
    DOUBLED.replace("BODY", "{% set ns.y = dict(a=ns.y, b=ns.y) %}"),
    "{{ 'a'|center(10**10) }}",
    "{{ 'a'.center(10000000000) }}",
    "{{ 'a'.zfill(10000000000) }}",
    "{{ ('\t' * 100000).expandtabs(100000) }}",
    "{{ ('a' * 100000).translate({97: 'b' * 100000}) }}",
    "{{ ('a\n' * 100000)|indent(1000000) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ '%1000000000d'|format(1) }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:{}}'.format(1, 1000000000) }}",
    "{{ ('{0}' * 100000).format('a' * 100000) }}",
    "{{ ('%s' * 1000) % ((('a' * 1000000),) * 1000) }}",
    "{{ ('a' * 1000000)|replace('a', 'b' * 100000) }}",
    "{{ ('a' * 1000000).replace('', 'b' * 100000) }}",
    "{{ ('a' * 100000).join('b' * 100000) }}",
    "{{ range(100000)|join('a' * 100000) }}",
    "{{ (['a' * 1000000] * 100000)|join }}",
    "{{ range(100000)|map('center', 1000000000)|list }}",
    "{{ [1]|batch(10000000000, 0)|list }}",
    "{{ [1]|slice(10000000000)|list }}",
    "{{ ([1] * 100000)|tojson(indent=1000000) }}",
    "{{ lipsum(n=1000000) }}",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "a" * 300_000,
]  # fmt: skip


@pytest.mark.parametrize("template", TOO_MUCH, ids=lambda text: text[:60])
def test_templates_that_take_too_much_are_stopped(template, monkeypatch):
    monkeypatch.setattr(templates, "Budget", functools.partial(Budget, seconds=0.5))
    with pytest.raises(TemplateError, match="the model's chat template") as caught:
        templates.render(template, SAID, {"bos_token": ""})
    assert len(str(caught.value)) < 800


def plain(template, messages):
    """Render as Jinja does without bounds."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value, **options: json.dumps(
        value, ensure_ascii=False, **options
    )
    return environment.from_string(template).render(
        messages=messages, bos_token="<s>", add_generation_prompt=True
    )


ORDINARY = [
    templates.CHATML,
    "{{ bos_token }}{% for m in messages %}{{ m['role'] ~ ': ' ~ m.content | trim }}\n{% endfor %}",
    "{% for m in messages[1:] %}{{ loop.index0 % 2 }}{{ loop.last }}{{ loop.length }}"
    "{{ (messages|length - 1) - loop.index0 }}{{ m | tojson(indent=2) }}{% endfor %}",
    "{% set ns = namespace(found=false, l=[]) %}{% for m in messages %}{% set ns.l = ns.l + [m] %}"
    "{% endfor %}{{ ns.l | map(attribute='role') | join(', ') }}{{ ns.l[::-1] | length }}",
    "{{ messages[2].content.split('</think>')[-1].lstrip('\n') }}{{ messages | list | first }}",
    "{{ 'a b'.replace(' ', '-') | upper }}{{ '**%s** 12345 {%s}' % ('x', 'y') }}{{ 2 ** 10 }}"
    "{{ '{{}} {} 12345 {:>5}'.format('x', 1) }}{{ [1, 2] + [3] }}{{ (1, 2) + (3,) }}{{ 'ab' * 3 }}",
    "{% macro f(x, y=2) %}[{{ x }}{{ y }}{{ caller() if caller }}]{% endmacro %}{{ f(1) }}"
    "{% call f(3) %}in{% endcall %}{{ 'a\nb' | indent(2) }}{{ 'a' | center(9) }}"
    "{{ 1.25 | round(1) }}",
    "{% if 'system' in ['system', 'user'] and messages[0].role == 'system' %}S"
    "{% else %}N{% endif %}"
    "{{ [1, 2, 3] | batch(2, 0) | list }}{{ {'a': [messages[0].role]} }}{{ missing ~ 'x' ~ 1 }}",
    "{% for k, v in messages[0].items() %}{{ k + '=' + v + ';' }}{% endfor %}{{ 1 + 2 + 0.5 }}"
    "{{ messages is sequence }}{{ messages[0] is mapping }}"
    "{{ messages | selectattr('role', 'equalto', 'user') | list | tojson }}"
    "{{ messages == messages[:] }}",
    "{% for m in messages %}{{ m.content.replace('a', 'bc').center(20) }}{{ '-'.join([m.role]) }}"
    "{{ '%s' | format(m.role) }}{{ '{}'.format(m.role) }}{% endfor %}",
]  # fmt: skip


@pytest.mark.parametrize("template", ORDINARY)
def test_bounds_change_nothing_of_what_is_written(template):
    assert templates.render(template, SAID, {"bos_token": "<s>"}) == plain(template, SAID)


@given(st.lists(st.text(), max_size=5))
def test_any_content_is_written_as_it_is(contents):
    messages = [{"role": "user", "content": text} for text in contents]
    for template in ORDINARY[:2]:
        assert templates.render(template, messages, {"bos_token": "<s>"}) == plain(
            template, messages
        )


def test_long_conversations_are_within_the_bounds():
    messages = SAID[1:] * 2000
    assert len(templates.render(templates.CHATML, messages, {})) > 100_000
    long = [{"role": "user", "content": "x" * 5_000_000}]
    assert len(templates.render(templates.CHATML, long, {})) > 5_000_000


def test_marks_for_training_are_known():
    template = "{% for m in messages %}{% generation %}{{ m.role }};{% endgeneration %}{% endfor %}"
    assert templates.render(template, SAID, {}) == "system;user;assistant;"


def test_adding_what_cannot_be_added_is_an_error():
    with pytest.raises(TemplateError, match="refused the conversation"):
        templates.render("{{ messages[0].content + 1 }}", SAID, {})


def test_a_date_is_written():
    year = str(datetime.datetime.now().year)
    assert templates.render("{{ strftime_now('%Y') }}", SAID, {}) >= year
