"""`edgespec.connect` and real weights behind a real server."""

import functools
from concurrent.futures import ThreadPoolExecutor

import pytest

import edgespec
from edgespec import ConfigError, VerifierUnavailable, VocabularyMismatch
from edgespec.costs.curves import Curve
from edgespec.costs.profiles import store
from edgespec.policies.fixed import FixedDepth
from edgespec.server.verification.sessions import serving
from tests.helpers import libllama
from tests.helpers.delaying import Proxy
from tests.helpers.selection import first, sample, share
from tests.helpers.serving import Server, drafted_ahead, free_port

llama_cpp = libllama.require()

PROMPTS = ["Write a short story about a robot.", "Repeat: one two three one two three one", "Hi"]
GREEDY = {"max_tokens": share(40, 2), "ignore_eos": True}
DRAWN = GREEDY | {"temperature": 0.8, "top_k": 40, "seed": 5}


@pytest.fixture(scope="module")
def target(smollm2):
    with edgespec.load(smollm2, None, n_ctx=1024, batch_invariant=True) as engine:
        yield engine


@pytest.fixture(scope="module")
def server(target):
    with Server(lambda: serving(target, name="smollm2-135m.gguf", n_slots=4)) as running:
        yield running


@pytest.mark.parametrize("options", first(1, [DRAWN, GREEDY], "greedy text as well"))
def test_text_is_that_of_this_machine(server, target, small_draft, options):
    config = {"num_speculative_tokens": 4, "draft_p_min": 0.0}
    with edgespec.connect(server.url, small_draft, n_ctx=1024, speculative_config=config) as there:
        for prompt in sample(PROMPTS, 3):
            done = there.generate(prompt, **options)
            target.generate(prompt, max_tokens=1)
            expected = target.generate(prompt, **options, disable_spec_decode=True)
            assert done.token_ids == expected.token_ids
            assert done.stats.num_accepted_draft_tokens
        assert there.describe()["verifier"] == {"url": server.url, "model": "smollm2-135m.gguf"}


@pytest.mark.parametrize("form", [
    {"choices": ("one, two and three", "one", "none of them")},
    {"schema": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3}},
], ids=["choices", "schema"])  # fmt: skip
def test_forms_of_answers_hold_on_the_server(server, target, small_draft, form):
    pytest.importorskip("llguidance")
    config = {"num_speculative_tokens": 4, "draft_p_min": 0.0}
    with edgespec.connect(server.url, small_draft, n_ctx=1024, speculative_config=config) as there:
        for options in ({"max_tokens": 40}, {"max_tokens": 40, "temperature": 0.8, "seed": 5}):
            done = there.generate(PROMPTS[1], **options, **form)
            expected = target.generate(PROMPTS[1], **options, **form, disable_spec_decode=True)
            assert (done.token_ids, done.finish_reason) == (expected.token_ids, "stop")
            assert done.parsed == expected.parsed
            assert done.stats.num_accepted_draft_tokens
        with pytest.raises(ConfigError, match="schema cannot be followed"):
            there.generate(PROMPTS[1], schema={"not": {}})


@pytest.mark.long("measures real weights")
def test_auto_decides_by_measured_costs_and_round_trip(server, target, small_draft):
    store(target.target.fingerprint(), Curve((64,), (1, 2, 32), ((0.02, 0.021, 0.1),)))
    with edgespec.connect(server.url, small_draft, n_ctx=1024) as there:
        assert there.idle_work.left  # the draft model's costs
        assert there.measure()
        verifier, profile = there.sessions[0]._verifier, there.sessions[0]._policy.costs.profile
        assert verifier.costs[1] > 0
        assert profile.target(2) > verifier.costs[2]  # there and back as well
        assert profile.target(1) == verifier.costs[1]
        assert profile.draft
        assert there.generate(PROMPTS[0], **GREEDY).stats.plain_s


@pytest.mark.long("measures real weights")
def test_a_server_that_does_not_speculate_tells_its_costs(smollm2, monkeypatch, tmp_path):
    monkeypatch.setenv("EDGESPEC_PROFILES", str(tmp_path))
    plain = {"method": "none"}
    with edgespec.load(smollm2, None, n_ctx=512, speculative_config=plain) as engine:
        assert not engine.idle_work.left
        with Server(lambda: serving(engine, name="smollm2", n_slots=2)) as running:
            assert engine.measure()
            remote = edgespec.RemoteConfig(running.url, tokenizer=smollm2)
            with edgespec.connect(remote) as there:
                assert there.generate("one two", max_tokens=2).token_ids
                assert there.sessions[0]._verifier.costs[1] > 0


def test_auto_drafts_ahead(server, smollm2):
    """Drafters as `connect` puts them together, the policy made to want drafts. The draft model is
    the target itself: most guesses come true.
    """
    with (
        Proxy(server.port, 0.05) as proxy,
        edgespec.connect(proxy.url, smollm2, n_ctx=1024) as there,
    ):
        there.sessions[0]._policy = there.sessions[0]._drafting.policy = FixedDepth(2)
        seen = drafted_ahead(there)
        there.generate(PROMPTS[0], **GREEDY)
        assert any(step.n_accepted for step, _ in seen)


def test_only_the_vocabulary_of_a_file(server, smollm2):
    with edgespec.connect(edgespec.RemoteConfig(server.url, tokenizer=smollm2)) as there:
        assert there.generate("Hi", max_tokens=3).token_ids
        assert there.describe()["model"] is there.describe()["draft"] is None


