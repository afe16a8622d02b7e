"""Curves, how they are measured, and where they are kept."""

import contextlib
import itertools
import json
import random
from pathlib import Path

import numpy as np
import pytest

from edgespec import Aborted, ToyModel
from edgespec.backends.base import Capabilities, Model
from edgespec.backends.features import Features
from edgespec.costs import profiles
from edgespec.costs.curves import Curve, least
from edgespec.costs.measuring import (
    QUICK,
    READING,
    WIDTHS,
    Measurement,
    growing_share,
    lengthened,
    long_length,
    measure,
    tapping_s,
)
from edgespec.costs.online import Costs
from edgespec.costs.profiles import Profile, forget, store, stored
from edgespec.drafters.base import Forecast
from edgespec.policies.base import Limits
from edgespec.policies.worth import Worth
from edgespec.types import Budget, Outputs, StepStats, Work
from tests.helpers.toy_head import ToyHead

DATA = Path(__file__).parents[2] / "data"
FINGERPRINT = {"device": "x", "file": ["m.gguf", 12], "settings": {"n_ctx": 512, "b": None}}
CURVE = Curve((64, 256), (1, 4), ((0.1, 0.25), (0.2, 1 / 3)))


class Timed(Model):
    """A model whose evaluations take t(width, n_past, how many there were) seconds."""

    vocab_size, n_past = 100, 0

    def __init__(self, seconds, n_ctx=4096, max_rows=32, max_batch=512):
        self.seconds, self.n_ctx = seconds, n_ctx
        self.capabilities = Capabilities(max_rows, max_batch)
        self.now, self.calls = 0.0, []

    def clock(self):
        return self.now

    def decode(self, tokens, n_logits=1, abort=None):
        assert 0 < len(tokens) <= self.capabilities.max_batch
        assert n_logits <= min(len(tokens), self.capabilities.max_rows)
        assert self.n_past + len(tokens) <= self.n_ctx
        assert all(0 <= t < self.vocab_size for t in tokens)
        if n_logits:
            self.calls.append((len(tokens), self.n_past))
        self.now += self.seconds(len(tokens), self.n_past, len(self.calls))
        self.n_past += len(tokens)
        return Outputs(np.zeros((n_logits, self.vocab_size)))

    def truncate(self, n_past):
        self.n_past = min(self.n_past, n_past)


def test_curve_between_and_beyond_its_points():
    curve = Curve((0,), (1, 2, 4), ((1.0, 1.5, 3.5),))
    assert [curve(n) for n in (1, 2, 3, 4, 5, 8)] == [1, 1.5, 2.5, 3.5, 4.5, 7.5]
    assert curve(3, 9999) == 2.5


def test_curve_in_both_directions():
    curve = Curve((100, 200), (1, 3), ((1.0, 2.0), (3.0, 6.0)))
    assert [curve(1, n) for n in (100, 150, 200, 300)] == [1, 2, 3, 5]
    assert [curve(2, n) for n in (100, 150, 200)] == [1.5, 3, 4.5]
    assert curve(5, 300) == 3 + 2 * (9 - 3)
    assert curve(1, 75) == 0.5
    assert curve(1, 0) == 0.5  # never less than half of what was measured


def test_a_curve_falls_between_its_points_and_not_beyond_them():
    curve = Curve((0,), (1, 3, 4), ((1.0, 1.8, 1.5),))
    assert [curve(n) for n in (2, 3, 4, 5, 40)] == pytest.approx([1.4, 1.8, 1.5, 1.5, 1.5])


def test_curve_of_one_width():
    curve = Curve((64,), (2,), ((3.0,),))
    assert [curve(n) for n in (1, 2, 4)] == [3, 3, 6]


def test_the_least_of_curves_has_the_widths_of_all():
    one = Curve((64,), (1, 2, 3, 4), ((1.0, 4.0, 3.0, 5.0),))
    two = Curve((64,), (1, 2, 4), ((2.0, 3.0, 4.0),))
    assert least([one, two]) == least([two, one]) == Curve((64,), (1, 2, 4), ((1.0, 3.0, 4.0),))


def test_scaled():
    assert CURVE.scaled(2)(3, 90) == pytest.approx(2 * CURVE(3, 90))


