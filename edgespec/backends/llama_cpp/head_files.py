"""Checks of GGUF files with trained heads before the engine opens them: a head must be complete and
fit its target. With most heads that are refused here, the engine would end the process.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ...errors import ConfigError, ModelError
from ..base import FileModel
from ..heads import HeadFacts
from .context import MAX_ROWS, Native
from .damage import check
from .head_facts import ASSISTANT, head_facts
from .metadata import Header
from .model import LlamaCppModel
from .nextn import ASSISTED, GRAPHS, mtp_layers, n_declared

_N_LAYERS = 3  # how many layers of the target llama.cpp's EAGLE-3 reads
_INT64 = 27  # a ggml_type
_KEY_VALUE = ("key", "value")
_OTHER_DFLASH = (  # tensors and metadata keys of other variants
    "markov_w1.weight", "selector_hidden.weight", "hyper_connection_count",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HeadFile:
    """A file with a head that fits a target, and what is needed to open it.

    facts: the head's description. width: the width of the head's own states. lender: the target if
    the head uses its embedding or output weights, else None. n_mtp: the number of MTP layers.
    assists: these layers attend to the target's cache. mask: DFlash's mask token, which stands in a
    block for each token to guess. opened: the head's weights if they are open already.
    """

    facts: HeadFacts
    width: int
    lender: LlamaCppModel | None = None
    n_mtp: int = 0
    assists: bool = False
    mask: int = 0
    opened: Native | None = None


def fitting(path: Path, target: FileModel) -> HeadFile:
    """Check that a file has a head that fits a target, and return it. Raises ModelError or a
    subclass, and ConfigError if the head was made for another target.
    """
    header = check(path)
    architecture = header.text("general.architecture")
    if not (architecture in _CHECKS or mtp_layers(path)):
        raise ModelError(
            f"{path.name} has no head that can be evaluated here: it is of the architecture "
            f"{architecture!r:.80}, with {n_declared(header)} MTP layers; give an EAGLE-3 or "
            f"DFlash head, MTP layers of {', '.join(GRAPHS)}, or an assistant of {ASSISTED}"
        )
    facts = head_facts(path)
    if why := facts.misfit(target.sizes):
        raise ConfigError(f"{path.name} {why}; take the head that was made for this target")
    return _CHECKS.get(architecture, _MtpCheck)(header, facts, target).file()


class _Check:
    def __init__(self, header: Header, facts: HeadFacts, target: FileModel) -> None:
        self._header, self._facts, self._target = header, facts, target
        self._kind = header.text("general.architecture")
        self._width = self._number("embedding_length")

    def file(self) -> HeadFile:
        """Check that the head is complete and fits; return its file."""
        self._check_shape()
        self._check_vocabulary()
        self._check_layers()
        return HeadFile(self._facts, self._width, self._lender())

    def _refuse(self, found: str, expected: str, do: str) -> NoReturn:
        raise ConfigError(f"{self._header.path.name}: {found}, {expected}; {do}")

    def _damaged(self, found: str, expected: str) -> NoReturn:
        raise ModelError(
            f"{self._header.path.name} is no head that can be evaluated: {found}, expected "
            f"{expected}; convert it again"
        )

    def _other_target(self, found: str, has: str) -> NoReturn:
        self._refuse(found, f"the target has {has}", "take the head that was made for this target")

    def _metadata(self, key: str, default: Any = None) -> Any:
        return self._header.metadata.get(f"{self._kind}.{key}", default)

    def _number(self, key: str, default: int = 0) -> int:
        value = self._metadata(key, default)
        if not isinstance(value, int) or value <= 0:
            self._damaged(f"{self._kind}.{key} is {value!r:.80}", "a number")
        return value

    def _shape(self, tensor: str) -> tuple[int, ...]:
        layout = self._header.layouts.get(tensor)
        return layout.shape if layout else ()

    def _check_shape(self) -> None:
        """Refuse attention heads that the engine cannot evaluate."""
        n_heads = self._number("attention.head_count")
        if n_heads % (n_kv := self._number("attention.head_count_kv", n_heads)):
            self._damaged(f"it has {n_heads} heads over {n_kv}", "a multiple")
        size = self._number("attention.key_length", max(1, self._width // n_heads))
        values = self._number("attention.value_length", max(1, self._width // n_heads))
        if values != size:
            self._damaged(f"its keys have {size} numbers and its values {values}", "as many")

    def _check_layers(self) -> None:
        """Refuse a head that does not say which layers of the target it reads."""
        layers, declared = list(self._facts.layers), self._metadata("target_layers")
        if declared != layers or not self._may_read(len(layers)) or min(layers) < 0:
            self._damaged(f"{self._kind}.target_layers is {declared!r:.80}", self._reads)

    _reads = "some layers"

    def _may_read(self, n_layers: int) -> bool:
        return n_layers > 0

    def _check_vocabulary(self) -> None:
        n = self._header.vocab_size
        if not n:
            self._damaged("it has no vocabulary", "the tokens of its target")
        embedding = self._shape("token_embd.weight")
        if embedding and embedding != (self._width, n):
            self._damaged(
                f"its embeddings are {embedding}", f"{self._width} numbers for {n} tokens"
            )
        drafted = self._drafted()
        if drafted.size and not (drafted.min() >= 0 and drafted.max() < n):
            self._damaged(
                f"d2t has tokens from {drafted.min()} to {drafted.max()}", f"0 to {n - 1}"
            )
        if len(np.unique(drafted)) < len(drafted):
            self._damaged("d2t has tokens twice", "token ids, not how far each is from its number")

    def _drafted(self) -> Any:
        """Return the tokens that the head can draft, as ids of the target; empty if it can draft
        all.
        """
        layout = self._header.layouts.get("d2t")
        if layout is None:
            return np.empty(0, np.int64)
        if layout.kind != _INT64 or len(layout.shape) != 1:
            self._damaged(
                f"d2t is of type {layout.kind} and shape {layout.shape}", "a row of int64"
            )
        offset = self._header.tensors["d2t"]
        return np.fromfile(self._header.path, "<i8", layout.shape[0], offset=offset)

    def _lender(self) -> LlamaCppModel | None:
        """Return the target if the head uses the target's weights, else None."""
        lacking = [name for name in ("token_embd", "output") if not self._shape(f"{name}.weight")]
        if not lacking:
            return None
        named = " and ".join({"token_embd": "embeddings", "output": "output"}[x] for x in lacking)
        if not isinstance(self._target, LlamaCppModel):
            self._refuse(
                f"it uses the {named} weights of its target",
                "which runs on another engine",
                "give a GGUF of the target, or a head with weights of its own",
            )
        if self._width != self._target.hidden_size:
            self._damaged(
                f"it uses the target's {named} weights of width {self._target.hidden_size}",
                f"{self._width}",
            )
        n_drafted = self._shape("d2t")
        if "output" in lacking and n_drafted not in ((), (self._target.vocab_size,)):
            self._damaged(
                f"it drafts {n_drafted[0]} tokens with the target's output weights",
                f"{self._target.vocab_size}",
            )
        if "token_embd.weight" not in check(self._target.path).tensors:
            self._refuse(
                f"it uses the {named} weights of its target",
                "and the target's first file has no token_embd.weight",
                "give a head with weights of its own",
            )
        return self._target


