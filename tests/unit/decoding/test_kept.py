"""The memory of what was learned of drafts, over processes and engines."""

import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import edgespec
from edgespec import ToyModel, ToyTokenizer
from edgespec.bench.replay import Replay, shipped_profiles, shipped_traces
from edgespec.costs.curves import Curve
from edgespec.costs.profiles import Profile
from edgespec.decoding import idle_work
from edgespec.decoding.kept import Kept, TokensFile, forget_learned, keep_acceptance
from edgespec.decoding.owners import OwnRates, RatesStore
from edgespec.drafters.base import NOWHERE, Role
from edgespec.drafters.recycling import RecyclingDrafter
from edgespec.loading import corpora
from edgespec.types import Verified

VOCAB = ["a", "b", "c", "d", "<end>"]
COSTS = Profile(Curve((1,), (1, 33), ((1e-3, 1.1e-3),)))


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """No pause before idle work, an empty folder of profiles."""
    monkeypatch.setattr(idle_work, "PAUSE_S", 0.0)
    monkeypatch.setenv("EDGESPEC_PROFILES", str(tmp_path / "profiles"))
    monkeypatch.setenv("EDGESPEC_CORPUS", str(tmp_path / "corpus"))
    return tmp_path / "profiles"


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "toy.gguf"
    path.write_bytes(b"weights")
    return path


def engine(path, draft=None, method="auto"):
    table = np.full((5, 5), 0.02)
    table[np.arange(4), (np.arange(4) + 1) % 4] = 0.94
    table[4] = 0.2
    table[:4, 4] = 0
    table /= table.sum(axis=1, keepdims=True)
    return edgespec.assemble(
        ToyModel(table, n_ctx=4096), ToyTokenizer(VOCAB, eog=[4]), profile=COSTS,
        speculative_config={"method": method}, kept=Kept(path, draft),
    )  # fmt: skip


def answer(made, n=1):
    for seed in range(n):
        made.generate("abcdabcd", max_tokens=40, temperature=1.0, seed=seed)


def use(path, draft=None, method="auto"):
    """Let an engine answer once, and close it."""
    with engine(path, draft, method) as made:
        answer(made)


def on_disk(folder):
    """Return what is kept by name, {} for nothing."""
    found = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    learned = [values["learned"] for values in found if values["fingerprint"]["kind"] == "learned"]
    assert len(learned) <= 1
    return learned[0] if learned else {}


def observed(learned, name="suffix"):
    return sum(n for _, _, n in learned[name])


def test_an_engine_begins_where_the_last_one_ended(model, folder):
    use(model)
    first = on_disk(folder)
    assert observed(first) > 20
    assert first["accounts"]["usual"] < 100
    with engine(model):
        pass
    assert on_disk(folder) == first
    use(model)
    assert observed(on_disk(folder)) > 1.5 * observed(first)


def test_what_is_kept_is_bounded(model, folder):
    for _ in range(3):
        with engine(model) as made:
            answer(made, 60)
    (_, _, most), *_ = on_disk(folder)["suffix"]
    assert most <= 150
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1 << 16


def test_the_next_step_is_estimated_as_in_the_same_process():
    """In virtual time: answers of several processes are drafted as those of one."""
    traces = shipped_traces()[:3]

    def learners(made):
        return [*made.session._drafting.drafters, made.policy]

    profile = shipped_profiles()["cpu-f16"]
    made = Replay(profile, "auto")
    for trace in traces:
        made.run(trace)
    state = {}
    for learner in learners(made):
        state |= json.loads(json.dumps(learner.learned()))
    new, fresh = Replay(profile, "auto"), Replay(profile, "auto")
    for learner in learners(new):
        learner.relearn(state)
    text = [1, 2, 3, 1, 2, 3, 1, 2]
    found = []
    for replay in (made, new, fresh):
        request = edgespec.sampling.base.Request(text, edgespec.SamplingParams(), None)
        drafting = replay.session._drafting
        drafting.begin(request)
        roots = [(drafter, drafter.root()) for drafter in drafting._lookups]
        guesses = [d.children(root) for d, root in roots if root is not NOWHERE]
        forecasts = [d.forecast() for d in drafting._models]
        found.append((guesses, forecasts, replay.policy.accounts.loss_budget))
    assert sum(map(len, found[0][0])) > 0 < len(found[0][1])
    for before, fresh in zip(found[0], found[2], strict=True):
        assert before != fresh
    assert found[0] == found[1]


