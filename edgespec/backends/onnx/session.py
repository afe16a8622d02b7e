"""onnxruntime and its builds: packages, providers, sessions, and readable error messages."""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ...advice import install
from ...config import NOT_SPEED, EngineConfig
from ...device import processor, thread_counts
from ...errors import (
    ConfigError,
    EngineMissing,
    ModelError,
    ModelNotFound,
    OutOfMemory,
    TruncatedModel,
    UnknownArchitecture,
)
from ...kept_files import one_line
from .. import files, telemetry

telemetry.switch_off()  # before the import
try:
    import onnxruntime
except ImportError as error:
    raise EngineMissing(
        f"ONNX models need onnxruntime, which cannot be imported here ({error}); install it "
        f"with {install('onnx')} (for CUDA 13 '.[onnx-cuda]', for CUDA 12 '.[onnx-cuda12]')"
    ) from error

ort = onnxruntime
_SETTINGS = {
    # The library's default. Threads that sleep instead of spinning are up to a fifth faster while
    # other programs run, and up to a seventh slower alone.
    "session.intra_op.allow_spinning": "1",
    # If target and draft run on two engines, threads that still spin after an evaluation take the
    # CPUs from the other engine: with two cores, llama.cpp then takes 1.7 times as long.
    "session.force_spinning_stop": "1",
}
logger = logging.getLogger("edgespec.onnx")


@functools.cache
def check_packages() -> None:
    """Raise ConfigError if both packages of onnxruntime are installed: they contain the same files,
    so the one installed last overwrites a part of the other.
    """
    there = []
    for name in ("onnxruntime", "onnxruntime-gpu"):
        try:
            there.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    if len(there) > 1:
        raise ConfigError(
            f"{' and '.join(there)} are both installed and overwrite each other; uninstall both, "
            "then install one"
        )


def versions() -> dict[str, str]:
    """Return the versions of the packages that this engine is made of."""
    return {"onnxruntime": ort.__version__}


def supports_gpu_offload() -> bool:
    """Return True if this build has a provider for a GPU."""
    return "CUDAExecutionProvider" in ort.get_available_providers()


def gpus(config: EngineConfig) -> list[str]:
    """Return ["CUDA"] if a graph with these settings runs on a GPU, else an empty list."""
    wanted = config.n_gpu_layers != 0 and config.provider.lower() != "cpu"
    return ["CUDA"] if wanted and supports_gpu_offload() else []


def ignores_gpu_layers(config: EngineConfig) -> bool:
    """Return False: a provider runs the whole graph, so layers are not counted."""
    return False


def all_providers() -> list[str]:
    """List the providers that this build can run on, best first."""
    return [name.removesuffix("ExecutionProvider") for name in ort.get_available_providers()]


def identity(path: Path) -> dict[str, Any]:
    """Return values that identify a file, this device and this build, and that do not depend on
    settings.
    """
    return {
        "engine": f"onnxruntime {ort.__version__}",
        "device": ort.get_device(),
        "processor": processor(),
        "file": files.identity(path),
    }


def fingerprint(
    path: Path, config: EngineConfig, n_threads: int, placement: Mapping[str, str]
) -> dict[str, Any]:
    """Return everything that the speed of a graph depends on: device, build, file, settings. The
    length of the context is left out.
    """
    settings = {k: v for k, v in asdict(config).items() if k not in NOT_SPEED}
    return identity(path) | {
        "placement": dict(placement),
        "settings": settings | {"n_threads": n_threads},
    }


def switches(config: EngineConfig, n_threads: int) -> dict[str, tuple[Any, Any]]:
    """Return the number of threads, which a session is made for, with another number to try."""
    others = [n for n in thread_counts(config.max_cores) if n != n_threads]
    return {"n_threads": (n_threads, others[-1])} if others else {}


def open_session(path: Path, config: EngineConfig, n_threads: int) -> Any:
    """Load a graph and return its session. Raises ModelError or a subclass, and ConfigError for a
    provider that is not available or does not start.
    """
    if not path.is_file():
        raise ModelNotFound(f"cannot read {path}; give an .onnx file that exists")
    options = ort.SessionOptions()
    options.intra_op_num_threads = n_threads
    options.log_severity_level = 4  # failures are raised as exceptions
    for name, value in _SETTINGS.items():
        options.add_session_config_entry(name, value)
    wanted = _providers(config)
    if "CUDA" in wanted[0] and hasattr(ort, "preload_dlls"):
        ort.preload_dlls()
    try:
        session = ort.InferenceSession(
            os.fspath(path), options, providers=wanted, enable_fallback=int(len(wanted) > 1)
        )  # otherwise the library prints that it falls back, even to nothing
    except Exception as error:  # the library's exceptions have no common base class
        raise _load_error(path, str(error)) from error
    provider = session.get_providers()[0]
    if provider != wanted[0]:
        message = f"{path}: {wanted[0]} could not be started, {provider} runs it"
        if config.provider != "auto":
            raise ConfigError(f"{message}; check the driver and its libraries")
        logger.warning("%s", message)
    return session


def _providers(config: EngineConfig) -> list[str]:
    """Return the providers to ask for, best first. Raises ConfigError for one that is not
    available.
    """
    there: list[str] = ort.get_available_providers()
    names = {name.removesuffix("ExecutionProvider").lower(): name for name in there}
    wanted = config.provider.lower().removesuffix("executionprovider")
    if wanted == "auto":
        wanted = "cuda" if config.n_gpu_layers and "cuda" in names else "cpu"
    if wanted not in names:
        raise ConfigError(
            f"this build of onnxruntime has no provider {config.provider!r}; it has "
            f"{', '.join(sorted(names))}. CUDA comes with {install('onnx-cuda')}"
        )
    return list(dict.fromkeys([names[wanted], "CPUExecutionProvider"]))


def _load_error(path: Path, message: str) -> ModelError:
    said, lower = plainly(message), message.lower()
    if "escapes model directory" in lower:
        return ModelError(
            f"{path}: this build of onnxruntime refuses weights behind a link, as the hub's cache "
            "has them; update it, or copy the folder"
        )
    if "filesystem error" in lower or "no such file" in lower or "does not exist" in lower:
        return ModelNotFound(f"{path}: a file with its weights is missing: {said}; fetch it again")
    if "protobuf" in lower or "out of bounds" in lower or "external data" in lower:
        return TruncatedModel(f"{path} is damaged, incomplete or no ONNX model: {said}")
    if any(word in lower for word in ("opset", "ir version", "ir_version", "not a registered")):
        return UnknownArchitecture(
            f"{path}: {said}; this build of onnxruntime does not know the graph: update it"
        )
    if "alloc" in lower:
        return OutOfMemory(f"{path}: {said}; take a smaller model or quantisation")
    return ModelError(f"{path} cannot be loaded: {said}")


def plainly(said: str) -> str:
    """Return the library's reason for an error without error codes, source lines and signatures."""
    said = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : |Load model from \S+ failed:\s*", "", said)
    said = re.sub(r"\S*onnxruntime\S*\.(cc|h):\d+ .*\)( const)? (?=[A-Z])", "", said)
    said = said.replace("Exception during initialization: ", "").strip().rstrip(".")
    said = one_line(" ".join(said.split()), 301)
    return said if len(said) <= 300 else f"{said[:300]}…"
