"""Constraints of devices' answers, frame by frame, without a network."""

import struct

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from edgespec import SamplingParams, protocol
from edgespec.protocol.fields import _FLOATS as PARAMS
from edgespec.server.verification.target import KNOWN_OPTIONS
from tests.helpers.devices import Clock, FakeDevice, sessions_over, settle
from tests.helpers.selection import share
from tests.helpers.serving import WORDS

pytest.importorskip("llguidance")

PROMPT, END = [1, 2, 3], WORDS.index(".")
A, B, C = range(3)
ANSWER = {
    "answer": "%llguidance {}\nstart: /a[ac-z]*bc/", "reasoning_budget": 2, "reasoning_begin": "a",
    "reasoning_end": "b", "reasoning_open": False,
}  # fmt: skip


def begun(options, sessions=None, **begin):
    """Return a device that has sent BEGIN with these options."""
    device = FakeDevice(sessions or sessions_over()).begin(PROMPT, options=options, **begin)
    settle(device.sessions)
    return device


def answer(device):
    return device.all(protocol.Answer)[-1]


def answer_of(device, round_):
    return next(each for each in device.all(protocol.Answer) if each.round == round_)


def error(device):
    (found,) = device.all(protocol.Error)
    return found


def test_the_target_stops_where_the_answer_is_complete():
    device = begun({"choices": '["abc"]'})
    device.ask(0, ahead=20)
    assert device.text() == [A, B, C, END]
    device.say(protocol.More(30))
    settle(device.sessions)
    assert len(device.text()) == 4
    assert device.sessions.n_waiting == 0


@pytest.mark.parametrize(("ids", "parents", "accepted"), [
    ([A, B, END, C, C], (), 2),
    ([A, B, END], (), 2),
    ([C, A, B, END, A], (-1, -1, 1, 2, 3), 3),
    ([A, C, B, END, B], (-1, 0, 0, 2, 3), 3),
])  # fmt: skip
@pytest.mark.parametrize("params", [{}, {"temperature": 1.0}])
def test_a_draft_that_goes_on_behind_the_end(ids, parents, accepted, params):
    """Whatever the target would say there is not said, and its cache is right afterwards."""
    device = begun({"choices": '["ab"]'}, **params)
    device.ask(0, ids, parents=parents)
    assert (answer(device).accepted, answer(device).token) == (accepted, END)
    checksum = protocol.Context(PROMPT).checksum(3)
    device.begin([], keep=3, checksum=checksum, n_prompt=3, options={"choices": '["abc"]'})
    device.ask(1, ahead=3)
    assert device.text()[-4:] == [A, B, C, END]


def test_an_end_that_the_device_has_not_seen_is_dropped():
    device = begun({"regex": "a+"}, logit_bias={END: 50.0})
    device.ask(0, ahead=9)
    assert device.text() == [A, END]
    device.context += [A]
    device.ask(10, [A, A])
    assert answer(device) == protocol.Answer(10, 0, END, answer(device).server_us)


def test_a_device_to_which_the_end_is_none():
    device = begun({"choices": '["a"]'})
    device.ask(0, ahead=4)
    device.context += device.text()
    device.ask(5)
    assert error(device).code == protocol.UNSUPPORTED
    assert "token 27 has ended the answer" in error(device).message


def test_an_answer_that_goes_on_after_a_connection_was_lost():
    device = begun({"regex": "ab*c"})
    device.ask(0, [A, B])
    assert answer(device).accepted >= 1
    again = FakeDevice(sessions_over())
    again.begin([*PROMPT, A, B, B, C], n_prompt=3, options={"regex": "ab*c"})
    again.ask(0)
    assert again.text() == [END]


