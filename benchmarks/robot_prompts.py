"""Make a file of prompts for `edgespec train` from one narrow domain: 400 commands to a robot.

    python -m benchmarks.robot_prompts -o robot.jsonl [--questions asked.jsonl]

Each has a system prompt that asks for the plan of the robot's actions as JSON. The commands are
made from templates, and their order is random. With --questions, 40 of them are written to that
file instead.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

SYSTEM = (
    "You control a small robot in an office. Answer each command with one JSON object and nothing "
    'else: {"actions": [{"action": "drive" | "pick_up" | "put_down" | "say" | "wait" | "look", '
    '"object": string or null, "place": string or null, "text": string or null}], "reason": one '
    "short sentence}."
)
OBJECTS = (
    "red box", "blue cup", "stapler", "green folder", "toolbox", "parcel for Ms Weber",
    "empty bottle", "spare battery", "first-aid kit", "laptop charger",
)  # fmt: skip
PLACES = (
    "kitchen", "charger", "meeting room 2", "front desk", "shelf 3", "Anna's desk", "the printer",
    "storage room", "the lift", "workshop",
)  # fmt: skip
COMMANDS = (
    "Bring the {o} from the {p} to the {q}.",
    "Could you fetch the {o}? It should be in the {p}.",
    "Go to the {p} and tell everybody that lunch is in ten minutes.",
    "Drive to the {p}, wait there for a minute, then come back to the {q}.",
    "Look whether the {o} is still in the {p}, and say what you see.",
    "Put the {o} down at the {p} and then drive to the {q}.",
    "I lost my {o}; look for it in the {p} first, then in the {q}.",
    "Take the {o} to the {p}, but go past the {q} and say hello.",
    "Please tidy up: the {o} belongs in the {p}.",
    "Your battery is low. Leave the {o} in the {p} and drive to the charger.",
)
N_COMMANDS, N_QUESTIONS = 400, 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--questions", type=Path)
    args = parser.parse_args()
    lines = [
        json.dumps(
            {"messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]}
        )
        for text in commands()
    ]
    n_asked = N_QUESTIONS if args.questions else 0
    for file, part in ((args.out, lines[n_asked:]), (args.questions, lines[:n_asked])):
        if part:
            file.write_text("\n".join(part) + "\n", "utf-8")
            print(f"{len(part)} prompts in {file}")


def commands() -> list[str]:
    """Return the commands, each once."""
    generator, made = random.Random(7), set[str]()
    while len(made) < N_COMMANDS:
        p, q = generator.sample(PLACES, 2)
        text = generator.choice(COMMANDS).format(o=generator.choice(OBJECTS), p=p, q=q)
        made.add(text.replace("the the", "the").replace("the Anna", "Anna"))
    ordered = sorted(made)
    generator.shuffle(ordered)
    return ordered


if __name__ == "__main__":
    main()