def test_measures_exactly_what_is_there():
    model = Timed(lambda n, n_past, _: 0.25 * (4 + n // 4) + n_past / 64)
    curve = measure(model, budget_s=1e9, clock=model.clock)
    assert (curve.lengths, curve.widths) == ((64,), WIDTHS)
    assert curve.seconds == (tuple(0.25 * (4 + n // 4) + 1 for n in WIDTHS),)
    assert curve.widths[:16] == tuple(range(1, 17))
    assert model.n_past == 0
    assert {n_past for _, n_past in model.calls} == {64}


def test_widths_take_turns_and_the_first_evaluation_does_not_count():
    model = Timed(lambda n, n_past, i: 100 if i in (1, 2, 3, 6) else n)
    curve = measure(model, widths=(1, 2, 12), budget_s=1e9, clock=model.clock)
    assert curve.seconds == ((1, 2, 12),)
    # narrow ones first, and again where none was repeated
    assert [n for n, _ in model.calls] == [12, 1, 2, 12, 1, 2, 1, 2, 2, 12, 12]


def measured(*rounds):
    """Return t(1) … t(5) where the evaluations of each round take so many seconds."""
    times = [iter(times) for times in zip(*rounds, *(rounds[-1:] * 5), strict=True)]
    model = Timed(lambda n, n_past, i: next(times[n - 1]) if i > 1 else 0)
    return measure(model, widths=range(1, 6), budget_s=1e9, clock=model.clock).seconds[0]


SMOOTH, LUCKY = (10, 14, 16, 18, 20), (10, 14, 16, 9, 20)
IN_FOURS = (10, 14, 18.3, 14.9, 20)  # as kernels work
SLOW = tuple(3 * s for s in IN_FOURS)


@pytest.mark.parametrize(("rounds", "row"), [
    ((IN_FOURS,), IN_FOURS),
    ((SLOW, [1.04 * s for s in IN_FOURS], SLOW, IN_FOURS), IN_FOURS),
    ((LUCKY, SMOOTH), SMOOTH),
    ((SMOOTH, SMOOTH, LUCKY, SMOOTH), SMOOTH),
    ((LUCKY, SMOOTH, LUCKY, SMOOTH), LUCKY),
    (((10, 14, 8, 9, 20), SMOOTH), SMOOTH),  # several in one lucky moment
    (((10, 14, 40, 18, 20), (10, 14, 30, 18, 20), SMOOTH), SMOOTH),
    ([(10, 14, slow, 18, 20) for slow in (40, 30, 50, 60, 90)], (10, 14, 18, 18, 20)),
])  # fmt: skip
def test_less_time_for_more_tokens_is_believed_if_it_is_repeated(rounds, row):
    assert measured(*rounds) == pytest.approx(row)


def test_what_is_measured_once_is_believed_except_of_one_token():
    times = dict(zip(QUICK, (5, 4, 6, 9, 8, 7, 10, 12, 11, 13), strict=True))
    model = Timed(lambda n, n_past, _: times.get(n, 0))
    curve = measure(model, budget_s=0, clock=model.clock)
    assert (curve.widths, curve.seconds) == (QUICK, ((4, 4, 6, 9, 8, 7, 10, 12, 11, 13),))
    guessed = [n for n, guess in zip(QUICK, *curve.guessed, strict=True) if guess]
    assert guessed == [1]


def neighbours(seed, share, lasting):
    """Yield by how much evaluations are slowed down while another program runs a `share` of the
    time, for about so many evaluations at a stretch.
    """
    random_, run = random.Random(seed), False
    while True:
        if random_.random() < (1 / lasting if run else share / (1 - share) / lasting):
            run = not run
        yield random_.uniform(1.3, 3) if run else random_.uniform(1, 1.02)


@pytest.mark.parametrize("lasting", [1.5, 4, 40])
@pytest.mark.parametrize("seconds", [lambda n: 10 + n, lambda n: 10 + n + 5 * (n % 4 > 0)])
@pytest.mark.parametrize("share", [0.1, 0.3])
def test_neighbours_make_no_dents_and_hide_none(seconds, share, lasting):
    def ratios(seed):
        slower = neighbours(seed, share, lasting)
        model = Timed(lambda n, n_past, _: seconds(n) * next(slower))
        curve = measure(model, budget_s=1e9, clock=model.clock)
        return [curve(n) / seconds(n) for n in WIDTHS]

    wrong = [abs(ratio - 1) > 0.1 for seed in range(50) for ratio in ratios(seed)]
    assert sum(wrong) < 0.12 * len(wrong)


def recorded(clock):
    """Yield, for rounds that follow each other, the curve by the clock and the least CPU times of
    all rounds.
    """
    rounds = json.loads((DATA / "rounds.json").read_text())
    true = [min(times) for times in zip(*rounds["cpu"], strict=True)]
    for first in range(len(rounds[clock]) - 4):
        times = [iter(times) for times in zip(*rounds[clock][first:], strict=True)]
        model = Timed(lambda n, *_, times=times: next(times[WIDTHS.index(n)]))
        measurement = Measurement(model, WIDTHS, budget_s=1e9, clock=model.clock)
        times[-1] = itertools.chain([0], times[-1])  # the first of all does not count
        assert measurement.run()
        yield measurement.curve().seconds[0], true


def test_recorded_dents_are_kept():
    for row, true in recorded("cpu"):
        assert row == pytest.approx(true, rel=0.1)
        for odd in range(2, 16, 2):  # 3, 5, … tokens take longer than one more
            assert row[odd] > row[odd + 1]


def test_recorded_neighbours_leave_the_shape():
    for row, true in recorded("wall"):
        ratios = [a / b for a, b in zip(row, true, strict=True)]
        assert max(ratios) < 1.6 * min(ratios)


@pytest.mark.parametrize(("budget_s", "n_calls", "widths"), [
    (0, 1 + 10, QUICK), (3 * 11, 1 + 11, (*QUICK[:4], 5, *QUICK[4:])),
    (3 * 20, 1 + 20, (*range(1, 9), *QUICK[6:])), (3 * 26, 1 + 26, (*range(1, 17), 24, 32)),
    (3 * 27, 1 + 27, WIDTHS),
    (1e9, 1 + 3 * 19, WIDTHS),
])  # fmt: skip
def test_a_budget_ends_widths_and_rounds(budget_s, n_calls, widths):
    model = Timed(lambda n, n_past, i: (i > 0) * 3.0)
    curve = measure(model, budget_s=budget_s, clock=model.clock)
    assert (len(model.calls), curve.widths) == (n_calls, widths)
    assert model.n_past == 0


@pytest.mark.parametrize(("n_ctx", "max_batch", "widest"), [
    (40, 512, 17), (64, 512, 32), (2, 512, 1), (4096, 8, 8),
])  # fmt: skip
def test_small_contexts_and_batches(n_ctx, max_batch, widest):
    model = Timed(lambda n, n_past, _: n, n_ctx=n_ctx, max_batch=max_batch)
    curve = measure(model, budget_s=1e9, clock=model.clock)
    assert curve.widths == tuple(n for n in WIDTHS if n <= widest)
    assert curve.seconds == (curve.widths,)


def test_wider_than_rows():
    model = Timed(lambda n, n_past, _: n, max_rows=4)
    curve = measure(model, widths=READING, budget_s=1e9, clock=model.clock)
    assert curve.seconds == (READING,)


SHORT = Curve((64,), (1, 4), ((1e-3, 2e-3),))


def by_length(reading=1e-3):
    return Timed(lambda n, n_past, _: reading * n + n_past * 1e-6, n_ctx=8192)


@pytest.mark.parametrize("n_past", [0, 100, 3000])
def test_a_curve_behind_a_long_text_as_well(n_past):
    model = by_length()
    model.n_past = n_past
    found = lengthened(model, SHORT, clock=model.clock)
    length = max(n_past, 2048)
    assert (found.lengths, found.widths) == ((64, length), SHORT.widths)
    assert found.seconds[0] == SHORT.seconds[0]
    assert found.seconds[1] == pytest.approx([1e-3 + length * 1e-6, 4e-3 + length * 1e-6])
    assert model.n_past == n_past
    assert long_length(model, found) == 0


@pytest.mark.parametrize(("reading", "dent", "widths"), [
    (1e-5, 5, READING),
    (5e-3, 0, [n for n in READING if n not in (5, 7)]),  # where time is short
])  # fmt: skip
def test_behind_a_long_text_dents_are_kept(reading, dent, widths):
    def seconds(n, n_past=0, _=0):
        return reading * (20 + n + dent * (n % 4 > 0)) * (1 + n_past / 4096)

    short = Curve((64,), READING, (tuple(map(seconds, READING)),))
    model = Timed(seconds, 8192)
    found = lengthened(model, short, clock=model.clock)
    assert found.widths == tuple(widths)
    for length, row in zip((0, found.lengths[1]), found.seconds, strict=True):
        assert row == pytest.approx([seconds(n, length) for n in widths])


def test_a_longer_text_takes_no_less_time():
    model = by_length(reading=1e-5)
    found = lengthened(model, Curve((64,), (1, 4), ((0.5, 0.6),)), clock=model.clock)
    assert found.seconds == ((0.5, 0.6), (0.5, 0.6))


@pytest.mark.parametrize("stop_at", [0, 1, 3])
def test_measuring_behind_a_long_text_is_left_at_once(stop_at):
    model, asked = by_length(), itertools.count()
    model.n_past = 100
    assert lengthened(model, SHORT, lambda: next(asked) >= stop_at, model.clock) is None
    assert model.n_past == 100


@pytest.mark.parametrize(("model", "seconds", "length"), [
    (by_length(), 1e-3, 2048), (by_length(), 0.0, 2048), (by_length(), 3e-3, 1000),
    (by_length(), 0.1, 0), (Timed(None, n_ctx=2048), 1e-3, 0),
])  # fmt: skip
def test_how_long_a_text_is_worth_reading(model, seconds, length):
    assert long_length(model, Curve((64,), (1, 4), ((4 * seconds, 4 * seconds),))) == length


def test_behind_a_text_that_is_nearly_as_long_nothing_is_to_be_learnt():
    assert long_length(by_length(), Curve((1500,), (1, 4), ((1e-3, 2e-3),))) == 0


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGESPEC_PROFILES", str(tmp_path / "a" / "b"))
    return tmp_path / "a" / "b"


def test_kept_and_found(folder):
    assert stored(FINGERPRINT) is None
    path = store(FINGERPRINT, CURVE)
    assert list(folder.iterdir()) == [path]
    assert stored(FINGERPRINT) == CURVE
    assert stored(dict(reversed(FINGERPRINT.items()))) == CURVE
    assert store(FINGERPRINT, CURVE.scaled(2)) == path
    assert stored(FINGERPRINT) == CURVE.scaled(2)


def test_another_fingerprint(folder):
    path = store(FINGERPRINT, CURVE)
    other = FINGERPRINT | {"device": "y"}
    assert stored(other) is None
    path.rename(store(other, CURVE))  # a file that is not what its name says
    assert stored(other) is None


@pytest.mark.parametrize("damage", [
    lambda text: "", lambda text: text[: len(text) // 2], lambda text: "[1, 2]",
    lambda text: "null", lambda text: json.dumps({"fingerprint": FINGERPRINT}),
    lambda text: text.replace('"seconds": [[', '"seconds": [1, ['), lambda text: "\x00" * 99,
], ids=range(7))  # fmt: skip
def test_damaged_files_are_not_read(folder, damage):
    path = store(FINGERPRINT, CURVE)
    path.write_text(damage(path.read_text("utf-8")), "utf-8")
    assert stored(FINGERPRINT) is None
    path.write_bytes(b"\xff\xfe\xfd")
    assert stored(FINGERPRINT) is None
    assert store(FINGERPRINT, CURVE) == path
    assert stored(FINGERPRINT) == CURVE


def test_nowhere_to_write(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGESPEC_PROFILES", str(tmp_path / "file" / "profiles"))
    assert store(FINGERPRINT, CURVE) is None
    assert stored(FINGERPRINT) is None
    forget(FINGERPRINT)


def test_forget(folder):
    store(FINGERPRINT, CURVE)
    forget(FINGERPRINT)
    assert stored(FINGERPRINT) is None
    forget(FINGERPRINT)


def test_folder_without_a_setting(tmp_path, monkeypatch):
    monkeypatch.delenv("EDGESPEC_PROFILES")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert profiles.folder() == tmp_path / "edgespec" / "profiles"


class Reading(ToyHead):
    """A head that notes which states it found before each token."""

    def __init__(self, shape):
        super().__init__(np.full((8, 8), 1 / 8), n_ctx=512)
        self.features, self.found = Features(shape=shape), []

    def decode(self, tokens, n_logits=1, abort=None):
        first, known = self.n_past - 1, self.features
        there = known.start <= max(first, 0) and first + len(tokens) <= known.end
        self.found.append((len(tokens), there))
        return ToyModel.decode(self, tokens, n_logits, abort)


@pytest.mark.parametrize(("shape", "there"), [((2, 3), True), ((0, 0), False)])
@pytest.mark.parametrize("n_past", [1, 20])
def test_a_head_is_measured_with_hidden_states(shape, there, n_past):
    head = Reading(shape)
    features = head.features
    head.decode([0] * n_past)
    head.found.clear()
    measurement = Measurement(head, (1, 4))
    assert measurement.run()
    assert set(head.found) == {(1, there), (4, there)}
    assert head.features is features


class Tapped(ToyModel):
    """A model that takes a second a token, and half a second more with hidden states."""

    def __init__(self, **options):
        super().__init__(np.full((8, 8), 1 / 8), **options)
        self.now = 0.0

    def decode(self, tokens, n_logits=1, abort=None):
        self.now += len(tokens) + 0.5 * bool(self._layers)
        return super().decode(tokens, n_logits, abort)


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize("layers", [(), (1, 3)])
def test_what_hidden_states_take(layers, truncate):
    model = Tapped(truncate=truncate)
    model.decode([1, 2, 3])
    model.tap(layers)
    assert tapping_s(model, (1, 3), clock=lambda: model.now) == pytest.approx(0.5)
    assert (model._layers, model._tokens) == (layers, [1, 2, 3])
    asked = itertools.count()
    assert tapping_s(model, (1, 3), lambda: next(asked) > 7, clock=lambda: model.now) is None
    assert (model._layers, model._tokens) == (layers, [1, 2, 3])


class Guessing(ToyHead):
    """A head that takes four seconds for a token that it reads, and one for a guess."""

    def __init__(self, **options):
        super().__init__(np.full((8, 8), 1 / 8), **options)
        self.now = 0.0

    def decode(self, tokens, n_logits=1, abort=None):
        self.now += 4.0
        return ToyModel.decode(self, tokens, n_logits, abort)

    def grow(self, tokens, parents, abort=None):
        self.now += 1.0
        return super().grow(tokens, parents, abort)


@pytest.mark.parametrize(("max_depth", "share"), [(0, 0.25), (4, 0.25), (1, 1.0)])
def test_what_a_guess_behind_another_takes(max_depth, share):
    head = Guessing(max_depth=max_depth)
    head.decode([1, 2, 3])
    assert growing_share(head, clock=lambda: head.now) == pytest.approx(share)
    assert head._tokens == [1, 2, 3]
    asked = itertools.count()
    left = growing_share(head, lambda: next(asked) > 2, clock=lambda: head.now)
    assert left == (1.0 if max_depth == 1 else None)
    assert head._tokens == [1, 2, 3]


def test_steps_of_a_head_are_expected_to_take_that():
    costs = Costs(Profile(CURVE, CURVE, growing=0.5))
    costs.target(100)
    one = costs.draft(1, 100)
    limits, budget = Limits(8, price=1.0, costs=costs), Budget(8, 100)
    worth = Worth(limits, budget).opened(Forecast(((1.0, 0.5),), 0.5), Work(1, 100))
    assert worth._further_s == pytest.approx(0.5 * worth._first_s) == pytest.approx(0.5 * one)
    before = costs._now.draft.value
    evaluated = (Work(1, 100),) * 3
    costs.observe(StepStats("", 2, 0, 1, 3, 101, 2 * one, 0.3, 0.5, evaluated), 100)
    assert costs._now.draft.value == pytest.approx(before)


@pytest.mark.parametrize("error", [Aborted, KeyboardInterrupt, MemoryError])
def test_a_head_has_its_own_states_again_whatever_happens(error):
    head = Reading((2, 3))
    features = head.features

    def fails(*_):
        raise error("x")

    head.decode = fails
    with contextlib.suppress(KeyboardInterrupt, MemoryError):
        assert not Measurement(head, (1, 4)).run()
    assert head.features is features
