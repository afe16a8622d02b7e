"""Requests to every API are sampled as the model recommends where they do not say how."""

from __future__ import annotations

import pytest

from edgespec.sampling.defaults import SamplingDefaults

ASK = [{"role": "user", "content": "hello"}]
OWN = SamplingDefaults(
    {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05}, "published"
)
REQUESTS = {
    "/v1/chat/completions": {"messages": ASK, "max_tokens": 2},
    "/v1/completions": {"prompt": "abc", "max_tokens": 2},
    "/v1/responses": {"input": "hello", "max_output_tokens": 2},
    "/v1/messages": {"messages": ASK, "max_tokens": 2},
    "/completion": {"prompt": "abc", "n_predict": 2},
}
every_api = pytest.mark.parametrize("path", REQUESTS)


@pytest.fixture
def asked(engine, client_of, monkeypatch):
    """Return what sends a request and returns the settings that the engine ran it with."""
    engine.sampling = OWN
    seen, run = [], engine.run

    def noted(prompt, params, **more):
        seen.append(params)
        return run(prompt, params, **more)

    monkeypatch.setattr(engine, "run", noted)

    def ask(path, operator=(), **more):
        client = client_of(sampling=dict(operator))
        response = client.post(path, json={"model": "toy"} | REQUESTS[path] | more)
        assert response.status_code == 200, response.text
        params = seen.pop()
        return params.temperature, params.top_k, params.top_p, params.repetition_penalty

    return ask


@every_api
def test_the_models_own_is_the_default(asked, path):
    assert asked(path) == (0.7, 20, 0.8, 1.05)
    assert asked(path, temperature=None, top_p=None) == (0.7, 20, 0.8, 1.05)


@every_api
def test_a_setting_of_a_request_replaces_that_one_alone(asked, path):
    assert asked(path, top_p=0.5) == (0.7, 20, 0.5, 1.05)
    assert asked(path, temperature=1.0) == (1.0, 20, 0.8, 1.05)


@every_api
def test_temperature_0_is_the_argmax(asked, path):
    assert asked(path, temperature=0) == (0, 0, 1, 1)
    assert asked(path, operator={"temperature": 0}) == (0, 0, 1, 1)


@every_api
def test_the_operator_comes_between(asked, path):
    operator = {"temperature": 0.3, "top_k": 5}
    assert asked(path, operator) == (0.3, 5, 0.8, 1.05)
    assert asked(path, operator, temperature=0.4) == (0.4, 5, 0.8, 1.05)


def test_forms_are_sampled_likewise(asked):
    pytest.importorskip("llguidance")
    form = {"type": "json_schema", "json_schema": {"schema": {"type": "boolean"}}}
    chat = "/v1/chat/completions"
    assert asked(chat, response_format=form, max_tokens=9) == (0.7, 20, 0.8, 1.05)


def test_the_models_card_and_answers_say_it(engine, client_of):
    engine.sampling = OWN
    client = client_of(sampling={"top_k": 5})
    card = client.get("/v1/models").json()["data"][0]
    said = "temperature 0.7, top_k 5, top_p 0.8, repetition_penalty 1.05"
    assert card["sampling"] == f"{said} (top_k as asked, the rest published)"
    answer = client.post("/v1/chat/completions", json=REQUESTS["/v1/chat/completions"]).json()
    assert answer["edgespec"]["sampling"] == said
    described = client.get("/openapi.json").json()["components"]["schemas"]
    temperature = described["ChatRequest"]["properties"]["temperature"]
    assert "Default: the model's own" in temperature["description"]
