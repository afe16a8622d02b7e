"""What all conversations have in common that begin with the same messages and tools."""

import pytest

from edgespec import ConfigError, ToyModel, ToyTokenizer, assemble
from edgespec.chat.beginnings import beginning
from tests.cli.conftest import END, TEMPLATES, next_probs

SYSTEM = {"role": "system", "content": "You drive a robot."}
STOP = {
    "type": "function",
    "function": {"name": "stop", "description": "Stop.", "parameters": {"type": "object"}},
}
MET = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]


@pytest.fixture(params=TEMPLATES)
def engine(request):
    vocab = [bytes([i]) for i in range(256)] + ["<end>"]
    tokenizer = ToyTokenizer(vocab, eog=[END], chat_template=TEMPLATES[request.param])
    with assemble(ToyModel(next_probs, vocab_size=257, n_ctx=4096), tokenizer) as engine:
        yield engine


@pytest.mark.parametrize(
    ("messages", "tools"), [([SYSTEM], []), ([SYSTEM], [STOP]), ([], [STOP]), ([SYSTEM, *MET], [])]
)
def test_a_chat_begins_with_it(engine, messages, tools):
    tokens = beginning(engine, messages, tools)
    system = messages[0]["content"] if messages else None
    chat = engine.chat(system, tools=tools)
    chat.messages = messages[1:]
    prompt = chat._context.fit(
        [*chat.messages, {"role": "user", "content": "Go!"}], system=system,
        options=chat._options({}),
    ).prompt  # fmt: skip
    text = bytes(prompt).decode()
    assert prompt[: len(tokens)] == tokens
    assert text[len(tokens) :].startswith("Go!")


def test_nothing_in_common(engine):
    engine.tokenizer.chat_template = "{{ messages[-1].content }}"
    with pytest.raises(ConfigError, match="nothing to read"):
        beginning(engine, [])
