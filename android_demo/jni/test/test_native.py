"""Tests of the shim's JNI functions against Python's llama.cpp.

jni/test.sh runs them: it builds the driver and puts the command that starts the driver into
$EDGESPEC_NATIVE_DRIVER.
"""

import hashlib
import os
import shlex
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from edgespec import protocol
from edgespec.backends.llama_cpp import LlamaCppModel
from edgespec.backends.llama_cpp.library import lib
from edgespec.chat import chat, templates
from edgespec.config import EngineConfig

FOLDER = Path(os.environ.get("EDGESPEC_TEST_MODELS", Path.home() / ".cache/edgespec-test-models"))
MODEL = FOLDER / "smollm2-135m.gguf"
EMULATED = "qemu" in os.environ["EDGESPEC_NATIVE_DRIVER"]
N_CTX = 512
F32, F16, Q8_0 = 0, 1, 8
IO = "java.io.IOException"
ARGUMENT = "java.lang.IllegalArgumentException"
QUESTION = [
    {"role": "system", "content": "Be helpful."},
    {"role": "user", "content": "Why is the sky blue?"},
]
TEXTS = [
    "",
    "Hello",
    " two  spaces\tand a tab\n\n",
    "def quicksort(xs):\n    return xs if len(xs) < 2 else 1234567890",
    "<|im_start|>user\nspecial tokens, written out<|im_end|>",
    "Zürich, 東京, Ελλάδα, 🙂🤖",
]


class JavaError(Exception):
    """An exception of the shim: its class and its sentence."""

    def __init__(self, kind, sentence):
        super().__init__(f"{kind}: {sentence}")
        self.kind, self.sentence = kind, sentence


class Driver:
    """One process with at most one open model."""

    def __init__(self):
        command = shlex.split(os.environ["EDGESPEC_NATIVE_DRIVER"])
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, *words):
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().split(maxsplit=2)
        assert answer, f"the driver ended with code {self._process.wait()}"
        if answer[0] == "throw":
            raise JavaError(answer[1].replace("/", "."), answer[2].strip())
        return " ".join(answer[1:]).split()

    def open(self, path=MODEL, n_ctx=N_CTX, type_k=F32, type_v=F32, flash_attention=0, threads=1):
        self.ask("open", hexed(str(path)), n_ctx, threads, type_k, type_v, flash_attention)

    def ids(self, *words):
        return list(map(int, self.ask(*words)))

    def octets(self, *words):
        return bytes.fromhex("".join(self.ask(*words)))

    def decode(self, tokens, n_rows=1):
        return self.ids("decode", n_rows, *tokens)

    def n_past(self):
        return self.ids("sizes")[2]

    def chat(self, messages):
        return self.ids("chat", *(hexed(m[key]) for m in messages for key in ("role", "content")))

    def end(self):
        self._process.stdin.close()
        assert self._process.wait() == 0
        self._process.stdout.close()


def hexed(text):
    return text.encode().hex() or "-"


@pytest.fixture
def closed():
    driver = Driver()
    yield driver
    driver.end()  # also says so where memory leaked


@pytest.fixture(scope="module")
def opened():
    driver = Driver()
    driver.open()
    yield driver
    driver.ask("close")
    driver.end()


@pytest.fixture
def native(opened):
    opened.ask("truncate", 0)
    return opened


def open_python(path):
    config = EngineConfig(
        n_ctx=N_CTX, flash_attn="off", type_k="f32", type_v="f32", n_threads=1, n_threads_batch=1
    )
    return LlamaCppModel(path, config)


@pytest.fixture(scope="module")
def python():
    return open_python(MODEL)


@pytest.fixture
def float_model(tmp_path):
    """Yield the model with its weights as 32-bit floats.

    Kernels for quantised weights round the activations, each in its own way, so that two processors
    disagree at near-ties.
    """
    path = tmp_path / "f32.gguf"
    params = lib.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = 0, True  # all F32
    assert lib.llama_model_quantize(str(MODEL).encode(), str(path).encode(), params) == 0
    yield path
    path.unlink()  # half a gigabyte


