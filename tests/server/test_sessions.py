"""What the server does with sessions, step by step, without a network."""

import pytest

from edgespec import DecodeError, SamplingParams
from edgespec import protocol as wire
from edgespec.backends.separate import SeparateModels
from edgespec.server.verification.sessions import Limits, Sessions
from tests.helpers.serving import TOKENIZER, N, Shared, local, toy

HASH = wire.vocabulary_hash(TOKENIZER, N)


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


class Device:
    """Talks with sessions without a connection."""

    def __init__(self, sessions, token=wire.NO_TOKEN, owner=""):
        self.sessions, self.got = sessions, []
        self.session = sessions.open(
            wire.encode(wire.Open(1, token, N, HASH, "")), self.hear, owner
        )

    def hear(self, data):
        self.got.append(wire.decode(data))

    def say(self, frame):
        return self.sessions.receive(self.session, self.hear, wire.encode(frame))

    def begin(self, ids, keep=0, checksum=0, n_prompt=None, **params):
        self.context = list(ids) if not keep else self.context[:keep] + list(ids)
        total = keep + len(ids)
        self.say(wire.Begin(
            1, keep, checksum, n_prompt or total, SamplingParams(**params), 7, tuple(ids)
        ))  # fmt: skip

    def verify(self, round_, ids=(), ahead=0):
        n = len(self.context)
        checksum = wire.Context(self.context).checksum(n)
        self.say(wire.Verify(round_, n, checksum, ahead, tuple(ids)))

    def all(self, kind):
        return [frame for frame in self.got if isinstance(frame, kind)]

    def text(self):
        """Tokens of all answers to drafts of nothing."""
        return [answer.token for answer in self.all(wire.Answer)]


def made(n=4, n_cells=1 << 20, clock=None, **limits):
    sequences = Shared([toy(1) for _ in range(n)], n_cells)
    return Sessions(
        sequences, TOKENIZER, name="toy", limits=Limits(**limits), clock=clock or Clock()
    )


def settle(sessions):
    for _ in range(500):
        if not sessions.step():
            return
    raise AssertionError("it never rests")


def plain(ids, n):
    return list(local(drafts=False).generate(ids, max_tokens=n, ignore_eos=True).token_ids)


def test_the_target_goes_on_by_itself_as_far_as_it_may():
    sessions = made()
    device = Device(sessions)
    device.begin([1, 2, 3])
    device.verify(0, ahead=5)
    settle(sessions)
    assert device.text() == plain([1, 2, 3], 6)
    assert [a.round for a in device.all(wire.Answer)] == [0, 1, 2, 3, 4, 5]
    device.say(wire.More(8))  # too late, and taken up all the same
    settle(sessions)
    assert device.text() == plain([1, 2, 3], 9)
    device.say(wire.More(1000))
    for _ in range(5):
        sessions.step()
    device.say(wire.Cancel())
    settle(sessions)
    assert len(device.text()) < 9 + 32


def test_a_draft_drops_what_the_target_went_on_with():
    sessions = made()
    device = Device(sessions)
    device.begin([1, 2, 3], presence_penalty=0.5)
    device.verify(0, ahead=6)
    settle(sessions)
    first = device.text()
    device.context += first[:2]
    device.verify(7, first[2:5])
    settle(sessions)
    last = device.all(wire.Answer)[-1]
    assert (last.round, last.n_accepted) == (7, 3)
    assert last.token == first[5], "penalties count what was kept, not what was dropped"


def test_where_an_answer_ends_is_the_devices_to_see():
    sessions = made()
    device = Device(sessions)
    device.begin([1, 2, 3], logit_bias={27: 100.0})
    device.verify(0, ahead=4)
    settle(sessions)
    assert device.text() == [27] * 5


def test_a_round_near_the_end_of_numbers_harms_nobody():
    sessions = made()
    device, other = Device(sessions), Device(sessions)
    other.begin([1, 2, 3])
    device.begin([1, 2, 3])
    device.verify(2**64 - 1, ahead=1)
    other.verify(0, ahead=2)
    settle(sessions)
    assert "round 18446744073709551615" in device.all(wire.Error)[0].message
    assert other.text() == plain([1, 2, 3], 3)


