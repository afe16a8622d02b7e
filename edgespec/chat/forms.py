"""Distinguishes requested forms from reasoning and calls by the beginning of an answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..constraints.texts import BLANKS
from ..errors import ConfigError
from .texts import MOST_BLANKS, escaped


def told_apart(
    kind: str,
    source: str,
    markers: Sequence[str],
    may_begin_with: Callable[[str], bool],
    compiled: Callable[[str, str], tuple[Any, str]],
) -> str:
    """Return a form that does not begin with any of these markers.

    source: the form as llguidance takes it. may_begin_with: returns True if the form can begin with
    a text. compiled: compiles a source of a kind, and returns the result and an error text. Raises
    ConfigError if a marker cannot be excluded, or nothing is left of the form then.
    """
    possible = [marker for marker in markers if _may_begin(marker, may_begin_with)]
    if not possible:
        return source
    lark = _beginning_otherwise(source, possible) if kind == "regex" else ""
    if lark and not compiled("answer", lark)[1]:
        return lark
    raise ConfigError(
        f"{kind} may begin with {possible[0]!r:.80}, with which this model begins its reasoning or "
        "calls; give it another beginning"
    )


def _beginning_otherwise(regex: str, markers: Sequence[str]) -> str:
    """Return the form of a regular expression, without its texts that begin with a marker."""
    pattern = json.loads(regex)["grammars"][0]["lark_grammar"].removeprefix("start: ").strip()
    others = (f" & /{not_beginning_with(marker, BLANKS)}/" for marker in markers)
    return f"start: FORM\nFORM: {pattern}{''.join(others)}\n"


def _may_begin(marker: str, may_begin_with: Callable[[str], bool]) -> bool:
    """Return True if a form can begin with a marker, or with blanks and a marker."""
    return any(may_begin_with(blanks + marker) for blanks in _blanks("", may_begin_with))


def _blanks(before: str, may_begin_with: Callable[[str], bool]) -> Iterator[str]:
    yield before
    for each in BLANKS if len(before) < MOST_BLANKS else "":
        if may_begin_with(before + each):
            yield from _blanks(before + each, may_begin_with)


def not_beginning_with(text: str, blanks: str = "") -> str:
    """Return an expression for texts that do not begin with `text`, or with blanks and `text`.

    The expression describes the allowed beginnings. llguidance intersects such an expression with
    counted repetitions at no cost, but gives up on the complement of the forbidden beginnings.
    """
    begun = [text[:n] for n in range(len(text))]
    other = (f"{escaped(text[:n])}[^{escaped(char)}]" for n, char in enumerate(text[1:], 1))
    first = f"[^{escaped(text[0] + blanks)}]"
    before = f"[{escaped(blanks)}]*" if blanks else ""
    whole = "|".join(map(escaped, begun))
    return f"(?s:{before}(?:(?:{'|'.join((first, *other))}).*|{whole}))"


def whole(lark: str, form: str | None) -> str:
    """Return a grammar joined with the grammar of a form, to which it refers as @form.

    form: a grammar in Lark's form or in llguidance's own. If it is None, `lark` is returned
    unchanged.
    """
    if form is None:
        return lark
    own = form.startswith("{")
    named = json.loads(form)["grammars"][0] if own else {"lark_grammar": form}
    return json.dumps({"grammars": [{"lark_grammar": lark}, {**named, "name": "form"}]})
