"""Tuning: decisions on made-up times, and what loads make of what is kept."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest

import edgespec
from edgespec import EngineConfig
from edgespec.costs.curves import Curve
from edgespec.costs.measuring import timed
from edgespec.costs.profiles import Entry, Profile, keep, kept
from edgespec.loading import models
from edgespec.measure import search, tuning
from edgespec.measure.budget import Budget
from edgespec.measure.gains import break_even, speedup
from edgespec.measure.interleaving import MAX_ROUNDS, decide, interleave
from edgespec.measure.results import Tuning
from edgespec.measure.search import enough_time
from edgespec.measure.tuning import seconds_per_prompt_token
from tests.helpers import libllama, tiny_models
from tests.helpers.selection import first

FLAT = Curve((64,), (1, 32), ((0.1, 0.1),))
STEEP = Curve((64,), (1, 32), ((0.1, 3.2),))
HALF = Curve((64,), (1, 32), ((0.1, 1.65),))  # each further token costs half of one
KNOWN = [(2, "2 threads"), (1, "1 thread")]


def taking(*times: float):
    """Return a try that takes these times, again and again."""
    again = itertools.cycle(times)
    return lambda abort: next(again)


def test_a_try_is_given_up_when_it_is_far_behind():
    assert interleave([taking(1.0), taking(1.6)], Budget(60)) == [[1.0], [1.6]]
    assert interleave([taking(1.0), taking(1.3)], Budget(60)) == [[1.0] * 2, [1.3] * 2]
    assert interleave([taking(1.0), taking(0.99)], Budget(60)) == [[1.0] * 3, [0.99] * 3]
    assert interleave([taking(1.0)], Budget(60)) == [[]]


def test_tries_take_turns_until_all_rounds_are_done():
    order = []
    tries = [lambda _: order.append("a") or 1.0, lambda _: order.append("b") or 0.5]
    assert [len(times) for times in interleave(tries, Budget(60))] == [MAX_ROUNDS, MAX_ROUNDS]
    assert order == ["b", "a"] * MAX_ROUNDS  # the default last


def test_no_round_is_begun_that_does_not_fit_the_budget():
    now = [0.0]

    def lasting(each: float, reported: float):
        def one(abort):
            now[0] += each
            return reported

        return one

    def rounds(budget_s: float, *reported: float):
        tries = [lasting(10 / len(reported), seconds) for seconds in reported]
        return [len(times) for times in interleave(tries, Budget(budget_s, lambda: now[0]))]

    for budget_s, n in ((0, 0), (11, 1), (20.5, 2), (39, 3)):
        assert rounds(budget_s, 1.0, 0.5) == [n, n]
    assert rounds(17, 1.0, 0.5, 9.0) == [2, 2, 1]  # a round takes less after one was given up


def test_what_is_faster_beyond_doubt_is_taken():
    choice = decide("n_threads", "one token", KNOWN, [[1.0] * 5, [0.8] * 5])
    assert (choice.chosen, choice.label) == (1, "1 thread")
    assert choice.why == "25% faster than the default"
    assert [c.ms for c in choice.candidates] == [1000, 800]


def test_what_is_far_ahead_needs_few_repetitions():
    choice = decide("n_threads", "one token", KNOWN, [[3.1, 2.9], [0.013, 0.014]])
    assert choice.label == "1 thread"
    assert decide("n_threads", "one token", KNOWN, [[3.0], [0.013]]).label == "2 threads"


@pytest.mark.parametrize(("default", "other", "why"), [
    ([1.0] * 5, [0.98] * 5, "3% and the noise"),
    ([1.0, 0.8, 1.0, 1.2, 1.3], [0.9] * 5, "3% and the noise"),
    ([1.0] * 4, [0.5] * 4, "no time to be sure"),
    ([1.0] * 2, [1.4] * 2, "the default is the fastest"),
])  # fmt: skip
def test_anything_else_is_not(default, other, why):
    choice = decide("n_threads", "one token", KNOWN, [default, other])
    assert choice.chosen == 2
    assert why in choice.why


def test_a_setting_without_another_value():
    choice = decide("n_threads", "one token", KNOWN[:1], [[]])
    assert (choice.chosen, choice.why) == (2, "there is no other")


def test_the_largest_speedup():
    assert speedup(FLAT) == (pytest.approx(32), 31)
    assert speedup(STEEP) == (1.0, 0)
    gain, depth = speedup(HALF)
    assert depth == 31
    assert gain == pytest.approx(32 / 16.5)
    assert speedup(HALF, acceptance_rate=0.0) == (1.0, 0)
    assert speedup(FLAT, draft=STEEP) == (1.0, 0)
    assert speedup(FLAT, draft=STEEP.scaled(0.5))[1] == 31


def test_how_likely_drafts_must_be_right():
    assert break_even(STEEP) is None
    assert break_even(FLAT) == 0.01
    assert break_even(HALF) == pytest.approx(0.51)


def test_a_setting_is_tried_if_loading_and_three_rounds_fit():
    now, asked = [0.0], []

    def answer(abort):
        asked.append(now)
        now[0] += 0.01

    def fits(budget_s):
        return enough_time(answer, 1.0, Budget(budget_s, lambda: now[0]))

    assert fits(3600)
    assert len(asked) == 1
    assert not fits(1.05)  # six of them take 60 ms
    assert len(asked) == 2
    assert not fits(0.9)
    assert len(asked) == 2


def test_seconds_of_a_prompt_token():
    tried = decide("n_threads_batch", "64 tokens at once", KNOWN, [[0.64] * 3, [1.28]])
    alone = decide("n_threads_batch", "64 tokens at once", KNOWN[:1], [[]])
    assert seconds_per_prompt_token([tried], HALF) == pytest.approx(0.01)
    for choices in ([alone], []):
        assert seconds_per_prompt_token(choices, HALF) == pytest.approx(1.65 / 32)


def test_a_report_for_machines():
    choices = (decide("n_threads", "one token", KNOWN, [[0.1] * 5, [0.2] * 5]),)
    found = Tuning("m", "d", choices, {}, Profile(HALF, FLAT.scaled(0.1)), 3.0, Path("p"))
    report = found.to_dict()
    assert report["target"]["ratio"] == [[1.0, 16.5]]
    assert report["target"]["guessed"] == ((False, False),)
    assert report["lookup"]["depth"] == 31
    assert report["draft_speedup"]["speedup"] < report["lookup"]["speedup"]
    assert not found.disturbed
    noisy = decide("n_threads", "one token", KNOWN, [[0.1, 0.1, 0.5, 0.5], [0.9] * 4])
    assert Tuning("m", None, (noisy,), {}, Profile(HALF), 3.0, None).disturbed


def test_what_is_kept_is_found_under_the_same_key_only(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGESPEC_PROFILES", str(tmp_path))
    path = keep({"file": "a"}, {"options": {"n_threads": 1}})
    assert kept({"file": "a"}, Entry).fingerprint == {"file": "a"}
    assert kept({"file": "b"}, Entry) is None
    path.write_text("[]", encoding="utf-8")
    assert kept({"file": "a"}, Entry) is None
    path.touch()
    monkeypatch.setenv("EDGESPEC_PROFILES", str(path))  # a file
    assert keep({"file": "a"}, {}) is None


def test_timing_leaves_the_cache_as_it_was():
    for truncate in (True, False):
        model = edgespec.ToyModel([[0.5, 0.5], [0.5, 0.5]], truncate=truncate)
        model.decode([0, 1, 0])
        timed(model, 4)
        assert model.n_past == 3


@pytest.fixture
def file(tmp_path, monkeypatch) -> Path:
    libllama.require()
    monkeypatch.setenv("EDGESPEC_PROFILES", str(tmp_path / "profiles"))
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF and more")
    return path


def test_options_that_a_user_gives_win(file):
    from edgespec.loading.tuned import tuned_options, tuning_key

    config = EngineConfig()
    assert tuned_options(file, config) == {}
    chosen = {"n_threads": 1, "n_threads_batch": 2, "use_extra_bufts": False}
    keep(tuning_key(file, config), {"options": chosen})
    assert tuned_options(file, config) == chosen
    assert tuned_options(file, EngineConfig(n_ctx=512, n_threads=4)) == chosen
    assert tuned_options(file, config, ["n_threads"]) == {"use_extra_bufts": False}
    assert tuned_options(file, config, ["n_threads_batch", "n_ctx"]) == {
        "n_threads": 1, "use_extra_bufts": False,
    }  # fmt: skip
    assert tuned_options(file, EngineConfig(type_v="q8_0")) == {}
    file.write_bytes(b"GGUF and something else")
    assert tuned_options(file, config) == {}


@pytest.mark.parametrize("options", [{"n_threads": -3}, {"flash_attn": "maybe"}, 5, None])
def test_what_makes_no_sense_is_not_used(file, options):
    from edgespec.loading.tuned import tuned_options, tuning_key

    config = EngineConfig()
    keep(tuning_key(file, config), {"options": options})
    assert tuned_options(file, config) == {}


@pytest.mark.long("tunes real weights, three times")
def test_tune_with_real_weights(smollm2, tmp_path, monkeypatch):
    from edgespec.backends.llama_cpp import LlamaCppModel
    from edgespec.costs.profiles import stored
    from edgespec.loading.tuned import tuned_options, tuning_key

    monkeypatch.setenv("EDGESPEC_PROFILES", str(tmp_path))
    steps: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(search, "enough_time", lambda *_: True)
        patched.setattr(search, "thread_counts", lambda _: [1, 2])  # whatever this process may use
        patched.setattr(tuning, "other_load", lambda *_: None)  # others may run the tests, too
        patched.setattr(tuning, "LoadMeter", lambda: SimpleNamespace(look=lambda: None))
        found = edgespec.tune(smollm2, None, budget_s=60, progress=steps.append, n_ctx=1024)
    assert [c.setting for c in found.choices] == [
        "n_threads", "n_threads_batch", "flash_attn", "use_extra_bufts",
    ]  # fmt: skip
    assert all(c.candidates[0].n_repetitions for c in found.choices)
    assert f"loading {smollm2.name}" in steps
    config = EngineConfig()
    assert tuned_options(smollm2, config) == found.options
    with edgespec.load(smollm2, None, n_ctx=512) as engine:
        assert engine.generate("1, 2, 3,", max_tokens=4).stats.num_emitted_tokens
    model = LlamaCppModel(smollm2, EngineConfig(n_ctx=512, **found.options))
    assert stored(model.fingerprint()) == found.profile.target  # no quick one beside it
    model.close()

    keep(tuning_key(smollm2, config), {"options": {"n_threads": 1, "n_threads_batch": 1}})
    with edgespec.load(smollm2, None, n_ctx=512, speculative_config={"method": "none"}) as engine:
        assert engine.describe()["model"]["n_threads"] == 1
    monkeypatch.setattr(search, "available_memory", lambda: 1 << 40)
    monkeypatch.setattr(tuning, "other_load", lambda *_: None)
    again = edgespec.tune(smollm2, None, budget_s=0.01, n_ctx=512, n_threads=1, flash_attn="on")
    assert again.profile is None  # nor to measure it
    assert [c.setting for c in again.choices] == ["use_extra_bufts"]
    assert "there was no time" in again.choices[0].why  # to load it is too long already
    assert tuned_options(smollm2, config)["n_threads"] == 1  # kept: it was not searched


def test_where_others_never_stop_it_is_kept_if_that_is_asked_for(
    tmp_path, monkeypatch, busy_machine
):
    libllama.require()
    monkeypatch.setenv("EDGESPEC_PROFILES", str(tmp_path / "profiles"))
    model = tiny_models.write(tmp_path, "llama")
    steps: list[str] = []
    monkeypatch.setattr(tuning, "measured_curve", lambda *_: (HALF, True))
    found = edgespec.tune(model, None, budget_s=9, keep_busy=True, progress=steps.append, n_ctx=256)
    assert steps[0] == "other programs use 1.5 cores: only what is clearly faster is kept"
    assert not found.busy
    assert found.others == pytest.approx(1.5, abs=0.1)
    assert found.path.exists()
    with edgespec.load(model, None, n_ctx=256) as engine:
        said = engine.generate("1, 2, 3,", max_tokens=3, ignore_eos=True).stats.speculation
        assert "not measured" not in said  # the costs are known, and measured anew in quiet
        assert engine.idle_work.left


@pytest.mark.parametrize("fails", first(1, [True, False], "measures real weights"))
def test_what_is_chosen_is_what_is_measured(fails, smollm2, small_draft, tmp_path, monkeypatch):
    from edgespec.backends.llama_cpp import LlamaCppModel

    chosen, opened, closed = {"flash_attn": "off"}, [], []
    really_close = LlamaCppModel.close

    def close(model):
        closed.append(model)
        really_close(model)

    def open_model(path, config):
        if fails and opened:
            raise edgespec.ModelError("it has gone")
        opened.append(models.open_model(path, config))
        return opened[-1]

    monkeypatch.setenv("EDGESPEC_PROFILES", str(tmp_path))
    monkeypatch.setattr(LlamaCppModel, "close", close)
    monkeypatch.setattr(tuning, "open_model", open_model)
    monkeypatch.setattr(tuning, "search", lambda *_, **__: [])
    monkeypatch.setattr(tuning, "chosen_options", lambda *_: chosen)
    if fails:
        with pytest.raises(edgespec.ModelError, match="gone"):
            edgespec.tune(smollm2, small_draft, n_ctx=256)
    else:
        found = edgespec.tune(smollm2, small_draft, budget_s=1, n_ctx=256)
        assert found.options == chosen
        assert opened[1].config.flash_attn == "off"
    assert len({id(model) for model in closed}) >= 2 * len(opened)  # and a draft for each


def test_threads_change_on_a_live_model(smollm2):
    from edgespec.backends.llama_cpp import LlamaCppModel

    model = LlamaCppModel(smollm2, EngineConfig(n_ctx=256, n_threads=1))
    before = model.fingerprint()
    model.set_threads(2, 1)
    model.decode([1, 2, 3])
    assert model.fingerprint() != before
    model.set_threads(1, 1)
    assert model.fingerprint() == before
    model.close()
