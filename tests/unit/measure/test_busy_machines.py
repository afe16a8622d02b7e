"""Tuning beside other programs, on made-up machines: what is kept can only help, and in time."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

import edgespec
from edgespec.costs.curves import Curve
from edgespec.costs.kept_curves import keep_curve, kept_curve
from edgespec.costs.measuring import QUICK, WIDTHS
from edgespec.costs.profiles import keep, store
from edgespec.device import Load
from edgespec.loading import tuned
from edgespec.measure import budget, formats, interleaving, model_checks, search, tuning
from edgespec.measure import doctor as doctors
from edgespec.measure.budget import Budget
from edgespec.measure.curve import FEW, measured_curve
from edgespec.measure.doctor import verdict_first
from edgespec.measure.findings import Finding
from edgespec.measure.interleaving import decide, interleave
from edgespec.measure.tuning import without_slower
from tests.helpers.slow_machine import SlowMachine, SlowModel

KNOWN = [(2, "2 threads"), (1, "1 thread")]
KEY = {"kind": "tuned"}


def steady(n_threads: int, n_tokens: int) -> float:
    """Return 50 ms for a token and 30 ms for each further one: two threads are no faster."""
    return 0.05 + 0.03 * (n_tokens - 1)


def crowded(n_threads: int, n_tokens: int) -> float:
    """Return times of two threads that wait for a core that others have."""
    return steady(n_threads, n_tokens) * (30 if n_threads > 1 else 1)


@pytest.fixture
def tune(tmp_path, monkeypatch):
    """Tune a model on a machine where others use cores."""
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    monkeypatch.setenv("EDGESPEC_PROFILES", str(tmp_path / "profiles"))
    monkeypatch.setattr(tuning, "draft_path", lambda *_: None)
    monkeypatch.setattr(search, "thread_counts", lambda _: [1, 2])
    for module in (tuning, tuned):
        monkeypatch.setattr(module, "tuning_key", lambda *_: KEY)

    def run(machine: SlowMachine, cores: float = 1.9, *, keep_busy: bool = True, **options):
        meter = SimpleNamespace(look=lambda: Load(cores, 1.0, 0.0))
        monkeypatch.setattr(budget, "time", SimpleNamespace(perf_counter=machine.clock))
        monkeypatch.setattr(tuning, "LoadMeter", lambda: meter)
        monkeypatch.setattr(tuning, "other_load", lambda *_: cores)
        monkeypatch.setattr(tuning, "open_model", machine.open_model)
        return edgespec.tune(path, None, keep_busy=keep_busy, **options)

    run.path = path
    run.kept = lambda: tuned.tuned_options(path, edgespec.EngineConfig())
    run.model = SlowModel(SlowMachine(steady), path, edgespec.EngineConfig())
    return run


def test_a_number_of_threads_that_is_thirty_times_as_fast_is_taken(tune):
    for budget_s in (10, 25):
        found = tune(SlowMachine(crowded), budget_s=budget_s)
        assert tune.kept() == found.options == {"n_threads": 1, "n_threads_batch": 1}
    assert found.profile.target(1) == pytest.approx(0.05, rel=0.01)


def noise_that_hides(seed: int):
    random_ = random.Random(seed)
    return lambda n_threads, n_tokens: steady(n_threads, n_tokens) * random_.lognormvariate(0, 1)


def test_where_noise_hides_everything_nothing_is_kept(tune):
    found = [tune(SlowMachine(noise_that_hides(seed))) for seed in range(30)]
    assert [one.options for one in found] == [{}] * 30
    assert tune.kept() == {}
    unsteady = [one for one in found if "very different times" in one.refused]
    assert unsteady  # a curve is kept only if its lowest times repeat, as chance may have it


def test_beside_others_every_turn_has_to_be_faster():
    def chosen(default, other, *, busy=True):
        return decide("n_threads", "one token", KNOWN, [default, other], busy=busy).chosen

    once_faster = [1.0, 1.0, 1.0, 1.0, 0.88]
    assert chosen(once_faster, [0.9] * 5, busy=False) == 1
    assert chosen(once_faster, [0.9] * 5) == 2
    assert chosen([1.0] * 5, [0.9] * 5) == 1
    assert chosen([1.0] * 3, [0.4] * 3) == 2  # few turns, and not far apart
    assert chosen([1.0] * 3, [0.3] * 3) == 1
    assert chosen([1.0] * 3, [0.3, 0.3, 0.4]) == 2
    assert chosen([1.0] * 4, [0.3, 0.3, 0.3, 0.9]) == 1
    assert chosen([1.0] * 4, [0.4] * 4) == 2
    assert chosen([1.0] * 4, [0.3, 0.3, 0.3, 1.1]) == 2
    assert chosen([0.12, 0.15, 0.2, 0.4, 0.5], [0.1] * 5) == 1  # the default varies, but loses
    assert chosen([1.0] * 2, [0.1] * 2) == 2
    assert chosen([1.0] * 2, [0.1] * 2, busy=False) == 1


def test_impossible_times_are_not_kept_and_not_believed(tune):
    found = tune(SlowMachine(lambda n_threads, n_tokens: 0.1))
    assert found.profile is None
    assert "many tokens took no longer than one" in found.refused
    assert found.verdict == ""
    assert kept_curve(tune.model) is None


@pytest.mark.parametrize(("placement", "impossible"), [
    ({}, True),
    ({"layers": "offloaded 0/29 layers to GPU"}, True),
    ({"layers": "offloaded 29/29 layers to GPU"}, False),
    ({"provider": "CPU"}, True),
    ({"provider": "CUDA"}, False),
])  # fmt: skip
def test_on_a_gpu_many_tokens_may_take_as_long_as_one(tune, placement, impossible):
    model, flat = tune.model, Curve((64,), (1, 8, 32), ((2.948, 2.948, 2.96),))
    model.placement = placement
    assert keep_curve(model, flat) is not impossible
    store(model.fingerprint(), flat)  # as an earlier version did
    assert (kept_curve(model) is None) is impossible


def test_times_of_small_models_may_be_flat(tune):
    flat = Curve((64,), (1, 32), ((0.001, 0.001),))  # each call takes as much
    assert keep_curve(tune.model, flat)
    assert kept_curve(tune.model) == flat


class Following(SlowModel):
    """A model whose threads follow what others leave."""

    thread_limit = 0

    def limit_threads(self, n_threads):
        """Do nothing: `set_threads` is enough here."""


def test_threads_that_follow_others_are_not_fixed_by_a_busy_moment(tune, monkeypatch):
    machine = SlowMachine(crowded)
    monkeypatch.setattr("tests.helpers.slow_machine.SlowModel", Following)
    found = tune(machine, budget_s=400)
    assert (found.options, tune.kept()) == ({}, {})
    assert found.passing == {"n_threads": 1, "n_threads_batch": 1}
    model = machine.open_model(tune.path, edgespec.EngineConfig())
    assert kept_curve(model)(1) == pytest.approx(0.05, rel=0.05)  # as with the one thread
    assert kept_curve(model, quiet=True) is None  # so it is measured anew
    fixed = tune(SlowMachine(crowded), budget_s=400, dynamic_threads=False)
    assert fixed.options == {"n_threads": 1, "n_threads_batch": 1}


def test_lower_times_of_an_earlier_run_stay(tune):
    quiet = Curve((64,), (1, 32), ((0.01, 0.1),))
    store(tune.model.fingerprint(), quiet)
    assert "those kept before are lower" in tune(SlowMachine(steady)).refused
    assert kept_curve(tune.model) == quiet
    store(tune.model.fingerprint(), quiet.scaled(30))
    assert not tune(SlowMachine(steady)).refused
    assert kept_curve(tune.model)(1) == pytest.approx(0.05, rel=0.01)


def test_earlier_settings_stay_unless_they_are_far_slower(tune):
    keep(KEY, {"options": {"n_threads": 1, "use_extra_bufts": False}})
    tune(SlowMachine(noise_that_hides(0)))
    assert tune.kept() == {"n_threads": 1, "use_extra_bufts": False}
    slow_now = decide("n_threads", "one token", KNOWN, [[0.1] * 2, [3.0] * 2])
    assert without_slower({"n_threads": 1, "flash_attn": "off"}, [slow_now]) == {
        "flash_attn": "off"
    }
    slower = decide("n_threads", "one token", KNOWN, [[0.1] * 2, [0.2] * 2])
    assert without_slower({"n_threads": 1}, [slower]) == {"n_threads": 1}


def test_load_is_looked_at_before_anything_is_loaded(tune):
    machine = SlowMachine(steady)
    found = tune(machine, keep_busy=False)
    assert found.busy
    assert (machine.n_opened, machine.now, found.path, found.profile) == (0, 0.0, None, None)
    assert tune.kept() == {}
    assert not tune(machine, cores=0.1, keep_busy=False).busy


@pytest.mark.parametrize("budget_s", [3, 10, 25, 100])
@pytest.mark.parametrize("slower", [0.01, 1, 10, 100])
@pytest.mark.parametrize("seconds", [steady, crowded])
def test_a_budget_holds_whatever_an_evaluation_takes(tune, budget_s, slower, seconds):
    machine = SlowMachine(lambda *given: slower * seconds(*given))
    found = tune(machine, budget_s=budget_s)
    assert machine.now <= 1.2 * budget_s
    assert found.seconds == machine.now
    if found.profile is None:
        assert found.left_out == ("the times of m.gguf",)


def test_the_parts_of_a_budget_are_given_what_is_left():
    now = [0.0]
    whole = Budget(10, lambda: now[0])
    assert whole.fits("one", 9)
    now[0] = 7.0
    part = whole.part(5)
    assert part.left == whole.left == 3
    assert not part.fits("two", 3)
    now[0] = 11.0
    assert (whole.left, whole.spent, whole.left_out) == (0, 11, ["two"])
    assert whole.abort() == "time_limit"


def test_a_hopeless_default_is_ended_and_does_not_use_up_the_budget():
    machine = SlowMachine(lambda n_threads, n_tokens: 3600.0 if n_threads == 2 else 0.1)
    models = [machine.open_model(None, edgespec.EngineConfig(n_threads=n)) for n in (2, 1)]

    def seconds(model, abort):
        start = machine.now
        model.decode([0], 1, abort)
        return machine.now - start

    tries = [lambda abort, model=model: seconds(model, abort) for model in models]
    times = interleave(tries, Budget(60, machine.clock))
    assert machine.now < 20
    assert decide("n_threads", "one token", KNOWN, times, busy=True).chosen == 1
    assert min(times[0]) == pytest.approx(interleaving._HOPELESS * 0.1 / 2, rel=0.1)


@pytest.fixture
def doctor(tune, monkeypatch):
    """Look at a model on a machine; return the findings and the order of what happened."""
    path = tune.model.path
    info = SimpleNamespace(path=path, file_size=1, memory=lambda _: 1, n_ctx_train=256, engine={},
                           name="m", architecture="toy", quantisation="F16", n_layer=1,
                           projector=None, why_blind="")  # fmt: skip

    def run(machine: SlowMachine, budget_s: float):
        monkeypatch.setattr(
            doctors, "check_machine", lambda tune: [Finding("ok", "processor", "Z80")]
        )
        monkeypatch.setattr(budget, "time", SimpleNamespace(perf_counter=machine.clock))
        monkeypatch.setattr(model_checks, "open_model", machine.open_model)
        monkeypatch.setattr(model_checks, "inspect", lambda *_: info)
        monkeypatch.setattr(model_checks, "model_path", lambda _: path)
        monkeypatch.setattr(model_checks, "draft_path", lambda *_: None)
        monkeypatch.setattr(model_checks, "thread_counts", lambda _: [1, 2])
        monkeypatch.setattr(model_checks, "tuned_options", lambda *_: {})
        seen: list[tuple[str, float]] = []
        found = edgespec.diagnose(
            path, None, budget_s=budget_s, report=lambda f: seen.append((f.subject, machine.now))
        )
        assert [f.subject for f in found] == [subject for subject, _ in seen]
        return found, seen

    return run


@pytest.mark.parametrize("budget_s", [3, 30])
@pytest.mark.parametrize("slower", [0.1, 1, 30])
@pytest.mark.parametrize("seconds", [steady, crowded])
def test_the_doctor_keeps_to_its_budget(doctor, budget_s, slower, seconds):
    machine = SlowMachine(lambda *given: slower * seconds(*given))
    found, _ = doctor(machine, budget_s)
    assert machine.now <= 1.2 * budget_s
    assert found[0].subject == "verdict"


def test_the_doctor_reports_the_verdict_first_and_all_else_as_it_comes(doctor):
    found, seen = doctor(SlowMachine(steady), 30)
    assert found[0].text.startswith("Speculation pays here, because checking 5 tokens at once")
    assert [subject for subject, _ in seen[:2]] == ["verdict", "processor"]
    slow, _ = doctor(SlowMachine(lambda n_threads, n: 0.05 * n * (1.5 if n > 1 else 1)), 30)
    assert slow[0].text.startswith("Speculation does not pay here, because checking 2 tokens")
    flat, _ = doctor(SlowMachine(lambda n_threads, n: 0.05), 30)  # not to be believed
    assert flat[0].text.startswith("Whether speculation pays here could not be measured")


@pytest.mark.parametrize("busy", [True, False])
@pytest.mark.parametrize("slowest", [0.4, 2.0])
def test_the_doctor_advises_the_threads_that_tune_chooses(slowest, busy):
    """One thread is faster than two by the medians, but not in every turn where one is slow."""
    turns = {1: iter([0.5, 0.5, slowest, 0.5] * 9), 2: iter([1.0] * 36)}
    model = SimpleNamespace(
        n_threads=2, n_threads_batch=2, config=SimpleNamespace(max_cores=0),
        set_threads=lambda *given: None,
    )  # fmt: skip
    clock = lambda: 0.0  # noqa: E731
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_checks, "thread_counts", lambda _: [1, 2])
        patch.setattr(
            model_checks, "interleave",
            lambda tries, budget: [[next(turns[n]) for _ in range(5)] for n in (2, 1)],
        )  # fmt: skip
        found = model_checks._check_threads(model, budget.Budget(9, clock), "tune", busy)
    times = [[1.0] * 5, [0.5, 0.5, slowest, 0.5, 0.5]]
    chosen = decide("n_threads", "one token", [(2, "2"), (1, "1")], times, busy=busy).chosen
    assert (found.level == "problem") == (chosen == 1)
    assert (chosen == 1) == (not busy or slowest < 1)


def test_the_verdict_comes_before_what_was_found_earlier():
    asked = []

    def findings():
        for subject in ("processor", "verdict", "model"):
            asked.append(subject)
            yield Finding("ok", subject, "")

    order = verdict_first(findings())
    assert [next(order).subject for _ in range(2)] == ["verdict", "processor"]
    assert asked == ["processor", "verdict"]  # nothing later was waited for
    assert next(order).subject == "model"
    broken = [Finding("ok", "processor", ""), Finding("problem", "model", "", broken=True)]
    assert list(verdict_first(broken)) == broken
    assert list(verdict_first(broken[:1])) == broken[:1]


def test_comparing_formats_keeps_to_what_is_left(tmp_path, monkeypatch):
    machine = SlowMachine(steady, loading_s=1.0)
    monkeypatch.setattr(formats, "open_model", machine.open_model)
    monkeypatch.setattr(formats, "tuned_options", lambda *_: {})
    monkeypatch.setattr(SlowModel, "tokenizer", SimpleNamespace(encode=lambda _: [0] * 100))
    files = [("Q4", tmp_path / "a.gguf"), ("Q8", tmp_path / "b.gguf"), ("F16", tmp_path / "c.gguf")]
    for _, path in files:
        path.write_bytes(b"GGUF")
    whole = Budget(1000, machine.clock)
    assert len(formats.compare(files, budget=whole)) == 3
    each = machine.now / 3
    for budget_s, n in ((2.5 * each, 2), (0.5 * each, 0), (each + 0.1, 1)):
        part, start = Budget(budget_s, machine.clock), machine.now
        found = formats.compare(files, budget=part)
        assert len(found) == n
        assert machine.now - start <= 1.2 * budget_s
        assert part.left_out[-1] == "measuring c.gguf for comparison"
        assert len(part.left_out) == 3 - n


def test_fewer_widths_are_measured_where_there_is_less_time(tune):
    measured = []
    for budget_s in range(1, 30):
        machine = SlowMachine(steady, loading_s=0)
        model = machine.open_model(tune.model.path, edgespec.EngineConfig(n_threads=1))
        found = measured_curve(model, [WIDTHS, QUICK, FEW], Budget(budget_s, machine.clock), 64)
        assert machine.now <= budget_s + 0.1
        measured.append(found and found[0].widths)
    kinds = list(dict.fromkeys(measured))
    assert (kinds[:3], kinds[-1]) == ([None, FEW, QUICK], WIDTHS)
    assert all(set(QUICK) < set(widths) <= set(WIDTHS) for widths in kinds[3:])
