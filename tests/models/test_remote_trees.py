"""Devices that draft trees over `edgespec serve` with real weights."""

from concurrent.futures import ThreadPoolExecutor

import pytest

import edgespec
from tests.helpers import libllama

libllama.require()
pytest.importorskip("uvicorn")
from tests.helpers.served import connected, serving  # noqa: E402

TEXTS = [
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return",
    "Rain fell on the river, and the river ran to the sea. Rain fell on the",
    "one two three one two three one two",
]
WAYS = [{"temperature": 0.0}, {"temperature": 0.8, "seed": 5}]
COMMON = {"max_tokens": 24, "ignore_eos": True}


@pytest.fixture(scope="module")
def answers(smollm2):
    """Return the texts of plain decoding in this process, by text and sampling."""
    config = {"method": "none"}
    options = {"n_ctx": 1024, "batch_invariant": True}
    with edgespec.load(smollm2, speculative_config=config, **options) as here:
        return [[here.generate(text, **way, **COMMON).token_ids for way in WAYS] for text in TEXTS]


@pytest.mark.long("servers of real weights; tests/server/test_remote_trees.py has toys")
def test_text_is_that_of_one_machine(smollm2, answers):
    """Two devices send trees, a third one chains, all at once."""
    kinds = ["trees", "trees", "chains"]

    def run(device):
        with device:
            return [[device.generate(text, **way, **COMMON) for way in WAYS] for text in TEXTS]

    options = ("--batch-invariant", "-np", "4", "-c", "1024")
    with serving(smollm2, *options) as server:
        devices = [connected(server.url, smollm2, kind) for kind in kinds]
        assert all(device.sessions[0]._verifier.max_leaves > 8 for device in devices)
        with ThreadPoolExecutor(len(devices)) as pool:
            given = list(pool.map(run, devices))
    for i, of_device in enumerate(given):
        assert [[done.token_ids for done in row] for row in of_device] == answers
        stats = [done.stats for row in of_device for done in row]
        branched = sum(s.drafted_per_position[0] > s.num_draft_steps for s in stats)
        assert branched == (len(stats) if i < 2 else 0)
        assert sum(s.num_accepted_draft_tokens for s in stats) > 0
