"""What the quick command runs, and what it leaves to `pytest --all`.

`python -m tests.helpers.selection` lists what is left, and why. `pytest --rest` runs it: after the
quick command, every case has run with all its examples, as with `--all`.

A test is left if it carries the mark `long`, which says why:

    @pytest.mark.long("thirty answers of a real model")

Of a test with three parameters or more, the quick command runs so many cases that every pair of
their values occurs. `first` and `every` leave some values of one parameter; `share` and `sample`
make fewer examples within a test.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
ALL_COMBINATIONS = "all combinations of parameters, not only all pairs"


_everything = False  # set before any test is imported


def share(n: int, of: int = 20) -> int:
    """Return how many random examples to make: n for `--all`, else one in `of`."""
    return n if _everything else max(1, n // of)


def sample(values: Iterable[T], of: int = 13) -> list[T]:
    """Return the values to go through: all for `--all`, else the first of every `of`.

    A prime does not keep a factor of a product at one value.
    """
    return list(values)[:: 1 if _everything else of]


def every(of: int, values: Iterable[Any], why: str) -> list[Any]:
    """Return values for `parametrize`, of which the quick command takes the first of every `of`."""
    mark = pytest.mark.long(why)
    return [v if i % of == 0 else pytest.param(v, marks=mark) for i, v in enumerate(values)]


def first(n: int, values: Iterable[Any], why: str) -> list[Any]:
    """Return values for `parametrize`, of which the quick command takes the first n."""
    listed = list(values)
    left = [pytest.param(value, marks=pytest.mark.long(why)) for value in listed[n:]]
    return [*listed[:n], *left]


class Selection:
    """A plugin that leaves the long cases out, unless `--all` or a test's own name asks for them.

    left: how many cases were left, by reason.
    """

    def __init__(self, config: pytest.Config) -> None:
        global _everything
        self._rest = config.getoption("--rest")
        _everything = config.getoption("--all") or self._rest
        self._is_named = any("::" in each for each in config.args)
        self.left: Counter[str] = Counter()

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Mark what pairs make superfluous, then leave out what is marked, or all the rest."""
        for cases in _by_function(items):
            for item in superfluous(cases):
                item.add_marker(pytest.mark.long(ALL_COMBINATIONS))
        if self._rest:
            run = [item for item in items if _is_long(item) or _has_more_examples(item)]
        elif _everything or self._is_named:
            return
        else:
            run = [item for item in items if not _is_long(item)]
            self.left.update(_reason(item) for item in items if _is_long(item))
        kept = set(run)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = run

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Tell the process that started this one what was left."""
        if (output := getattr(session.config, "workeroutput", None)) is not None:
            output["left"] = dict(self.left)


def _is_long(item: pytest.Item) -> bool:
    return item.get_closest_marker("long") is not None


def _has_more_examples(item: Any) -> bool:
    """Return True if the quick command takes fewer examples within a test, or may do so: its file
    asks `share` or `sample`.
    """
    asked = (getattr(item.module, each.__name__, None) is each for each in (share, sample))
    return any(asked) or hasattr(item.obj, "hypothesis")


def _reason(item: pytest.Item) -> str:
    mark = item.get_closest_marker("long")
    assert mark
    if len(mark.args) != 1:
        raise pytest.UsageError(f"{item.nodeid}: the mark `long` needs a reason")
    return str(mark.args[0])


def _by_function(items: Iterable[pytest.Item]) -> Iterator[list[Any]]:
    """Return the cases of each function with three parameters or more that is not long anyway."""
    functions: dict[str, list[Any]] = defaultdict(list)
    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if len(parameters) >= 3 and not item.get_closest_marker("long"):
            functions[item.nodeid.partition("[")[0]].append(item)
    return iter(functions.values())


def superfluous(cases: Sequence[Any]) -> Iterator[pytest.Item]:
    """Return the cases without which every pair of values still occurs: the case that has most
    new pairs is kept, again and again.
    """
    pairs = {case: set(itertools.combinations(_values(case), 2)) for case in cases}
    missing: set[Any] = set().union(*pairs.values())
    left = dict(pairs)
    while missing:
        best = max(left, key=lambda case: len(left[case] & missing))
        missing -= left.pop(best)
    return iter(left)


def _values(case: Any) -> list[tuple[str, int]]:
    """Return the parameters of a case: names, and what stands for a value, which cases share."""
    parameters = case.callspec.params
    return [(name, id(parameters[name])) for name in sorted(parameters)]


class _Listing:
    """A plugin that lists what is left, by reason and file."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Make the list."""
        self.lines.append("(more …: further values of a parameter, which take the same way)")
        left = [item for item in session.items if _is_long(item)]
        for why, of_reason in itertools.groupby(sorted(left, key=_reason), _reason):
            self.lines.append(why)
            for file, n in Counter(item.location[0] for item in of_reason).items():
                self.lines.append(f"{n:6} {file}")
        self.lines.append("fewer examples within a test")
        importing = re.compile(r"^from tests.helpers.selection import .*(share|sample)", re.M)
        for path in sorted({item.path for item in session.items}):
            if importing.search(path.read_text("utf-8")):
                self.lines.append(f"       {path.relative_to(session.config.rootpath)}")


if __name__ == "__main__":
    listing = _Listing()
    with contextlib.redirect_stdout(io.StringIO()):  # pytest lists all tests
        code = pytest.main(["-n0", "-qqq", "--collect-only", "--all"], plugins=[listing])
    print(*listing.lines, sep="\n")
    raise SystemExit(code)
