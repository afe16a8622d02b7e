"""The context length of a model if none is asked for."""

from __future__ import annotations

import pytest

from edgespec.backends import context_length
from edgespec.backends.context_length import LEAST, MOST, default_n_ctx

GIB = 2**30


@pytest.mark.parametrize(
    ("trained", "token_bytes", "free", "total", "n_caches", "expected"),
    [
        (131072, 28_672, 12 * GIB, 16 * GIB, 1, 32768),  # there is enough memory
        (4096, 28_672, 12 * GIB, 16 * GIB, 1, 4096),  # the model's own
        (20000, 28_672, 12 * GIB, 16 * GIB, 1, 20000),
        (131072, 65_536, 5 * GIB, 16 * GIB, 1, 16384),  # one GiB above the quarter
        (131072, 65_536, 5 * GIB, 16 * GIB, 2, 8192),
        (131072, 65_536, 4 * GIB, 16 * GIB, 1, LEAST),  # none above it
        (131072, 65_536, -GIB, 16 * GIB, 1, LEAST),
        (2048, 65_536, GIB, 16 * GIB, 1, 2048),
        (0, 65_536, 12 * GIB, 16 * GIB, 1, LEAST),  # not known what it was trained for
        (131072, 0, 12 * GIB, 16 * GIB, 1, MOST),  # a recurrent state does not grow
        (131072, 28_672, 0, 0, 1, LEAST),  # a GPU that does not tell its memory
    ],
)
def test_it_depends_on_the_model_and_the_memory(
    trained, token_bytes, free, total, n_caches, expected
):
    assert default_n_ctx(trained, token_bytes, free, total, n_caches) == expected


def test_a_quarter_of_the_memory_stays_free():
    for free in range(0, 16 * GIB, GIB // 3):
        n_ctx = default_n_ctx(1 << 20, 100_000, free, 16 * GIB)
        assert n_ctx == LEAST or free - n_ctx * 100_000 >= 4 * GIB
        assert n_ctx % 256 == 0


def test_models_are_chosen_for_the_least_of_it():
    from edgespec import hub

    assert hub.N_CTX == context_length.LEAST
