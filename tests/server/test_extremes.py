"""Every field of every request, however deep inside, with extreme values: refused or taken."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.helpers.selection import sample

EVERY = 7  # of the 34,000 requests: 1 tries all of them, in minutes
DEEP = "@deep@"  # in place of JSON that Python does not write
WRITTEN = {
    '"@deep@"': "[" * 100_000 + "]" * 100_000, '"@1e400@"': "1e400", '"@-1e400@"': "-1e400",
    '"@1e-400@"': "1e-400",
}  # fmt: skip
VALUES: list[Any] = [
    None, True, False, -1, 0, 1, 2, 20, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64,
    -(2**63), -(2**63) - 1, 10**400, -(10**400), 0.5, -0.5, -0.0, 1e308, -1e308, 1e-320,
    float("nan"), float("inf"), float("-inf"), "@1e400@", "@-1e400@", "@1e-400@",
    "", " ", "\0", "a\0b", "0x10", "1", "-1", "\ud800", "\udfff\ud800",
    "\u202eabc\u2066", "\x1b[2J",
    "x" * 100_000, "(" * 5000, "{" * 20_000, "a" * 50 + "*" * 50, "<|im_end|>", "𝔘" * 1000, "null",
    [], [[]], [None], [0], [-1], [2**31], [10**400], [0] * 100_000, [""], ["\ud800"], ["a"],
    ["x" * 100_000], ["a"] * 10_000, [{}] * 10_000, [[0]] * 1000, DEEP,
    {}, {"": ""}, {"a": DEEP}, {"1": 1e308}, {"0": -100}, {"-1": 1}, {"99999999999999999999": 1},
    {"9999999999": 100}, {"4294967296": 1}, {"1": None}, {"type": "object"}, {"type": []},
    {str(i): 1 for i in range(10_000)}, {"\ud800": 1}, {"type": "text"}, {"pattern": "(a+)+$" * 9},
    {"type": "string", "minLength": 2**63}, {"type": "integer", "maximum": 10**400},
]  # fmt: skip
SHORT = {"max_tokens": 3, "max_completion_tokens": 3, "max_output_tokens": 3}


class Requests:
    """The bodies of the requests that a description of the API knows."""

    def __init__(self, description: dict[str, Any]) -> None:
        self._schemas = description["components"]["schemas"]
        self.bodies = {
            path: methods["post"]["requestBody"]["content"]["application/json"]["schema"]
            for path, methods in description["paths"].items()
            if "post" in methods
        }

    def alternatives(self, schema: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the schemas that a value may follow, without references."""
        if reference := schema.get("$ref"):
            return self.alternatives(self._schemas[reference.rsplit("/", 1)[1]])
        choices = schema.get("anyOf") or schema.get("oneOf")
        return [s for choice in choices for s in self.alternatives(choice)] if choices else [schema]

    def sound(self, schema: dict[str, Any]) -> Any:
        """Return a small value of a schema."""
        kind = self.alternatives(schema)[0]
        if "const" in kind or "enum" in kind:
            return kind["const"] if "const" in kind else kind["enum"][0]
        if kind.get("type") == "object":
            properties = kind.get("properties", {})
            return {name: self.sound(properties[name]) for name in kind.get("required", ())}
        if kind.get("type") == "array":
            return [self.sound(kind["items"])] if kind.get("items") else []
        return {"string": "a", "integer": kind.get("minimum", 1), "boolean": True}.get(
            kind.get("type", ""), 1
        )

    def spoiled(self, schema: dict[str, Any], depth: int = 6) -> Iterator[Any]:
        """Yield values of a schema in which one field, at any depth, has an extreme value."""
        for kind in self.alternatives(schema) if depth else ():
            if kind.get("type") == "array" and kind.get("items"):
                yield from ([value] for value in self.spoiled(kind["items"], depth - 1))
            for name, field in kind.get("properties", {}).items():
                whole = self.sound(kind)
                for value in itertools.chain(VALUES, self.spoiled(field, depth - 1)):
                    yield whole | {name: value}


def written(body: Any) -> bytes:
    text = json.dumps(body)
    for placeholder, json_text in WRITTEN.items():
        text = text.replace(placeholder, json_text)
    return text.encode()


@pytest.fixture
def client(engine: Any, client_of: Any) -> TestClient:
    return client_of(max_body_bytes=8 << 20)


def requests(client: TestClient) -> Iterator[tuple[str, Any]]:
    """Yield paths and bodies."""
    known = Requests(client.get("/openapi.json").json())
    for path, schema in known.bodies.items():
        for kind in known.alternatives(schema):
            limits = {k: v for k, v in SHORT.items() if k in kind["properties"]}
            limits = dict(list(limits.items())[:1])
            for body in known.spoiled(kind):
                yield path, limits | body
    for value in VALUES:
        yield from ((path, value) for path in known.bodies)


def test_every_field_of_every_request(client: TestClient) -> None:
    """An answer or one sentence of what is wrong, in bounded time; no status of 500."""
    for path, body in sample(itertools.islice(requests(client), 0, None, EVERY), 13):
        content = written(body)
        begun = time.monotonic()
        answer = client.post(path, content=content, headers={"content-type": "application/json"})
        said = f"{path} {content[:300]!r} -> {answer.status_code} {answer.text[:300]}"
        assert answer.status_code == 200 or 400 <= answer.status_code < 500, said
        assert time.monotonic() - begun < 20, said
        if answer.status_code != 200:
            message = answer.json()["error"]["message"]
            assert 0 < len(message) < 2000, said
