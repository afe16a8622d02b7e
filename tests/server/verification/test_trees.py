"""Trees of devices, step by step, without a network."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec import protocol
from edgespec.sampling.trees import n_leaves
from tests.helpers.devices import FakeDevice, plain, sessions_over, settle
from tests.helpers.selection import share
from tests.helpers.serving import N, Shared, toy

PROMPT = [1, 2, 3]
RIGHT = plain(PROMPT, 12)


def begun(sessions, **params):
    device = FakeDevice(sessions).begin(PROMPT, **params)
    return device


def last(device):
    settle(device.sessions)
    return device.all(protocol.Answer)[-1]


def test_the_target_goes_on_behind_the_accepted_path():
    device = begun(sessions_over())
    device.ask(0, [9, RIGHT[0], 9, RIGHT[1], 9], parents=[-1, -1, 1, 1, 3], ahead=3)
    answers = device.all(protocol.Answer)
    assert [(a.round, a.accepted, a.token) for a in answers] == [
        (0, 4, RIGHT[2]), (1, 0, RIGHT[3]), (2, 0, RIGHT[4]), (3, 0, RIGHT[5]),
    ]  # fmt: skip


def test_nothing_of_a_tree_is_read_again():
    model = Shared([toy()])
    device = begun(sessions_over(model))
    settle(device.sessions)
    device.ask(0, [9, RIGHT[0], RIGHT[1], 9], parents=[-1, -1, 1, 2])
    before = device.session.n_cached
    assert before == len(PROMPT) + 2, "all but the last token"
    device.context += RIGHT[:3]
    device.verify(1, [RIGHT[3], 9], parents=[-1, -1])
    assert last(device).accepted == 1
    assert model.models[0].n_past == len(PROMPT) + 4


def test_penalties_count_the_path_and_nothing_else():
    params = {"presence_penalty": 2.0, "frequency_penalty": 1.0}
    sessions = sessions_over()
    chain, branching = begun(sessions, **params), begun(sessions, **params)
    chain.ask(0, ahead=5)
    said = chain.text()
    branching.ask(0, [9, 9, said[0], 8, said[1]], parents=[-1, 0, -1, 2, 2], ahead=3)
    assert branching.all(protocol.Answer)[0].accepted == 5
    assert branching.text() == said[2:6]


def test_chains_and_trees_of_several_devices_at_once():
    sessions = sessions_over()
    devices = [begun(sessions), FakeDevice(sessions), begun(sessions)]
    devices[1].begin(PROMPT)
    settle(sessions)
    devices[0].verify(0, [9, RIGHT[0]], parents=[-1, -1])
    devices[1].verify(0, RIGHT[:2])
    devices[2].ask(0, [RIGHT[0], 9, RIGHT[1]], parents=[-1, 0, 0])
    assert [d.all(protocol.Answer)[0].accepted for d in devices] == [2, 2, 3]
    assert [d.text() for d in devices] == [[RIGHT[1]], [RIGHT[2]], [RIGHT[2]]]


@pytest.mark.parametrize("answered", [False, True])
def test_a_connection_that_is_lost_in_the_middle_of_a_tree(answered):
    """The round is asked again over another connection; there is one answer."""
    sessions = sessions_over()
    device = begun(sessions)
    settle(sessions)
    draft = {"ids": [9, RIGHT[0], RIGHT[1]], "parents": [-1, -1, 1]}
    device.verify(0, **draft)
    if answered:
        settle(sessions)
    sessions.leave(device.session, device.hear)
    again = FakeDevice(sessions, device.session.token)
    again.context = list(PROMPT)
    if not answered:
        again.begin([], keep=3, checksum=protocol.Context(PROMPT).checksum(3))
    again.ask(0, **draft)
    assert [(a.accepted, a.token) for a in again.all(protocol.Answer)] == [(3, RIGHT[2])]
    assert sessions.counts.verifications == 1
    again.context += RIGHT[:3]
    again.ask(1)
    assert again.text() == RIGHT[2:4]


def test_a_tree_in_a_full_context():
    device = begun(sessions_over(Shared([toy(n_ctx=8)])))
    device.verify(0, [9] * 5, parents=[-1] * 5)
    assert last(device).token == RIGHT[0]
    device.context.append(RIGHT[0])
    device.ask(1, [9] * 5, parents=[-1] * 5)
    assert device.all(protocol.Error)[0].code == protocol.CONTEXT_FULL


@settings(max_examples=share(1500), deadline=None)
@given(st.data())
def test_whatever_comes_is_refused_or_answered_rightly(data):
    """Parents of every kind, right tokens among the wrong ones."""
    device = begun(sessions_over(n=1))
    n = data.draw(st.integers(0, 8))
    ids = data.draw(st.lists(st.sampled_from([*RIGHT[:3], 9]), min_size=n, max_size=n))
    parents = data.draw(st.lists(st.integers(-1, 4), min_size=n // 2, max_size=n))
    device.ask(0, ids, parents=parents)
    well = not parents or (len(parents) == len(ids) and in_order(parents))
    found = device.all(protocol.Answer)
    assert len(found) == well
    assert [error.code for error in device.all(protocol.Error)] == [protocol.PROTOCOL] * (not well)
    if well:
        path = on_path(parents or list(range(-1, n - 1)), found[0].accepted - 1)
        said = [*(ids[node] for node in path), found[0].token]
        assert said == RIGHT[: len(said)]
        siblings = [t for t, p in zip(ids, parents, strict=False) if p == found[0].accepted - 1]
        assert found[0].token not in siblings, "a child that was right was not taken"


def in_order(parents):
    try:
        return n_leaves(parents) <= 32
    except ValueError:
        return False


def on_path(parents, node):
    return [*on_path(parents, parents[node]), node] if node >= 0 else []


def test_more_leaves_than_rows_are_refused():
    device = begun(sessions_over(Shared([toy(max_rows=4)])))
    device.ask(0, [N - 1] * 4, parents=[-1] * 4)
    assert "a draft of 4 tokens" in device.all(protocol.Error)[0].message
