"""The speed of a draft that is measured while other programs run."""

from types import SimpleNamespace

import pytest

from edgespec.train import serving
from edgespec.train.gently import Pauses


class Answering:
    """Stands in for an engine."""

    def generate(self, prompt, **_):
        return SimpleNamespace(token_ids=(1, 2))


def test_other_programs_are_watched_during_answers_but_not_during_pauses(monkeypatch):
    looks, clock = iter((1.9, 0.2, 1.9, 0.6)), iter((0, 1, 1, 2, 2, 5, 5, 8))
    monkeypatch.setattr(
        serving.LoadMeter, "look", lambda _: SimpleNamespace(others=next(looks))
    )  # fmt: skip
    time = SimpleNamespace(perf_counter=lambda: next(clock))
    monkeypatch.setattr(serving, "time", time)
    ratios, others = serving._ratios(Answering(), [((1,), 2)] * 2, Pauses(print, gently=False))
    assert ratios == [1, 1]
    assert others == (2 * 0.2 + 6 * 0.6) / 8  # by how long the answers took


@pytest.mark.parametrize(("others", "said"), [(0.1, ""), (1.4, "Other programs used 1.4 cores")])
def test_a_disturbed_measurement_says_so(others, said):
    served = serving.ServedHead(1, 2, 1.0, (0.1,), 1.0, 1.0, 1.0, 1.0, others=others)
    assert served.to_dict()["warning"].startswith(said)
    assert bool(served.warning) == bool(said)