@pytest.mark.long("six devices with real weights; tests/server/test_hostile_devices.py has fifty")
def test_several_at_once_on_one_context(server, target, smollm2):
    """Four sequences and six devices; each text is that of its lone run."""
    prompts = [f"{name} is a city in" for name in ("Oslo", "Lima", "Pune", "Kyiv", "Bari", "Ulm")]
    expected = [target.generate(p, **DRAWN, disable_spec_decode=True).token_ids for p in prompts]

    def run(prompt):
        remote = edgespec.RemoteConfig(server.url, tokenizer=smollm2, timeout_s=60)
        with edgespec.connect(remote) as there:
            return there.generate(prompt, **DRAWN).token_ids

    with ThreadPoolExecutor(len(prompts)) as pool:
        assert list(pool.map(run, prompts)) == expected


def test_a_local_target_takes_over(target, smollm2):
    server = Server(lambda: serving(target, name="smollm2-135m.gguf", n_slots=2))
    with edgespec.connect(
        edgespec.RemoteConfig(server.url, local=smollm2, timeout_s=0.5),
        n_ctx=1024,
        batch_invariant=True,
    ) as there:
        expected = there.generate(PROMPTS[0], **DRAWN).token_ids
        assert not there.sessions[0]._verifier.is_local
        server.stop()
        events = list(there.stream(PROMPTS[0], **DRAWN))
        assert events[-1].completion.token_ids == expected
        assert there.sessions[0]._verifier.is_local
        assert any(e.type == "notice" and "the local target" in e.text for e in events)


def test_what_cannot_be_connected(smollm2, small_draft):
    with pytest.raises(ConfigError, match="vocabulary"):
        edgespec.connect("ws://127.0.0.1:9")
    for url in ("http://127.0.0.1:9", "127.0.0.1:9", "wss", "triton+http://127.0.0.1:9"):
        with pytest.raises(ConfigError, match="no address of a verifier"):
            edgespec.connect(url, small_draft)
    with pytest.raises(VerifierUnavailable, match="no verification server"):
        edgespec.connect(f"ws://127.0.0.1:{free_port()}", small_draft)
    with pytest.raises(VerifierUnavailable):
        edgespec.connect(
            edgespec.RemoteConfig(f"openai+http://127.0.0.1:{free_port()}", timeout_s=0.3),
            small_draft,
        )


def test_a_draft_of_another_family(smollm2, qwen_pair):
    with pytest.raises(VocabularyMismatch):
        edgespec.connect(edgespec.RemoteConfig("ws://127.0.0.1:9", tokenizer=smollm2), qwen_pair[1])


# --- bench and doctor ---


@pytest.mark.long("measures real weights twice")
def test_doctor_looks_at_the_server(server, smollm2, small_draft):
    found = {f.subject: f for f in edgespec.diagnose_verifier(server.url, small_draft)}
    assert "smollm2-135m.gguf answers, 1024 tokens" in found["verifier"].text
    assert "tokens/s" in found["remote speed"].text
    assert "the draft model" in found["verdict"].text
    found = {
        f.subject: f
        for f in edgespec.diagnose_verifier(edgespec.RemoteConfig(server.url, local=smollm2))
    }
    assert "decodes faster" in found["local speed"].text
    assert "lookup" in found["verdict"].text


def test_doctor_says_what_is_wrong(server, smollm2):
    away = f"ws://127.0.0.1:{free_port()}"
    *_, problem = edgespec.diagnose_verifier(edgespec.RemoteConfig(away, tokenizer=smollm2))
    assert problem.broken
    assert "no verification server" in problem.text
    *_, problem = edgespec.diagnose_verifier(edgespec.RemoteConfig(away, local=smollm2))
    assert problem.remedy == "the local model answers meanwhile"
    *_, problem = edgespec.diagnose_verifier(
        edgespec.RemoteConfig(server.url, tokenizer=smollm2, model="another")
    )
    assert problem.broken
    assert "not 'another'" in problem.text
    with pytest.raises(ConfigError):
        edgespec.diagnose_verifier(server.url)


@pytest.mark.long("measures real weights")
def test_bench_measures_a_target_far_away(server, smollm2):
    from edgespec.bench import runner, workloads
    from edgespec.bench.summary import summary

    questions = [q for q in workloads.edge() if q.category == "file_editing"][:1]
    with edgespec.connect(edgespec.RemoteConfig(server.url, tokenizer=smollm2)) as there:
        answers = list(runner.run(there, questions, runner.RunOptions(max_tokens=16)))
    assert {row["mode"] for row in summary(answers)} >= {"auto", "plain"}


def command(server, small_draft, name, *args, code=0):
    from click.testing import CliRunner

    from edgespec_cli.main import cli

    given = [name, "--verifier", server.url, "-md", str(small_draft), *args]
    result = CliRunner().invoke(cli, given, prog_name="edgespec")
    assert result.exit_code == code, result.stderr
    return result


def test_the_command_line_answers(server, small_draft):
    run = functools.partial(command, server, small_draft, "run")
    assert run("-n", "8", "--choice", "hello", "Say hello.").stdout.strip() == "hello"
    wrong = run("--verifier-model", "other", "Hi", code=1)
    assert "has 'smollm2-135m.gguf', not 'other'" in wrong.stderr
    assert "cannot be read" in run("--verifier-key-file", "nowhere", "Hi", code=2).stderr


@pytest.mark.long("measures real weights")
def test_the_command_line_measures(server, small_draft):
    run = functools.partial(command, server, small_draft)
    assert run("run", "-n", "8", "Say hello.").stdout.strip()
    assert "smollm2-135m.gguf answers" in run("doctor", "--json").stdout
    table = run("bench", "--category", "file_editing", "--per-category", "1", "-n", "8")
    assert f"smollm2-135m.gguf at {server.url}" in table.stdout
