"""The policy that drafts to the same depth at every step."""

from __future__ import annotations

from ..types import Budget
from . import register
from .base import Limits, Policy, PolicyContext


class FixedDepth(Policy):
    """Drafts `depth` tokens whenever there is anything to draft, whatever they cost.

    It drafts fewer if fewer are guessed or the budget allows fewer, and decodes plainly if fewer
    than `at_least` would be drafted. Depth 0 is plain decoding. p_min: lookups draft no path below
    this probability; a model ends its drafts by itself. max_leaves: most leaves of the tree that
    the tokens form; with 1 they form a chain.
    """

    def __init__(
        self, depth: int, at_least: int = 1, *, p_min: float = 0.0, max_leaves: int = 1
    ) -> None:
        self._limits = Limits(depth, p_min=p_min, at_least=at_least, max_leaves=max_leaves)

    def limits(self, budget: Budget) -> Limits:
        """Return limits of the fixed depth, or of fewer tokens if the budget allows fewer."""
        return self._limits._replace(nodes=min(self._limits.nodes, budget.limit))


@register("fixed", "drafts of one length")
def make(context: PolicyContext) -> FixedDepth:
    """Make the policy of a fixed depth: by default up to 4 tokens, as long as they are likely."""
    config = context.config
    depth, p_min = config.fixed or (0, 0.0)
    return FixedDepth(
        depth, config.min_speculative_tokens, p_min=p_min, max_leaves=context.max_leaves
    )
