"""Two slots of one batched target, evaluated together and enumerated: the joint law of their
answers is the product of the laws of plain sampling.
"""

import itertools
from collections import Counter

import pytest

from edgespec import ContextFull, SamplingParams, ToyModel
from edgespec.costs.curves import Curve
from edgespec.costs.online import Costs
from edgespec.costs.profiles import Profile
from edgespec.decoding.output import Output
from edgespec.decoding.session import _Running, _Step
from edgespec.policies import together
from edgespec.sampling.base import Request
from edgespec.scheduling.company import Company, Member
from edgespec.scheduling.together import Together
from edgespec.types import Stats
from tests.helpers import toy_loops as loop
from tests.helpers.acceptance_rules import UNCOUPLED
from tests.helpers.enumeration import law, total_variation
from tests.helpers.masked_loops import CONSTRAINTS, LANGUAGES, masked_law
from tests.helpers.selection import first, sample
from tests.helpers.serving import Shared

STEPPED = Profile(  # four rows cost nearly the time of one, a fifth one much more
    Curve((1,), (1, 4, 5, 8, 9), ((1e-3, 1.02e-3, 1.12e-3, 1.14e-3, 1.3e-3),)), loop.CHEAP.draft
)
TWO = SamplingParams(temperature=1.0, max_tokens=3, top_k=2)
SHORT = SamplingParams(temperature=0.8, max_tokens=3, stop=("ba",))
CHOICES, TEXTS = LANGUAGES["choices"]
CHOSEN = SamplingParams(temperature=1.0, max_tokens=4, **CHOICES)


class Tight(Shared):
    """Slots that take only so many rows together."""

    def __init__(self, models, most):
        super().__init__(models)
        self._most = most

    def decode(self, items):
        if len(items) > 1 and sum(item.n_logits for item in items) > self._most:
            raise ContextFull("no room")
        return super().decode(items)


class Pair:
    """Two loops over the slots of one target, driven in one thread: whenever both have a step to
    make, the steps are evaluated together.

    kinds: of the loops, as in `toy_loops`. late: the steps that the first loop makes alone.
    most_together: the rows that fit into the cache together. lengths: counts the lengths of drafts
    that were made together.
    """

    def __init__(
        self, kinds, acceptance="block", late=0, max_rows=32, zeros=False, most_together=32,
        lengths=None, **options,
    ):  # fmt: skip
        probs = loop.probs_of(1, zeros)
        models = [ToyModel(probs, vocab_size=3, max_rows=max_rows) for _ in kinds]
        ticks = itertools.count()
        clock = lambda: 1e-3 * next(ticks)  # noqa: E731
        self.costs, self._late = Costs(STEPPED, 6), late
        self.company = Company(Tight(models, most_together), Together(self.costs), clock)
        self._lengths = Counter() if lengths is None else lengths
        self._members = [Member(self.company) for _ in kinds]
        self._loops = [
            loop.session(
                kind, acceptance, zeros, costs=self.costs, target=model, member=member, slot=slot,
                **options,
            )
            for slot, (kind, model, member) in enumerate(
                zip(kinds, models, self._members, strict=True)
            )
        ]  # fmt: skip

    def answers(self, chances, params):
        """Return the tokens and the text of both answers."""
        answers = [
            Answer(*each) for each in zip(self._loops, self._members, chances, params, strict=True)
        ]
        for _ in range(self._late):
            answers[0].next().alone()
            answers[0].turn.is_done.set()
        while going := [answer for answer in answers if not answer.output.finish_reason]:
            n_begun = sum(answer.is_left for answer in going)
            turns = [(answer.member, answer.next()) for answer in going]
            if len(turns) == 1 and not n_begun:
                turns[0][1].alone()
                turns[0][1].is_done.set()
            else:
                self.company._evaluate(turns)
                self.company._waiting = []
                self._lengths[tuple(len(turn._draft.tokens) for _, turn in turns)] += 1
        return tuple(answer.found for answer in answers)


class Answer:
    """A request in a slot, after its prompt was read."""

    def __init__(self, made, member, chance, params):
        self.member, self.turn = member, None
        self.output, self.stats = Output(loop.TOKENIZER, params), Stats()
        request = Request(loop.PROMPT, params, chance, constraint=CONSTRAINTS.of(params))
        list(made._prefill(request, self.stats))
        speculates = made._speculates(request)
        self._running = _Running(made, request, self.output, self.stats, 0.0, speculates)

    @property
    def is_left(self):
        """True if the last turn did not fit into its evaluation."""
        return self.turn is not None and not self.turn.is_done.is_set()

    def next(self):
        """Return the turn that was left, or the next one."""
        if self.turn and self.turn.error:
            raise self.turn.error
        if not self.is_left:
            self.turn = _Step(self._running)
        return self.turn

    @property
    def found(self):
        self.output.flush()
        return tuple(self.output.token_ids), self.output.text


