"""Where greedy texts with and without drafts differ."""

from __future__ import annotations

import pytest

from edgespec import types
from edgespec.bench.answers import Answer
from edgespec.bench.parting import Parting, greedy_pairs, in_words, parting, partings


class Engine:
    """Answers 1, 2, 3 without drafts; 4 is `gap` below 3."""

    def __init__(self, gap: float) -> None:
        self.gap = gap

    def generate(self, prompt, *, max_tokens, disable_spec_decode, **sampling):
        assert disable_spec_decode
        rows = [types.Logprob(-0.1, ((n, -0.1), (9, -5.1))) for n in (1, 2)]
        rows.append(types.Logprob(-1.0, ((3, -1.0), (4, -1.0 - self.gap))))
        ids = (1, 2, 3)[:max_tokens]
        return types.Completion("", ids, "length", None, types.Stats(), tuple(rows[:max_tokens]))


def test_a_report_tells_where_texts_part_and_how_near_the_tokens_are():
    found = parting(Engine(0.1), [7], (1, 2, 3, 5), (1, 2, 4, 5))
    assert found == Parting(2, (3, 4), pytest.approx(0.1))
    assert "one at token 2 (3 or 4, 0.1 apart in logits)" in in_words([found])
    assert "--batch-invariant" in in_words([found])
    unknown = parting(Engine(0.1), [7], (1, 2, 3, 5), (1, 2, 8, 5))
    assert unknown == Parting(2, (3, 8), None)


def test_only_greedy_answers_that_differ_are_looked_at():
    def answer(mode, text, ids, temperature=0.0):
        return Answer(
            "a", "qa", temperature, mode, 4, 1.0, 0.1, types.Stats(), [], None, text, (7,), ids
        )

    plain, drafted = answer("plain", "x", (1, 2, 3)), answer("auto", "y", (1, 2, 4))
    hot = [answer("plain", "x", (1,), 0.8), answer("auto", "y", (2,), 0.8)]
    answers = [plain, drafted, *hot, plain, answer("auto", "x", (1, 2, 3))]
    assert [(a.text, b.text) for a, b in greedy_pairs(answers)] == [("x", "y"), ("x", "x")]
    assert partings(Engine(0.1), answers) == [Parting(2, (3, 4), pytest.approx(0.1))]
    assert parting(Engine(0.1), [7], (1, 2), (1, 2, 3)) is None
