"""Calls of tools: how many parse, follow their schema and name the tools that the prompt needs.

    python -m benchmarks.tool_calls TARGET [--draft DRAFT] [--prompts 40] [--name NAME]

Forty requests to a robot at home: one call, calls with nested arguments, several calls, and none
needed. "required" has to call, "auto" may. Greedy, 300 tokens at most. "unmarked" counts answers
that name a tool in quotes but call none: models that write calls without their marker.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jsonschema_rs

import edgespec
from benchmarks.common import GREEDY, save


@dataclass
class Time:
    """A time of day."""

    hour: int
    minute: int


@dataclass
class Light:
    """What a lamp is to do."""

    room: Literal["kitchen", "bedroom", "hall", "living room"]
    brightness_percent: int
    colour: str = "white"


@dataclass
class Item:
    """Something to buy."""

    name: str
    amount: int


def drive(direction: Literal["forward", "backward", "left", "right"], centimetres: int) -> str:
    """Drive some way in a direction."""
    return "done"


def look(direction: Literal["ahead", "left", "right", "up"]) -> str:
    """Say what the camera sees in a direction."""
    return "nothing"


def weather(city: str, day: Literal["today", "tomorrow"] = "today") -> str:
    """Tell the weather forecast of a city."""
    return "sun"


def set_lights(lights: list[Light]) -> str:
    """Set one lamp or more."""
    return "done"


def remind(text: str, at: Time) -> str:
    """Remind the user of something at a time of day."""
    return "done"


def order(items: list[Item], deliver_at: Time | None = None) -> str:
    """Order things from the shop."""
    return "done"


TOOLS = (drive, look, weather, set_lights, remind, order)
CASES: dict[str, list[tuple[str, tuple[str, ...]]]] = {
    "one": [
        ("Drive 50 centimetres forward.", ("drive",)),
        ("Go back by thirty centimetres.", ("drive",)),
        ("Move 120 cm to the left.", ("drive",)),
        ("Turn the camera up and tell me what is there.", ("look",)),
        ("What is to your right?", ("look",)),
        ("Is the way ahead free?", ("look",)),
        ("What will the weather be like in Lyon tomorrow?", ("weather",)),
        ("Do I need an umbrella in Hamburg today?", ("weather",)),
        ("How warm is it in São Paulo?", ("weather",)),
        ("Come one metre closer.", ("drive",)),
        ('What is the weather in the city of "Bad \\"Quote\\" Town"?', ("weather",)),
        ("Roll to the right, 15 centimetres.", ("drive",)),
    ],
    "nested": [
        ("Remind me at 7:30 to water the plants.", ("remind",)),
        ("At a quarter past nine in the evening I have to call my mother. Remind me.", ("remind",)),
        ("Make the kitchen bright and the hall half as bright.", ("set_lights",)),
        ("Bedroom light to 10 percent, red.", ("set_lights",)),
        ("All lights off: kitchen, bedroom, hall and living room.", ("set_lights",)),
        ("Order six eggs and two bottles of milk.", ("order",)),
        ("We need 3 apples, 1 loaf of bread and 12 rolls by 8:00.", ("order",)),
        ("Buy one cake, to be delivered at 15:45.", ("order",)),
        ("The living room should be blue at 40 percent, the hall white at 80.", ("set_lights",)),
        ('Remind me at noon of {"tea": [1, 2]} exactly as written.', ("remind",)),
    ],
    "several": [
        ("Look to the left and to the right.", ("look", "look")),
        ("What is the weather in Rome and in Oslo?", ("weather", "weather")),
        ("Drive 20 cm forward, then 20 cm backward.", ("drive", "drive")),
        ("Remind me at 6:00 to get up, and tell me the weather in Bern.", ("remind", "weather")),
        ("Look ahead, and switch the kitchen light off.", ("look", "set_lights")),
        ("Order two pizzas and remind me at 19:00 to set the table.", ("order", "remind")),
        ("Compare the weather of today and tomorrow in Madrid.", ("weather", "weather")),
        ("Look in every direction: ahead, left, right, up.", ("look",) * 4),
        ("Remind me at 8:00, 12:00 and 18:00 to take my pill.", ("remind",) * 3),
        ("Drive 10 cm left, look ahead, then drive 10 cm right.", ("drive", "look", "drive")),
    ],
    "none": [
        ("What is 2 + 2?", ()),
        ("Say hello to my guests.", ()),
        ("Who wrote Faust?", ()),
        ("Tell me a joke about robots.", ()),
        ("Thank you, that was all.", ()),
        ("Write a Python function that adds two numbers.", ()),
        ("What can you do for me?", ()),
        ("Spell the word kitchen.", ()),
    ],
}


def answered(engine: edgespec.Engine, text: str, choice: str) -> edgespec.Completion:
    """Return what the model answers to a request, calls included."""
    chat = engine.chat("You are a robot in a home. Use your tools.", tools=TOOLS)
    return chat.send(text, tool_choice=choice, max_tokens=300)


def judged(
    done: edgespec.Completion, expected: tuple[str, ...], schemas: dict[str, Any]
) -> dict[str, Any]:
    """Return what is right and wrong with the calls of an answer."""
    parsed = valid = 0
    for call in done.tool_calls:
        try:
            arguments = json.loads(call.arguments)
        except ValueError:
            continue
        parsed += 1
        valid += call.name in schemas and jsonschema_rs.is_valid(schemas[call.name], arguments)
    named = any(f'"{name}"' in done.text for name in schemas)
    return {
        "ended": int(done.finish_reason == "stop"),
        "calls": len(done.tool_calls),
        "parsed": parsed,
        "valid": valid,
        "as_expected": int(Counter(c.name for c in done.tool_calls) == Counter(expected)),
        "unmarked": int(not done.tool_calls and named),
        "tokens": len(done.token_ids),
        "accepted": done.stats.num_accepted_draft_tokens,
    }


def main() -> None:
    """Ask, judge, and save the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--prompts", type=int, default=40, help="so many, of all kinds in turn")
    parser.add_argument("--name")
    given = parser.parse_args()
    longest = max(map(len, CASES.values()))
    cases = [
        (kind, *those[i]) for i in range(longest) for kind, those in CASES.items() if i < len(those)
    ][: given.prompts]
    result: dict[str, Any] = {}
    config = {"draft_memory": "off", "draft_corpus": ()}
    with edgespec.load(
        given.target, given.draft, n_ctx=2048, speculative_config=config, sampling=GREEDY
    ) as engine:
        schemas = {tool.name: dict(tool.parameters) for tool in engine.chat(tools=TOOLS).tools}
        for choice in ("required", "auto"):
            found: dict[str, Counter[str]] = {}
            for kind, text, expected in cases:
                done = answered(engine, text, choice)
                each = judged(done, expected, schemas)
                print(choice, kind, json.dumps(text), each, sep="\n  ")
                print("  " + "\n  ".join(map(repr, done.tool_calls or [done.text])))
                found.setdefault(kind, Counter()).update(each | {"answers": 1})
            result[choice] = {kind: dict(counts) for kind, counts in found.items()}
    print(json.dumps(result, indent=2))
    if given.name:
        save(given.name, result)


if __name__ == "__main__":
    main()
