"""Answers under a constraint of a target on another machine: those of one machine, whatever is
drafted and whatever the connection does.
"""

import re
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import pytest

from edgespec import ConfigError, SamplingParams, VerifierFault, VerifierRefused
from edgespec.config import RemoteConfig
from edgespec.constraints.compiler import Constraints
from edgespec.constraints.matcher import GrammarMatcher
from edgespec.server.verification import frames
from edgespec.verifiers.fallback import Fallback
from edgespec.verifiers.local import LocalVerifier
from edgespec.verifiers.remote import RemoteVerifier
from tests.helpers.constrained import (
    FORMS,
    ROWS,
    SCHEMA,
    TOKENIZER,
    N,
    device,
    engine,
    local,
    served,
    toy,
)
from tests.helpers.delaying import Proxy
from tests.helpers.serving import Server, closing, disturbed, drafted_ahead, until

pytest.importorskip("llguidance")

PROMPTS = ["the cat sat", "a", 'say {"action":"stop"} {"action":"stop"}']
GREEDY = {"max_tokens": 150}
DRAWN = {"max_tokens": 150, "temperature": 0.9, "seed": 11}
PENALTIES = {
    "max_tokens": 150, "temperature": 0.7, "seed": 3, "top_p": 0.9, "repetition_penalty": 1.3,
    "presence_penalty": 0.4, "logit_bias": {4: -5.0}, "logprobs": 2,
}  # fmt: skip
FREE = {"logit_bias": dict.fromkeys(range(N, ROWS), -1e6)}  # no form forbids padding here
WAYS = {"greedy": GREEDY, "drawn": DRAWN, "penalties": PENALTIES}


@pytest.fixture(scope="module")
def server():
    with Server(served) as running:
        yield running


def check(done, given):
    """Check that an answer is complete and follows its form."""
    assert done.finish_reason == "stop"
    if "schema" in given:
        assert done.parsed["action"] in given["schema"]["properties"]["action"]["enum"]
        assert set(done.parsed) == set(given["schema"]["properties"])
    elif "choices" in given:
        assert done.text in given["choices"]
    elif "regex" in given:
        assert re.fullmatch(given["regex"], done.text)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["none", "chains", "trees"])
def test_text_is_that_of_one_machine(server, kind, form, way):
    here, options = local(), WAYS[way] | FORMS[form]
    for seed in (1, 2) if kind != "none" else (1,):
        with closing(device(server.url, kind, seed)) as there:
            for prompt in PROMPTS:
                expected, done = here.generate(prompt, **options), there.generate(prompt, **options)
                assert done.token_ids == expected.token_ids
                check(done, FORMS[form])
                short = kind == "none" or form == "choices"
                assert short or done.stats.num_accepted_draft_tokens


def test_forced_tokens_are_drafted_on_the_device(server):
    with closing(device(server.url)) as there:
        sources = there.generate(PROMPTS[0], **GREEDY, schema=SCHEMA).stats.drafts_by_source
    assert any("forced" in name for name in sources), sources


def test_what_was_guessed_ahead_follows_the_form(server):
    with Proxy(server.port, 0.01) as proxy, closing(device(proxy.url)) as there:
        seen = drafted_ahead(there)
        done = there.generate(PROMPTS[0], **GREEDY, **FORMS["regex"])
    assert done.token_ids == local().generate(PROMPTS[0], **GREEDY, **FORMS["regex"]).token_ids
    assert any(step.n_accepted for step, _ in seen)


def test_log_probabilities_are_those_of_the_unmasked_target(server):
    options = PENALTIES | {"schema": SCHEMA}
    here = local().generate(PROMPTS[0], **options)
    with closing(device(server.url)) as there:
        done = there.generate(PROMPTS[0], **options)
    for a, b in zip(done.logprobs, here.logprobs, strict=True):
        assert a.logprob == pytest.approx(b.logprob, rel=1e-5)
        assert [token for token, _ in a.top] == [token for token, _ in b.top]


ANSWER = {
    "answer": r"""%llguidance {}
start: think (call | FREE)
think: "ab" /[a-z0-9_ ]*/ "!"
call: "move" %json {"type": "object", "properties": {"a": {"type": "integer", "maximum": 99}},
    "required": ["a"], "additionalProperties": false}
FREE: /[A-Z ]{1,9}/
""",
}
BUDGET = ANSWER | {
    "reasoning_budget": 4, "reasoning_begin": "ab", "reasoning_end": "!",
    "reasoning_open": False,
}  # fmt: skip


