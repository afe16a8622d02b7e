"""Every acceptance rule on trees, enumerated: step + plain completion has the target's own law."""

import itertools

import numpy as np
import pytest

from edgespec.sampling import acceptance, trees
from edgespec.sampling.rules import rule_of
from edgespec.types import Distribution
from tests.helpers.acceptance_rules import UNCOUPLED
from tests.helpers.enumeration import V, complete, law, plain_law, random_rows, total_variation

SHAPES = {
    "chain": (-1, 0, 1),
    "siblings": (-1, -1),
    "all siblings": (-1, -1, -1),
    "branch behind the first": (-1, 0, 0),
    "branch behind the second": (-1, -1, 1, 1),
    "two chains": (-1, 0, -1, 2),
    "two levels": (-1, 0, 0, -1, 3),
}


def without(q: Distribution, token: int) -> Distribution | None:
    """Return q without a token, normalised; None if nothing is left."""
    probs = np.where(np.asarray(q.ids) == token, 0.0, q.probs)
    return Distribution(q.ids, probs / probs.sum()) if probs.sum() > 1e-9 else None


def draw_tree(chance, q, parents):
    """Draw a tree of this shape; a node that has nothing left to draw from is left out, with all
    after it. Return tokens, parents, probs and the drafted text after each node.
    """
    tokens, found, probs, texts, places = [], [], [], [], {-1: -1}
    left = {-1: q[()]}
    for node, parent in enumerate(parents):
        if places.get(parent) is None or left.get(parent) is None:
            continue
        text = texts[places[parent]] if parent >= 0 else ()
        token = chance.draw(left[parent])
        places[node] = len(tokens)
        tokens.append(token)
        found.append(places[parent])
        probs.append(left[parent])
        texts.append((*text, token))
        left[node] = q[texts[-1]]
        left[parent] = without(left[parent], token)
    return tokens, found, probs, texts


def drawn_step(rule, p, q, shape, length):
    def run(chance):
        tokens, parents, probs, texts = draw_tree(chance, q, shape)
        path, token = rule(
            tokens, parents, probs, lambda path: p[texts[path[-1]] if path else ()], chance
        )
        emitted = (*(tokens[node] for node in path), token)
        return complete(chance, p, emitted, length)

    return law(run)


def depth_of(shape):
    depths = []
    for parent in shape:
        depths.append(1 + (depths[parent] if parent >= 0 else 0))
    return max(depths)


@pytest.mark.parametrize("rule", UNCOUPLED)
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_drawn_trees(rule, seed, zeros, shape):
    p, q = random_rows(seed, zeros), random_rows(seed + 100, zeros)
    length = depth_of(shape) + 1
    found = drawn_step(rule_of(rule).tree, p, q, shape, length)
    assert total_variation(found, plain_law(p, length)) <= 1e-12


@pytest.mark.parametrize("seed", range(4))
def test_a_chain_is_block_verification(seed):
    p, q = random_rows(seed, True), random_rows(seed + 100, True)

    def outcomes(on_tree):
        def run(chance):
            tokens, parents, probs, _ = draw_tree(chance, q, SHAPES["chain"])
            if on_tree:
                path, token = trees.traversal(
                    tokens, parents, probs, lambda path: p[tuple(tokens[: len(path)])], chance
                )
                return (*tokens, len(path), token)
            n, token = acceptance.block(tokens, probs, lambda i: p[tuple(tokens[:i])], chance)
            return (*tokens, n, token)

        return law(run)

    assert total_variation(outcomes(True), outcomes(False)) <= 1e-12


def accepted(rule, p, q, shape):
    def run(chance):
        tokens, parents, probs, texts = draw_tree(chance, q, shape)
        return len(
            rule(tokens, parents, probs, lambda path: p[texts[path[-1]] if path else ()], chance)[0]
        )

    return sum(n * weight for n, weight in law(run).items())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_traversal_accepts_at_least_as_much_as_rejection(seed, shape):
    p, q = random_rows(seed, True), random_rows(seed + 100, True)
    more, less = (accepted(rule, p, q, shape) for rule in (trees.traversal, trees.rejection))
    assert more >= less - 1e-12


def all_trees(shape):
    """Yield the tokens of every tree of a shape, siblings different."""
    for tokens in itertools.product(range(V), repeat=len(shape)):
        if len(set(zip(shape, tokens, strict=True))) == len(shape):
            yield tokens


