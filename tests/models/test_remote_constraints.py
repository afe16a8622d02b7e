"""Forms of answers over `edgespec serve` with real weights: eight devices, a form each."""

import json
import re
import threading

import pytest

import edgespec
from tests.helpers import libllama

libllama.require()
pytest.importorskip("uvicorn")
pytest.importorskip("llguidance")
from tests.helpers.served import connected, serving  # noqa: E402

TEXT = "The robot sees a chair and has to"


def schema(i):
    return {
        "type": "object",
        "properties": {
            f"action_{i}": {"enum": ["move_forward", "turn_left", f"wait_{i}"]},
            "distance_in_centimetres": {"type": "integer", "minimum": 0, "maximum": 500},
            "reason": {"type": "string", "maxLength": 12},
        },
        "required": [f"action_{i}", "distance_in_centimetres", "reason"],
        "additionalProperties": False,
    }


FORMS = [
    *({"schema": schema(i)} for i in range(5)),
    {"regex": r"(left|right|straight on)( and (left|right)){0,2}\."},
    {"choices": ("move forward", "turn left", "turn right", "größer")},
    {"grammar": 'root ::= "go " ("left" | "right") " for " [1-9] [0-9]? " metres"'},
]
WAYS = [{"temperature": 0.0}, {"temperature": 0.9, "seed": 5}]
KINDS = ["trees", "chains", "plain"]


def ask(engine, form):
    return [engine.generate(TEXT, **way, **form, max_tokens=100) for way in WAYS]


def test_texts_are_those_of_one_machine(smollm2):
    options = {"n_ctx": 1024, "batch_invariant": True, "speculative_config": {"method": "none"}}
    with edgespec.load(smollm2, None, **options) as here:
        expected = [[done.token_ids for done in ask(here, form)] for form in FORMS]
    found = {}

    def run(i, device):
        with device:
            found[i] = ask(device, FORMS[i])

    with serving(smollm2, "--batch-invariant", "-np", "4", "-c", "1024") as server:
        devices = [connected(server.url, smollm2, KINDS[i % 3]) for i in range(len(FORMS))]
        threads = [threading.Thread(target=run, args=each) for each in enumerate(devices)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
    assert len(found) == len(FORMS)
    for i, answers in found.items():
        assert [done.token_ids for done in answers] == expected[i]
        for done in answers:
            assert done.finish_reason == "stop"
            follows(FORMS[i], done.text)


def follows(form, text):
    """Check a text without what made it."""
    if "schema" in form:
        jsonschema = pytest.importorskip("jsonschema_rs")
        assert jsonschema.is_valid(form["schema"], json.loads(text))
    elif "choices" in form:
        assert text in form["choices"]
    else:
        assert re.fullmatch(form.get("regex", r"go (left|right) for [1-9][0-9]? metres"), text)
