"""The registered acceptance rules, for tests that have to hold for each of them."""

from edgespec import SamplingParams
from edgespec.sampling.rules import names, rule_of

UNCOUPLED = [name for name in names() if not rule_of(name).couples(SamplingParams(temperature=1))]
"""The rules under which, without a seed, draft and target draw independently of each other."""
