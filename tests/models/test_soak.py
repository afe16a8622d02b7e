"""Fifty clients of four slots who cancel, leave and run out of time: right answers, no leaks."""

import pytest

from edgespec import EngineConfig
from edgespec.loading.models import open_model
from tests.helpers import libllama

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
        assert soak.wrong(target) == []
        target.close()
        found = soak.figures()
        assert found["errors"] == []
        assert {"stop", "length", "cancelled", "time_limit", "left"} <= set(found["requests"])
        assert found["evaluations"]["with drafts of several streams"] > 0
        files, memory = found["used"]["files"], found["used"]["MiB"]
        assert files["last third"] <= files["first third"] + 2
        assert memory["last third"] < memory["first third"] + 60
        status = engine.status()
        assert not status.running
        assert not status.n_waiting
