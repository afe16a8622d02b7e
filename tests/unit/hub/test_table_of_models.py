"""The page of models names the model that the ladder takes on each device."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgespec import hub
from edgespec.costs.places import Place
from edgespec.hub.catalogue import Use

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "models.md"
SECTION = "## Which model on which device\n"
PLACES = {  # bytes of weights a second, on a GPU
    "graphics card, Jetson": [(180e9, True), (45e9, True)],
    "laptop or PC with six cores, Apple silicon": [(35e9, False), (45e9, False)],
    "laptop or PC with four cores, Apple silicon": [(24e9, False), (45e9, False)],
    "PC with two cores, Raspberry Pi 5 or a similar board": [(12e9, False)],
    "any": [(12e9, False)],
}


def rows() -> list[tuple[str, ...]]:
    """Return use, device, memory, model and draft model of each row, without titles."""
    text = PAGE.read_text(encoding="utf-8").split(SECTION)[1].split("\n## ")[0]
    chat, code = text.split("For code:")
    return [
        (use, *(cell.strip(" `") for cell in line.strip("|").split("|")[:4]))
        for use, part in (("chat", chat), ("code", code))
        for line in part.splitlines()
        if line.startswith("| ") and "`" in line
    ]


@pytest.mark.parametrize(("use", "device", "memory", "model", "draft"), rows())
def test_a_row_is_what_the_ladder_takes(
    use: Use, device: str, memory: str, model: str, draft: str
) -> None:
    free = int(float(memory.removesuffix(" GB")) * 1e9)
    for speed, is_gpu in PLACES[device]:
        best = hub.picks([Place(device, free, speed, is_gpu=is_gpu)], use)[0]
        assert (best.reference, best.draft or "–") == (model, draft)


def test_there_are_rows_of_both_uses() -> None:
    assert {use for use, *_ in rows()} == {"chat", "code"}
