"""A store of what models have read: what is found, whose it is, how much stays."""

import itertools
import stat

import numpy as np
import pytest

import edgespec
from edgespec import ToyModel, ToyTokenizer
from edgespec.cache import prefix_files
from edgespec.cache.prefix_files import Identity, PrefixFiles
from edgespec.cache.prefixes import EVERYBODY, LEAST, PrefixStore
from edgespec.cache.token_cache import TokenCache
from edgespec.loading.assembly import assemble

MIB = 1 << 20
VOCABULARY = 16
KINDS = pytest.mark.parametrize("truncate", [True, False], ids=["parts", "whole"])


def toy(truncate=True, n_ctx=4096, seed=0):
    """Return a model whose next token depends on all tokens before."""

    def probs(tokens):
        hashed = hash((seed, *tokens)) % (1 << 32)
        return np.random.default_rng(hashed).dirichlet(np.ones(VOCABULARY))

    return ToyModel(probs, vocab_size=VOCABULARY, n_ctx=n_ctx, truncate=truncate)


def text(seed, n):
    return np.random.default_rng(seed).integers(0, VOCABULARY, n).tolist()


def read(cache, prompt, owner=""):
    """Let a cache read a prompt as a verifier does; return how many tokens were there already."""
    cache.begin(owner)
    n = cache.align(prompt)
    at = n
    for point in cache.saving_points(prompt):
        cache.decode(prompt[at:point], 0)
        cache.save()
        at = point
    cache.decode(prompt[at:], 1)
    assert cache.tokens == list(
        cache.model.checkpoint() if is_whole(cache) else cache.model._tokens
    )
    return n


def is_whole(cache):
    return not cache.model.capabilities.truncate


@pytest.fixture
def store():
    return PrefixStore(MIB)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGESPEC_PREFIXES", str(tmp_path / "prefixes"))
    (tmp_path / "toy.gguf").write_bytes(b"weights")
    return tmp_path


def identity(folder, **changed):
    given = {"path": folder / "toy.gguf", "of": [1], "build": "b", "settings": {}}
    return Identity(**(given | changed))


def on_disk(folder, most_bytes=MIB, keeps_all=True, **changed):
    """Return a store on disk, and a toy's cache that uses it."""
    store = PrefixStore(MIB, PrefixFiles(most_bytes, keeps_all=keeps_all))
    return store, TokenCache(toy(), prefixes=store.of(identity(folder, **changed)))


@KINDS
def test_a_text_that_left_the_cache_is_not_read_again(truncate, store):
    cache = TokenCache(toy(truncate), prefixes=store.of(None))
    one, other = text(1, 100), text(2, 80)
    assert read(cache, one) == 0
    assert read(cache, other) == 0
    assert read(cache, [*one, 3]) == 100
    assert read(cache, [*other, 3, 3]) == 80
    assert cache.model.n_evaluated == 100 + 80 + 1 + 2


@KINDS
def test_what_texts_have_in_common_is_kept_once_and_read_once(truncate, store):
    cache = TokenCache(toy(truncate), prefixes=store.of(None))
    system = text(0, 200)
    n_cached = [read(cache, [*system, *text(i, 40)]) for i in range(1, 9)]
    assert n_cached[0] == 0
    assert n_cached[2:] == [200] * 6
    if truncate:  # a state that cannot be truncated has the whole text each time
        assert store.n_bytes <= 4 * (200 + 9 * 40)


def test_an_edited_conversation_goes_on_from_the_last_common_token(store):
    cache = TokenCache(toy(), prefixes=store.of(None))
    talk = text(1, 300)
    read(cache, talk)
    read(cache, text(2, 50))
    edited = [*talk[:170], (talk[170] + 1) % VOCABULARY, *text(3, 60)]
    assert read(cache, edited) == 170
    assert read(cache, [*talk, 1]) == 300
    assert read(cache, [*edited, 1]) == len(edited)


def test_a_state_that_cannot_be_truncated_serves_its_own_text_alone(store):
    cache = TokenCache(toy(truncate=False), prefixes=store.of(None))
    one = text(1, 100)
    begin, other = one[:70], (one[70] + 1) % VOCABULARY
    read(cache, one)
    read(cache, text(2, 50))
    assert read(cache, [*begin, other, *text(3, 20)]) == 0  # but now the state is kept there
    read(cache, text(4, 50))
    assert read(cache, [*begin, other, *text(5, 20)]) == 70


