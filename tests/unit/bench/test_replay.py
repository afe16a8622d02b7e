"""Recorded answers, and policies replayed over them in virtual time."""

import random

import numpy as np
import pytest

from edgespec import SamplingParams, ToyModel
from edgespec.bench import replay, traces
from edgespec.bench.replay import Fixed, Replay, dense, rates
from edgespec.bench.traces import AFTER_A_MISS, DEPTH, Trace, record
from edgespec.costs.curves import Curve
from edgespec.costs.profiles import Profile
from edgespec.drafters.draft_model import ModelDrafter
from edgespec.sampling.base import Request

N = 64
PROMPT = [1, 2, 3, 1, 2]
NEVER = set().__contains__  # no token ends an answer


def probs_of(agreement):
    """Depends on the last two tokens and on the length; with `agreement` < 1 on others' whims."""

    def probs(tokens):
        before, last = tokens[-2:] if len(tokens) > 1 else (0, tokens[0])
        rng = random.Random(before * N * 3 + last * 3 + len(tokens) % 3)
        shift, sure = rng.randrange(N), rng.uniform(0.55, 0.95)
        best = (last + shift + (rng.random() >= agreement)) % N
        row = np.zeros(N)
        row[best], row[(best + 9) % N] = sure, 1 - sure
        return row

    return probs


def toy(agreement, **options):
    return ToyModel(probs_of(agreement), vocab_size=N, **options)


@pytest.mark.parametrize("agreement", [1.0, 0.8, 0.4])
def test_chains_are_what_a_draft_model_drafts(agreement):
    output, chains, top = record(toy(1.0), toy(agreement), PROMPT, 60, NEVER)
    assert output == [int(probs_of(1.0)([*PROMPT, *output[:i]]).argmax()) for i in range(60)]
    assert len(chains) == len(top) == 60
    misses = 0
    for i, chain in enumerate(chains):
        context = [*PROMPT, *output[:i]]
        drafter = ModelDrafter(toy(agreement), N)
        drafter.begin(Request(context, SamplingParams(), None))
        drafted = [token for token, _ in chain]
        assert tuple(drafted) == drafter.propose(context, len(chain)).tokens
        for j, (token, sure) in enumerate(chain):
            row = probs_of(agreement)([*context, *drafted[:j]])
            assert sure == pytest.approx(row[token], abs=1e-4)
        right = [a == b for a, b in zip(drafted, output[i:], strict=False)]
        n_right = right.index(False) if False in right else len(output) - i
        missed = n_right < len(output) - i
        assert len(chain) == min(DEPTH, n_right + missed * (1 + AFTER_A_MISS))
        misses += missed
    assert (misses > 0) == (agreement < 1)


def test_models_may_have_been_used_and_read_in_chunks():
    target, draft = toy(1.0), toy(0.6)
    used = toy(1.0), toy(0.6, max_rows=5, max_batch=3)
    for model in used:
        model.decode([9, 9, 9])
    assert record(*used, PROMPT, 30, NEVER) == record(target, draft, PROMPT, 30, NEVER)


def test_likeliest_tokens_and_the_end():
    whole, _, _ = record(toy(1.0), toy(0.5), PROMPT, 9, NEVER)
    output, chains, top = record(toy(1.0), toy(0.5), PROMPT, 60, {whole[4]}.__contains__)
    assert output == whole[: whole.index(whole[4]) + 1]
    assert len(chains) == len(top) == len(output)
    for i, best in enumerate(top):
        row = probs_of(1.0)([*PROMPT, *output[:i]])
        assert [token for token, _ in best[:2]] == [output[i], (output[i] + 9) % N]
        assert [p for _, p in best[:2]] == pytest.approx(sorted(row)[:-3:-1], abs=1e-4)


def traced(agreement=0.6, n=60, id="a", category="qa", start=1):
    prompt = [start, 2, 3, 1, 2] * 3
    return Trace(id, category, prompt, *record(toy(1.0), toy(agreement), prompt, n, NEVER))


