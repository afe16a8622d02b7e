"""Why greedy texts with and without drafts differ: rounding, or what may be a bug."""

from __future__ import annotations

import pytest

from edgespec import types
from edgespec.bench.answers import Answer
from edgespec.bench.parting import Parting, greedy_pairs, in_words, parting, partings


class Engine:
    """Answers 1, 2, 3 without drafts, with rows that differ by `noise` from those with drafts."""

    def __init__(self, gap: float, noise: float, n_drafted: int = 4) -> None:
        self.gap, self.noise, self.n_drafted = gap, noise, n_drafted

    def generate(self, prompt, *, max_tokens, disable_spec_decode, **sampling):
        gap = 5.0 if disable_spec_decode else 5.0 - self.noise
        rows = [types.Logprob(-0.1, ((n, -0.1), (9, -0.1 - gap))) for n in (1, 2)]
        rows.append(types.Logprob(-1.0, ((3, -1.0), (4, -1.0 - self.gap))))
        stats = types.Stats(num_draft_tokens=0 if disable_spec_decode else self.n_drafted)
        ids = (1, 2, 3)[:max_tokens]
        return types.Completion("", ids, "length", None, stats, tuple(rows[:max_tokens]))


@pytest.mark.parametrize(("gap", "noise", "n_drafted", "explained"), [
    (0.1, 0.3, 4, True), (2.0, 0.3, 4, False), (0.1, 0.0, 4, False), (0.1, 0.3, 0, None),
])  # fmt: skip
def test_rounding_explains_what_is_nearer_than_it(gap, noise, n_drafted, explained):
    found = parting(Engine(gap, noise, n_drafted), [7], (1, 2, 3, 5), (1, 2, 4, 5))
    assert found is not None
    assert (found.position, found.tokens) == (2, (3, 4))
    assert found.gap == pytest.approx(gap)
    assert found.is_explained is explained
    assert ("may be a bug" in in_words([found])) == (explained is False)
    assert ("--batch-invariant rounds both alike" in in_words([found])) == (explained is True)
    assert ("not known why" in in_words([found])) == (explained is None)


def test_only_greedy_answers_that_differ_are_looked_at():
    def answer(mode, text, ids, temperature=0.0):
        return Answer(
            "a", "qa", temperature, mode, 4, 1.0, 0.1, types.Stats(), [], None, text, (7,), ids
        )

    plain, drafted = answer("plain", "x", (1, 2, 3)), answer("auto", "y", (1, 2, 4))
    hot = [answer("plain", "x", (1,), 0.8), answer("auto", "y", (2,), 0.8)]
    answers = [plain, drafted, *hot, plain, answer("auto", "x", (1, 2, 3))]
    assert [(a.text, b.text) for a, b in greedy_pairs(answers)] == [("x", "y"), ("x", "x")]
    assert partings(Engine(0.1, 0.3), answers) == [Parting(2, (3, 4), pytest.approx(0.1),
                                                           pytest.approx(0.3))]  # fmt: skip
    assert parting(Engine(0.1, 0.3), [7], (1, 2), (1, 2, 3)) is None
