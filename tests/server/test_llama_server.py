"""Filling in the middle, and llama.cpp's own API, over a model that has learned one text.

The bodies are those that the clients send: llama.vim at commit a1c8e6e (autoload/llama.vim),
llama.vscode at 3938fb3 (src/llama-server.ts), Continue's providers `openai` and `llama.cpp`
(core/llm/llms) with its template for Qwen (core/autocomplete/templating).
"""

from __future__ import annotations

import json
import logging
import time

import numpy as np
import pytest
from starlette.testclient import TestClient

import edgespec
from edgespec.server.app import create_app
from edgespec.server.settings import ServerSettings
from tests.unit.decoding.test_infill import QWEN, Marked

PREFIX, SUFFIX, MIDDLE = "def f(x):\n", "\nprint(f(2))\n", "    return x + 1\n    # done"
END = 256 + QWEN.index("<|fim_pad|>")
VIM = {
    "id_slot": 0, "input_prefix": PREFIX, "input_suffix": SUFFIX,
    "input_extra": [{"text": "x = 1\n", "time": [1, 2], "filename": "x.py"}],
    "prompt": "    ret", "n_predict": 128, "stop": [], "n_indent": 4, "top_k": 40, "top_p": 0.90,
    "samplers": ["top_k", "top_p", "infill"], "stream": False, "cache_prompt": True,
    "t_max_prompt_ms": 500, "t_max_predict_ms": 1000,
    "response_fields": [
        "content", "timings/prompt_n", "timings/prompt_ms", "timings/prompt_per_token_ms",
        "timings/prompt_per_second", "timings/predicted_n", "timings/predicted_ms",
        "timings/predicted_per_token_ms", "timings/predicted_per_second", "truncated",
        "tokens_cached",
    ],
}  # fmt: skip
VIM_WARMS = VIM | {
    "input_prefix": "", "input_suffix": "", "prompt": "", "n_predict": 0, "temperature": 0.0,
    "samplers": [], "t_max_prompt_ms": 1, "t_max_predict_ms": 1, "response_fields": [""],
}  # fmt: skip
VSCODE = {
    "id_slot": 0, "input_prefix": PREFIX, "input_suffix": SUFFIX,
    "input_extra": [{"text": "x = 1\n", "time": 1, "filename": "x.py"}], "prompt": "    ret",
    "n_predict": 128, "n_cmpl": 3, "top_k": 40, "top_p": 0.99, "stream": False,
    "samplers": ["top_k", "top_p", "infill"], "cache_prompt": True, "n_indent": 4,
    "t_max_prompt_ms": 500, "t_max_predict_ms": 2500,
}  # fmt: skip
STOPS = [
    "<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>", "<|file_sep|>", "<|im_start|>", "<|im_end|>", "\n\n", "\r\n\r\n", "/src/",
    "#- coding: utf-8", "```",
]  # fmt: skip
CONTINUE = {
    "model": "toy", "max_tokens": 4096, "temperature": 0.01, "stream": True, "stop": STOPS,
    "prompt": f"<|fim_prefix|>{PREFIX}<|fim_suffix|>{SUFFIX}<|fim_middle|>",
}  # fmt: skip
CONTINUE_LLAMA = {
    "prompt": CONTINUE["prompt"], "stream": True, "n_predict": 4096, "stop": STOPS,
    "temperature": 0.01,
}  # fmt: skip


class Coder:
    """Writes MIDDLE after the marker, then `ends`. seen: the prompts that were read."""

    def __init__(self) -> None:
        self.ends = END
        self.slow_s = 0.0  # seconds for each token of the second line
        self.seen: list[str] = []
        self.tokenizer = Marked(QWEN)

    def next_probs(self, tokens):
        text = self.tokenizer.shown(tokens)
        _, marker, said = text.rpartition("<|fim_middle|>")
        probs = np.full(self.tokenizer.vocab_size, 1e-9)
        time.sleep(self.slow_s if "\n" in said else 0)
        rest = MIDDLE.removeprefix(said) if MIDDLE.startswith(said) else ""
        if marker and said in ("", "    ret"):
            self.seen.append(text)
        probs[rest.encode()[0] if marker and rest else self.ends] = 1
        return probs / probs.sum()


@pytest.fixture
def coder():
    return Coder()


