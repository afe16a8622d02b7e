"""The changes by one frame of a device, step by step, without a network."""

from edgespec import protocol
from tests.helpers.devices import FakeDevice, plain, sessions_over, settle
from tests.helpers.serving import N


def test_the_target_goes_on_by_itself_as_far_as_it_may():
    sessions = sessions_over()
    device = FakeDevice(sessions).begin([1, 2, 3])
    device.ask(0, ahead=5)
    assert device.text() == plain([1, 2, 3], 6)
    assert [a.round for a in device.all(protocol.Answer)] == [0, 1, 2, 3, 4, 5]
    device.say(protocol.More(8))  # too late, and taken up all the same
    settle(sessions)
    assert device.text() == plain([1, 2, 3], 9)
    device.say(protocol.More(1000))
    for _ in range(5):
        sessions.step()
    device.say(protocol.Cancel())
    settle(sessions)
    assert len(device.text()) < 9 + 32


def test_a_draft_drops_what_the_target_went_on_with():
    device = FakeDevice(sessions_over()).begin([1, 2, 3], presence_penalty=0.5)
    device.ask(0, ahead=6)
    first = device.text()
    device.context += first[:2]
    device.ask(7, first[2:5])
    last = device.all(protocol.Answer)[-1]
    assert (last.round, last.accepted) == (7, 3)
    assert last.token == first[5], "penalties count what was kept, not what was dropped"


def test_where_an_answer_ends_is_the_devices_to_see():
    device = FakeDevice(sessions_over()).begin([1, 2, 3], logit_bias={27: 100.0})
    device.ask(0, ahead=4)
    assert device.text() == [27] * 5


def test_a_round_near_the_end_of_numbers_harms_nobody():
    sessions = sessions_over()
    device, other = FakeDevice(sessions), FakeDevice(sessions)
    other.begin([1, 2, 3])
    device.begin([1, 2, 3])
    device.verify(2**64 - 1, ahead=1)
    other.ask(0, ahead=2)
    assert "round 18446744073709551615" in device.all(protocol.Error)[0].message
    assert other.text() == plain([1, 2, 3], 3)


def test_rows_that_are_no_numbers_end_one_session_only():
    sessions = sessions_over()
    ill, well = FakeDevice(sessions), FakeDevice(sessions)
    ill.begin([1, 2, 3], logit_bias={i: float("-inf") for i in range(N)})
    well.begin([1, 2, 3])
    for device in (ill, well):
        device.verify(0)
    settle(sessions)
    assert ill.all(protocol.Error)[0].code == protocol.UNSUPPORTED
    assert well.text() == plain([1, 2, 3], 1)


def test_a_prompt_longer_than_this_server_takes():
    sessions = sessions_over(max_prompt_tokens=10)
    device = FakeDevice(sessions).begin([1] * 11)
    settle(sessions)
    assert device.all(protocol.Error)[0].code == protocol.CONTEXT_FULL


def test_what_was_said_is_no_prompt_when_a_session_is_resumed():
    device = FakeDevice(sessions_over(max_prompt_tokens=10)).begin([1] * 30, n_prompt=10)
    device.ask(0)
    assert device.text() == plain([1] * 30, 1)
