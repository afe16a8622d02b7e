"""Drafting ahead: behind which text, and what a policy makes of the tokens that were found."""

import numpy as np

from edgespec import SamplingParams, ToyModel
from edgespec.drafters.ahead import AheadDrafter
from edgespec.drafters.draft_model import ModelDrafter
from edgespec.drafters.merged import combined
from edgespec.drafters.trees import TreeDrafter
from edgespec.sampling.base import Request
from edgespec.sampling.randomness import SeededRandomness
from edgespec.types import Draft, Verified
from tests.unit.drafters.test_trees import Table
from tests.unit.policies.test_adaptive import decide, policy


class Listening:
    """A draft model that notes the text behind which it is asked to draft on."""

    def look_ahead(self, tokens, limit, until):
        self.heard = tokens
        return []


def test_ahead_of_a_chain_and_of_a_trees_first_path():
    model = Listening()
    drafter = AheadDrafter(model)
    for parents, text in [
        ((), [1, 2, 5, 6, 7]),
        ((-1, 0, 0), [1, 2, 5, 6]),
        ((-1, -1, 1), [1, 2, 5]),
    ]:
        drafter.draft_ahead([1, 2], Draft((5, 6, 7), parents=parents), 4, lambda: False)
        assert model.heard == text


def test_auto_goes_on_from_what_was_found_ahead():
    """Lookups know two tokens, fewer than were found; sources are put together as for users."""
    auto = policy(0.01, draft=0.01)
    model = ModelDrafter(ToyModel(np.eye(32)[[*range(1, 32), 0]] * 0.98 + 0.02 / 32), 32,
                         acceptance="coupled", costs=auto.costs)  # fmt: skip
    ahead, lookups = AheadDrafter(model), TreeDrafter({"table": Table({6: {7: 0.5, 9: 0.3}})}, 8)
    request = Request([0, 1, 2], SamplingParams(temperature=1.0, seed=3), SeededRandomness(3))
    for drafter in (ahead, lookups):
        drafter.begin(request)
    draft = ahead.propose(request.prompt, 3)
    ahead.draft_ahead(request.prompt, draft, 4, lambda: False)
    emitted = *draft.tokens, draft.tokens[-1] + 1
    for drafter in (ahead, lookups):
        drafter.accept(Verified(emitted))
    context, sources = [*request.prompt, *emitted], combined([lookups], ahead)
    estimate = ahead.estimate(context, 12)
    assert (estimate.n_known, estimate.extension.catch_up_s(4)) == (4, 0)
    plan = decide(auto, [lambda s=s: s.estimate(context, 12) for s in sources], limit=12)
    assert sources[plan.source].name == "draft_model+table"
    after = sources[plan.source].propose(context, plan.depth, plan.thresholds)
    assert after.source == "ahead"
    assert len(after.tokens) == 12 > len(after.evaluated) > 0
