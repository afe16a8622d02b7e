"""onnxruntime's telemetry is off before it is imported, in every process of ours."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgespec.backends import telemetry
from edgespec.bench import peers
from edgespec.convert import tools

ROOT = Path(__file__).parents[3]
SWITCHES = ("ORT_DISABLE_TELEMETRY", "ORT_TELEMETRY_DISABLED")
IMPORTERS = {  # the second and third are programs of their own, started with the switches
    "edgespec/backends/onnx/session.py", "edgespec/convert/worker.py",
    "edgespec/bench/peer_worker.py",
}  # fmt: skip


def outcome(program: str, home: Path, **env: str) -> str:
    """Run a program in a home of its own with CI unset, and return what it printed."""
    kept = {k: v for k, v in os.environ.items() if k not in ("CI", "XDG_CACHE_HOME", *SWITCHES)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        env={**kept, "HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path), **env},
    )  # fmt: skip
    return done.stdout


def imported(path: Path) -> set[str]:
    """Return the first words of the modules that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module)
    return {name.partition(".")[0] for name in found}


def test_no_other_file_imports_it():
    assert {
        path.relative_to(ROOT).as_posix()
        for folder in ("edgespec", "cli", "benchmarks", "models")
        for path in (ROOT / folder).rglob("*.py")
        if imported(path) & {"onnxruntime", "onnxruntime_genai"}
    } == IMPORTERS


@pytest.mark.parametrize("value", ["", "0", "no", "2"])
def test_importing_the_engine_writes_nothing(tmp_path, value):
    pytest.importorskip("onnxruntime")
    program = "import edgespec.backends.onnx, os; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    assert outcome(program, tmp_path, ORT_DISABLE_TELEMETRY=value) == "1\n"
    assert not list(tmp_path.iterdir())


DOCTOR = """
import edgespec
edgespec.load  # what the program needs of edgespec
{first}
from edgespec.measure.machine_checks import check_telemetry
print([finding.subject for finding in check_telemetry()], end="")
"""


@pytest.mark.parametrize(
    ("first", "env", "found"),
    [
        ("import onnxruntime", {}, "['telemetry']"),
        ("import onnxruntime", {"ORT_DISABLE_TELEMETRY": "0"}, "['telemetry']"),
        ("import onnxruntime", {"ORT_DISABLE_TELEMETRY": "1"}, "[]"),
        ("import edgespec.backends.onnx, onnxruntime", {}, "[]"),
        ("", {}, "[]"),
    ],
)
def test_the_doctor_says_where_it_was_too_late(tmp_path, first, env, found):
    pytest.importorskip("onnxruntime")
    assert outcome(DOCTOR.format(first=first), tmp_path, CI="1", **env) == found


def test_the_doctor_tells_it_with_the_machine(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    import edgespec

    monkeypatch.setattr(telemetry, "switch_off", lambda: False)
    told = next(each for each in edgespec.diagnose() if each.subject == "telemetry")
    assert told.level == "problem"
    assert "imported onnxruntime before" in told.text
    assert "ORT_DISABLE_TELEMETRY=1" in told.remedy


@pytest.fixture
def forgetful(monkeypatch):
    """As in a process that has not switched anything off yet."""
    for name in SWITCHES:
        monkeypatch.delenv(name, raising=False)
    telemetry.switch_off.cache_clear()
    yield
    telemetry.switch_off.cache_clear()


def test_the_converters_worker_gets_the_switches(tmp_path, forgetful, monkeypatch):
    program = tmp_path / "worker.py"
    program.write_text(
        "import json, os\n"
        f"print(json.dumps({{'step': str([os.environ.get(n) for n in {SWITCHES}])}}))\n"
    )
    steps: list[str] = []
    monkeypatch.setattr(tools, "PROGRAM", program)
    tools.run_worker(Path(sys.executable), {}, tmp_path, steps.append, {}, "any")
    assert steps == ["['1', '1']"]


def test_the_worker_of_another_runtime_gets_the_switches(tmp_path, forgetful, monkeypatch):
    program = tmp_path / "worker.py"
    program.write_text(
        "import json, os, sys\n"
        "for line in sys.stdin:\n"
        f"    print(json.dumps({{'ready': [os.environ.get(n) for n in {SWITCHES}]}}), flush=True)\n"
    )
    monkeypatch.setattr(peers, "WORKER", program)
    mode = peers.Mode("onnxruntime-genai", "onnxruntime-genai")
    peer = peers.Peer(mode, peers.Weights(tmp_path, None, 64, 1))
    peer.close()
    assert json.dumps(peer.version) == '["1", "1"]'
