"""The scheduler: batches, slots and failures, without a network."""

import pytest

from edgespec import CannotTruncate, ConfigError, DecodeError, protocol
from edgespec.backends.separate import SeparateModels
from edgespec.server.verification.sessions import Sessions
from tests.helpers.devices import Clock, FakeDevice, plain, sessions_over, settle
from tests.helpers.serving import TOKENIZER, Shared, toy


def test_a_bug_that_one_session_meets_is_not_the_others_loss(monkeypatch):
    sessions = sessions_over()
    ill, well = FakeDevice(sessions), FakeDevice(sessions)
    for device in (ill, well):
        device.begin([1, 2, 3])
    settle(sessions)

    def fail(draft, rows, position):
        raise RuntimeError("a bug")

    monkeypatch.setattr(ill.session.verification, "check", fail)
    for device in (ill, well):
        device.verify(0)
    settle(sessions)
    assert ill.all(protocol.Error)[0].code == protocol.INTERNAL
    assert well.text() == plain([1, 2, 3], 1)


def test_nobody_learns_what_others_prompts_begin_with():
    sessions = sessions_over()
    for owner in ("one", "two"):
        device = FakeDevice(sessions, owner=owner).begin([5] * 100)
        settle(sessions)
    assert device.all(protocol.Progress)[0].n_done == 0
    assert sessions.counts.shared_tokens == 0


def test_a_prompt_is_read_once_for_all_that_begin_with_it():
    sessions = sessions_over()
    prompt = [i % 20 for i in range(150)]
    for i in range(3):
        device = FakeDevice(sessions).begin([*prompt, i])
        settle(sessions)
    assert sessions.counts.shared_tokens == 2 * 150
    assert sessions.counts.prompt_tokens == 150 + 0 + 0
    assert device.all(protocol.Progress)[-1].n_done == 151
    device.ask(0)
    assert device.text() == plain([*prompt, 2], 1)


def test_nothing_is_shared_where_it_would_cost():
    sessions = Sessions(SeparateModels([toy(1), toy(1)]), TOKENIZER)
    for _ in range(2):
        device = FakeDevice(sessions).begin([5] * 100)
        device.ask(0, ahead=3)
        assert device.text() == plain([5] * 100, 4)
    assert sessions.counts.shared_tokens == 0


def test_the_session_that_is_idle_longest_loses_its_cache_and_gets_it_back():
    clock = Clock()
    sessions = sessions_over(n=2, clock=clock)
    devices = []
    for i in range(3):
        clock.now += 1
        devices.append(FakeDevice(sessions))
        devices[i].begin([i + 1, 2, 3])
        devices[i].ask(0, ahead=2)
    assert sessions.counts.evictions == 1
    assert devices[0].session.slot is None
    devices[0].context += devices[0].text()
    devices[0].ask(3, ahead=2)
    assert devices[0].text() == plain([1, 2, 3], 6)


def test_a_full_cache_drops_others_or_says_busy():
    sessions = sessions_over(n=4, n_cells=100)
    one, two = FakeDevice(sessions), FakeDevice(sessions)
    one.begin([1] * 60)
    settle(sessions)
    two.begin([2] * 70)
    two.ask(0, ahead=3)
    assert two.text() == plain([2] * 70, 4)
    assert one.session.slot is None
    three = FakeDevice(sessions).begin([3] * 120)
    settle(sessions)
    assert three.all(protocol.Busy)[0].retry_ms > 0
    two.context += two.text()
    two.ask(4)
    assert two.text() == plain([2] * 70, 5)


def test_two_long_ones_at_once_both_end():
    sessions = sessions_over(n=4, n_cells=100)
    devices = [FakeDevice(sessions) for _ in range(2)]
    for i, device in enumerate(devices):
        device.begin([i + 1] * 70)
        device.verify(0, ahead=2)
    for _ in range(10):
        settle(sessions)
        for device in devices:
            if device.all(protocol.Busy) and not device.text():
                device.got.clear()
                device.verify(1, ahead=2)
    assert [device.text() for device in devices] == [plain([i + 1] * 70, 3) for i in range(2)]


