"""Forms beside reasoning and calls: which of them an answer follows, its beginning must tell."""

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
    """Return a form that does not begin with one of some markers.

    source: the form as llguidance takes it. may_begin_with: says whether it begins with a text.
    compiled: returns a compiled source of a kind, and what is wrong with it. Raises ConfigError
    where a marker cannot be taken out of the form, or nothing is left.
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
    """Return the form of a regular expression without what begins with a marker."""
    pattern = json.loads(regex)["grammars"][0]["lark_grammar"].removeprefix("start: ").strip()
    others = (f" & /{not_beginning_with(marker, BLANKS)}/" for marker in markers)
    return f"start: FORM\nFORM: {pattern}{''.join(others)}\n"


def _may_begin(marker: str, may_begin_with: Callable[[str], bool]) -> bool:
    """Return True if a form may begin with a marker, or with blanks before it."""
    return any(may_begin_with(blanks + marker) for blanks in _blanks("", may_begin_with))


def _blanks(before: str, may_begin_with: Callable[[str], bool]) -> Iterator[str]:
    yield before
    for each in BLANKS if len(before) < MOST_BLANKS else "":
        if may_begin_with(before + each):
            yield from _blanks(before + each, may_begin_with)


def not_beginning_with(text: str, blanks: str = "") -> str:
    """Return an expression of texts that do not begin with one, or with blanks and it.

    It says what they begin with instead: llguidance intersects that with counted repetitions at
    no cost, and gives up on the complement of what they must not be.
    """
    begun = [text[:n] for n in range(len(text))]
    other = (f"{escaped(text[:n])}[^{escaped(char)}]" for n, char in enumerate(text[1:], 1))
    first = f"[^{escaped(text[0] + blanks)}]"
    before = f"[{escaped(blanks)}]*" if blanks else ""
    whole = "|".join(map(escaped, begun))
    return f"(?s:{before}(?:(?:{'|'.join((first, *other))}).*|{whole}))"


def whole(lark: str, form: str | None) -> str:
    """Return a grammar together with that of the form to which it refers as @form.

    form: in Lark's form, or llguidance's own.
    """
    if form is None:
        return lark
    own = form.startswith("{")
    named = json.loads(form)["grammars"][0] if own else {"lark_grammar": form}
    return json.dumps({"grammars": [{"lark_grammar": lark}, {**named, "name": "form"}]})
