"""Several answers at once on one batched target: the same texts, shared evaluations, no waiting."""

import itertools
import threading
import time

import pytest

from edgespec import ContextFull, EdgeSpecError, ToyModel
from edgespec.backends.base import BatchItem
from edgespec.backends.features import Features
from edgespec.backends.separate import SeparateModels
from edgespec.cache.prefixes import PrefixStore
from edgespec.cache.token_cache import TokenCache
from edgespec.costs.curves import Curve
from edgespec.costs.profiles import Profile
from edgespec.costs.reading import FEWEST
from edgespec.decoding.kept import Kept
from edgespec.errors import Aborted
from edgespec.loading.assembly import assemble
from edgespec.scheduling.company import Company, Member
from edgespec.scheduling.devices import DeviceSlots
from edgespec.scheduling.together import Together
from edgespec.scheduling.turns import Turn
from tests.helpers.serving import TOKENIZER, N, Shared, probs_of, toy, until
from tests.helpers.toy_head import ToyHead

LONG = [i % 20 for i in range(150)]
PROMPTS = [[3, 4, 5], [7, 8, 9, 10, 7, 8], [1] * 30, [2, 3] * 8]
FLAT = Profile(Curve((0,), (1, 16, 64), ((1.0, 1.1, 1.4),)), Curve((0,), (1, 8), ((0.02, 0.05),)))


class Slow(ToyModel):
    """A toy whose evaluations take a while."""

    seconds = 0.01

    def decode(self, *args, **options):
        time.sleep(self.seconds)
        return super().decode(*args, **options)


def engine_of(
    n=4,
    *,
    separate=False,
    kind=Shared,
    profile=FLAT,
    draft=True,
    slow=False,
    prefixes=None,
    kept=None,
    **options,
):
    """Return an engine of `n` slots over toy models; drafts cost little."""
    new = Slow if slow else ToyModel
    models = [new(probs_of(1), vocab_size=N, n_ctx=256) for _ in range(n)]
    slots = SeparateModels(models) if separate else kind(models)
    return assemble(
        models[0],
        TOKENIZER,
        toy(2) if draft else None,
        options or {"method": "auto"},
        profile=profile,
        slots=slots,
        prefixes=prefixes,
        kept=kept,
    )


def together(*works):
    """Run functions in threads of their own, at the same time; return what they return."""
    results, begin = [None] * len(works), threading.Barrier(len(works))

    def run(i, work):
        begin.wait()
        try:
            results[i] = work()
        except BaseException as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=each) for each in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return results


def alone(prompt, **sampling):
    with engine_of(1, num_speculative_tokens=0) as engine:
        return engine.generate(prompt, **sampling).token_ids


@pytest.mark.parametrize("separate", [False, True], ids=["together", "in turn"])
@pytest.mark.parametrize("depth", [None, 3], ids=["auto", "fixed"])
@pytest.mark.parametrize("temperature", [0, 0.8])
def test_texts_are_those_of_lone_answers(separate, depth, temperature):
    sampling = {"max_tokens": 40, "temperature": temperature, "seed": 5}
    with engine_of(separate=separate, slow=True, num_speculative_tokens=depth) as engine:
        for _ in range(2):  # the second time, slots hold texts already
            found = together(*[lambda p=p: engine.generate(p, **sampling) for p in PROMPTS])
            if not temperature:
                for each, prompt in zip(found, PROMPTS, strict=True):
                    assert each.token_ids == alone(prompt, **sampling)
        assert (engine.company.counts.shared_evaluations > 0) != separate
        assert (engine.company.counts.shared_draft_evaluations > 0) != separate
        if depth:
            assert sum(each.stats.num_accepted_draft_tokens for each in found) > 0


def test_a_cancelled_answer_does_not_wait_for_the_others():
    with engine_of(2, slow=True, num_speculative_tokens=0) as engine:
        models, ended = engine.company.model.models, {}
        models[0].seconds = models[1].seconds = 0.2
        streams = [engine.stream(p, max_tokens=8, ignore_eos=True) for p in PROMPTS[:2]]

        def read(i):
            *_, done = streams[i]
            ended[i] = time.monotonic()
            return done.completion

        def cancel():
            time.sleep(0.5)
            began = time.monotonic()
            streams[0].cancel()
            return began

        first, second, began = together(lambda: read(0), lambda: read(1), cancel)
        assert first.finish_reason == "cancelled"
        assert ended[0] - began < 0.25
        assert second.token_ids == alone(PROMPTS[1], max_tokens=8, ignore_eos=True)
        assert engine.generate(PROMPTS[0], max_tokens=8).token_ids == alone(
            PROMPTS[0], max_tokens=8
        )


