"""Advice for keywords of JSON Schema that llguidance does not support."""

from __future__ import annotations

import re

_CHECK = "leave it out and check the answer"
_FIXED = "list the fields that there may be in properties, with additionalProperties false"
FORMATS = (
    "date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"
)  # fmt: skip
"""The formats of texts that llguidance knows."""

_BRANCHES = "write each case as a schema of its own and join them with anyOf"
_SAME_PLACE = "refer to a schema of this document: #/$defs/NAME"

_INSTEAD = {
    "$dynamicAnchor": _SAME_PLACE,
    "$dynamicRef": _SAME_PLACE,
    "$recursiveRef": _SAME_PLACE,
    "contains": "put what has to be there first, with prefixItems",
    "dependencies": _BRANCHES,
    "dependentRequired": _BRANCHES,
    "dependentSchemas": _BRANCHES,
    "else": _BRANCHES,
    "if": _BRANCHES,
    "maxContains": "bound the list with maxItems",
    "minContains": "bound the list with minItems",
    "not": "say what may be there: with enum, anyOf or a pattern",
    "propertyNames": "write it as patternProperties, with additionalProperties false, or list the "
    "names with enum",
    "then": _BRANCHES,
    "unevaluatedItems": "write it as items false, after prefixItems",
    "unevaluatedProperties": _FIXED,
}

_REASONS = (  # messages of llguidance, and edgespec's words for them
    (
        r"oneOf constraints are not supported\..*",
        "its oneOf has cases that may hold at once; write anyOf, or make the cases differ in the "
        "const of a field",
    ),
    (
        r"Resource '(.*)' is not present in a registry.*",
        rf"it refers to \1, and nothing is fetched; {_SAME_PLACE}",
    ),
    (
        r"Pointer '(.*)' does not exist",
        rf"it refers to #\1, which is not in it; {_SAME_PLACE}",
    ),
    (
        r"(?:.*: )?look-around, including look-ahead and look-behind, is not supported",
        "look-ahead and look-behind are not supported in a pattern; write what may be there",
    ),
    (
        r"(?:.*: )?backreferences are not supported",
        "a pattern cannot refer back to a group; write each case, with |",
    ),
    (
        r"Invalid type: (.*)",
        r"\1 is not a type; there are array, boolean, integer, null, number, object and string",
    ),
)


def in_our_words(error: str) -> str:
    """Return an error message of llguidance in edgespec's words, with advice on what to do instead.

    An unknown message is returned unchanged.
    """
    if match := re.fullmatch(r"Unimplemented keys: (\[.*\])", error):
        names = re.findall(r'"(.*?)"', match[1])
        advice = _INSTEAD.get(names[0], _CHECK)
        verb = "is" if len(names) == 1 else "are"
        return f"{' and '.join(map(repr, names))} {verb} not supported; {advice}"
    for pattern, ours in _REASONS:
        if match := re.fullmatch(pattern, error):
            return match.expand(ours)
    return error