def text_of(tokens, path):
    return tuple(tokens[node] for node in path)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_deterministic_trees(seed, shape):
    p, length = random_rows(seed, True), depth_of(shape) + 1
    expected = plain_law(p, length)
    for tokens in all_trees(shape):

        def run(chance, tokens=tokens):
            path, token = trees.match(
                tokens, shape, lambda path: chance.draw(p[text_of(tokens, path)])
            )
            return complete(chance, p, (*text_of(tokens, path), token), length)

        assert total_variation(law(run), expected) <= 1e-12


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_greedy_trees(shape):
    p = random_rows(0, False)
    length = depth_of(shape) + 1
    text = ()
    for _ in range(length):
        text += (int(p[text].ids[p[text].probs.argmax()]),)
    for tokens in all_trees(shape):
        path, token = trees.match(
            tokens,
            shape,
            lambda path, tokens=tokens: int(
                p[text_of(tokens, path)].ids[p[text_of(tokens, path)].probs.argmax()]
            ),
        )
        emitted = (*text_of(tokens, path), token)
        assert emitted == text[: len(emitted)]
        siblings = [n for n, parent in enumerate(shape) if parent == (path[-1] if path else -1)]
        assert token not in [tokens[n] for n in siblings]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_coupled_text_does_not_depend_on_the_tree(shape):
    """For every outcome of the noise, every tree, those made with knowledge of the noise too."""
    p, length = random_rows(1, True), depth_of(shape) + 1

    def run(chance):
        plain = ()
        for position in range(length):
            plain += (chance.gumbel(position, p[plain]),)
        for tokens in all_trees(shape):
            path, token = trees.coupled(
                tokens, shape, lambda path, tokens=tokens: p[text_of(tokens, path)], chance, 0
            )
            emitted = (*text_of(tokens, path), token)
            assert emitted == plain[: len(emitted)]
        return plain

    assert total_variation(law(run), plain_law(p, length)) <= 1e-12


def test_an_empty_tree_draws_from_the_target():
    p = random_rows(0, True)
    for rule in (rule_of(name).tree for name in UNCOUPLED):
        found = law(lambda chance, rule=rule: rule((), (), (), lambda path: p[()], chance))
        assert {path for path, _ in found} == {()}
        tokens = {token: weight for (_, token), weight in found.items()}
        assert total_variation(tokens, law(lambda chance: chance.draw(p[()]))) <= 1e-12


# The harness must be able to fail: three mistakes.


def forgets_rejected_siblings(tokens, parents, draft_probs, target, chance):
    """Each sibling is tried against the whole distribution of the target."""
    children, path = trees.children_of(parents), ()
    while True:
        for node in children[path[-1] if path else -1]:
            ratio = target(path).prob(tokens[node]) / draft_probs[node].prob(tokens[node])
            if chance.bernoulli(min(1.0, ratio)):
                path = (*path, node)
                break
        else:
            return path, chance.draw(target(path))


def forgets_rejected_leaves(tokens, parents, draft_probs, target, chance):
    """Try each path with the chances of a chain of its own."""
    children = trees.children_of(parents)

    def leaf(path):
        below = children[path[-1] if path else -1]
        return leaf((*path, below[0])) if below else path

    while True:
        path, joint = leaf(()), 1.0
        for i, node in enumerate(path):
            joint *= target(path[:i]).prob(tokens[node]) / draft_probs[node].prob(tokens[node])
        if not path or chance.bernoulli(min(1.0, joint)):
            return path, chance.draw(target(path))
        children[path[-2] if len(path) > 1 else -1].pop(0)


@pytest.mark.parametrize("rule", [forgets_rejected_siblings, forgets_rejected_leaves])
@pytest.mark.parametrize("shape", [SHAPES["siblings"], SHAPES["two levels"]])
def test_wrong_rules_are_caught(rule, shape):
    p, q = random_rows(0, False), random_rows(100, False)
    length = depth_of(shape) + 1
    found = drawn_step(rule, p, q, shape, length)
    assert total_variation(found, plain_law(p, length)) > 1e-3


def test_a_tree_grown_by_the_value_of_a_token_left_out_is_caught():
    """A second sibling that came out unlikely is dropped, and the first one stays."""
    p, q = random_rows(0, False), random_rows(100, False)

    def run(chance):
        token = chance.draw(q[()])
        if q[()].prob(token) < 0.4:
            path, own = (), chance.draw(p[()])
        else:
            path, own = trees.traversal([token], [-1], [q[()]], lambda path: p[()], chance)
        return token if path else own

    assert total_variation(law(run), law(lambda chance: chance.draw(p[()]))) > 1e-3
