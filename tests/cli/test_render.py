"""The line of figures below an answer."""

from __future__ import annotations

import edgespec
from edgespec.costs.online import Costs
from edgespec.policies.adaptive import Adaptive
from edgespec.types import Budget
from edgespec_cli.render import figures


def completion(reason):
    stats = edgespec.Stats(num_emitted_tokens=9, speculation=f"off: {reason}")
    return edgespec.Completion("text", tuple(range(9)), "stop", None, stats, None)


def test_beside_other_programs_it_says_what_to_do_instead_of_going_in_a_circle():
    policy = Adaptive(Costs(None))
    policy.choose([], Budget(8, 5, 0, 100))
    assert "`edgespec tune` or Engine.measure() does it now" in figures(completion(policy.reason))
    busy = figures(completion(policy.reason), 1.5)
    assert "cannot be measured while other programs use 1.5 cores" in busy
    assert "`edgespec tune --busy`" in busy
    assert "off: no match" in figures(completion("no match"), 1.5)
