"""Real weights for tests: SmolLM2-135M is fetched if need be, larger models are used where
$EDGESPEC_TEST_MODELS has them.
"""

import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
from hypothesis import settings

from edgespec import device, hub
from edgespec.backends import telemetry
from edgespec.loading import recommendations
from edgespec.sampling.defaults import GREEDY
from tests.helpers.progress import Progress
from tests.helpers.selection import Selection, share
from tests.helpers.weights import FOLDER, coarse_copy


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="run the long tests as well")
    parser.addoption("--rest", action="store_true", help="run what the quick command leaves out")


def pytest_configure(config):
    telemetry.switch_off()  # some tests import onnxruntime themselves
    keep_bytecode()
    selection = Selection(config)
    # No deadline: times are for benchmarks.
    settings.register_profile("tests", deadline=None, max_examples=share(100, 4))
    settings.load_profile("tests")
    config.pluginmanager.register(selection)
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        use_own_core(int(worker.removeprefix("gw")))
    elif not config.getoption("verbose") > 0 and not config.option.collectonly:
        config.pluginmanager.register(Progress(config, selection))


def keep_bytecode():
    """Compile modules once, even where the environment says otherwise, as in many containers: tests
    start some 200 processes, and each would compile the package anew.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


def use_own_core(number):
    """Pin one of several test processes to a core: engines that share cores wait for each other at
    every step.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []
    if len(cores) > 1:
        os.sched_setaffinity(0, {cores[number % len(cores)]})


@pytest.fixture(scope="session", autouse=True)
def profiles(tmp_path_factory):
    """Measured costs of test models, copies of drafts, and what is kept to draft from do not mix
    with the user's own.
    """
    os.environ["EDGESPEC_PROFILES"] = str(tmp_path_factory.mktemp("profiles"))
    os.environ["EDGESPEC_ENGINES"] = str(tmp_path_factory.mktemp("engines"))
    os.environ["EDGESPEC_DRAFTS"] = str(tmp_path_factory.mktemp("drafts"))
    os.environ["EDGESPEC_PREFIXES"] = str(tmp_path_factory.mktemp("prefixes"))
    os.environ["EDGESPEC_CORPUS"] = str(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session", autouse=True)
def ctrl_c():
    """Ctrl-C raises KeyboardInterrupt, in the jobs of a script's background too, which begin with
    it ignored.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def quiet_machine():
    """No test depends on what else runs on this machine: it looks idle beside this process."""

    def cpu_seconds() -> tuple[float, float]:
        own = time.process_time()
        return own, max(0.0, device.usable_cpus() * time.perf_counter() - own)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(device, "cpu_seconds", cpu_seconds)
        yield


@pytest.fixture(scope="session", autouse=True)
def greedy_models():
    """Load models as greedy, whatever is recommended for them: tests compare texts. The tests in
    tests/unit/loading/test_recommendations.py undo it.
    """
    with pytest.MonkeyPatch.context() as patched:
        for function in ("defaults_of", "remote_defaults"):
            patched.setattr(recommendations, function, lambda *given: GREEDY)
        yield


@pytest.fixture(scope="session", autouse=True)
def short_comparisons():
    """To load a model as `batch_invariant` takes seconds: it compares rows after many tokens. The
    quick command compares them after few, for its texts are short.
    """
    with pytest.MonkeyPatch.context() as patched:
        if used := sys.modules.get("edgespec.backends.llama_cpp.invariance"):
            patched.setattr(used, "_LONG", share(used._LONG, 65))
        yield


@pytest.fixture
def busy_machine(monkeypatch):
    """Other programs use one and a half cores all the time."""

    def cpu_seconds() -> tuple[float, float]:
        return time.process_time() + 1.5 * time.perf_counter(), time.perf_counter()

    monkeypatch.setattr(device, "cpu_seconds", cpu_seconds)


@pytest.fixture(scope="session")
def tls(tmp_path_factory) -> Path:
    """Return a folder with a certificate and keys, which nobody else may read: git keeps no modes.

    cert.pem and key.pem belong together, and so do other_cert.pem and other_key.pem; locked_key.pem
    is key.pem with a passphrase.
    """
    folder = tmp_path_factory.mktemp("tls")
    for path in (Path(__file__).parent / "server/tls").iterdir():
        shutil.copyfile(path, folder / path.name)
        (folder / path.name).chmod(0o600)
    return folder


def pytest_unconfigure():
    """Close what llama-cpp-python leaves open, so that no warning follows the last test."""
    if opened := sys.modules.get("llama_cpp._utils"):
        opened.outnull_file.close()
        opened.errnull_file.close()


def pytest_collection_modifyitems(items):
    for item in items:
        if {"smollm2", "smollm2_engine", "small_draft", "qwen_pair", "small_coder", "gemma"} & set(
            getattr(item, "fixturenames", ())
        ):
            item.add_marker(pytest.mark.model)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    return hub.pull("smollm2-135m")  # everywhere the same file name, prepared machine or not


@pytest.fixture(scope="session")
def small_draft(smollm2, tmp_path_factory) -> Path:
    """SmolLM2 with coarser weights: agrees with it on three greedy tokens of four."""
    return coarse_copy(smollm2, tmp_path_factory.mktemp("draft") / "smollm2-135m-coarse.gguf")


def _optional(name: str) -> Path:
    path = FOLDER / f"{name}.gguf"
    if not path.exists():
        pytest.skip(f"{name}.gguf is not in $EDGESPEC_TEST_MODELS")
    return path


@pytest.fixture(scope="session")
def qwen_pair() -> tuple[Path, Path]:
    return _optional("qwen2.5-coder-1.5b"), _optional("qwen2.5-coder-0.5b")


@pytest.fixture(scope="session")
def small_coder() -> Path:
    return _optional("qwen2.5-coder-0.5b")


@pytest.fixture(scope="session")
def gemma() -> Path:
    return _optional("gemma-3-270m")
