"""Bounds on what a chat template may take: it is a program that came with the model.

Rendering happens in this process, so nothing can be killed. Instead everything through which text
or lists grow, or a loop goes round, is charged to a budget: operators, calls, filters, output and
the bodies of loops and macros. What multiplies lengths is estimated before it is done.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import ext, nodes, runtime, utils, visitor
from jinja2.filters import FILTERS as _DEFAULT
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .template_budget import TooMuch, charged, charged_text, spend, weighed, weight

_MAX_BITS = 1 << 14  # of integers
_MAX_FORM = 200  # characters of a format for strftime_now
# widths that are large or computed, in either kind of format
_WIDE = {"%": re.compile(r"%[^%a-zA-Z]*(?:\*|\d{5})"), "{": re.compile(r"\{[^}]*(?:\{|\d{5})")}


class _Namespace(utils.Namespace):
    def __repr__(self) -> str:  # its values may hold it
        return "<Namespace>"


# --- what multiplies ---------------------------------------------------------------------------


def _spend_format(form: str, values: Any, sign: str = "%") -> None:
    if _WIDE[sign].search(form.replace(sign * 2, "")):
        raise TooMuch(f"the format {form[:40]!r} has widths that are not taken here")
    spend(len(form) + form.count(sign) * weight(values))


def _spend_replace(text: str, old: str, new: str, *_: Any) -> None:
    spend(len(text) + (text.count(old) if old else len(text) + 1) * len(new))


def _spend_width(text: str, width: int = 80, *_: Any) -> None:
    spend(max(width, 0))


_METHODS: dict[str, Callable[..., None]] = {  # of str
    "replace": _spend_replace,
    "center": _spend_width, "ljust": _spend_width, "rjust": _spend_width, "zfill": _spend_width,
    "expandtabs": lambda text, size=8: spend(text.count("\t") * max(size, 0)),
    "format": lambda text, *values, **named: _spend_format(text, [values, named], "{"),
    "join": lambda text, items: spend(weight(items) + len(text) * len(items)),
}  # fmt: skip
_SCOPES = ("_loop_vars", "_block_vars")  # which jinja passes along from inside loops and blocks
_REFUSED_METHODS = ("format_map", "translate", "maketrans")


def _arithmetic(operator: str, left: Any, right: Any) -> None:
    """Charge for an operator before it is applied."""
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * abs(right) if operator == "**" else 0
        if operator == "*":
            bits = left.bit_length() + right.bit_length()
        if bits > _MAX_BITS:
            raise TooMuch(f"{operator} would make a number of {bits} bits")
    elif operator == "*":
        spend(max(0, *(n * weight(x) for n, x in ((left, right), (right, left))
                        if isinstance(n, int)), 0))  # fmt: skip
    elif operator == "%" and isinstance(left, str):
        _spend_format(left, right)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja as chat templates need it, in a sandbox that charges a Budget."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", GenerationTag],
            finalize=charged_text,
        )
        for name in _REFUSED_FILTERS:
            del self.filters[name]
        self.filters |= _FILTERS
        self.filters = {name: _bounded_filter(made) for name, made in self.filters.items()}
        self.filters |= {
            "_spend": _spend_loop,
            "_weighed": _weighed_literal,
            "_concat": _concat,
            "_add": _add,
        }
        del self.globals["lipsum"]
        self.globals |= {
            "namespace": _Namespace,
            "raise_exception": _refuse,
            "strftime_now": lambda form: datetime.now().strftime(form[:_MAX_FORM]),
        }

    def bounded_template(self, source: str) -> jinja2.Template:
        """Return a compiled template whose loops, lists and texts are charged."""
        tree = _Charging(self).visit(self.parse(source))
        return self.template_class.from_code(self, self.compile(tree), self.make_globals(None))

    def call_binop(self, context: runtime.Context, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator that can make values larger."""
        _arithmetic(operator, left, right)
        return weighed(super().call_binop(context, operator, left, right))

    def call(__self, __context: runtime.Context, __obj: Any, *args: Any, **named: Any) -> Any:
        """Call a method, a macro or a function."""
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(owner, str):
            if name in _REFUSED_METHODS:
                raise TooMuch(f"str.{name} is not taken here")
            if name == "join":
                args = tuple(map(list, args))
            if name in _METHODS:
                own = {k: v for k, v in named.items() if k not in _SCOPES}
                _METHODS[name](owner, *args, **own)
        return charged(super().call(__context, __obj, *args, **named))


