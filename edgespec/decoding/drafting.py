"""The policy and the drafters of a session: they make a draft for each step and learn from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..drafters.base import NOT_DRAWN, Drafter, Role
from ..policies.base import Limits, Policy
from ..policies.growth import Growth
from ..sampling.base import Matcher, Request
from ..sampling.trees import n_first_path
from ..types import Budget, Draft, Requires, StepStats, Verified

_UNREAD = 32  # most tokens to read ahead, since the draft being verified may be rejected


class Drafting:
    """Makes drafts for one request after the other, within the limits that a policy sets."""

    def __init__(self, drafters: Sequence[Drafter], policy: Policy) -> None:
        self.drafters, self.policy = list(drafters), policy
        self._begun: list[Drafter] = []  # the drafters that this request may use
        self._lookups: list[Drafter] = []
        self._models: list[Drafter] = []
        self._required: dict[Drafter, Requires] = {}
        self._roles: Sequence[Role] = ()
        self._matcher: Matcher | None = None

    def begin(self, request: Request, may_draft: bool = True) -> Requires:
        """Begin a request; return what its drafters require of the target.

        If the request may not draft, they require nothing. Drafters see text alone, not the tokens
        of pictures.
        """
        self._matcher = request.matcher() if may_draft else None
        self._begun = self.drafters if may_draft else []
        request = request.text_alone()
        self.policy.begin(request, self._begun)
        self._required = {
            drafter: drafter.begin(request, role) or Requires()
            for drafter, role in zip(self._begun, self.policy.roles, strict=True)
            if role
        }
        return self.requires()

    def requires(self) -> Requires:
        """Return what the drafters that have a role at present require of the target."""
        self._roles = self.policy.roles
        with_role = zip(self._begun, self._roles, strict=True)
        active = [d for d, role in with_role if role and d in self._required]
        self._models = [drafter for drafter in active if drafter.evaluates]
        lookups = [drafter for drafter in active if not drafter.evaluates]
        self._lookups = sorted(lookups, key=lambda drafter: drafter.wide)
        required = [self._required[drafter] for drafter in active]
        layers = dict.fromkeys(layer for each in required for layer in each.layers)
        latest = [each.latest for each in required if each.layers]
        return Requires(tuple(layers), 0 if 0 in latest else max(latest, default=0))

    def grow(self, budget: Budget) -> Growth | None:
        """Grow a draft and return its growth, None if the policy wants no draft."""
        limits = self.policy.limits(budget)
        if limits.nodes <= 0:
            return None
        growth = self.start(limits, budget)
        wish = growth.next()
        while wish:
            wish = growth.next(wish.do())
        return growth

    def start(self, limits: Limits, budget: Budget) -> Growth:
        """Return the growth of a draft within these limits."""
        return Growth(self._lookups, self._models, limits, budget, self._matcher)

    def grow_ahead(self, draft: Draft, most: int, until: Callable[[], bool]) -> None:
        """Let models draft ahead while a draft is being verified (SpecEdge, arXiv 2505.17052).

        The models extend the draft's first path: first by a guess of the token that the target
        adds, then by at most `most` more. `until` returns True when they have to stop.
        """
        path = draft.tokens[: n_first_path(draft.parents) or len(draft.tokens)]
        for model in self._models:
            state = model.root()
            for token in path:
                state = model.step(state, token)
            for _ in range(most + 1):
                work = None if until() else model.work([state])
                if work is None or work.n_tokens > _UNREAD:
                    break
                (children,) = model.expand([state])
                if not children or children[0][0] == NOT_DRAWN:
                    break
                state = model.step(state, children[0][0])

    def accept(self, verified: Verified) -> None:
        """Let the drafters learn from what was emitted."""
        if self._matcher:
            self._matcher.accept(verified.tokens)
        for drafter in (*self._lookups, *self._models):
            drafter.accept(verified)

    def observe(self, step: StepStats, verified: Verified, growth: Growth | None) -> bool:
        """Let the policy learn from a step; return True if the policy changed drafters' roles."""
        self.policy.observe(step, verified, growth)
        return self.policy.roles is not self._roles

    def end(self) -> None:
        """End the request."""
        for drafter in self._begun:
            drafter.end()

    def close(self) -> None:
        """Free the drafters."""
        for drafter in self.drafters:
            drafter.close()
