"""Who may open and resume a session, and when it is forgotten; without a network."""

from edgespec import protocol
from tests.helpers.devices import Clock, FakeDevice, plain, sessions_over, settle


def test_a_frame_too_large_for_any_context():
    sessions = sessions_over()
    device = FakeDevice(sessions)
    assert not sessions.receive(device.session, device.hear, b"\x02" + bytes(200_000))
    assert device.all(protocol.Error)[0].code == protocol.LIMIT


def test_resumed_over_another_connection():
    sessions = sessions_over()
    device = FakeDevice(sessions).begin([1, 2, 3])
    device.ask(0, ahead=3)
    said = device.text()
    sessions.leave(device.session, device.hear)
    again = FakeDevice(sessions, device.session.token)
    assert again.session is device.session
    again.context = [1, 2, 3]
    again.begin(said, keep=3, checksum=protocol.Context([1, 2, 3]).checksum(3), n_prompt=3)
    read = sessions.counts.prompt_tokens
    again.ask(4)
    assert again.text() == plain([1, 2, 3], 5)[4:]
    assert sessions.counts.prompt_tokens == read, "the cache was kept"
    assert not device.say(protocol.Cancel()), "the first connection has no say any more"


def test_taken_over_while_the_first_connection_still_stands():
    sessions = sessions_over()
    device = FakeDevice(sessions).begin([1, 2, 3])
    device.verify(0, ahead=20)
    sessions.step()
    FakeDevice(sessions, device.session.token)
    assert device.all(protocol.Error)[0].code == protocol.CLOSING
    settle(sessions)
    assert len(device.text()) <= 1


def test_others_cannot_resume():
    sessions = sessions_over()
    device = FakeDevice(sessions, owner="one")
    thief = FakeDevice(sessions, device.session.token, owner="two")
    assert thief.session is not device.session
    assert thief.all(protocol.Opened)[0].token != device.session.token


def test_sessions_and_caches_are_given_up_in_time():
    clock = Clock()
    sessions = sessions_over(clock=clock, resume_s=60, idle_s=30)
    device, other = FakeDevice(sessions), FakeDevice(sessions)
    for one in (device, other):
        one.begin([1, 2, 3])
    settle(sessions)
    clock.now += 31
    sessions.step()
    assert device.session.slot is None
    assert len(sessions) == 2
    sessions.leave(device.session, device.hear)
    sessions.leave(other.session, other.hear, forget=True)
    sessions.step()
    assert len(sessions) == 1
    clock.now += 61
    sessions.step()
    assert len(sessions) == 0
    assert device.session.slot is other.session.slot is None
