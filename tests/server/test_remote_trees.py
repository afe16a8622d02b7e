"""Devices that draft trees, against a real server on loopback."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from edgespec import protocol
from edgespec.config import RemoteConfig
from edgespec.protocol import encode
from edgespec.sampling.trees import n_leaves
from edgespec.verifiers.fallback import Fallback
from edgespec.verifiers.local import LocalVerifier
from edgespec.verifiers.remote import RemoteVerifier
from tests.helpers.branching import branching, tree_device
from tests.helpers.delaying import Proxy
from tests.helpers.devices import plain
from tests.helpers.serving import (
    TOKENIZER,
    N,
    Server,
    closing,
    device,
    disturbed,
    local,
    raw,
    served,
    toy,
)
from tests.server.test_hostile_devices import answers, begin

PROMPTS = ["the cat sat on the mat", "a", "abcabcabcabcabcab"]
GREEDY = {"max_tokens": 60, "ignore_eos": True}
DRAWN = GREEDY | {"temperature": 0.9, "seed": 11}
PENALTIES = DRAWN | {
    "top_p": 0.9, "repetition_penalty": 1.3, "presence_penalty": 0.4, "logit_bias": {4: -5.0},
}  # fmt: skip
ALL = {"greedy": GREEDY, "drawn": DRAWN, "penalties": PENALTIES}


@pytest.mark.parametrize("options", ALL.values(), ids=ALL)
@pytest.mark.parametrize("seed", [1, 2])
def test_text_is_that_of_one_machine(server, options, seed):
    """With another model's guesses few nodes come true."""
    here = local(drafts=False)
    with closing(tree_device(server.url, seed=seed)) as there:
        for prompt in PROMPTS:
            done = there.generate(prompt, **options)
            assert done.token_ids == here.generate(prompt, **options).token_ids
            assert done.stats.drafted_per_position[0] > done.stats.num_draft_steps, "no siblings"
            assert seed == 2 or done.stats.mean_acceptance_length > 1.5


@pytest.mark.parametrize("options", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("after", range(0, 16, 2))
def test_cut_between_any_two_messages(server, options, after):
    expected = local(drafts=False).generate(PROMPTS[0], **options)
    with Proxy(server.port) as proxy, closing(tree_device(proxy.url)) as there:
        proxy.cut_after = after
        assert there.generate(PROMPTS[0], **options).token_ids == expected.token_ids
        assert proxy.cut_after is None, "the answer took fewer messages"


def test_old_and_new_devices_at_once(server):
    here = local(drafts=False)
    expected = [here.generate(PROMPTS[0], **DRAWN | {"seed": i}).token_ids for i in range(6)]

    def run(i):
        make = device if i % 2 else tree_device
        with closing(make(server.url, timeout_s=30)) as there:
            return there.generate(PROMPTS[0], **DRAWN | {"seed": i}).token_ids

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(run, range(6))) == expected


# --- targets that take fewer leaves than were promised ---


def test_a_server_that_comes_back_and_takes_chains_only():
    expected = local(drafts=False).generate(PROMPTS[0], **DRAWN)
    leaves = [1, 8]
    with Server(lambda: served(max_leaves=leaves.pop())) as server:
        verifier = remote(server)
        assert verifier.max_leaves == 8
        there = branching(verifier)
        assert disturbed(there, server.restart, [11], PROMPTS[0], **DRAWN) == expected.token_ids
        assert verifier.max_leaves == 1
        verifier.close()


@pytest.mark.parametrize("truncate", [True, False], ids=["trees", "chains only"])
def test_a_stand_in_that_takes_trees_or_not(truncate):
    expected = local(drafts=False).generate(PROMPTS[0], **DRAWN)
    server = Server()
    stand_in = Listening(toy(truncate=truncate))
    both = Fallback(lambda: remote(server, timeout_s=0.2), stand_in)
    with closing(branching(both)) as there:
        assert there.generate(PROMPTS[0], **DRAWN).token_ids == expected.token_ids
        assert disturbed(there, server.stop, [11], PROMPTS[0], **DRAWN) == expected.token_ids
        assert both.is_local
        assert there.generate(PROMPTS[0], **DRAWN).token_ids == expected.token_ids
        assert max(stand_in.leaves) == (8 if truncate else 1)


class Listening(LocalVerifier):
    """A target in this process that notes how many leaves it gets."""

    leaves = ()

    def verify(self, draft):
        self.leaves = (*self.leaves, n_leaves(draft.parents))
        return super().verify(draft)


def remote(server, timeout_s=5.0):
    return RemoteVerifier(RemoteConfig(server.url, timeout_s=timeout_s), TOKENIZER)


# --- messages ---

BEGIN = begin([1, 2, 3])


def tree(round_, ids, parents, context=(1, 2, 3)):
    checksum = protocol.Context(context).checksum(len(context))
    frame = protocol.Verify(round_, len(context), checksum, 0, tuple(ids), tuple(parents))
    return encode(frame)


@pytest.fixture
def begun(server):
    """Open a session after three tokens."""
    with raw(server) as socket:
        socket.send(BEGIN)
        yield socket


@pytest.mark.parametrize(("ids", "parents", "said"), [
    ([4, 5], [-1], "a tree of 2 tokens with 1 parents"),
    ([4], [-1, 0], "a tree of 1 tokens with 2 parents"),
    ([], [-1], "a tree of 0 tokens with 1 parents"),
    ([4, 5], [-1, 1], "parent 1: none before it"),
    ([4, 5], [0, 0], "parent 0: none before it"),
    ([4, 5, 6, 7], [-1, 0, -1, 1], "node 3 has parent 1: the order is not depth-first"),
    ([4, N], [-1, -1], "token id 28"),
    ([4] * 32, [-1] * 32, "a draft of 32"),
])  # fmt: skip
def test_trees_that_end_a_connection(begun, ids, parents, said):
    begun.send(tree(0, ids, parents))
    error = answers(begun, protocol.Error)
    assert error.code == protocol.PROTOCOL
    assert said in error.message


def test_too_many_leaves():
    with Server(lambda: served(max_leaves=2)) as server, raw(server) as socket:
        socket.send(BEGIN)
        socket.send(tree(0, [4, 5, 6], [-1, 0, 0]))
        assert answers(socket, protocol.Answer).round == 0
        socket.send(tree(1, [4, 5, 6], [-1, -1, -1]))
        assert "a tree of 3 leaves came; this server takes 2" in (
            answers(socket, protocol.Error).message
        )


def test_a_tree_that_comes_twice(begun):
    right = plain([1, 2, 3], 2)
    asked = tree(0, [27, 26, right[0], right[1]], [-1, -1, -1, 2])
    begun.send(asked)
    first = answers(begun, protocol.Answer)
    assert first.accepted == 4, "the number of the last node of the path"
    for _ in range(3):
        begun.send(asked)
        assert answers(begun, protocol.Answer) == first