class _EagleCheck(_Check):
    _reads = f"{_N_LAYERS} layers"

    def _check_shape(self) -> None:
        self._number("target_hidden_size")
        if (n := self._number("block_count")) != 1:
            self._damaged(f"it has {n} layers", "one")
        super()._check_shape()

    def _may_read(self, n_layers: int) -> bool:
        return n_layers == _N_LAYERS


class _DFlashCheck(_Check):
    def file(self) -> HeadFile:
        """Check that the head is complete and fits; return its file."""
        for name in ("d2t", *_OTHER_DFLASH):
            if self._shape(name) or self._metadata(name) is not None:
                self._refuse(
                    f"it has {name}",
                    "which is of another kind of DFlash than is evaluated here",
                    "draft with something else",
                )
        if self._shape("token_embd.weight") and not self._shape("output.weight"):
            # some versions then use the target's output weights, others the embeddings
            self._damaged("it has embeddings and no output weights", "both, or those of the target")
        self._check_windows()
        head = super().file()
        joined = len(self._facts.layers) * self._width
        if self._shape("fc.weight") != (joined, self._width):
            self._damaged(f"fc.weight is {self._shape('fc.weight')}", f"({joined}, {self._width})")
        if not 1 < (block := self._number("block_size")) <= MAX_ROWS:
            self._damaged(f"a block has {block} tokens", f"2 to {MAX_ROWS}")
        return replace(head, mask=self._mask())

    def _check_windows(self) -> None:
        """Refuse rotary embeddings for positions other than those of text, and a sliding window
        without a list that says for every layer whether it has this window.
        """
        sections = self._metadata("rope.dimension_sections", [0, 0, 0, 0])
        if not isinstance(sections, list) or len(sections) != 4 or any(sections[1:]):
            self._damaged(f"rope.dimension_sections is {sections!r:.80}", "one section of four")
        if self._metadata("attention.sliding_window") is None:
            return
        self._number("attention.sliding_window")
        pattern = self._metadata("attention.sliding_window_pattern")
        if not isinstance(pattern, list) or len(pattern) != self._number("block_count"):
            self._damaged(f"sliding_window_pattern is {pattern!r:.80}", "a value for each layer")

    def _mask(self) -> int:
        mask = self._header.metadata.get("tokenizer.ggml.mask_token_id")
        if not isinstance(mask, int) or mask not in range(self._header.vocab_size):
            self._damaged(f"tokenizer.ggml.mask_token_id is {mask!r:.20}", "one of its tokens")
        return mask


