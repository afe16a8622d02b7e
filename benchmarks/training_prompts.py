"""Make a file of prompts for `edgespec train` from two public collections.

    python -m benchmarks.training_prompts data_full.json seed_tasks.jsonl [MORE...] -o prompts.jsonl

data_full.json: CLINC150, what people say to an assistant, 150 intents (Larson et al., 2019;
Creative Commons Attribution 3.0), from github.com/clinc/oos-eval, folder data. Of each intent some
queries are taken. seed_tasks.jsonl: the seed tasks of Self-Instruct (Wang et al., 2022;
Apache-2.0), from github.com/yizhongw/self-instruct, folder data; the file
human_eval/user_oriented_instructions.jsonl there has the same form. The order is random, so that
the first prompts are a sample of all.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("intents", type=Path)
    parser.add_argument("tasks", type=Path, nargs="+")
    parser.add_argument("--of-each", type=int, default=8, help="queries of each intent")
    parser.add_argument("-o", "--out", type=Path, required=True)
    asked = parser.parse_args()
    prompts = [text for path in asked.tasks for text in tasks(path)]
    prompts += queries(asked.intents, asked.of_each)
    random.Random(0).shuffle(prompts)
    lines = [json.dumps({"prompt": text}, ensure_ascii=False) for text in prompts]
    asked.out.write_text("\n".join(lines) + "\n", "utf-8")
    print(f"{len(prompts)} prompts in {asked.out}")


def queries(path: Path, of_each: int) -> list[str]:
    """Return so many queries of each intent of CLINC150."""
    texts = defaultdict(list)
    for text, intent in json.loads(path.read_text("utf-8"))["train"]:
        texts[intent].append(text)
    return [text for known in texts.values() for text in known[:of_each]]


def tasks(path: Path) -> list[str]:
    """Return the instructions of Self-Instruct's tasks, each with its first input."""
    texts = []
    for task in map(json.loads, path.read_text("utf-8").splitlines()):
        given = task["instances"][0]["input"]
        texts.append("\n\n".join(each for each in (task["instruction"], given) if each))
    return texts


if __name__ == "__main__":
    main()
