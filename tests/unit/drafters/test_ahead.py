"""What a drafter that drafts ahead takes for the coming text."""

from edgespec.drafters.ahead import AheadDrafter
from edgespec.types import Draft


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
