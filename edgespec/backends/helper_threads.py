"""The helper threads that an engine keeps for each thread that evaluates.

GNU OpenMP, which most builds of llama.cpp use, gives every thread that has evaluated helper threads
of its own and keeps them. Once all of these are more than the CPUs, they no longer spin while they
wait for each other but sleep, which costs more time than a short operation: SmolLM2-135M on two
cores then takes 9.4 ms for a token in place of 6.5. So a thread that has finished ends its helpers.
"""

from __future__ import annotations

from collections.abc import Callable

enders: list[Callable[[], object]] = []
"""Functions of the engines that end the helper threads of the thread which calls them."""


def end_helper_threads() -> None:
    """End the helper threads of the calling thread, because another thread may evaluate next.

    This takes 2 microseconds if there are none, and the next evaluation of this thread takes 0.1 ms
    longer, because it starts new ones.
    """
    for end in enders:
        end()