@pytest.fixture(scope="module")
def prompt(python):
    rendered = templates.render(
        python.tokenizer.chat_template, QUESTION, python.tokenizer.special()
    )
    return chat.encode(python.tokenizer, rendered)


def greedy(decode, prompt, n):
    """Return n greedy tokens after the prompt; the last one is not in the cache."""
    tokens = list(decode(prompt))
    while len(tokens) < n:
        tokens += decode(tokens[-1:])
    return tokens


def python_greedy(python, prompt, n):
    python.truncate(0)
    return greedy(lambda tokens: [int(python.decode(tokens).logits[0].argmax())], prompt, n)


def test_32_greedy_tokens_are_those_of_llama_cpp_here(closed, float_model, prompt):
    expected = python_greedy(open_python(float_model), prompt, 32)
    assert len(set(expected)) > 16  # a sentence, not one word again and again
    closed.open(float_model)
    assert greedy(closed.decode, prompt, 32) == expected
    closed.ask("close")


def test_rows_are_those_of_llama_cpp_here(native, python, prompt):
    """Compare rows of the quantised model, evaluated in two parts, except at near-ties."""
    answer = python_greedy(python, prompt, 50)
    ids = prompt + answer
    assert len(prompt) < 64 < len(ids)
    rows = native.decode(ids, len(answer) + 1)[:-1]
    python.truncate(0)
    near = 0
    for i, token in enumerate(answer):
        logits = python.decode(prompt if i == 0 else answer[i - 1 : i]).logits[0]
        second, first = np.sort(logits)[-2:]
        near += first - second < 0.5
        assert rows[i] == token or first - second < 0.5, f"row {i}"
    assert near < len(answer) / 2


def test_what_was_cut_is_forgotten(native, python):
    ids = python.tokenizer.encode("The capital of France is")
    answer = greedy(native.decode, ids, 6)
    assert native.n_past() == len(ids) + 5
    native.ask("truncate", len(ids))
    assert native.n_past() == len(ids)
    native.decode([1, 2, 3])
    native.ask("truncate", len(ids))
    native.ask("truncate", len(ids) + 5)  # there is nothing to forget
    assert native.n_past() == len(ids)
    assert greedy(native.decode, answer[:1], 5) == answer[1:]


def test_the_vocabulary_is_pythons(native, python):
    size, n_ctx, n_past = native.ids("sizes")
    assert (size, n_ctx, n_past) == (python.vocab_size, N_CTX, 0)
    entries = native.octets("entries")
    assert hashlib.sha256(entries).digest()[:16] == protocol.vocabulary_hash(python.tokenizer, size)
    for token in [*range(0, size, 5), size - 1]:
        assert native.octets("piece", token) == python.tokenizer.piece(token)
    ends = [token for token in range(0, 200) if native.ids("end", token)[0]]
    assert ends == [token for token in range(0, 200) if python.tokenizer.is_eog(token)] != []


@pytest.mark.parametrize("add_special", [0, 1])
def test_texts_become_pythons_tokens(native, python, add_special):
    for text in TEXTS:
        expected = python.tokenizer.encode(text, add_special=bool(add_special))
        assert native.ids("encode", add_special, hexed(text)) == expected


def test_conversations_become_pythons_tokens(native, prompt, python):
    assert native.octets("template").decode() == python.tokenizer.chat_template
    assert native.chat(QUESTION) == prompt
    messages = [
        *QUESTION,
        {"role": "assistant", "content": "Because of Rayleigh."},
        {"role": "user", "content": "Größer? 🙂"},
    ]
    rendered = templates.render(
        python.tokenizer.chat_template, messages, python.tokenizer.special()
    )
    assert native.chat(messages) == chat.encode(python.tokenizer, rendered)


def test_other_caches_and_threads_answer_too(closed, python):
    """Phones use these settings; F32 is for tests only."""
    ids = python.tokenizer.encode("The capital of France is")
    for settings in (
        {"type_k": F16, "type_v": F16, "threads": 2},
        {"type_k": Q8_0, "type_v": Q8_0},
    ):
        closed.open(flash_attention=1, **settings)
        assert python.tokenizer.piece(closed.decode(ids)[0]) == b" Paris"
        closed.ask("close")


