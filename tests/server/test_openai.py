"""Chats and completions over a toy engine: shapes, sampling, speculation."""

from __future__ import annotations

import json

import pytest

import edgespec
from edgespec.server.apis.chat_completions.writer import ChatWriter
from edgespec.server.apis.completions import TextWriter
from edgespec.server.apis.openai_writer import Envelope
from edgespec.server.base import Answer
from edgespec.types import Completion, Event, Logprob, Stats

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def text_of(chunks):
    return "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])


def test_models(client):
    listed = client.get("/v1/models").json()
    assert [m["id"] for m in listed["data"]] == ["toy"]
    assert listed["object"] == "list"
    assert client.get("/v1/models/toy").json() == listed["data"][0]
    missing = client.get("/v1/models/gpt-4o")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


def test_a_model_name_may_have_slashes(client_of, say):
    client = client_of(model="hf:org/repo/file.gguf")
    assert client.get("/v1/models/hf:org/repo/file.gguf").status_code == 200
    assert client.get("/v1/models/toy").status_code == 404
    assert client.post(CHAT, json=say("hello", model="toy")).status_code == 404


def test_a_file_name_stands_for_the_stem_that_is_served(client, say):
    assert client.post(CHAT, json=say("hello", model="toy.gguf")).json()["model"] == "toy"
    assert client.get("/v1/models/toy.onnx").status_code == 404


@pytest.mark.parametrize(
    ("theirs", "ours"), [("n_predict", "max_tokens"), ("repeat_penalty", "repetition_penalty")]
)
def test_fields_of_other_servers_name_ours(client, say, theirs, ours):
    for path, body in ((CHAT, say("hello")), (TEXT, {"prompt": "hello"})):
        told = client.post(path, json=body | {theirs: 1}).json()["error"]
        assert told["message"] == f"unknown parameter {theirs!r}; here it is {ours!r}"
        assert (told["param"], told["code"]) == (theirs, "unknown_parameter")


PATHS = (CHAT, "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens")
ASKED = {
    "messages": [{"role": "user", "content": "hello"}], "prompt": "a", "input": "hello",
    "max_tokens": 1,
}  # fmt: skip
FIELDS = {
    CHAT: ("messages",), "/v1/completions": ("prompt",), "/v1/responses": ("input",),
    "/v1/messages": ("messages", "max_tokens"), "/v1/messages/count_tokens": ("messages",),
}  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_each_alias_is_a_name_of_the_model(client_of, path):
    client = client_of(model="robot", aliases=("gpt-4o", "org/claude-5"))
    body = {name: ASKED[name] for name in FIELDS[path]}
    for name in ("robot", "gpt-4o", "gpt-4o.gguf", "org/claude-5"):
        answer = client.post(path, json=body | {"model": name})
        assert answer.status_code == 200
        assert answer.json().get("model", "robot") == "robot"
    refused = client.post(path, json=body | {"model": "gpt-5"})
    assert refused.status_code == 404
    assert "'robot', 'gpt-4o', 'org/claude-5'" in refused.json()["error"]["message"]


@pytest.mark.parametrize("path", PATHS)
def test_any_model_may_be_named(client_of, path):
    client = client_of(any_model=True)
    body = {name: ASKED[name] for name in FIELDS[path]}
    answer = client.post(path, json=body | {"model": "claude-opus-9"})
    assert answer.status_code == 200
    assert answer.json().get("model", "toy") == "toy"
    assert client.get("/v1/models/claude-opus-9").json()["id"] == "toy"


def test_every_name_is_listed(client_of):
    client = client_of(model="robot", aliases=("gpt-4o", "robot"))
    assert [card["id"] for card in client.get("/v1/models").json()["data"]] == ["robot", "gpt-4o"]
    assert client.get("/v1/models/gpt-4o").json()["id"] == "gpt-4o"


