import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec import ConfigError, DecodeError, SamplingParams
from edgespec.sampling.randomness import SeededRandomness, exponentials
from edgespec.sampling.sampler import Sampler, candidates, logprob
from edgespec.types import Distribution


def reference(row, params, prompt=(), output=()):
    """Return the definition, in dense float64."""
    row = np.array(row, np.float64)
    for token, bias in params.logit_bias.items():
        row[token] += bias
    for token in set(prompt) | set(output):
        r = params.repetition_penalty
        row[token] = row[token] / r if row[token] > 0 else row[token] * r
    for token in set(output):
        row[token] -= params.presence_penalty + params.frequency_penalty * list(output).count(token)
    probs = np.exp((row - row.max()) / params.temperature)
    probs /= probs.sum()
    order = np.lexsort((np.arange(len(row)), -probs))
    if params.top_k:
        probs[order[params.top_k :]] = 0
        probs /= probs.sum()
    if params.top_p < 1:
        n = int((np.cumsum(probs[order]) < params.top_p).sum()) + 1
        probs[order[n:]] = 0
        probs /= probs.sum()
    probs[probs < params.min_p * probs.max()] = 0
    return probs / probs.sum()


def dense(distribution, n):
    probs = np.zeros(n)
    probs[distribution.ids] = distribution.probs
    return probs


@pytest.mark.parametrize("n", [5, 300, 20_000])
@pytest.mark.parametrize("options", [
    {}, {"top_k": 4}, {"top_p": 0.8}, {"min_p": 0.2}, {"top_k": 40, "top_p": 0.95},
    {"top_k": 50, "top_p": 0.9, "min_p": 0.05}, {"top_p": 0.9, "min_p": 0.05},
    {"logit_bias": {1: 3.0, 2: -math.inf}},
    {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2},
])  # fmt: skip
@pytest.mark.parametrize("temperature", [0.3, 0.8, 1.5])
def test_against_the_definition(n, options, temperature):
    params = SamplingParams(temperature=temperature, **options)
    row = np.random.default_rng(n).normal(0, 3, n).astype(np.float32)
    kept = row.copy()
    sampler = Sampler(params, [1, 2, 3], n)
    sampler.accept([0, 1, 1])
    found = sampler.distribution(row, ahead=[4, 1])
    expected = reference(row, params, [1, 2, 3], [0, 1, 1, 4, 1])
    assert np.allclose(dense(found, n), expected, atol=1e-6)
    assert np.array_equal(row, kept)
    assert np.all(np.diff(found.ids) > 0)


def test_history_ahead_is_not_kept():
    params = SamplingParams(temperature=1.0, presence_penalty=2.0)
    row = np.zeros(4)
    sampler = Sampler(params, [], 4)
    with_ahead = sampler.distribution(row, ahead=[1])
    assert with_ahead.prob(1) < with_ahead.prob(2)
    assert sampler.distribution(row).prob(1) == pytest.approx(0.25)


@pytest.mark.parametrize("n", [3, 40, 5000, 5003, 151_936])
@pytest.mark.parametrize("k", [1, 7, 300])
def test_candidates(n, k):
    rng = np.random.default_rng(k)
    k = min(k, n)
    rows = np.stack([rng.normal(size=n), rng.integers(0, 9, n), np.zeros(n)]).astype(np.float32)
    for row, floor in itertools.product(rows, (None, -math.inf, -1.0, 3.5, 100.0)):
        found, values, _ = candidates(row, k, floor)
        assert len(set(found)) == k
        assert row[found].tolist() == values
        assert np.array_equal(values, np.sort(row)[::-1][:k])


def test_a_row_with_few_tokens_does_not_make_the_next_be_sorted_whole():
    few = np.full(1000, -np.inf)
    few[[3, 5]] = 2.0, 1.0
    ids, _, least = candidates(few, 4)
    assert ids[:2] == [3, 5]
    assert math.isfinite(least)


def test_impossible_tokens_have_no_probability():
    row = np.array([0.0, -np.inf, 1.0])
    for options in ({}, {"top_k": 2}, {"top_k": 3}, {"top_p": 0.99}):
        found = Sampler(SamplingParams(temperature=1.0, **options), [], 3).distribution(row)
        assert found.prob(1) == 0
        assert found.prob(0) > 0


def test_rows_behind_one_another_see_the_drafted_tokens():
    params = SamplingParams(temperature=1.0, presence_penalty=3.0, top_k=4)
    sampler = Sampler(params, [], 4)
    first, second, third = (sampler.distribution(np.zeros(4), [1, 2][:i]) for i in range(3))
    assert first.prob(1) == pytest.approx(0.25)
    assert second.prob(1) < second.prob(2)
    assert third.prob(1) == pytest.approx(third.prob(2))
    assert third.prob(2) < third.prob(0)


@pytest.mark.parametrize(("n", "spread"), [(1, 1), (63, 0.1), (4096, 1), (4096, 4), (150_000, 4)])
def test_likeliest(n, spread):
    sampler = Sampler(SamplingParams(), [], 64)
    row = np.random.default_rng(0).normal(0, spread, n).astype(np.float32)
    token, sure = sampler.likeliest(row)
    exact = 1 / np.exp(row.astype(float) - row.max()).sum()
    assert token == row.argmax()
    assert exact * 0.999 <= sure <= exact * 1.05


