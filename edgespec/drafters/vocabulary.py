"""The check that each token id means the same to the draft model and to the target."""

from __future__ import annotations

from ..backends.base import Vocabulary
from ..errors import VocabularyMismatch


def check_vocabulary(target: Vocabulary, draft: Vocabulary) -> None:
    """Raise VocabularyMismatch at the first id that means different things.

    Padding at the end of a vocabulary is not a difference (Qwen pads to different sizes), unless
    one has over 5% fewer tokens. Nor is an id for which only one of the two has an entry.
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
