"""Catalogues of one entry."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edgespec import hub
from edgespec.hub import catalogue


@pytest.fixture
def use_entry(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], hub.Entry]:
    """Make the entry of a TOML the whole catalogue, and return it."""

    def use(toml: str) -> hub.Entry:
        entry = catalogue.parse(toml, "toy.toml")
        monkeypatch.setattr(catalogue, "load", lambda: {entry.name: entry})
        return entry

    return use
