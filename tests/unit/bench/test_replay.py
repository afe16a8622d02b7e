"""Recorded answers, and policies replayed over them in virtual time."""

import random
from dataclasses import replace

import numpy as np
import pytest

from edgespec import SamplingParams, ToyModel
from edgespec.bench import replay, trace_model, traces
from edgespec.bench.replay import Fixed, Replay, rates
from edgespec.bench.trace_model import Clock, TraceModel, dense
from edgespec.bench.traces import AFTER_A_MISS, N_DRAFTED, N_TOP, Drafts, Trace, record
from edgespec.costs.curves import Curve
from edgespec.costs.profiles import Profile
from edgespec.decoding.drafting import Drafting
from edgespec.drafters.draft_model import ModelDrafter
from edgespec.errors import ConfigError
from edgespec.policies.fixed import FixedDepth
from edgespec.sampling.base import Request
from edgespec.sampling.trees import path_to
from edgespec.types import Budget
from tests.helpers.policies import line

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


def follows(agreement, context, drafted, row):
    """Return True if a row holds the likeliest tokens after a draft, with their probabilities."""
    probs = probs_of(agreement)([*context, *drafted])
    ids = sorted(probs.nonzero()[0], key=lambda token: -probs[token])
    assert [prob for _, prob in row] == pytest.approx([probs[token] for token in ids], abs=1e-3)
    return [token for token, _ in row] == ids


@pytest.mark.parametrize("agreement", [1.0, 0.8, 0.4])
def test_rows_and_tails_are_what_a_draft_model_drafts(agreement):
    output, top, drafts = record(toy(1.0), toy(agreement), PROMPT, 60, NEVER)
    rows, tails = drafts["draft_model"].rows, drafts["draft_model"].tails
    assert output == [int(probs_of(1.0)([*PROMPT, *output[:i]]).argmax()) for i in range(60)]
    assert len(rows) == len(top) == 60
    assert (len(tails) > 0) == (agreement < 1)
    for i, row in enumerate(rows):
        context = [*PROMPT, *output[:i]]
        assert follows(agreement, context, [], row)
        assert (row[0][0] != output[i]) == (i in tails)
        tail = tails.get(i, [])
        drafted = [row[0][0], *(after[0][0] for after in tail)]
        drafting = Drafting([ModelDrafter(toy(agreement), N)], FixedDepth(len(drafted)))
        drafting.begin(Request(context, SamplingParams(), None))
        assert tuple(drafted) == drafting.grow(Budget(len(drafted))).draft.tokens
        for j, after in enumerate(tail, 1):
            assert follows(agreement, context, drafted[:j], after)
        assert len(tail) == (AFTER_A_MISS if i in tails else 0)


def test_as_many_tokens_of_a_row_as_a_replay_looks_at():
    def probs(tokens):
        row = np.arange(N, 0.0, -1.0) + 100 * (np.arange(N) == tokens[-1])
        return row / row.sum()

    output, top, drafts = record(
        ToyModel(probs, vocab_size=N), ToyModel(probs, vocab_size=N), [40], 3, NEVER
    )
    assert output == [40] * 3
    for row in top:
        assert [token for token, _ in row] == [40, *range(N_TOP - 1)]
        assert [prob for _, prob in row] == pytest.approx(
            [probs([40])[token] for token, _ in row], abs=5e-4
        )
    assert drafts["draft_model"].rows == [row[:N_DRAFTED] for row in top]


def test_of_equally_likely_tokens_the_recorded_one_is_first():
    model = ToyModel(lambda tokens: np.ones(N) / N, vocab_size=N)
    output, top, drafts = record(model, model, [1], 3, NEVER)
    assert output == [0] * 3 == [row[0][0] for row in top]
    assert [row[0][0] for row in drafts["draft_model"].rows] == output


