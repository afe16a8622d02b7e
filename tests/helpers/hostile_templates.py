"""Templates that want memory or time, and what rendering one of them takes.

`python -m tests.helpers.hostile_templates` renders the templates of a JSON list, which it reads,
each in a process of its own, and writes a line for each: peak memory in MB, seconds, what was said.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time

from edgespec import TemplateError
from edgespec.chat import templates

_ADDRESSES = 4 << 30  # bytes of memory that a process may have, for the machine's sake
SAID = [{"role": "user", "content": "x" * 1_000_000}, {"role": "user", "content": "ŉ" * 100_000}]
_LOOPS = "{% for a in r %}{% for b in r %}{% for c in r %}BODY{% endfor %}{% endfor %}{% endfor %}"
_LONG = "{% set x = messages[0].content %}"
_WIDE = "{% set x = messages[1].content * 100 %}"
_AGAIN = "{% set ns = namespace(x='a', y=['a']) %}{% for i in range(99999) %}BODY{% endfor %}"


def _again(body: str, before: str = "") -> str:
    return before + _AGAIN.replace("BODY", body)


def _loops(body: str, before: str = "") -> str:
    return before + "{% set r = range(1000)|list %}" + _LOOPS.replace("BODY", body)


def _unrolled(body: str, before: str = "", times: int = 5000) -> str:
    """Return a template without loops."""
    return before + "".join(body.replace("#", str(i)) for i in range(times))


HOSTILE = {
    # bytes and numbers
    "bytes": "{{ 'a'.encode().ljust(1999999999)|length }}",
    "bytes replaced": "{{ ('a'*1000000).encode().replace('a'.encode(), 'b'*2000)|length }}",
    "to_bytes": "{{ (1).to_bytes(1999999999, 'big')|length }}",
    "from_bytes": "{{ (1).from_bytes(messages[0].content.encode(), 'big') }}",
    "power": "{{ 9**9**9 }}",
    "squares": _again("{% set ns.x = (ns.x if i else 3) * (ns.x if i else 3) %}"),
    "differences": _again("{% set ns.x = (ns.x if i else 3) - 0 + (ns.x if i else 3) %}"),
    "huge decimal literal": "{{ " + "9" * 100_000 + " }}",
    "huge hexadecimal literal": "{% set x = 0x" + "f" * 100_000 + " %}{{ x // 3 * x % 7 }}",
    "digits": _LONG + "{{ ('9' ~ x.replace('x', '9'))|int }}",
    "hexadecimal digits": _LONG + "{% set n = x.replace('x', 'f')|int(0, 16) %}{{ n // 7 }}",
    "digits written": _again("{{ 18446744073709551615 * 1 }}"),
    "float": "{{ ('9' * 10000000)|float }}",
    "round": "{{ 1.5|round(1000000000) }}",
    # formats
    "% with a name": "{{ '%(a)1999999999d' % {'a': 1} }}",
    "% with zeros": "{{ '%01999999999d' % 1 }}",
    "% with a precision": "{{ '%.1999999999f' % 1 }}",
    "format with widths": "{{ ('{0:9999}' * 200000).format(1)|length }}",
    "format with nested fields": "{{ '{0:{1}}'.format(1, 1999999999)|length }}",
    "format with attributes": "{{ '{0.__class__.__mro__}'.format(1) }}",
    "format with items": "{{ ('{0[0]}' * 200000).format(messages) }}",
    "format with a name": _LONG + "{{ ('{a}' * 200000).format(a=x) }}",
    "format of a format": _again("{% set ns.x = ('{}{}').format(ns.x, ns.x) %}"),
    "format_map": "{{ '{a:1999999999}'.format_map({'a': 1}) }}",
    "format filter": "{{ '%1999999999d'|format(1) }}",
    "date": "{{ strftime_now('%1999999999d') }}",
    # texts
    "repetition": "{{ 'a' * 10**10 }}{{ 'a' * 10000000000 }}",
    "doubling by +": _again("{% set ns.x = ns.x + ns.x %}"),
    "doubling by ~": _again("{% set ns.x = ns.x ~ ns.x %}"),
    "doubling by set": _again("{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}"),
    "doubling by macro": "{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}"
    + _again("{% set ns.x = f(ns.x) %}"),
    "doubling by filter": _again("{% set y %}{% filter replace('a', 'aa') %}{{ ns.x }}"
    "{% endfilter %}{% endset %}{% set ns.x = y %}"),
    "doubling by join": _again("{% set ns.x = [ns.x, ns.x]|join %}"),
    "center": "{{ 'a'|center(1999999999) }}",
    "zfill": "{{ 'a'.zfill(1999999999) }}",
    "expandtabs": "{{ '\t'.expandtabs(1999999999) }}",
    "translate": _LONG + "{{ x.translate({120: 'b' * 100000}) }}",
    "replace": _LONG + "{{ x.replace('x', x) }}",
    "replace nothing": _LONG + "{{ x.replace('', x) }}",
    "replace filter": _LONG + "{{ x|replace('x', x) }}",
    "join": _LONG + "{{ x.join(x) }}",
    "join filter": _LONG + "{{ range(99999)|join(x) }}",
    "join of the same": _LONG + "{{ ([x] * 100000)|join }}",
    "indent": _LONG + "{{ x.replace('x', 'a\n')|indent(1999999999) }}",
    "indent of form feeds": _LONG + "{{ x.replace('x', '\f')|indent(100) }}",
    "indent with text": _LONG + "{{ x.replace('x', '\n')|indent(x, blank=true) }}",
    "wordwrap": _LONG + "{{ x|wordwrap(1, wrapstring=x) }}",
    "upper of long texts": _WIDE + "{{ x.upper().upper()|length }}",
    "title": _LONG + "{{ x.replace('x', 'é ')|title|length }}",
    "titles": _WIDE + "{{ x|title|title|length }}",
    "split by spaces": _LONG + "{% set y = x * 50 %}{{ y.replace('x', 'é ').split()|length }}",
    "splits": _again("{% set ns.y = [ns.y, x.split('x')] %}", _LONG),
    "splitlines": _LONG + "{{ (x * 60).replace('x', '\v').splitlines()|length }}",
    "strip of many": _LONG + "{{ (x * 30).strip('b' * 30000000 + 'x') }}",
    "trim of many": _LONG + "{{ (x * 30)|trim('b' * 30000000 + 'x') }}",
    "search from the end": _LONG + "{{ (x * 30).rfind('y' + x * 15) }}",
    "search": _again("{{ 'y' + x in z }}", _LONG + "{% set z = x * 10 %}"),
    "one wide character": _LONG + "{{ x * 40 }}{{ '😀' }}",
    "wide characters": _LONG + "{{ x * 15 + '😀' }}{{ x * 15 + '😀' }}",
    "escapes": _LONG + "{{ [x.replace('x', '\0') * 9] }}😀",
    "escapes in JSON": _LONG + "{{ ([x.replace('x', '\0')] * 9)|tojson }}😀",
    "escaped texts": _LONG + "{{ x.replace('x', '\"') * 40 + ''|safe }}",
    "escape": _LONG + "{{ (x.replace('x', '\"') * 60)|escape|length }}",
    "xmlattr": _LONG + "{{ {'a': x.replace('x', '<') * 60}|xmlattr|length }}",
    "urlize": _LONG + "{{ (x * 9).replace('x', 'a.de ')|urlize|length }}",
    "slices": _unrolled("{% set x# = x[1:] %}", _LONG + "{% set x = x * 20 %}"),
    "slices with steps": _again("{% set ns.y = ns.y + [x[::-1]] %}", _LONG),
    "texts of a loop": "{% set x %}{% for i in range(99999) %}" + "A" * 99_999
    + "{% endfor %}{% endset %}",
    "texts of ifs": _loops("{% if a %}" + "A" * 99_999 + "{% endif %}"),
    # lists and objects
    "list of characters": _WIDE + "{{ x|list|length }}{{ x|list|length }}",
    "doubling of lists": _again("{% set ns.y = ns.y + ns.y %}"),
    "lists of lists": _again("{% set ns.y = [ns.y, ns.y] %}"),
    "objects of objects": _again("{% set ns.y = {'a': ns.y, 'b': ns.y} %}"),
    "dict": _again("{% set ns.y = dict(a=ns.y, b=ns.y) %}"),
    "deep lists": _again("{% set ns.y = [ns.y] %}") + "{{ ns.y }}",
    "empty lists": _again("{% set ns.y = [" + "[]," * 3000 + "] %}"),
    "empty lists kept": "{% set r = range(500) %}{% for i in r %}{% set ns = namespace(y="
    "[" + "[]," * 20000 + "]) %}{% endfor %}",
    "compared lists": _again("{% set ns.y = [ns.y, ns.x] %}{% if ns.y == [ns.y] %}{% endif %}"),
    "namespace cycles": _again("{% set ns.y = ns %}{{ ns }}{{ [ns.y] }}"),
    "namespaces": _again("{% set ns.y = namespace(y=ns.y, z=ns.y) %}{{ ns.y }}"),
    "repetition of lists": "{{ ([1] * 1999999999)|length }}",
    "repetition of nested lists": "{{ (([1] * 1000) * 1000 * 1000)|length }}",
    "ranges": "{{ range(1999999999)|list|length }}",
    "ranges kept": _again("{% set ns.y = [ns.y, range(99999)|list] %}"),
    "batch": "{{ [1]|batch(1999999999, 0)|list|length }}",
    "slice": "{{ [1]|slice(1999999999)|list|length }}",
    "groupby": "{{ range(99999)|groupby('real')|list|length }}",
    "sum": "{{ ([[1] * 10000] * 10000)|sum(start=[])|length }}",
    "map": "{{ range(99999)|map('string')|map('list')|map('list')|list|length }}",
    "map of repetitions": _LONG + "{{ ([x] * 60)|map('upper')|map('list')|list|length }}",
    "map of attributes": "{{ range(99999)|map(attribute='a' ~ '.a' * 1000000)|list|length }}",
    "sort": _LONG + "{{ range(99999)|sort(attribute='real,' * 10000)|length }}",
    "sorts": _again("{{ r|sort|unique|list|length }}", "{% set r = range(99999)|list %}"),
    "items": _again("{{ d.items() }}", _LONG + "{% set d = {'a': x} %}"),
    "items kept": _again("{% set ns.y = [ns.y, d.items()|list] %}", "{% set d = dict(a=1, b=2) %}"),
    "differences of keys": _again("{% set ns.y = d.keys() - [] %}", "{% set d = dict(a=1) %}"),
    "indent of JSON": "{{ ([1] * 100000)|tojson(indent=1999999999)|length }}",
    "indent of deep JSON": "{% set ns = namespace(y=[1] * 30000) %}{% for i in range(200) %}"
    "{% set ns.y = [ns.y] %}{% endfor %}{{ ns.y|tojson(indent=90)|length }}",
    "separators of JSON": _LONG + "{{ ([1] * 100000)|tojson(separators=(x, x))|length }}",
    "separators with indent": "{{ ([1]*999999)|tojson(indent=1, separators=('a'*99, '')) }}",
    "generators kept": _again("{% set ns.y = [ns.y, [1]|map('string')] %}"),
    "attributes of many parts": _unrolled(
        "{% set g# = r|map(attribute=x, default=1) %}{% for i in g# %}{% break %}{% endfor %}",
        _LONG + "{% set r = [1, 2] %}{% set x = x[:99999].replace('x', 'ab.') %}", 1000),
    # time
    "select of nothing": "{% set r = range(99999)|list %}{{ r|select('in', r|map('string')|list)"
    "|list }}",
    "loop of nothing": "{% set r = range(99999)|list %}{% set s = r|map('string')|list %}"
    "{% for i in r if i in s %}{% endfor %}",
    "searches": _LONG + "{% set z = x * 15 %}{% set x = x * 7 + 'y' %}"
    + ("{% if " + "x in z or " * 100 + "0 %}{% endif %}") * 100,
    "tests": _LONG + "{% set z = x * 15 %}{% set x = x * 7 + 'y' %}"
    + ("{% if " + "x is in z or " * 100 + "0 %}{% endif %}") * 90,
    "items by tuples": "{% set t = (1,) * 9999999 %}{% set d = {} %}"
    + ("{% if " + "d[t] or " * 100 + "0 %}{% endif %}") * 140,
    "tuples as keys": "{% set t = (1,) * 9999999 %}{% set d = {" + "t:1," * 25_000 + "} %}",
    # programs
    "loops": _loops(""),
    "recursive loop": "{% for a in [[1]] recursive %}{{ loop([a]) }}{{ loop([a]) }}{% endfor %}",
    "recursion": "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "recursion twice": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
    "call": "{% macro f(n) %}{{ caller() }}{{ caller() }}{% if n %}{% call f(n-1) %}a{% endcall %}"
    "{% endif %}{% endmacro %}" + _again("{% call f(100) %}a{% endcall %}"),
    "arguments": "{% macro f(n) %}{% if n %}{{ f(n-1, *varargs) }}{% endif %}{% endmacro %}"
    "{{ f(150, *([1] * 9000000)) }}",
    "macros of long names": f"{{% macro {'a' * 60_000}() %}}{{% endmacro %}}"
    f"{{% set b = {'a' * 60_000} %}}" + _again("{{ b }}{{ [b] }}{{ 'a' ~ b }}"),
    "cycler": _again("{% set c = cycler(x, x) %}{{ c.next() }}", _LONG),
    "joiner": _again("{% set j = joiner(x) %}{{ j() }}{{ j() }}", _LONG),
    "lipsum": "{{ lipsum(n=1999999) }}",
    "attr": "{{ 'a'|attr('encode') }}",
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "include": "{% include 'a' %}",
    "import": "{% import 'a' as a %}",
    "extends": "{% extends 'a' %}",
    "block": "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
    "autoescape": "{% autoescape true %}{{ 'a' }}{% endautoescape %}",
    "raise": _LONG + "{{ raise_exception([x * 9] * 7) }}",
    # sources
    "brackets": "{{ " + "(" * 9999 + "1" + ")" * 9999 + " }}",
    "lists in the source": "{{ " + "[" * 9999 + "]" * 9999 + " }}",
    "minus signs": "{{ " + "-" * 100_000 + "1 }}",
    "nots": "{{ " + "not " * 30_000 + "1 }}",
    "many operators": "{{ 1" + "-1" * 60_000 + " }}",
    "many additions": "{{ 'a'" + "+'a'" * 30_000 + " }}",
    "many tildes": "{{ 'a'" + "~'a'" * 30_000 + " }}",
    "many filters": "{{ 'a'" + "|upper" * 20_000 + " }}",
    "many comparisons": "{{ 1" + "<2" * 60_000 + " }}",
    "many attributes": "{{ a" + ".a" * 60_000 + " }}",
    "many elifs": "{% if 0 %}" + "{% elif 0 %}" * 10_000 + "{% endif %}",
    "many ifs": "{% if 1 %}" * 5_000 + "{% endif %}" * 5_000,
    "many fors": "{% for a in b %}" * 3_500 + "{% endfor %}" * 3_500,
    "many outputs": "{{a}}" * 26_000,
    "many sets": _unrolled("{% set x# = 1 %}", times=3_500),
    "many macros": _unrolled("{% macro m#() %}{% endmacro %}", times=3_500),
    "long": "a" * 300_000,
}  # fmt: skip


def _render(template: str) -> str:
    try:
        return f"{len(templates.render(template, SAID, {}))} characters"
    except TemplateError as error:
        return f"{error}"[:300]
    except MemoryError:
        return "MemoryError"


def measure(template: str) -> tuple[float, float, str]:
    """Return MB and seconds that rendering takes in a process of its own, and what it said."""
    reading, writing = os.pipe()
    started = time.monotonic()
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES, _ADDRESSES))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        said = _render(template)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        os.write(writing, json.dumps([peak / 1024, said]).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as lines:
        text = lines.read()
    os.waitpid(child, 0)
    peak_mb, said = json.loads(text) if text else [_ADDRESSES / 2**20, "the process died"]
    return peak_mb, time.monotonic() - started, said


if __name__ == "__main__":
    _render(templates.CHATML)  # imports what is needed
    for _template in json.load(sys.stdin):
        print(json.dumps(measure(_template)), flush=True)
