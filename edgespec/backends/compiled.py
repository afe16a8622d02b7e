"""A libllama that was compiled for this processor, in a folder of edgespec's own.

llama-cpp-python's sources are compiled by pip. Only the library in the result is used, never the
Python package.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from .. import kept_files
from ..device import cache_folder, instructions
from ..errors import BuildError

VARIABLE = "EDGESPEC_LIBLLAMA"
VERSION = "0.3.36"
_NAME = "llama-cpp-python"
ENGINE = f"{_NAME} {VERSION}, compiled here"
_LIBRARIES = ("libllama.so", "libllama.dylib", "llama.dll")
_X86 = {  # CMake's option: the instruction sets that it uses, by their Linux names
    "GGML_AVX": "avx", "GGML_AVX2": "avx2", "GGML_FMA": "fma", "GGML_F16C": "f16c",
    "GGML_BMI2": "bmi2", "GGML_AVX_VNNI": "avx_vnni",
    "GGML_AVX512": "avx512f avx512cd avx512vl avx512dq avx512bw",
    "GGML_AVX512_VBMI": "avx512vbmi", "GGML_AVX512_VNNI": "avx512_vnni",
    "GGML_AVX512_BF16": "avx512_bf16",
}  # fmt: skip
_ARM = {"asimddp": "dotprod", "asimdhp": "fp16", "i8mm": "i8mm", "sve": "sve"}  # GCC's names
_STEP = re.compile(r"\[(\d+)/(\d+)\]")  # as ninja prints it


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """The compiled library that is used instead of installed ones. times: for each model that it
    was compared with, the milliseconds of some widths with the library before and with this one.
    """

    path: str
    arguments: list[str]
    times: dict[str, dict[str, list[float]]] = {}


def folder() -> Path:
    """Return the folder of compiled libraries: $EDGESPEC_ENGINES, or one in the user's cache."""
    return cache_folder("engines")


def chosen() -> Chosen | None:
    """Return the compiled library that was chosen, None if there is none."""
    return kept_files.load(
        folder() / "chosen.json",
        lambda path: kept_files.read_json(path, Chosen),
        "an installed library is used; compile again with `edgespec build`",
    )


def choose(library: Chosen) -> None:
    """Use a compiled library from the next process on."""
    text = json.dumps(msgspec.to_builtins(library), indent=1) + "\n"
    kept_files.replace(folder() / "chosen.json", [text.encode()])


def sweep() -> None:
    """Delete the compiled libraries that are not the chosen one."""
    library = chosen()
    for path in folder().glob(f"{_NAME}-*"):
        if not (library and Path(library.path).is_relative_to(path)):
            shutil.rmtree(path, ignore_errors=True)


def discard() -> bool:
    """Delete all compiled libraries, and return whether there were any."""
    there = folder().is_dir()
    shutil.rmtree(folder(), ignore_errors=True)
    return there


def arguments(has: frozenset[str] | None = None, machine: str = "") -> list[str]:
    """Return CMake's arguments for a processor; by default for this one.

    has: its instruction sets, by their Linux names. machine: as in `platform.machine`. AMX is left
    out, because llama.cpp's kernels for it end the process with an illegal instruction in some
    builds (llama.cpp pull request 26954). Raises BuildError if the system does not list the
    instruction sets.
    """
    has, machine = instructions() if has is None else has, machine or platform.machine()
    if sys.platform == "darwin":
        return []
    if not has:
        raise BuildError(
            "this system does not list the instruction sets of its processor; set CMAKE_ARGS "
            "yourself, as docs/how-to/building.md says"
        )
    if machine.lower() in ("aarch64", "arm64"):
        words = "".join(f"+{name}" for flag, name in _ARM.items() if flag in has)
        return ["-DGGML_NATIVE=OFF", f"-DGGML_CPU_ARM_ARCH=armv8.2-a{words}" if words else ""]
    able = [option for option, sets in _X86.items() if has.issuperset(sets.split())]
    return ["-DGGML_NATIVE=OFF", *(f"-D{option}=ON" for option in able)]


def compile_library(options: list[str], progress: Callable[[int], None]) -> Path:
    """Compile llama.cpp with CMake's arguments `options`, and return its libllama.

    progress: is called with the percentage of files that are compiled, in steps of 5. It takes
    minutes. Raises BuildError if a tool is missing or the compiler fails.
    """
    _require_tools()
    folder().mkdir(parents=True, exist_ok=True)
    into = Path(tempfile.mkdtemp(prefix=f"{_NAME}-", dir=folder()))
    log = folder() / "build.log"
    command = [sys.executable, "-m", "pip", "install", "-v", "--no-deps", "--no-cache-dir"]
    command += ["--no-binary", _NAME, "--target", str(into), f"{_NAME}=={VERSION}"]
    environment = os.environ | {"CMAKE_ARGS": " ".join(filter(None, options))}
    status = _run(command, environment, log, progress)
    found = [path for name in _LIBRARIES for path in into.rglob(name) if path.parent.name == "lib"]
    if status or not found:
        sweep()
        raise BuildError(f"compiling llama.cpp failed: {_reason(log)}; {log} has all that was said")
    return found[0]


def _run(
    command: list[str],
    environment: Mapping[str, str],
    log: Path,
    progress: Callable[[int], None],
) -> int:
    """Run a command, write what it prints to `log`, and return its exit status."""
    process = subprocess.Popen(
        command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, encoding="utf-8", errors="replace",
    )  # fmt: skip
    try:
        assert process.stdout
        last = 0
        with log.open("w") as file:
            for line in process.stdout:
                file.write(line)
                step = _STEP.search(line)
                percent = 20 * int(step[1]) // int(step[2]) * 5 if step else last
                if percent > last:
                    last = percent
                    progress(percent)
        return process.wait()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _require_tools() -> None:
    """Raise BuildError if there is no C++ compiler, or no pip in this Python environment."""
    compilers = [os.environ.get("CXX", ""), "c++", "g++", "clang++", "cl"]
    if not any(map(shutil.which, filter(None, compilers))):
        raise BuildError(
            "there is no C++ compiler; on Debian, Ubuntu and Raspberry Pi OS, install one with "
            "`sudo apt install build-essential`"
        )
    pip = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True)
    if pip.returncode:
        raise BuildError(
            f"{sys.executable} has no pip, which compiles; add it with `{sys.executable} -m "
            "ensurepip`"
        )


def _reason(log: Path) -> str:
    """Return the line of a log that says best why a build failed."""
    lines: list[Any] = []
    with contextlib.suppress(OSError):
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    telling = [line for line in lines if re.search(r"\berror\b", line, re.IGNORECASE)]
    return kept_files.one_line((telling or lines or ["no reason given"])[0])
