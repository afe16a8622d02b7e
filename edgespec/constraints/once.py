"""A cache whose results are made only once, by the first thread that asks for them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Once(Generic[T]):
    """Keeps the results of a function, as functools.lru_cache does, and makes each only once.

    Threads that ask for the same result at the same time wait until the first of them has made it.
    Threads that ask for other results do not wait. Errors are not kept.

    size: most results that are kept.
    """

    def __init__(self, make: Callable[..., T], size: int) -> None:
        self._make, self._size = make, size
        self._results: OrderedDict[Hashable, Future[T]] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, *key: Hashable) -> T:
        """Return the result of the function for these arguments."""
        with self._lock:
            is_new = key not in self._results
            result = self._results.setdefault(key, Future())
            self._results.move_to_end(key)
            if len(self._results) > self._size:
                self._results.popitem(last=False)
        if is_new:
            self._fill(key, result)
        return result.result()

    def _fill(self, key: tuple[Hashable, ...], result: Future[T]) -> None:
        try:
            result.set_result(self._make(*key))
        except BaseException as error:
            result.set_exception(error)
            with self._lock:
                if self._results.get(key) is result:
                    del self._results[key]