def test_nothing_is_kept_without_files(folder):
    made = edgespec.assemble(ToyModel(np.full((5, 5), 0.2)), ToyTokenizer(VOCAB), profile=COSTS)
    with made:
        answer(made)
    assert not folder.exists()


def test_other_models_learn_apart(model, folder, tmp_path):
    draft = tmp_path / "draft.gguf"
    draft.write_bytes(b"small")
    for small in (None, draft):
        use(model, small)
    one, other = (json.loads(path.read_text())["learned"] for path in folder.glob("*.json"))
    assert observed(one) == observed(other)


@pytest.fixture
def drafts(tmp_path):
    """Return the paths of a draft model and of its copy."""
    for name in ("draft.gguf", "copy.gguf"):
        (tmp_path / name).write_bytes(b"small")
    return tmp_path / "draft.gguf", tmp_path / "copy.gguf"


def test_of_a_copy_it_is_known_how_often_the_original_was_right(model, folder, drafts):
    use(model, drafts[0])
    (path,) = folder.glob("*.json")
    content = json.loads(path.read_text())
    rates = {"outcomes": [[10, 3, 4]], "drafts": [1.0] * 11}
    gain = {"answers": 9, "spent_s": 1.0, "saved_s": 0.5}
    accounts = content["learned"]["accounts"]
    content["learned"] = {"draft_model": rates, "accounts": accounts, "draft_gain": gain}
    path.write_text(json.dumps(content))
    keep_acceptance(model, *drafts)
    (other,) = set(folder.glob("*.json")) - {path}
    assert json.loads(path.read_text()) == content
    assert json.loads(other.read_text())["learned"] == {"draft_model": rates}
    keep_acceptance(model, drafts[0], drafts[0])
    assert json.loads(path.read_text())["learned"] == {"draft_model": rates}


def test_nothing_is_kept_of_a_draft_that_has_changed(model, folder, drafts):
    keep_acceptance(model, *drafts)
    assert not list(folder.glob("*.json"))
    use(model, drafts[0])
    drafts[0].write_bytes(b"other weights")
    keep_acceptance(model, *drafts)
    assert len(list(folder.glob("*.json"))) == 1


def test_a_changed_model_file_is_another_model(model, folder):
    use(model)
    before = observed(on_disk(folder))
    model.write_bytes(b"other weights")
    use(model)
    assert observed(on_disk(folder)) == pytest.approx(before, rel=0.2)


@pytest.mark.parametrize("damage", [
    b"", b"{", b"[]", b"\xff\xff", b'{"fingerprint": 1}', b"[" * 100_000,
])  # fmt: skip
def test_a_damaged_file_is_told_once_and_replaced(model, folder, damage, caplog):
    use(model)
    (path,) = folder.glob("*.json")
    path.write_bytes(damage)
    use(model)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "damaged" in caplog.text
    assert observed(on_disk(folder)) > 20


@pytest.mark.parametrize("value", [
    [[[1, 3, 1], 5, 2]], [[[1, 3, 1], -1, 2]], [[[1, 3, 1], float("nan"), 2]], [[1, 2]], 7, None,
    [[{}, 1, 2]], [["x", "y", "z"]], [[[1, 3, 1], 1, 1e999]],
])  # fmt: skip
def test_impossible_rates_are_left_out(model, folder, value, caplog):
    use(model)
    (path,) = folder.glob("*.json")
    found = json.loads(path.read_text())
    found["learned"]["suffix"] = value
    path.write_text(json.dumps(found))
    use(model)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert observed(on_disk(folder)) > 20


def test_another_version_is_ignored(model, folder, caplog, monkeypatch):
    use(model)
    (path,) = folder.glob("*.json")
    before = observed(on_disk(folder))
    monkeypatch.setattr("edgespec.decoding.kept._VERSION", 99)
    use(model)
    assert not caplog.records
    (other,) = set(folder.glob("*.json")) - {path}
    learned = json.loads(other.read_text())["learned"]
    assert observed(learned) == pytest.approx(before, rel=0.2)


