"""Which models are taken on which device."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgespec import hub
from edgespec.costs.places import Place

BOARD = [Place("processor", 1_500_000_000, 10e9)]  # 2 GB, of which some is used
SMALL = [Place("processor", 400_000_000, 6e9)]
LAPTOP = [Place("processor", 5_000_000_000, 24e9)]  # 8 GB
DESKTOP = [Place("processor", 26_000_000_000, 35e9)]  # 32 GB
SLOW = [Place("processor", 26_000_000_000, 10e9)]  # much memory, few cores
CARD = [Place("RTX", 7_000_000_000, 180e9, is_gpu=True), *DESKTOP]


@pytest.fixture(autouse=True)
def empty_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of models, with nothing in it or in the hub's cache."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("EDGESPEC_MODELS", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        (SMALL, []),
        (BOARD, ["qwen2.5-0.5b", "smollm2-360m", "qwen2.5-coder-0.5b"]),
        (LAPTOP, ["qwen3-4b", "qwen3-0.6b:Q4_K_M", "qwen2.5-coder-1.5b"]),
        (DESKTOP, ["qwen3-8b", "qwen3-0.6b:Q4_K_M", "qwen2.5-coder-7b"]),
        (SLOW, ["qwen3-1.7b", "qwen3-0.6b:Q4_K_M", "qwen2.5-coder-1.5b"]),
        (CARD, ["qwen3-8b", "qwen3-0.6b:Q4_K_M", "qwen2.5-coder-7b"]),
    ],
    ids=["too small", "2 GB board", "8 GB laptop", "32 GB desktop", "slow", "graphics card"],
)
def test_what_to_take_on_a_device(places: list[Place], expected: list[str]) -> None:
    assert [pick.reference for pick in hub.to_take(places)] == expected
    assert len({each[0] for each in hub.advice(places)}) == max(1, len(expected))


@pytest.mark.parametrize("places", [BOARD, LAPTOP, DESKTOP, SLOW, CARD])
def test_every_pick_fits_and_is_as_fast_as_people_read(places: list[Place]) -> None:
    picks = hub.picks(places)
    assert [p.entry.parameters for p in picks] == sorted(
        (p.entry.parameters for p in picks), reverse=True
    )
    for pick in picks:
        assert pick.memory < pick.place.memory
        assert pick.speed >= 6
        assert pick.entry.use == "chat"
        assert not pick.file.has_folder


def test_where_nothing_fits_the_model_of_last_resort_is_named() -> None:
    assert [each[0] for each in hub.advice(SMALL)] == [hub.fallback_model]
    assert hub.advice(SMALL)[0][2] == "nothing better fits this device"


def test_a_model_runs_on_the_card_if_it_fits_there_and_on_the_processor_else() -> None:
    small, large = (hub.entry(name) for name in ("qwen3-4b", "qwen3-8b"))
    on_card, beside = (hub.pick(entry, entry.files[0], CARD) for entry in (small, large))
    assert on_card
    assert beside
    assert (on_card.place.name, beside.place.name) == ("RTX", "processor")
    assert on_card.speed > 10 * beside.speed


def test_a_draft_model_counts_where_it_pays_and_fits() -> None:
    entry = hub.entry("qwen3-1.7b")
    on_cpu, on_card = (hub.pick(entry, entry.files[0], places) for places in (DESKTOP, CARD))
    assert on_cpu
    assert on_card
    assert (on_cpu.draft, on_card.draft) == ("", "qwen3-0.6b:Q4_K_M")
    draft = hub.entry("qwen3-0.6b")
    alone = draft.memory(draft.file("Q4_K_M"), hub.N_CTX)
    assert alone
    assert on_card.draft_memory == alone - hub.WORK_SPACE
    assert on_card.memory == on_cpu.memory == entry.memory(entry.files[0], hub.N_CTX)
    assert f"the draft model {on_card.draft} (" in on_card.about
    assert "draft model" not in on_cpu.about
    tight = [Place("RTX", on_cpu.memory + 500_000_000, 180e9, is_gpu=True)]
    alone = hub.pick(entry, entry.files[0], tight)
    assert alone
    assert alone.draft == ""


def test_measured_speeds_are_told_from_typical_ones() -> None:
    entry = hub.entry("qwen3-1.7b")
    for measured, words in (
        (True, "from what was measured here"),
        (False, "typical, not measured"),
    ):
        pick = hub.pick(entry, entry.files[0], [Place("processor", 10**10, 12e9, measured)])
        assert pick
        assert f"about 9 tokens/s ({words})" in pick.about


@pytest.mark.parametrize("places", [BOARD, LAPTOP, DESKTOP, SLOW, CARD])
def test_a_recommendation_names_what_drafts_and_no_other_device(places: list[Place]) -> None:
    for pick in hub.to_take(places):
        assert f"the draft model {pick.draft}" * bool(pick.draft) in pick.about
        assert ("what drafts for it" in pick.about) == bool(pick.draft)
    for entry in hub.entries().values():
        assert "boards" not in entry.description


def make(folder: Path, reference: str) -> None:
    """Put a file of the catalogue's size on the disk, which takes no room."""
    name, _, quantisation = reference.partition(":")
    file = hub.entry(name).file(quantisation or None)
    with (folder / file.filename).open("wb") as written:
        written.truncate(file.size or 5_000_000_000)


def test_models_on_disk_are_the_best_first_and_no_drafts(empty_disk: Path) -> None:
    for reference in (
        "smollm2-135m",
        "gemma-3-270m",
        "qwen2.5-coder-7b",
        "deepseek-r1-distill-qwen-7b",
    ):
        make(empty_disk, reference)
    assert hub.usable_on_disk(DESKTOP) == []
    for reference in ("qwen2.5-1.5b", "llama-3.2-3b", "qwen3-0.6b:Q4_K_M", "qwen3-8b"):
        make(empty_disk, reference)
    known = [pick.reference for pick in hub.usable_on_disk(DESKTOP)]
    assert known == ["qwen3-8b", "llama-3.2-3b", "qwen2.5-1.5b", "qwen3-0.6b:Q4_K_M"]
    assert hub.usable_on_disk(LAPTOP)[0].reference == "llama-3.2-3b"  # the other does not fit
    drafts = [pick.reference for pick in hub.usable_on_disk(LAPTOP, ("code", "draft"))]
    assert drafts == ["smollm2-135m"]


def test_a_file_whose_size_the_catalogue_does_not_know_counts_with_its_own(
    empty_disk: Path,
) -> None:
    make(empty_disk, "qwen3-4b:Q8_0")
    assert [pick.size for pick in hub.usable_on_disk(DESKTOP)] == [5_000_000_000]
    assert hub.usable_on_disk(LAPTOP) == []


def test_what_is_recommended_has_a_size_a_hash_and_an_open_licence() -> None:
    recommended = [entry for entry in hub.entries().values() if entry.recommended]
    assert {entry.use for entry in recommended} == {"chat", "code"}
    for entry in recommended:
        assert entry.licence in ("Apache-2.0", "MIT")
        assert all(entry.files[0].sha256 and entry.files[0].size for _ in entry.files)
