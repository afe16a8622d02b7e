"""Inspection of a model file: its size and memory, and the models that can draft for it."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .. import backends, hub
from ..backends import files
from ..backends.base import Vocabulary
from ..backends.projectors import NONE
from ..backends.projectors import ProjectorFacts as ProjectorFacts
from ..drafters.vocabulary import check_vocabulary
from ..errors import ConfigError, EdgeSpecError, VocabularyMismatch
from ..loading import companions
from ..loading.models import (
    is_head,
    missing_projector,
    model_path,
    refuse_head,
    refuse_projector,
)

_FTYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K",
    11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S",
    17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS",
    23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16",
}  # fmt: skip  # llama.cpp's llama_ftype


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The facts about a GGUF or an ONNX graph. Sizes are in bytes.

    n_head_kv: the number of KV heads in the layer that has most. kv_element_size: bytes of an
    element of the KV cache (f16 for a GGUF by default). engine: how the model runs on this device,
    {} if that cannot be known from the file alone. projector: what it sees pictures with, None if
    it reads text alone; why_blind then says what is wrong with its projector, if it has one.
    """

    path: str
    architecture: str
    name: str
    quantisation: str
    file_size: int
    n_ctx_train: int
    vocab_size: int
    n_layer: int
    n_head_kv: int
    key_length: int
    value_length: int
    has_chat_template: bool
    kv_element_size: int = 2
    engine: dict[str, str] = field(default_factory=dict)
    projector: ProjectorFacts | None = None
    why_blind: str = ""

    def kv_bytes(self, n_ctx: int) -> int:
        """Return the bytes of a KV cache of `n_ctx` tokens.

        The number is an upper bound if some layers share heads or have none.
        """
        head = self.key_length + self.value_length
        return self.kv_element_size * n_ctx * self.n_layer * self.n_head_kv * head

    def memory(self, n_ctx: int) -> int:
        """Return the bytes that running the model needs: weights, with those of its projector, KV
        cache and work space.
        """
        weights = self.file_size + (self.projector.size if self.projector else 0)
        return weights + self.kv_bytes(n_ctx) + hub.WORK_SPACE

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as data for JSON, with the size of the KV cache for some contexts."""
        contexts = sorted({min(n, self.n_ctx_train) for n in (2048, 8192, 32768)})
        projector = self.projector.to_dict() if self.projector else None
        kv_bytes = {str(n): self.kv_bytes(n) for n in contexts}
        return asdict(self) | {"projector": projector, "kv_bytes": kv_bytes}


@dataclass(frozen=True, slots=True)
class DraftFit:
    """A model on disk that may draft for a target: whether it fits, and the reason."""

    reference: str
    fits: bool
    why: str


def inspect(reference: str | os.PathLike[str], mmproj: str = "") -> ModelInfo:
    """Return the facts about a model file. mmproj: as in `load`.

    Only the header and the vocabulary of a GGUF are read, not its weights; an ONNX graph is loaded.
    Raises ModelError or a subclass, and ConfigError for a trained head and for a projector.
    """
    path = model_path(reference)
    refuse_head(path)
    refuse_projector(path)
    metadata = backends.of(path).inspect_metadata(path)

    def number(key: str, default: int = 0) -> int:
        digits = metadata.get(key, "").strip("[]").split(",")  # some models have one per layer
        return max((int(d) for d in digits if d.strip().isdigit()), default=default)

    n_head = number("attention.head_count", 1)
    head_dim = number("embedding_length") // max(1, n_head)  # recurrent models have no heads
    ftype = number("general.file_type", -1)
    width = number("embedding_length") * (1 + number("n_deepstack_layers"))
    projector, why_blind = _projector(path, mmproj, width, metadata.get("blind", ""))
    return ModelInfo(
        path=str(path),
        architecture=metadata.get("general.architecture", "unknown"),
        name=metadata.get("general.name", path.stem),
        quantisation=metadata.get("quantisation")
        or _FTYPES.get(ftype, f"type {ftype}" if ftype >= 0 else "unknown"),
        file_size=files.size_of(path),
        n_ctx_train=number("context_length"),
        vocab_size=number("vocab_size"),
        n_layer=number("block_count"),
        n_head_kv=number("attention.head_count_kv", n_head),
        key_length=number("attention.key_length", head_dim),
        value_length=number("attention.value_length", head_dim),
        has_chat_template=metadata["has_chat_template"] == "True",
        kv_element_size=number("element_size", 2),
        engine={
            key.removeprefix("engine."): value
            for key, value in metadata.items()
            if key.startswith("engine.")
        },
        projector=projector,
        why_blind=why_blind,
    )


def inspect_projector(reference: str | os.PathLike[str]) -> ProjectorFacts:
    """Return the facts that the header of a projector (mmproj) states; nothing is loaded.

    Raises ModelError or a subclass, and ConfigError if the reference is something else.
    """
    path = model_path(reference)
    if facts := backends.of(path).projector_facts(path):
        return facts
    raise ConfigError(f"{files.label(path)} is no projector; use inspect() or inspect_head()")


def _projector(
    path: Path, mmproj: str, width: int, blind: str
) -> tuple[ProjectorFacts | None, str]:
    """Return what a model sees with, or else what is wrong with its projector, "" if it has none.
    width: the count of numbers in an embedding that the model reads. blind: why it can see with no
    projector, "" if it can.
    """
    there = [Path(mmproj)] if mmproj else files.projectors(path)
    if mmproj == NONE or not there:
        return None, "" if mmproj else missing_projector(path)
    if blind:
        return None, blind
    try:
        facts = backends.of(path).projector_facts(there[0])
    except EdgeSpecError as error:
        return None, str(error)
    if facts is None or facts.width not in (0, width):
        made = f"makes embeddings of {facts.width} numbers" if facts else "is no projector"
        return None, f"{there[0].name} {made}, this model reads {width}"
    return facts, ""


def fitting_drafts(reference: str | os.PathLike[str]) -> list[DraftFit]:
    """Return possible drafts for a model, and for each whether it fits. They are every catalogue
    model on disk, every model and head next to this one, and the heads converted for it.
    """
    path = model_path(reference)
    names = {p: name for name in hub.entries() if (p := hub.resolve(name))}
    for neighbour in files.neighbours(path):
        name = str(neighbour.relative_to(files.folder_of_neighbours(path)))
        names.setdefault(neighbour, name)
    for companion in companions.found(reference, path):
        if companion.role != "sibling":
            names.setdefault(companion.path, str(companion.path))
    target = backends.of(path).entries(path)
    return [
        _fit(name, other, path, target)
        for other, name in names.items()
        if other.resolve() != path.resolve()
    ]


def _fit_of_head(name: str, path: Path, target_path: Path) -> DraftFit:
    """Return whether a head fits a target: whether it was made for a target of the same sizes."""
    backend, of_target = backends.of(path), backends.of(target_path)
    facts = backend.head_facts(path)
    why = facts.misfit(of_target.target_sizes(target_path))
    sizes = "other sizes" if why else "its sizes"
    return DraftFit(name, not why, f"a trained head ({facts.kind}) for a target of {sizes}")


def _fit(name: str, path: Path, target_path: Path, target: Vocabulary) -> DraftFit:
    """Return whether a model fits a target as its draft, by size and vocabulary."""
    try:
        if is_head(path):
            return _fit_of_head(name, path, target_path)
        if files.size_of(path) >= files.size_of(target_path):
            return DraftFit(name, False, "not smaller than the target")
        check_vocabulary(target, backends.of(path).entries(path))
        return DraftFit(name, True, "same vocabulary")
    except VocabularyMismatch as error:
        return DraftFit(name, False, str(error))
    except EdgeSpecError as error:
        return DraftFit(name, False, f"cannot be read: {error}")
