"""The budget of one rendering: its time, and the total size of the values that it makes."""

from __future__ import annotations

import contextlib
import contextvars
import time
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, ValuesView
from typing import Any

MAX_SECONDS = 5.0
MAX_SIZE = 1 << 26  # characters that one rendering may make; each takes up to four bytes
_CONTAINER, _ITEM, _ENTRY = 32, 2, 16  # characters charged for a list, an item, a pair
_ESCAPED = 6  # characters that one character can become in the text of a list
_MAX_BITS = 64  # of integers

_budget: contextvars.ContextVar[Budget | None] = contextvars.ContextVar("budget", default=None)


class TooMuch(Exception):
    """Raised when a template takes longer, or makes more text, than the budget allows."""


class Budget:
    """The time and the size that are left for one rendering."""

    def __init__(self, seconds: float = MAX_SECONDS, size: int = MAX_SIZE) -> None:
        self._seconds, self._size = seconds, size
        self._left, self._deadline = size, time.monotonic() + seconds

    def spend(self, size: int) -> None:
        """Subtract `size` from the budget. Raises TooMuch if the size or the time is used up."""
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


class JsonText(str):
    """JSON that `tojson` writes as it is, so that the arguments of a call stay as they were."""

    __slots__ = ()


# --- values ------------------------------------------------------------------------------------


class _List(list[Any]):
    """A list that stores its `weight`, which stays right because no template can change a list."""

    __slots__ = ("_weight",)
    _weight: int


class _Tuple(tuple[Any, ...]):
    _weight = 0


class _Dict(dict[Any, Any]):
    __slots__ = ("_weight",)
    _weight: int


_WEIGHED: dict[type, Callable[[Any], Any]] = {list: _List, tuple: _Tuple, dict: _Dict}
_LISTS = (list, tuple, KeysView, ValuesView, ItemsView)


def weight(value: Any) -> int:
    """Return an upper limit for the number of characters in a value's text."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, (_List, _Tuple, _Dict)):
        return value._weight
    if isinstance(value, dict):
        return _weight_of(value) + _weight_of(value.values())
    if isinstance(value, _LISTS):
        return _weight_of(value)
    return len(str(value))


def _weight_of(items: Iterable[Any]) -> int:
    return 2 + sum(
        4 + (_ESCAPED * len(item) if isinstance(item, str) else weight(item)) for item in items
    )


def weighed(value: Any) -> Any:
    """Return a value whose lists and objects store their weights. Raises TooMuch.

    Lists that hold a list more than once, many levels deep, have texts of exponential length, so
    they are refused here.
    """
    if type(value) is int and value.bit_length() > _MAX_BITS:
        raise TooMuch(f"integers have up to {_MAX_BITS} bits here")
    kind = _WEIGHED.get(type(value))
    if kind is None:
        return value
    made: Any
    if kind is _Dict:
        spend(_CONTAINER + len(value) * _ENTRY)
        made = _Dict((key, weighed(item)) for key, item in value.items())
        made._weight = _weight_of(made) + _weight_of(made.values())
    else:
        spend(_CONTAINER + len(value) * _ITEM)
        made = kind(map(weighed, value))
        made._weight = _weight_of(made)
    if made._weight > MAX_SIZE:
        raise TooMuch(f"a list or an object would hold more than {MAX_SIZE} characters")
    return made


def charged(value: Any) -> Any:
    """Charge the budget for a value that was just made, and return the value."""
    if isinstance(value, str):
        spend(1 + len(value))
    elif isinstance(value, Iterator):
        return _charged_items(value)
    else:
        spend(1)
    return weighed(value)


def _charged_items(items: Iterator[Any]) -> Iterator[Any]:
    for item in items:
        spend(_CONTAINER)
        yield item


def listed(items: Iterable[Any]) -> list[Any]:
    """Return the items of an iterable as a list; items of an iterator are charged one by one."""
    return list(items if isinstance(items, _LISTS) else _charged_items(iter(items)))


def text_of(value: Any) -> str:
    """Return the text of a value, which is charged before it is made."""
    spend(1 + weight(value))
    return value if isinstance(value, str) else str(value)