def test_a_repeated_and_an_edited_prompt_begin_with_a_state_that_cannot_be_truncated(store):
    """States are saved before the last token of a prompt, and some way apart."""
    cache = TokenCache(toy(truncate=False), prefixes=store.of(None))
    talk, ends = text(1, 300), []
    for i in range(6):
        read(cache, talk)
        ends.append(len(talk) - 1)
        talk = [*talk, *text(10 + i, 50)]
    read(cache, text(2, 50))
    n_saved = [len(part.tokens) for parts in cache._prefixes.parts.values() for part in parts]
    assert [n for n in n_saved if n in ends] == [299, 449]  # 349 and 399 are too near
    assert read(cache, talk[:300]) == 299
    assert read(cache, [*talk[:500], *text(3, 40)]) == 449


def test_a_loaded_whole_state_is_not_truncated(store):
    """Windowed models can truncate, but not below what was loaded: earlier keys are missing."""
    model = toy()
    model.capabilities = type(model.capabilities)(32, 64, True, saves="whole")
    cache = TokenCache(model, prefixes=store.of(None))
    one = text(1, 100)
    read(cache, one)
    read(cache, text(2, 50))
    assert read(cache, [*one, 1]) == 100
    before = model.n_evaluated
    cache.truncate(60)
    assert (cache.tokens, model.n_evaluated - before) == (one[:60], 60)


def test_short_texts_are_not_kept(store):
    cache = TokenCache(toy(), prefixes=store.of(None))
    for i in range(5):
        read(cache, text(i, LEAST - 1))
    assert store.n_bytes == 0


@KINDS
def test_nothing_of_one_owner_is_used_for_another(truncate, store):
    cache = TokenCache(toy(truncate), prefixes=store.of(None))
    one = text(1, 100)
    n_cached = [read(cache, [*one, i], owner) for i, owner in enumerate(["a", "b", "a", "", "b"])]
    assert n_cached == [0, 0, 100 if truncate else 0, 0, 100 if truncate else 0]


@KINDS
def test_everybody_reads_what_belongs_to_everybody(truncate, store):
    cache = TokenCache(toy(truncate), prefixes=store.of(None))
    system = text(1, 100)
    read(cache, system, EVERYBODY)
    for owner in ("a", "b", ""):
        assert read(cache, [*system, *text(2, 50)], owner) == 100
    assert read(cache, [*system, *text(2, 50), 1], "a") == 150
    assert read(cache, [*system, *text(2, 50), 1], "c") == 100


def test_the_least_recently_used_goes_first_and_bytes_are_bounded():
    store = PrefixStore(4 * 350)
    cache = TokenCache(toy(), prefixes=store.of(None))
    texts = [text(i, 100) for i in range(6)]
    for i in (0, 1, 2, 0, 3, 0, 4, 5):
        read(cache, [*texts[i], 1])
        assert store.n_bytes <= 4 * 350
    assert [read(cache, [*texts[i], 1]) for i in (0, 5, 1)] == [100, 100, 0]


def test_what_others_continue_goes_last():
    store = PrefixStore(4 * 400)
    cache = TokenCache(toy(), prefixes=store.of(None))
    system = text(0, 200)
    for i in range(1, 20):
        assert read(cache, [*system, *text(i, 60)]) == (200 if i > 1 else 0)


def test_a_text_larger_than_the_store_changes_nothing():
    store = PrefixStore(4 * 140)
    cache = TokenCache(toy(), prefixes=store.of(None))
    read(cache, text(1, 90))
    read(cache, text(2, 200))
    read(cache, text(3, 40))
    assert read(cache, [*text(1, 90), 1]) == 90


def test_reading_that_is_quicker_is_preferred(store):
    prefixes = store.of(None)
    cache = TokenCache(toy(), prefixes=prefixes)
    one = [*text(1, 100), 1]
    read(cache, one)
    read(cache, text(2, 50))
    cache.begin("")
    ((part, *_),) = prefixes.parts.values()
    prefixes.loaded(part, 100, 10.0)  # this device takes 0.03 s for a byte
    assert cache.align(one, token_s=1e-3) == 0
    cache.begin("")
    assert cache.align(one, token_s=1.0) == 100


