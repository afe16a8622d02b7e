"""Companions are found by headers alone, ranked by what they gained, and one is loaded."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import edgespec
from edgespec import hub
from edgespec.config import EngineConfig
from edgespec.costs import profiles
from edgespec.decoding.kept import Kept
from edgespec.decoding.owners import OwnRates
from edgespec.errors import ConfigError, ModelError
from edgespec.hub import catalogue
from edgespec.loading import companions, trained
from edgespec.loading.companions import ENOUGH, FORGOTTEN_S, Companion, ranked
from tests.helpers import gguf_files, libllama, tiny_gemma4, tiny_heads, tiny_models
from tests.helpers.catalogue import HEADS, TOML

libllama.require()
A, B, C = (Path(name) for name in ("head.gguf", "mtp.gguf", "sibling.gguf"))
HEAD, MTP, SIBLING = Companion(A, "head", 9), Companion(B, "mtp", 5), Companion(C, "sibling", 30)
ALL = [HEAD, MTP, SIBLING]


def names(found):
    return [each.path.stem for each in found]


@pytest.mark.parametrize(("gains", "expected"), [
    ({}, ["head", "mtp", "sibling"]),  # nothing was measured
    ({A: 1.1}, ["mtp", "head", "sibling"]),  # what was not tried comes before less than its prior
    ({A: 1.1, B: 1.05, C: 1.4}, ["sibling", "head", "mtp"]),
    ({A: 1.01}, ["mtp", "sibling"]),  # it does not gain
    ({A: 1.0, B: 0.97, C: 1.0}, []),
    ({C: 1.31}, ["sibling", "head", "mtp"]),
])  # fmt: skip
def test_what_gained_most_comes_first(gains, expected):
    assert names(ranked(ALL, gains, 1e9)) == expected


def test_on_cpus_what_reads_too_much_is_left_out():
    assert names(ranked(ALL, {C: 9.0}, 9)) == ["head", "mtp"]
    assert names(ranked(ALL, {A: 1.0, C: 1.2}, 9, needed=True)) == ["mtp", "sibling", "head"]


def test_what_was_trained_here_may_read_more():
    large = replace(SIBLING, trained_gain=1.05)
    assert names(ranked([MTP, large], {}, 9)) == ["mtp", "sibling"]
    assert names(ranked([MTP, large], {C: 1.0}, 9)) == ["mtp"]
    assert names(ranked([MTP, replace(SIBLING, trained_gain=0.98)], {}, 9)) == ["mtp"]


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """Empty folders of models and profiles."""
    monkeypatch.setenv("EDGESPEC_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("EDGESPEC_PROFILES", str(tmp_path / "profiles"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "models").mkdir()
    return tmp_path


@pytest.fixture
def entry(monkeypatch):
    """Make a model with heads the whole catalogue, and return it."""
    made = catalogue.parse(TOML.replace("size = 4\n", "") + HEADS, "toy.toml")
    monkeypatch.setattr(catalogue, "load", lambda: {made.name: made})
    return made


@pytest.fixture
def target(folders):
    """Return a tiny model with the sizes that heads here are for."""
    path = tiny_models.write(folders, "llama", n_layer=6)
    return path.rename(folders / "Tiny-Q4_0.gguf")


def note(folder, **changed):
    """Write the folder of a converted head, as far as headers go."""
    folder.mkdir(parents=True)
    for name in ("head.onnx", "fuse.onnx"):
        (folder / name).write_bytes(b"graph")
    said = {
        "format": 1, "kind": "eagle3", "layers": [1, 3, 5], "hidden_size": tiny_models.WIDTH,
        "n_layer": 6, "vocab_size": tiny_models.VOCABULARY, "target": "Tiny-Q4_0.gguf",
    }  # fmt: skip
    (folder / "head.json").write_text(json.dumps(said | changed))
    return folder / "head.onnx"


def test_sidecars_beside_the_file_those_of_its_name_first(target):
    other = tiny_heads.write(target.with_name("eagle3-Another-Q8_0.gguf"))
    own = tiny_heads.write(target.with_name("eagle3-Tiny-Q8_0.gguf"))
    shutil.copy(target, target.with_name("mtp-Tiny.gguf"))  # which is a model
    tiny_heads.write(target.with_name("unrelated.gguf"))
    tiny_heads.write(
        target.with_name("eagle3-Wide-F16.gguf"), target_hidden_size=(gguf_files.UINT32, 999)
    )
    target.with_name("eagle3-Half.gguf").write_bytes(own.read_bytes()[:300])
    target.with_name("dflash-Text.gguf").write_text("nothing of that kind")
    found = companions.found(target, target)
    assert [each.path for each in found] == [own, other]
    assert {each.role for each in found} == {"head"}
    embedding = 4 * tiny_models.WIDTH * tiny_models.VOCABULARY
    assert found[0].read_size == own.stat().st_size - embedding


def test_an_assistant_beside_its_target(folders):
    target = tiny_gemma4.write_target(folders)
    assistant = tiny_gemma4.write_assistant(folders)
    (found,) = companions.found(target, target)
    assert (found.path, found.role, found.read_size) == (assistant, "mtp", assistant.stat().st_size)
    tiny_gemma4.write_assistant(folders, embedding_length_out=(gguf_files.UINT32, 999))
    assert not companions.found(target, target)


def test_converted_heads_of_this_target_that_fit(folders, target, entry):
    pytest.importorskip("onnxruntime")
    models = folders / "models"
    ours = note(models / "a-head-int8")
    note(models / "b-head", target="Other-Q4_0.gguf")
    note(models / "c-head", hidden_size=7)
    note(models / "d-head", format=9)
    (note(models / "e-head").parent / "head.json").write_text("{")
    beside = note(folders / "mine")
    assert [each.path for each in companions.found(target, target)] == [ours, beside]
    named = folders / "toy-Q4_0.gguf"
    shutil.copy(target, named)
    known = [
        note(models / "f", target="toy-1b"),
        note(models / "g", target="", source="toy_eagle3"),
    ]
    assert [each.path for each in companions.found(named, named)] == known


def test_nothing_is_loaded_to_find_them(target, monkeypatch):
    tiny_heads.write(target.with_name("eagle3-Tiny-Q8_0.gguf"))

    def refuse(*_, **__):
        raise AssertionError("loaded")

    for name in ("open_model", "open_head", "load_weights"):
        monkeypatch.setattr(f"edgespec.backends.llama_cpp.{name}", refuse)
    assert len(companions.found(target, target)) == 1


class Learner:
    """Stands for the policy: it has measured a gain."""

    def __init__(self, saved_s, answers=ENOUGH):
        self.state = {"draft_gain": {"answers": answers, "spent_s": 1.0, "saved_s": saved_s}}

    def learned(self):
        return self.state

    def relearn(self, state):
        pass


def keep(target, draft, saved_s, answers=ENOUGH):
    kept = Kept(target, draft)
    kept.recall(OwnRates([Learner(saved_s, answers)]))
    kept.save()


@pytest.fixture
def pair(target):
    """Return two sidecars of the target."""
    first = tiny_heads.write(target.with_name("eagle3-Tiny-Q8_0.gguf"))
    return first, tiny_heads.write(
        target.with_name("eagle3-Tiny-F16.gguf"), tiny_heads.head_weights(2)
    )


@pytest.fixture
def best(target, monkeypatch):
    monkeypatch.setattr("edgespec.backends.llama_cpp.gpus", lambda config: ["a GPU"])
    return lambda **options: companions.best(target, target, EngineConfig(), **options)


def test_what_was_measured_decides(target, pair, best):
    first, second = sorted(pair)
    assert best() == [first, second]
    keep(target, first, 0.2, answers=ENOUGH - 1)  # too few to say anything
    assert best() == [first, second]
    keep(target, first, 0.2)
    assert best() == [second, first]
    keep(target, second, 0.1)
    assert best() == [first, second]
    keep(target, first, 0.0)
    assert best() == [second]
    keep(target, second, -0.1)
    assert best() == []
    assert best(needed=True) == [first, second]


def test_what_did_not_gain_is_tried_again_when_its_file_changes_or_after_a_while(
    target, pair, best, monkeypatch
):
    first, second = sorted(pair)
    keep(target, first, -0.1)
    keep(target, second, -0.1)
    assert best() == []
    os.utime(first, (1, 1))
    assert best() == [first]
    now = profiles.time.time()
    monkeypatch.setattr("edgespec.decoding.kept.time.time", lambda: now + FORGOTTEN_S + 60)
    assert best() == [first, second]


def test_damaged_gains_are_as_if_there_were_none(target, pair, best, folders, caplog):
    first, second = sorted(pair)
    keep(target, first, -0.1)
    (path,) = (folders / "profiles").glob("*.json")
    path.write_text(path.read_text().replace("-0.1", '"none"'))
    assert best() == [first, second]
    assert "damaged" in caplog.text


def test_on_a_cpu_a_head_has_to_be_small(target, pair, monkeypatch):
    monkeypatch.setattr("edgespec.backends.llama_cpp.gpus", lambda config: [])
    assert companions.best(target, target, EngineConfig()) == []
    monkeypatch.setattr(companions, "CPU_SHARE", 0.01)
    assert companions.best(target, target, EngineConfig()) == sorted(pair)


def test_load_takes_the_first_that_opens_and_says_why_not_the_others(target, pair, best, caplog):
    first, second = sorted(pair)
    metadata = tiny_heads.head_metadata(
        target_layers=(gguf_files.ARRAY, (gguf_files.INT32, [1, 3]))
    )
    first.write_bytes(gguf_files.gguf_bytes(metadata, tiny_heads.head_weights()))
    with edgespec.load(target, n_ctx=256) as engine:
        assert engine.describe()["draft"]["file"] == second.name
        assert engine.generate([1, 2, 3], max_tokens=4).token_ids
    assert f"{first.name} is not drafted with: " in caplog.text
    with pytest.raises(ModelError, match="target_layers"):
        edgespec.load(target, first, n_ctx=256)


def test_none_is_taken_where_none_opens(target, pair, best, monkeypatch, caplog):
    def refuse(path, *_):
        raise ConfigError(f"{path.name} reads what nobody gives")

    monkeypatch.setattr("edgespec.backends.llama_cpp.open_head", refuse)
    with edgespec.load(target, n_ctx=256) as engine:
        assert engine.describe()["draft"] is None
    assert caplog.text.count("reads what nobody gives") == 2


def test_a_head_whose_states_the_target_lacks_is_closed(target, pair, best, monkeypatch):
    closed = []
    from edgespec.backends.llama_cpp import LlamaCppHead, LlamaCppModel

    close = LlamaCppHead.close

    def tap(self, layers):
        if layers:
            raise ConfigError("the graph lacks the layers")

    monkeypatch.setattr(LlamaCppModel, "tap", tap)
    monkeypatch.setattr(LlamaCppHead, "close", lambda self: (closed.append(1), close(self))[1])
    edgespec.load(target, n_ctx=256).close()
    assert len(closed) == 2


def test_what_is_learned_is_kept_for_the_one_that_was_loaded(target, pair, best, folders):
    with edgespec.load(target, n_ctx=256) as engine:
        engine.measure()
        for i in range(3):
            engine.generate([1, 2, 3 + i], max_tokens=24, ignore_eos=True)
    found = [json.loads(path.read_text()) for path in (folders / "profiles").glob("*.json")]
    learned = [f for f in found if f["fingerprint"].get("kind") == "learned"]
    assert [f["fingerprint"]["models"][1] for f in learned] == [str(sorted(pair)[0].resolve())]
    assert learned[0]["learned"]["draft_gain"]["answers"] == 3


def test_what_the_catalogue_knows_is_suggested_once(folders, target, entry):
    named = folders / "models" / "toy-Q4_0.gguf"
    shutil.copy(target, named)
    assert companions.suggestion("toy-1b", named, EngineConfig()) == "hf:org/toy_eagle3"
    assert companions.suggestion(named, named, EngineConfig()) == ""
    assert companions.is_new("toy-1b", "hf:org/toy_eagle3")
    assert not companions.is_new("toy-1b", "hf:org/toy_eagle3")
    assert companions.is_new("toy-1b", "hf:org/another")
    with edgespec.load("toy-1b", n_ctx=256) as engine:
        assert engine.describe()["suggestion"] == "hf:org/toy_eagle3"
    with edgespec.load("toy-1b", None, n_ctx=256) as engine:
        assert "suggestion" not in engine.describe()
    tiny_heads.write(named.with_name("eagle3-toy-F32.gguf"))
    assert companions.suggestion("toy-1b", named, EngineConfig()) == ""


def test_a_large_draft_is_not_suggested_on_a_cpu(monkeypatch, folders):
    name = "qwen2.5-coder-1.5b"
    path = folders / "models" / hub.entry(name).file().filename
    path.write_bytes(bytes(10))
    monkeypatch.setattr("edgespec.backends.llama_cpp.gpus", lambda config: [])
    assert companions.suggestion(name, path, EngineConfig()) == ""
    monkeypatch.setattr("edgespec.backends.llama_cpp.gpus", lambda config: ["a GPU"])
    assert companions.suggestion(name, path, EngineConfig()) == hub.entry(name).drafts[0]


def test_a_head_that_was_trained_here_is_taken_whatever_its_size(tmp_path, monkeypatch):
    target = tiny_models.write(tmp_path, "llama")
    head = trained.register(tiny_heads.write(tmp_path / "made.gguf"), target, 1.05)
    assert [each.trained_gain for each in companions.found(target, target)] == [1.05]
    monkeypatch.setattr(companions, "_most_bytes", lambda *_: 1)
    assert companions.best(target, target, EngineConfig()) == [head]
    trained.register(head, target, 0.98)
    assert companions.best(target, target, EngineConfig()) == []