def test_what_other_drafters_learned_stays(model, folder):
    use(model)
    before = on_disk(folder)["suffix"]
    use(model, method="runner_ups")
    assert on_disk(folder)["suffix"] == before
    assert "runner_ups" in on_disk(folder)


def test_a_learner_that_fails_harms_nobody(model, folder, caplog):
    class Broken:
        def learned(self):
            return {"broken": object()}

        def relearn(self, state):
            raise RuntimeError("no")

    kept = Kept(model, None)
    kept.recall(OwnRates([Broken()]))
    kept.save()
    assert "cannot be kept" in caplog.text
    assert on_disk(folder) == {}


def test_all_slots_begin_with_what_was_kept_and_any_of_them_adds_to_it(model, folder):
    class Learner:
        seen = 0

        def learned(self):
            return {"seen": self.seen}

        def relearn(self, state):
            self.seen = state.get("seen", 0)

    for before in (0, 2):
        store, kept = RatesStore(), Kept(model, None)
        learners = Learner(), Learner()
        first, second = (OwnRates([learner], store=store) for learner in learners)
        kept.recall(first, second)
        assert [learner.seen for learner in learners] == [before, before]
        second.begin("")
        learners[1].seen += 2
        second.end()
        kept.save()
    assert on_disk(folder)["seen"] == 4


@pytest.mark.skipif(os.name == "nt" or not hasattr(os, "geteuid"), reason="needs modes")
def test_a_folder_that_cannot_be_written_is_no_news(model, folder, caplog, monkeypatch):
    folder.parent.joinpath("file").write_text("")
    monkeypatch.setenv("EDGESPEC_PROFILES", str(folder.parent / "file" / "profiles"))
    use(model)
    assert not caplog.records


def test_it_is_kept_between_answers_too(model, folder):
    made = engine(model)
    answer(made, idle_work.KEEP_EVERY - 1)
    assert on_disk(folder) == {}
    answer(made, 1)
    for thread in threading.enumerate():
        if thread.name == "edgespec-idle":
            thread.join(20)
    assert observed(on_disk(folder)) > 20
    assert not made.idle_work.left
    made.close()


def test_who_writes_last_is_remembered(model, folder):
    one, other = engine(model), engine(model)
    answer(one, 2)
    answer(other, 1)
    one.close()
    both = observed(on_disk(folder))
    other.close()
    assert 0 < observed(on_disk(folder)) < both
    assert [path.suffix for path in folder.iterdir() if path.is_file()] == [".json"]


def test_a_program_that_closes_nothing(model, folder):
    code = (
        "import sys; from pathlib import Path; from tests.unit.decoding.test_kept import *;"
        "made = engine(Path(sys.argv[1])); answer(made)"
    )
    for _ in range(2):
        before = observed(on_disk(folder)) if on_disk(folder) else 0
        subprocess.run([sys.executable, "-c", code, str(model)], check=True, env=os.environ)
        assert observed(on_disk(folder)) > 1.5 * before
    assert observed(on_disk(folder)) > 20


def test_forgetting_a_model(model, folder, tmp_path):
    for draft in (None, model):
        target = model if draft is None else tmp_path / "other.gguf"
        target.write_bytes(b"weights")
        use(target, draft)
    assert len(list(folder.glob("*.json"))) == 2
    forget_learned(tmp_path / "third.gguf")
    assert len(list(folder.glob("*.json"))) == 2
    forget_learned(model)
    assert not list(folder.glob("*.json"))


@pytest.mark.parametrize("which", ["target", "draft"])
@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_an_engine_that_is_open_keeps_nothing_of_a_model_that_is_gone(
    model, folder, tmp_path, which, how, caplog
):
    draft = tmp_path / "draft.gguf"
    draft.write_bytes(b"small")
    with engine(model, draft, method="suffix,recycling") as made:
        answer(made)
        path = {"target": model, "draft": draft}[which]
        if how == "deleted":
            path.unlink()
        else:
            path.write_bytes(b"other weights")
    assert not list(folder.glob("**/*"))
    assert caplog.text == ""


def test_what_may_be_remembered_is_named():
    with pytest.raises(edgespec.ConfigError, match="known: all, rates, nothing"):
        edgespec.SpeculativeConfig(remember="everything")