def test_likeliest_where_many_are_about_as_likely():
    row = np.full(4096, -20, np.float32)
    row[100:164] = 5  # beside each other, as the ids of a kind of word are
    row[130] = 6
    token, sure = Sampler(SamplingParams(), [], 64).likeliest(row)
    assert token == 130
    assert sure == pytest.approx(1 / (1 + 63 / np.e))


def test_greedy_is_one_hot_and_takes_the_lowest_of_equals():
    sampler = Sampler(SamplingParams(), [], 4)
    row = np.array([1.0, 2.0, 2.0, 0.0])
    assert sampler.argmax(row) == 1
    found = sampler.distribution(row)
    assert found.prob(1) == 1


@pytest.mark.parametrize("row", [[np.nan, 1.0], [-np.inf, -np.inf]])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_damaged_rows(row, temperature):
    sampler = Sampler(SamplingParams(temperature=temperature), [], 2)
    with pytest.raises(DecodeError, match="damaged"):
        sampler.distribution(np.array(row))
    with pytest.raises(DecodeError, match="damaged"):
        sampler.likeliest(np.array(row))


def test_bias_outside_the_vocabulary():
    with pytest.raises(ConfigError, match="token 9; ids of this model are 0 … 3"):
        Sampler(SamplingParams(logit_bias={9: 1.0}), [], 4)


def test_logprob_is_of_the_unmodified_row():
    row = np.log(np.array([0.5, 0.3, 0.2])).astype(np.float32) + 4
    found = logprob(row, 1, 2)
    assert found.logprob == pytest.approx(math.log(0.3), abs=1e-6)
    assert [t for t, _ in found.top] == [0, 1]


def test_seeded_draws_follow_the_distribution_and_the_seed():
    distribution = Distribution(np.array([3, 5, 9]), np.array([0.2, 0.0, 0.8]))
    a, b = SeededRandomness(7), SeededRandomness(7)
    first = [a.draw(distribution) for _ in range(2000)]
    assert first == [b.draw(distribution) for _ in range(2000)]
    assert 5 not in first
    assert abs(first.count(9) / 2000 - 0.8) < 0.05


def test_gumbel_is_keyed_by_seed_position_and_token():
    distribution = Distribution(np.arange(4), np.array([0.1, 0.2, 0.3, 0.4]))
    one = SeededRandomness(1)
    winners = [one.gumbel(i, distribution) for i in range(4000)]
    assert winners == [SeededRandomness(1).gumbel(i, distribution) for i in range(4000)]
    counts = np.bincount(winners, minlength=4) / 4000
    assert np.abs(counts - distribution.probs).max() < 0.04
    assert np.array_equal(exponentials(1, 5, np.array([2])), exponentials(1, 5, np.arange(4))[2:3])


@given(st.data())
def test_gumbel_of_few_tokens_is_gumbel_of_many(data):
    ids = sorted(data.draw(st.sets(st.integers(0, 151_935), min_size=1, max_size=40)))
    n = len(ids)
    weights = data.draw(st.lists(st.integers(0, 9), min_size=n, max_size=n).filter(any))
    probs = [weight / sum(weights) for weight in weights]
    one = SeededRandomness(data.draw(st.integers(0, 2**64 - 1)))
    position = data.draw(st.integers(0, 1 << 20))
    few = one.gumbel(position, Distribution(ids, probs))
    assert few == one.gumbel(position, Distribution(np.array(ids), np.array(probs)))


def test_noise_is_exponential_and_uncorrelated():
    noise = np.stack([exponentials(3, i, np.arange(200)) for i in range(200)])
    assert noise.min() > 0
    assert noise.mean() == pytest.approx(1, abs=0.02)
    assert noise.var() == pytest.approx(1, abs=0.06)
    assert abs(np.corrcoef(noise[:-1].ravel(), noise[1:].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(noise[:, :-1].ravel(), noise[:, 1:].ravel())[0, 1]) < 0.02


def test_fresh_seeds_differ():
    assert SeededRandomness().seed != SeededRandomness().seed


@pytest.mark.parametrize(("top_p", "kept"), [(0.4995, 1), (0.5005, 2), (0.7995, 2), (0.8005, 3)])
@pytest.mark.parametrize("top_k", [0, 3])
def test_top_p_keeps_the_fewest_tokens_with_that_mass(top_p, kept, top_k):
    sampler = Sampler(SamplingParams(temperature=1.0, top_p=top_p, top_k=top_k), [], 4)
    row = np.log(np.array([0.2, 0.5, 1e-9, 0.3]))
    assert sorted(sampler.distribution(row).ids) == sorted([1, 3, 0][:kept])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("cut", [{}, {"top_p": 0.9}, {"top_k": 3}, {"min_p": 0.1}], ids=repr)
@pytest.mark.parametrize("temperature", [1e-320, 1e-45, 1e-40, 1e-10, 100])
def test_temperatures_at_the_ends_of_what_is_allowed(dtype, cut, temperature):
    row = np.linspace(-20, 20, 300).astype(dtype)
    row[0] = -np.inf
    params = SamplingParams(temperature=temperature, **cut)
    found = dense(Sampler(params, [], len(row)).distribution(row), len(row))
    assert found.sum() == pytest.approx(1)
    assert found[0] == 0
    assert (found[-1] == 1) == (temperature < 1)
