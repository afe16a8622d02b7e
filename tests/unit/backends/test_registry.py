"""Which backend a file belongs to, and what is known about files without any engine."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgespec import EngineMissing, ModelNotFound, backends
from edgespec.backends import files
from edgespec.backends.base import Backend


def test_a_suffix_names_the_backend():
    assert backends.names() == ["llama_cpp", "onnx"]
    assert backends.name_of(Path("folder/model.onnx")) == "onnx"
    assert backends.name_of(Path("model.gguf")) == backends.name_of(Path("blob")) == "llama_cpp"
    with pytest.raises(KeyError):
        backends.get("mlx")


@pytest.mark.parametrize("name", backends.names())
def test_an_engine_has_every_function_of_a_backend(name):
    engine = pytest.importorskip(f"edgespec.backends.{name}", exc_type=EngineMissing)
    for function, declared in inspect.getmembers(Backend, inspect.isfunction):
        if not function.startswith("_"):
            taken = inspect.signature(getattr(engine, function)).parameters
            assert ["self", *taken] == list(inspect.signature(declared).parameters)


def test_no_engine_is_imported_to_tell():
    code = (
        "import sys; from pathlib import Path; from edgespec import backends; "
        "from edgespec.backends import files; backends.name_of(Path('a.onnx')); "
        "files.label(Path('a/b.onnx')); "
        "assert not {'llama_cpp', 'onnxruntime', 'tokenizers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("name", "packages", "says"),
    [("llama_cpp", ("llama_cpp", "xllamacpp"), "gguf"), ("onnx", ("onnxruntime",), "onnx")],
)
def test_an_engine_that_is_not_installed(monkeypatch, name, packages, says):
    for module in [m for m in sys.modules if m.startswith(f"edgespec.backends.{name}")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delattr(backends, name, raising=False)
    monkeypatch.delenv("EDGESPEC_LIBLLAMA", raising=False)
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(EngineMissing, match=rf"'\.\[{says}\]'"):
        backends.get(name)


def test_neighbours_lie_around_a_file_or_around_the_folder_of_a_graph(tmp_path):
    for name in ("a.gguf", "one/model.onnx", "two/model.onnx", "two/other.onnx"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    if os.name == "posix":
        (tmp_path / "loop.gguf").symlink_to("loop.gguf")
    for path in (tmp_path / "a.gguf", tmp_path / "one/model.onnx"):
        assert files.folder_of_neighbours(path) == tmp_path
        assert files.neighbours(path) == [tmp_path / "a.gguf", tmp_path / "one/model.onnx"]


def test_all_parts_of_a_model_count_for_its_identity(tmp_path):
    names = ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf")
    for name in names:
        (tmp_path / name).write_bytes(b"GGUF")
    label, size, start = files.identity(tmp_path / names[0])
    assert (label, size, len(start)) == (names[0], 8, 16)
    with pytest.raises(ModelNotFound, match="cannot read"):
        files.identity(tmp_path / "absent.gguf")


def test_the_folder_of_a_head_stands_for_its_graph_that_guesses(tmp_path):
    for name in ("fuse.onnx", "head.onnx", files.HEAD):
        (tmp_path / "head").mkdir(exist_ok=True)
        (tmp_path / "head" / name).touch()
    (tmp_path / "a.gguf").touch()
    assert files.only_graph(tmp_path / "head") == tmp_path / "head" / "head.onnx"
    assert files.neighbours(tmp_path / "a.gguf") == [tmp_path / "a.gguf"]
    (tmp_path / "head" / "head.onnx").rename(tmp_path / "head" / "head.1.onnx")
    (tmp_path / "head" / "head.0.onnx").touch()
    assert files.only_graph(tmp_path / "head") == tmp_path / "head" / "head.0.onnx"
