"""The part of Jinja that chat templates may use, with a limit on each feature.

A template is a program that came with the model. It is rendered in this process, where it cannot be
killed. It can use only the statements, operators, methods, filters, tests and functions that are
listed here, which are those that published templates use. An operation whose result can be larger
than its inputs is charged to the budget before it is done; all others are charged afterwards.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, ItemsView, Iterable, KeysView
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import ext, meta, nodes, runtime, utils, visitor
from jinja2.filters import FILTERS as _DEFAULT
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.tests import TESTS
from markupsafe import Markup, escape

from .template_budget import JsonText, TooMuch, charged, listed, spend, text_of, weighed, weight

_MAX_WIDTH = 100  # the largest argument of indent, strip and similar
_MAX_FORM = 200  # characters of a format for strftime_now
_ESCAPED = 5  # most characters that one becomes when a text is escaped to join a safe text
_SCOPES = ("_loop_vars", "_block_vars")  # arguments that jinja adds to calls in loops and blocks

NODES = {
    "Template", "Output", "TemplateData", "Name", "NSRef", "Const", "Getattr", "Getitem",
    "Slice", "Call", "Keyword", "Filter", "Test", "If", "For", "Break", "Continue", "Macro",
    "CallBlock", "FilterBlock", "With", "Assign", "AssignBlock", "CondExpr", "Compare", "Operand",
    "And", "Or", "Not", "Add", "Sub", "Mul", "Div", "FloorDiv", "Mod", "Neg", "Pos", "Concat",
    "List", "Tuple", "Dict", "Pair",
}  # fmt: skip
"""The allowed statements and operators, by their names in jinja2.nodes."""
_AS_WRITTEN = {"Pow": "**", "Scope": "autoescape", "FromImport": "from ... import"}


def _missing(what: str) -> NoReturn:
    raise jinja2.TemplateRuntimeError(f"{what} does not exist in chat templates here")


def _narrow(what: str, width: int) -> None:
    if width > _MAX_WIDTH:
        raise TooMuch(f"{what} takes up to {_MAX_WIDTH}, not {width}")


def _growth(*values: Any) -> int:
    """Return the factor by which escaping can lengthen a text that is joined from these values."""
    return _ESCAPED if any(isinstance(value, Markup) for value in values) else 1


# --- methods -----------------------------------------------------------------------------------


def _split(text: str, sep: str | None = None, maxsplit: int = -1) -> list[str]:
    pieces = 1 + (text.count(sep) if sep else len(text) // 2)
    spend(_PIECE * (pieces if maxsplit < 0 else min(pieces, 1 + maxsplit)))
    return text.split(sep, maxsplit)


def _splitlines(text: str) -> list[str]:
    spend(_PIECE * _count_lines(text))
    return text.splitlines()


def _count_lines(text: str) -> int:
    return 1 + sum(map(text.count, "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"))


def _replace(text: str, old: str, new: str, count: int = -1) -> str:
    if isinstance(text, Markup):
        return Markup(_replace(str(text), str(old), str(escape(new)), count))
    spend(len(text) + (text.count(old) if old else len(text) + 1) * len(new))
    return text.replace(old, new, count)


def _join(text: str, values: Any) -> str:
    items = listed(values)
    spend(sum(map(weight, items)) * _growth(text) + len(items) * len(text))
    return text.join(items)


def _format(text: str, *values: Any, **named: Any) -> str:
    if not _FIELDS.fullmatch(text):
        raise TooMuch(f"the format {text[:40]!r} has more than {{}}, {{0}} and {{name}}")
    spend(len(text) + text.count("{") * (weight(values) + weight(named)) * _growth(text))
    return text.format(*values, **named)


def _stripped(name: str) -> Callable[..., str]:
    def strip(text: str, chars: str | None = None) -> str:
        _narrow(name, len(chars or ""))
        made: str = getattr(text, name)(chars)
        return made

    return strip


def _cased(name: str) -> Callable[..., str]:
    def change(text: str) -> str:
        spend(3 * len(text))  # one character can become three
        made: str = getattr(text, name)()
        return made

    return change


_PIECE = 20  # characters that are charged for each piece of a split text
_FIELDS = re.compile(r"(?:[^{}]|\{\{|\}\}|\{\w*\})*")

METHODS: dict[type, dict[str, Callable[..., Any]]] = {
    str: {
        "startswith": str.startswith, "endswith": str.endswith,
        "strip": _stripped("strip"), "lstrip": _stripped("lstrip"), "rstrip": _stripped("rstrip"),
        "split": _split, "splitlines": _splitlines,
        "replace": _replace, "join": _join, "format": _format,
        "upper": _cased("upper"), "lower": _cased("lower"),
        "title": _cased("title"), "capitalize": _cased("capitalize"),
    },
    dict: {"get": dict.get, "items": dict.items, "keys": dict.keys, "values": dict.values},
}  # fmt: skip
"""The allowed methods of each type. Other types have none."""
LOOP = {
    "index", "index0", "revindex", "revindex0", "first", "last", "length", "previtem",
    "nextitem",
}  # fmt: skip
"""The allowed attributes of `loop`."""


# --- filters -----------------------------------------------------------------------------------


def _tojson(
    value: Any,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    ensure_ascii: bool = False,
    sort_keys: bool = False,
) -> str:
    if isinstance(value, JsonText):
        return str(value)
    _narrow("the indent of tojson", indent or 0)
    for each in separators or ():
        _narrow("a separator of tojson", len(each))
    spend(weight(value))
    encoder = json.JSONEncoder(
        indent=indent, separators=separators, ensure_ascii=ensure_ascii, sort_keys=sort_keys
    )
    if indent is None and separators is None:
        return encoder.encode(value)
    return "".join(map(text_of, encoder.iterencode(value)))  # charges each piece, unlike encode


def _indent(value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    text, by = text_of(value), width if isinstance(width, str) else " " * min(width, _MAX_WIDTH + 1)
    _narrow("indent", len(by))
    spend(_count_lines(text) * (_PIECE + len(by)))
    made: str = _DEFAULT["indent"](text, by, first, blank)
    return made


@jinja2.pass_eval_context
def _joined(context: Any, value: Any, d: str = "", attribute: Any = None) -> str:
    items = listed(value)
    spend(sum(map(weight, items)) + len(items) * len(str(d)))
    made: str = _DEFAULT["join"](context, items, d, attribute)
    return made


@jinja2.pass_environment
def _sort(
    environment: Any,
    value: Any,
    reverse: bool = False,
    case_sensitive: bool = False,
    attribute: Any = None,
) -> Any:
    _narrow("the attribute of sort", len(str(attribute)))
    items = weighed(listed(value))
    spend(weight(items) * len(items).bit_length())
    return _DEFAULT["sort"](environment, items, reverse, case_sensitive, attribute)


def _dictsort(value: Any, *args: Any, **named: Any) -> Any:
    spend(weight(value) * len(value).bit_length())
    return _DEFAULT["dictsort"](value, *args, **named)


def _titled(value: Any) -> str:
    text = text_of(value)
    spend(2 * _PIECE * len(text))
    made: str = _DEFAULT["title"](text)
    return made


def _of_text(method: str) -> Callable[..., Any]:
    """Return a filter that converts any value to text and applies a method of str to it."""
    return lambda value, *args, **named: METHODS[str][method](text_of(value), *args, **named)


_FOR_EACH = {"map", "select", "reject", "selectattr", "rejectattr", "unique", "min", "max"}
_AS_IN_JINJA = {  # their results are no larger than their inputs
    "default", "d", "length", "count", "items", "first", "last", "reverse", "int", "safe",
    *_FOR_EACH,
}  # fmt: skip
FILTERS: dict[str, Callable[..., Any]] = {name: _DEFAULT[name] for name in _AS_IN_JINJA} | {
    "string": text_of,
    "trim": _of_text("strip"), "upper": _of_text("upper"), "lower": _of_text("lower"),
    "capitalize": _of_text("capitalize"), "title": _titled,
    "replace": lambda s, old, new, count=None: _replace(
        str(text_of(s)), text_of(old), text_of(new), -1 if count is None else count
    ),
    "list": listed, "join": _joined, "sort": _sort, "dictsort": _dictsort,
    "tojson": _tojson, "indent": _indent,
}  # fmt: skip
"""The allowed filters."""


def _bounded(name: str, made: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that charges its result and every item that it iterates over.

    The filter takes a context, so that jinja does not call it while a template is compiled.
    """
    wanted = getattr(made, "jinja_pass_arg", None)

    @jinja2.pass_context
    def bounded(context: runtime.Context, value: Any, *args: Any, **named: Any) -> Any:
        if name in _FOR_EACH and isinstance(value, Iterable):
            value = charged(iter(value))
        texts = [each for each in (*args, *named.values()) if isinstance(each, str)]
        spend(_PIECE * sum(text.count(".") for text in texts))  # attributes are split at dots
        passed: dict[Any, Any] = {
            utils._PassArg.context: context,
            utils._PassArg.eval_context: context.eval_ctx,
            utils._PassArg.environment: context.environment,
        }
        first = [passed[wanted]] if wanted else []
        return charged(made(*first, value, *args, **named))

    return bounded


