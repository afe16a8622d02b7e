"""Descriptions of trained heads: their kinds, the facts in a head's files, and the targets that a
head fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

FINAL = -1
"""The layer number that stands for the final hidden states, after the last norm."""

Kind = Literal["eagle3", "eagle", "medusa", "mlp_speculator", "mtp", "dflash", "moa"]


class HeadKind(NamedTuple):
    """Facts that all heads of a kind share.

    title: the name of the kind for users. reads: what it reads of the target: the hidden states of
    the "layers" that a head names, the "final" hidden states, or the keys and values in the
    "cache". named: parts of the names that the configs of its checkpoints give the model, in lower
    case; keys: keys that only these configs have. Either may be empty. one_pass: one evaluation
    guesses all tokens of a path. reads_first_token: it also reads a text's first token, which has
    no state before it. looks_up: it has an embedding matrix as wide as the target's states, of
    which each guess reads one row.
    """

    title: str
    reads: Literal["layers", "final", "cache"]
    named: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    one_pass: bool = False
    reads_first_token: bool = False
    looks_up: bool = True


KINDS: Mapping[Kind, HeadKind] = {
    "eagle": HeadKind("EAGLE", "final", ("eagle",)),
    "eagle3": HeadKind("EAGLE-3", "layers", ("eagle3",), ("draft_vocab_size",)),
    "medusa": HeadKind(
        "Medusa", "final", ("medusa",), ("medusa_num_heads",), one_pass=True, looks_up=False
    ),
    "mlp_speculator": HeadKind(
        "MLP speculator", "final", ("speculator",), ("n_predict",), looks_up=False
    ),
    "dflash": HeadKind(
        "DFlash", "layers", ("dflash",), ("dflash_config", "block_size"), one_pass=True
    ),
    "mtp": HeadKind("MTP", "final", ("mtp", "nextn")),
    "moa": HeadKind(
        "Mixture of Attentions", "cache", ("moa",), reads_first_token=True, looks_up=False
    ),
}
"""All kinds of heads; each kind is declared only here."""

TITLES = ", ".join(kind.title for kind in KINDS.values())
"""The titles of all kinds, separated by commas."""


@dataclass(frozen=True, slots=True)
class TargetSizes:
    """The sizes of a target, as in `Model`; 0 for a size that a file does not state.

    cached_size: it is also 0 for a target that gives no access to its cache.
    """

    hidden_size: int
    vocab_size: int
    n_layer: int
    cached_size: int = 0


_SIZES = {
    "hidden_size": "numbers a state",
    "vocab_size": "tokens of vocabulary",
    "n_layer": "layers",
    "cached_size": "numbers of keys and values a layer",
}


def misfit(made_for: TargetSizes, layers: tuple[int, ...], target: TargetSizes) -> str:
    """Return the reason why a head does not fit a target, or "" if all known sizes fit. The reason
    is the end of a sentence that begins with the head's name.

    made_for: the sizes of the target that the head was made for. layers: the target's layers that
    the head reads.
    """
    for name, things in _SIZES.items():
        ours, theirs = getattr(made_for, name), getattr(target, name)
        if ours and theirs and ours != theirs:
            return other_target(f"{ours} {things}", theirs)
    if target.n_layer and (deepest := max(layers, default=0)) > target.n_layer:
        return other_target(f"at least {deepest} layers", target.n_layer)
    return ""


def other_target(wanted: str, given: int) -> str:
    """Return the end of a sentence about a head: which size the target that it was made for has,
    and which size this target has instead.
    """
    return f"was made for another target: for one with {wanted}, and this one has {given}"


@dataclass(frozen=True, slots=True)
class HeadFacts:
    """The description of a head, read from its files without reading its weights.

    kind, layers, max_depth: as in `Head`. sizes: the sizes of the targets that it was made for.
    target: the name of the target that it was converted for, "" if none is noted. n_drafted: the
    number of different tokens that it can guess. precision: the number format of its matrices.
    size: its size on disk in bytes. read_size: about how many bytes a guess reads; embeddings do
    not count, because only one row of them is looked up, and neither do graphs of other depths.
    """

    kind: Kind
    layers: tuple[int, ...]
    sizes: TargetSizes
    n_drafted: int
    size: int
    read_size: int
    max_depth: int = 0
    n_ctx_train: int = 0
    precision: str = "unknown"
    license: str = "unknown"
    source: str = ""
    target: str = ""

    def misfit(self, target: TargetSizes) -> str:
        """Return the reason why the head does not fit a target, or "" if it fits, as the function
        `misfit` does.
        """
        return misfit(self.sizes, self.layers, target)

    def in_words(self) -> dict[str, str]:
        """Return a description for users: a text for each topic, such as "target" or
        "precision".
        """
        sizes = self.sizes
        layers = ", ".join("the last state" if i == FINAL else str(i) for i in self.layers)
        target = [
            self.target,
            f"{sizes.hidden_size} numbers a state" if sizes.hidden_size else "",
            f"{sizes.n_layer} layers" if sizes.n_layer else "",
            f"a vocabulary of {sizes.vocab_size} tokens",
        ]
        depth = f"at most {self.max_depth} tokens" if self.max_depth else "any number of tokens"
        part = "" if self.n_drafted == sizes.vocab_size else f", {self.n_drafted} of the vocabulary"
        return {
            "kind": self.kind,
            "target": ", ".join(filter(None, target)),
            "reads": layers or "unknown",
            "drafts": depth + part,
            "precision": self.precision,
            "licence": self.license,
        }
