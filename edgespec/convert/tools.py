"""The virtual environment for the converter's tools, torch and others.

It is made at the first conversion. The runtime never imports the tools.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from .. import hub
from ..backends import telemetry
from ..errors import ConfigError, ConversionError

TOOLS = (
    "onnxruntime-genai==0.18.0", "onnxruntime", "onnx", "onnx-ir", "torch",
    "transformers==5.23.0", "accelerate", "gguf", "sentencepiece", "safetensors",
)  # fmt: skip
PROGRAM = Path(__file__).with_name("program.py")


def interpreter(progress: Callable[[str], None], *, offline: bool = False) -> Path:
    """Return the Python of the tools' environment; make the environment if it is missing.

    Raises ConversionError if the tools cannot be installed, or if they are missing and `offline` is
    True.
    """
    folder = hub.models_dir() / ".convert"  # made anew if it has other tools
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    ready, wanted = folder / "tools.txt", "\n".join(TOOLS)
    if ready.exists() and ready.read_text() == wanted:
        return python
    if offline:
        raise ConversionError(
            "the converter's tools are not installed, and offline=True (--offline) forbids to "
            "download them; leave it out once, or give python=… (--python) that has "
            + " ".join(TOOLS)
        )
    progress(f"installing the converter's tools in {folder}: about 2 GB, once")
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", *TOOLS],
    ):
        done = subprocess.run(
            command, capture_output=True, stdin=subprocess.DEVNULL, encoding="utf-8",
            errors="replace",
        )  # fmt: skip
        if done.returncode:
            raise ConversionError(
                f"the converter's tools could not be installed: {_last_line(done.stderr)}; check "
                "the network and pip's settings, or give python=… (--python) that has "
                + " ".join(TOOLS)
            )
    ready.write_text(wanted)
    return python


def python_with(
    packages: Sequence[str], python: str | os.PathLike[str] | None,
    progress: Callable[[str], None], *, offline: bool,
) -> Path:  # fmt: skip
    """Return `python`, or else the running interpreter if it has these packages, or else that of
    the tools' environment.
    """
    if python:
        return Path(python)
    if all(importlib.util.find_spec(name) for name in packages):
        return Path(sys.executable)
    return interpreter(progress, offline=offline)


def run_worker(
    python: Path,
    job: dict[str, Any],
    folder: Path,
    progress: Callable[[str], None],
    times: dict[str, float],
    program: str,
    *,
    advice: str = "a model that the tools know is needed",
    while_running: Callable[[int], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
) -> tuple[str, ...]:
    """Run a job with a module of edgespec (see program.py) and return its warnings.

    times: gets the seconds of each step. advice: the end of the message if a step fails.
    while_running: given the process id of the program, returns what to enter while it runs. Raises
    ConversionError if a step fails, and ConfigError if `python` cannot be started.
    """
    telemetry.switch_off()  # for the worker, which imports onnxruntime
    log = folder / "convert.log"
    with log.open("w") as errors:
        try:
            process = subprocess.Popen(
                [str(python), "-I", str(PROGRAM), program, json.dumps(job)],
                stdout=subprocess.PIPE,
                stderr=errors,
                stdin=subprocess.DEVNULL,
                encoding="utf-8",
                errors="replace",
            )
        except OSError as error:
            raise ConfigError(f"{python} cannot be started: {error.strerror}") from error
        try:
            assert process.stdout
            with while_running(process.pid):
                step, warnings = _follow(process.stdout, progress, times)
                status = process.wait()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if status:
        reason = _last_line(log.read_text("utf-8", errors="replace"))
        raise ConversionError(f"{step} failed: {reason}; {advice}")
    log.unlink()
    return tuple(warnings)


def _follow(
    lines: IO[str], progress: Callable[[str], None], times: dict[str, float]
) -> tuple[str, list[str]]:
    """Read the worker's messages until it ends; return its last step and its warnings."""
    step, start, warnings = "starting", time.perf_counter(), []
    for line in lines:
        if not line.startswith("{"):  # printed by a native library
            continue
        told = json.loads(line)
        if warning := told.get("warning"):
            warnings.append(warning)
            continue
        if within := told.get("progress"):
            progress(within)
            continue
        now = time.perf_counter()
        times[step], step, start = now - start, told["step"], now
        progress(step)
    times[step] = time.perf_counter() - start
    return step, warnings


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:500] if lines else "no reason given"
