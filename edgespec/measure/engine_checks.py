"""Checks of llama.cpp's library: its version, and how well it is built for this processor."""

from __future__ import annotations

from dataclasses import replace

from ..backends import compiled, fork
from ..device import instructions
from ..errors import EngineMissing
from .findings import Finding

_SETS = {  # an instruction set of the processor: the build's feature that uses it, and its name
    "avx2": ("AVX2", "AVX2"),
    "avx512f": ("AVX512", "AVX-512"),
    "avx512_vnni": ("AVX512_VNNI", "AVX-512 VNNI"),
    "avx512_bf16": ("AVX512_BF16", "AVX-512 BF16"),
    "avx_vnni": ("AVX_VNNI", "AVX VNNI"),
    "asimddp": ("DOTPROD", "dot products"),
    "i8mm": ("MATMUL_INT8", "products of int8 matrices"),
    "sve": ("SVE", "SVE"),
}
_COPIES = "copies of draft models in a format that CPUs evaluate faster"


def check_libllama() -> Finding:
    """Return a finding about the library for GGUF models, and what compiling it here would gain."""
    try:
        from ..backends import llama_cpp

        engine = llama_cpp.engine()
    except EngineMissing as error:
        return Finding("problem", "libllama", str(error))
    if llama_cpp.is_fork():
        text = f"{engine}, which `edgespec tune` found right and faster for this model"
        return Finding("ok", "libllama", text)
    chosen = compiled.chosen() if engine == compiled.ENGINE else None
    finding = libllama_finding(
        engine, llama_cpp.features(), llama_cpp.can_requantize(), instructions(), chosen
    )
    if not fork.library():
        return finding
    other = f"{fork.NAME} is used for models that `edgespec tune` finds right and faster with it"
    return replace(finding, text=f"{finding.text}; {other}")


def libllama_finding(
    engine: str,
    features: list[str],
    can_requantize: bool,
    processor: frozenset[str],
    chosen: compiled.Chosen | None = None,
) -> Finding:
    """Return the finding for a library.

    engine: its package and version. features: the processor features that it uses. can_requantize:
    it can make requantized copies of draft models. processor: the processor's instruction sets.
    chosen: the library, if `edgespec build` made it.
    """
    text = f"{engine}, with {' '.join(features)}"
    if chosen:
        text += "".join(f"; {_measured(model, times)}" for model, times in chosen.times.items())
    unused = [
        name for has, (used, name) in _SETS.items() if has in processor and used not in features
    ]
    if not can_requantize:
        text += "; it makes no faster copies of draft models"
    if chosen or not (unused or not can_requantize):
        return Finding("ok", "libllama", text)
    gains = [f"uses this processor's {', '.join(unused)}"] * bool(unused)
    gains += [f"makes {_COPIES}"] * (not can_requantize)
    remedy = f"`edgespec build` compiles a library that {' and '.join(gains)}, and measures both"
    return Finding("note", "libllama", text, remedy)


def _measured(model: str, times: dict[str, list[float]]) -> str:
    """Return what `edgespec build` measured with a model, in words."""
    each = [f"{width} in {old:.0f} → {new:.0f} ms" for width, (old, new) in times.items()]
    return f"tokens of {model}: {', '.join(each)} (before → compiled)"
