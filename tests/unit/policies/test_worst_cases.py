"""The most that "auto" may lose on purpose-made answers, in virtual time."""

import random
from dataclasses import replace

import pytest

from edgespec.bench.replay import Replay, shipped_profiles, shipped_traces
from edgespec.bench.traces import AFTER_A_MISS, Drafts, Trace
from edgespec.costs.curves import Curve
from edgespec.costs.profiles import Profile
from tests.helpers.policies import line
from tests.helpers.selection import every, share

WRONG = 150
TEXT = list(range(200, 500))


def device(each, draft=None):
    """Return costs: a plain step takes 1 s, a token more `each`, a draft model's token `draft`."""
    return Profile(line(1.0, each), draft and line(draft, draft / 10), overhead=0.0)


def answer(name, prompt, output, drafted, sure):
    """Return an answer along which a draft model says these tokens, and then nothing right."""
    rows = [[(token, sure)] for token in drafted]
    pairs = enumerate(zip(drafted, output, strict=True))
    tails = {i: [[(WRONG, sure)]] * AFTER_A_MISS for i, (guess, token) in pairs if guess != token}
    top = [[(token, 0.9)] for token in output]
    return Trace(name, "made", prompt, output, top, {"draft_model": Drafts(rows, tails)})


def drafted(agreement, sure, seed, n=128):
    """Text without repetitions; the draft model is always equally sure."""
    rng, output = random.Random(seed), list(range(1000, 1000 + n))
    guesses = [token if rng.random() < agreement else WRONG for token in reversed(output)]
    return answer("drafted", [501, 502, 503], output, guesses[::-1], sure)


def copied(seed, n=128):
    at = random.Random(seed).randrange(len(TEXT) - n)
    return answer("copied", TEXT, TEXT[at : at + n], [WRONG] * n, 0.9)


def teasing(seed, matching, n=128):
    """Places in the text go on as before for a few tokens, then something new is said."""
    rng, output = random.Random(seed), []
    while len(output) < n:
        at = rng.randrange(len(TEXT) - matching)
        output += [*TEXT[at : at + matching], 1000 + len(output)]
    return answer("teasing", TEXT, output[:n], [WRONG] * n, 0.9)


def speedup(profile, traces, before=()):
    """Tokens a second over plain decoding's, after the policy has learned from others."""
    rates = {}
    for setting in ("auto", "plain"):
        made = Replay(profile, setting)
        for trace in before:
            made.run(trace)
        stats = [made.run(trace) for trace in traces]
        rates[setting] = sum(s.num_emitted_tokens for s in stats) / sum(s.total_s for s in stats)
    return rates["auto"] / rates["plain"]


def several(kind, *arguments):
    return [kind(*arguments, seed=seed) for seed in range(share(8, 2))]


@pytest.mark.parametrize(("each", "draft"), [
    (0.3, 0.8), (0.9, 0.3), (0.02, 0.3), (0.1, 0.5),
    *(pytest.param(*device, marks=pytest.mark.long("more devices"))
      for device in [(0.1, 1.2), (0.1, 0.1), (0.3, 0.3), (0.02, 0.8)]),
])  # fmt: skip
def test_a_draft_model_that_agrees_half_the_time(each, draft):
    assert speedup(device(each, draft), several(drafted, 0.5, 0.9)) >= 0.97


@pytest.mark.parametrize(("agreement", "sure"), [(0.5, 0.9), (0.0, 0.99), (0.0, 0.55)])
@pytest.mark.parametrize("draft", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("each", [0.02, 0.1, 0.3])
def test_whatever_a_draft_model_does(agreement, sure, draft, each):
    assert speedup(device(each, draft), several(drafted, agreement, sure)) >= 0.93


@pytest.mark.parametrize("sure", [0.99, 0.55])
@pytest.mark.parametrize("draft", [0.1, 0.3, 0.5])
def test_a_draft_model_that_was_good(sure, draft):
    good = [drafted(1.0, 0.99, seed, 256) for seed in range(4)]
    assert (
        speedup(device(0.1, draft), [drafted(0.0, sure, 9, 256)], before=good) >= 0.93
    )  # the loss budget and what the draft model has won before


@pytest.mark.parametrize("matching", every(3, [1, 2, 4, 8, 12], "more lengths"))
@pytest.mark.parametrize("each", every(2, [0.02, 0.1, 0.3, 0.6], "more devices"))
def test_text_that_repeats_and_then_does_not(each, matching):
    assert speedup(device(each), several(lambda m, seed: teasing(seed, m), matching)) >= 0.97
    one = [teasing(9, matching, 256)]
    assert speedup(device(each), one, before=several(copied)) >= 0.96


def test_what_is_gained():
    assert speedup(device(0.1), several(copied)) > 5
    assert speedup(device(0.1), several(lambda m, seed: teasing(seed, m), 8)) > 2
    assert speedup(device(0.02, 0.05), several(drafted, 0.8, 0.9)) > 2
    assert speedup(device(0.1, 0.2), several(drafted, 1.0, 0.99)) > 2


@pytest.mark.parametrize("each", [0.1, 0.5])
def test_a_draft_model_in_the_way_of_lookup(each):
    alone, slow = (speedup(device(each, draft), several(copied)) for draft in (None, 1.5))
    assert slow == pytest.approx(alone, rel=0.03)


def test_a_profile_that_was_measured_in_a_bad_moment():
    """As once seen: other programs made every width look as slow as the widest."""
    true = shipped_profiles()["cpu-q4"]
    wrong = replace(true, target=Curve((64,), (1, 24, 32), ((0.248, 0.248, 0.459),)))
    traces = shipped_traces()[::4]
    seconds = {}
    for setting in ("plain", "auto"):
        made = Replay(true, setting, wrong)
        seconds[setting] = sum(made.run(trace).total_s for trace in traces)
    assert seconds["auto"] < seconds["plain"]
    assert made.policy.stale
