"""The questions of a benchmark."""

import json

import pytest

from edgespec import ConfigError
from edgespec.bench.workloads import Question, edge, sample, spec_bench


def test_edge_questions():
    questions = edge()
    assert {q.category for q in questions} == {
        "file_editing",
        "documents",
        "chat",
        "prose",
        "arithmetic",
    }
    assert len({q.id for q in questions}) == len(questions)
    assert all(q.turns and all(q.turns) for q in questions)
    assert all(len(q.turns) > 1 for q in questions if q.category == "documents")


def test_spec_bench(tmp_path):
    path = tmp_path / "question.jsonl"
    lines = [
        {"question_id": 81, "category": "writing", "turns": ["a", "b"], "reference": None},
        {"question_id": "t1", "category": "translation", "turns": ["ü"]},
    ]
    path.write_text("\n\n".join(map(json.dumps, lines)) + "\n", "utf-8")
    assert spec_bench(path) == [
        Question("81", "mt_bench", ("a", "b")), Question("t1", "translation", ("ü",)),
    ]  # fmt: skip


@pytest.mark.parametrize("text", [
    "{", "[1]", "3", '{"question_id": 1, "category": "qa"}', '{"turns": ["a"], "category": "qa"}',
    '{"question_id": 1, "turns": ["a"]}', '{"question_id": 1, "category": "qa", "turns": 3}',
    "\udcff",
])  # fmt: skip
def test_a_file_of_something_else(tmp_path, text):
    path = tmp_path / "question.jsonl"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match=r"question\.jsonl .* question_id, category and turns"):
        spec_bench(path)
    with pytest.raises(ConfigError, match=r"cannot read questions from .*missing"):
        spec_bench(tmp_path / "missing")


def test_sample():
    questions = [Question(str(i), "qa" if i % 3 else "rag", ("x",)) for i in range(12)]
    assert [q.id for q in sample(questions, 2)] == ["0", "6", "1", "7"]
    assert sorted(sample(questions, None), key=lambda q: int(q.id)) == questions
    assert len(sample(questions, 99)) == 12
    assert sample([], 3) == sample(questions, 0) == []
    for n in range(1, 9):
        found = sample(questions, n)
        assert len(set(found)) == len(found) == n + min(n, 4)
