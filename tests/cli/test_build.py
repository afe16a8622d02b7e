"""`edgespec build`."""

import json
from pathlib import Path

import pytest

import edgespec
from edgespec import BuildError, Built, hub
from edgespec.measure.libraries import Comparison


def built(factor):
    times = {1: (10.0, 10.0 * factor), 4: (20.0, 20.0 * factor)}
    return Built(Path("/e/libllama.so"), "xllamacpp 1", "a.gguf", Comparison(times, 0.07))


@pytest.mark.parametrize(("factor", "said"), [
    (0.5, "used in place of xllamacpp 1 from now on"), (2.0, "so xllamacpp 1 stays in use"),
])  # fmt: skip
def test_build_says_what_it_gained(edgespec_cli, monkeypatch, factor, said):
    models = []
    monkeypatch.setattr(edgespec, "build", lambda m, progress: models.append(m) or built(factor))
    result = edgespec_cli("build", "-m", "a.gguf")
    assert result.exit_code == 0
    assert said in result.stdout
    assert "logits of a.gguf differ by at most 7%" in result.stdout
    assert (
        f"4 tokens {20.0:>9} {20.0 * factor:>7}".split()
        == [
            word
            for line in result.stdout.splitlines()
            if "4 tokens" in line
            for word in line.split()
        ][:4]
    )
    assert models == ["a.gguf"]
    as_json = json.loads(edgespec_cli("build", "-m", "a.gguf", "--json").stdout)
    assert as_json["times_ms"]["4"] == [20, 20 * factor]
    assert as_json["is_used"] is (factor < 1)


def test_without_a_model_the_smallest_is_compared(edgespec_cli, monkeypatch):
    models = []
    monkeypatch.setattr(edgespec, "build", lambda m, progress: models.append(m) or built(0.5))
    result = edgespec_cli("build")
    assert result.exit_code == 2
    assert "edgespec pull" in result.stderr
    of = [("b.gguf", 3), ("c.gguf", 2), ("d/model.onnx", 1), ("e-trained/head.gguf", 1)]
    monkeypatch.setattr("edgespec.loading.models.is_head", lambda path: path.name == "head.gguf")
    stored = [hub.StoredModel(name, Path(name), "", size) for name, size in of]
    monkeypatch.setattr(hub, "stored", lambda: stored)
    assert edgespec_cli("build").exit_code == 0
    assert models == ["c.gguf"]


def test_a_build_that_fails_is_an_error_of_one_line(edgespec_cli, monkeypatch):
    def build(model, progress):
        progress("compiling")
        raise BuildError("there is no C++ compiler")

    monkeypatch.setattr(edgespec, "build", build)
    result = edgespec_cli("build", "-m", "a.gguf")
    assert result.exit_code == 1
    assert "there is no C++ compiler" in result.stderr
    assert "Traceback" not in result.stderr


def test_undo(edgespec_cli, monkeypatch, tmp_path):
    monkeypatch.setenv("EDGESPEC_ENGINES", str(tmp_path / "engines"))
    assert "nothing was compiled" in edgespec_cli("build", "--undo").stdout
    (tmp_path / "engines").mkdir()
    assert "is deleted" in edgespec_cli("build", "--undo").stdout
    assert edgespec_cli("build", "--undo", "-m", "a").exit_code == 2