def test_a_slow_reader_delays_nobody():
    with engine_of(2, num_speculative_tokens=0) as engine:
        stream = engine.stream(PROMPTS[0], max_tokens=30, ignore_eos=True)
        next(stream), next(stream)  # its next step comes much later
        found = engine.generate(PROMPTS[1], max_tokens=40, ignore_eos=True)
        assert found.token_ids == alone(PROMPTS[1], max_tokens=40, ignore_eos=True)
        *_, done = stream
        assert done.completion.token_ids == alone(PROMPTS[0], max_tokens=30, ignore_eos=True)


class Measured(Shared):
    """Each token takes three milliseconds at least. pieces: the tokens of prompts that were read in
    evaluations beside an answer's step, together.
    """

    def __init__(self, models):
        super().__init__(models)
        self.pieces = []

    def decode(self, items):
        read = [len(item.tokens) for item in items if not item.n_logits]
        time.sleep(0.003 * sum(len(item.tokens) for item in items))
        if len(read) < len(items):
            self.pieces.append(sum(read))
        return super().decode(items)


def test_all_prompts_together_are_read_in_pieces_that_delay_an_answer_little(monkeypatch):
    monkeypatch.setattr("edgespec.scheduling.company._SHARED_S", 0.05)
    with engine_of(3, kind=Measured, draft=False, slow=True, num_speculative_tokens=0) as engine:
        streaming = engine.stream([3, 4, 5], max_tokens=100)
        next(event for event in streaming if event.type == "token")

        def read(first):
            return engine.generate([first, *[7, 8, 9] * 66], max_tokens=1)

        together(lambda: list(streaming), lambda: read(1), lambda: read(2))
        pieces = engine.company.model.pieces
        assert max(pieces) == FEWEST  # 16 take the time, 32 would take twice as long
        assert sum(pieces) > 300


class Full(Shared):
    """Slots of which the second one never has room beside others for more than ten tokens."""

    def decode(self, items):
        if any(item.slot == 1 and self.models[1].n_past > 10 for item in items):
            raise ContextFull("no room")
        return super().decode(items)


def test_only_the_answer_without_room_fails():
    with engine_of(2, kind=Full, slow=True, num_speculative_tokens=0) as engine:
        sampling = {"max_tokens": 40, "ignore_eos": True}
        found = together(*[lambda p=p: engine.generate(p, **sampling) for p in PROMPTS[:2]])
        failed = [each for each in found if isinstance(each, Exception)]
        (fine,) = [each for each in found if not isinstance(each, Exception)]
        assert all(isinstance(each, ContextFull) for each in failed)
        assert fine.token_ids in [alone(prompt, **sampling) for prompt in PROMPTS[:2]]


def test_a_prompt_is_taken_from_the_slot_of_the_same_owner():
    prompt = [i % 20 for i in range(150)]
    with engine_of(3, num_speculative_tokens=0) as engine:
        with engine.stream(prompt, max_tokens=9, ignore_eos=True, owner="a") as running:
            next(event for event in running if event.type == "token")
            same = engine.generate([*prompt, 3], max_tokens=2, owner="a").stats
            other = engine.generate([*prompt, 3], max_tokens=2, owner="b").stats
        assert same.num_cached_tokens >= 149
        assert other.num_cached_tokens == 0


TEXT = [i * i % 23 for i in range(120)]
OTHER_TEXT = [(i * i + 5 * i + 1) % 23 for i in range(120)]


def seen_by_b(text, *, owner="a", ended=True):
    """Return everything that owner "b" can count of its answer to TEXT, after or while another
    request had `text` answered.
    """
    drafts = {"method": "suffix,recycling,draft_model", "num_speculative_tokens": 4}
    with engine_of(3, draft_p_min=0.0, **drafts) as engine:
        sampling = {"max_tokens": 30, "ignore_eos": True}
        with engine.stream(text, owner=owner, **sampling) as first:
            for _ in itertools.takewhile(lambda event: ended or event.type != "token", first):
                pass
            company, models = engine.company, engine.company.model.models
            counts = company.counts
            n, n_tokens = counts.evaluations, sum(model.n_evaluated for model in models)
            stats = engine.generate(TEXT, owner="b", **sampling).stats
            return (
                stats.num_cached_tokens, stats.num_prefilled_tokens, stats.num_spec_steps,
                stats.num_draft_tokens, stats.num_accepted_draft_tokens,
                counts.evaluations - n, sum(model.n_evaluated for model in models) - n_tokens,
                counts.shared_evaluations,
            )  # fmt: skip