def tokens_of(folder):
    """Return the files of tokens."""
    return sorted(folder.glob("tokens/*"))


def test_successors_of_tokens_are_kept_for_their_user_only(model, folder):
    use(model, method="recycling")
    (path,) = tokens_of(folder)
    if os.name != "nt":
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
    kept = TokensFile(model).read()["recycling"]
    assert kept.shape == (4, 9)
    drafter = RecyclingDrafter(5)
    drafter.relearn_tokens({"recycling": kept})
    assert drafter.children(drafter.step(drafter.root(), 2))[0][0] == 3
    with engine(model, method="recycling"):
        pass
    assert np.array_equal(TokensFile(model).read()["recycling"], kept)


def test_tokens_are_forgotten_with_the_model(model, folder):
    use(model, method="recycling")
    assert TokensFile(model).read()
    model.write_bytes(b"other weights")
    assert TokensFile(model).read() == {}
    forget_learned(model)
    assert tokens_of(folder) == []


def test_tokens_that_were_deleted_are_not_written_again(model, folder):
    use(model, method="recycling")
    with engine(model, method="recycling") as made:
        answer(made)
        (entry,) = corpora.stored()
        assert (entry.kind, entry.model, entry.n_tokens) == ("tokens", "toy.gguf", 4)
        assert corpora.clear() == entry.size
    assert tokens_of(folder) == corpora.stored() == []
    assert "recycling" in on_disk(folder)
    use(model, method="recycling")
    assert len(tokens_of(folder)) == 1


def test_damaged_tokens_are_removed_when_they_are_listed(model, folder, caplog):
    use(model, method="recycling")
    (path,) = tokens_of(folder)
    path.write_bytes(b"damaged")
    assert corpora.stored() == []
    assert "is damaged and removed" in caplog.text
    assert tokens_of(folder) == []


def test_no_tokens_are_kept_where_only_rates_are(model, folder):
    kept = Kept(model, None, tokens=False)
    drafter = RecyclingDrafter(5)
    kept.recall(OwnRates([drafter]))
    drafter.begin(
        edgespec.sampling.base.Request([1], edgespec.SamplingParams(), None), Role.MATCHED
    )
    drafter.accept(Verified((2, 3), [np.arange(5.0), np.arange(5.0)]))
    kept.save()
    assert "recycling" in on_disk(folder)
    assert tokens_of(folder) == []


def test_no_file_is_written_for_no_tokens(model, folder):
    kept = Kept(model, None)
    kept.recall(OwnRates([RecyclingDrafter(5)]))
    kept.save()
    assert "recycling" in on_disk(folder)
    assert tokens_of(folder) == []


@pytest.mark.parametrize("damage", [
    lambda path, good: path.write_bytes(b""),
    lambda path, good: path.write_bytes(good[: len(good) // 2]),
    lambda path, good: path.write_bytes(good[:150] + b"xxxx" + good[154:]),
    lambda path, good: path.write_bytes(good.replace(b"recycling", b"recyclinh")),
])  # fmt: skip
def test_a_damaged_file_of_tokens_harms_nobody(model, folder, damage):
    use(model, method="recycling")
    (path,) = tokens_of(folder)
    damage(path, path.read_bytes())
    use(model, method="recycling")
    assert TokensFile(model).read()["recycling"].shape == (4, 9)


@pytest.mark.parametrize("known", [
    np.zeros((1, 9)), np.zeros((1, 8), np.int32), np.zeros(9, np.int32),
    np.array([[5, 9, 0, 0, 0, 0, 0, 0, 0]], np.int32),
    np.array([[-1, 9, 0, 0, 0, 0, 0, 0, 0]], np.int32),
    np.array([[1, 5 << 3 | 1, 0, 0, 0, 0, 0, 0, 0]], np.int32),
    np.array([[1, 1 << 3, 0, 0, 0, 0, 0, 0, 0]], np.int32),
    np.array([[1, -7, 0, 0, 0, 0, 0, 0, 0]], np.int32),
])  # fmt: skip
def test_impossible_tokens_are_refused(known):
    drafter = RecyclingDrafter(5)
    with pytest.raises(ValueError, match="successors"):
        drafter.relearn_tokens({"recycling": known})
    assert drafter.learned_tokens()["recycling"].shape == (0, 9)