def test_a_bug_that_one_session_meets_is_not_the_others_loss(monkeypatch):
    sessions = made()
    ill, well = Device(sessions), Device(sessions)
    for device in (ill, well):
        device.begin([1, 2, 3])
        device.verify(0)
    advance = sessions._advance

    def fail(session, part, rows):
        if session is ill.session:
            raise RuntimeError("a bug")
        advance(session, part, rows)

    monkeypatch.setattr(sessions, "_advance", fail)
    settle(sessions)
    assert ill.all(wire.Error)[0].code == wire.INTERNAL
    assert well.text() == plain([1, 2, 3], 1)


def test_nobody_learns_what_others_prompts_begin_with():
    sessions = made()
    for owner in ("one", "two"):
        device = Device(sessions, owner=owner)
        device.begin([5] * 100)
        settle(sessions)
    assert device.all(wire.Progress)[0].n_done == 0
    assert sessions.counts.shared_tokens == 0


def test_a_frame_too_large_for_any_context():
    sessions = made()
    device = Device(sessions)
    assert not sessions.receive(device.session, device.hear, b"\x02" + bytes(100_000))
    assert device.all(wire.Error)[0].code == wire.LIMIT


def test_a_prompt_is_read_once_for_all_that_begin_with_it():
    sessions = made()
    prompt = [i % 20 for i in range(150)]
    for i in range(3):
        device = Device(sessions)
        device.begin([*prompt, i])
        settle(sessions)
    assert sessions.counts.shared_tokens == 2 * 150
    assert sessions.counts.prompt_tokens == 150 + 0 + 0
    assert device.all(wire.Progress)[-1].n_done == 151
    device.verify(0)
    settle(sessions)
    assert device.text() == plain([*prompt, 2], 1)


def test_nothing_is_shared_where_it_would_cost():
    sessions = Sessions(SeparateModels([toy(1), toy(1)]), TOKENIZER)
    for _ in range(2):
        device = Device(sessions)
        device.begin([5] * 100)
        device.verify(0, ahead=3)
        settle(sessions)
        assert device.text() == plain([5] * 100, 4)
    assert sessions.counts.shared_tokens == 0


def test_the_session_that_is_idle_longest_loses_its_cache_and_gets_it_back():
    clock = Clock()
    sessions = made(n=2, clock=clock)
    devices = []
    for i in range(3):
        clock.now += 1
        devices.append(Device(sessions))
        devices[i].begin([i + 1, 2, 3])
        devices[i].verify(0, ahead=2)
        settle(sessions)
    assert sessions.counts.evictions == 1
    assert devices[0].session.slot is None
    devices[0].context += devices[0].text()
    devices[0].verify(3, ahead=2)
    settle(sessions)
    assert devices[0].text() == plain([1, 2, 3], 6)


def test_a_full_cache_drops_others_or_says_busy():
    sessions = made(n=4, n_cells=100)
    one, two = Device(sessions), Device(sessions)
    one.begin([1] * 60)
    settle(sessions)
    two.begin([2] * 70)
    two.verify(0, ahead=3)
    settle(sessions)
    assert two.text() == plain([2] * 70, 4)
    assert one.session.slot is None
    three = Device(sessions)
    three.begin([3] * 120)
    settle(sessions)
    assert three.all(wire.Busy)[0].retry_ms > 0
    two.context += two.text()
    two.verify(4)
    settle(sessions)
    assert two.text() == plain([2] * 70, 5)


def test_two_long_ones_at_once_both_end():
    sessions = made(n=4, n_cells=100)
    devices = [Device(sessions) for _ in range(2)]
    for i, device in enumerate(devices):
        device.begin([i + 1] * 70)
        device.verify(0, ahead=2)
    for _ in range(10):
        settle(sessions)
        for device in devices:
            if device.all(wire.Busy) and not device.text():
                device.got.clear()
                device.verify(1, ahead=2)
    assert [device.text() for device in devices] == [plain([i + 1] * 70, 3) for i in range(2)]


def test_verdicts_come_before_long_prompts():
    sessions = made(n=4)
    devices = [Device(sessions) for _ in range(3)]
    for i, device in enumerate(devices[:2]):
        device.begin([i + 1] * 5)
    settle(sessions)
    devices[2].begin([9] * 200)
    for device in devices[:2]:
        device.verify(0)
    sessions.step()
    assert [len(device.text()) for device in devices] == [1, 1, 0]
    settle(sessions)
    assert devices[2].all(wire.Progress)[-1].n_done == 200


def test_more_devices_than_sequences_all_have_their_turn():
    clock = Clock()
    sessions = made(n=1, clock=clock)
    devices = [Device(sessions) for _ in range(3)]
    for i, device in enumerate(devices):
        device.begin([i + 1, 2])
        device.verify(0, ahead=4)
    for _ in range(60):
        sessions.step()
        clock.now += 0.5
    assert [device.text() for device in devices] == [plain([i + 1, 2], 5) for i in range(3)]


