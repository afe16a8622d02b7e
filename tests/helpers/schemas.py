"""JSON schemas of many kinds, a random model that answers under them, and what it says."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgespec import ToyModel, ToyTokenizer
from edgespec.errors import ConfigError
from edgespec.loading.assembly import assemble

SUITE = Path(__file__).parents[1] / "data/json_schema_test_suite.json"
MOST = 400  # tokens of an answer
_WORDS = ['{"', '":', '","', "true", "false", "null", "00", "the ", "name", "ü", "λ", "語", "👋"]
_TEXTS = [*(chr(i) for i in range(32, 127)), "\n", *_WORDS]
_BYTES = [bytes([i]) for i in range(128, 256)]
END = len(_TEXTS) + len(_BYTES)
TOKENIZER = ToyTokenizer([*_TEXTS, *_BYTES, "</s>"], eog=[END])
_CLOSING = [i for i, text in enumerate(_TEXTS) if text in ('"', "}", "]", "0", "null")] + [END]


def suite() -> Iterator[tuple[str, Any]]:
    """Yield (name, schema) of JSON-Schema-Test-Suite."""
    for i, each in enumerate(json.loads(SUITE.read_text("utf-8"))["schemas"]):
        yield f"{each['file']} {i}: {each['description']}", each["schema"]


def own() -> Iterator[tuple[str, Any]]:
    """Yield (name, schema), a hundred of them."""
    yield from itertools.chain(
        _values(), _texts(), _arrays(), _objects(), _unions(), _recursive(), _commands()
    )


def _object(properties: dict[str, Any], optional: tuple[str, ...] = (), **more: Any) -> Any:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required,
            "additionalProperties": False} | more  # fmt: skip


def _values() -> Iterator[tuple[str, Any]]:
    for kind in ("boolean", "null", "integer", "number"):
        yield kind, {"type": kind}
    for low, high in ((0, 9), (-5, 5), (1, 1000), (-1000, -1), (99, 101), (0, 0), (7, 123456)):
        yield f"integer {low} to {high}", {"type": "integer", "minimum": low, "maximum": high}
        yield f"number {low} to {high}", {"type": "number", "minimum": low, "maximum": high}
    for low, high in ((0, 2), (-3, 3), (10, 12)):
        bounds = {"exclusiveMinimum": low, "exclusiveMaximum": high}
        yield f"integer between {low} and {high}", {"type": "integer"} | bounds
        yield f"number between {low} and {high}", {"type": "number"} | bounds
    for step in (2, 5, 10):
        yield f"a multiple of {step}", {
            "type": "integer", "multipleOf": step, "minimum": 0, "maximum": 100
        }  # fmt: skip


def _texts() -> Iterator[tuple[str, Any]]:
    for low, high in ((0, 0), (1, 1), (0, 5), (3, 8)):
        yield f"text of {low} to {high}", {"type": "string", "minLength": low, "maxLength": high}
    for pattern in ("^[a-z]{3}$", "^(ab|cd)+$", "^[0-9]{2}-[0-9]{2}$", "^ü[äöü]{0,3}$", "^語+x$"):
        yield f"text like {pattern}", {"type": "string", "pattern": pattern, "maxLength": 12}
    for form in ("date", "time", "date-time", "uuid", "ipv4", "email", "hostname", "duration"):
        yield f"a {form}", {"type": "string", "format": form}
    for values in (["a"], ["yes", "no"], ["ü", "語", "👋"], [1, "1", None, True], [[1], {"a": 2}]):
        yield f"one of {values}", {"enum": values}
    yield "a constant", {"const": {"deep": [1, {"er": "text"}]}}


def _arrays() -> Iterator[tuple[str, Any]]:
    digit = {"type": "integer", "minimum": 0, "maximum": 9}
    for low, high in ((0, 0), (1, 1), (0, 3), (2, 4)):
        yield f"{low} to {high} digits", {
            "type": "array", "items": digit, "minItems": low, "maxItems": high
        }  # fmt: skip
    for depth in range(1, 5):
        schema: Any = digit
        for _ in range(depth):
            schema = {"type": "array", "items": schema, "minItems": 1, "maxItems": 2}
        yield f"arrays {depth} deep", schema
    yield "a tuple", {
        "type": "array", "prefixItems": [digit, {"type": "boolean"}], "items": False, "minItems": 2
    }  # fmt: skip


def _objects() -> Iterator[tuple[str, Any]]:
    digit, flag = {"type": "integer", "minimum": 0, "maximum": 9}, {"type": "boolean"}
    for n in (0, 1, 2, 5, 12):
        yield f"{n} fields", _object({f"field_{i}": flag for i in range(n)})
        yield (
            f"{n} fields that may lack",
            _object({f"f{i}": flag for i in range(n)}, tuple(f"f{i}" for i in range(n))),
        )
    for depth in range(1, 6):
        schema: Any = digit
        for i in range(depth):
            schema = _object({f"level_{i}": schema, "ok": flag})
        yield f"objects {depth} deep", schema
    yield "a mapping", {"type": "object", "additionalProperties": digit, "maxProperties": 3}
    yield "keys of a pattern", {
        "type": "object", "patternProperties": {"^k[0-9]$": flag}, "additionalProperties": False
    }  # fmt: skip
    yield "unicode keys", _object({"größe": digit, "名前": flag, 'a b"c': flag})


def _unions() -> Iterator[tuple[str, Any]]:
    digit, flag = {"type": "integer", "minimum": 0, "maximum": 9}, {"type": "boolean"}
    text = {"type": "string", "maxLength": 4}
    for n, kinds in enumerate(itertools.combinations([digit, flag, text, {"type": "null"}], 2)):
        yield f"any of two, {n}", {"anyOf": list(kinds)}
    yield "a date or nothing", {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]}
    yield "one of three objects", {"anyOf": [_object({k: digit}) for k in ("a", "ab", "abc")]}
    yield "types in a list", {"type": ["integer", "null", "boolean"]}
    yield "a tagged union", {
        "oneOf": [
            _object({"kind": {"const": "circle"}, "radius": digit}),
            _object({"kind": {"const": "box"}, "sides": {"type": "array", "items": digit,
                                                        "minItems": 2, "maxItems": 2}}),
        ]
    }  # fmt: skip
    yield "all of two", {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 8}]}


def _recursive() -> Iterator[tuple[str, Any]]:
    node = _object({"value": {"type": "boolean"}, "next": {"anyOf": [{"type": "null"},
                   {"$ref": "#/$defs/node"}]}})  # fmt: skip
    yield "a linked list", {"$ref": "#/$defs/node", "$defs": {"node": node}}
    tree = _object({"left": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}, "n": {"type": "null"}})
    yield "a tree", tree
    several = {"type": "array", "items": {"$ref": "#/$defs/e"}, "maxItems": 2}
    expression = {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9}, several]}
    yield "an expression", {"$ref": "#/$defs/e", "$defs": {"e": expression}}


def _commands() -> Iterator[tuple[str, Any]]:
    metres = {"type": "number", "minimum": 0, "maximum": 10}
    for action in ("move", "turn", "grip", "say", "look", "wait", "stop"):
        yield f"the command {action}", _object(
            {"action": {"const": action}, "distance": metres, "sure": {"type": "boolean"},
             "why": {"type": "string", "maxLength": 20}}, ("distance", "why"),
        )  # fmt: skip
    point = _object({"x": metres, "y": metres})
    yield "a path", _object({"path": {"type": "array", "items": point, "minItems": 1,
                                      "maxItems": 3}})  # fmt: skip
    yield "an extraction", _object({
        "name": {"type": "string", "maxLength": 10}, "born": {"type": "string", "format": "date"},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 3},
        "address": {"anyOf": [{"type": "null"}, point]},
    })  # fmt: skip


class Answered(NamedTuple):
    """What became of the answers under a schema. refused: why it cannot be followed, else ""."""

    refused: str = ""
    texts: tuple[str, ...] = ()
    n_cut: int = 0


def answers(schema: Any, n: int, method: str = "suffix,forced") -> Answered:
    """Return n answers of a random model that comes to an end by and by."""
    target = ToyModel(_probs, vocab_size=TOKENIZER.vocab_size, n_ctx=2 * MOST)
    texts, n_cut = [], 0
    with assemble(target, TOKENIZER, None, {"method": method}) as engine:
        for seed in range(n):
            try:
                found = engine.generate(
                    "a" * (1 + seed), schema=schema, temperature=1.0, seed=seed, max_tokens=MOST
                )
            except ConfigError as error:
                return Answered(str(error))
            if found.finish_reason == "stop":
                texts.append(found.text)
            else:
                n_cut += 1
    return Answered("", tuple(texts), n_cut)


def value_of(text: str) -> Any:
    """Return the value of an answer; numbers beyond those of a computer are the largest of them."""
    return json.loads(text, parse_float=lambda x: max(-1e308, min(1e308, float(x))))


def _probs(tokens: Any) -> Any:
    rng = np.random.default_rng([len(tokens), *tokens[-3:]])
    probs = rng.exponential(size=TOKENIZER.vocab_size) ** 3
    probs[_CLOSING] *= 1 + len(tokens) ** 2 / 20
    return probs / probs.sum()