# --- tests and functions -----------------------------------------------------------------------

TEST_NAMES = {
    "defined", "undefined", "none", "boolean", "true", "false", "string", "number", "integer",
    "float", "mapping", "iterable", "sequence", "odd", "even", "divisibleby", "in", "equalto",
    "==", "eq", "!=", "ne", ">", "gt", "greaterthan", ">=", "ge", "<", "lt", "lessthan", "<=",
    "le", "filter", "test",
}  # fmt: skip
"""The allowed tests."""


class _Namespace(utils.Namespace):
    def __init__(self, **named: Any) -> None:
        super().__init__(**named)

    def __repr__(self) -> str:  # its values can contain the namespace itself
        return "<Namespace>"


def _refuse(message: Any) -> NoReturn:
    raise jinja2.TemplateError(text_of(message))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "namespace": _Namespace,
    "dict": lambda *pairs, **named: dict(*pairs, **named),  # the class has an attribute items
    "range": safe_range,
    "raise_exception": _refuse,
    "strftime_now": lambda form: datetime.now().strftime(form[:_MAX_FORM]),
}
"""The allowed functions."""


# --- the environment ---------------------------------------------------------------------------


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A Jinja environment with only the features listed above, which are charged to a Budget."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", GenerationTag],
            optimized=False,  # its time grows with the square of the depth of expressions
            finalize=jinja2.pass_context(lambda context, value: text_of(value)),
        )
        own = {"_made": lambda value: value, "_concat": _concat}
        self.filters = {name: _bounded(name, made) for name, made in (FILTERS | own).items()}
        self.tests = {name: TESTS[name] for name in TEST_NAMES}
        self.globals = dict(FUNCTIONS)

    def bounded_template(self, source: str) -> jinja2.Template:
        """Return a compiled template that charges for its loops, lists and texts."""
        tree = _Charging(self).visit(self.parse(source))
        return self.template_class.from_code(self, self.compile(tree), self.make_globals(None))

    def variables_of(self, source: str) -> set[str]:
        """Return the names of the variables that a template expects."""
        generator = meta.TrackingCodeGenerator(self)
        generator.optimizer = None
        generator.visit(self.parse(source))
        return generator.undeclared_identifiers

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return True if templates may use this attribute."""
        if isinstance(obj, utils.Namespace):
            return not attr.startswith("_")
        if isinstance(obj, runtime.LoopContext):
            return attr in LOOP
        return attr in _methods(obj)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Return an item or, if there is none, an attribute that templates may use."""
        spend(1)
        return super().getitem(obj, argument)

    def wrap_str_format(self, value: Any) -> None:
        """Return None: str.format is a method like others, and str.format_map is not listed."""

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Raise an error for an attribute that is not listed."""
        _missing(f"{type(obj).__name__.strip('_').lower()}.{attribute}")

    def call_binop(self, context: runtime.Context, operator: str, left: Any, right: Any) -> Any:
        """Charge for the result of an arithmetic operator, then compute it."""
        if operator == "+":
            size = sum(len(each) if hasattr(each, "__len__") else 1 for each in (left, right))
            spend(size * _growth(left, right))
        elif operator == "*":
            spend(_repeated(left, right) + _repeated(right, left))
        elif isinstance(left, (str, KeysView, ItemsView)):
            _missing(f"{type(left).__name__} {operator}")
        return weighed(super().call_binop(context, operator, left, right))

    def call(__self, __context: runtime.Context, __obj: Any, *args: Any, **named: Any) -> Any:
        """Charge for a call of a method, a macro or a function, then make it."""
        spend(_PIECE * (1 + len(args) + len(named)))
        owner = getattr(__obj, "__self__", None)
        bounded = _methods(owner).get(getattr(__obj, "__name__", ""))
        if bounded:
            own = {name: value for name, value in named.items() if name not in _SCOPES}
            return charged(bounded(owner, *args, **own))
        return charged(super().call(__context, __obj, *args, **named))


def _methods(value: Any) -> dict[str, Callable[..., Any]]:
    return next((each for kind, each in METHODS.items() if isinstance(value, kind)), {})


def _repeated(value: Any, n: Any) -> int:
    """Return the size of a value repeated n times, or 1 if it cannot be repeated."""
    is_repeated = isinstance(value, (str, list, tuple)) and isinstance(n, int)
    return max(0, n) * weight(value) if is_repeated else 1


def _concat(parts: list[Any]) -> str:
    return "".join(map(text_of, parts))


class _Charging(visitor.NodeTransformer):
    """Refuses syntax that is not listed, and inserts charges into a syntax tree."""

    def __init__(self, environment: BoundedEnvironment) -> None:
        self._environment = environment

    def visit(self, node: nodes.Node, *args: Any, **named: Any) -> Any:
        """Return the node that replaces a node. Raises TemplateRuntimeError if it is not listed."""
        if type(node).__name__ not in NODES:
            _missing(_AS_WRITTEN.get(type(node).__name__, type(node).__name__.lower()))
        return super().visit(node, *args, **named)

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:
        return nodes.Const(node.data, lineno=node.lineno)  # so that writing it is charged

    def visit_Const(self, node: nodes.Const) -> nodes.Node:
        weighed(node.value)
        return node

    def visit_For(self, node: Any) -> Any:
        self.generic_visit(node)
        nothing = nodes.Const("", lineno=node.lineno)  # writing it is charged: each round costs
        node.body = [nodes.Output([nothing], lineno=node.lineno), *node.body]
        return node

    visit_Macro = visit_CallBlock = visit_For

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return self._filter(nodes.List(node.nodes, lineno=node.lineno), "_concat")

    def visit_List(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        return self._filter(node, "_made")

    visit_Dict = visit_Test = visit_List

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:
        self.generic_visit(node)
        node.key = self._filter(node.key, "_made")
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        _narrow("a chain of comparisons", len(node.ops))
        return self.visit_List(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        made = self.visit_List(node)
        return made if node.ctx == "load" else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return self._filter(node, "_made") if isinstance(node.arg, nodes.Slice) else node

    def _filter(self, node: Any, name: str) -> nodes.Filter:
        made = nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)
        made.set_environment(self._environment)
        return made


class GenerationTag(ext.Extension):
    """The tag `{% generation %}`, which marks answers for training. Its body is rendered."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> list[nodes.Node]:
        """Return the body of the tag."""
        next(parser.stream)
        body: list[nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return body