def test_a_whole_chat_answer(client, say):
    answer = client.post(CHAT, json=say("hello", model="toy")).json()
    choice = answer["choices"][0]
    assert choice["message"] == {
        "role": "assistant", "content": "Hi, what can I do?", "refusal": None,
    }  # fmt: skip
    assert (choice["index"], choice["finish_reason"], choice["stop_reason"]) == (0, "stop", 256)
    assert (answer["object"], answer["model"]) == ("chat.completion", "toy")
    usage = answer["usage"]
    assert usage["completion_tokens"] == len("Hi, what can I do?") + 1
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    again = client.post(CHAT, json=say("hello")).json()
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert again["id"] != answer["id"]


def test_the_figures_of_speculation(client, say):
    answer = client.post(CHAT, json=say("again")).json()
    told, timings = answer["edgespec"], answer["timings"]
    assert told["num_draft_tokens"] > told["num_accepted_draft_tokens"] > 0
    assert told["mean_acceptance_length"] == pytest.approx(
        1 + told["num_accepted_draft_tokens"] / told["num_spec_steps"], abs=1e-3
    )
    assert timings["draft_n"] == told["num_draft_tokens"]
    assert timings["predicted_n"] == answer["usage"]["completion_tokens"]
    plain = client.post(CHAT, json=say("again", disable_spec_decode=True)).json()
    assert plain["edgespec"]["num_draft_tokens"] == 0
    assert plain["edgespec"]["speculation"] == "off: disabled by request"
    assert plain["choices"] == answer["choices"]
    shallow = client.post(CHAT, json=say("again", num_draft_tokens=1)).json()
    assert len(shallow["edgespec"]["drafted_per_position"]) == 1


def test_a_streamed_chat_answer(client, say, events):
    whole = client.post(CHAT, json=say("again")).json()
    response = client.post(CHAT, json=say("again", stream=True))
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, done = events(response.text)
    assert done == "[DONE]"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert text_of(chunks) == whole["choices"][0]["message"]["content"]
    assert {c["object"] for c in chunks} == {"chat.completion.chunk"}
    assert len({c["id"] for c in chunks}) == 1
    last = chunks[-1]
    assert last["choices"][0]["finish_reason"] == "stop"
    assert last["edgespec"]["num_accepted_draft_tokens"] == sum(
        c["choices"][0].get("from_draft", False) for c in chunks
    )
    assert last["timings"]["draft_n"] > 0
    assert all("usage" not in c for c in chunks)