def test_a_refused_state_is_dropped_and_read(store):
    cache = TokenCache(toy(), prefixes=(prefixes := store.of(None)))
    one = text(1, 100)
    read(cache, one)
    read(cache, text(2, 50))
    ((part, *_),) = prefixes.parts.values()
    part.state = part.state[:-5]
    assert read(cache, [*one, 1]) == 0
    assert part not in itertools.chain(*prefixes.parts.values())


def test_a_new_process_goes_on(folder):
    one, other = text(1, 100), text(2, 100)
    store, cache = on_disk(folder)
    read(cache, one)
    read(cache, [*one[:60], *other])
    cache.save()
    store.close()
    store, cache = on_disk(folder)
    assert read(cache, [*one, 1]) == 100
    assert read(cache, [*one[:60], *other, 1]) == 160
    assert store.describe()["disk_bytes"] > store.n_bytes > 0


def test_files_are_private(folder):
    store, cache = on_disk(folder)
    read(cache, text(1, 100))
    cache.save()
    store.close()
    place = prefix_files.folder()
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert len(files := list(place.iterdir())) == 2  # one has the salt
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)


def test_owners_are_hashed_with_a_salt(folder):
    store, cache = on_disk(folder)
    read(cache, text(1, 100), "secret key")
    cache.save()
    store.close()
    (kept,) = prefix_files.stored()
    assert b"secret" not in kept.path.read_bytes()
    store, cache = on_disk(folder)
    assert read(cache, [*text(1, 100), 1], "other key") == 0
    assert read(cache, [*text(1, 100), 1], "secret key") == 100
    (prefix_files.folder() / "salt").unlink()
    store, cache = on_disk(folder)
    assert read(cache, [*text(1, 100), 1], "secret key") == 0


def test_only_what_is_everybodys_is_on_disk_unless_asked(folder):
    store, cache = on_disk(folder, keeps_all=False)
    read(cache, text(1, 100), EVERYBODY)
    read(cache, text(2, 100), "")
    cache.save()
    store.close()
    (kept,) = prefix_files.stored()
    assert kept.header.is_everybodys
    _, cache = on_disk(folder, keeps_all=False)
    assert read(cache, [*text(1, 100), 1]) == 100


def test_bytes_on_disk_are_bounded(folder):
    most = 3000
    store, cache = on_disk(folder, most)
    for i in range(8):
        read(cache, text(i, 100))
        cache.save()
        store.close()
        assert store.files.n_bytes() <= most
    _, cache = on_disk(folder, most)
    assert read(cache, [*text(7, 100), 1]) == 100
    assert read(cache, [*text(0, 100), 1]) == 0


@pytest.mark.parametrize("changed", [{"of": [2]}, {"build": "c"}, {"settings": {"type_k": "q8_0"}}])
def test_the_states_of_other_models_are_not_used(folder, changed):
    store, cache = on_disk(folder)
    read(cache, text(1, 100))
    cache.save()
    store.close()
    _, cache = on_disk(folder, **changed)
    assert read(cache, [*text(1, 100), 1]) == 0
    _, cache = on_disk(folder)
    assert read(cache, [*text(1, 100), 1]) == (0 if "of" in changed else 100)  # the file is stale


def test_files_of_a_deleted_model_are_removed(folder):
    store, cache = on_disk(folder)
    read(cache, text(1, 100))
    cache.save()
    store.close()
    (folder / "toy.gguf").unlink()
    assert prefix_files.stored() == []
    assert store.files.n_bytes() == 0


def test_a_full_disk_loses_the_file_and_not_the_answer(folder, monkeypatch, caplog):
    def fail(path, parts):
        raise OSError(28, "No space left on device", str(path))

    store, cache = on_disk(folder)
    monkeypatch.setattr("edgespec.kept_files.replace", fail)
    read(cache, text(1, 100))
    read(cache, text(2, 100))
    read(cache, text(3, 100))
    store.close()
    assert [message for message in caplog.messages if "the disk is full" in message] != []
    assert read(cache, [*text(1, 100), 1]) == 100
    assert prefix_files.stored() == []