def test_verdicts_come_before_long_prompts():
    sessions = sessions_over(n=4)
    devices = [FakeDevice(sessions) for _ in range(3)]
    for i, device in enumerate(devices[:2]):
        device.begin([i + 1] * 5)
    settle(sessions)
    devices[2].begin([9] * 200)
    for device in devices[:2]:
        device.verify(0)
    sessions.step()
    assert [len(device.text()) for device in devices] == [1, 1, 0]
    settle(sessions)
    assert devices[2].all(protocol.Progress)[-1].n_done == 200


def test_more_devices_than_slots_all_have_their_turn():
    clock = Clock()
    sessions = sessions_over(n=1, clock=clock)
    devices = [FakeDevice(sessions) for _ in range(3)]
    for i, device in enumerate(devices):
        device.begin([i + 1, 2])
        device.verify(0, ahead=4)
    for _ in range(60):
        sessions.step()
        clock.now += 0.5
    assert [device.text() for device in devices] == [plain([i + 1, 2], 5) for i in range(3)]


def test_an_engine_that_fails_once():
    model = Shared([toy() for _ in range(4)])
    sessions = sessions_over(model)
    device = FakeDevice(sessions).begin([1, 2, 3])
    settle(sessions)
    device.verify(0)
    model.failures.append(DecodeError("the engine is ill"))
    settle(sessions)
    assert device.all(protocol.Busy)
    device.ask(0)
    assert device.text() == plain([1, 2, 3], 1)


@pytest.mark.parametrize("failure", [RuntimeError("a bug"), MemoryError()])
def test_a_bug_does_not_end_the_thread(failure):
    model = Shared([toy() for _ in range(4)])
    model.failures.append(failure)
    sessions = sessions_over(model)
    sessions.start()
    device = FakeDevice(sessions).begin([1, 2, 3])
    device.wait_for(protocol.Busy)
    device.verify(0)
    device.wait_for(protocol.Answer)
    assert device.text() == plain([1, 2, 3], 1)
    sessions.close()
    assert device.all(protocol.Error)[0].code == protocol.CLOSING


def test_a_model_that_cannot_be_cut():
    with pytest.raises(ConfigError, match="cannot be cut"):
        Sessions(SeparateModels([toy(1, truncate=False)]), TOKENIZER)


class Forgetful(Shared):
    """Slots that are empty after every cut, as one whose first cells the engine gave to others."""

    def truncate(self, slot, n_past):
        super().truncate(slot, 0)
        raise CannotTruncate("it is empty now")

    def copy(self, source, target, n_past):
        raise CannotTruncate("its beginning is lost")


def test_what_a_slot_has_lost_is_read_again():
    sessions = sessions_over(Forgetful([toy() for _ in range(2)]))
    for end in (1, 2):  # the second one would begin with the prefix of the first
        device = FakeDevice(sessions)
        prompt = [*[5] * 100, end]
        device.begin(prompt)
        device.ask(0, ahead=3)
        assert device.text() == plain(prompt, 4)
    assert sessions.counts.shared_tokens == 0


class Unpackable(Shared):
    """Slots that are lost when another one would begin with what they hold."""

    def copy(self, source, target, n_past):
        self.models[source].truncate(0)
        raise DecodeError("the cache could not be packed")


def test_a_slot_that_is_lost_as_its_prefix_is_shared_is_read_again():
    sessions = sessions_over(Unpackable([toy() for _ in range(2)]))
    first, other = FakeDevice(sessions), FakeDevice(sessions)
    prompts = [[*[5] * 100, end] for end in (1, 2)]
    for device, prompt in zip((first, other), prompts, strict=True):
        device.begin(prompt)
        device.ask(0, ahead=3)
    first.context += first.text()
    first.ask(4, ahead=3)
    assert first.text() == plain(prompts[0], 8)
    assert other.text() == plain(prompts[1], 4)