def test_saved_and_loaded(tmp_path):
    made = [traced(), traced(0.9, 20, "ä", "rag")]
    traces.save(tmp_path / "t.gz", made)
    first = (tmp_path / "t.gz").read_bytes()
    loaded = traces.load(tmp_path / "t.gz")
    assert loaded == made
    assert dense(loaded[0]) == dense(made[0])
    traces.save(tmp_path / "t.gz", loaded)
    assert (tmp_path / "t.gz").read_bytes() == first


def line(first, each):
    return Curve((1,), (1, 33), ((first, first + 32 * each),))


PROFILE = Profile(line(1.0, 0.05), line(0.1, 0.02), overhead=0.0)
SETTINGS = ["plain", "auto", Fixed(4, 2), Fixed(4, 0, 0.0), Fixed(15, 2, 0.8), Fixed(1, 5, 0.0)]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_every_setting_gives_the_text_of_the_trace(setting):
    """`run` compares it with the trace."""
    made = Replay(PROFILE, setting)
    for trace in (traced(), traced(1.0, 90), traced(0.2, 1), traced(start=9), traced()):
        stats = made.run(trace)
        assert stats.num_emitted_tokens == len(trace.output)
        assert (stats.num_draft_tokens > 0) == (setting != "plain" and len(trace.output) > 1)


def test_plain_decoding_takes_a_plain_step_a_token():
    trace = traced(n=60)
    assert Replay(PROFILE, "plain").run(trace).total_s == pytest.approx(60)
    rising = Curve((0, 100), (1, 2), ((1.0, 2.0), (3.0, 4.0)))
    stats = Replay(Profile(rising, overhead=0.0), "plain").run(trace)
    steps = [rising(1, n_past) for n_past in (0, *range(15, 74))]
    assert stats.total_s == pytest.approx(sum(steps))
    assert stats.time_to_first_token_s + stats.decode_s == pytest.approx(stats.total_s)


def test_a_fixed_setting_takes_what_its_evaluations_take():
    trace = traced(1.0, n=50)
    stats = Replay(PROFILE, Fixed(4, 0, 0.0)).run(trace)
    assert (stats.num_spec_steps, stats.num_accepted_draft_tokens) == (10, 40)
    target, draft = PROFILE.target(5), PROFILE.draft
    reading = draft(15) + 9 * draft(2)  # the prompt; then the last drafted token and the bonus
    assert stats.total_s == pytest.approx(10 * target + reading + 30 * draft(1))


def test_as_many_tokens_survive_as_the_chains_say():
    trace = traced(0.6)
    right = [chain[0][0] == token for chain, token in zip(trace.chains, trace.output, strict=True)]
    stats = Replay(PROFILE, Fixed(1, 0, 0.0)).run(trace)
    position = n_accepted = 0
    while position < len(right) - 1:
        n_accepted += right[position]
        position += 1 + right[position]
    assert stats.num_accepted_draft_tokens == n_accepted


def test_unsure_tokens_are_drafted_as_recorded():
    trace = traced(1.0)
    chains = [[(token, 0.4) for token, _ in chain] for chain in trace.chains]
    stats = Replay(PROFILE, Fixed(1, 0, 0.0)).run(Trace("b", "c", *_text(trace), chains, []))
    assert stats.num_accepted_draft_tokens == stats.num_draft_tokens > 0


def _text(trace):
    return trace.prompt, trace.output


def test_what_a_draft_model_says_behind_a_wrong_token():
    text = list(range(100, 140))
    trace = Trace("b", "c", [1, 2], text, [[(7, 0.9), (8, 0.9), (9, 0.6)]] * 40, [])
    stats = Replay(PROFILE, Fixed(8, 0, 0.8)).run(trace)
    assert stats.drafts_by_source["draft_model"] == {"steps": 39, "drafted": 77, "accepted": 0}
    made = replay.TraceModel(replay.Clock(), PROFILE.draft, is_draft=True)
    made.tell(trace)
    for ahead, token in (([], 7), ([7], 8), ([7, 8], 9), ([9], 0), ([100], 7), ([100, 7], 8)):
        assert made.decode([1, 2, *ahead]).logits[0].argmax() == token
        made.truncate(0)


