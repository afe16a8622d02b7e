"""The budget of one rendering: seconds, and the size of all texts and lists together."""

from __future__ import annotations

import contextlib
import contextvars
import time
from collections.abc import Callable, Iterator
from typing import Any

MAX_SECONDS = 5.0
MAX_SIZE = 1 << 26  # characters and elements that one rendering may make

_budget: contextvars.ContextVar[Budget | None] = contextvars.ContextVar("budget", default=None)


class TooMuch(Exception):
    """A template takes longer, or makes more text, than it may."""


class Budget:
    """The time and the size that one rendering has left."""

    def __init__(self, seconds: float = MAX_SECONDS, size: int = MAX_SIZE) -> None:
        self._seconds, self._size = seconds, size
        self._left, self._deadline = size, time.monotonic() + seconds

    def spend(self, size: int) -> None:
        """Take `size` off. Raises TooMuch."""
        self._left -= size
        if self._left < 0:
            raise TooMuch(f"more than {self._size} characters were made on the way")
        if time.monotonic() > self._deadline:
            raise TooMuch(f"it took longer than {self._seconds:g} s")

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Charge this budget for what the thread does inside the `with` block."""
        token = _budget.set(self)
        try:
            yield
        finally:
            _budget.reset(token)


def spend(size: int) -> None:
    budget = _budget.get()
    if budget:
        budget.spend(size)


# --- values ------------------------------------------------------------------------------------


class _List(list[Any]):
    """A list that knows its weight: no template can change it."""

    _weight = 0


class _Tuple(tuple[Any, ...]):
    _weight = 0


class _Dict(dict[Any, Any]):
    _weight = 0


_KINDS = frozenset({_List, _Tuple, _Dict})
_WEIGHED: dict[type, Callable[[Any], Any]] = {list: _List, tuple: _Tuple, dict: _Dict}


def weight(value: Any) -> int:
    """Return about how many characters the text of a value has."""
    kind = type(value)
    if kind is str:
        return len(value) + 1
    if kind in _KINDS:
        known: int = value._weight
        return known
    if isinstance(value, str):
        return len(value) + 1
    if isinstance(value, dict):
        return 1 + sum(map(weight, value)) + sum(map(weight, value.values()))
    if isinstance(value, (list, tuple, set, frozenset)):
        return 1 + sum(map(weight, value))
    return 1


def weighed(value: Any) -> Any:
    """Return a value whose lists and objects know their weights. Raises TooMuch.

    Lists that hold others more than once would be texts of exponential length.
    """
    kind = _WEIGHED.get(type(value))
    if kind is None:
        return value
    spend(len(value))
    if kind is _Dict:
        made = _Dict(value)
        for key, item in value.items():
            if type(item) is not str:
                made[key] = weighed(item)
        made._weight = 1 + sum(map(weight, made)) + sum(map(weight, made.values()))
    else:
        made = kind(map(weighed, value))
        made._weight = 1 + sum(map(weight, made))
    if made._weight > MAX_SIZE:
        raise TooMuch(f"a list or an object would hold more than {MAX_SIZE} characters")
    return made


def charged(value: Any) -> Any:
    """Charge a value that was made just now, and return it."""
    if isinstance(value, str):
        spend(len(value))
    elif isinstance(value, Iterator):
        return _charged_items(value)
    else:
        spend(1)
    return weighed(value)


def _charged_items(items: Iterator[Any]) -> Iterator[Any]:
    for item in items:
        spend(1)
        yield item


def charged_text(value: Any) -> Any:
    """Charge what a template writes."""
    spend(weight(value))
    return value