def test_output_that_does_not_follow():
    device = begun({"regex": "ab*c"})
    device.ask(0)
    for output in ([B], [A, C, A], [A, END], [A, C, END, A]):
        again = FakeDevice(device.sessions)
        again.begin([*PROMPT, *output], n_prompt=3, options={"regex": "ab*c"})
        again.ask(0)
        assert error(again).code == protocol.PROTOCOL
        assert "do not follow the constraint" in error(again).message
        assert not again.text()


def test_nothing_of_a_refused_context_is_used_when_the_session_is_resumed():
    device = begun({"regex": "ab*c"})
    device.begin([*PROMPT, B], n_prompt=3, options={"regex": "ab*c"})
    settle(device.sessions)
    assert error(device).code == protocol.PROTOCOL
    again = FakeDevice(device.sessions, device.session.token)
    again.context = [*PROMPT, B]
    again.ask(0)
    assert not again.text()
    assert again.all(protocol.Need)


@pytest.mark.parametrize(("options", "code", "said"), [
    ({"form": "a"}, protocol.UNSUPPORTED, "does not know the options 'form'"),
    ({"form": "a", "regex": "a"}, protocol.UNSUPPORTED, "the options 'form'; leave"),
    ({"regex": 3}, protocol.CONSTRAINT, "regex must be text, got 3"),
    ({"schema": True}, protocol.CONSTRAINT, "schema must be text, got True"),
    ({"regex": "a", "schema": "{}"}, protocol.CONSTRAINT, "schema and regex were given"),
    ({"regex": "("}, protocol.CONSTRAINT, "regex cannot be followed"),
    ({"reasoning_budget": 3}, protocol.CONSTRAINT, "reasoning_budget came without a form"),
    (ANSWER | {"reasoning_budget": True}, protocol.CONSTRAINT, "must be a whole number, got True"),
    (ANSWER | {"reasoning_end": ""}, protocol.CONSTRAINT, "must be text that is not empty"),
    ({"answer": "start: nothing"}, protocol.CONSTRAINT, "answer cannot be followed"),
])  # fmt: skip
def test_options_that_are_refused(options, code, said):
    device = begun(options)
    assert (error(device).code, said in error(device).message) == (code, True), error(device)
    other = FakeDevice(device.sessions).begin(PROMPT, options={"choices": '["b"]'})
    other.ask(0, ahead=1)
    assert other.text() == [B, END]


def test_reasoning_ends_where_its_budget_does():
    """After the opening two tokens are free, then come the one that closes and the rest."""
    for most in (0, 2, 5):
        device = begun(ANSWER | {"reasoning_budget": most}, logit_bias={25: 50.0})
        device.ask(0, [A, 25, 25, 25], ahead=9)
        drafted = [A, 25, 25, 25][: answer_of(device, 0).accepted]
        text = [*drafted, *device.text()]
        assert text == [A, *[25] * most, B, C, END]


def test_a_constraint_holds_for_one_context():
    device = begun({"choices": '["b"]'})
    device.begin(PROMPT)
    device.ask(0, ahead=5)
    plain = FakeDevice(device.sessions).begin(PROMPT)
    plain.ask(0, ahead=5)
    assert device.text() == plain.text()
    assert len(device.text()) == 6


def test_what_is_compiled_beside_the_others():
    sessions = sessions_over()

    assert sessions.compile({"regex": "a+"}).result(20) is None
    assert sessions.compile({"regex": "("}).result(20) is None  # refused by the frame's turn
    sessions.close()
    assert sessions.compile({"regex": "b"}).result(20) is None


def test_only_a_begin_has_options():
    def begin(**options):
        frame = protocol.Begin(1, 0, 0, 3, SamplingParams(), 0, (1, 2, 3), options)
        return protocol.encode(frame)

    assert protocol.options_of(begin(regex="a+")) == {"regex": "a+"}
    for data in (begin(), begin(regex="a")[:70], b"", b"\x02", "text", b"\x05"):
        assert protocol.options_of(data) == {}
    assert protocol.options_of(protocol.encode(protocol.Cancel())) == {}


