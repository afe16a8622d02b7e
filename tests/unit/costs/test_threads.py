"""The number of threads beside other programs, on simulated machines."""

import pytest

import edgespec
from edgespec.costs.threads import WINDOW_S, ThreadGovernor
from edgespec.device import Load, LoadMeter
from tests.helpers.neighbours import Decoding, Limitable, Machine

CORES = (2, 4, 8)
LOOPS = {2: (1, 2, 4), 4: (1, 2, 4, 8), 8: (1, 3, 8)}
BESIDE = [(cpus, loops) for cpus in CORES for loops in LOOPS[cpus]]


@pytest.mark.parametrize("visible", [True, False])
@pytest.mark.parametrize("cpus", CORES)
def test_nothing_is_lost_alone(cpus, visible):
    machine = Machine(cpus, visible=visible)
    decoding = Decoding(machine)
    assert decoding.run(60) >= 0.99 * machine.rate(cpus)
    assert decoding.governor.n_trials == 0


@pytest.mark.parametrize("cpus", CORES)
def test_small_programs_are_no_neighbours(cpus):
    machine = Machine(cpus, background=0.2)
    decoding = Decoding(machine)
    assert decoding.run(60) >= 0.99 * machine.rate(cpus)
    assert decoding.governor.n_trials == 0


@pytest.mark.parametrize("visible", [True, False])
@pytest.mark.parametrize(("cpus", "loops"), BESIDE)
def test_beside_others_it_is_nearly_as_fast_as_the_best_number_in_hindsight(cpus, loops, visible):
    machine = Machine(cpus, visible=visible)
    decoding = Decoding(machine)
    decoding.run(5)
    machine.loops = loops
    decoding.run(1)
    assert decoding.run(30) >= 0.9 * machine.best()
    assert decoding.governor.n_trials <= 24


@pytest.mark.parametrize("visible", [True, False])
@pytest.mark.parametrize("loops", LOOPS[2])
def test_it_reacts_within_a_second_of_their_coming(loops, visible):
    for phase in range(8):
        machine = Machine(visible=visible)
        decoding = Decoding(machine)
        decoding.run(5 + phase / 20)
        machine.loops = loops
        assert decoding.until(1) <= 1


@pytest.mark.parametrize(("visible", "within"), [(True, 2), (False, 10)])
@pytest.mark.parametrize("loops", LOOPS[2])
def test_it_goes_back_when_they_leave(loops, visible, within):
    for stay in (0.8, 3, 20, 31):
        machine = Machine(visible=visible)
        decoding = Decoding(machine)
        decoding.run(5)
        machine.loops = loops
        decoding.run(stay)
        machine.loops = 0
        assert decoding.until(2) <= within
        decoding.run(10)
        assert decoding.run(20) >= 0.99 * machine.rate(2)


def test_evaluations_that_take_no_tick_of_the_clock_say_nothing():
    machine = Machine()
    decoding = Decoding(machine)
    decoding.run(5)
    machine.loops = 2
    governor = decoding.governor
    while not governor.n_trials:
        machine.pass_time(0.01, 2)
        governor.before()
        if not governor.n_trials:
            governor.observe(1, 0, 0.05)
    for width in (2, 2, 3):
        governor.observe(width, 0, 0.0)
    assert decoding.until(1) <= 1


@pytest.mark.parametrize("known", [True, False])
def test_they_may_have_been_there_first(known):
    machine = Machine(seed=1)
    decoding = Decoding(machine, known=known)
    machine.loops = 2
    assert decoding.until(1) <= 1
    machine.loops = 0
    assert decoding.until(2) <= 2


def loaded(machine, seconds=1.0, **options):
    """Return what decodes after the loading of a model, which used one core."""
    meter = machine.meter()
    machine.pass_time(seconds, 1)
    decoding = Decoding(machine, **options)
    if load := meter.look(WINDOW_S):
        decoding.governor.begin_beside(load)
    return decoding


@pytest.mark.parametrize("loops", LOOPS[2])
def test_who_was_there_while_a_model_was_loaded_is_known_from_the_first_step(loops):
    machine = Machine()
    machine.loops = loops
    decoding = loaded(machine)
    decoding.step()
    assert decoding.n_threads == 1
    assert decoding.governor.regime.disturbed
    assert decoding.until(1) == 0
    machine.loops = 0
    assert decoding.until(2) <= 2


