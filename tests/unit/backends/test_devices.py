"""Which GPUs a model's layers go on, and what is said where none can be used."""

from types import SimpleNamespace

import pytest

from edgespec import ConfigError, EngineConfig
from tests.helpers import libllama

libllama.require()
from edgespec.backends.llama_cpp import devices, library  # noqa: E402

pytestmark = pytest.mark.llama_cpp


def gpu(name, *, integrated=False):
    return devices.Gpu(name, f"{name}'s own name", 1 << 30, 2 << 30, integrated, None)


RTX, UHD = gpu("Vulkan0"), gpu("Vulkan1", integrated=True)
ORIN = gpu("CUDA0", integrated=True)


@pytest.fixture
def machine(monkeypatch):
    """Return a function that makes this a machine with these GPUs."""

    def make(here=(), seen=(), failed=None, files=("libggml-cpu.so", "libggml-vulkan.so")):
        monkeypatch.setattr(devices, "all_gpus", lambda: list(here))
        monkeypatch.setattr(devices, "seen_gpus", lambda: list(seen))
        monkeypatch.setattr(devices, "reasons", lambda: failed or {})
        monkeypatch.setattr(devices, "folder_of_processors", lambda: list(files))

    return make


@pytest.mark.parametrize(("here", "settings", "used"), [
    ([], {}, []),
    ([RTX, UHD], {}, [RTX]),
    ([UHD], {}, []),
    ([UHD], {"n_gpu_layers": 3}, [UHD]),
    ([UHD], {"device": "vulkan1"}, [UHD]),
    ([ORIN], {}, [ORIN]),  # whoever builds for CUDA wants it
    ([RTX, UHD], {"device": "Vulkan1, Vulkan0"}, [UHD, RTX]),
    ([RTX], {"device": "none"}, []),
    ([RTX], {"n_gpu_layers": 0}, []),
])  # fmt: skip
def test_the_gpus_of_a_model(machine, here, settings, used):
    machine(here)
    config = EngineConfig(**settings)
    assert devices.chosen(config) == used
    assert len(devices.gpus(config)) == len(used)
    assert devices.ignores_gpu_layers(config) == (config.n_gpu_layers > 0 and not used)


@pytest.mark.parametrize(("here", "settings", "name"), [
    ([UHD], {}, "Vulkan1"),
    ([UHD], {"device": "Vulkan1"}, ""),
    ([UHD], {"device": "none"}, ""),
    ([UHD], {"n_gpu_layers": 0}, ""),
    ([UHD, RTX], {}, ""),
    ([], {}, ""),
])  # fmt: skip
def test_tune_may_try_an_integrated_gpu(machine, here, settings, name):
    machine(here)
    assert devices.integrated(EngineConfig(**settings)) == name


@pytest.mark.parametrize(("here", "words"), [
    ([RTX], r"no GPU is called 'CUDA0'; known: Vulkan0 \(Vulkan0's own name\)"),
    ([], "llama.cpp sees none here, `edgespec doctor` says why"),
])  # fmt: skip
def test_a_gpu_that_is_not_there(machine, here, words):
    machine(here)
    with pytest.raises(ConfigError, match=words):
        devices.chosen(EngineConfig(device="CUDA0"))


LOADER = "libvulkan.so.1: cannot open"


@pytest.mark.parametrize(("facts", "text", "remedy"), [
    ({"here": [RTX]}, None, None),
    ({"seen": ()}, None, None),
    ({"files": ()}, None, None),
    ({"seen": ["AMD"], "files": ()}, "has a GPU (AMD), and", "pip install '.[gpu]'"),
    ({"seen": ["NVIDIA"]}, "Vulkan finds no driver", "libegl1"),
    ({"seen": ["Intel"], "failed": {"vulkan": LOADER}}, "so.1: cannot open", "libvulkan1"),
    ({"failed": {"vulkan": LOADER}}, None, None),  # a board, or no GPU at all
    ({"here": [UHD]}, "own name (Vulkan1) shares the CPU's memory",
     "`edgespec tune -m m.gguf` uses it where it is faster; -dev Vulkan1 always"),
])  # fmt: skip
def test_what_is_said_of_a_gpu_that_is_not_used(machine, facts, text, remedy):
    machine(**facts)
    told = devices.unused_gpu("`edgespec tune -m m.gguf`")
    assert (told is None) == (text is None)
    if told:
        assert text in told[0]
        assert remedy in told[1]


def test_files_of_gpus_are_told_from_others(tmp_path):
    names = {
        "libggml-vulkan.so": "vulkan", "ggml-cuda.dll": "cuda", "libggml-metal.dylib": "metal",
        "libggml-cpu.so": "", "libggml-cpu-haswell.so": "", "libggml-base.so.0": "",
        "libggml-blas.so": "", "libggml.so": "", "llama-server": "",
    }  # fmt: skip
    assert {name: devices._of_file(tmp_path / name) for name in names} == names


def test_a_processor_that_cannot_be_loaded_says_why(tmp_path, monkeypatch):
    (tmp_path / "libggml-vulkan.so").write_text("no library")
    candidate = SimpleNamespace(processors=str(tmp_path))
    found = library._found()
    monkeypatch.setattr(
        library, "_found", lambda: SimpleNamespace(candidate=candidate, library=found.library)
    )
    assert library.load_processor("vulkan")
    assert "there is no file" in library.load_processor("cuda")


def test_no_gpu_is_named_where_a_model_has_none():
    assert list(devices.native_list([])) == [None]
