"""How much of a conversation the context takes."""

import pytest

from edgespec import ContextFull, ToyTokenizer
from edgespec.decoding.context import Context
from tests.unit.decoding.test_chat import EOS, TEMPLATE, VOCAB

N_CTX = 200
EARLIER = [
    {"role": "user", "content": "a" * 40},
    {"role": "assistant", "content": "b" * 40},
]


@pytest.mark.parametrize(("max_tokens", "room"), [(None, 50), (10, 10), (500, 50)])
def test_the_answer_has_room(max_tokens, room):
    """As many tokens as it may have, at most a quarter of the context."""
    tokenizer = ToyTokenizer(VOCAB, eog=[EOS], chat_template=TEMPLATE)
    dropped = set()
    for n in range(1, N_CTX):
        messages = [*EARLIER, {"role": "user", "content": "c" * n}]
        try:
            fitted = Context(tokenizer, N_CTX).fit(messages, max_tokens=max_tokens)
        except ContextFull:
            assert n + len("<></>") > N_CTX - room - len("<assistant>")
            break
        assert len(fitted.prompt) <= N_CTX - room
        dropped.add(fitted.n_dropped)
    assert dropped == {0, 2}
