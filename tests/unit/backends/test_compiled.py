"""Compiling llama.cpp: the arguments for a processor, pip's progress, and what is kept of it."""

import sys

import pytest

from edgespec.backends import compiled
from edgespec.backends.llama_cpp import search
from edgespec.errors import BuildError
from tests.helpers import libllama

libllama.require()
AVX2 = frozenset(["avx", "avx2", "fma", "f16c", "bmi2"])
AVX512 = AVX2 | {"avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw", "avx512_vnni"}
ON_LINUX = pytest.mark.skipif(sys.platform == "darwin", reason="macOS names no instruction sets")


@pytest.fixture
def engines(monkeypatch, tmp_path):
    monkeypatch.setenv("EDGESPEC_ENGINES", str(tmp_path / "engines"))
    return tmp_path / "engines"


@ON_LINUX
@pytest.mark.parametrize(("has", "machine", "expected"), [
    (AVX2, "x86_64", "AVX AVX2 FMA F16C BMI2"),
    (AVX512, "x86_64", "AVX AVX2 FMA F16C BMI2 AVX512 AVX512_VNNI"),
    (AVX512 | {"amx_int8", "amx_tile"}, "AMD64", "AVX AVX2 FMA F16C BMI2 AVX512 AVX512_VNNI"),
    (AVX512 - {"avx512dq"}, "x86_64", "AVX AVX2 FMA F16C BMI2 AVX512_VNNI"),
])  # fmt: skip
def test_arguments_use_what_the_processor_has_but_no_amx(has, machine, expected):
    options = compiled.arguments(has, machine)
    assert options == ["-DGGML_NATIVE=OFF", *(f"-DGGML_{name}=ON" for name in expected.split())]


@ON_LINUX
@pytest.mark.parametrize(("has", "expected"), [
    ("fp asimd asimddp asimdhp", "armv8.2-a+dotprod+fp16"),
    ("asimddp i8mm sve", "armv8.2-a+dotprod+i8mm+sve"),
])  # fmt: skip
def test_arguments_on_arm(has, expected):
    options = compiled.arguments(frozenset(has.split()), "aarch64")
    assert options[1] == f"-DGGML_CPU_ARM_ARCH={expected}"
    assert compiled.arguments(frozenset({"asimd"}), "aarch64")[1] == ""


@ON_LINUX
def test_a_processor_that_tells_nothing_is_not_guessed():
    with pytest.raises(BuildError, match="set CMAKE_ARGS"):
        compiled.arguments(frozenset(), "x86_64")


def fake_pip(monkeypatch, tmp_path, body):
    """Let `sys.executable` be a program that acts as pip: `body` has the folder as `into`."""
    program = tmp_path / "python"
    program.write_text(
        f"#!{sys.executable}\nimport os, pathlib, sys\nif '--version' in sys.argv: sys.exit(0)\n"
        f"into = pathlib.Path(sys.argv[sys.argv.index('--target') + 1])\n{body}"
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setenv("CXX", str(program))


@ON_LINUX
def test_compiling_shows_progress_and_returns_the_library(monkeypatch, tmp_path, engines):
    body = """
print("  [1/99] Building a.cpp.o\\n  [50/99] b\\n  [51/99] c\\n  [99/99] Linking libllama.so")
print(os.environ["CMAKE_ARGS"])
(into / "llama_cpp/lib").mkdir(parents=True)
(into / "llama_cpp/lib/libllama.so").touch()
"""
    fake_pip(monkeypatch, tmp_path, body)
    seen = []
    library = compiled.compile_library(["-DA=ON", "", "-DB=ON"], seen.append)
    assert seen == [50, 100]
    assert library.is_relative_to(engines)
    assert library.name == "libllama.so"
    assert "-DA=ON -DB=ON" in (engines / "build.log").read_text()


@ON_LINUX
def test_a_compiler_that_fails_is_told_with_its_error(monkeypatch, tmp_path, engines):
    body = "print('collecting\\nx.cpp:3: error: no such type\\nninja: stopped'); sys.exit(1)"
    fake_pip(monkeypatch, tmp_path, body)
    with pytest.raises(BuildError, match=r"x.cpp:3: error: no such type; .*build.log has all"):
        compiled.compile_library([], print)
    assert [path.name for path in engines.iterdir()] == ["build.log"]


def test_without_a_compiler_or_pip_nothing_begins(monkeypatch, tmp_path, engines):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(BuildError, match="build-essential"):
        compiled.compile_library([], print)
    fake_pip(monkeypatch, tmp_path, "")
    (tmp_path / "python").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(BuildError, match="ensurepip"):
        compiled.compile_library([], print)
    assert not engines.exists()


def test_the_chosen_library_comes_before_installed_ones(monkeypatch, engines, tmp_path):
    path = engines / "llama-cpp-python-1/libllama.so"
    path.parent.mkdir(parents=True)
    other = engines / "llama-cpp-python-2"
    other.mkdir()
    compiled.choose(compiled.Chosen(path=str(path), arguments=[]))
    monkeypatch.setattr(search, "load", lambda candidate: candidate)
    assert str(search.find()) == "llama-cpp-python 0.3.36, compiled here"
    compiled.sweep()
    assert path.parent.exists()
    assert not other.exists()
    assert compiled.discard()
    assert not compiled.discard()
    assert "compiled here" not in str(search.find())


def test_a_compiled_library_that_does_not_load_is_left_for_an_installed_one(engines, caplog):
    compiled.choose(compiled.Chosen(path=str(engines / "gone.so"), arguments=[]))
    assert "compiled here" not in str(search.find().candidate)
    assert "compiled here cannot be loaded" in caplog.text


@pytest.mark.parametrize("text", ["{", "[]", '{"path": 3}'])
def test_a_damaged_choice_is_none(engines, text, caplog):
    engines.mkdir()
    (engines / "chosen.json").write_text(text)
    assert compiled.chosen() is None
    assert "edgespec build" in caplog.text