@pytest.fixture
def ask(coder):
    model = edgespec.ToyModel(coder.next_probs, vocab_size=coder.tokenizer.vocab_size, n_ctx=512)
    with (
        edgespec.assemble(
            model, coder.tokenizer, speculative_config={"method": "none"},
            description={"fills_in": True},
        ) as engine,
        TestClient(
            create_app(engine, ServerSettings("toy")), base_url="http://localhost",
            client=("127.0.0.1", 1),
        ) as client,
    ):  # fmt: skip
        yield lambda path, **body: client.post(path, json=body)


def text_of_stream(text: str, key) -> str:
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: {")]
    return "".join(key(json.loads(line)) for line in lines)


def test_what_llama_vim_sends(ask, coder):
    answer = ask("/infill", **VIM)
    assert answer.status_code == 200
    told = answer.json()
    assert told["content"] == MIDDLE.removeprefix("    ret")
    assert set(told) == set(VIM["response_fields"])
    assert told["timings/predicted_n"] > 0
    assert told["truncated"] is False
    framed = "<|repo_name|>myproject\n<|file_sep|>x.py\nx = 1\n<|file_sep|>filename\n"
    hole = f"<|fim_prefix|>{PREFIX}<|fim_suffix|>{SUFFIX}<|fim_middle|>"
    assert coder.seen[0] == f"{framed}{hole}    ret"


def test_what_llama_vim_sends_to_warm(ask):
    assert ask("/infill", **VIM_WARMS).json() == {}
    whole = ask("/infill", **VIM_WARMS | {"response_fields": None}).json()
    assert (whole["content"], whole["tokens_predicted"], whole["has_new_line"]) == ("", 0, False)
    warmed = ask("/infill", **VIM).json()["tokens_cached"]
    framed = "<|repo_name|>myproject\n<|file_sep|>x.py\nx = 1\n<|file_sep|>filename\n<|fim_prefix|>"
    assert warmed == len(Marked(QWEN).encode(framed))


def test_what_llama_vscode_sends(ask):
    told = ask("/infill", **VSCODE).json()
    assert told["content"] == MIDDLE.removeprefix("    ret")
    assert (told["stop"], told["stop_type"], told["stopping_word"]) == (True, "eos", "")
    assert told["timings"]["predicted_n"] == told["tokens_predicted"]
    assert told["generation_settings"]["n_predict"] == 128
    assert told["model"] == "toy"


@pytest.mark.parametrize("marker", QWEN)
def test_what_continue_sends(ask, coder, marker):
    coder.ends = 256 + QWEN.index(marker)
    streamed = ask("/v1/completions", **CONTINUE).text
    assert text_of_stream(streamed, lambda e: e["choices"][0]["text"]) == MIDDLE
    assert '"finish_reason":"stop"' in streamed
    streamed = ask("/completion", **CONTINUE_LLAMA).text
    assert text_of_stream(streamed, lambda e: e["content"]) == MIDDLE


@pytest.mark.parametrize("marker", QWEN)
def test_each_marker_ends_an_answer(ask, coder, marker):
    coder.ends = 256 + QWEN.index(marker)
    told = ask("/infill", input_prefix=PREFIX, input_suffix=SUFFIX, n_predict=100).json()
    assert (told["content"], told["stop_type"]) == (MIDDLE, "eos")
    answer = ask("/v1/completions", prompt=PREFIX, suffix=SUFFIX, max_tokens=100).json()
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == (MIDDLE, "stop")
    assert coder.seen[0] == f"<|fim_prefix|>{PREFIX}<|fim_suffix|>{SUFFIX}<|fim_middle|>"


def test_prompts_as_tokens_with_markers(ask, coder):
    coder.ends = 256 + QWEN.index("<|fim_prefix|>")
    ids = coder.tokenizer.encode(CONTINUE["prompt"])
    (choice,) = ask("/v1/completions", prompt=ids, max_tokens=100).json()["choices"]
    assert choice["text"] == MIDDLE
    refused = ask("/v1/completions", prompt=ids, suffix="x")
    assert refused.json()["error"]["param"] == "suffix"


def test_a_stream_ends_with_what_a_whole_answer_has(ask):
    whole = ask("/infill", **VSCODE).json()
    lines = ask("/infill", **VSCODE | {"stream": True}).text.splitlines()
    *chunks, last = [json.loads(line[6:]) for line in lines if line]
    assert "".join(chunk["content"] for chunk in chunks) == whole["content"]
    assert not any(chunk["stop"] for chunk in chunks)
    assert last["content"] == ""
    changing = ("content", "timings", "edgespec", "tokens_cached", "generation_settings")
    kept = {name: value for name, value in whole.items() if name not in changing}
    assert kept == {name: value for name, value in last.items() if name not in changing}


def test_a_time_limit_waits_for_a_line(ask, coder):
    coder.slow_s = 0.05
    one = ask("/infill", **VSCODE | {"t_max_predict_ms": 0.001}).json()
    assert one["content"].startswith("urn x + 1\n")
    assert not one["content"].endswith("done")
    assert one["stop_type"] == "limit"
    coder.slow_s = 0.0
    assert ask("/infill", **VSCODE | {"t_max_predict_ms": 0}).json()["stop_type"] == "eos"


def test_limits_and_stops(ask):
    told = ask("/infill", **VSCODE | {"n_predict": 3, "return_tokens": True}).json()
    assert (told["content"], told["tokens"], told["stop_type"]) == ("urn", [*b"urn"], "limit")
    told = ask("/infill", **VSCODE | {"stop": ["+ "]}).json()
    assert (told["content"], told["stop_type"], told["stopping_word"]) == ("urn x ", "word", "+ ")


def test_llama_cpps_word_for_a_new_seed(ask):
    seeds = {
        ask("/infill", **VSCODE | {"seed": -1}).json()["generation_settings"]["seed"]
        for _ in range(2)
    }
    assert seeds == {None}
    assert ask("/infill", **VSCODE | {"seed": 7}).json()["generation_settings"]["seed"] == 7


def test_a_long_text_is_cut_around_the_hole(ask, coder):
    answer = ask("/infill", **VIM | {"input_prefix": "#" * 5000 + PREFIX, "input_suffix": SUFFIX})
    assert answer.status_code == 200
    assert PREFIX in coder.seen[0]
    assert len(Marked(QWEN).encode(coder.seen[0])) <= 512 - 128
    long = ask("/v1/completions", prompt="#" * 5000, suffix=SUFFIX)
    assert long.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("n_predict", -2, "at least -1"),
        ("input_suffix", 3, "must be text"),
        ("input_extra", [{"text": 3}], "must be text"),
        ("t_max_predict_ms", -1, "at least 0"),
        ("mirostat", 2, "this sampler is not used"),
        ("lora", [{"id": 0}], "adapters are not applied"),
        ("n_predicts", 3, "did you mean 'n_predict'"),
        ("max_tokens", 3, "one thing"),
    ],
)
def test_refusals_name_the_field(ask, field, value, says):
    error = ask("/infill", **VIM | {field: value}).json()["error"]
    assert says in error["message"]
    if field != "max_tokens":
        assert error["param"].startswith(field)