def test_usage_at_the_end_of_a_stream(client, say, events):
    body = say("hello", stream=True, stream_options={"include_usage": True})
    *chunks, last, _ = events(client.post(CHAT, json=body).text)
    assert all(c["usage"] is None for c in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == len("Hi, what can I do?") + 1
    refused = client.post(CHAT, json=say("hello", stream_options={"include_usage": True}))
    assert refused.json()["error"]["param"] == "stream_options"


def test_conversations_roles_and_parts(client):
    def answer(*messages):
        return client.post(CHAT, json={"messages": messages}).json()["choices"][0]["message"]

    parts = [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]
    asked = {"role": "user", "content": parts}
    assert answer({"role": "system", "content": "be"}, asked)["content"] == "be|xy"
    assert answer({"role": "developer", "content": "be"}, asked)["content"] == "be|xy"
    said = answer(asked)
    assert said["content"] == "|xy"
    assert answer(asked, said, {"role": "user", "content": "z"})["content"] == "|z"


def test_stop_and_length(client, say, events):
    def choice(**more):
        return client.post(CHAT, json=say("hello", **more)).json()["choices"][0]

    cut = choice(stop="can")
    assert (cut["message"]["content"], cut["finish_reason"]) == ("Hi, what ", "stop")
    assert cut["stop_reason"] == "can"
    assert choice(stop=["xyz", "I do"])["message"]["content"] == "Hi, what can "
    assert choice(stop_token_ids=[ord("w")])["message"]["content"] == "Hi, "
    short = choice(max_completion_tokens=3)
    assert (short["message"]["content"], short["finish_reason"]) == ("Hi,", "length")
    assert choice(max_tokens=2)["message"]["content"] == "Hi"
    streamed = events(client.post(CHAT, json=say("hello", stop="can", stream=True)).text)
    assert text_of(streamed[:-1]) == "Hi, what "
    full = client.post(CHAT, json=say("hello", ignore_eos=True)).json()
    assert full["choices"][0]["finish_reason"] == "length"
    assert full["edgespec"]["finish_reason"] == "context_full"
    late = choice(time_limit_s=0)
    assert late["finish_reason"] == "length"
    assert client.post(CHAT, json=say("hello", time_limit_s=-1)).status_code == 400


def test_seeds(client):
    def text(**more):
        body = {"prompt": "a", "temperature": 100, "max_tokens": 12, **more}
        return client.post(TEXT, json=body).json()["choices"][0]["text"]

    assert text(seed=5) == text(seed=5) == text(seed=5, disable_spec_decode=True)
    assert text(seed=5) != text(seed=6)
    assert text(seed=-2) == text(seed=2**64 - 2)
    assert len({text() for _ in range(3)}) > 1
    assert len({text(seed=-1) for _ in range(3)}) > 1  # as in llama.cpp


def test_bias_changes_the_choice(client):
    body = {"prompt": "a", "max_tokens": 1, "logit_bias": {str(ord("z")): 100}}
    assert client.post(TEXT, json=body).json()["choices"][0]["text"] == "z"
    wrong = client.post(TEXT, json=body | {"logit_bias": {"999": 1}})
    assert wrong.status_code == 400
    assert "999" in wrong.json()["error"]["message"]


def test_the_servers_own_sampling_is_what_requests_get_that_say_nothing(client_of):
    client = client_of(sampling={"max_tokens": 3, "stop": ("e",)})
    ask = {"prompt": "a"}
    assert client.post(TEXT, json=ask).json()["choices"][0]["text"] == "bcd"
    assert client.post(TEXT, json=ask | {"max_tokens": 2}).json()["choices"][0]["text"] == "bc"
    longer = client.post(TEXT, json=ask | {"max_tokens": 9}).json()["choices"][0]
    assert longer["text"] == "bcd"


def test_completions_of_text_ids_and_several(client, events):
    def post(prompt, **more):
        body = {"prompt": prompt, "max_tokens": 3, **more}
        return client.post(TEXT, json=body).json()

    one = post("abc")
    assert (one["object"], one["choices"][0]["text"]) == ("text_completion", "def")
    assert len(post("a", max_tokens=None)["choices"][0]["text"]) == 16
    assert post([97, 98])["choices"][0]["text"] == "cde"
    several = post(["abc", "x"])
    assert [(c["index"], c["text"]) for c in several["choices"]] == [(0, "def"), (1, "yz{")]
    assert several["usage"]["completion_tokens"] == 6
    assert all(c["edgespec"]["num_emitted_tokens"] == 3 for c in several["choices"])
    assert [c["text"] for c in post([[97], [120]])["choices"]] == ["bcd", "yz{"]
    body = {"prompt": ["abc", "x"], "max_tokens": 2, "stream": True}
    *chunks, _ = events(client.post(TEXT, json=body).text)
    told = [(c["choices"][0]["index"], c["choices"][0]["text"]) for c in chunks]
    assert told == [(0, "d"), (0, "e"), (0, ""), (1, "y"), (1, "z"), (1, "")]


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ([97, "x"], "mixes"), ([], "length at least 1"), ("", "empty"),
        ([[]], "length at least 1"), ([300], "vocabulary"),
        ({"a": 1}, "text or a list"), (["a"] * 65, "64"), ("a" * 513, "513 tokens"),
        (None, "missing"),
    ],
)  # fmt: skip
def test_prompts_that_cannot_be(client, prompt, says):
    response = client.post(TEXT, json={"prompt": prompt})
    assert response.status_code == 400
    assert says in response.json()["error"]["message"]


def test_a_prompt_limit_below_the_context(client_of, say):
    client = client_of(max_prompt_tokens=40)
    assert client.post(TEXT, json={"prompt": "a" * 40, "max_tokens": 1}).status_code == 200
    for path, body in ((TEXT, {"prompt": "a" * 41}), (CHAT, say("a" * 41))):
        error = client.post(path, json=body).json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert error["param"] in ("prompt", "messages")


