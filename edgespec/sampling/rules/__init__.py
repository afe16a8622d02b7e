"""The registry of acceptance rules: each rule is one file that registers itself.

docs/how-to/write-an-acceptance-rule.md says what a rule has to do, and what has to be proved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ... import registry

if TYPE_CHECKING:
    from .base import AcceptanceRule

known: registry.Registry[registry.Entry] = registry.Registry(
    "acceptance rule", __name__, "write-an-acceptance-rule.md"
)
names = known.names


def register(name: str, summary: str) -> Callable[[type[AcceptanceRule]], type[AcceptanceRule]]:
    """Register the decorated class. Raises ConfigError if the name is not allowed or is taken."""

    def add(rule: type[AcceptanceRule]) -> type[AcceptanceRule]:
        known.add(registry.Entry(name, lambda context: rule(), summary))
        return rule

    return add


def rule_of(name: str) -> AcceptanceRule:
    """Return the rule with this name. Raises ConfigError if there is none."""
    from .base import AcceptanceRule

    made: AcceptanceRule = known.make(known.entry(name), None, {}, AcceptanceRule)
    return made
