"""Which models are in a repository, and which one is taken."""

from __future__ import annotations

import pytest

from edgespec.backends.files import quantisation_of
from edgespec.errors import ModelNotFound
from edgespec.hub import hub_client
from edgespec.hub.repositories import Repository, choose, chosen, models_in


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Qwen3-4B-Q4_K_M.gguf", "Q4_K_M"),
        ("qwen2.5-0.5b-instruct-q8_0.gguf", "Q8_0"),
        ("Llama-3.2-1B.IQ4_XS.gguf", "IQ4_XS"),
        ("Qwen3-4B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("BF16/gemma-BF16-00001-of-00002.gguf", "BF16"),
        ("Q4_K_M/model-00001-of-00003.gguf", "Q4_K_M"),
        ("onnx/model_q4.onnx", "Q4"),
        ("m-onnx-int4/model.onnx", "INT4"),
        ("tinyllama.gguf", ""),
    ],
)
def test_the_quantisation_is_in_the_name(name: str, expected: str) -> None:
    assert quantisation_of(name) == expected


@pytest.mark.parametrize(
    ("there", "tag", "taken"),
    [
        ("Q2_K Q4_0 Q4_K_M Q8_0", "", "Q4_K_M"),
        ("Q2_K Q4_0 Q5_K_M Q8_0", "", "Q4_0"),
        ("Q2_K Q5_K_M Q8_0 F16", "latest", "Q5_K_M"),
        ("Q2_K Q8_0 F16", "", "Q8_0"),
        ("IQ1_S Q2_K Q6_K F16", "", "Q6_K"),
        ("IQ1_S Q2_K Q3_K_M", "", "Q3_K_M"),
        ("Q4_0 Q4_K_M Q8_0", "q4_0", "Q4_0"),
        ("Q4_0 Q4_K_M Q8_0", "Q4", "Q4_K_M"),
        ("Q4_K_M UD-Q4_K_XL", "ud-q4_k_xl", "UD-Q4_K_XL"),
    ],
)
def test_the_sensible_model_or_the_one_of_the_tag(there: str, tag: str, taken: str) -> None:
    found = models_in({f"m-{name}.gguf": size for size, name in enumerate(there.split(), 1)})
    assert choose(found, Repository("org/m", tag)).quantisation == taken


def test_a_tag_that_nothing_has() -> None:
    found = models_in({"m-Q8_0.gguf": 1, "m.gguf": 2})
    with pytest.raises(ModelNotFound, match=r"org/m has no Q4_K_M; it has: Q8_0, m.gguf$"):
        choose(found, Repository("org/m", "Q4_K_M"))


WITH_HEADS = {  # as ggml-org has them
    "README.md": 2_000,
    "dflash-gemma-4-12B-it-Q8_0.gguf": 900_000_000,
    "dspark-gemma-4-12B-it-BF16.gguf": 900_000_000,
    "eagle3-gemma-4-12B-it-Q8_0.gguf": 800_000_000,
    "gemma-4-12B-it-Q4_K_M.gguf": 7_000_000_000,
    "gemma-4-12B-it-Q8_0.gguf": 12_000_000_000,
    "mmproj-gemma-4-12B-it-Q8_0.gguf": 850_000_000,
    "mtp-gemma-4-12B-it-Q4_K_M.gguf": 500_000_000,
}


def test_heads_beside_a_model_are_told_and_never_taken_for_it(monkeypatch) -> None:
    monkeypatch.setattr(hub_client, "sizes", lambda *args: WITH_HEADS)
    choice = chosen(Repository("org/m"))
    assert [model.quantisation for model in choice.models] == ["Q4_K_M", "Q8_0"]
    assert choice.reference == "hf:org/m/gemma-4-12B-it-Q4_K_M.gguf"
    assert [head.partition("-")[0] for head in choice.heads] == ["dflash", "eagle3", "mtp"]
    assert choice.named(choice.heads[1]) == "hf:org/m/eagle3-gemma-4-12B-it-Q8_0.gguf"
    assert choice.wanted == ["hf:org/m/mmproj-gemma-4-12B-it-Q8_0.gguf", choice.reference]


@pytest.mark.parametrize(
    ("model", "there", "taken"),
    [
        ("m-Q4_K_M.gguf", "mmproj-F32.gguf mmproj-BF16.gguf mmproj-F16.gguf", "mmproj-F16.gguf"),
        ("m-Q4_K_M.gguf", "mmproj-F16.gguf mmproj-Q8_0.gguf", "mmproj-Q8_0.gguf"),
        ("m-BF16.gguf", "mmproj-m-Q8_0.gguf mmproj-m-f32.gguf mmproj-m.gguf", "mmproj-m.gguf"),
        ("v-2B-Q8_0.gguf", "mmproj-v-7B-Q8_0.gguf mmproj-v-2B-f16.gguf", "mmproj-v-2B-f16.gguf"),
        ("a/m-Q8_0.gguf", "mmproj-Q8_0.gguf b/mmproj-Q8_0.gguf a/mmproj-F32.gguf",
         "a/mmproj-F32.gguf"),
        ("a/Q8_0/m-Q8_0.gguf", "mmproj-Q8_0.gguf a/mmproj-F32.gguf", "a/mmproj-F32.gguf"),
        ("a/m-Q8_0.gguf", "eyes/MMPROJ-m-F16.GGUF", "eyes/MMPROJ-m-F16.GGUF"),
        ("m-Q8_0.gguf", "m-mmproj-f16.gguf.md mmproj.txt mmproj/README.gguf", ""),
    ],
)  # fmt: skip
def test_the_projector_of_the_deepest_folder_the_name_and_the_nearest_bits(
    monkeypatch, model: str, there: str, taken: str
) -> None:
    sizes = {name: 10 + i for i, name in enumerate([model, *there.split()])}
    monkeypatch.setattr(hub_client, "sizes", lambda *args: sizes)
    choice = chosen(Repository("org/m"))
    assert choice.taken.file == model
    projector = choice.projector
    assert (projector.file if projector else "") == taken
    assert projector is None or projector.size == sizes[taken]