def test_a_prefix_is_needed(ask):
    assert "'input_prefix' is missing" in ask("/infill", prompt="a").json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [("/infill", VIM), ("/v1/completions", {"prompt": "a", "suffix": "b"})],
)
def test_a_model_without_markers_says_so(client, path, body):
    refused = client.post(path, json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "unsupported_parameter"
    assert "cannot fill in" in refused.json()["error"]["message"]
    assert client.get("/v1/models").json()["data"][0]["fill_in_middle"] is None


def test_a_model_that_may_not_have_been_trained_for_it(coder, caplog):
    model = edgespec.ToyModel(coder.next_probs, vocab_size=coder.tokenizer.vocab_size, n_ctx=512)
    with (
        edgespec.assemble(model, coder.tokenizer) as engine,
        TestClient(
            create_app(engine, ServerSettings("toy")), base_url="http://localhost",
            client=("127.0.0.1", 1),
        ) as client,
        caplog.at_level(logging.WARNING, "edgespec.server"),
    ):  # fmt: skip
        assert client.get("/v1/models").json()["data"][0]["fill_in_middle"] == "markers"
        for _ in range(2):
            assert client.post("/infill", json=VIM).status_code == 200
    told = [each for each in caplog.messages if "was trained for this" in each]
    assert len(told) == 1


def test_a_model_that_was_trained_for_it(ask, caplog):
    with caplog.at_level(logging.WARNING, "edgespec.server"):
        ask("/infill", **VIM)
    assert not [each for each in caplog.messages if "trained" in each]