def test_who_left_when_the_model_was_loaded_costs_a_second():
    machine = Machine()
    machine.loops = 1
    decoding = loaded(machine)
    machine.loops = 0
    assert decoding.until(2) <= 1
    decoding.run(10)
    assert decoding.run(20) >= 0.99 * machine.rate(2)


@pytest.mark.parametrize(("loops", "seconds"), [(0, 1.0), (2, 0.1)])
def test_a_quiet_or_short_loading_says_nothing(loops, seconds):
    machine = Machine(background=0.2)
    machine.loops = loops
    decoding = loaded(machine, seconds)
    decoding.step()
    assert decoding.n_threads == 2
    assert not decoding.governor.regime.disturbed


def test_the_first_request_with_fixed_threads_knows_of_the_loading():
    machine = Machine()
    machine.loops = 2
    decoding = loaded(machine, fixed_in_request=True)
    decoding.governor.begin()
    decoding.step()
    assert decoding.n_threads == 1


def test_where_nothing_is_seen_a_profile_tells_that_they_were_there_first():
    machine = Machine(visible=False)
    decoding = Decoding(machine, known=True)
    machine.loops = 1
    assert decoding.until(1) <= 2


@pytest.mark.parametrize("visible", [True, False])
def test_heat_is_no_neighbour(visible):
    machine = Machine(visible=visible)
    decoding = Decoding(machine)
    decoding.run(5)
    machine.slower = 1.6
    assert decoding.run(60) >= 0.99 * machine.rate(2)
    assert decoding.governor.n_trials <= 2
    assert not decoding.governor.regime.disturbed


@pytest.mark.parametrize("visible", [True, False])
def test_a_text_that_grows_longer_is_no_neighbour(visible):
    machine = Machine(visible=visible)
    decoding = Decoding(machine)
    for step in range(40):
        machine.slower = 1 + step / 20
        decoding.run(1)
    assert decoding.governor.n_trials <= 2


@pytest.mark.parametrize("visible", [True, False])
def test_neighbours_that_come_and_go_all_the_time(visible):
    machine = Machine(visible=visible)
    decoding = Decoding(machine)
    decoding.run(3)
    best = n = 0.0
    for _ in range(20):
        for loops in (1, 0):
            machine.loops = loops
            n += 3 * decoding.run(3)
            best += 3 * machine.best()
    assert n >= 0.75 * best


def test_drafts_of_other_widths_are_compared_with_their_like():
    machine = Machine()
    decoding = Decoding(machine)
    for width in (1, 5, 1, 9, 5, 1) * 40:
        decoding.step(width)
    assert decoding.governor.n_trials == 0
    machine.loops = 1
    for width in (1, 5, 1, 9, 5, 1) * 10:
        decoding.step(width)
    assert decoding.n_threads == 1


def test_threads_are_fixed_within_a_request_if_rows_must_not_change():
    machine = Machine()
    decoding = Decoding(machine, fixed_in_request=True)
    decoding.governor.begin()
    decoding.run(2)
    machine.loops = 2
    decoding.run(3)
    assert decoding.n_threads == 2
    decoding.governor.begin()
    decoding.run(3)
    assert decoding.n_threads == 1
    machine.loops = 0
    decoding.run(3)
    assert decoding.n_threads == 1
    decoding.governor.begin()
    decoding.run(1)
    assert decoding.n_threads == 2
    assert decoding.governor.n_trials == 0


def test_a_pause_says_nothing_about_now():
    machine = Machine()
    decoding = Decoding(machine)
    decoding.run(3)
    machine.loops = 2
    machine.pass_time(60)
    machine.loops = 0
    decoding.run(5)
    assert decoding.governor.n_trials == 0


def test_loading_watches_the_cores(smollm2, monkeypatch):
    class Busy(LoadMeter):
        def look(self, least_s=0.0):
            return Load(others=1.5, own=0.5, idle=0.0)

    monkeypatch.setattr("edgespec.loading.load.LoadMeter", Busy)
    seen = []
    monkeypatch.setattr(ThreadGovernor, "begin_beside", lambda self, load: seen.append(load))
    edgespec.load(smollm2, None, n_ctx=64).close()
    assert [load.others for load in seen] == [1.5]


