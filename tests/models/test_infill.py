"""Filling in the middle with a model that was trained for it."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

import edgespec
from edgespec.decoding.infill import markers_of
from edgespec.server.app import create_app
from edgespec.server.settings import ServerSettings
from tests.server.test_llama_server import CONTINUE_LLAMA, VIM, text_of_stream

PREFIX = "def add(first, second):\n    return first"
SUFFIX = "\n\nprint(add(2, 3))\n"


@pytest.fixture(scope="module")
def coder_engine(small_coder):
    options = {"n_ctx": 2048, "speculative_config": {"method": "none"}}
    with edgespec.load(small_coder, None, **options) as engine:
        yield engine


@pytest.fixture(scope="module")
def client(coder_engine):
    made = create_app(coder_engine, ServerSettings("coder", sampling={"temperature": 0}))
    with TestClient(made, base_url="http://localhost", client=("127.0.0.1", 1)) as client:
        yield client


def test_the_markers_of_a_vocabulary(coder_engine):
    tokenizer = coder_engine.tokenizer
    texts = {tokenizer.token_text(token).decode() for token in markers_of(tokenizer).all}
    assert texts == {
        "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>",
        "<|file_sep|>",
    }  # fmt: skip
    assert tokenizer.infill_texts() == ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")


def test_the_catalogue_says_that_it_was_trained_for_it(client):
    assert client.get("/v1/models").json()["data"][0]["fill_in_middle"] == "trained"


def test_it_fills_in_what_belongs_there(client):
    body = VIM | {"input_prefix": PREFIX, "input_suffix": SUFFIX, "prompt": ""}
    told = client.post("/infill", json=body).json()
    assert told["content"].startswith(" + second")
    answer = client.post(
        "/v1/completions", json={"prompt": PREFIX, "suffix": SUFFIX, "max_tokens": 30}
    )
    assert answer.json()["choices"][0]["text"].startswith(" + second\n")
    prompt = f"<|fim_prefix|>{PREFIX}<|fim_suffix|>{SUFFIX}<|fim_middle|>"
    streamed = client.post("/completion", json=CONTINUE_LLAMA | {"prompt": prompt}).text
    assert text_of_stream(streamed, lambda event: event["content"]).startswith(" + second")


@pytest.mark.long(
    "reads hundreds of tokens of real weights; tests/server/test_llama_server.py has toys"
)
def test_the_files_before_it_are_read_once(client):
    extra = [{"filename": "a.py", "text": "def double(x):\n    return 2 * x\n" * 20}]
    warm = VIM | {"input_extra": extra, "input_prefix": "", "input_suffix": "", "prompt": "",
                  "n_predict": 0}  # fmt: skip
    assert client.post("/infill", json=warm).json()["content"] == ""
    body = VIM | {"input_extra": extra, "input_prefix": PREFIX, "input_suffix": SUFFIX}
    first = client.post("/infill", json=body | {"prompt": ""}).json()
    assert first["timings/prompt_n"] < 40 < first["tokens_cached"]
    second = client.post("/infill", json=body | {"prompt": " +"}).json()
    assert second["timings/prompt_n"] <= 3  # the file around the hole is read already
    assert second["content"].startswith(" second")
