"""Which draft model is taken, and who closes it: no weights are loaded."""

import re

import pytest

from edgespec import ToyModel, ToyTokenizer, hub
from edgespec.config import EngineConfig
from edgespec.errors import ConfigError, ModelNotFound, OutOfMemory
from edgespec.loading import load as loading
from edgespec.loading.assembly import assemble, configured, draft_slots
from edgespec.loading.drafts import draft_path
from edgespec.measure.inspection import inspect
from tests.helpers import libllama
from tests.helpers.toy_head import ToyHead

libllama.require()
TARGET, DRAFTS = "qwen2.5-coder-7b", hub.entries()["qwen2.5-coder-7b"].drafts


class ClosingToy(ToyModel):
    closed = False

    def close(self):
        self.closed = True


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """Files of so many bytes stand for models; returns how to say which there are."""
    sizes = {}

    def resolve(reference, *, quantisation=None):
        name, _, suffix = reference.partition(":")
        suffix = suffix or quantisation or ""
        if suffix.startswith("ONNX"):
            reference, path = f"{name}:{suffix}", tmp_path / name / "model.onnx"
            path.parent.mkdir(exist_ok=True)
        elif suffix in ("", hub.entry(name).files[0].quantisation):
            reference, path = name, tmp_path / f"{name}.gguf"
        else:
            return None
        if reference not in sizes:
            return None
        path.write_bytes(b"x" * sizes[reference])
        return path

    monkeypatch.setattr(hub, "resolve", resolve)
    return sizes


def chosen(draft="auto", on_gpu=False, monkeypatch=None, spec=None):
    monkeypatch.setattr("edgespec.backends.llama_cpp.gpus", lambda config: ["a GPU"] * on_gpu)
    path = draft_path(TARGET, draft, EngineConfig(), spec and configured(spec, draft))
    return path and path.stem


def test_on_cpus_a_small_one(disk, monkeypatch):
    first, second = DRAFTS[:2]
    disk.update({TARGET: 1000, first: 201, second: 200})
    assert chosen(monkeypatch=monkeypatch) == second
    assert chosen(on_gpu=True, monkeypatch=monkeypatch) == first
    disk[second] = 300
    assert chosen(monkeypatch=monkeypatch) is None
    asked_for = {"method": "draft_model"}
    assert chosen(spec=asked_for, monkeypatch=monkeypatch) == first


def test_one_of_the_targets_own_format_first(disk, monkeypatch):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("tokenizers")
    target, draft = "qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b"
    disk.update({target: 9000, f"{target}:ONNX-INT4": 9000, draft: 800})
    paths = [draft_path(t, "auto", EngineConfig()) for t in (target, f"{target}:ONNX-INT4")]
    assert [path.suffix for path in paths] == [".gguf", ".gguf"]
    disk[f"{draft}:ONNX-INT4"] = 800
    paths = [draft_path(t, "auto", EngineConfig()) for t in (target, f"{target}:ONNX-INT4")]
    assert [path.suffix for path in paths] == [".gguf", ".onnx"]


def test_what_is_named_is_taken(disk, monkeypatch):
    disk.update({TARGET: 1000, DRAFTS[0]: 900})
    assert chosen(DRAFTS[0], monkeypatch=monkeypatch) == DRAFTS[0]
    assert chosen(None, monkeypatch=monkeypatch) is None
    assert chosen(spec={"method": "suffix"}, monkeypatch=monkeypatch) is None
    with pytest.raises(ModelNotFound, match="edgespec pull"):
        chosen(DRAFTS[1], monkeypatch=monkeypatch)


def test_capitals_are_no_difference(disk, monkeypatch):
    disk.update({TARGET: 1000, DRAFTS[1]: 200})
    disk[TARGET.upper()] = 1000
    monkeypatch.setattr("edgespec.backends.llama_cpp.gpus", lambda config: [])
    assert draft_path(TARGET.upper(), "auto", EngineConfig()).stem == DRAFTS[1]