def test_resumed_over_another_connection():
    sessions = made()
    device = Device(sessions)
    device.begin([1, 2, 3])
    device.verify(0, ahead=3)
    settle(sessions)
    said = device.text()
    sessions.leave(device.session, device.hear)
    again = Device(sessions, device.session.token)
    assert again.session is device.session
    again.context = [1, 2, 3]
    again.begin(said, keep=3, checksum=wire.Context([1, 2, 3]).checksum(3), n_prompt=3)
    read = sessions.counts.prompt_tokens
    again.verify(4)
    settle(sessions)
    assert again.text() == plain([1, 2, 3], 5)[4:]
    assert sessions.counts.prompt_tokens == read, "the cache was kept"
    assert not device.say(wire.Cancel()), "the first connection has no say any more"


def test_taken_over_while_the_first_connection_still_stands():
    sessions = made()
    device = Device(sessions)
    device.begin([1, 2, 3])
    device.verify(0, ahead=20)
    sessions.step()
    Device(sessions, device.session.token)
    assert device.all(wire.Error)[0].code == wire.CLOSING
    settle(sessions)
    assert len(device.text()) <= 1


def test_others_cannot_resume():
    sessions = made()
    device = Device(sessions, owner="one")
    thief = Device(sessions, device.session.token, owner="two")
    assert thief.session is not device.session
    assert thief.all(wire.Opened)[0].token != device.session.token


def test_sessions_and_caches_are_given_up_in_time():
    clock = Clock()
    sessions = made(clock=clock, resume_s=60, idle_s=30)
    device, other = Device(sessions), Device(sessions)
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
    assert not sessions._seated


def test_an_engine_that_fails_once(monkeypatch):
    sessions = made()
    device = Device(sessions)
    device.begin([1, 2, 3])
    settle(sessions)
    device.verify(0)
    decode, failed = sessions._sequences.decode, []

    def fail(parts):
        if not failed:
            failed.append(True)
            raise DecodeError("the engine is ill")
        return decode(parts)

    monkeypatch.setattr(sessions._sequences, "decode", fail)
    settle(sessions)
    assert device.all(wire.Busy)
    device.verify(0)
    settle(sessions)
    assert device.text() == plain([1, 2, 3], 1)


def test_rows_that_are_no_numbers_end_one_session_only():
    sessions = made()
    ill, well = Device(sessions), Device(sessions)
    ill.begin([1, 2, 3], logit_bias={i: float("-inf") for i in range(N)})
    well.begin([1, 2, 3])
    for device in (ill, well):
        device.verify(0)
    settle(sessions)
    assert ill.all(wire.Error)[0].code == wire.UNSUPPORTED
    assert well.text() == plain([1, 2, 3], 1)


@pytest.mark.parametrize("failure", [RuntimeError("a bug"), MemoryError()])
def test_a_bug_does_not_end_the_thread(monkeypatch, failure):
    sessions = made(clock=None)
    broken = []

    def parts():
        if not broken:
            broken.append(True)
            raise failure
        return type(sessions)._parts(sessions)

    monkeypatch.setattr(sessions, "_parts", parts)
    sessions.start()
    device = Device(sessions)
    device.begin([1, 2, 3])
    for _ in range(200):
        if device.all(wire.Busy):
            break
        sessions._thread.join(0.01)
    device.verify(0)
    for _ in range(200):
        if device.text():
            break
        sessions._thread.join(0.01)
    assert device.text() == plain([1, 2, 3], 1)
    sessions.close()
    assert device.all(wire.Error)[0].code == wire.CLOSING


def test_a_prompt_longer_than_this_server_takes():
    sessions = made(max_prompt_tokens=10)
    device = Device(sessions)
    device.begin([1] * 11)
    settle(sessions)
    assert device.all(wire.Error)[0].code == wire.CONTEXT_FULL


def test_what_was_said_is_no_prompt_when_a_session_is_resumed():
    sessions = made(max_prompt_tokens=10)
    device = Device(sessions)
    device.begin([1] * 30, n_prompt=10)
    device.verify(0)
    settle(sessions)
    assert device.text() == plain([1] * 30, 1)


def test_a_model_that_cannot_be_cut():
    from edgespec import ConfigError

    with pytest.raises(ConfigError, match="cannot be cut"):
        SeparateModels([toy(1, truncate=False)])