def test_logprobs_of_chats(client, say, events):
    choice = client.post(CHAT, json=say("umlaut", logprobs=True, top_logprobs=2)).json()["choices"]
    content = choice[0]["logprobs"]["content"]
    assert b"".join(bytes(t["bytes"]) for t in content).decode() == "Grüße aus Köln"
    assert all(len(t["top_logprobs"]) == 2 for t in content)
    assert content[0]["top_logprobs"][0]["token"] == "G"
    assert -0.01 < content[0]["logprob"] <= 0
    body = say("umlaut", logprobs=True, stream=True)
    chunks = events(client.post(CHAT, json=body).text)[:-1]
    told = [c["choices"][0]["logprobs"] or {"content": []} for c in chunks]
    assert [t for one in told for t in one["content"]] == [
        t | {"top_logprobs": []} for t in content
    ]
    assert text_of(chunks) == "Grüße aus Köln"
    assert client.post(CHAT, json=say("umlaut")).json()["choices"][0]["logprobs"] is None
    alone = client.post(CHAT, json=say("umlaut", top_logprobs=2))
    assert alone.json()["error"]["param"] == "top_logprobs"


def test_logprobs_of_completions(client, events):
    body = {"prompt": "ab", "max_tokens": 3, "logprobs": 2}
    told = client.post(TEXT, json=body).json()["choices"][0]["logprobs"]
    assert told["tokens"] == ["c", "d", "e"]
    assert told["text_offset"] == [0, 1, 2]
    assert [next(iter(top)) for top in told["top_logprobs"]] == ["c", "d", "e"]
    assert told["token_logprobs"][1] == told["top_logprobs"][1]["d"]
    ids = client.post(TEXT, json=body | {"return_tokens_as_token_ids": True}).json()
    assert ids["choices"][0]["logprobs"]["tokens"] == [
        "token_id:99",
        "token_id:100",
        "token_id:101",
    ]
    chunks = events(client.post(TEXT, json=body | {"stream": True}).text)[:-1]
    offsets = [c["choices"][0]["logprobs"]["text_offset"] for c in chunks[:-1]]
    assert offsets == [[0], [1], [2]]


def test_each_of_the_likeliest_tokens_has_its_own_key():
    """Tokens that look alike: equal texts, and bytes that are no text by themselves."""
    vocab = ["a", "b", b"\xe2", b"\xe3", "a", "\ufffd", "</s>"]
    envelope = Envelope(
        model="m", tokenizer=edgespec.ToyTokenizer(vocab, [6]), fingerprint="f", logprobs=True
    )
    tops = [((0, -1.0), (4, -2.0)), ((0, -1.0), (4, -2.0)), ((2, -1.0), (3, -2.0), (5, -3.0)), ()]
    sampled = [(4, -2.0), (1, -5.0), (3, -2.0), (0, -1.0)]
    logprobs = tuple(Logprob(value, top) for (_, value), top in zip(sampled, tops, strict=True))
    tokens = tuple(token for token, _ in sampled)
    completion = Completion("", tokens, "length", None, Stats(), logprobs)
    answer = Answer()
    answer.take(Event("done", completion=completion))
    told = TextWriter(envelope).whole([answer])["choices"][0]["logprobs"]
    assert told["tokens"] == ["a", "b", "bytes:\\xe3", "a"]
    assert told["top_logprobs"] == [
        {"token_id:0": -1.0, "a": -2.0},
        {"a": -1.0, "token_id:4": -2.0, "b": -5.0},
        {"bytes:\\xe2": -1.0, "bytes:\\xe3": -2.0, "bytes:\\xef\\xbf\\xbd": -3.0},
        {"a": -1.0},
    ]
    own = [top[name] for top, name in zip(told["top_logprobs"], told["tokens"], strict=True)]
    assert own == told["token_logprobs"]


