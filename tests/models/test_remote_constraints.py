"""Forms of answers over `edgespec serve` with real weights: a device for each form."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

import edgespec
from tests.helpers import libllama
from tests.helpers.selection import first

libllama.require()
pytest.importorskip("uvicorn")
pytest.importorskip("llguidance")
from edgespec.server.verification.sessions import serving as sessions_of  # noqa: E402
from tests.helpers.served import connected, serving  # noqa: E402
from tests.helpers.serving import Server  # noqa: E402
from tests.helpers.weights import FOLDER  # noqa: E402

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
    *({"schema": schema(i)} for i in range(2)),
    {"regex": r"(left|right|straight on)( and (left|right)){0,2}\."},
    {"choices": ("move forward", "turn left", "turn right", "größer")},
    {"grammar": 'root ::= "go " ("left" | "right") " for " [1-9] [0-9]? " metres"'},
]
WAYS = [{"temperature": 0.0}, {"temperature": 0.9, "seed": 5}]
KINDS = ["trees", "chains", "plain"]


def ask(engine, form):
    return [engine.generate(TEXT, **way, **form, max_tokens=100) for way in WAYS]


@pytest.mark.long("servers of real weights; tests/server/test_remote_constraints.py has toys")
def test_texts_are_those_of_one_machine(smollm2):
    options = {"n_ctx": 1024, "batch_invariant": True, "speculative_config": {"method": "none"}}
    with edgespec.load(smollm2, None, **options) as here:
        expected = [[done.token_ids for done in ask(here, form)] for form in FORMS]

    def run(device, form):
        with device:
            return ask(device, form)

    with serving(smollm2, "--batch-invariant", "-np", "4", "-c", "1024") as server:
        devices = [connected(server.url, smollm2, KINDS[i % 3]) for i in range(len(FORMS))]
        with ThreadPoolExecutor(len(devices)) as pool:
            given = list(pool.map(run, devices, FORMS))
    assert [[done.token_ids for done in answers] for answers in given] == expected
    for form, answers in zip(FORMS, given, strict=True):
        for done in answers:
            assert done.finish_reason == "stop"
            follows(form, done.text)


PAIRS = [("GGUF", True), ("ONNX", False), ("GGUF", False), ("ONNX", True)]  # target; elsewhere


@pytest.mark.parametrize("pair", first(1, PAIRS, "more pairs; test_onnx.py has two"), ids=str)
def test_pairs_of_engines(smollm2, pair):
    target_format, elsewhere = pair
    graph = FOLDER / "smollm2-135m-onnx-int4/model.onnx"
    if not graph.exists():
        pytest.skip("smollm2-135m-onnx-int4 is not in $EDGESPEC_TEST_MODELS")
    path, draft = (smollm2, graph) if target_format == "GGUF" else (graph, smollm2)
    common = {"n_ctx": 512, "batch_invariant": True}
    fixed = {"num_speculative_tokens": 4, "draft_p_min": 0.0}
    with edgespec.load(path, None, speculative_config={"method": "none"}, **common) as target:
        expected = [done.token_ids for done in ask(target, FORMS[0])]
        if elsewhere:
            with Server(lambda: sessions_of(target, n_slots=2)) as server:
                remote = edgespec.RemoteConfig(server.url, timeout_s=60.0)
                with edgespec.connect(remote, draft, n_ctx=512, speculative_config=fixed) as there:
                    found = ask(there, FORMS[0])
        else:
            with edgespec.load(path, draft, speculative_config=fixed, **common) as here:
                found = ask(here, FORMS[0])
    assert [done.token_ids for done in found] == expected
    for done in found:
        assert any("draft_model" in name for name in done.stats.drafts_by_source)


def follows(form, text):
    """Check a text without what made it."""
    if "schema" in form:
        jsonschema = pytest.importorskip("jsonschema_rs")
        assert jsonschema.is_valid(form["schema"], json.loads(text))
    elif "choices" in form:
        assert text in form["choices"]
    else:
        assert re.fullmatch(form.get("regex", r"go (left|right) for [1-9][0-9]? metres"), text)