def test_a_draft_model_that_has_nothing_to_do(disk, monkeypatch):
    disk.update({TARGET: 1000, DRAFTS[0]: 200})
    spec = {"num_speculative_tokens": 0}
    assert chosen(DRAFTS[0], spec=spec, monkeypatch=monkeypatch) is None
    for config, kept in ((spec, False), ({"method": "suffix"}, False), ({}, True)):
        target, draft = (ClosingToy([[0.5, 0.5], [0.5, 0.5]]) for _ in range(2))
        with assemble(target, ToyTokenizer(["a", "b"]), draft, config):
            assert (target.closed, draft.closed) == (False, not kept)
        assert (target.closed, draft.closed) == (True, True)


def test_what_was_loaded_is_closed_when_the_rest_fails(monkeypatch):
    target, draft = (ClosingToy([[0.5, 0.5], [0.5, 0.5]]) for _ in range(2))
    monkeypatch.setattr(loading, "target_path", lambda _: None)
    monkeypatch.setattr(loading, "tuned_options", lambda *_: {})
    monkeypatch.setattr(loading, "draft_paths", lambda *_: [])
    monkeypatch.setattr(loading, "open_model", lambda *_: target)
    monkeypatch.setattr(loading, "slots_of", lambda *_: None)
    monkeypatch.setattr(loading, "load_first", lambda *_, **__: (None, draft))
    with pytest.raises(AttributeError):  # toys have no settings of a file
        loading.load("any")
    assert (target.closed, draft.closed) == (True, True)


@pytest.mark.parametrize(("spec", "says"), [
    ({"method": "sufix"}, "unknown drafter 'sufix'; did you mean 'suffix'?"),
    ({"method": "suffix,magic"}, "unknown drafter 'magic'; known: auto, none, "),
    ({"acceptance": "blok"}, "unknown acceptance rule 'blok'; did you mean 'block'?"),
    ({"method": "suffix", "model": "x"}, "method 'suffix' uses no draft model, but 'x' was given"),
])  # fmt: skip
def test_impossible_methods(spec, says):
    with pytest.raises(ConfigError, match=re.escape(says)):
        configured(spec)


def test_options_that_no_drafter_takes():
    target = ToyModel([[0.5, 0.5], [0.5, 0.5]])
    spec = {"method": "suffix", "options": {"depth": 3}}
    with pytest.raises(
        ConfigError,
        match=r"unknown option 'depth': the drafters that are used \(suffix\) have no opt",
    ):
        assemble(target, ToyTokenizer(["a", "b"]), None, spec)


def test_none_on_disk(disk, monkeypatch):
    disk[TARGET] = 1000
    assert chosen(on_gpu=True, monkeypatch=monkeypatch) is None


@pytest.mark.parametrize(("config", "said"), [
    ({"method": "suffix"}, "prompt lookup"),
    ({"method": "recycling,runner_ups,suffix"}, "token recycling, runner-ups, prompt lookup"),
    ({"method": "none"}, "off: not asked for"),
])  # fmt: skip
def test_what_drafts_is_told_in_words(config, said):
    model, tokenizer = ToyModel([[0.5, 0.5]] * 2), ToyTokenizer(["a", "b"])
    with assemble(model, tokenizer, speculative_config=config) as engine:
        assert engine.describe()["speculation"] == said


def test_a_head_is_refused_where_a_model_is_meant(tmp_path):
    (tmp_path / "head.onnx").touch()
    (tmp_path / "head.json").write_text('{"kind": "medusa"}')
    for ask in (loading.load, inspect):
        with pytest.raises(ConfigError, match=r"head\.onnx is a trained head, which only drafts"):
            ask(tmp_path)


def test_heads_of_slots_are_freed_if_one_has_no_room():
    """The first head's weights must not be freed before contexts over them."""
    closed = []

    class Full(ToyHead):
        def close(self):
            closed.append(self)

        def for_slot(self, target):
            if target == "third":
                raise OutOfMemory("no room")
            return Full([[1.0]])

    with pytest.raises(OutOfMemory):
        draft_slots(Full([[1.0]]), ["first", "second", "third"])
    assert len(closed) == 1
