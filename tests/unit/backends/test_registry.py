"""Which backend a file belongs to, what is known about files without any engine, and the how-to
page's example of an engine.
"""

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import edgespec
from edgespec import EngineMissing, ModelNotFound, backends
from edgespec.backends import files
from edgespec.backends.base import Backend

ROOT = Path(__file__).parents[3]


@pytest.fixture
def counting(tmp_path, monkeypatch):
    """Add the page's engine to edgespec.backends in this process; return a model's file."""
    page = (ROOT / "docs" / "how-to" / "write-an-engine.md").read_text("utf-8")
    code = re.search(r'^```python title="counting/__init__.py"\n(.*?)^```$', page, re.M | re.S)[1]
    declared = re.search(r'"(\.\w+)": Format\("(\w+)", "(\w+)"\)', page)
    (tmp_path / declared[2]).mkdir()
    (tmp_path / declared[2] / "__init__.py").write_text(code, "utf-8")
    monkeypatch.setattr(backends, "__path__", [*backends.__path__, str(tmp_path)])
    monkeypatch.setitem(files.FORMATS, declared[1], files.Format(declared[2], declared[3]))
    path = tmp_path / f"a{declared[1]}"
    path.write_text("x")
    yield path
    sys.modules.pop("edgespec.backends.counting", None)
    vars(backends).pop("counting", None)


def check_functions(engine):
    """Check that a package has every function of a Backend."""
    for function, declared in inspect.getmembers(Backend, inspect.isfunction):
        if not function.startswith("_"):
            taken = inspect.signature(getattr(engine, function)).parameters
            assert ["self", *taken] == list(inspect.signature(declared).parameters)


def test_the_example_is_an_engine(counting):
    check_functions(backends.of(counting))
    with edgespec.load(counting, speculative_config={"method": "suffix"}) as engine:
        assert engine.generate("abc", max_tokens=4).text == "defg"
    assert edgespec.inspect(counting).vocab_size == 256


def test_the_example_keeps_the_contract(counting):
    (counting.parent / "own.py").write_text(
        "from edgespec import EngineConfig, backends\n"
        "from pathlib import Path\n"
        f"backends.__path__.append({str(counting.parent)!r})\n"
        "def make():\n"
        "    from edgespec.backends.counting import open_model\n"
        f"    return open_model(Path({str(counting)!r}), EngineConfig())\n"
    )
    suite = [sys.executable, "-m", "pytest", "-n0", "tests/contract/test_models.py"]
    folders = os.pathsep.join([str(counting.parent), *filter(None, sys.path)])
    environment = os.environ | {"EDGESPEC_CONTRACT_MODEL": "own:make", "PYTHONPATH": folders}
    done = subprocess.run(suite, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_a_suffix_names_the_backend():
    assert set(backends.names()) >= {"llama_cpp", "onnx"}
    assert backends.name_of(Path("folder/model.onnx")) == "onnx"
    assert backends.name_of(Path("model.gguf")) == backends.name_of(Path("blob")) == "llama_cpp"
    with pytest.raises(KeyError):
        backends.get("mlx")


@pytest.mark.parametrize("name", backends.names())
def test_an_engine_has_every_function_of_a_backend(name):
    check_functions(pytest.importorskip(f"edgespec.backends.{name}", exc_type=EngineMissing))


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
