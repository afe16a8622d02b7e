"""Trained heads as their files describe them: the kinds, a head's description, and which targets it
fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

FINAL = -1
"""In place of a layer's number: the final hidden states, after the last norm."""

Kind = Literal["eagle3", "eagle", "medusa", "mlp_speculator", "mtp", "dflash", "moa"]


class HeadKind(NamedTuple):
    """Facts that all heads of a kind share.

    title: the kind in words. named: how configs of checkpoints name it, in lower case. reads: of
    the target, the hidden states of "layers" that a head names, the "final" ones, or the keys and
    values in its "cache". one_pass: one evaluation guesses all tokens of a path. reads_first_token:
    it reads a text's first token, though no state is before it. looks_up: it has an embedding of
    the vocabulary, and each guess reads a row of it.
    """

    title: str
    named: str
    reads: Literal["layers", "final", "cache"]
    one_pass: bool = False
    reads_first_token: bool = False
    looks_up: bool = True


KINDS: Mapping[Kind, HeadKind] = {
    "eagle": HeadKind("EAGLE", "eagle", "final"),
    "eagle3": HeadKind("EAGLE-3", "eagle3", "layers"),
    "medusa": HeadKind("Medusa", "medusa", "final", one_pass=True, looks_up=False),
    "mlp_speculator": HeadKind("MLP speculator", "speculator", "final", looks_up=False),
    "dflash": HeadKind("DFlash", "dflash", "layers", one_pass=True),
    "mtp": HeadKind("MTP", "mtp", "final"),
    "moa": HeadKind(
        "Mixture of Attentions", "moa", "cache", reads_first_token=True, looks_up=False
    ),
}
"""The kinds of heads, each declared here alone."""

TITLES = ", ".join(kind.title for kind in KINDS.values())
"""All kinds in words."""


@dataclass(frozen=True, slots=True)
class TargetSizes:
    """The sizes of a target, as `Model` has them; 0 where a file does not say one. cached_size: 0
    for a target that does not lend its cache, too.
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
    """Return why a head does not fit a target, as the end of a sentence that begins with its name;
    "" if it fits, as far as all sizes are known.

    made_for: the sizes of the head's own target. layers: of the target, that it reads.
    """
    for name, things in _SIZES.items():
        ours, theirs = getattr(made_for, name), getattr(target, name)
        if ours and theirs and ours != theirs:
            return other_target(f"{ours} {things}", theirs)
    if target.n_layer and (deepest := max(layers, default=0)) > target.n_layer:
        return other_target(f"at least {deepest} layers", target.n_layer)
    return ""


def other_target(wanted: str, given: int) -> str:
    """Return the end of a sentence on a head: which target it was made for, and what this one has
    in place of that.
    """
    return f"was made for another target: for one with {wanted}, and this one has {given}"


@dataclass(frozen=True, slots=True)
class HeadFacts:
    """The description of a head in its files; nothing of its weights is read.

    kind, layers, max_depth: as in `Head`. sizes: of the targets that it was made for. target: the
    name of the one that it was converted for, "" where none is noted. n_drafted: tokens that it can
    guess. precision: of its matrices. size: bytes on disk. read_size: those that a guess reads,
    about: of embeddings only a row is looked up.
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
        """Return why it does not fit a target, "" if it fits, as the function `misfit`."""
        return misfit(self.sizes, self.layers, target)

    def in_words(self) -> dict[str, str]:
        """Return a description by what each part is about."""
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
