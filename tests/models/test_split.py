"""A GGUF in several files is one model."""

from __future__ import annotations

import pytest

import edgespec
from edgespec.backends import files

gguf = pytest.importorskip("gguf")


pytestmark = pytest.mark.llama_cpp


@pytest.fixture
def split(smollm2, tmp_path):
    """Write SmolLM2 in two parts; return the first."""
    whole = gguf.GGUFReader(smollm2)
    architecture = whole.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(tmp_path / "smol.gguf", architecture, split_max_tensors=150)
    for key, field in whole.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            kind, *inner = field.types
            writer.add_key_value(key, field.contents(), kind, sub_type=inner[0] if inner else None)
    for tensor in whole.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "smol-00001-of-00002.gguf"


@pytest.mark.long("writes and reads real weights")
def test_a_split_model_answers_as_the_whole_one(smollm2, split):
    assert len(files.parts(split)) == 2
    texts = []
    for path in (smollm2, split):
        with edgespec.load(path, None, n_ctx=256) as engine:
            texts.append(engine.generate("The capital of France is", max_tokens=8).token_ids)
    assert texts[0] == texts[1]
