"""ik_llama.cpp, in processes of its own: one process opens one libllama."""

import json
import os
import subprocess
import sys

import pytest

from edgespec.backends import fork
from edgespec.errors import BuildError
from edgespec.measure import libraries
from tests.helpers import libllama

llama_cpp = libllama.require()
pytestmark = [
    pytest.mark.llama_cpp,
    pytest.mark.skipif(not fork.library(), reason=f"{fork.PACKAGE} {fork.VERSION} is missing"),
]

PROGRAM = """
import json, sys
import edgespec
from edgespec.backends import llama_cpp

prompt = "Count: one, two, three, four, one, two, three, four, one, two,"
texts, accepted = [], 0
for spec in ({"method": "none"}, {"method": "suffix", "num_speculative_tokens": 4}):
    with edgespec.load(sys.argv[1], None, speculative_config=spec, n_ctx=512) as engine:
        answer = engine.generate(prompt, max_tokens=24, temperature=0)
        texts.append(answer.text)
        accepted += answer.stats.num_accepted_draft_tokens
print(json.dumps([llama_cpp.engine(), texts, accepted]))
"""


@pytest.fixture
def with_ik(monkeypatch):
    monkeypatch.setenv("EDGESPEC_LIBLLAMA", str(fork.library()))


def test_it_is_right_for_one_model_and_wrong_for_another(monkeypatch, gemma, smollm2):
    monkeypatch.delenv("EDGESPEC_LIBLLAMA", raising=False)
    assert libraries.compare(gemma, fork.library(), 1).is_right
    assert not libraries.compare(smollm2, fork.library(), 1).is_right  # Q4_1


def test_texts_with_drafts_are_those_without(with_ik, gemma):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(gemma)], capture_output=True, text=True,
        env=os.environ | {"EDGESPEC_PROFILES": os.devnull},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    engine, (plain, drafted), accepted = json.loads(done.stdout)
    assert engine == f"{fork.PACKAGE} {fork.VERSION}"
    assert plain == drafted
    assert accepted > 4


def test_a_library_that_ends_its_process_is_an_error(monkeypatch, gemma, tmp_path):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(BuildError, match="cannot evaluate"):
        libraries.compare(gemma, fork.library(), 1)
