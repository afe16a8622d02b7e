"""OpenAI's own client, and Anthropic's, unmodified, against a real model."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator

import anthropic
import openai
import pytest

import edgespec

KEY = "a-key-of-the-tests"
MODEL = "smollm2-135m"
ASK = [{"role": "user", "content": "Name the capital of France."}]


@pytest.fixture(scope="module")
def smollm2_engine(smollm2) -> Iterator[edgespec.Engine]:
    with edgespec.load(smollm2, draft=None, n_ctx=1024) as made:
        yield made


@pytest.fixture
def server(running, smollm2_engine):
    with running(smollm2_engine, model=MODEL, api_keys=(KEY,)) as made:
        yield made


@pytest.fixture
def client(server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as made:
        yield made


def test_models(client):
    assert [m.id for m in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "edgespec"


def test_chat_is_what_the_engine_says(client, smollm2_engine):
    answer = client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=16)
    own = smollm2_engine.chat().send(ASK[0]["content"], max_tokens=16)
    assert answer.choices[0].message.content == own.text == "The capital of France is Paris."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == own.stats.num_emitted_tokens
    assert answer.edgespec["num_emitted_tokens"] == own.stats.num_emitted_tokens
    assert answer.timings["predicted_n"] == own.stats.num_emitted_tokens


def test_the_answer_can_be_sent_back_as_it_came(client):
    answer = client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=16)
    more = [*ASK, answer.choices[0].message, {"role": "user", "content": "And of Italy?"}]
    again = client.chat.completions.create(model=MODEL, messages=more, max_tokens=16)
    assert "Rome" in again.choices[0].message.content
    assert again.usage.prompt_tokens_details.cached_tokens > answer.usage.prompt_tokens


def test_stream(client):
    stream = client.chat.completions.create(
        model=MODEL, messages=ASK, max_tokens=16, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "The capital of France is Paris."
    assert chunks[-1].usage.completion_tokens == 8
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-2].edgespec["num_emitted_tokens"] == 8


def test_responses_and_messages_say_the_same(client, server):
    answer = client.responses.create(model=MODEL, input=ASK, max_output_tokens=16)
    assert answer.output_text == "The capital of France is Paris."
    with anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0) as other:
        with other.messages.stream(model=MODEL, messages=ASK, max_tokens=16) as stream:
            assert "".join(stream.text_stream) == answer.output_text
        usage = stream.get_final_message().usage
        counted = other.messages.count_tokens(model=MODEL, messages=ASK)
    assert usage.output_tokens == answer.usage.output_tokens == 8
    assert counted.input_tokens == answer.usage.input_tokens
    assert usage.input_tokens + usage.cache_read_input_tokens == answer.usage.input_tokens


def test_stop(client):
    answer = client.chat.completions.create(model=MODEL, messages=ASK, stop=[" France", "xyz"])
    assert answer.choices[0].message.content == "The capital of"
    assert answer.choices[0].finish_reason == "stop"
    done = client.completions.create(model=MODEL, prompt="1, 2, 3, 4,", stop="7", max_tokens=30)
    assert done.choices[0].text == " 5, 6, "


def test_seed(client):
    def text(seed: int, **more) -> str:
        answer = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Tell me a story."}],
            temperature=1.5, seed=seed, max_tokens=24, extra_body=more,
        )  # fmt: skip
        return answer.choices[0].message.content

    assert text(1) == text(1)
    assert len({text(1), text(2), text(3)}) > 1


def test_logprobs(client, smollm2_engine):
    answer = client.chat.completions.create(
        model=MODEL, messages=ASK, logprobs=True, top_logprobs=3, max_tokens=5
    )
    content = answer.choices[0].logprobs.content
    assert "".join(t.token for t in content) == answer.choices[0].message.content
    assert all(t.logprob == t.top_logprobs[0].logprob <= 0 for t in content)  # greedy
    done = client.completions.create(model=MODEL, prompt="1, 2, 3,", logprobs=2, max_tokens=4)
    own = smollm2_engine.generate("1, 2, 3,", logprobs=2, max_tokens=4)
    told = done.choices[0].logprobs
    assert told.token_logprobs == pytest.approx([p.logprob for p in own.logprobs], abs=0.2)
    assert "".join(told.tokens) == done.choices[0].text == own.text


def test_refusals(client, server):
    with pytest.raises(openai.BadRequestError, match="unknown parameter 'guided_json'"):
        client.chat.completions.create(model=MODEL, messages=ASK, extra_body={"guided_json": {}})
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=ASK, n=0)
    assert (refused.value.param, refused.value.type) == ("n", "invalid_request_error")
    tool = {"type": "function", "function": {"name": "look"}}
    with pytest.raises(openai.BadRequestError, match="template") as refused:
        client.chat.completions.create(model=MODEL, messages=ASK, tools=[tool])
    assert refused.value.param == "tools"
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-4o", messages=ASK)
    assert missing.value.code == "model_not_found"
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong") as stranger:
        with pytest.raises(openai.AuthenticationError) as stopped:
            stranger.models.list()
        assert stopped.value.code == "invalid_api_key"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model=MODEL, prompt="word " * 2000)
    assert long.value.code == "context_length_exceeded"


def test_eight_at_once_each_get_their_own_answer(client):
    def ask(n: int) -> str:
        done = client.completions.create(
            model=MODEL, prompt=f"{n}, {n + 1}, {n + 2},", max_tokens=6
        )
        return done.choices[0].text

    alone = [ask(n) for n in range(8)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == alone


def test_a_stream_that_is_left_frees_the_model(client):
    stream = client.completions.create(
        model=MODEL, prompt="Once upon a time", max_tokens=900, stream=True,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    next(iter(stream))
    stream.close()
    answer = client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=16, timeout=30)
    assert answer.choices[0].message.content == "The capital of France is Paris."