# --- time limits, and what a trial may cost -----------------------------------------------------


class Stuck(Machine):
    """Two threads beside loops wait seconds for a core."""

    def rate(self, n_threads):
        return 1 / 2.8 if self.loops and n_threads > 1 else super().rate(n_threads)


def beside_loops(loops=2, **options):
    """Return what decodes beside loops, with one thread already."""
    decoding = Decoding(Stuck(), **options)
    decoding.run(2)
    decoding.machine.loops = loops
    decoding.run(6)
    assert decoding.n_threads == 1
    return decoding


def begin_trial(decoding):
    """Take steps until the next one tries more threads."""
    for _ in range(2000):
        decoding.governor.before()
        if decoding.governor.may_take_s(1, 0) < 1:
            return
        decoding.governor.observe(1, 0, decoding.machine.step(decoding.n_threads))
    pytest.fail("nothing was tried")


@pytest.mark.parametrize("loops", [1, 2, 4])
def test_a_trial_of_more_threads_costs_a_tenth_of_a_second(loops):
    decoding = beside_loops(loops)
    before = decoding.governor.n_trials
    plain_s = 1.1 / decoding.machine.rate(1)
    longest = max(decoding.step() for _ in range(1500))
    assert decoding.governor.n_trials > before
    assert 0.1 < longest <= 0.1 + plain_s


def test_where_nothing_can_be_stopped_more_threads_than_free_cores_are_not_tried():
    decoding = beside_loops(stoppable=False)
    longest = max(decoding.step() for _ in range(1500))
    assert longest <= 1.1 / decoding.machine.rate(1)
    decoding.machine.loops = 0
    assert decoding.until(2) <= 2


def test_near_a_time_limit_nothing_is_tried():
    decoding = beside_loops()
    n_trials = decoding.governor.n_trials
    for _ in range(1500):
        decoding.step(left_s=0.5)
        assert decoding.n_threads == 1
    assert decoding.governor.n_trials == n_trials
    for _ in range(500):
        decoding.step(left_s=5.0)
    assert decoding.governor.n_trials > n_trials


def test_near_a_time_limit_fewer_threads_are_used_without_a_trial_and_all_when_others_leave():
    machine = Machine()
    decoding = Decoding(machine)
    decoding.run(2)
    machine.loops = 2
    for _ in range(60):
        decoding.step(left_s=0.5)
    assert decoding.n_threads == 1
    assert decoding.governor.n_trials == 0
    machine.loops = 0
    for _ in range(100):
        decoding.step(left_s=0.5)
    assert decoding.n_threads == 2
    assert decoding.governor.n_trials == 0


def test_a_trial_ends_where_the_limit_comes_near():
    decoding = beside_loops()
    begin_trial(decoding)
    assert decoding.n_threads == 2
    decoding.governor.before(left_s=0.5)
    assert decoding.n_threads == 1


@pytest.mark.parametrize(("left_s", "running", "n_threads"), [
    (2.0, 2.0, 1), (2.0, 0.0, 2), (2.0, None, 2), (float("inf"), 2.0, 2),
])  # fmt: skip
def test_the_first_evaluation_behind_a_pause_looks_at_what_runs_now(left_s, running, n_threads):
    machine = Machine()
    decoding = Decoding(machine, running=lambda: running)
    decoding.run(2)
    machine.pass_time(60)
    decoding.governor.begin(left_s)
    decoding.step(left_s=left_s)
    assert decoding.n_threads == n_threads


@pytest.mark.parametrize(("visible", "limit"), [(True, 0), (False, 1)])
def test_prompts_are_read_with_all_threads_if_the_system_shows_no_other_programs(visible, limit):
    decoding = Decoding(Machine(visible=visible))
    decoding.run(1)
    decoding.governor._use(1)
    decoding.step(1)
    assert decoding.model.thread_limit == 1
    decoding.step(200)
    assert decoding.model.thread_limit == limit


def test_a_draft_model_and_the_reading_of_prompts_try_nothing():
    decoding = beside_loops()
    draft = Limitable()
    decoding.governor._models.append(draft)
    begin_trial(decoding)
    decoding.governor.before(1)
    assert (decoding.model.thread_limit, draft.thread_limit) == (0, 1)
    decoding.governor.before(200)
    assert (decoding.model.thread_limit, draft.thread_limit) == (1, 1)
