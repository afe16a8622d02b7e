"""What `inspect` and the doctor tell about pictures."""

import json

import pytest

import edgespec
from edgespec.config import EngineConfig
from edgespec.measure.model_checks import check_size
from tests.helpers import libllama, projector_files

libllama.require()

LAST = 2**50  # bytes, more than any model needs


@pytest.fixture
def model(tmp_path):
    return projector_files.write_text(tmp_path / "toy-Q8_0.gguf", "gemma3", 512)


def with_projector(model, width=32):
    return projector_files.write(model.with_name("mmproj-toy.gguf"), "gemma3", width)


def test_a_model_with_a_projector(model):
    blind = edgespec.inspect(model)
    path = with_projector(model)
    info = edgespec.inspect(model)
    assert info.projector == edgespec.inspect_projector(path)
    assert (info.projector.kind, info.projector.most_tokens) == ("gemma3", 16)
    assert info.memory(512) == blind.memory(512) + path.stat().st_size
    assert (blind.projector, blind.why_blind) == (None, "")
    assert json.loads(json.dumps(info.to_dict()))["projector"]["path"] == str(path)
    assert edgespec.inspect(model, "none") == blind


def test_a_projector_that_cannot_be_used_is_told(model):
    path = with_projector(model, 64)
    info = edgespec.inspect(model)
    assert info.projector is None
    assert info.why_blind == f"{path.name} makes embeddings of 64 numbers, this model reads 32"
    path.write_bytes(path.read_bytes()[:1000])
    assert "mmproj-toy.gguf" in edgespec.inspect(model).why_blind
    assert "is no projector" in edgespec.inspect(model, str(model)).why_blind


def test_a_projector_is_no_model(model):
    path = with_projector(model)
    for refused in (edgespec.inspect, edgespec.load):
        with pytest.raises(edgespec.ConfigError, match="is a projector, with which a model sees"):
            refused(path)
    with pytest.raises(edgespec.ConfigError, match="is no projector; use inspect"):
        edgespec.inspect_projector(model)


def told_about(subject, model, **options):
    found = edgespec.diagnose(model, None, budget_s=0.0, n_ctx=256, n_threads=1, **options)
    return [finding for finding in found if finding.subject == subject]


def test_the_doctor_says_whether_a_model_sees(model):
    (blind,) = told_about("pictures", model)
    assert blind.level == "ok"
    assert f"reads text alone: there is no mmproj-….gguf in {model.parent}" in blind.text
    with_projector(model, 64)
    (broken,) = told_about("pictures", model)
    assert (broken.level, bool(broken.remedy)) == ("problem", True)
    assert "makes embeddings of 64 numbers" in broken.text
    with_projector(model)
    (sees,) = told_about("pictures", model)
    assert sees.level == "ok"
    assert "mmproj-toy.gguf (gemma3), at most 16 tokens a picture" in sees.text
    (left_out,) = told_about("pictures", model, mmproj="none")
    assert "mmproj is none" in left_out.text


def test_the_doctor_says_whether_both_fit_into_memory(model):
    with_projector(model)
    info, config = edgespec.inspect(model), EngineConfig(n_ctx=256)
    (fits,) = check_size(info, config, LAST)
    assert (fits.level, "the model and its projector with" in fits.text) == ("ok", True)
    (short,) = check_size(info, config, info.memory(256) - 1)
    assert (short.level, "--mmproj none" in short.remedy) == ("problem", True)
    assert not list(check_size(edgespec.inspect(model, "none"), config, LAST))
