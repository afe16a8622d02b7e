"""Templates have what is listed and nothing else, and each thing is bounded."""

import json
import subprocess
import sys

import jinja2
import pytest
from jinja2 import nodes
from jinja2.defaults import DEFAULT_NAMESPACE
from jinja2.filters import FILTERS
from jinja2.tests import TESTS
from markupsafe import Markup

from edgespec import TemplateError
from edgespec.chat import template_limits, templates
from tests.helpers.hostile_templates import HOSTILE
from tests.helpers.selection import every

MB, SECONDS = 512, 25  # 5 s are allowed; the rest is for slow machines


@pytest.mark.parametrize("name", every(29, HOSTILE, "more hostile templates, up to 10 s each"))
def test_hostile_templates_are_bounded_in_memory_and_time(name):
    done = subprocess.run(
        [sys.executable, "-m", "tests.helpers.hostile_templates"],
        input=json.dumps([HOSTILE[name]]),
        capture_output=True,
        text=True,
        check=True,
    )
    peak, seconds, said = json.loads(done.stdout)
    assert peak < MB, said
    assert seconds < SECONDS, said
    assert said != "the process died"


def render(template, **variables):
    return templates.render(template, [], {}, variables=variables)


def refused(template, name, **variables):
    """Return whether a template is refused with an error that names what does not exist."""
    try:
        render(template, **variables)
    except TemplateError as error:
        return name in str(error)
    return False


VALUES = ["a", Markup("a"), b"a", bytearray(b"a"), 1, True, 1.5, None, [1], (1,), {"a": 1}, {1}]
MADE = {
    "namespace": "{% set value = namespace(a=1) %}",
    "macro": "{% macro value() %}{% endmacro %}",
    "function": "{% set value = raise_exception %}",
    "dict": "{% set value = dict %}",
    "range": "{% set value = range(3) %}",
    "generator": "{% set value = [1]|map('string') %}",
    "method": "{% set value = 'a'.strip %}",
    "view": "{% set value = {'a': 1}.items() %}",
    "tojson": "{% set value = [1]|tojson %}",
    "safe": "{% set value = 'a'|safe %}",
    "self": "{% set value = self %}",
}
OBJECTS = {
    "namespace": template_limits.FUNCTIONS["namespace"](),
    "function": template_limits.FUNCTIONS["raise_exception"],
    "dict": dict,
    "range": range(3),
    "generator": iter(map(str, [1])),
    "method": "a".strip,
    "view": {"a": 1}.items(),
    "tojson": "",
    "safe": Markup(""),
}


def listed(value):
    """Return the methods that a type has in templates."""
    return {n for kind, methods in template_limits.METHODS.items() for n in methods
            if isinstance(value, kind)}  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_every_attribute_of_a_value_is_listed_or_does_not_exist(value):
    for name in dir(value):
        if name not in listed(value):
            assert refused(f"{{{{ value.{name} }}}}", f".{name} does not exist", value=value), name
            assert refused(f"{{{{ value['{name}'] }}}}", f".{name} does not exist", value=value)
            by_filter = f"{{{{ [value]|map(attribute='{name}')|list }}}}"
            assert refused(by_filter, f".{name} does not exist", value=value), name
        else:
            render(f"{{{{ value.{name} }}}}", value=value)


@pytest.mark.parametrize("kind", MADE)
def test_every_attribute_of_what_a_template_makes_is_listed_or_does_not_exist(kind):
    value = OBJECTS.get(kind, jinja2.runtime.Macro)
    for name in {*dir(value), "name", "arguments", "gi_frame", "blocks", "_TemplateReference__x"}:
        if name not in listed(value):
            template = f"{MADE[kind]}{{% set x = value.{name} %}}{{{{ x() }}}}"
            with pytest.raises(TemplateError):
                render(template)


def test_every_attribute_of_a_loop_is_listed_or_does_not_exist():
    for name in dir(jinja2.runtime.LoopContext):
        template = f"{{% for i in [1] %}}{{{{ loop.{name} }}}}{{% endfor %}}"
        if name in template_limits.LOOP:
            render(template)
        else:
            assert refused(template, f".{name} does not exist"), name


def test_every_filter_of_jinja_is_listed_or_does_not_exist():
    assert set(FILTERS) > set(template_limits.FILTERS)
    for name in set(FILTERS) - set(template_limits.FILTERS):
        assert refused(f"{{{{ 'a'|{name} }}}}", repr(name)), name
        assert refused(f"{{{{ ['a']|map('{name}')|list }}}}", repr(name)), name
    own = {"_made", "_concat"}
    assert set(template_limits.BoundedEnvironment().filters) == own | set(template_limits.FILTERS)


def test_every_test_of_jinja_is_listed_or_does_not_exist():
    assert set(TESTS) > template_limits.TEST_NAMES
    for name in set(TESTS) - template_limits.TEST_NAMES:
        assert refused(f"{{{{ ['a']|select('{name}')|list }}}}", repr(name)), name
    assert set(template_limits.BoundedEnvironment().tests) == template_limits.TEST_NAMES


def test_every_function_of_jinja_is_listed_or_does_not_exist():
    for name in set(DEFAULT_NAMESPACE) - set(template_limits.FUNCTIONS):
        assert refused(f"{{{{ {name}() }}}}", f"'{name}' is undefined"), name
    assert set(template_limits.BoundedEnvironment().globals) == set(template_limits.FUNCTIONS)


def test_every_statement_and_operator_of_jinja_is_listed_or_does_not_exist():
    charging = template_limits._Charging(template_limits.BoundedEnvironment())
    every_node = {each.__name__: each for each in vars(nodes).values()
                  if isinstance(each, type) and issubclass(each, nodes.Node)}  # fmt: skip
    assert set(every_node) > template_limits.NODES
    for name in set(every_node) - template_limits.NODES:
        with pytest.raises(jinja2.TemplateError, match="does not exist"):
            charging.visit(object.__new__(every_node[name]))


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ 2 ** 3 }}", "** does not exist"),
        ("{% include 'a' %}", "include does not exist"),
        ("{% import 'a' as a %}", "import does not exist"),
        ("{% from 'a' import b %}", "from ... import does not exist"),
        ("{% extends 'a' %}", "extends does not exist"),
        ("{% block a %}{% endblock %}", "block does not exist"),
        ("{% autoescape true %}{% endautoescape %}", "autoescape does not exist"),
        ("{% trans %}a{% endtrans %}", "trans"),
        ("{% do a %}", "do"),
        ("{{ '%s' % 1 }}", "str %"),
        ("{{ '{:>9}'.format(1) }}", "{:>9}"),
        ("{{ '{a.b}'.format(a=1) }}", "{a.b}"),
        ("{{ [1]|tojson(separators=('a' * 101, '')) }}", "separator"),
        ("{{ [1]|tojson(indent=101) }}", "indent"),
        ("{{ [1]|tojson(default=1) }}", "default"),
        ("{{ 18446744073709551616 }}", "64 bits"),
        ("{{ 4294967296 * 4294967296 }}", "64 bits"),
    ],
)
def test_errors_name_what_does_not_exist(template, name):
    assert refused(template, name)
