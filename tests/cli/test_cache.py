"""`edgespec cache`, `--prompt-cache` and `serve --warm`."""

import json

import pytest

from edgespec import ToyModel
from edgespec.cache.prefix_files import Identity, PrefixFiles
from edgespec.cache.prefixes import EVERYBODY, PrefixStore
from edgespec.cache.token_cache import TokenCache
from edgespec.server import app


def read(model, *owners):
    """Let a toy read a text for each owner, and keep it on disk."""
    store = PrefixStore(1 << 20, PrefixFiles(1 << 20, keeps_all=True))
    toy = ToyModel([[0.5, 0.5]] * 2, n_ctx=512)
    cache = TokenCache(toy, prefixes=store.of(Identity(model, [], "", {})))
    for i, owner in enumerate(owners):
        cache.begin(owner)
        cache.decode([i % 2] * (100 + i))
        cache.save()
    store.close()


@pytest.fixture
def started(monkeypatch):
    """Return the engines that `serve` was given, instead of serving."""
    given = []
    monkeypatch.setattr(app, "serve", lambda engine, *args, **more: given.append(describe(engine)))
    return given


def describe(engine):
    tokens = engine.tokenizer.encode(TEXTS["text"] + "What?")
    cached = engine.generate(tokens, max_tokens=1, owner="a").stats.num_cached_tokens
    return engine.describe()["prompt_cache"] | {"cached": cached}


def test_prompts_are_listed_and_cleared(edgespec_cli):
    assert "no prompt is kept" in edgespec_cli("cache", "list").stderr
    read(edgespec_cli.model, EVERYBODY, "one")
    shown = edgespec_cli("cache", "list").stdout
    assert "toy.gguf" in shown
    assert "everybody" in shown
    mine, everybodys = json.loads(edgespec_cli("cache", "list", "--json").stdout)
    assert (mine["for"], mine["n_tokens"], mine["size"]) == ("one user", 101, 404)
    assert (everybodys["for"], everybodys["n_tokens"]) == ("everybody", 100)
    assert edgespec_cli("cache", "clear").exit_code == 2  # there is no terminal to ask at
    assert edgespec_cli("cache", "clear", "--yes").stdout.startswith("deleted, ")
    assert json.loads(edgespec_cli("cache", "list", "--json").stdout) == []


def test_prompts_go_with_their_model_and_their_conversation(edgespec_cli):
    models = edgespec_cli.folder / "models"
    models.mkdir()
    (models / "own.gguf").write_bytes(b"GGUF")
    read(models / "own.gguf", "")
    read(edgespec_cli.model, EVERYBODY, "")
    edgespec_cli.chat("hello", args=["--save", "-q"])
    assert edgespec_cli("chat", "--delete", "all").exit_code == 0
    (left,) = json.loads(edgespec_cli("cache", "list", "--json").stdout)
    assert (left["model"], left["for"]) == ("toy.gguf", "everybody")


@pytest.mark.parametrize(
    ("args", "place"),
    [
        (["--save"], "disk"),
        (["--save", "--prompt-cache", "off"], "off"),
        (["--no-save"], None),
        ([], None),
    ],
)
def test_chats_that_are_kept_are_read_once(edgespec_cli, args, place):
    edgespec_cli.chat("hello", args=["-q", *args])
    assert edgespec_cli.loaded.get("prompt_cache") == place


def test_bounds_are_given_in_mib(edgespec_cli):
    edgespec_cli.chat("hello", args=["-cram", "7", "--cache-disk", "9"])
    loaded = edgespec_cli.loaded
    assert (loaded["cache_ram"], loaded["cache_disk"]) == (7, 9)


TEXTS = {
    "text": "Be brief, and say nothing that is not asked for. ",
    "messages": '{"messages": [{"role": "system", "content": "Be brief."}]}',
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_server_reads_what_prompts_begin_with(edgespec_cli, started, name):
    (edgespec_cli.folder / "begin").write_text(TEXTS[name])
    result = edgespec_cli("serve", "-m", "toy.gguf", "--port", "0", "--warm", "begin")
    assert result.exit_code == 0, result.stderr
    assert "tokens are read for all requests" in result.stderr
    if name == "text":
        assert started[0]["cached"] == len(TEXTS["text"])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is empty"),
        ("[1]", "JSON without messages"),
        ('{"messages": 5}', '"messages" is not a list of objects'),
        (None, "cannot be read"),
    ],
)
def test_files_without_a_beginning(edgespec_cli, started, content, says):
    if content is not None:
        (edgespec_cli.folder / "begin").write_text(content)
    result = edgespec_cli("serve", "-m", "toy.gguf", "--port", "0", "--warm", "begin")
    assert result.exit_code == 2
    assert says in result.stderr
    assert not started


def test_nothing_is_warmed_into_a_cache_that_is_off(edgespec_cli, started):
    (edgespec_cli.folder / "begin").write_text("Be brief.")
    args = ("--warm", "begin", "--prompt-cache", "off")
    result = edgespec_cli("serve", "-m", "toy.gguf", "--port", "0", *args)
    assert result.exit_code == 2
    assert "the prompt cache is off" in result.stderr