def test_models_may_have_been_used_and_read_in_chunks():
    target, draft = toy(1.0), toy(0.6)
    used = toy(1.0), toy(0.6, max_rows=5, max_batch=3)
    for model in used:
        model.decode([9, 9, 9])
    assert record(*used, PROMPT, 30, NEVER) == record(target, draft, PROMPT, 30, NEVER)


def test_the_end():
    whole, _, _ = record(toy(1.0), toy(0.5), PROMPT, 9, NEVER)
    output, top, drafts = record(toy(1.0), toy(0.5), PROMPT, 60, {whole[4]}.__contains__)
    assert output == whole[: whole.index(whole[4]) + 1]
    assert len(drafts["draft_model"].rows) == len(top) == len(output)


def traced(agreement=0.6, n=60, id="a", category="qa", start=1):
    prompt = [start, 2, 3, 1, 2] * 3
    return Trace(id, category, prompt, *record(toy(1.0), toy(agreement), prompt, n, NEVER))


def numbered(*arguments, **options):
    """Return a trace of toys as a replay takes it, the tokens of all toys having the same ids."""
    everything = list(range(N))
    first = Trace("all", "all", everything, everything, [], {})
    return dense([first, traced(*arguments, **options)])[1]


def test_saved_and_loaded(tmp_path):
    made = [traced(), traced(0.9, 20, "ä", "rag")]
    (tmp_path / "t.gz").write_bytes(traces.packed(made))
    first = (tmp_path / "t.gz").read_bytes()
    loaded = traces.load(tmp_path / "t.gz")
    assert loaded == made
    assert dense(loaded) == dense(made)
    (tmp_path / "t.gz").write_bytes(traces.packed(loaded))
    assert (tmp_path / "t.gz").read_bytes() == first


PROFILE = Profile(line(1.0, 0.05), line(0.1, 0.02), overhead=0.0)
SETTINGS = ["plain", "auto", Fixed(4, 2), Fixed(4, 0, 0.0), Fixed(15, 2, 0.8), Fixed(1, 5, 0.0)]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_every_setting_gives_the_text_of_the_trace(setting):
    """`run` compares it with the trace."""
    made = Replay(PROFILE, setting)
    for trace in (numbered(), numbered(1.0, 90), numbered(0.2, 1), numbered(start=9), numbered()):
        stats = made.run(trace)
        assert stats.num_emitted_tokens == len(trace.output)
        assert (stats.num_draft_tokens > 0) == (setting != "plain" and len(trace.output) > 1)


def test_plain_decoding_takes_a_plain_step_a_token():
    trace = numbered(n=60)
    assert Replay(PROFILE, "plain").run(trace).total_s == pytest.approx(60)
    rising = Curve((0, 100), (1, 2), ((1.0, 2.0), (3.0, 4.0)))
    stats = Replay(Profile(rising, overhead=0.0), "plain").run(trace)
    steps = [rising(1, n_past) for n_past in (0, *range(15, 74))]
    assert stats.total_s == pytest.approx(sum(steps))
    assert stats.time_to_first_token_s + stats.decode_s == pytest.approx(stats.total_s)


def test_a_fixed_setting_takes_what_its_evaluations_take():
    trace = numbered(1.0, n=50)
    stats = Replay(PROFILE, Fixed(4, 0, 0.0)).run(trace)
    assert (stats.num_spec_steps, stats.num_accepted_draft_tokens) == (10, 40)
    target, draft = PROFILE.target(5), PROFILE.draft
    reading = draft(15) + 9 * draft(2)  # the prompt; then the last drafted token and the bonus
    assert stats.total_s == pytest.approx(10 * target + reading + 30 * draft(1))


def test_as_many_tokens_survive_as_the_chains_say():
    trace = numbered(0.6)
    rows = trace.drafts["draft_model"].rows
    right = [row[0][0] == token for row, token in zip(rows, trace.output, strict=True)]
    stats = Replay(PROFILE, Fixed(1, 0, 0.0)).run(trace)
    position = n_accepted = 0
    while position < len(right) - 1:
        n_accepted += right[position]
        position += 1 + right[position]
    assert stats.num_accepted_draft_tokens == n_accepted


