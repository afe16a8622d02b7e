"""The memory of what was learned, with real weights and over processes."""

import json
import os
import subprocess
import sys

import pytest

ANSWER = """
import json, sys, edgespec
with edgespec.load(sys.argv[1], None, n_ctx=1024, n_threads=1) as engine:
    learners = [*engine.sessions[0]._drafting.drafters, engine.sessions[0]._policy]
    before = {k: v for learner in learners for k, v in learner.learned().items()}
    engine.measure()
    prompt = "one two three four one two three four one"
    text = engine.generate(prompt, max_tokens=48, temperature=0).text
print(json.dumps([before, text]))
"""


def answer(path, folder):
    """Return what a process has learned before its first answer, and that answer."""
    call = [sys.executable, "-c", ANSWER, str(path)]
    env = os.environ | {"EDGESPEC_PROFILES": str(folder)}
    done = subprocess.run(call, env=env, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def kept(folder):
    found = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    return next(values["learned"] for values in found if "learned" in values)


@pytest.mark.long("two processes with real weights")
def test_a_process_begins_where_the_last_one_ended(smollm2, tmp_path):
    before, text = answer(smollm2, tmp_path)
    assert before["suffix"] == []
    learned = kept(tmp_path)
    assert sum(n for _, _, n in learned["suffix"]) > 20
    assert learned["accounts"]["lengths"][1] > 20
    again, same_text = answer(smollm2, tmp_path)
    assert again == learned
    assert same_text == text
    assert kept(tmp_path) != learned