class _MtpCheck(_Check):
    def file(self) -> HeadFile:
        """Check that the MTP layers are complete; return their file."""
        mtp = mtp_layers(self._header.path)
        assert mtp  # this check is made only for files with MTP layers
        if mtp.lacks:
            self._damaged(f"it lacks {', '.join(mtp.lacks[:3])}", "MTP layers with all weights")
        self._check_vocabulary()
        return HeadFile(self._facts, self._width, n_mtp=mtp.n)


class _Keys(NamedTuple):
    """The sizes of the keys and values that a layer attends to.

    slides: the layer has a sliding window. n_kv: the number of heads. size, values: the widths of a
    head's key and of its value.
    """

    slides: bool
    n_kv: int
    size: int
    values: int

    def __str__(self) -> str:
        window = "with a sliding window" if self.slides else "over the whole text"
        values = f" and values of {self.values!r:.20}" if self.values != self.size else ""
        return f"{self.n_kv!r:.20} heads of {self.size!r:.20} numbers{values} {window}"


class _AssistantCheck(_Check):
    def file(self) -> HeadFile:
        """Check that the assistant is complete and fits; return its file."""
        theirs = self._keys(self._cache(), ASSISTED)
        n, own = self._number("nextn_predict_layers"), self._keys(self._header, self._kind)
        if n != len(own) or not any(keys.slides for keys in own):
            self._damaged(
                f"{n} of its {len(own)} layers guess", "all, one with a sliding window at least"
            )
        for i, keys in enumerate(own):
            if keys != (there := theirs[-2:][0] if keys.slides else theirs[-1]):
                self._other_target(f"its layer {i} looks at {keys}", f"{there}")
        self._check_shape()
        self._check_vocabulary()
        return HeadFile(self._facts, self._number("embedding_length_out"), n_mtp=n, assists=True)

    def _cache(self) -> Header:
        """Return the header of the target. Raises ConfigError if the assistant cannot attend to the
        target's cache.
        """
        if not isinstance(self._target, LlamaCppModel):
            self._refuse(
                "it looks at the keys and values of its target",
                "which runs on another engine",
                "give a GGUF of the target",
            )
        header = check(self._target.path)
        if (architecture := header.text("general.architecture")) != ASSISTED:
            self._other_target(f"it assists {ASSISTED}", f"the architecture {architecture!r:.80}")
        return header

    def _keys(self, header: Header, kind: str) -> list[_Keys]:
        """Return the sizes of the keys and values that each layer of a file attends to."""
        slides = header.metadata.get(f"{kind}.attention.sliding_window_pattern")
        n_layer = header.metadata.get(f"{kind}.block_count")
        if not isinstance(slides, list) or len(slides) != n_layer:
            self._damaged(f"sliding_window_pattern is {slides!r:.80}", "a value for each layer")
        n_heads, n_kv = (
            heads if isinstance(heads, list) else [heads] * n_layer
            for name in ("head_count", "head_count_kv")
            for heads in [header.metadata.get(f"{kind}.attention.{name}")]
        )
        if not len(n_heads) == len(n_kv) == n_layer or not all([*n_heads, *n_kv]):
            self._damaged(f"it has {n_heads!r:.80} heads over {n_kv!r:.80}", "some in each layer")
        if any(all_heads % kv for all_heads, kv in zip(n_heads, n_kv, strict=True)):
            self._damaged(f"it has {n_heads!r:.80} heads over {n_kv!r:.80}", "multiples")
        sizes = {
            end: [header.metadata.get(f"{kind}.attention.{x}_length{end}", 0) for x in _KEY_VALUE]
            for end in ("", "_swa")
        }
        return [
            _Keys(bool(slide), kv, *sizes["_swa" if slide else ""])
            for slide, kv in zip(slides, n_kv, strict=True)
        ]

    def _check_shape(self) -> None:
        """Refuse a file that does not state the sizes of keys and values, or whose sizes differ.
        The engine's defaults for missing sizes are not the target's sizes.
        """
        self._number("attention.sliding_window")
        for end in ("", "_swa"):
            size, values = (self._number(f"attention.{x}_length{end}") for x in _KEY_VALUE)
            if values != size:
                self._damaged(f"its keys have {size} numbers and its values {values}", "as many")


_CHECKS: dict[str, type[_Check]] = {
    "eagle3": _EagleCheck, "dflash": _DFlashCheck, ASSISTANT: _AssistantCheck
}  # fmt: skip