@pytest.mark.parametrize("description", [ANSWER, BUDGET], ids=["answer", "budget"])
@pytest.mark.parametrize("kind", ["none", "chains", "trees"])
def test_whole_answers_with_reasoning_and_calls(server, kind, description):
    """As tools and reasoning have them: a constraint beside the parameters."""

    def ask(engine, prompt, seed):
        constraint = engine.constraints.described(description)
        assert constraint.description == description
        params = SamplingParams(temperature=1.0, seed=seed, max_tokens=60)
        *_, last = engine.run(engine.encode(prompt), params, constraint=constraint)
        return last.completion

    thoughts, here = [], local()
    with closing(device(server.url, kind, 2)) as there:
        for seed in range(8):
            expected, done = ask(here, PROMPTS[0], seed), ask(there, PROMPTS[0], seed)
            assert (done.token_ids, done.text) == (expected.token_ids, expected.text)
            thoughts += re.findall("^ab(.*?)!", done.text)
            if description is BUDGET and done.text.startswith("ab"):
                assert len(re.match("ab(.*?)!", done.text)[1]) <= 4 * len("_right")
    assert thoughts or description is ANSWER


def test_forms_follow_one_another_in_one_session(server):
    """And answers without one stand between them, and one that is cut."""
    here = local()
    asked = [FORMS["schema"], FREE, FORMS["choices"], {"max_tokens": 7, "schema": SCHEMA}, FREE,
             FORMS["schema"], FORMS["regex"]]  # fmt: skip
    with closing(device(server.url)) as there:
        for given in asked:
            options = GREEDY | given
            expected = here.generate(PROMPTS[0], **options)
            done = there.generate(PROMPTS[0], **options)
            assert (done.token_ids, done.finish_reason) == (
                expected.token_ids, expected.finish_reason
            )  # fmt: skip
        until(lambda: server.sessions.n_waiting == 0)  # its thread sends first, then it counts


def test_eight_devices_each_with_a_schema_of_its_own(server):
    """More forms than slots that are used together; each answer is that of its lone run."""

    def given(i):
        names = [f"move{i}", "turn_left"][: 1 + i % 2]
        properties = SCHEMA["properties"] | {"action": {"enum": names}}
        return {"schema": SCHEMA | {"properties": properties}} | (DRAWN if i % 3 else GREEDY)

    def run(i):
        kind = ["chains", "trees", "none"][i % 3]
        with closing(device(server.url, kind, 2 - i % 2, 60)) as there:
            return [there.generate(PROMPTS[i % 3], **given(i)) for _ in range(3)]

    expected = [local().generate(PROMPTS[i % 3], **given(i)).token_ids for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(run, range(8)))
    for i, done in enumerate(answers):
        assert {one.token_ids for one in done} == {expected[i]}
        check(done[0], given(i))


# --- connections that break ---


@pytest.mark.parametrize("kind", ["none", "chains", "trees"])
@pytest.mark.parametrize("after", range(0, 24, 3))
def test_cut_between_any_two_messages(server, kind, after):
    options = DRAWN | FORMS["schema"]
    expected = local().generate(PROMPTS[0], **options)
    with Proxy(server.port) as proxy, closing(device(proxy.url, kind, 2)) as there:
        proxy.cut_after = after
        done = there.generate(PROMPTS[0], **options)
        assert done.token_ids == expected.token_ids
        check(done, options)


@pytest.mark.parametrize("kind", ["none", "chains"])
def test_a_server_that_knows_nothing_any_more(kind):
    options = DRAWN | FORMS["schema"]
    expected = local().generate(PROMPTS[0], **options).token_ids
    with Server(served) as server, closing(device(server.url, kind, 2)) as there:
        assert disturbed(there, server.restart, [8], PROMPTS[0], **options) == expected


def test_a_local_target_goes_on_under_the_same_form():
    options, server = DRAWN | FORMS["schema"], Server(served)
    expected = local().generate(PROMPTS[0], **options)

    def reach():
        return RemoteVerifier(RemoteConfig(server.url, timeout_s=0.3), TOKENIZER)

    for kind in ("none", "chains"):
        both = Fallback(reach, LocalVerifier(toy()))
        with closing(engine(both, kind, 2)) as asked:
            shown, notices = [], []
            for event in asked.stream(PROMPTS[0], **options):
                shown += [event.token] if event.type == "token" else []
                notices += [event.text] if event.type == "notice" else []
                if len(shown) == 9 and not both.is_local:
                    server.stop()
            assert tuple(shown) == expected.token_ids
            assert both.is_local
            assert "the local target answers" in notices[0]
            check(event.completion, options)
        server.start()
    server.stop()


