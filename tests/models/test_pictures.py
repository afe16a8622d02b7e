"""Conversations with pictures: the same text with drafts as without, chats, slots, and eyes that
name colours.
"""

import functools
import json

import numpy as np
import pytest
from click.testing import CliRunner

import edgespec
from edgespec import ConfigError, ContextFull
from edgespec.backends.tiles import tiles_in
from edgespec.chat import templates
from edgespec.loading.assembly import assemble
from edgespec_cli.main import cli
from tests.helpers import (
    colour_eyes,
    libllama,
    projector_files,
    tiny_dflash,
    tiny_gemma4,
    tiny_heads,
    tiny_models,
    tiny_mtp,
)
from tests.helpers.colours import COLOURS
from tests.helpers.projector_files import KINDS, noise
from tests.helpers.reading import read
from tests.helpers.seeing import (
    ASKED,
    check_colours,
    check_drafts,
    check_stops,
    conversation,
    forced,
    serving,
)
from tests.helpers.selection import share

llama_cpp = libllama.require()
if llama_cpp.is_fork():
    pytest.skip("ik_llama.cpp's library shows no pictures", allow_module_level=True)

from tests.models.test_heads import Scripted  # noqa: E402

pytestmark = pytest.mark.llama_cpp

EQUAL = {"n_threads": 1, "flash_attn": "on", "use_extra_bufts": False, "type_v": "bf16"}
"""Settings with which rows of a tiny model do not depend on drafts."""
GREEDY = {"max_tokens": 16, "temperature": 0}
VOCABULARY = (20, 250)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Return a function that loads a tiny model with eyes, and a draft model that often agrees."""
    folder = tmp_path_factory.mktemp("tiny")

    @functools.cache
    def files(kind):
        text = projector_files.write_text(folder / f"{kind}.gguf", kind)
        projector_files.write(folder / f"{kind}-eyes.gguf", kind)
        projector_files.write_text(folder / f"{kind}-draft.gguf", kind, noisy=True)
        return text

    def load(kind, draft=False, **options):
        text = files(kind)
        return edgespec.load(
            text,
            draft=folder / f"{kind}-draft.gguf" if draft else None,
            n_ctx=512,
            **EQUAL | {"prompt_cache": "memory", "mmproj": folder / f"{kind}-eyes.gguf"} | options,
        )

    return load


@pytest.mark.parametrize("kind", KINDS)
def test_text_with_drafts_is_the_text_without(tiny, kind):
    check_drafts(
        lambda draft, spec: tiny(kind, draft, speculative_config=spec),
        functools.partial(noise, kind), VOCABULARY, share(30, 8), max_tokens=24,
    )  # fmt: skip


def test_a_recurrent_model_sees(tmp_path):
    from tests.models.test_recurrent import N_EMBD, write_mamba

    pytest.importorskip("gguf")
    write_mamba(text := tmp_path / "mamba.gguf")
    write_mamba(draft := tmp_path / "draft.gguf", noise=0.05)
    eyes = projector_files.write(tmp_path / "eyes.gguf", "mlp", N_EMBD)
    texts, figures = {}, []
    for spec in ({"method": "none"}, forced("suffix"), forced("draft_model")):
        with edgespec.load(
            text, draft=draft if spec["method"] == "draft_model" else None, mmproj=eyes, n_ctx=512,
            speculative_config=spec, **EQUAL,
        ) as engine:  # fmt: skip
            for seed in range(share(10, 3)):
                said, figures = conversation(
                    engine, functools.partial(noise, "mlp"), seed, VOCABULARY, max_tokens=24
                )
                assert texts.setdefault(seed, said) == said, (spec, seed)
                assert figures[1].num_cached_tokens
    assert sum(each.num_accepted_draft_tokens for each in figures)
    assert sum(each.num_draft_tokens - each.num_accepted_draft_tokens for each in figures)


HEADS = ("eagle3", "dflash", "hy_v3", "mimo2", "qwen35", "gemma4")


def head_of(kind, folder):
    """Write a target and a trained head for it; return what `load` takes."""
    if kind == "gemma4":
        target, own = tiny_gemma4.guessing_weights(noise=0.03)
        return tiny_gemma4.write_target(folder, target), tiny_gemma4.write_assistant(folder, own)
    if kind in ("eagle3", "dflash"):
        write = {"eagle3": tiny_heads, "dflash": tiny_dflash}[kind].write
        return tiny_models.write(folder, "llama"), write(folder / "head.gguf")
    n = {"hy_v3": 3, "mimo2": 2, "qwen35": 1}[kind]
    return tiny_mtp.write(folder, kind, n, weights=tiny_mtp.guessing_weights(kind, n, 0.3)), "auto"


@pytest.mark.parametrize("kind", HEADS)
def test_trained_heads_guess_after_pictures(tmp_path, kind):
    text, head = head_of(kind, tmp_path)
    eyes = projector_files.write(tmp_path / "eyes.gguf", "mlp", tiny_models.WIDTH)
    texts, drafted, accepted = {}, 0, 0
    for draft, spec in ((None, {"method": "none"}), (head, forced("draft_model", 3))):
        with edgespec.load(
            text, draft=draft, mmproj=eyes, n_ctx=512, speculative_config=spec, **EQUAL
        ) as engine:
            for seed in range(share(8, 3)):
                said, figures = conversation(
                    engine, functools.partial(noise, "mlp"), seed, VOCABULARY,
                    max_tokens=24, ignore_eos=True,
                )  # fmt: skip
                assert texts.setdefault(seed, said) == said, seed
                assert all(bool(each.num_draft_tokens) == bool(draft) for each in figures)
                drafted += sum(each.num_draft_tokens for each in figures)
                accepted += sum(each.num_accepted_draft_tokens for each in figures)
    assert drafted > accepted
    assert accepted > drafted / 10 or kind in ("eagle3", "dflash")  # whose weights are random


@pytest.mark.parametrize("kind", ["mlp", "qwen2vl_merger"])
def test_a_head_reads_the_states_after_the_last_picture(tmp_path, kind):
    text = projector_files.write_text(tmp_path / "text.gguf", kind)
    eyes = projector_files.write(tmp_path / "eyes.gguf", kind)
    config = edgespec.EngineConfig(n_ctx=512, mmproj=str(eyes), **EQUAL)
    n, layers = 16, (1,)

    def prompt(model, *seeds):
        shown = [model.eyes.read(edgespec.picture(noise(kind, seed))) for seed in seeds]
        return [1, *range(30, 50), *shown[0], 71, 80, 90, *shown[1], 72, 80, 90, 91]

    def answer(engine, tokens):
        return engine.generate(tokens, max_tokens=n, ignore_eos=True)

    wanted = []
    target = llama_cpp.LlamaCppModel(text, config)
    with assemble(target, target.tokenizer, None, {"method": "none"}) as plain:
        for seeds in ((1, 2), (1, 3)):
            tokens = prompt(target, *seeds)
            said = answer(plain, tokens).token_ids
            after = tiles_in(tokens)[-1].stop
            target.truncate(0)
            target.tap(layers)
            read(target, tokens[:after])
            states = [target.decode([token]).hidden[0].copy() for token in tokens[after:]]
            states += [target.decode([token]).hidden[0].copy() for token in said]
            target.tap(())
            target.truncate(0)
            wanted.append((seeds, said, states))
    target = llama_cpp.LlamaCppModel(text, config)
    head = Scripted([], layers, target.vocab_size)
    method = forced("draft_model", 6, options={"top_k": 3})
    with assemble(target, target.tokenizer, head, method) as engine:
        for seeds, said, states in wanted:  # of the second one, the head has read the words before
            tokens = prompt(target, *seeds)
            words = [token for token in tokens if token >= 0]
            head._text = [*words, *said]
            answered = answer(engine, tokens)
            assert answered.token_ids == said
            drafted = answered.stats.drafts_by_source["eagle3"]
            assert 0.3 * n < drafted["accepted"] < drafted["drafted"]
            assert head.start == len(words) - len(tokens[tiles_in(tokens)[-1].stop :]) + 1
            assert len(head.read) > n // 2
            for mine, its in zip(head.read, states, strict=False):
                np.testing.assert_allclose(mine, its, atol=1e-4)


@pytest.mark.parametrize("kind", ["mlp", "qwen2vl_merger"])
def test_another_picture_of_the_same_size_changes_the_answer_and_is_not_reused(tiny, kind):
    with tiny(kind) as engine:
        shown = [engine.read(edgespec.picture(noise(kind, seed))) for seed in (1, 2)]
        texts = []
        for tokens in (*shown, shown[0]):
            done = engine.run([1, 30, *tokens, 40, 41], edgespec.SamplingParams(max_tokens=16))
            completion = [event.completion for event in done][-1]
            texts.append(completion.token_ids)
            place = tiles_in(tokens)[0]
            assert completion.stats.num_cached_tokens <= 2 + place.start
        assert texts[0] == texts[2] != texts[1]


def test_a_cancelled_picture_does_not_disturb_the_next_request(tiny):
    with tiny("mlp") as engine:
        tokens = [1, 30, *engine.read(edgespec.picture(noise("mlp", 5))), 40, 41]
        params = edgespec.SamplingParams(max_tokens=8)
        wanted = [event.completion for event in engine.run(tokens, params)][-1].token_ids
        engine.run([1, 2, 3], params).close()
        other = [1, 30, *engine.read(edgespec.picture(noise("mlp", 6))), 40, 41]
        stream = engine.run(other, params)
        next(iter(stream))  # "prefill", before the picture is encoded
        stream.cancel()
        assert [event.completion for event in stream][-1].finish_reason == "cancelled"
        timed = engine.run(other, edgespec.SamplingParams(max_tokens=8, time_limit_s=0))
        assert [event.completion for event in timed][-1].finish_reason == "time_limit"
        assert [event.completion for event in engine.run(tokens, params)][-1].token_ids == wanted


@pytest.mark.parametrize("n_slots", [1, 2])
def test_a_client_that_stops_does_not_wait_for_its_picture(tiny, monkeypatch, n_slots):
    with tiny("mlp", n_slots=n_slots) as engine:
        tokens = [1, 30, *engine.read(edgespec.picture(noise("mlp", 50))), 40, 41]
        check_stops(engine, tokens, monkeypatch)


@pytest.mark.parametrize("invariant", [False, True])
def test_slots_answer_text_and_pictures_at_once(tiny, invariant):
    import threading

    with tiny("qwen2vl_merger", n_slots=3, batch_invariant=invariant) as engine:
        kind, params = "qwen2vl_merger", edgespec.SamplingParams(max_tokens=16)

        def prompt(i):
            shown = engine.read(edgespec.picture(noise(kind, i))) if i % 2 else [7, 8]
            return [1, 30 + i, *shown, 40, 41]

        def answer(i, into):
            into[i] = [event.completion for event in engine.run(prompt(i), params)][-1].token_ids

        alone, together = {}, {}
        for i in range(6):
            answer(i, alone)
        threads = [threading.Thread(target=answer, args=(i, together)) for i in range(6)]
        for thread in threads:
            thread.start()
        stream = engine.run(prompt(7), params)  # a picture that is cancelled next to the others
        next(iter(stream))
        stream.cancel()
        assert [event.completion for event in stream][-1].finish_reason == "cancelled"
        for thread in threads:
            thread.join()
        assert together == alone


@pytest.mark.parametrize("kind", ["mlp", "idefics3"])
def test_events_name_the_picture_that_is_encoded_next(tiny, kind):
    with tiny(kind) as engine:
        two = [edgespec.picture(noise(kind, seed), f"{seed}.png") for seed in (8, 9)]
        tokens = [1, 30, *engine.read(two[0]), 40, *engine.read(two[1]), 41]
        params = edgespec.SamplingParams(max_tokens=2)
        events = [event for event in engine.run(tokens, params) if event.type == "prefill"]
        named = [event.picture for event in events if event.picture]
        n_tiles = len(tiles_in(tokens)) // 2
        parts = [f", part {i} of {n_tiles}" if n_tiles > 1 else "" for i in range(1, n_tiles + 1)]
        assert named == [f"{seed}.png{part}" for seed in (8, 9) for part in parts]
        engine.run([1, 2, 3], params).close()
        again = list(engine.run(tokens, params))
        assert not any(event.picture for event in again)  # their embeddings are known


def test_old_pictures_leave_a_conversation_that_is_too_long(tiny):
    with tiny("mlp") as engine:
        engine.tokenizer.chat_template = templates.CHATML
        chat, options = engine.chat(), {"max_tokens": 16, "temperature": 0}
        for seed in range(6):
            said = chat.send([noise("mlp", seed), "What is it?"], **options)
        assert 0 < chat.n_dropped < len(chat.messages) - 2  # earlier pictures are still shown
        assert said.stats.num_prompt_tokens < engine.n_ctx
        again = engine.chat()
        again.messages = chat.messages[chat.n_dropped : -2]
        assert again.send(chat.messages[-2]["content"], **options).text == said.text


def test_penalties_and_prefix_stores_leave_pictures_out(tiny):
    with tiny("mlp") as engine:
        tokens = [1, *range(30, 80), *engine.read(edgespec.picture(noise("mlp", 7))), 40, 41]
        params = edgespec.SamplingParams(max_tokens=8, repetition_penalty=1.3)
        first = [event.completion for event in engine.run(tokens, params)][-1]
        other = [event.completion for event in engine.run([1, 5, 6], params)][-1]
        assert other.stats.num_cached_tokens == 1
        again = [event.completion for event in engine.run(tokens, params)][-1]
        assert again.token_ids == first.token_ids
        assert again.stats.num_cached_tokens <= 51
        for part in engine.prefixes._all():
            assert part.tokens.min() >= 0


def test_a_picture_must_be_followed_by_text(tiny):
    with tiny("mlp") as engine:
        tokens = [1, *engine.read(edgespec.picture(noise("mlp", 7)))]
        with pytest.raises(ConfigError, match="ends with a picture"):
            list(engine.run(tokens, edgespec.SamplingParams(max_tokens=1)))


def test_models_without_eyes_say_why(tiny, tmp_path):
    toy = edgespec.ToyModel(lambda _: np.ones(4) / 4, vocab_size=4)
    blind = tiny_models.write(tmp_path, "llama", 2)
    for engine, why in (
        (edgespec.load(blind, draft=None, n_ctx=256), "there is no mmproj-….gguf in"),
        (edgespec.assemble(toy, edgespec.ToyTokenizer("abcd")), "this model reads text alone"),
    ):
        with engine, pytest.raises(ConfigError, match=why):
            engine.chat().send(["What is it?", noise("mlp")])


@pytest.fixture(scope="module")
def eyes(smollm2, tmp_path_factory):
    """Return a function that returns SmolLM2 for a kind of projector, and eyes that see colours."""
    folder = tmp_path_factory.mktemp("eyes")

    @functools.cache
    def made(kind):
        text = colour_eyes.text_model(smollm2, kind, folder)
        return text, colour_eyes.fitted(folder / f"mmproj-{kind}.gguf", text, kind)

    return made


LEAST = {"mlp": 10, "idefics3": 10, "gemma3": 9, "qwen2vl_merger": 10}
"""How many of ten colours are named at least. SmolLM2 was never trained to look."""


@pytest.mark.model
@pytest.mark.parametrize(
    "kind",
    [
        "mlp",
        pytest.param("idefics3", marks=pytest.mark.long("fits eyes; mlp does, too")),
        pytest.param("gemma3", marks=pytest.mark.long("fits eyes; mlp does, too")),
        pytest.param("qwen2vl_merger", marks=pytest.mark.long("fits eyes; mlp does, too")),
    ],
)
def test_eyes_name_colours(eyes, kind):
    text, mmproj = eyes(kind)
    with edgespec.load(text, draft=None, mmproj=mmproj, n_ctx=1024, n_threads=1) as engine:
        check_colours(engine, functools.partial(colour_eyes.flat, kind), LEAST[kind])


@pytest.mark.model
def test_an_answer_about_a_picture_goes_on_where_it_was_cut(eyes):
    text, mmproj = eyes("mlp")
    asked = [colour_eyes.flat("mlp", colour_eyes.COLOURS["red"]), ASKED]
    for spec in ({"method": "none"}, forced("suffix")):
        with edgespec.load(
            text, draft=None, mmproj=mmproj, n_ctx=512, speculative_config=spec, **EQUAL
        ) as engine:
            chat, cut = engine.chat(), engine.chat()
            whole = chat.send(asked, **GREEDY).text
            n_encoded = engine.target.eyes.n_encoded
            cut.send(asked, **GREEDY | {"max_tokens": 5})
            settings = GREEDY | {"max_tokens": 11}
            more = [event.completion for event in cut.stream_continued(**settings)][-1]
            assert more.stats.num_cached_tokens > 20
            assert cut.messages[-1]["content"] == whole
            saved = cut.to_dict()
            del saved["messages"][2:]
            cut.load_dict(saved)
            assert cut.send("Why?", **GREEDY).text == chat.send("Why?", **GREEDY).text
            assert engine.target.eyes.n_encoded == n_encoded


@pytest.mark.model
def test_chats_with_pictures_are_saved_by_their_files(eyes, tmp_path):
    text, mmproj = eyes("mlp")
    Image = pytest.importorskip("PIL.Image")
    path = tmp_path / "red.png"
    Image.fromarray(colour_eyes.flat("mlp", COLOURS["red"])).save(path)
    with edgespec.load(text, draft=None, mmproj=mmproj, n_ctx=512, n_threads=1) as engine:
        chat = engine.chat()
        chat.send([path, ASKED], max_tokens=12, temperature=0)
        saved = json.loads(json.dumps(chat.to_dict()))
        shown = saved["messages"][0]["content"][0]
        assert shown["file"] == str(path)
        other = engine.chat()
        other.load_dict(saved)
        assert "red" in other.send(ASKED, max_tokens=12, temperature=0).text.lower()
        path.unlink()
        other.load_dict(saved)
        assert "red.png cannot be read" in other.messages[0]["content"]
        pictures = [noise("mlp", seed) for seed in range(8)]
        n_encoded = engine.target.eyes.n_encoded
        with pytest.raises(ContextFull, match=r"this message has \d+ tokens"):
            engine.chat().send([*pictures, "word " * 400])
        assert engine.target.eyes.n_encoded == n_encoded


@pytest.mark.model
def test_the_command_line_shows_pictures(eyes, tmp_path, monkeypatch):
    text, mmproj = eyes("mlp")
    Image = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    for name in ("red", "blue"):
        pixels = colour_eyes.flat("mlp", COLOURS[name])
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    model = ("-m", str(text), "--mmproj", str(mmproj), "-md", "none", "-c", "1024", "-t", "1")
    asked = ("--temp", "0", "-n", "16")

    def said(*args, lines="", code=0):
        result = CliRunner().invoke(cli, args, input=lines, prog_name="edgespec")
        assert result.exit_code == code, result.output
        return result

    assert "red" in said("run", *model, *asked, "--image", "red.png", ASKED).stdout.lower()
    lines = f"/image blue.png\n{ASKED}\n"
    chat = said("chat", *model, *asked, lines=lines)
    assert "blue" in chat.stdout.lower()
    assert "blue.png, 56x56 pixels" in chat.stderr
    refused = said("run", *model, "--image", "no.png", "hi", code=2)
    assert "no.png cannot be read" in refused.stderr
    blind = said("run", *model, "--mmproj", "none", "--image", "red.png", "hi", code=2)
    assert "reads text alone: its projector is left out, because mmproj is none" in blind.stderr


@pytest.fixture
def seeing(eyes):
    """Return an engine whose model sees, and a client of its server."""
    pytest.importorskip("PIL")
    text, mmproj = eyes("mlp")
    with edgespec.load(text, draft=None, mmproj=mmproj, n_ctx=1024, n_threads=1) as engine:
        yield engine, serving(engine)


@pytest.mark.model
def test_three_apis_show_pictures(seeing):
    engine, client = seeing
    for name in ("red", "blue"):
        url = data_url(colour_eyes.flat("mlp", COLOURS[name]))
        data = url.partition(",")[2]
        image = {"type": "base64", "media_type": "image/png", "data": data}
        common = {"temperature": 0}
        said = client.post("/v1/chat/completions", json=common | {
            "max_tokens": 16,
            "messages": [{"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
                {"type": "text", "text": ASKED},
            ]}],
        })  # fmt: skip
        assert name in said.json()["choices"][0]["message"]["content"].lower(), said.text
        messages = [{"role": "user", "content": [
            {"type": "image", "source": image}, {"type": "text", "text": ASKED},
        ]}]  # fmt: skip
        body = common | {"max_tokens": 16, "messages": messages}
        said = client.post("/v1/messages", json=body)
        assert name in said.json()["content"][0]["text"].lower(), said.text
        count = client.post("/v1/messages/count_tokens", json={"messages": messages})
        usage = said.json()["usage"]
        read = usage["input_tokens"] + usage["cache_read_input_tokens"]
        assert count.json()["input_tokens"] == read
        said = client.post("/v1/responses", json=common | {
            "max_output_tokens": 16,
            "input": [{"role": "user", "content": [
                {"type": "input_image", "image_url": url},
                {"type": "input_text", "text": ASKED},
            ]}],
        })  # fmt: skip
        assert name in said.json()["output"][0]["content"][0]["text"].lower(), said.text
    assert engine.target.eyes.n_encoded == 2


@pytest.mark.model
def test_results_of_tools_show_pictures(seeing):
    engine, client = seeing
    for name in ("red", "blue"):
        shown = edgespec.picture(colour_eyes.flat("mlp", COLOURS[name]))
        url = data_url(shown.pixels())
        source = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
        function = {"name": "look", "arguments": "{}"}
        call = {"id": "a", "type": "function", "function": function}
        picture, said = {"type": "image_url", "image_url": {"url": url}}, {"temperature": 0}
        body = said | {"max_tokens": 16, "messages": [
            {"role": "user", "content": ASKED},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "a", "content": [picture]},
            {"role": "user", "content": ASKED},
        ]}  # fmt: skip
        answer = client.post("/v1/chat/completions", json=body).json()
        assert name in answer["choices"][0]["message"]["content"].lower()
        assert client.post("/tokenize", json={"messages": body["messages"]}).status_code == 400
        use = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
        block = {"type": "image", "source": source}
        result = {"type": "tool_result", "tool_use_id": "a", "content": [block]}
        body = said | {"max_tokens": 16, "messages": [
            {"role": "user", "content": ASKED},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result, {"type": "text", "text": ASKED}]},
        ]}  # fmt: skip
        answer = client.post("/v1/messages", json=body).json()
        assert name in answer["content"][0]["text"].lower()
        body = said | {"max_output_tokens": 16, "input": [
            {"role": "user", "content": ASKED},
            {"type": "function_call", "call_id": "a", **function},
            {"type": "function_call_output", "call_id": "a", "output": [
                {"type": "input_image", "image_url": url},
            ]},
            {"role": "user", "content": ASKED},
        ]}  # fmt: skip
        answer = client.post("/v1/responses", json=body).json()
        assert name in answer["output"][0]["content"][0]["text"].lower()
        chat = engine.chat()
        called = {"role": "assistant", "content": "", "tool_calls": [call]}
        chat.messages = [{"role": "user", "content": ASKED}, called]
        chat.add_results([["Here:", shown]])
        assert name in chat.send(ASKED, max_tokens=16, temperature=0).text.lower()
        saved = json.loads(json.dumps(chat.to_dict()))
        assert saved["messages"][2]["content"][1]["sha256"] == shown.digest.hex()


def data_url(pixels):
    import base64
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://example.org/a.png", "--allowed-media-domains"),
        ("file:///etc/passwd", "--allowed-local-media-path"),
        ("ftp://example.org/a.png", "is not a data:"),
        ("data:image/png;base64,AAAA", "not a picture of the formats"),
        ("data:image/png,AAAA", "is not data:image"),
    ],
)
def test_what_the_apis_refuse(tiny, url, message):
    with tiny("mlp") as engine:
        client = serving(engine)
        part = {"type": "image_url", "image_url": {"url": url}}
        for path, body in (
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": [part]}]}),
            ("/v1/responses", {"input": [
                {"role": "user", "content": [{"type": "input_image", "image_url": url}]}
            ]}),
        ):  # fmt: skip
            said = client.post(path, json=body)
            assert said.status_code == 400, said.text
            assert message in said.json()["error"]["message"]
            assert "[0]" in said.json()["error"]["param"]
        tokens = client.post("/tokenize", json={"messages": [{"role": "user", "content": [part]}]})
        assert tokens.status_code == 400


TEXT = {"type": "text", "text": "What is it?"}


def test_the_apis_read_files_of_the_folder_that_is_allowed(tiny, tmp_path):
    Image = pytest.importorskip("PIL.Image")
    Image.fromarray(noise("mlp")).save(tmp_path / "a.png")
    url = data_url(noise("mlp"))
    with tiny("mlp") as engine:
        client = serving(engine, allowed_local_media_path=tmp_path)
        said = []
        for each in (url, "file:a.png"):
            part = {"type": "image_url", "image_url": {"url": each}}
            body = {"messages": [{"role": "user", "content": [part, TEXT]}], "max_tokens": 8}
            said.append(
                client.post("/v1/chat/completions", json=body).json()["usage"]["prompt_tokens"]
            )
            source = {"type": "url", "url": each}
            if each == url:
                source = {"type": "base64", "data": url.partition(",")[2]}
            blocks = [{"type": "image", "source": source}]
            result = {"type": "tool_result", "tool_use_id": "a", "content": blocks}
            use = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
            body = {"messages": [
                {"role": "user", "content": blocks},
                {"role": "assistant", "content": [use]},
                {"role": "user", "content": [result]},
            ]}  # fmt: skip
            said.append(client.post("/v1/messages/count_tokens", json=body).json())
        assert said[:2] == said[2:]
        part["image_url"]["url"] = "file:b.png"
        body = {"messages": [{"role": "user", "content": [part, TEXT]}], "max_tokens": 8}
        refused = client.post("/v1/chat/completions", json=body)
        assert refused.status_code == 400
        assert "messages[0]: 'b.png' cannot be read" in refused.json()["error"]["message"]


@pytest.mark.parametrize("contents", [False, True])
@pytest.mark.parametrize("cut", [None, -21])
def test_no_picture_is_in_the_logs(tiny, caplog, tmp_path, cut, contents):
    pytest.importorskip("PIL.Image")
    caplog.set_level("DEBUG")
    url = data_url(noise("mlp"))[:cut]
    part = {"type": "image_url", "image_url": {"url": url}}
    body = {"messages": [{"role": "user", "content": [part, TEXT]}], "max_tokens": 2}
    with tiny("mlp") as engine:
        kept = {"request_log": tmp_path / "requests.jsonl", "request_log_contents": contents}
        with serving(engine, **kept) as client:
            said = client.post("/v1/chat/completions", json=body)
        assert said.status_code == (400 if cut else 200)
    logs = caplog.text + (tmp_path / "requests.jsonl").read_text() + said.text
    assert "/v1/chat/completions" in logs
    assert url[100:120] not in logs
    assert (TEXT["text"] in logs) is contents


def test_a_model_that_sees_takes_requests_as_large_as_photos(tiny):
    pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (1500, 2000, 3)).astype(np.uint8)
    part = {"type": "image_url", "image_url": {"url": data_url(pixels)}}
    assert len(part["image_url"]["url"]) > 12_000_000
    body = {"messages": [{"role": "user", "content": [part, TEXT]}], "max_tokens": 2}
    for mmproj, code in (({}, 200), ({"mmproj": "none"}, 413)):
        with tiny("mlp", **mmproj) as engine:
            said = serving(engine).post("/v1/chat/completions", json=body)
            assert said.status_code == code, said.text
