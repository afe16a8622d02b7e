"""Print what NativeModelTest.java compares with, as options of java: python expected.py MODEL."""

import sys
from pathlib import Path

from edgespec import protocol
from edgespec.backends.llama_cpp import LlamaCppModel
from edgespec.chat import chat, templates
from edgespec.config import EngineConfig

MESSAGES = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "Grüße! 🙂 What is the capital of France?"},
]

path = Path(sys.argv[1])
config = EngineConfig(
    n_ctx=512, flash_attn="off", type_k="f32", type_v="f32", n_threads=1, n_threads_batch=1
)
model = LlamaCppModel(path, config)
tokenizer = model.tokenizer


def encoded(messages):
    rendered = templates.render(tokenizer.chat_template, messages, tokenizer.special())
    return chat.encode(tokenizer, rendered)


prompt = encoded(MESSAGES)
answer = [int(model.decode(prompt).logits[0].argmax())]
while not tokenizer.is_eog(answer[-1]):
    answer.append(int(model.decode(answer[-1:]).logits[0].argmax()))
print(f"-Dmodel={path}")
print(f"-Dprompt={','.join(map(str, prompt))}")
print(f"-Dbare={','.join(map(str, encoded([{'role': 'user', 'content': 'Why?'}])))}")
print(f"-Danswer={','.join(map(str, answer))}")
print(f"-Dhash={protocol.vocabulary_hash(tokenizer, model.vocab_size).hex()}")
print(f"-Dsize={model.vocab_size}")