def test_unsure_tokens_are_drafted_as_recorded():
    trace = numbered(1.0)
    rows = [[(token, 0.4), (other, 0.3)] for (token, _), (other, _) in trace.top]
    stats = Replay(PROFILE, Fixed(1, 0, 0.0)).run(replace(trace, drafts=drafts(rows)))
    assert stats.num_accepted_draft_tokens == stats.num_draft_tokens > 0


def drafts(rows, tails=None):
    return {"draft_model": Drafts(rows, tails or {})}


TEXT = list(range(1000, 1040))
FOUR = [(2000, 0.5), (TEXT[2], 0.2), (2001, 0.1), (2002, 0.05)]
TAIL = [[(2010 + i, 0.6), (2020 + i, 0.1)] for i in range(3)]
TRACE = Trace(
    "b", "c", [998, 999], TEXT, [[(t, 0.9), (3000, 0.06)] for t in TEXT],
    drafts([FOUR if i == 2 else [(t, 0.8), (2003, 0.1)] for i, t in enumerate(TEXT)], {2: TAIL}),
)  # fmt: skip


def probs_behind(model, tokens):
    model.truncate(0)
    logits = model.decode(tokens).logits[0].astype(float)
    weights = np.exp(logits)
    assert weights.sum() == pytest.approx(1, abs=1e-3)
    return weights


@pytest.fixture
def model():
    made = TraceModel(Clock(), PROFILE.draft, source="draft_model")
    made.tell(TRACE)
    return made


def found(model, *tokens):
    return probs_behind(model, [998, 999, *tokens])


@pytest.mark.parametrize(
    ("behind", "row"),
    [
        (TEXT[:2], FOUR),
        (TEXT[:3], [(TEXT[3], 0.8), (2003, 0.1)]),  # the draft's second choice was the text
        ([*TEXT[:2], 2000], TAIL[0]),
        ([*TEXT[:2], 2000, 2010], TAIL[1]),
        ([*TEXT[:2], 2000, 2010, 2011], TAIL[2]),
    ],
)
def test_what_a_draft_model_says_where_it_was_recorded(model, behind, row):
    probs = found(model, *behind)
    for token, prob in row:
        assert probs[token] == pytest.approx(prob, rel=1e-3)
    assert probs.argmax() == row[0][0]
    assert set(np.argsort(-probs)[: len(row)]) == {token for token, _ in row}


@pytest.mark.parametrize(
    ("behind", "sure"),
    [
        ([*TEXT[:2], 2001], TAIL[0]),  # a third choice: as sure as after the first
        ([*TEXT[:2], 2000, 2020], TAIL[1]),
        ([*TEXT[:2], 2000, 2010, 2011, 2012], TAIL[2]),  # longer than what is recorded
        ([*TEXT[:2], 2000, TEXT[3]], TAIL[1]),
        ([2003], [(0, 0.8), (0, 0.1)]),  # where its first choice was right
        (TEXT, [(0, 0.5)]),
    ],
)
def test_what_a_draft_model_says_where_nothing_was_recorded(model, behind, sure):
    probs = found(model, *behind)
    assert sorted(probs)[::-1][: len(sure)] == pytest.approx([p for _, p in sure], rel=1e-3)
    assert not probs[998:].any()


def test_what_a_target_says_behind_rejected_tokens():
    target = TraceModel(Clock(), PROFILE.target)
    target.tell(TRACE)
    for behind in ([], TEXT[:1], TEXT[:9]):
        assert found(target, *behind)[TEXT[len(behind)]] == pytest.approx(0.9, rel=1e-3)
    assert not found(target, TEXT[20])[998:].any()  # it has not evaluated this token yet
    seen = found(target, *TEXT[:21])
    assert found(target, TEXT[20]) == pytest.approx(seen)
    assert seen[TEXT[21]] == pytest.approx(0.9, rel=1e-3)


