"""Heads are described from their headers, and the doctor says what they are."""

from __future__ import annotations

import json

import pytest

import edgespec
from edgespec.backends.heads import TargetSizes
from edgespec.errors import ConfigError
from tests.helpers import gguf_files, head_files, head_folders, libllama, tiny_heads, tiny_models

libllama.require()


@pytest.fixture
def pair(tmp_path, monkeypatch):
    """Return a tiny target and a head for it."""
    monkeypatch.setenv("EDGESPEC_PROFILES", str(tmp_path / "profiles"))
    monkeypatch.setenv("EDGESPEC_MODELS", str(tmp_path / "models"))
    target = tiny_models.write(tmp_path, "llama", n_layer=6)
    more = {"general.license": (gguf_files.STRING, b"mit")}
    return target, tiny_heads.write(tmp_path / "head.gguf", **more)


def test_a_head_in_a_gguf(pair):
    _, head = pair
    found = edgespec.inspect_head(head)
    assert (found.kind, found.layers, found.license) == ("eagle3", tiny_heads.LAYERS, "mit")
    assert found.sizes == TargetSizes(tiny_models.WIDTH, tiny_models.VOCABULARY, 0)
    assert (found.n_drafted, found.max_depth) == (tiny_heads.N_DRAFTED, 0)
    assert found.precision == "F32"
    assert found.size == head.stat().st_size
    assert found.read_size == found.size - 4 * tiny_models.WIDTH * tiny_models.VOCABULARY


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_converted_head(tmp_path, precision):
    pytest.importorskip("onnxruntime")
    made = head_folders.converted(tmp_path, head_files.eagle3(), precision=precision)
    found = edgespec.inspect_head(made)
    assert (found.kind, found.layers, found.precision) == ("eagle3", (2, 4, 5), precision)
    assert found.sizes == TargetSizes(head_files.HIDDEN, head_files.VOCAB, head_files.TARGET_LAYERS)
    assert found.n_drafted == len(head_files.D2T)
    assert found.target == "target.gguf"
    assert found.size == sum(file.stat().st_size for file in made.iterdir())
    assert found.read_size == found.size - 2 * head_files.VOCAB * head_files.HIDDEN


def test_heads_without_embeddings_read_all(tmp_path):
    pytest.importorskip("onnxruntime")
    made = head_folders.converted(tmp_path, head_files.medusa())
    found = edgespec.inspect_head(made)
    assert (found.kind, found.max_depth) == ("medusa", head_files.N_GUESSES)
    assert found.read_size == found.size


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_guess_reads_the_graph_of_one_depth(tmp_path, tied, precision):
    pytest.importorskip("onnxruntime")
    made = head_folders.converted(
        tmp_path, head_files.mlp_speculator(tied=tied), precision=precision
    )
    sizes = [graph.stat().st_size for graph in made.glob("head.*.onnx")]
    assert len(sizes) == (2 if tied else head_files.N_GUESSES)
    embedding = 2 * head_files.VOCAB * head_files.INNER
    noted = (made / "head.json").stat().st_size
    read_size = edgespec.inspect_head(made).read_size
    assert min(sizes) - embedding <= read_size <= max(sizes) - embedding + noted


def test_what_fits_and_what_does_not(pair):
    found = edgespec.inspect_head(pair[1])
    width, vocabulary = tiny_models.WIDTH, tiny_models.VOCABULARY
    assert found.misfit(TargetSizes(width, vocabulary, 6)) == ""
    assert found.misfit(TargetSizes(0, 0, 0)) == ""  # nothing is said
    assert found.misfit(TargetSizes(width + 1, vocabulary, 6)).endswith(f"has {width + 1}")
    assert found.misfit(TargetSizes(width, vocabulary - 1, 6)).endswith(f"has {vocabulary - 1}")
    assert "at least 5 layers" in found.misfit(TargetSizes(width, vocabulary, 4))


def test_heads_are_among_the_drafts_of_a_model(pair, tmp_path):
    target, head = pair
    tiny_heads.write(tmp_path / "other.gguf", target_hidden_size=(gguf_files.UINT32, 999))
    (tmp_path / "half.gguf").write_bytes(head.read_bytes()[:200])
    found = {fit.reference: (fit.fits, fit.why) for fit in edgespec.fitting_drafts(target)}
    assert found["head.gguf"] == (True, "a trained head (eagle3) for a target of its sizes")
    assert found["other.gguf"] == (False, "a trained head (eagle3) for a target of other sizes")
    assert not found["half.gguf"][0]
    assert "cannot be read" in found["half.gguf"][1]


def test_converted_heads_are_too(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("EDGESPEC_MODELS", str(tmp_path))
    made = head_folders.converted(tmp_path, head_files.eagle3())
    (fit,) = edgespec.fitting_drafts(tmp_path / "target.gguf")
    assert (fit.reference, fit.fits) == (str(made / "head.onnx"), True)


def test_a_model_is_no_head_and_a_head_no_model(pair):
    target, head = pair
    with pytest.raises(ConfigError, match="is a model and no trained head"):
        edgespec.inspect_head(target)
    with pytest.raises(ConfigError, match="is a trained head, which only drafts"):
        edgespec.inspect(head)


def test_the_doctor_says_what_a_head_is(pair):
    target, head = pair
    found = {f.subject: f for f in edgespec.diagnose(target, head, n_ctx=256)}
    assert not any(f.broken for f in found.values())
    text = found["head"].text
    for said in ("head.gguf, eagle3, F32", "licence mit", "reads 1, 3, 5", "64 of the vocabulary"):
        assert said in text
    assert "takes" in found["draft"].text


def test_the_doctor_on_a_head_of_another_target(pair, tmp_path):
    target, _ = pair
    other = tiny_heads.write(tmp_path / "other.gguf", target_hidden_size=(gguf_files.UINT32, 999))
    (found,) = [f for f in edgespec.diagnose(target, other, n_ctx=256) if f.subject == "head"]
    assert (found.broken, found.remedy) == (True, "leave it out: -md none")
    assert "for one with 999 numbers a state" in found.text


def test_the_doctor_on_a_draft_that_is_the_target(pair):
    target, _ = pair
    found = edgespec.diagnose(target, target, n_ctx=256)
    assert len([f for f in found if f.subject == "profile"]) == 1
    (draft,) = [f for f in found if f.subject == "draft"]
    assert draft.level == "problem"
    assert "the draft model is the target itself" in draft.text


def test_loading_a_draft_that_is_the_target_warns(pair, caplog):
    target, _ = pair
    edgespec.load(target, target, n_ctx=256).close()
    assert "the draft model is the target itself" in caplog.text


def test_the_command_line_shows_a_head(pair, tmp_path):
    from click.testing import CliRunner

    from edgespec_cli.main import cli

    _, head = pair
    told = CliRunner().invoke(cli, ["inspect", str(head)]).stdout
    for said in (
        "kind          eagle3", "reads         1, 3, 5", "precision     F32", "licence       mit",
        "drafts        any number of tokens, 64 of the vocabulary", "of which a guess reads",
    ):  # fmt: skip
        assert said in told
    row = json.loads(CliRunner().invoke(cli, ["inspect", "--json", str(head)]).stdout)
    assert (row["path"], row["kind"], row["n_drafted"]) == (str(head), "eagle3", 64)
    assert row["sizes"]["hidden_size"] == tiny_models.WIDTH
