"""Hand-made estimates for policies."""

from functools import partial

from edgespec import SamplingParams
from edgespec.costs.curves import Curve
from edgespec.sampling.base import Request
from edgespec.types import DraftEstimate, Extension


def line(first, each):
    """Return the curve of steps that take so long, and so much more for each further token."""
    return Curve((1,), (1, 33), ((first, first + 32 * each),))


def lookup(*probs, streak=0):
    """Return the estimate of known tokens with these acceptance probabilities."""
    return DraftEstimate("suffix", probs, n_known=len(probs), streak=streak)


class Model:
    """A draft model's estimate, priced by the costs of whoever asks. sure: acceptance probability
    of its first token; rate: of each further one; n_unread: tokens that it has to read; probs:
    those of the estimate, by default eight made of the two.
    """

    def __init__(self, sure=0.9, rate=0.8, n_unread=1, known=(), probs=(), streak=0):
        self.sure, self.rate, self.n_unread, self.known = sure, rate, n_unread, known
        self.probs = known or probs or tuple(sure * rate**i for i in range(8))
        self.streak = streak

    def estimate(self, costs, n_past):
        def catch_up_s(n_known):
            n = self.n_unread + n_known
            return costs.draft(n, n_past) - costs.draft(1, n_past) if n > 1 else 0.0

        histogram = ((1.0, self.sure),)
        extension = Extension(histogram, self.rate, costs.draft_token_s, catch_up_s)
        return DraftEstimate("draft_model", self.probs, len(self.known), extension, self.streak)


def asks(costs, estimates, n_past=100):
    """Return what a session hands to a policy."""

    def ask(given):
        return given.estimate(costs, n_past) if isinstance(given, Model) else given

    return [partial(ask, given) for given in estimates]


def begin(policy):
    """Begin an answer."""
    policy.begin(Request([1], SamplingParams(), None))
