"""The check that draft model and target mean the same by each token id."""

from __future__ import annotations

from ..backends.base import Vocabulary
from ..errors import VocabularyMismatch


def check_vocabulary(target: Vocabulary, draft: Vocabulary) -> None:
    """Raise VocabularyMismatch at the first id that means different things.

    A vocabulary padded at its end (Qwen pads to different sizes) is not a difference, nor is an
    id that one of them has no entry for.
    """
    common = min(target.vocab_size, draft.vocab_size)
    for token in range(common):
        ours, theirs = target.token_text(token), draft.token_text(token)
        if ours != theirs and ours and theirs:
            raise VocabularyMismatch(
                f"draft and target have different vocabularies: token {token} is {ours!r} in the "
                f"target and {theirs!r} in the draft; take a draft of the target's own family"
            )
    longer, name = (target, "target") if target.vocab_size > common else (draft, "draft")
    if common < 0.95 * longer.vocab_size:
        raise VocabularyMismatch(
            f"the {name}'s vocabulary has {longer.vocab_size} tokens, the other one only "
            f"{common}: that is more than padding; take a draft of the target's own family"
        )
