"""Published chat templates, conversations to render with them, and Jinja without bounds."""

from __future__ import annotations

import csv
import functools
import hashlib
import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from edgespec.chat.template_limits import GenerationTag

PUBLISHED = Path(__file__).parents[1] / "data/templates"
MORE = "EDGESPEC_TEST_TEMPLATES"  # a folder with templates of one's own
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def published() -> list[Path]:
    """Return the files of all templates, those of the folder in $EDGESPEC_TEST_TEMPLATES too."""
    folders = [PUBLISHED, *map(Path, filter(None, [os.environ.get(MORE)]))]
    return sorted(path for folder in folders for path in folder.rglob("*.jinja"))


@functools.cache
def listed() -> dict[str, str]:
    """Return the SHA-256 of each template of the collection, by its name."""
    with (PUBLISHED / "collection.csv").open(encoding="utf-8", newline="") as file:
        return {row["name"]: row["sha256"] for row in csv.DictReader(file)}


def source_of(name: str) -> str:
    """Return a template of the collection. Skips the test if its licence keeps the file away."""
    for path in published():
        if path.stem == name and hashlib.sha256(path.read_bytes()).hexdigest() == listed()[name]:
            return path.read_text("utf-8")
    pytest.skip(f"{name}.jinja is not here, for its licence; put it into ${MORE}")


def _said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def _called(arguments: Any, identifier: str = "call12345") -> dict[str, Any]:
    call = {"name": "get_weather", "arguments": arguments}
    return {"id": identifier, "type": "function", "function": call}


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Tells the weather <now> & later.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "The city", "enum": ["Köln", "Ulm"]},
                    "days": {"type": ["integer", "null"], "default": 2},
                    "where": {"type": "object", "properties": {"x": {"type": "number"}}},
                    "tags": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["city"],
            },
            "return": {"type": "object", "properties": {"text": {"type": "string"}}},
        },
    },
    {"type": "function", "function": {"name": "now", "description": "", "parameters": {}}},
]
_SYSTEM = _said("system", "Be kind.\n\nCutting Knowledge Date: < & > 'é'")
_ASKED, _MORE = _said("user", " Hello, \n<b>you</b> "), _said("user", "And then? 你好 😀")
_PLAIN = _said("assistant", "Hi & bye.")
_ARGUMENTS = {"city": "Köln", "days": 3, "deep": {"a": [1, 2.5, None, True, "x"]}, "tags": []}
_RESULT = _said("tool", '{"rain": true}', name="get_weather", tool_call_id="call12345")
_TOOL_TURN = [_said("assistant", None, tool_calls=[_called(_ARGUMENTS)]), _RESULT]
_PARTS = [{"type": "text", "text": "What is"}, {"type": "text", "text": " this?"}]

CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "one": ([_ASKED], {}),
    "turns": ([_ASKED, _PLAIN, _MORE], {}),
    "system": ([_SYSTEM, _ASKED, _PLAIN, _MORE], {}),
    "ends with an answer": ([_SYSTEM, _ASKED, _PLAIN], {}),
    "developer": ([_said("developer", "Answer in verse."), _ASKED], {}),
    "system twice": ([_SYSTEM, _SYSTEM, _ASKED], {}),
    "begins with an answer": ([_PLAIN, _ASKED], {}),
    "user twice": ([_ASKED, _MORE], {}),
    "empty": ([], {}),
    "unknown role": ([_ASKED, _said("stranger", "?")], {}),
    "parts": ([_said("user", _PARTS), _PLAIN, _said("user", _PARTS[:1])], {}),
    "image": ([_said("user", [*_PARTS, {"type": "image"}])], {}),
    "thought": ([_ASKED, _said("assistant", "<think>\nso\n</think>\n\nyes"), _MORE], {}),
    "reasoning": ([_ASKED, _said("assistant", "yes", reasoning_content="so\n"), _MORE], {}),
    "thinking": ([_SYSTEM, _ASKED], {"enable_thinking": True, "thinking": True}),
    "no thinking": ([_ASKED, _PLAIN, _MORE], {"enable_thinking": False, "thinking": False}),
    "effort": ([_SYSTEM, _ASKED], {"reasoning_effort": "high", "thinking_budget": 512}),
    "tools": ([_SYSTEM, _ASKED], {"tools": TOOLS}),
    "tools without system": ([_ASKED], {"tools": TOOLS}),
    "one tool, no thinking": ([_ASKED], {"tools": TOOLS[:1], "enable_thinking": False}),
    "tool result": ([_ASKED, *_TOOL_TURN], {"tools": TOOLS}),
    "tool results": ([_SYSTEM, _ASKED, *_TOOL_TURN, _PLAIN, _MORE, *_TOOL_TURN], {"tools": TOOLS}),
    "two calls": (
        [
            _ASKED,
            _said("assistant", "", tool_calls=[_called({}, "aaaaaaaaa"), _called(_ARGUMENTS)]),
            _said("tool", "1", tool_call_id="aaaaaaaaa"),
            _said("tool", [{"type": "text", "text": "2"}], tool_call_id="call12345"),
        ],
        {"tools": TOOLS},
    ),
    "arguments as text": (
        [_ASKED, _said("assistant", "See:", tool_calls=[_called('{"city": "Ulm"}')]), _RESULT],
        {"tools": TOOLS},
    ),
    "calls that were thought about": (
        [_ASKED, {**_TOOL_TURN[0], "reasoning_content": "hm", "thinking": "hm"}, _RESULT],
        {"tools": TOOLS, "enable_thinking": True},
    ),
    "calls without tools": ([_ASKED, *_TOOL_TURN, _PLAIN, _MORE], {}),
    "documents": ([_ASKED], {"documents": [{"title": "A", "text": "a b", "doc_id": 1}]}),
    "functions": ([_ASKED], {"functions": "[]", "datetime": "2026-03-04", "guideline": "Be."}),
    "builtin tools": ([_ASKED], {"tools": TOOLS, "builtin_tools": ["browser", "python"]}),
}  # fmt: skip


class FixedDate(datetime):
    """A clock that has stopped, so that two renderings are the same."""

    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        """Return always the same time."""
        return datetime(2026, 3, 4, 5, 6, 7, tzinfo=tz)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


@functools.lru_cache(maxsize=1)
def _compiled(template: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationTag]
    )
    environment.filters["tojson"] = lambda value, ensure_ascii=False, **options: json.dumps(
        value, ensure_ascii=ensure_ascii, **options
    )
    environment.globals |= {
        "raise_exception": _refuse,
        "strftime_now": lambda form: FixedDate.now().strftime(form),
    }
    return environment.from_string(template)


def plain(template: str, messages: Any, variables: Any, generation: bool = True) -> str:
    """Render as Jinja does without bounds, with what is usual for chat templates."""
    told = {**SPECIAL, **variables, "messages": messages, "add_generation_prompt": generation}
    return _compiled(template).render(told)