def _bounded_filter(made: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(made)  # and with it what jinja passes first
    def bounded(*args: Any, **named: Any) -> Any:
        return charged(made(*args, **named))

    return bounded


# --- filters -----------------------------------------------------------------------------------

_REFUSED_FILTERS = ("pprint", "striptags", "sum", "urlize", "wordwrap", "xmlattr")


def _tojson(value: Any, indent: int | None = None, **options: Any) -> str:
    spend(weight(value) * (1 + min(max(indent or 0, 0), 1 << 20)))
    return json.dumps(value, indent=indent, **({"ensure_ascii": False} | options))


def _indent(s: str, width: int | str = 4, *args: Any, **options: Any) -> str:
    by = len(width) if isinstance(width, str) else max(width, 0)
    spend((s.count("\n") + 1) * by)
    text: str = _DEFAULT["indent"](s, width, *args, **options)
    return text


def _center(value: str, width: int = 80) -> str:
    spend(max(width, 0))
    return str(value).center(width)


def _format(value: str, *args: Any, **named: Any) -> str:
    _spend_format(str(value), args or named)
    return str(value) % (named or args)


def _replace(s: str, old: str, new: str, count: int | None = None) -> str:
    _spend_replace(str(s), str(old), str(new))
    return str(s).replace(str(old), str(new), -1 if count is None else count)


@jinja2.pass_eval_context
def _join(context: Any, value: Any, d: str = "", attribute: Any = None) -> str:
    items = list(value)
    spend(weight(items) + len(items) * len(str(d)))
    text: str = _DEFAULT["join"](context, items, d, attribute)
    return text


def _round(value: float, precision: int = 0, method: Any = "common") -> float:
    rounded: float = _DEFAULT["round"](value, min(precision, 300), method)
    return rounded


def _counted(name: str) -> Callable[..., Any]:
    """Return batch or slice, which fill up to a number."""

    def filled(value: Any, *args: Any, **named: Any) -> Any:
        spend(next(iter((*args, *named.values()))))
        return _DEFAULT[name](value, *args, **named)

    return filled


_FILTERS: dict[str, Callable[..., Any]] = {
    "tojson": _tojson, "indent": _indent, "center": _center, "format": _format,
    "replace": _replace, "join": _join, "round": _round,
    "batch": _counted("batch"), "slice": _counted("slice"),
}  # fmt: skip


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


# --- the tree ----------------------------------------------------------------------------------


@jinja2.pass_context  # with a context they are not evaluated while the template is compiled
def _spend_loop(context: runtime.Context, size: int) -> None:
    spend(1 + size)


@jinja2.pass_context
def _weighed_literal(context: runtime.Context, value: Any) -> Any:
    return weighed(value)


@jinja2.pass_context
def _concat(context: runtime.Context, parts: list[Any]) -> str:
    spend(sum(map(weight, parts)))
    return "".join(map(str, parts))


@jinja2.pass_context
def _add(context: runtime.Context, parts: list[Any]) -> Any:
    """Return the sum of several operands; most templates join texts so."""
    if {*map(type, parts)} == {str}:
        spend(sum(map(len, parts)))
        return "".join(parts)
    total = parts[0]
    for part in parts[1:]:
        spend(sum(len(each) if hasattr(each, "__len__") else 1 for each in (total, part)))
        total = weighed(total + part)
    return total


_CHARGES: dict[str, Callable[..., Any]] = {
    "_spend": _spend_loop, "_weighed": _weighed_literal, "_concat": _concat, "_add": _add,
}  # fmt: skip


class _Charging(visitor.NodeTransformer):
    """Puts charges into a tree: bodies that are run again and again, literals, `~`."""

    def __init__(self, environment: BoundedEnvironment) -> None:
        self._environment = environment

    def visit_For(self, node: Any) -> Any:
        self.generic_visit(node)
        node.body = self._charged_body(node.body, node.lineno)
        return node

    visit_Macro = visit_CallBlock = visit_For

    def visit_If(self, node: nodes.If) -> nodes.Node:
        self.generic_visit(node)
        node.body = self._charged_body(node.body, node.lineno, always=False)
        node.else_ = self._charged_body(node.else_, node.lineno, always=False)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return self._filter(nodes.List(node.nodes, lineno=node.lineno), "_concat")

    def visit_Add(self, node: nodes.Add) -> nodes.Node:
        operands: list[nodes.Expr] = []
        left: nodes.Expr = node
        while isinstance(left, nodes.Add):
            operands.insert(0, self.visit(left.right))
            left = left.left
        operands.insert(0, self.visit(left))
        return self._filter(nodes.List(operands, lineno=node.lineno), "_add")

    def visit_List(self, node: Any) -> Any:
        self.generic_visit(node)
        items = [item.value if isinstance(item, nodes.Pair) else item for item in node.items]
        fixed = all(isinstance(item, nodes.Const) for item in items)
        return node if fixed else self._filter(node, "_weighed")

    visit_Dict = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> Any:
        if node.ctx == "load":
            return self.visit_List(node)
        self.generic_visit(node)
        return node

    def _charged_body(
        self, body: list[nodes.Node], lineno: int, always: bool = True
    ) -> list[nodes.Node]:
        """Return a body that begins with a charge for the text that stands in it, if any."""
        outputs = [node for node in body if isinstance(node, nodes.Output)]
        texts = [text for output in outputs for text in output.nodes]
        size = sum(len(text.data) for text in texts if isinstance(text, nodes.TemplateData))
        if not size and not always:
            return body
        charge = self._filter(nodes.Const(size, lineno=lineno), "_spend")
        return [nodes.ExprStmt(charge, lineno=lineno), *body]

    def _filter(self, node: Any, name: str) -> nodes.Filter:
        made = nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)
        made.set_environment(self._environment)
        return made


class GenerationTag(ext.Extension):
    """`{% generation %}`, with which templates mark answers for training; its body is rendered."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> list[nodes.Node]:
        """Return the body."""
        next(parser.stream)
        body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return body
