"""How much of a conversation the context takes."""

import pytest

from edgespec import ContextFull, ToyTokenizer
from edgespec.chat.context import Context
from tests.unit.chat.test_chat import EOS, TEMPLATE, VOCAB

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


@pytest.mark.parametrize("n_turns", [1, 2, 3, 10, 500])
def test_a_long_conversation_is_cut_in_few_attempts(n_turns, monkeypatch):
    """A saved chat of 500 turns was rendered and tokenized anew for each turn that was dropped."""
    tokenizer = ToyTokenizer(VOCAB, eog=[EOS], chat_template=TEMPLATE)
    messages = [*EARLIER * (n_turns - 1), {"role": "user", "content": "c"}]
    made = Context(tokenizer, N_CTX)
    rendered, render = [], made._encoder.render
    monkeypatch.setattr(
        made._encoder, "render", lambda m, **o: rendered.append(len(m) // 2) or render(m, **o)
    )
    fitted = made.fit(messages)
    assert len(rendered) <= 3 + n_turns.bit_length()
    assert sum(rendered) <= 2 * n_turns + 40, "attempts render what is about to be kept"
    assert len(fitted.prompt) <= N_CTX - 50
    if fitted.n_dropped:  # one turn more would leave no quarter of the context
        more = messages[fitted.n_dropped - 2 :]
        assert len(tokenizer.encode(render(more))) > N_CTX - 100
        assert fitted.earlier


def test_after_a_cut_the_next_turns_extend_what_the_model_has_read():
    """Each message of a chat whose context was full had the model read all of it again."""
    tokenizer = ToyTokenizer(VOCAB, eog=[EOS], chat_template=TEMPLATE)
    made, messages, read_anew = Context(tokenizer, N_CTX), [*EARLIER], []
    for _ in range(40):
        messages.append({"role": "user", "content": "c"})
        fitted = made.fit(messages)
        read_anew.append(fitted.n_dropped > made.n_dropped)
        made.take(fitted)
        made.keep(fitted, "d", tokenizer.encode("d"))
        messages.append({"role": "assistant", "content": "d"})
    assert 2 <= sum(read_anew) <= 5