def test_the_sampled_token_is_one_more_than_was_asked_for(client):
    """Drawn at a high temperature, it is rarely the likeliest."""
    body = {"prompt": "ab", "max_tokens": 40, "logprobs": 1, "temperature": 100, "seed": 1}
    told = client.post(TEXT, json=body).json()["choices"][0]["logprobs"]
    for name, value, top in zip(told["tokens"], told["token_logprobs"], told["top_logprobs"],
                                strict=True):  # fmt: skip
        assert top[name] == value
        assert len(top) == (1 if value == max(top.values()) else 2)
    assert max(map(len, told["top_logprobs"])) == 2


@pytest.mark.parametrize("stop", [None, ["aus Berlin"]])
def test_offsets_count_characters_that_tokens_share(client, events, stop):
    """A stop string holds text back in a stream, and moves no token."""
    prompt = "<|im_start|>user\numlaut<|im_end|>\n<|im_start|>assistant\n"
    body = {"prompt": prompt, "max_tokens": 50, "logprobs": 0, "stop": stop}
    choice = client.post(TEXT, json=body).json()["choices"][0]
    assert choice["text"] == "Grüße aus Köln"
    written = choice["text"].encode()
    begins = [len(written[:i].decode(errors="ignore")) for i in range(len(written))]
    assert choice["logprobs"]["text_offset"] == begins
    chunks = events(client.post(TEXT, json=body | {"stream": True}).text)[:-1]
    told = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [at for each in told if each for at in each["text_offset"]] == begins


def test_what_is_impossible_is_still_json(engine):
    from edgespec import Logprob

    told = Envelope(model="m", tokenizer=engine.tokenizer, fingerprint="f", logprobs=True)
    impossible = Logprob(float("-inf"), ((97, float("-inf")),))
    event = Event("token", 97, "a", logprob=impossible)
    writer = ChatWriter(told, has_parts=False)
    writer.begin(0)
    (sent,) = writer.part(0, event)
    choice = json.loads(sent.removeprefix("data: "))["choices"][0]
    entry = choice["logprobs"]["content"][0]
    assert entry["logprob"] == entry["top_logprobs"][0]["logprob"] == -9999.0


def test_a_template_that_refuses_is_the_clients_error(client_of, engine, say):
    engine.tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    response = client_of().post(CHAT, json=say("hello"))
    assert response.status_code == 400
    assert "roles must alternate" in response.json()["error"]["message"]
    assert response.json()["error"]["param"] == "messages"


def test_bos_is_written_once(client_of, engine, say, monkeypatch):
    """The server reads chats as `engine.chat` does."""
    seen = []
    encode = engine.tokenizer.encode

    def spy(text, **options):
        seen.append((text[:3], options))
        return encode(text, **options)

    monkeypatch.setattr(engine.tokenizer, "encode", spy)
    monkeypatch.setattr(engine.tokenizer, "special", lambda: {"bos_token": "<s>", "eos_token": ""})
    engine.tokenizer.chat_template = "{{ bos_token }}user\n{{ messages[0].content }}"
    client_of().post(CHAT, json=say("hello", max_tokens=1))
    assert seen == [("<s>", {"add_special": False, "parse_special": True})]


def test_the_server_as_a_target_of_fan_out(running, engine, say):
    """Devices that know no WebSocket verify through /v1/completions, end tokens included."""
    from edgespec.config import RemoteConfig
    from edgespec.decoding.session import Session
    from edgespec.drafters.suffix import SuffixDrafter
    from edgespec.engine import Engine
    from edgespec.policies.fixed import FixedDepth
    from edgespec.verifiers import connect

    with running(engine) as server:
        verifier = connect(RemoteConfig("openai+" + server.url), engine.tokenizer)
        assert verifier.name == "edgespec"
        session = Session(verifier, [SuffixDrafter(2)], FixedDepth(3))
        with Engine([session], engine.tokenizer) as device:
            for said in ("hello", "again", "umlaut"):
                prompt = f"<|im_start|>user\n{said}<|im_end|>\n<|im_start|>assistant\n"
                ours = engine.generate(prompt, max_tokens=100)
                theirs = device.generate(prompt, max_tokens=100)
                assert theirs.token_ids == ours.token_ids
                assert theirs.finish_reason == ours.finish_reason == "stop"
            assert theirs.stats.num_accepted_draft_tokens == 0
