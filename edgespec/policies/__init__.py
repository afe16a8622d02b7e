"""Policies decide what is worth drafting. Each has its own file and registers itself.

docs/how-to/write-a-policy.md says what a policy has to do. Other packages register theirs in the
entry-point group `edgespec.policies`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from .. import registry

if TYPE_CHECKING:
    from .base import Policy, PolicyContext

Made = TypeVar("Made", bound="Policy")

known: registry.Registry[registry.Entry] = registry.Registry(
    "policy", __name__, "write-a-policy.md", ["auto"]
)
names = known.names


def register(name: str, summary: str) -> Callable[[Callable[..., Made]], Callable[..., Made]]:
    """Register the decorated function, which makes a policy from a PolicyContext.

    The function's keyword-only arguments are the policy's options. Raises ConfigError for an
    invalid name, or one that another policy has.
    """

    def add(make: Callable[..., Made]) -> Callable[..., Made]:
        known.add(registry.Entry(name, make, summary))
        return make

    return add


def entry(context: PolicyContext) -> registry.Entry:
    """Return the entry of the policy that a configuration asks for. "auto" means fixed depth if the
    configuration names a depth, else the adaptive policy. Raises ConfigError for an unknown name.
    """
    name = context.config.policy
    if name == "auto":
        name = "fixed" if context.config.fixed else "adaptive"
    return known.entry(name)


def make(context: PolicyContext) -> Policy:
    """Make the policy that a configuration asks for, with its options."""
    from .base import Policy

    made: Policy = known.make(entry(context), context, context.config.options, Policy)
    return made