def test_dense_keeps_what_is_equal():
    trace = Trace("x", "y", [900, 7], [7, 50_000], [[(7, 1.0), (3, 0.5)], [(50_000, 0.2)]], [])
    made = dense(trace)
    assert (made.prompt, made.output) == ([made.prompt[0], made.output[0]], made.output)
    assert made.chains[0][0] == (made.output[0], 0.9999)
    assert made.chains[1] == [(made.output[1], 0.2)]
    ids = {*made.prompt, *made.output, made.chains[0][1][0]}
    assert len(ids) == 4
    assert ids <= set(range(1, 5))
    with pytest.raises(ValueError, match="trace x has more than 4096"):
        dense(Trace("x", "y", list(range(replay.VOCAB)), [], [], []))


SLOWER = Profile(Curve((0, 100), (1, 33), ((2.0, 5.0), (3.0, 9.0))), line(0.3, 0.1), overhead=0.01)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_one_run_tells_what_every_device_takes(setting):
    made = [traced(), traced(1.0, 90, category="rag"), traced(start=9)]
    profiles = [SLOWER] if setting == "auto" else [PROFILE, SLOWER]
    together = rates(made, profiles, setting)
    for profile, found in zip(profiles, together, strict=True):
        here = Replay(profile, setting)
        alone = {"qa": [], "rag": []}
        for trace in made:
            stats = here.run(trace)
            assert here.seconds_on(profile) == pytest.approx(stats.total_s)
            alone[trace.category].append(stats.num_emitted_tokens / stats.total_s)
        assert found == pytest.approx({c: np.mean(r) for c, r in alone.items()})


def test_rates_by_category():
    made = [traced(), traced(1.0, category="rag"), traced(0.1, n=1, category="none")]
    assert rates(made, [PROFILE], "plain") == [pytest.approx({"qa": 1, "rag": 1})]
    [found] = rates(made, [PROFILE], Fixed(4, 0, 0.0))
    assert found["rag"] > found["qa"]
    assert found["rag"] > 2


def test_a_table_of_every_device_with_the_best_fixed_setting(monkeypatch):
    monkeypatch.setattr(replay, "FIXED", (Fixed(4, 2), Fixed(4, 0, 0.0), Fixed(1, 5)))
    made = [traced(), traced(1.0, 90, category="rag")]
    profiles = {"no draft": Profile(PROFILE.target), "pair": PROFILE}
    told = []
    rows = list(replay.table(made, profiles, progress=lambda *done: told.append(done)))
    assert told == [(i + 1, 6) for i in range(6)]
    assert [(r["profile"], r["category"], r["policy"]) for r in rows] == [
        (name, category, policy)
        for name in profiles
        for category in ("qa", "rag")
        for policy in ("plain", "auto", "best-fixed")
    ]
    fixed = {"no draft": ["plain", Fixed(4, 2), Fixed(1, 5)], "pair": ["plain", *replay.FIXED]}
    for row in rows:
        profile, category = profiles[row["profile"]], row["category"]
        speed = {
            str(setting): rates(made, [profile], setting)[0][category]
            for setting in ("auto", *fixed[row["profile"]])
        }
        hindsight = {setting: rate for setting, rate in speed.items() if setting != "auto"}
        chosen = row.get("setting", row["policy"])
        assert row["speedup"] == round(speed[chosen] / speed["plain"], 4)
        if row["policy"] == "best-fixed":
            assert hindsight[chosen] == max(hindsight.values())
    with pytest.raises(ValueError, match="one profile"):
        rates(made, list(profiles.values()), "auto")
    assert {r["policy"] for r in replay.table(made, profiles, fixed=False)} == {"plain", "auto"}
