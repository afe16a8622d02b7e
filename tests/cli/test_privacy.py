"""With models on disk nothing leaves this machine, and only the folders of the docs are written.

Each command runs under strace in a home of its own. CI is unset, because onnxruntime sends nothing
where it is set.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import psutil
import pytest

from tests.helpers import libllama, traced
from tests.helpers.selection import first
from tests.helpers.traced import Trace

libllama.require()

DOCS = Path(__file__).parents[2] / "docs" / "how-to"
EDGESPEC = (sys.executable, "-m", "edgespec_cli")
TELEMETRY_S = 12.0  # onnxruntime looks up its host after about nine seconds
PATIENCE_S = 120


class Home:
    """A home folder with a model in the folder for models, and a trace of one program in it."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.trace = Trace(folder / "trace")
        self.folder, self._scratch = folder / "home", folder / "scratch"
        models = self.folder / ".cache" / "edgespec" / "models"
        for made in (models, self._scratch):
            made.mkdir(parents=True)
        (models / model.name).symlink_to(model)
        self.env = {
            "HOME": str(self.folder),
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TERM": "xterm",
            "TMPDIR": str(self._scratch),
        }

    def run(self, *program: str, **options) -> str:
        """Run a program under strace and return what it printed."""
        done = subprocess.run(
            self.trace.command(*program), env=self.env, cwd=self._scratch, timeout=PATIENCE_S,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options,
        )  # fmt: skip
        assert done.returncode in (0, 1), done.stdout  # doctor exits with 1 if it finds a problem
        return done.stdout

    @contextlib.contextmanager
    def served(self, *options: str) -> Iterator[str]:
        """Run `edgespec serve` under strace and yield its URL."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        command = self.trace.command(*EDGESPEC, "serve", *options, "--port", port)
        process = subprocess.Popen(
            command, env=self.env, cwd=self._scratch, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout
        try:
            assert port in process.stdout.readline()
            yield f"http://127.0.0.1:{port}"
        finally:
            for child in psutil.Process(process.pid).children():
                child.terminate()
            process.communicate(timeout=PATIENCE_S)

    def check(self) -> None:
        """Assert that nothing reached out of this machine, and that only the folders that the docs
        name were written.
        """
        assert not self.trace.outside()
        known = [self.folder / path for path in documented_folders()]
        parents = {parent for path in known for parent in path.parents}
        others = {
            path
            for path in self.trace.written()
            if path not in parents and not any(path.is_relative_to(each) for each in known)
        }
        assert not others


def documented_folders() -> set[str]:
    """Return the folders that the docs name, relative to the user's home."""
    text = "".join((DOCS / name).read_text("utf-8") for name in ("memory.md", "models.md"))
    return {found.rstrip("/") for found in re.findall(r"`~/(\.[^`]*)`", text)}


@pytest.fixture
def home(tmp_path: Path, smollm2: Path) -> Home:
    traced.require()
    return Home(tmp_path, smollm2)


def ask(url: str, path: str, **body: object) -> str:
    """Return the answer of a server."""
    data = json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url + path, data, headers)) as answer:
        return answer.read().decode()


def test_the_docs_name_the_folders():
    assert {
        ".cache/edgespec/profiles", ".cache/edgespec/models", ".local/state/edgespec/history",
        ".local/share/edgespec/corpus",
    } <= documented_folders()  # fmt: skip


def test_a_chat_stays_on_this_machine(home: Home) -> None:
    said = home.run(*EDGESPEC, "chat", "-m", "smollm2-135m", "-n", "8", input="Hello\n/stats\n")
    assert "answers 1" in said
    home.check()


def test_a_chat_on_a_terminal_stays_on_this_machine(home: Home) -> None:
    from tests.cli.test_terminal import Terminal

    terminal = Terminal(
        home.trace.command(*EDGESPEC, "chat", "-m", "smollm2-135m", "-n", "8", "-c", "512"),
        home.env,
    )
    try:
        terminal.say("Hello")
        terminal.leave()
    finally:
        terminal.close()
    home.check()
    assert home.folder / ".local/state/edgespec/history" in home.trace.written()


def test_the_doctor_stays_on_this_machine(home: Home) -> None:
    assert "onnxruntime" in home.run(*EDGESPEC, "doctor")
    home.check()
    home.run(*EDGESPEC, "doctor", "-m", "smollm2-135m", "-c", "512")
    home.check()


def test_a_server_stays_on_this_machine(home: Home) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    with home.served("-m", "smollm2-135m", "-c", "512") as url:
        for path in ("/v1/chat/completions", "/v1/messages"):
            assert ask(url, path, model="smollm2-135m", max_tokens=4, messages=messages)
    home.check()


@pytest.mark.parametrize("hold_s", first(1, [0.0, TELEMETRY_S], "time for a look-up"))
def test_an_onnx_model_stays_on_this_machine(home: Home, tmp_path: Path, hold_s: float) -> None:
    onnx_models = pytest.importorskip("tests.helpers.onnx_models")
    pytest.importorskip("onnxruntime")
    graph = onnx_models.save(tmp_path / "letters")
    with home.served("-m", str(graph.parent)) as url:
        assert "choices" in ask(url, "/v1/completions", prompt="ab", max_tokens=4)
        time.sleep(hold_s)
    home.check()


@pytest.mark.long("onnxruntime looks up its host after nine seconds")
def test_onnxruntime_without_the_switch_is_seen_to_look_up_its_host(home: Home) -> None:
    """The control: what the other tests would see. Nothing is sent, since the calls fail."""
    pytest.importorskip("onnxruntime")
    if tuple(map(int, version("onnxruntime").split(".")[:2])) < (1, 29):
        pytest.skip("this onnxruntime has no telemetry")
    home.trace = Trace(home.folder.parent / "trace", inject="sendto,sendmmsg,sendmsg")
    home.run(sys.executable, "-c", f"import onnxruntime, time; time.sleep({TELEMETRY_S})")
    assert home.trace.outside()
    assert "events" in home.trace.text  # part of the host's name
    assert any("Microsoft" in str(path) for path in home.trace.written())
    with pytest.raises(AssertionError):
        home.check()