@pytest.mark.parametrize("ended", [True, False], ids=["after it", "while it runs"])
def test_nothing_that_can_be_counted_shows_the_text_of_another_owner(ended):
    same, other = (seen_by_b(text, ended=ended) for text in (TEXT, OTHER_TEXT))
    assert same == other
    assert same[0] == 0
    known = seen_by_b(TEXT, owner="b", ended=ended)
    assert known[0] > 100  # the positive control: within one owner everything shows it
    assert known[1] < same[1]
    assert known[6] < same[6]


def test_an_engine_is_closed_in_the_middle_of_answers():
    engine = engine_of(3)
    streams = [engine.stream(prompt, max_tokens=200, ignore_eos=True) for prompt in PROMPTS[:3]]

    def read(i):
        *_, done = streams[i]
        return done.completion.finish_reason

    def close():
        time.sleep(0.05)
        engine.close()

    *reasons, _ = together(*[lambda i=i: read(i) for i in range(3)], close)
    assert all(reason in ("cancelled", "length") for reason in reasons)
    with pytest.raises(EdgeSpecError, match="closed"):
        engine.generate([1])


def test_a_member_gets_its_place_when_what_it_left_is_done():
    company = Company(Shared([toy(), toy()]), Together(None))
    member, other = Member(company), Member(company)
    for each in (member, other):
        each.join()
    member.leave()
    other.left = Turn()
    with pytest.raises(Aborted):
        other.join(lambda: "cancelled")
    company.close()


def test_answers_stay_together():
    """They would be evaluated in turns if nobody waited for those whose turn has just ended."""
    sampling = {"max_tokens": 40, "ignore_eos": True}
    with engine_of(2, slow=True, num_speculative_tokens=0) as engine:
        together(*[lambda p=p: engine.generate(p, **sampling) for p in PROMPTS[:2]])
        assert engine.company.counts.shared_evaluations > 20


class Slowly(Turn):
    """A turn that reads its outputs slowly. state: what it does at present."""

    n_least, state = 1, ""

    def prepare(self, n_tokens, n_rows):
        return [BatchItem(0, [1], 1)]

    def take(self, outputs, evaluation):
        self.state = "reading"
        time.sleep(0.1)
        self.company.exclusively(lambda: None)  # a turn may do so itself
        self.state = "read"

    def alone(self):
        self.take((), None)


@pytest.mark.parametrize("alone", [False, True])
def test_nothing_changes_the_target_while_outputs_are_read(alone):
    company = Company(Shared([toy(), toy()]), Together(None))
    member, other = Member(company), Member(company)
    for each in [member] if alone else [member, other]:
        each.join()
    turn = Slowly()
    turn.company = company
    thread = threading.Thread(target=member.step, args=(turn,))
    thread.start()
    until(lambda: turn.state)
    assert other.exclusively(lambda: turn.state) == "read"
    thread.join()
    company.close()


class Tapped(Slow):
    """A toy that notes how often its hidden states are switched, and by whom."""

    company, seconds = None, 0.003

    def tap(self, layers):
        if self.company:
            assert self.company._user == threading.get_ident(), "rows may be read meanwhile"
            self.n_taps += 1
        super().tap(layers)


def test_a_head_in_the_first_slot_changes_no_other_answer():
    """Its hidden states are switched off for requests without drafts, and on again."""
    models = [Tapped(probs_of(1), vocab_size=N, n_ctx=256) for _ in range(3)]
    head = ToyHead(probs_of(1), vocab_size=N)
    config = {"num_speculative_tokens": 3, "draft_p_min": 0.0}
    options = {"profile": FLAT, "slots": Shared(models)}
    with assemble(models[0], TOKENIZER, head, config, **options) as engine:
        models[0].company, models[0].n_taps = engine.company, 0
        sampling = {"max_tokens": 25, "ignore_eos": True}

        def ask(i):
            plainly = {"disable_spec_decode": True}
            return [
                engine.generate(PROMPTS[i], **sampling, **(plainly if n % 2 else {}))
                for n in range(4)
            ]

        found = together(*[lambda i=i: ask(i) for i in range(3)])
        for prompt, answers in zip(PROMPTS, found, strict=False):
            for each in answers:
                assert each.token_ids == alone(prompt, **sampling)
        assert engine.company.counts.shared_evaluations > 0
        assert models[0].n_taps > 1
        assert engine.sessions[0]._verifier._states.end > 0


