"""The library that GGUF tests run on, or a named reason to skip them."""

import pytest

from edgespec.errors import EngineMissing

CANNOT_REQUANTISE = "only the libllama of llama-cpp-python requantises"


def require():
    """Return the backend for GGUF files, or skip where this machine has no libllama."""
    try:
        from edgespec.backends import llama_cpp

        llama_cpp.engine()  # opens the library
    except EngineMissing as error:
        pytest.skip(f"no libllama: {error}", allow_module_level=True)
    return llama_cpp


def needs_requantising():
    """Return the mark of tests that need a library which writes models in other formats."""
    return pytest.mark.skipif(not require().can_requantize(), reason=CANNOT_REQUANTISE)