def test_cancelled_in_the_middle(server):
    with closing(device(server.url)) as there:
        events = there.stream(PROMPTS[0], **GREEDY, schema=SCHEMA)
        for _ in range(5):
            next(events)
        there.cancel()
        *_, last = events
        assert last.completion.finish_reason == "cancelled"
        done = there.generate(PROMPTS[0], **GREEDY, **FORMS["choices"])
        check(done, FORMS["choices"])


# --- what is refused ---


def elsewhere(kind, text, matcher=None):
    """Return a constraint that this device has not compiled."""
    anything = Constraints(TOKENIZER).described({"regex": "(?s:.*)"}).matcher
    return types.SimpleNamespace(
        description={kind: text}, matcher=matcher or anything, shown={}, notes=(), thought=None
    )


@pytest.fixture
def asked(server):
    """Return a function that asks a server for an answer under any constraint."""

    def ask(constraint, url=server.url, **options):
        with closing(device(url)) as there:
            there.constraint = lambda *given, **options: constraint
            return there.generate(PROMPTS[0], max_tokens=50, **FREE, **options)

    return ask


@pytest.mark.parametrize(("kind", "text", "said"), [
    ("schema", '{"not": {}}', "schema cannot be followed"),
    ("schema", "[" * 60_000, "schema cannot be followed"),
    ("regex", "(", "regex cannot be followed: .*: unclosed group$"),
    ("choices", "[1]", "choices must be a list"),
    ("grammar", "start: nothing", "grammar cannot be followed"),
])  # fmt: skip
def test_what_the_server_cannot_compile(asked, kind, text, said):
    with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:\d+: {said}") as error:
        asked(elsewhere(kind, text))
    assert "\n" not in str(error.value)
    assert asked(None).token_ids, "the next answer is given"


def test_what_is_too_long_for_a_frame(asked):
    with pytest.raises(ConfigError, match="regex has 65536 bytes, and may have 65535 where the"):
        asked(elsewhere("regex", "a" * 65536))
    assert asked(elsewhere("choices", '["ab"]'.ljust(65535))).text == "ab"


def test_a_server_that_has_never_heard_of_it(asked, monkeypatch):
    monkeypatch.setattr(frames, "KNOWN_OPTIONS", ())
    with pytest.raises(VerifierRefused, match="does not know the options 'regex'; leave them out"):
        asked(elsewhere("regex", "a+"))


def test_a_server_that_does_not_hold_to_it(asked):
    """The device looks at what comes, whether it drafts or not."""
    only = Constraints(TOKENIZER).described({"regex": "a+"}).matcher
    with pytest.raises(VerifierFault, match="sent what was not asked for"):
        asked(elsewhere("regex", "[0-9]+", only), disable_spec_decode=True)


def test_masking_only_the_first_row_of_a_draft_is_caught(server, monkeypatch):
    mask = GrammarMatcher.mask
    monkeypatch.setattr(GrammarMatcher, "mask", lambda self, ahead=(): mask(self))
    with closing(device(server.url, "trees")) as there, pytest.raises(VerifierRefused):
        there.generate(PROMPTS[0], **DRAWN, schema=SCHEMA)


def test_compiling_keeps_nobody_waiting(server):
    """A device whose form takes long to compile waits alone, and gives up as with any server."""
    may, constraints = threading.Event(), server.sessions._target._constraints
    compile_now, held = constraints.described, []

    def described(description, owner):
        if description:  # the other device has no form
            held.append(description)
            assert may.wait(20)
        return compile_now(description, owner)

    constraints.described, found = described, []
    with closing(device(server.url)) as slow, closing(device(server.url)) as other:
        options = GREEDY | {"regex": "(move|turn)[0-9]"}
        thread = threading.Thread(target=lambda: found.append(slow.generate("a", **options)))
        thread.start()
        while not held:
            threading.Event().wait(0.01)
        expected = local().generate(PROMPTS[0], max_tokens=40, **FREE)
        assert other.generate(PROMPTS[0], max_tokens=40, **FREE).token_ids == expected.token_ids
        assert not found
        may.set()
        thread.join(20)
        constraints.described = compile_now
    check(found[0], options)
