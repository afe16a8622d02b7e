"""The suffix automaton."""

import random

import pytest

from edgespec.drafters.automaton import SEPARATOR, SuffixAutomaton


@pytest.mark.parametrize("period", [1, 3, 4, 50])
def test_the_last_few_tokens_are_what_suffix_links_lead_to(period):
    rng = random.Random(period)
    once = [rng.choice((0, 1, 2, 3, SEPARATOR)) for _ in range(period)]
    automaton = SuffixAutomaton()
    for token in once * (200 // period) + [rng.randrange(4) for _ in range(50)]:
        automaton.append(token)
        state = automaton.suffix()
        for _ in range(3):
            if state[1] > 4:
                linked = state
                while linked[1] > 4:
                    linked = automaton.shorter(linked[0])
                assert automaton.few(state[0], 4) == linked
            state = automaton.step(*state, rng.randrange(4))