def test_answers_are_the_same_with_and_without(store):
    tokenizer = ToyTokenizer([chr(97 + i) for i in range(VOCABULARY)])
    prompts = [[*text(i % 3, 100), *text(10 + i, 20)] for i in range(9)]
    answers = {}
    for name, given in (("without", None), ("with", store)):
        with assemble(toy(), tokenizer, prefixes=given) as engine:
            found = [engine.generate(prompt, max_tokens=40, stop=[]) for prompt in prompts]
        answers[name] = [each.token_ids for each in found]
    assert answers["with"] == answers["without"]
    n_cached = [each.stats.num_cached_tokens for each in found]
    assert n_cached[:3] == [0, 0, 0]
    assert min(n_cached[3:]) >= 100  # some also have their next token in common


def test_warming(store):
    tokenizer = ToyTokenizer([chr(97 + i) for i in range(VOCABULARY)])
    with assemble(toy(), tokenizer, prefixes=store) as engine:
        assert engine.warm(text(1, 100)) == 100
        for owner in ("", "a"):
            answer = engine.generate([*text(1, 100), 1, 2], max_tokens=1, owner=owner)
            assert answer.stats.num_cached_tokens == 100
        assert engine.describe()["prompt_cache"]["memory_bytes"] >= 400
    with (
        assemble(toy(), tokenizer) as engine,
        pytest.raises(edgespec.ConfigError, match="prompt cache is off"),
    ):
        engine.warm(text(1, 100))


def test_no_owner_waits_for_what_another_one_leaves(store, monkeypatch):
    tokenizer = ToyTokenizer([chr(97 + i) for i in range(VOCABULARY)])
    saved = []
    with assemble(toy(), tokenizer, prefixes=store) as engine:
        save = ToyModel.save_state
        monkeypatch.setattr(ToyModel, "save_state", lambda *given: saved.append(1) or save(*given))
        engine.generate(text(1, 100), max_tokens=1, owner="a")
        assert saved == [1]
        events = engine.stream(text(2, 100), max_tokens=1, owner="b")
        while next(events).type != "token":
            pass
        assert saved == [1]
        events.close()
        assert saved == [1, 1]


def test_a_cache_that_cannot_be_cut_is_read_up_to_the_branch_and_kept_there(store):
    cache = TokenCache(toy(truncate=False), prefixes=store.of(None))
    one = text(1, 100)
    begin, other = one[:70], (one[70] + 1) % VOCABULARY
    read(cache, one)
    assert read(cache, [*begin, other, *text(3, 20)]) == 0  # 70 tokens are there, and cannot stay
    before = cache.model.n_evaluated
    assert read(cache, [*begin, other, *text(5, 20)]) == 70
    assert cache.model.n_evaluated - before == 21


def test_what_was_not_used_for_the_longest_time_leaves_the_disk_first(folder):
    texts = [text(i, 100) for i in range(4)]
    store, cache = on_disk(folder, 3500)  # room for three
    for prompt in texts[:3]:
        read(cache, prompt)
        cache.save()
        store.close()
    store, cache = on_disk(folder, 3500)
    assert read(cache, [*texts[0], 1]) == 100
    read(cache, texts[3])
    cache.save()
    store.close()
    _, cache = on_disk(folder, 3500)
    assert [read(cache, [*texts[i], 1]) for i in (0, 2, 3)] == [100, 100, 100]
    assert read(cache, [*texts[1], 1]) == 0  # last: it is written, and another one is deleted


def test_no_file_outlives_what_it_continues(folder):
    system = text(0, 200)
    store, cache = on_disk(folder, 4500)
    for prompt in ([*system, *text(1, 50)], [*system, *text(2, 50)], text(3, 150)):
        read(cache, prompt)
        cache.save()
        store.close()
        assert store.files.n_bytes() <= 4500
    ids = {kept.id for kept in prefix_files.stored()}
    assert len(ids) == 2
    assert {kept.header.before for kept in prefix_files.stored()} <= {"", *ids}


def test_a_text_that_branches_off_a_long_one_loads_little_of_it(store):
    cache = TokenCache(toy(), prefixes=(prefixes := store.of(None)))
    long, branch = text(1, 2000), [*text(1, 2000)[:300], *text(2, 100)]
    for prompt in (long, branch, text(3, 50)):
        read(cache, prompt)
    match = prefixes.match("", [*branch, 1])
    assert match.n == 400
    assert sum(part.n_bytes for part in match.parts) <= 4 * 700
    assert read(cache, [*long, 1]) == 2000
