"""Devices that draft with a model keep what they learn, and leave the cores to other programs."""

import functools
import json
import types

import pytest

import edgespec
from edgespec import EngineConfig, ToyModel
from edgespec.backends.base import FileModel
from edgespec.costs.curves import Curve
from edgespec.costs.profiles import store
from edgespec.costs.threads import ThreadGovernor
from edgespec.loading import connect as connecting
from edgespec.server.verification.sessions import Sessions
from tests.helpers.neighbours import Limitable, Machine
from tests.helpers.serving import TOKENIZER, N, Server, Shared, free_port, probs_of, served, toy

PROMPTS = ["the cat sat on the mat", "a", "to be or not to be that is"]
DRAFT = {"method": "draft_model"}
FIXED = DRAFT | {"num_speculative_tokens": 3, "draft_p_min": 0.0}


class DraftFile(Limitable, ToyModel, FileModel):
    """The served toy as a draft model in a file, on a machine."""

    tokenizer, placement = TOKENIZER, {}
    n_threads = n_threads_batch = 2
    n_ctx_train = 0

    def __init__(self, path, machine):
        super().__init__(probs_of(1), vocab_size=N)
        self.path, self.machine, self.limits = path, machine, set()
        self.config = EngineConfig(requantize=False)

    def decode(self, tokens, n_logits=1, abort=None):
        self.machine.step(self.thread_limit or 2, len(tokens))
        self.limits.add(self.thread_limit)
        return super().decode(tokens, n_logits, abort)

    def fingerprint(self):
        return {"file": self.path.name}

    def switches(self):
        return {}


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("EDGESPEC_PROFILES", str(tmp_path / "profiles"))
    monkeypatch.setenv("EDGESPEC_CORPUS", str(tmp_path / "corpus"))
    return tmp_path / "profiles"


@pytest.fixture
def machine():
    return Machine()


@pytest.fixture
def drafts(monkeypatch, folder, tmp_path, machine):
    """Return the draft models that devices have opened, whose times are known."""
    opened = []

    def open_draft(path, config):
        opened.append(DraftFile(path, machine))
        store(opened[-1].fingerprint(), Curve((64,), (1, 32), ((1e-4, 1e-3),)))
        return opened[-1]

    monkeypatch.setattr(connecting, "open_draft", open_draft)
    monkeypatch.setattr(connecting, "described", lambda *_: {})  # no engine knows the file
    monkeypatch.setattr(connecting, "target_path", lambda path: path)  # nor whether it is a head
    monkeypatch.setattr(connecting, "open_model", open_draft)

    def governor_of(*models, kind=ThreadGovernor, **options):
        kind = functools.partial(kind, n_cpus=2, meter=machine.meter(), clock=lambda: machine.now)
        return original(*models, kind=kind, **options)

    original = connecting.governor_of
    monkeypatch.setattr(connecting, "governor_of", governor_of)
    (tmp_path / "draft.gguf").write_bytes(b"weights")
    return opened


@pytest.fixture
def draft(tmp_path):
    return tmp_path / "draft.gguf"


def answer(there, n=3):
    for i in range(n):
        there.generate(PROMPTS[i % 3], max_tokens=60, temperature=0.8, seed=i)


def learned(folder):
    """Return what is kept of rates, by the models that it was learned with."""
    found = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    found = [entry for entry in found if entry["fingerprint"].get("kind") == "learned"]
    return {tuple(entry["fingerprint"]["models"]): entry["learned"] for entry in found}


def known(there):
    return json.loads(json.dumps(there.sessions[0]._rates.learned()))


def test_a_second_device_begins_with_what_the_first_one_learned(drafts, draft, folder):
    with Server(served) as server:
        remote = edgespec.RemoteConfig(server.url, api_key="sesame")
        with edgespec.connect(remote, draft, speculative_config=DRAFT) as there:
            fresh = known(there)
            answer(there)
            first = known(there)
        assert first != fresh
        assert learned(folder) == {(f"{server.url} toy", str(draft)): first}
        with edgespec.connect(remote, draft, speculative_config=DRAFT) as there:
            assert known(there) == first
        assert not (folder / "tokens").exists()
        assert not any(b"sesame" in path.read_bytes() for path in folder.glob("*"))


def test_what_was_learned_with_another_model_is_not_taken(drafts, draft, folder):
    def make():
        return Sessions(Shared([toy()]), TOKENIZER, name=names[0])

    names = ["one"]
    with Server(make) as server:

        def use():
            with edgespec.connect(server.url, draft, speculative_config=DRAFT) as there:
                found = known(there)
                answer(there)
            return found

        fresh = use()
        names[0] = "two"
        server.restart()
        assert use() == fresh
        assert {name for name, _ in learned(folder)} == {
            f"{server.url} {n}" for n in ("one", "two")
        }
        draft.write_bytes(b"other weights")
        assert use() == fresh


@pytest.mark.parametrize("options", [FIXED, DRAFT | {"remember": "nothing"}])
def test_nothing_is_kept_where_that_is_not_wanted(drafts, draft, folder, options):
    with (
        Server(served) as server,
        edgespec.connect(server.url, draft, speculative_config=options) as there,
    ):
        answer(there)
    assert learned(folder) == {}


def test_a_draft_model_leaves_cores_to_other_programs(drafts, draft, machine):
    with (
        Server(served) as server,
        edgespec.connect(server.url, draft, speculative_config=FIXED) as there,
    ):
        answer(there)
        (model,) = drafts
        assert model.limits == {0}
        machine.loops = 2
        answer(there)
        assert model.thread_limit == 1
        machine.loops = 0
        answer(there)
        assert model.thread_limit == 0


def test_the_local_target_leaves_cores_too_and_nothing_is_kept_without_a_server(
    drafts, draft, machine, folder
):
    remote = edgespec.RemoteConfig(f"ws://127.0.0.1:{free_port()}", local=draft, timeout_s=0.3)
    with edgespec.connect(remote, speculative_config={"method": "none"}) as there:
        machine.loops = 2
        answer(there)
        assert drafts[0].thread_limit == 1
    with edgespec.connect(remote, draft, speculative_config=DRAFT) as there:
        answer(there)
    assert learned(folder) == {}


def test_costs_follow_the_governor_of_the_draft_model(drafts, draft, machine, monkeypatch):
    made = []

    def governed(*arguments):
        made.append(original(*arguments))
        return made[-1]

    original = connecting.GovernedModel
    monkeypatch.setattr(connecting, "GovernedModel", governed)
    with (
        Server(served) as server,
        edgespec.connect(server.url, draft, speculative_config=DRAFT) as there,
    ):
        machine.loops = 2
        for i in range(100):
            made[0].decode([i % N])
        made[0].truncate(0)
        there.generate(PROMPTS[0], max_tokens=20)
        assert there.sessions[0]._policy.costs.regime == (1, True)


def test_the_name_of_what_is_served_follows_the_server_and_has_no_secrets():
    both = types.SimpleNamespace(remote=types.SimpleNamespace(model="m"))
    name = connecting._Served("wss://me:secret@big:8080/robot?token=secret#secret", both)
    assert name() == "wss://big:8080/robot m"
    both.remote = None  # away
    assert name() == "wss://big:8080/robot m"
    both.remote = types.SimpleNamespace(model="another")
    assert name() == "wss://big:8080/robot another"
    other = connecting._Served("vllm+http://big:8000", types.SimpleNamespace(served="org/m"))
    assert other() == "vllm+http://big:8000 org/m"
