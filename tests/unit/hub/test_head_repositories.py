"""What is fetched of a repository with a trained head; the fetching itself is in
test_downloads.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from edgespec import hub
from edgespec.errors import ModelNotFound
from edgespec.hub import hub_client
from edgespec.hub.head_repositories import names_head
from tests.helpers.catalogue import HEADS, TOML

SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder of models; the hub's cache is empty, too."""
    monkeypatch.setenv("EDGESPEC_MODELS", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


@pytest.fixture
def listing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Record what a repository has."""

    def record(*names: str) -> None:
        sizes = {name: 10 * (i + 1) for i, name in enumerate(names)}
        monkeypatch.setattr(hub_client, "sizes", lambda *args: sizes)

    return record


@pytest.mark.parametrize(
    ("there", "fetched"),
    [
        (["config.json", "model.safetensors"], ["config.json", "model.safetensors"]),
        (["pytorch_model.bin", "x.py", "config.json"], ["config.json", "pytorch_model.bin"]),
        (
            ["config.json", "README.md", "medusa_lm_head.pt", "optimizer.pt"],
            ["config.json", "README.md", "medusa_lm_head.pt"],
        ),
        (
            ["config.json", "model.safetensors.index.json", *SHARDS, "training/state.bin"],
            ["config.json", "model.safetensors.index.json", *SHARDS],
        ),
        (["config.json", "eagle.safetensors"], ["config.json", "eagle.safetensors"]),
    ],
)
def test_weights_config_and_card_are_fetched(listing, there, fetched) -> None:
    listing(*there)
    head = hub.head_repository("hf:org/toy_eagle3")
    assert list(head.files) == fetched
    assert head.size == sum(10 * (there.index(name) + 1) for name in fetched)


@pytest.mark.parametrize(
    "there", [["m-Q4_0.gguf", "config.json"], ["config.json", "onnx/model.onnx"], ["README.md"]]
)
def test_repositories_of_other_things_are_none(listing, there) -> None:
    listing(*there)
    assert hub.head_repository("hf:org/toy") is None


def test_references_of_other_things_ask_nobody(monkeypatch) -> None:
    monkeypatch.setattr(hub_client, "sizes", None)
    for reference in ("smollm2-135m", "hf:org/toy/x.gguf", "hf:org/toy:Q8_0"):
        assert hub.head_repository(reference) is None
        assert hub.checkpoint_on_disk(reference) is None


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (["pytorch_model.bin"], r"has weights \(pytorch_model.bin\) and no config.json"),
        (["config.json", "README.md"], "has a config.json and no weights that can be read"),
        (["config.json", "a.bin", "b.bin"], "no weights that can be read"),
    ],
)
def test_what_lacks_is_said(listing, there, said) -> None:
    listing(*there)
    with pytest.raises(ModelNotFound, match=said):
        hub.head_repository("hf:org/toy")


@pytest.mark.parametrize(
    ("config", "is_head"),
    [
        ({"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1}, True),
        ({"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1}, True),  # EAGLE-1
        ({"architectures": ["DFlashDraftModel"], "num_hidden_layers": 5}, True),
        ({"speculators_model_type": "eagle3"}, True),
        ({"medusa_num_heads": 5}, True),
        ({"model_type": "mlp_speculator"}, True),
        ({"n_predict": 3}, True),
        ({"block_size": 8, "num_hidden_layers": 5}, True),
        ({"architectures": ["DeepseekV3ForCausalLMNextN"]}, True),
        ({"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 28}, False),
        ({"architectures": None, "model_type": 3}, False),
        ({}, False),
    ],
)
def test_a_config_tells_heads_from_models(config, is_head) -> None:
    assert names_head(config) == is_head


def test_a_converted_head_is_what_its_repository_names(models: Path) -> None:
    assert hub.resolve("hf:org/toy_eagle3") is None
    for precision in ("fp32", "int8"):
        folder = models / f"org--toy_eagle3-head-{precision}"
        folder.mkdir()
        (folder / "head.onnx").write_bytes(b"graph")
        (folder / "fuse.onnx").write_bytes(b"another")
        (folder / "head.json").write_text(json.dumps({"kind": "eagle3"}))
    (models / "org--toy_eagle3-head-half").mkdir()
    found = hub.resolve("hf:org/toy_eagle3")
    assert found.name == "head.onnx"
    assert found.parent.name.startswith("org--toy_eagle3-head-")
    assert hub.resolve("hf:org/toy_eagle3:Q8_0") is None
    assert hub.resolve("hf:org/toy") is None


def test_a_converted_head_is_listed_once_and_removed_whole(models: Path) -> None:
    folder = models / "org--toy_eagle3-head-int8"
    folder.mkdir()
    for name, content in (("head.onnx", b"abc"), ("fuse.onnx", b"ab"), ("head.json", b"{}")):
        (folder / name).write_bytes(content)
    (model,) = hub.stored()
    assert (model.path, model.size, model.format) == (folder / "head.onnx", 7, "ONNX INT8")
    assert hub.remove(hub.find("hf:org/toy_eagle3")) == 7
    assert not folder.exists()


def test_the_catalogue_tells_whose_head_it_is(use_entry) -> None:
    use_entry(TOML + HEADS)
    assert hub.targets_of("hf:org/toy_eagle3") == ["toy-1b"]
    assert hub.targets_of("hf:org/toy") == []  # a file of it is a head, and needs no conversion
    assert hub.targets_of("hf:org/other") == []
