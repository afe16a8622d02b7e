"""Comparing a compiled libllama with the one in use: it has to be right, and faster."""

import contextlib
import os

import pytest

import edgespec
from edgespec import BuildError, ConfigError
from edgespec.backends import compiled
from edgespec.measure import building
from tests.helpers import libllama

llama_cpp = libllama.require()


@pytest.fixture
def engines(monkeypatch, tmp_path):
    monkeypatch.setenv("EDGESPEC_ENGINES", str(tmp_path / "engines"))
    monkeypatch.delenv("EDGESPEC_LIBLLAMA", raising=False)

    def compile_library(options, progress):
        progress(50)
        library = tmp_path / "engines/llama-cpp-python-1/lib/libllama.so"
        library.parent.mkdir(parents=True, exist_ok=True)
        library.touch()
        return library

    monkeypatch.setattr(compiled, "compile_library", compile_library)
    monkeypatch.setattr(compiled, "arguments", lambda: ["-DX=ON"])
    return tmp_path / "engines"


def probes(monkeypatch, now, likeliest=(1, 2, 3), seconds=0.5):
    """Let libraries answer: the one in use a perplexity of 20 and a second for all widths."""

    @contextlib.contextmanager
    def probe(path, library=None):
        read = [now, list(likeliest)] if library else [20.0, [1, 2, 3]]
        yield lambda what: read if what == "read" else 4 * [seconds if library else 1.0]

    monkeypatch.setattr(building, "_probe", probe)


def test_a_faster_library_is_used(monkeypatch, engines, smollm2):
    probes(monkeypatch, 20.1)
    told = []
    built = edgespec.build(smollm2, told.append)
    assert built.is_used
    assert built.times[4] == (1000, 500)
    assert told[1] == "compiling llama.cpp: 50%"
    chosen = compiled.chosen()
    assert (chosen.path, chosen.arguments) == (str(built.path), ["-DX=ON"])
    assert chosen.times[built.model]["8"] == [1000, 500]
    assert edgespec.remove_build()
    assert compiled.chosen() is None


@pytest.mark.parametrize(("now", "likeliest"), [(20.5, (1, 2, 3)), (20.0, (1, 2, 4))])
def test_a_library_that_computes_something_else_is_not_used(
    monkeypatch, engines, smollm2, now, likeliest
):
    probes(monkeypatch, now, likeliest)
    with pytest.raises(BuildError, match="it is not used"):
        edgespec.build(smollm2)
    assert compiled.chosen() is None
    assert not list(engines.glob("llama-cpp-python-*"))


def test_a_library_that_is_not_faster_is_not_used(monkeypatch, engines, smollm2):
    probes(monkeypatch, 20.0, seconds=1.1)
    assert not edgespec.build(smollm2).is_used
    assert compiled.chosen() is None
    assert not list(engines.glob("llama-cpp-python-*"))


def test_what_cannot_be_compared_is_refused_before_anything_is_compiled(
    monkeypatch, engines, smollm2, tmp_path
):
    graph = tmp_path / "model.onnx"
    graph.touch()
    with pytest.raises(ConfigError, match="is no GGUF"):
        edgespec.build(graph)
    monkeypatch.setenv("EDGESPEC_LIBLLAMA", "/mine/libllama.so")
    with pytest.raises(ConfigError, match="unset it"):
        edgespec.build(smollm2)
    assert not engines.exists()


def test_real_processes_compare_the_library_with_itself(smollm2):
    with building._probe(smollm2) as ask:
        perplexity, likeliest = ask("read")
        assert 5 < perplexity < 60
        assert len(likeliest) > 100
        assert len(ask("time")) == len(building.WIDTHS)
    with (
        building._probe(smollm2, os.devnull) as ask,
        pytest.raises(BuildError, match=r"cannot evaluate .*: EngineMissing"),
    ):
        ask("read")
