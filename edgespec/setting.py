"""Declarations of settings: the fields of a dataclass, annotated with bounds and a sentence.

Each setting is declared once. The check of its value, its command-line option, its field in
requests, its field in frames to a server and its row on the reference page come from this.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal

from msgspec import Meta

from .errors import ConfigError

_LARGEST = 2**31 - 1  # the largest whole number: engines store them as int32
_WORDS = {bool: "True or False", int: "a number", float: "a number", str: "text"}


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of a class of settings.

    kind: its type without None, such as float. is_optional: True if it may be None. default: the
    default value of the field, None if it has none. sentence: a description of its effect. ge, gt,
    le: its bounds, None for no bound. choices: the only values allowed if it is text; empty if any
    text is allowed. extra: facts that only some users of this class need.
    """

    name: str
    kind: Any
    is_optional: bool = False
    default: Any = None
    sentence: str = ""
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    choices: tuple[str, ...] = ()
    extra: Mapping[str, Any] | None = None

    @property
    def shapes_rows(self) -> bool:
        """True if it is a number that changes the distribution that tokens are sampled from."""
        return bool(self.extra and self.extra.get("shapes_rows"))

    def is_on(self, settings: Any) -> bool:
        """Return True if the value in `settings` differs from the default."""
        return bool(getattr(settings, self.name) != self.default)

    def check(self, value: Any) -> None:
        """Raise ConfigError for a value that the declaration does not allow."""
        if value is None and self.is_optional:
            return
        if self.choices:
            if value not in self.choices:
                raise ConfigError(
                    f"unknown {self.name} {value!r}; known: {', '.join(self.choices)}"
                )
        elif self.kind in (int, float):
            self._check_number(value)
        elif self.kind in _WORDS and not isinstance(value, self.kind):
            raise self._refused(value)

    def _check_number(self, value: Any) -> None:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or value != value:
            raise self._refused(value)
        if self.kind is int and not isinstance(value, int):
            raise ConfigError(f"{self.name} must be a whole number, got {value!r:.80}")
        low, high = self.range
        is_above = low < value if self.gt is not None else low <= value
        if not is_above or (value > high and not (self.le is None and value == math.inf)):
            raise ConfigError(f"{self.name} must be {self.in_words(value)}, got {value!r:.80}")

    def _refused(self, value: Any) -> ConfigError:
        ending = "None; leave it out" if value is None else f"{value!r:.80}"
        return ConfigError(f"{self.name} must be {_WORDS[self.kind]}, got {ending}")

    @property
    def range(self) -> tuple[float, float]:
        """The lower and the upper bound; a lower bound from `gt` is itself not allowed."""
        low = self.gt if self.gt is not None else -math.inf if self.ge is None else self.ge
        if self.le is not None:
            return low, self.le
        return low, _LARGEST if self.kind is int else sys.float_info.max

    def in_words(self, value: float = -math.inf) -> str:
        """Return the allowed range as text, for an error about `value`; "" if all is allowed.

        A default upper bound is named only if `value` is above it.
        """
        low, high = self.range
        least = (
            "" if low == -math.inf else f"{'above' if self.gt is not None else 'at least'} {low}"
        )
        if self.le is None and value <= high:
            return least
        most = f"at most {high}"
        if self.ge is not None:
            return f"between {low} and {high}"
        return f"{least} and {most}" if least else most


@functools.cache
def settings_of(owner: type) -> Mapping[str, Setting]:
    """Return the settings of a dataclass by name, in the order of its fields."""
    hints = typing.get_type_hints(owner, include_extras=True)
    return {each.name: _setting(each, hints[each.name]) for each in fields(owner)}


def check(settings: Any) -> None:
    """Raise ConfigError for the first field of `settings` with a value that is not allowed."""
    owner: type = type(settings)
    for each in settings_of(owner).values():
        each.check(getattr(settings, each.name))


def described(owner: type) -> str:
    """Return the docstring of a class of settings, followed by the sentence of each setting."""
    told = [f"{each.name}: {each.sentence}" for each in settings_of(owner).values()]
    return "\n".join([inspect.cleandoc(owner.__doc__ or ""), "", *told])


def _setting(field: Any, hint: Any) -> Setting:
    metas = [each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Meta)]
    meta = metas[0] if metas else Meta()
    kinds = _kinds(hint.__origin__ if metas else hint)
    known = [kind for kind in kinds if kind is not type(None)]
    kind = known[0] if len(known) == 1 else Any
    return Setting(
        field.name,
        str if typing.get_origin(kind) is Literal else kind,
        len(known) < len(kinds),
        None if field.default is MISSING else field.default,
        sentence=meta.description or "",
        ge=meta.ge,
        gt=meta.gt,
        le=meta.le,
        choices=typing.get_args(kind) if typing.get_origin(kind) is Literal else (),
        extra=meta.extra,
    )


def _kinds(hint: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the only type."""
    origin = typing.get_origin(hint)
    is_union = origin is typing.Union or getattr(origin, "__name__", "") == "UnionType"
    return typing.get_args(hint) if is_union else (hint,)