def joint_law(kinds, params, **options):
    def run(chance):
        chances = [chance, *[chance.beside() for _ in kinds[1:]]]
        return Pair(kinds, **options).answers(chances, params)

    return law(run)


def plain_law(params, zeros=False):
    """Return the law of the tokens and the text of an answer without drafts."""
    if params.is_constrained:
        return masked_law(TEXTS)
    found = {}
    for (tokens, text, *_), weight in loop.loop_law("none", params, zeros=zeros).items():
        found[tokens, text] = found.get((tokens, text), 0.0) + weight
    return found


def product(first, second):
    return {(a, b): p * q for (a, p), (b, q) in itertools.product(first.items(), second.items())}


KINDS = [
    ("model", "model"),
    ("suffix, model, priced", "suffix, model, priced"),
    ("suffix, model, auto", "tree, model tree, auto"),
    ("tree, model, priced", "model, priced"),
    ("tree, model tree, priced", "suffix, model, priced"),
    ("tree, priced", "model tree, priced"),
    ("tree, model tree", "suffix, model, priced"),
]


OPTIONS = [{}, {"zeros": True, "p_min": 0.61, "late": 1}, {"late": 1}, {"zeros": True}]


@pytest.mark.parametrize("options", first(2, OPTIONS, "more settings"), ids=str)
@pytest.mark.parametrize("kinds", first(4, KINDS, "more pairs of loops"), ids=" | ".join)
@pytest.mark.parametrize("acceptance", UNCOUPLED)
def test_the_joint_law_is_the_product(kinds, acceptance, options):
    params = SHORT, TWO
    found = joint_law(kinds, params, acceptance=acceptance, **options)
    assert abs(sum(found.values()) - 1) <= 1e-12
    plain = [plain_law(each, options.get("zeros", False)) for each in params]
    assert total_variation(found, product(*plain)) <= 1e-12


@pytest.mark.parametrize("most", [{"max_rows": 4}, {"most_together": 4}], ids=["rows", "cells"])
def test_a_draft_that_does_not_fit_is_not_drawn_again(most):
    """How long it is depends on its drawn tokens: another draw would prefer some of them."""
    lengths = Counter()
    params = [SamplingParams(temperature=1.0, max_tokens=n) for n in (2, 3)]
    found = joint_law(("model", "model"), params, p_min=0.61, zeros=True, lengths=lengths, **most)
    plain = [plain_law(each, zeros=True) for each in params]
    assert total_variation(found, product(*plain)) <= 1e-12
    assert {(1, 1), (1, 2)} <= set(lengths)


@pytest.mark.parametrize("forced", ["forced, suffix, model", "tree, model tree, priced, forced"])
@pytest.mark.parametrize("other", ["suffix, model, priced", "tree, model tree, auto"])
@pytest.mark.parametrize("acceptance", UNCOUPLED)
def test_a_constraint_changes_only_its_own_answer(forced, other, acceptance):
    pytest.importorskip("llguidance")
    params = CHOSEN, TWO
    found = joint_law((forced, other), params, acceptance=acceptance)
    assert total_variation(found, product(*map(plain_law, params))) <= 1e-12


@pytest.mark.parametrize("kinds", KINDS, ids=" | ".join)
def test_coupled_texts_are_functions_of_their_own_noise(kinds):
    """For every noise of a grid: the texts of lone answers without drafts."""
    params = SamplingParams(temperature=1.0, max_tokens=3)
    grid = [*itertools.permutations([0.2, 0.9, 1.7]), (0.5, 0.6, 0.7), (0.1, 2.0, 2.1)]
    noises = list(itertools.product(grid, repeat=3))[::23]
    chances = [loop.GridNoise([*noise, *noise]) for noise in noises]
    plain = loop.session("none")
    alone = [loop.outcome(chance, plain, params)[:2] for chance in chances]
    assert len(set(alone)) > 5
    for i, j in sample(itertools.product(range(len(chances)), repeat=2), 11):
        pair = Pair(kinds, "coupled", late=i % 2)
        found = pair.answers((chances[i], chances[j]), (params, params))
        assert found == (alone[i], alone[j])


def test_rows_of_one_answer_take_the_place_of_the_other_ones(monkeypatch):
    """So some of the drafts above are cut for the sake of the other answer."""
    cuts = Counter()
    cut = together.Growth.cut

    def counted(growth, n):
        cuts[len(growth.draft.tokens), n] += 1
        cut(growth, n)

    choose = together._Company._choose

    def choosing(company, growths):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(together.Growth, "cut", counted)
            choose(company, growths)

    monkeypatch.setattr(together._Company, "_choose", choosing)
    for kinds in KINDS[1:]:
        joint_law(kinds, (TWO, SHORT))
        if any(n < before for before, n in cuts):
            return
    pytest.fail("no draft was cut")
