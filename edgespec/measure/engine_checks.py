"""Checks of llama.cpp's library: its version, and how well it is built for this processor."""

from __future__ import annotations

from ..advice import install
from ..device import instructions
from ..errors import EngineMissing
from .findings import Finding

COMPILE = f"{install('gguf')} compiles llama.cpp for this processor"
_GAINS = (  # the processor's instruction set, the name of the build's feature, its benefit
    ("avx512f", "AVX512", "AVX-512: about 3% more tokens/s with Q4_K_M, 15% with F16"),
    ("asimddp", "DOTPROD", "dot products: quantised weights are evaluated much faster"),
    ("i8mm", "MATMUL_INT8", "products of int8 matrices: prompts and drafts are evaluated faster"),
    ("sve", "SVE", "vectors longer than 128 bits where the processor has them"),
)


def check_libllama() -> Finding:
    """Return a finding about the library for GGUF models, and what compiling it here would gain."""
    try:
        from ..backends import llama_cpp
    except EngineMissing as error:
        return Finding("problem", "libllama", str(error))
    return libllama_finding(
        llama_cpp.engine(), llama_cpp.features(), llama_cpp.can_requantize(), instructions()
    )


def libllama_finding(
    engine: str, features: list[str], can_requantize: bool, processor: frozenset[str]
) -> Finding:
    """Return the finding for a library.

    engine: its package and version. features: the processor features that it uses. can_requantize:
    it can make requantized copies of draft models. processor: the processor's instruction sets.
    """
    text = f"{engine}, with {' '.join(features)}"
    gains = [gain for has, used, gain in _GAINS if has in processor and used not in features]
    if not can_requantize:
        text += "; it makes no faster copies of draft models"
        gains.append("copies of draft models in a format that CPUs evaluate faster")
    if not gains:
        return Finding("ok", "libllama", text)
    return Finding("note", "libllama", text, f"{COMPILE}, which gains {', and '.join(gains)}")