def test_nodes_of_a_tree_get_the_rows_of_their_paths(model):
    nodes, parents = [2000, 2010, 2020, TEXT[2], TEXT[3], 2001], [-1, 0, 0, -1, 3, -1]
    model.decode([998, 999, TEXT[0]])
    rows = model.decode_tree([TEXT[1], *nodes], parents).logits.copy()
    for node, row in zip(range(-1, len(nodes)), rows, strict=True):
        path = [nodes[i] for i in path_to(parents, node)]
        assert np.exp(row.astype(float)) == pytest.approx(found(model, *TEXT[:2], *path))
    model.truncate(3)
    model.decode_tree([TEXT[1], *nodes], parents)
    model.keep([3, 4])
    assert model.n_past == 6
    assert model.decode([TEXT[4]]).logits[0].argmax() == TEXT[5]


@pytest.mark.parametrize("source", [None, "draft_model"])
def test_of_tokens_that_are_equal_when_rounded_the_first_is_the_likeliest(source):
    tie = [(1001, 0.4), (1000, 0.4)]
    made = TraceModel(Clock(), PROFILE.draft, source=source)
    made.tell(Trace("b", "c", [999], [1001], [tie], drafts([tie])))
    assert made.decode([999]).logits[0].argmax() == 1001


def test_a_wrong_token_costs_time():
    stats = Replay(PROFILE, Fixed(8, 0, 0.0)).run(dense([TRACE])[0])
    assert stats.num_emitted_tokens == len(TEXT)
    assert stats.num_draft_tokens > stats.num_accepted_draft_tokens > 0


def test_the_same_token_has_the_same_id_in_all_traces():
    second = Trace("x", "y", [TEXT[5], 7], [3000], [[(3000, 1.0)]], drafts([[(2000, 1.0)]]))
    one, two = dense([TRACE, second])
    assert len({*one.prompt, *one.output}) == 42
    assert two.prompt[0] == one.output[5]
    assert two.output == [two.top[0][0][0]] == [one.top[0][1][0]]
    assert two.drafts["draft_model"].rows[0][0][0] == one.drafts["draft_model"].rows[2][0][0]
    assert [p for _, p in one.drafts["draft_model"].tails[2][0]] == [0.6, 0.1]
    with pytest.raises(ValueError, match="numbered by `dense`"):
        Replay(PROFILE, "plain").run(Trace("x", "y", [1, 2], [3], [[(3, 1.0)]], {}))


def test_where_ids_run_short(monkeypatch):
    monkeypatch.setattr(trace_model, "VOCAB", 128 + 52)
    [made] = dense([TRACE])  # 42 of the texts and 10 of drafts: none is left for token 3000
    assert [len(row) for row in made.top] == [1] * 40
    monkeypatch.setattr(trace_model, "VOCAB", 128 + 51)
    with pytest.raises(ConfigError, match="1 answers with 52 different tokens are too many"):
        dense([TRACE])


SLOWER = Profile(Curve((0, 100), (1, 33), ((2.0, 5.0), (3.0, 9.0))), line(0.3, 0.1), overhead=0.01)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_one_run_tells_what_every_device_takes(setting):
    made = [numbered(), numbered(1.0, 90, category="rag"), numbered(start=9)]
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
    made = [numbered(), numbered(1.0, category="rag"), numbered(0.1, n=1, category="none")]
    assert rates(made, [PROFILE], "plain") == [pytest.approx({"qa": 1, "rag": 1})]
    [found] = rates(made, [PROFILE], Fixed(4, 0, 0.0))
    assert found["rag"] > found["qa"]
    assert found["rag"] > 2


def test_a_table_of_every_device_with_the_best_fixed_setting(monkeypatch):
    monkeypatch.setattr(replay, "FIXED", (Fixed(4, 2), Fixed(4, 0, 0.0), Fixed(1, 5)))
    made = [numbered(), numbered(1.0, 90, category="rag")]
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
