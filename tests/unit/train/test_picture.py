"""The picture of a training."""

import builtins
import json

import pytest

from edgespec.train.card import draw

pytest.importorskip("matplotlib")
HISTORY = [
    {"step": 0, "divergence": [], "acceptance_length": [1.1, 1.2]},
    {"step": 4, "divergence": [2.0, 2.5, 2.6], "acceptance_length": [1.2, 1.3]},
    {"step": 8, "divergence": [1.0, 1.5, 1.6], "acceptance_length": [1.3, 1.5]},
]


@pytest.fixture
def result(tmp_path):
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"history": HISTORY}))
    return path


def test_a_picture_of_loss_and_acceptance(result, tmp_path):
    picture = tmp_path / "head" / "training.png"
    assert draw(result, picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_without_a_history_there_is_none(tmp_path):
    assert not draw(tmp_path / "result.json", tmp_path / "training.png")
    assert not (tmp_path / "training.png").exists()


def test_without_matplotlib_there_is_none(result, tmp_path, monkeypatch):
    real = builtins.__import__

    def refuse(name, *given):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *given)

    monkeypatch.setattr(builtins, "__import__", refuse)
    assert not draw(result, tmp_path / "training.png")
