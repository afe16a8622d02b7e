"""What a draft model has gained, by its own steps."""

from __future__ import annotations

import json

import pytest

from edgespec.policies.draft_gain import MOST_ANSWERS, DraftGain
from edgespec.types import StepStats, Work

PLAIN_S = 0.1


def step(n_emitted, total_s, own=True):
    return StepStats(
        source="model" if own else "suffix", n_drafted=3, n_accepted=n_emitted - 1,
        n_emitted=n_emitted, n_evaluated=4, n_past=9, draft_s=0, verify_s=total_s,
        total_s=total_s, draft_evaluated=(Work(1, 9),) if own else (),
    )  # fmt: skip


def answered(*steps):
    gain = DraftGain()
    for each in steps:
        gain.count(each, PLAIN_S)
    gain.end()
    return gain


def test_the_time_of_plain_steps_over_that_with_it():
    gain = answered(step(3, 0.15), step(1, 0.15), step(1, 0.1, own=False))
    # own steps: 4 tokens, 0.4 s of plain decoding, in 0.3 s; the whole answer took 0.4 s
    assert gain.value == pytest.approx((0.4 + 0.1) / 0.4)
    assert gain.answers == 1


def test_what_lookups_win_is_not_its_gain():
    assert answered(*[step(5, 0.12, own=False)] * 9).value == 1
    assert answered(*[step(5, 0.12, own=False)] * 9, step(1, 0.2)).value < 1


def test_an_answer_counts_when_it_has_ended_and_only_once():
    gain = DraftGain()
    gain.count(step(4, 0.1), PLAIN_S)
    assert (gain.answers, gain.value, gain.learned()) == (0, 1.0, {})
    gain.end()
    gain.end()
    assert gain.answers == 1


def test_earlier_answers_fade_and_the_count_is_bounded():
    gain = DraftGain()
    for _ in range(500):
        gain.count(step(4, 0.1), PLAIN_S)
        gain.end()
    assert gain.answers == MOST_ANSWERS
    assert gain.spent_s < MOST_ANSWERS * 0.1 + 1e-9
    assert gain.value == pytest.approx(4)
    for _ in range(3 * MOST_ANSWERS):  # the texts are others now
        gain.count(step(1, 0.2), PLAIN_S)
        gain.end()
    assert gain.value < 0.7


def test_another_process_goes_on():
    old, new = answered(step(3, 0.15)), DraftGain()
    new.relearn(json.loads(json.dumps(old.learned())))
    assert (new.value, new.answers) == (old.value, 1)
    new.relearn({"accounts": 3})
    assert new.answers == 1


@pytest.mark.parametrize("changed", [
    {"answers": 0}, {"answers": MOST_ANSWERS + 1}, {"spent_s": 0.0}, {"spent_s": float("nan")},
    {"saved_s": -9.0}, {"saved_s": float("inf")}, {"answers": "many"}, {"spent_s": None},
])  # fmt: skip
def test_what_cannot_be_is_refused(changed):
    gain = answered(step(3, 0.15))
    before = gain.learned()
    with pytest.raises((ValueError, TypeError)):
        gain.relearn({"draft_gain": before["draft_gain"] | changed})
    assert gain.learned() == before
