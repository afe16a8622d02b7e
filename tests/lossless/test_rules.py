"""Every acceptance rule, enumerated: step + plain completion has the target's own law."""

import itertools

import pytest

from edgespec.sampling import acceptance
from edgespec.sampling.rules import rule_of
from tests.helpers.acceptance_rules import UNCOUPLED
from tests.helpers.enumeration import (
    V,
    complete,
    gumbel_law,
    law,
    plain_law,
    random_rows,
    total_variation,
)


def drawn_step(rule, p, q, depth, stop_below=0.0):
    """One step with a draft drawn from q, ended before a row whose maximum is too small."""

    def run(chance):
        draft, probs = (), []
        while len(draft) < depth and q[draft].probs.max() >= stop_below:
            probs.append(q[draft])
            draft += (chance.draw(q[draft]),)
        n, token = rule(draft, probs, lambda i: p[draft[:i]], chance)
        return complete(chance, p, (*draft[:n], token), depth + 1)

    return law(run)


CASES = [
    (seed, zeros, depth) for seed in range(4) for zeros in (False, True) for depth in (1, 2, 3)
]


@pytest.mark.parametrize("rule", UNCOUPLED)
@pytest.mark.parametrize("stop_below", [0.0, 0.6])
@pytest.mark.parametrize(("seed", "zeros", "depth"), CASES)
def test_drawn_drafts(rule, seed, zeros, depth, stop_below):
    p, q = random_rows(seed, zeros), random_rows(seed + 100, zeros)
    found = drawn_step(rule_of(rule).chain, p, q, depth, stop_below)
    assert total_variation(found, plain_law(p, depth + 1)) <= 1e-12


@pytest.mark.parametrize(("seed", "zeros", "depth"), CASES)
def test_deterministic_drafts(seed, zeros, depth):
    p = random_rows(seed, zeros)
    for draft in itertools.product(range(V), repeat=depth):

        def run(chance, draft=draft):
            n, token = acceptance.match(draft, lambda i: chance.draw(p[draft[:i]]))
            return complete(chance, p, (*draft[:n], token), depth + 1)

        assert total_variation(law(run), plain_law(p, depth + 1)) <= 1e-12


@pytest.mark.parametrize(("seed", "zeros", "depth"), CASES)
def test_coupled_drafts(seed, zeros, depth):
    """Draft and target draw with the same noise; the joint law of both tokens is exact."""
    p, q = random_rows(seed, zeros), random_rows(seed + 100, zeros)

    def run(chance):
        draft = ()
        for i in range(depth):
            draft += (chance.gumbel(i, q[draft]),)
        n, token = acceptance.coupled(draft, lambda i: p[draft[:i]], chance, 0)
        emitted = (*draft[:n], token)
        return complete(chance, p, emitted, depth + 1)

    assert total_variation(law(run), plain_law(p, depth + 1)) <= 1e-12


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_greedy(depth):
    p = random_rows(0, False)

    def argmax(context):
        return int(p[context].ids[p[context].probs.argmax()])

    expected = ()
    for _ in range(depth + 1):
        expected += (argmax(expected),)
    for draft in itertools.product(range(V), repeat=depth):
        n, token = acceptance.match(draft, lambda i, draft=draft: argmax(draft[:i]))
        emitted = (*draft[:n], token)
        assert emitted == expected[: n + 1]
        assert n == depth or draft[n] != expected[n]


def test_empty_draft_draws_from_the_target():
    p = random_rows(0, True)
    for chain in (rule_of(name).chain for name in UNCOUPLED):
        found = law(lambda chance, chain=chain: chain((), (), lambda i: p[()], chance)[1])
        assert total_variation(found, law(lambda chance: chance.draw(p[()]))) <= 1e-12


@pytest.mark.parametrize("seed", range(6))
def test_block_accepts_at_least_as_much_as_rejection(seed):
    p, q = random_rows(seed, True), random_rows(seed + 100, True)

    def accepted(rule):
        def run(chance):
            draft, probs = (), []
            for _ in range(3):
                probs.append(q[draft])
                draft += (chance.draw(q[draft]),)
            return rule(draft, probs, lambda i: p[draft[:i]], chance)[0]

        return sum(n * weight for n, weight in law(run).items())

    assert accepted(acceptance.block) >= accepted(acceptance.rejection) - 1e-12


def test_equal_distributions_are_always_accepted():
    p = random_rows(3, True)
    found = drawn_step(lambda *a: (acceptance.block(*a)[0], 0), p, p, 3)
    assert all(tokens[3] == 0 for tokens in found)


def test_gumbel_law_is_a_coupling():
    p, q = random_rows(1, True), random_rows(2, True)
    for context in [(), (0,), (1, 2)]:
        pp, qq = p[context], q[context]
        joint = {(a, b): gumbel_law(qq, a, pp, b) for a in range(V) for b in range(V)}
        for t in range(V):
            assert sum(joint[t, b] for b in range(V)) == pytest.approx(qq.prob(t), abs=1e-12)
            assert sum(joint[a, t] for a in range(V)) == pytest.approx(pp.prob(t), abs=1e-12)


# The harness must be able to fail: three mistakes seen in the wild.


def cumulated_uniforms(draft, draft_probs, target, chance):
    """Cumulated ratios against cumulated uniforms: another rule, and wrong."""
    ratio, n = 1.0, 0
    for i, (token, q) in enumerate(zip(draft, draft_probs, strict=True)):
        ratio = min(1.0, ratio * target(i).prob(token) / q.prob(token))
        if not chance.bernoulli(ratio):
            break
        n = i + 1
    return n, chance.draw(target(n))


def no_residual(draft, draft_probs, target, chance):
    for i, (token, q) in enumerate(zip(draft, draft_probs, strict=True)):
        if not chance.bernoulli(min(1.0, target(i).prob(token) / q.prob(token))):
            return i, chance.draw(target(i))
    return len(draft), chance.draw(target(len(draft)))


@pytest.mark.parametrize("rule", [cumulated_uniforms, no_residual])
def test_wrong_rules_are_caught(rule):
    p, q = random_rows(0, False), random_rows(100, False)
    assert total_variation(drawn_step(rule, p, q, 2), plain_law(p, 3)) > 1e-3


def test_dropping_a_drawn_token_by_its_value_is_caught():
    p, q = random_rows(0, False), random_rows(100, False)

    def run(chance):
        draft, probs = (), []
        for _ in range(2):
            token = chance.draw(q[draft])
            if q[draft].prob(token) < 0.4:
                break
            probs.append(q[draft])
            draft += (token,)
        n, token = acceptance.block(draft, probs, lambda i: p[draft[:i]], chance)
        return complete(chance, p, (*draft[:n], token), 3)

    assert total_variation(law(run), plain_law(p, 3)) > 1e-3
