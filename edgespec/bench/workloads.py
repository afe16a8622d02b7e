"""Questions: Spec-Bench's six categories from its own file, and two things that people do on
their own devices.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from ..backends.base import Tokenizer
from ..decoding import templates
from ..errors import ConfigError

SPEC_BENCH = (
    "mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag",
)  # fmt: skip
MT_BENCH = (
    "writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities",
)  # fmt: skip
EDGE = ("file_editing", "documents")


@dataclass(frozen=True, slots=True)
class Question:
    """What one user says, turn by turn; the model's answers come between."""

    id: str
    category: str
    turns: tuple[str, ...]


def edge() -> list[Question]:
    """Two workloads of people's own devices: "edit this file", which gives the complete file
    back, and "answer from these documents", in several turns.
    """
    return _read(files(__package__).joinpath("data/edge.jsonl").read_text("utf-8").splitlines())


def spec_bench(path: str | Path) -> list[Question]:
    """Questions in Spec-Bench's format (Xia et al. 2024, arXiv 2401.07851; `question.jsonl` of
    github.com/hemingkx/Spec-Bench): one object a line with question_id, category and turns.

    The eight categories of MT-Bench are one of Spec-Bench's six; others keep their names.
    """
    try:
        return _read(Path(path).read_text("utf-8").splitlines())
    except OSError as error:
        raise ConfigError(f"cannot read questions from {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is not a file of questions ({error!r}): every line is an object with "
            "question_id, category and turns, as in Spec-Bench's question.jsonl"
        ) from None


def sample(questions: Iterable[Question], per_category: int | None) -> list[Question]:
    """At most so many of each category, spread evenly over the file; None for all."""
    groups: dict[str, list[Question]] = defaultdict(list)
    for question in questions:
        groups[question.category].append(question)
    if per_category is None:
        return [question for group in groups.values() for question in group]
    return [
        group[i * len(group) // min(per_category, len(group))]
        for group in groups.values()
        for i in range(min(per_category, len(group)))
    ]


def prompt_of(tokenizer: Tokenizer, messages: Sequence[dict[str, str]]) -> list[int]:
    """Token ids of a conversation under the model's own template, the answer to come next."""
    template = tokenizer.chat_template or templates.CHATML
    text = templates.render(template, list(messages), tokenizer.special())
    return tokenizer.encode(text, add_special=False)


def _read(lines: Iterable[str]) -> list[Question]:
    found = []
    for line in filter(str.strip, lines):
        fields = json.loads(line)
        category = fields["category"]
        if not isinstance(fields["turns"], list) or not fields["turns"]:
            raise TypeError(f"turns of {fields['question_id']} is no list of texts")
        found.append(
            Question(
                str(fields["question_id"]),
                "mt_bench" if category in MT_BENCH else str(category),
                tuple(map(str, fields["turns"])),
            )
        )
    return found
