"""Comparing a compiled libllama with the one in use: it has to be right, and faster."""

import contextlib
import os
from pathlib import Path

import pytest

import edgespec
from edgespec import BuildError, ConfigError
from edgespec.backends import compiled
from edgespec.measure import engine_checks, libraries
from edgespec.measure.budget import Budget
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


ROW = [float(i % 7) for i in range(32)]


def probes(monkeypatch, now=ROW, seconds=0.5):
    """Let libraries answer: the one in use with ROW twice and a second for all widths."""

    @contextlib.contextmanager
    def probe(path, library=None):
        read = [ROW, now if library else ROW]
        yield lambda what: read if what == "read" else 4 * [seconds if library else 1.0]

    monkeypatch.setattr(libraries, "probe", probe)


def test_a_faster_library_is_used(monkeypatch, engines, smollm2):
    probes(monkeypatch, [x + 5 for x in ROW])
    told = []
    built = edgespec.build(smollm2, told.append)
    assert built.is_used
    assert built.comparison.times[4] == (1000, 500)
    assert told[1] == "compiling llama.cpp: 50%"
    chosen = compiled.chosen()
    assert (chosen.path, chosen.arguments) == (str(built.path), ["-DX=ON"])
    assert chosen.times[built.model]["8"] == [1000, 500]
    assert edgespec.remove_build()
    assert compiled.chosen() is None


@pytest.mark.parametrize(
    "now", [[*ROW[:4], 20.0, *ROW[5:]], [-x for x in ROW], [*ROW[:4], float("nan"), *ROW[5:]]]
)
def test_a_library_that_computes_something_else_is_not_used(monkeypatch, engines, smollm2, now):
    probes(monkeypatch, now)
    with pytest.raises(BuildError, match="it is not used"):
        edgespec.build(smollm2)
    assert compiled.chosen() is None
    assert not list(engines.glob("llama-cpp-python-*"))


def test_a_library_that_is_not_faster_is_not_used(monkeypatch, engines, smollm2):
    probes(monkeypatch, seconds=1.1)
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


@pytest.mark.long("five processes load a model and read with it")
def test_real_processes_compare_the_library_with_itself(smollm2):
    with libraries.probe(smollm2) as ask:
        rows = ask("read")
        assert len(rows) > 100
        assert libraries._difference(rows, ask("read")[::-1]) > 1
        assert len(ask("time")) == len(libraries.WIDTHS)
    with (
        libraries.probe(smollm2, os.devnull) as ask,
        pytest.raises(BuildError, match=r"cannot evaluate .*: EngineMissing"),
    ):
        ask("read")
    assert libraries.compare(smollm2, Path(llama_cpp.library.lib._name), 1).is_right


@pytest.fixture
def fork(monkeypatch, tmp_path):
    """Install an ik_llama.cpp that is twice as fast, and keep comparisons in a new folder."""
    from edgespec.backends import fork

    monkeypatch.setenv("EDGESPEC_PROFILES", str(tmp_path / "profiles"))
    monkeypatch.setattr(fork, "library", lambda: tmp_path / "libllama.so")
    monkeypatch.setattr(fork, "_asked", [])
    probes(monkeypatch)
    return fork


def test_a_fork_is_compared_once_and_used_if_it_is_right_and_faster(fork, smollm2, monkeypatch):
    told, budget = [], Budget(1e9)
    assert "ik_llama.cpp is used for models" in engine_checks.check_libllama().text
    choice = libraries.compare_fork([smollm2], budget, told.append)
    assert (choice.chosen, fork.is_asked()) == ("ik_llama.cpp", True)
    assert [c.ms for c in choice.candidates] == [4000, 2000]
    assert told == ["comparing ik_llama.cpp for " + smollm2.name]
    monkeypatch.setattr(libraries, "compare", lambda *_: pytest.fail("compared twice"))
    assert libraries.compare_fork([smollm2], budget, told.append) == choice


@pytest.mark.parametrize(("answers", "why"), [
    ({"now": [-x for x in ROW]}, "computes something else"), ({"seconds": 2.0}, "is not faster"),
])  # fmt: skip
def test_a_fork_that_is_wrong_or_slower_is_not_used(fork, smollm2, monkeypatch, answers, why):
    probes(monkeypatch, **answers)
    choice = libraries.compare_fork([smollm2], Budget(1e9), lambda said: None)
    assert why in choice.why
    assert choice.chosen == llama_cpp.first()
    assert not fork.is_asked()


def test_a_fork_that_ends_its_process_is_wrong(fork, smollm2, monkeypatch):
    def compare(*_):
        raise BuildError("it ended")

    monkeypatch.setattr(libraries, "compare", compare)
    choice = libraries.compare_fork([smollm2], Budget(1e9), lambda said: None)
    assert "computes something else" in choice.why


def test_a_comparison_that_does_not_fit_the_budget_is_left_out(fork, smollm2):
    budget = Budget(1)
    assert libraries.compare_fork([smollm2], budget, lambda said: None) is None
    assert budget.left_out == ["comparing ik_llama.cpp"]
    assert libraries.compare_fork([], budget, lambda said: None) is None