def test_a_stopped_decode_leaves_the_cache_as_it_was(native, python):
    ids = python.tokenizer.encode("The capital of France is")
    answer = greedy(native.decode, ids, 4)
    native.ask("truncate", len(ids))
    started = time.monotonic()
    native.decode([100] * (1 if EMULATED else 128))
    ms = (time.monotonic() - started) * 750  # in the second of seven evaluations, as a rule
    native.ask("truncate", len(ids))
    with pytest.raises(JavaError, match="stopped while 448 tokens were read") as caught:
        native.ask("decode_cancelled", int(ms), 1, *[100] * 448)
    assert caught.value.kind == "java.io.InterruptedIOException"
    assert native.n_past() == len(ids)
    assert greedy(native.decode, answer[:1], 3) == answer[1:]


def test_a_full_context_is_said(native):
    native.decode([100] * 3)
    with pytest.raises(JavaError, match="no room in the cache for 510 tokens after 3 of 512") as e:
        native.decode([100] * 510)
    assert e.value.kind == IO
    assert native.n_past() == 3
    assert native.decode([100])


@pytest.mark.skipif(EMULATED, reason="takes minutes under qemu")
def test_a_context_can_be_filled_and_cut(native):
    native.decode([100] * 512)
    with pytest.raises(JavaError, match="no room in the cache for 1 tokens after 512 of 512"):
        native.decode([100])
    native.ask("truncate", 3)
    assert native.decode([100])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("decode", 1, 49152), "there is no token 49152; the model's vocabulary has 0 to 49151"),
        (("decode", 1, 5, -1), "there is no token -1"),
        (("decode", 3, 5, 6), "3 rows of 2 tokens"),
        (("decode", 0, 5), "0 rows of 1 tokens"),
        (("decode", 1), "1 rows of 0 tokens"),
        (("piece", 49152), "there is no token 49152"),
        (("piece", -1), "there is no token -1"),
        (("end", 49152), "there is no token 49152"),
        (("truncate", -1), "cannot be cut to -1 tokens"),
    ],
)
def test_bad_arguments_are_said(native, words, sentence):
    with pytest.raises(JavaError, match=sentence) as caught:
        native.ask(*words)
    assert caught.value.kind == ARGUMENT
    assert native.n_past() == 0


@pytest.mark.parametrize(
    "words",
    [
        ("sizes",),
        ("decode", 1, 5),
        ("truncate", 0),
        ("encode", 1, "41"),
        ("chat", "41", "41"),
        ("template",),
        ("piece", 5),
        ("end", 5),
        ("entries",),
    ],
)
def test_a_closed_model_says_so(closed, words):
    with pytest.raises(JavaError, match="the model is closed; open it again") as caught:
        closed.ask(*words)
    assert caught.value.kind == "java.lang.IllegalStateException"


def test_a_file_that_is_no_model_is_said(closed, tmp_path):
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(MODEL.read_bytes()[:5_000_000])
    text = tmp_path / "text.gguf"
    text.write_text("not a model at all, " * 10)
    for path, reason in [
        (cut, "tensor|corrupt|bounds"),
        (text, "magic|GGUF"),
        (tmp_path / "none", "."),
    ]:
        with pytest.raises(JavaError, match=reason) as caught:
            closed.open(path)
        assert caught.value.kind == IO
        assert "gives no reason" not in caught.value.sentence
    closed.open()  # and then a good one
    closed.ask("close")


def test_settings_that_cannot_be_are_said(closed):
    with pytest.raises(JavaError, match="a context of 0 tokens") as caught:
        closed.open(n_ctx=0)
    assert caught.value.kind == ARGUMENT
    with pytest.raises(JavaError, match="caches of types 1 and 7"):
        closed.open(type_k=F16, type_v=7)
    with pytest.raises(
        JavaError, match=r"no context of 512 tokens could be made .*V cache"
    ) as caught:
        closed.open(type_v=Q8_0)  # not without flash attention
    assert caught.value.kind == IO
