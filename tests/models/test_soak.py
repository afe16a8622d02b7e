"""Fifty clients of four slots who cancel, leave and run out of time: right answers, no leaks."""

import pytest

from edgespec import EngineConfig
from edgespec.loading.models import open_model
from tests.helpers import libllama
from tests.helpers.near_ties import NOISE

libllama.require()
pytest.importorskip("llguidance")
pytestmark = [pytest.mark.model, pytest.mark.llama_cpp]


@pytest.mark.long("a minute of fifty clients")
def test_answers_stay_right_and_nothing_is_left(smollm2):
    from benchmarks.soak import Soak, loaded

    with loaded(smollm2, 4) as engine:
        soak = Soak(engine, n_tokens=12)
        soak.run(50, 45)
        target = open_model(smollm2, EngineConfig(n_ctx=512))
        assert all(gap < NOISE for gap, *_ in soak.partings(target))
        target.close()
        figures = soak.figures()
        assert figures["errors"] == []
        assert {"stop", "length", "cancelled", "time_limit", "left"} <= set(figures["requests"])
        assert figures["evaluations"]["with drafts of several streams"] > 0
        files, memory = figures["used"]["files"], figures["used"]["MiB"]
        assert files["last third"] <= files["first third"] + 2
        assert memory["last third"] < memory["first third"] + 60
        status = engine.status()
        assert not status.running
        assert not status.n_waiting