TEXTS = st.one_of(
    st.text(max_size=40),
    st.text("ab|()*+{},1\\[]^$.", max_size=20),
    st.text('{}[]":,ab1', max_size=30),
    st.text('root:=start"ab|*+?()[]\n /{}1', max_size=30).map(lambda text: "root ::= " + text),
)


def test_random_constraints_end_one_session_at_most():
    well = begun({}, sessions_over(clock=Clock()))
    seen = set()

    @settings(max_examples=share(600), deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(["schema", "regex", "grammar", "choices", "answer"]), TEXTS)
    @example("regex", "a+")
    @example("regex", "(")
    def run(kind, text):
        device = FakeDevice(well.sessions).begin(PROMPT, options={kind: text})
        device.ask(0, [A, B, END], ahead=3)
        for refused in device.all(protocol.Error):
            assert refused.code in (protocol.CONSTRAINT, protocol.UNSUPPORTED), refused
        seen.update(type(frame).__name__ for frame in device.got)
        well.sessions.leave(device.session, device.hear, forget=True)

    run()
    assert {"Answer", "Error"} <= seen
    well.ask(0, ahead=3)
    assert len(well.text()) == 4


VALUES = [
    True, False, 0, 1, 2**31, 2**62, -0.0, 1e308, float("nan"), float("inf"), "", " ", "a", "\0",
    "null", "{}", "[]", '[""]', '["a"]', "[1]", '"a"', "[" * 60_000, "(" * 60_000, "a*" * 30_000,
    "\u202eabc", "x" * 60_000, '{"type": []}', '{"$ref": "#"}', '{"multipleOf": 1e-300}',
    '{"maxLength": 1e300}', '{"maximum": 1' + "0" * 400 + "}", "start: start", "%llguidance {}",
    "root ::= root", '%llguidance {}\nstart: "a"{1,99999999}', "(a{999}){999}",
]  # fmt: skip


@pytest.mark.parametrize("others", [{}, ANSWER], ids=["alone", "in an answer"])
@pytest.mark.parametrize(
    "name", [*sorted(KNOWN_OPTIONS), "", "unknown", "x" * 60_000], ids=str.strip
)
def test_options_at_their_extremes_are_followed_or_refused(name, others):
    sessions = sessions_over()
    for value in VALUES:
        device = begun(others | {name: value}, sessions)
        refusals = device.all(protocol.Error)
        assert all(each.code != protocol.INTERNAL for each in refusals), (name, value)
        if not refusals:
            device.ask(0, [A, B], ahead=3)
            assert device.all(protocol.Answer) or error(device).code == protocol.CONSTRAINT
    device = begun({"choices": '["abc"]'}, sessions)
    device.ask(0, ahead=20)
    assert device.text() == [A, B, C, END]


@pytest.mark.parametrize("value", [
    -1.0, -0.0, 1e308, -1e308, 1e-320, float("nan"), float("inf"), float("-inf"), 2.0**63,
])  # fmt: skip
def test_settings_at_their_extremes_are_followed_or_refused(value):
    mark = {name: 0.1234 + i / 1e4 for i, name in enumerate(PARAMS)}
    frame = protocol.encode(protocol.Begin(
        1, 0, 0, 3, SamplingParams(**mark, logit_bias={3: 0.4321}), 7, tuple(PROMPT)),
    )  # fmt: skip
    for number in (*mark.values(), 0.4321):
        device = FakeDevice(sessions_over())
        packed = struct.pack("<d", number)
        assert frame.count(packed) == 1
        changed = frame.replace(packed, struct.pack("<d", value))
        device.sessions.receive(device.session, device.hear, changed)
        settle(device.sessions)
        refusals = device.all(protocol.Error)
        assert all(each.code == protocol.PROTOCOL for each in refusals), refusals
        if not refusals:
            device.context = [*PROMPT]
            device.ask(0, [A, B], ahead=3)
            assert device.all(protocol.Answer)
