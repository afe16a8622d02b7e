"""Checks of models that see, which all engines have to pass."""

import contextlib
import itertools
import threading

import numpy as np

import edgespec
from edgespec.backends.tiles import tile_of, tiles_in
from tests.helpers.colours import COLOURS

ASKED = "What colour is the picture?"
SAMPLED = {"temperature": 0.8, "top_k": 20}


def serving(engine, **settings):
    """Return a client of a server in this process."""
    from starlette.testclient import TestClient

    from edgespec.server.app import create_app
    from edgespec.server.settings import ServerSettings

    app = create_app(engine, ServerSettings(model="m", **settings))
    return TestClient(app, base_url="http://localhost")


def forced(method, n=4, **more):
    """Return settings that always draft `n` tokens."""
    return {"method": method, "num_speculative_tokens": n, "draft_p_min": 0.0, **more}


def conversation(engine, noise, number, vocabulary, **given):
    """Return the answers of two turns with pictures, and the figures of both.

    noise: returns the picture of a number. vocabulary: the first and the last token of the text.
    given: settings for sampling.
    """
    rng = np.random.default_rng(number)

    def words(n):
        return rng.integers(*vocabulary, n).tolist()

    def answer(prompt):
        done = engine.run(prompt, edgespec.SamplingParams(**given))
        return [event.completion for event in done][-1]

    loop = words(4)
    first = engine.read(edgespec.picture(noise(number)))
    prompt = [1, *loop, *loop, *first, *words(5), *loop]
    one = answer(prompt)
    again = engine.read(edgespec.picture(noise(number + 1000)))
    two = answer([*prompt, *one.token_ids, *loop, *again, *words(3)])
    return [one.token_ids, two.token_ids], (one.stats, two.stats)


def check_drafts(load, noise, vocabulary, n, **given):
    """Check that `n` conversations have the same texts with drafts as without, greedy and sampled.

    load: returns an engine, with a draft model if its first argument is true, with the
    speculative_config of its second one. The others are as in `conversation`.
    """
    texts, figures = {}, {}
    for name, draft, spec in (
        ("plain", False, {"method": "none"}),
        ("lookup", False, forced("suffix")),
        ("all", True, {"method": "auto", "draft_memory": "process"}),
        ("draft model", True, forced("draft_model")),
    ):
        with load(draft, spec) as engine:
            for seed, drawn in itertools.product(range(n), (False, True)):
                more = given | ({**SAMPLED, "seed": seed} if drawn else {})
                said, stats = conversation(engine, noise, seed, vocabulary, **more)
                assert texts.setdefault((seed, drawn), said) == said, (name, seed, drawn)
                figures.setdefault(name, []).extend(stats)
    accepted = sum(each.num_accepted_draft_tokens for each in figures["draft model"])
    rejected = sum(each.num_draft_tokens for each in figures["draft model"]) - accepted
    assert accepted >= 7 * n
    assert rejected >= 7 * n
    assert all(each.num_cached_tokens for each in figures["lookup"][1::2])


def check_dropped(model, first, second):
    """Check that of two pictures' tokens only the embeddings of the later one are kept if there is
    no room for both, and that the others are computed again.
    """
    most, model.eyes._most_bytes = model.eyes._most_bytes, 1
    try:
        tiles = [tile_of(each[p.start : p.stop]) for each in (first, second)
                 for p in tiles_in(each)[:1]]  # fmt: skip
        made = model.eyes.encode(tiles[0]).copy()
        model.eyes.encode(tiles[1])
        assert tiles[0].embeddings is None
        np.testing.assert_array_equal(model.eyes.encode(tiles[0]), made)
    finally:
        model.eyes._most_bytes = most


def check_colours(engine, flat, least):
    """Check that a model with eyes for colours names at least so many, and encodes no picture
    twice. flat: returns a picture of one colour.
    """
    named = 0
    for name, colour in COLOURS.items():
        chat = engine.chat()
        said = chat.send([flat(colour), ASKED], max_tokens=20, temperature=0)
        named += name in said.text.lower()
    n_encoded = engine.target.eyes.n_encoded
    again = chat.send("Are you sure?", max_tokens=4)
    assert again.stats.num_cached_tokens > said.stats.num_prompt_tokens
    engine.chat().send([flat(colour), "And now?"], max_tokens=2)
    assert engine.target.eyes.n_encoded == n_encoded
    assert named >= least


@contextlib.contextmanager
def stuck(eyes, monkeypatch):
    """Let encodings wait, whatever their callers want; yield what tells that one has begun."""
    begun, may_end, encode = threading.Event(), threading.Event(), eyes._encode

    def waiting(tile, abort):
        begun.set()
        assert may_end.wait(20)
        return encode(tile, abort)

    with monkeypatch.context() as patch:
        patch.setattr(eyes, "_encode", waiting)
        try:
            yield begun
        finally:
            may_end.set()


def check_stops(engine, tokens, monkeypatch):
    """Check that while a picture is encoded, other pictures are read, other slots answer, and a
    client which cancels or whose time is over has its answer; and that the engine then answers text
    and the same picture.
    """
    params = edgespec.SamplingParams(max_tokens=4)

    def answer(tokens, params=params):
        return [event.completion for event in engine.run(tokens, params)][-1]

    shown = next(token.tile.picture for token in tokens if token < 0)
    wanted = answer(tokens[-2:]).token_ids
    stream, done = engine.run(tokens, params), []
    with stuck(engine.eyes, monkeypatch) as begun:
        client = threading.Thread(target=lambda: done.extend(stream))
        client.start()
        assert begun.wait(20)
        assert engine.read(edgespec.picture(shown.pixels()[::-1]))
        if engine.n_slots > 1:
            assert answer(tokens[-2:]).token_ids == wanted
        stream.cancel()
        client.join()
        assert done[-1].completion.finish_reason == "cancelled"
        assert answer(tokens[-2:]).token_ids == wanted
    with stuck(engine.eyes, monkeypatch):
        timed = edgespec.SamplingParams(max_tokens=4, time_limit_s=0.5)
        assert answer(tokens, timed).finish_reason == "time_limit"
    assert engine.eyes.n_encoded == 0
    assert len(answer(tokens).token_ids) == 4