@pytest.mark.parametrize("layers", [(), (2,)])
def test_states_that_another_slot_needs_are_not_stored(layers):
    """One context returns the states of all its texts."""
    features = Features()
    features.layers = layers
    target = toy()
    target.tap((2,))
    TokenCache(target, features).decode([1, 2, 3])
    assert features.end == 3 * len(layers)


def test_slots_without_the_head_draft_nothing_if_only_the_head_was_asked_for():
    models = [Tapped(probs_of(1), vocab_size=N, n_ctx=256) for _ in range(2)]
    head = ToyHead(probs_of(1), vocab_size=N)
    config = {"method": "draft_model", "num_speculative_tokens": 3, "options": {"top_k": 2}}
    with assemble(models[0], TOKENIZER, head, config, profile=FLAT, slots=Shared(models)) as engine:
        models[0].company = engine.company
        n = [len(session._drafting.drafters) for session in engine.sessions]
        found = together(*[lambda p=p: engine.generate(p, max_tokens=9) for p in PROMPTS[:2]])
    assert n == [1, 0]
    for each, prompt in zip(found, PROMPTS, strict=False):
        assert each.token_ids == alone(prompt, max_tokens=9)


def test_all_slots_begin_with_what_was_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGESPEC_PROFILES", str(tmp_path / "profiles"))
    target = tmp_path / "toy.gguf"
    target.write_bytes(b"weights")
    with engine_of(1, kept=Kept(target, None)) as engine:
        engine.generate(PROMPTS[3], max_tokens=40)
    with engine_of(3, kept=Kept(target, None)) as engine:
        learned = [session._policy.learned() for session in engine.sessions]
        rates = [session._drafting.drafters[0].learned() for session in engine.sessions]
    assert learned[0]["accounts"]["usual"] < 100
    assert learned[1:] == learned[:1] * 2
    assert rates[1:] == rates[:1] * 2


def test_texts_of_idle_slots_give_way_and_come_back():
    """Attention would read their cells, too."""
    with engine_of(3, num_speculative_tokens=0, prefixes=PrefixStore(1 << 24)) as engine:
        caches = [session._verifier._cache for session in engine.sessions]
        for prompt in (LONG, [9, *LONG], [8, 7, *LONG]):
            engine.generate(prompt, max_tokens=3, ignore_eos=True)
            assert sum(len(cache.tokens) > 0 for cache in caches) == 1
        again = engine.generate(LONG, max_tokens=3, ignore_eos=True)
        assert again.stats.num_cached_tokens == len(LONG) - 1


def test_texts_of_idle_slots_stay_without_a_store():
    with engine_of(2, num_speculative_tokens=0) as engine:
        caches = [session._verifier._cache for session in engine.sessions]
        for prompt in (LONG, [9, *LONG]):
            engine.generate(prompt, max_tokens=3, ignore_eos=True)
        assert all(len(cache.tokens) > len(LONG) for cache in caches)


def test_cells_that_devices_share_count_once():
    company = Company(Shared([toy() for _ in range(4)]), Together(None))
    slots = DeviceSlots(company, 1)
    slots._n_cells = 256
    slots.decode([BatchItem(0, LONG)])
    for slot in (1, 2):
        slots.copy(0, slot, 100)
    assert slots.n_free == 256 - 150
    slots.decode([BatchItem(1, [5])])
    assert slots.n_free == 256 - 151
    slots.unshare(1, 100)  # nothing but its own token was replaced
    assert slots.n_free == 256 - 151
    slots.unshare(1, 0)  # a text was loaded in place of the copy
    assert slots.n_free == 256 - 251
    slots.truncate(1, 0)
    slots.truncate(0, 50)  # only the copy has its other tokens now
    assert slots.n_free == 256 - 150
    with pytest.raises(ContextFull):
        slots.decode([BatchItem(1, [5] * 107)])


def test_copies_of_a_text_that_another_copy_replaced_are_not_shared():
    slots = DeviceSlots(Company(Shared([toy() for _ in range(4)]), Together(None)), 1)
    slots._n_cells = 256
    slots.decode([BatchItem(0, [5] * 80), BatchItem(1, LONG[:80])])
    slots.copy(0, 2, 80)
    assert slots.n_free == 256 - 160
    slots.models[0].truncate(0)  # as a cache does before it takes another text
    slots.copy(1, 0, 80)
    assert slots.n_free == 256 - 160
