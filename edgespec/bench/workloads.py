"""Questions for benchmarks: Spec-Bench's six categories, and those that come with edgespec."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import msgspec

from .. import named_files
from ..backends.base import Tokenizer
from ..chat.encoder import ConversationEncoder
from ..errors import ConfigError

SPEC_BENCH = (
    "mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag",
)  # fmt: skip
MT_BENCH = (
    "writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Question:
    """The turns of one user; the model's answers come between them."""

    id: str
    category: str
    turns: tuple[str, ...]


def edge() -> list[Question]:
    """Return the questions that come with edgespec.

    Some answers repeat text of the prompt: "edit this file", which returns the complete file, and
    "answer from these documents", in several turns. Others do not: chat, prose, arithmetic.
    """
    return _read(files(__package__).joinpath("data/edge.jsonl").read_text("utf-8").splitlines())


def spec_bench(path: str | Path) -> list[Question]:
    """Return the questions of a file in Spec-Bench's format.

    Each line is a JSON object with question_id, category and turns (Xia et al. 2024, arXiv
    2401.07851; `question.jsonl` of github.com/hemingkx/Spec-Bench). The eight categories of
    MT-Bench become one of Spec-Bench's six; other categories keep their names. Raises ConfigError
    for any other file.
    """
    try:
        return _read(named_files.read(Path(path)).decode().splitlines())
    except OSError as error:
        raise ConfigError(f"cannot read questions from {path}: {error.strerror}") from None
    except (UnicodeError, msgspec.MsgspecError) as error:
        raise ConfigError(
            f"{path} is not a file of questions ({error}): every line is an object with "
            "question_id, category and turns, as in Spec-Bench's question.jsonl"
        ) from None


def sample(questions: Iterable[Question], per_category: int | None) -> list[Question]:
    """Return at most `per_category` questions of each category, spread evenly over the file. Return
    all questions if it is None.
    """
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
    """Return the token ids of a conversation in the model's chat template, up to the place where
    the answer begins.
    """
    encoder = ConversationEncoder(tokenizer)
    return encoder.encode(encoder.render(messages), continues=True)


class _Line(msgspec.Struct):
    """A line of Spec-Bench's file, with only the fields that are used."""

    question_id: int | str
    category: str
    turns: Annotated[list[str], msgspec.Meta(min_length=1)]


def _read(lines: Iterable[str]) -> list[Question]:
    questions = []
    for line in filter(str.strip, lines):
        fields = msgspec.json.decode(line, type=_Line)
        category = "mt_bench" if fields.category in MT_BENCH else fields.category
        questions.append(Question(str(fields.question_id), category, tuple(fields.turns)))
    return questions
