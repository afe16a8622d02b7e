"""What devices' slots have read is kept in the store of prefixes, for later sessions."""

import pytest

from edgespec import DecodeError, protocol
from edgespec.backends.separate import SeparateModels
from edgespec.cache.prefix_files import Identity, PrefixFiles
from edgespec.cache.prefixes import EVERYBODY, PrefixStore
from edgespec.cache.token_cache import TokenCache
from edgespec.scheduling.company import Company
from edgespec.scheduling.devices import DeviceSlots
from edgespec.scheduling.together import Together
from edgespec.server.verification.sessions import Sessions
from tests.helpers.devices import Clock, FakeDevice, plain, sessions_over, settle
from tests.helpers.serving import TOKENIZER, Shared, toy

PROMPT = [i % 20 for i in range(150)]


@pytest.fixture
def kept():
    return PrefixStore(1 << 20).of(None)


@pytest.fixture(params=[Shared, SeparateModels])
def slots(request):
    return request.param([toy() for _ in range(2)])


def answered(sessions, prompt=PROMPT, owner="", n=4):
    """Let a new device ask for the answer to a prompt; return the device."""
    device = FakeDevice(sessions, owner=owner).begin(prompt)
    device.ask(0, ahead=n - 1)
    assert device.text() == plain(prompt, n)
    return device


def gone(sessions, device):
    sessions.leave(device.session, device.hear, forget=True)
    settle(sessions)


def test_a_conversation_goes_on_in_another_session(slots, kept):
    sessions = sessions_over(slots, prefixes=kept)
    first = answered(sessions)
    gone(sessions, first)
    n_read = sessions.counts.prompt_tokens
    longer = [*PROMPT, *first.text(), 7]
    answered(sessions, longer)
    assert sessions.counts.loaded_tokens == len(PROMPT) + 3  # the last token is read with the 7
    assert sessions.counts.prompt_tokens - n_read <= 2


def test_a_session_whose_slot_was_taken_loads_what_it_had(slots, kept):
    clock = Clock()
    sessions = sessions_over(slots, prefixes=kept, clock=clock)
    devices = []
    for i in range(3):
        clock.now += 1
        devices.append(answered(sessions, [i, *PROMPT]))
    assert devices[0].session.slot is None
    devices[0].context += devices[0].text()
    devices[0].ask(4, ahead=3)
    assert devices[0].text() == plain([0, *PROMPT], 8)
    assert sessions.counts.loaded_tokens == len(PROMPT) + 4


def test_two_conversations_of_one_session_alternate(slots, kept):
    sessions = sessions_over(slots, prefixes=kept)
    device = answered(sessions)
    other = [3, *reversed(PROMPT)]
    for round_, prompt in enumerate([other, PROMPT, other], 1):
        n_said = len(device.text())
        device.begin(prompt)
        device.ask(4 * round_, ahead=3)
        assert device.text()[n_said:] == plain(prompt, 4)
    assert sessions.counts.loaded_tokens == len(PROMPT) - 1 + len(other) - 1


def test_others_learn_nothing_from_the_store(slots, kept):
    sessions = sessions_over(slots, prefixes=kept)
    gone(sessions, answered(sessions, owner="one"))
    answered(sessions, owner="two")
    assert sessions.counts.loaded_tokens == 0
    answered(sessions, owner="one")
    assert sessions.counts.loaded_tokens == len(PROMPT) - 1


def test_devices_begin_with_what_the_server_has_warmed(slots, kept):
    cache = TokenCache(toy(), prefixes=kept)
    cache.begin(EVERYBODY)
    cache.decode(PROMPT, 1)
    cache.save()
    sessions = sessions_over(slots, prefixes=kept)
    answered(sessions, [*PROMPT, 5, 6], owner="one")
    assert sessions.counts.loaded_tokens == len(PROMPT)


@pytest.mark.parametrize(("keeps_all", "n"), [(True, len(PROMPT) - 1), (False, 0)])
def test_the_next_server_begins_with_what_is_on_disk(tmp_path, monkeypatch, keeps_all, n):
    monkeypatch.setenv("EDGESPEC_PREFIXES", str(tmp_path / "prefixes"))
    (tmp_path / "toy.gguf").write_bytes(b"weights")
    for n_loaded in (0, n):
        store = PrefixStore(1 << 20, PrefixFiles(1 << 20, keeps_all=keeps_all))
        prefixes = store.of(Identity(tmp_path / "toy.gguf", [1], "b", {}))
        sessions = sessions_over(prefixes=prefixes)
        answered(sessions)
        assert sessions.counts.loaded_tokens == n_loaded
        sessions.close()
        store.close()


def test_nothing_is_loaded_that_has_no_room(kept):
    class Crowded(Shared):
        n_free = 100

    sessions = sessions_over(Crowded([toy()]), prefixes=kept)
    gone(sessions, answered(sessions))
    answered(sessions)
    assert sessions.counts.loaded_tokens == 0


def test_idle_sessions_make_room_for_what_is_loaded(kept):
    class Full(Shared):
        @property
        def n_free(self):
            return 170 - sum(model.n_past for model in self.models)

    sessions = sessions_over(Full([toy() for _ in range(2)]), prefixes=kept)
    gone(sessions, answered(sessions))
    idle = answered(sessions, [9] * 30)
    answered(sessions)
    assert sessions.counts.loaded_tokens == len(PROMPT) - 1
    assert idle.session.slot is None


def test_cells_are_counted_rightly_after_a_state_that_cannot_be_loaded(kept, monkeypatch):
    slots = DeviceSlots(Company(Shared([toy() for _ in range(4)]), Together(None)), 1)
    slots._n_cells = 1000
    sessions = sessions_over(slots, prefixes=kept)
    longer = [*PROMPT, *[3] * 60]
    gone(sessions, answered(sessions, longer))
    first, second = answered(sessions, [*PROMPT, 5]), answered(sessions, [*PROMPT, 6])
    assert sessions.counts.shared_tokens >= len(PROMPT)

    def load_state(state, end):
        raise DecodeError("damaged")

    for model in slots.models:
        monkeypatch.setattr(model, "load_state", load_state)
    second.begin(longer)
    settle(sessions)
    assert second.session.cache.tokens == longer[: second.session.n_cached]
    assert second.session.n_cached >= len(longer) - 1
    assert slots.n_free == 1000 - sum(each.session.n_cached for each in (first, second))


def test_a_failed_evaluation_is_not_kept(kept):
    model = Shared([toy()])
    sessions = sessions_over(model, prefixes=kept)
    device = answered(sessions)
    model.failures.append(DecodeError("the engine failed"))
    device.context += device.text()
    device.ask(4)
    assert device.all(protocol.Busy)
    answered(sessions)
    assert sessions.counts.loaded_tokens == 0


def test_a_server_without_a_store_keeps_nothing():
    sessions = Sessions(Shared([toy()]), TOKENIZER)
    gone(sessions, answered(sessions))
    answered(sessions)
    assert sessions.counts.loaded_tokens == 0
