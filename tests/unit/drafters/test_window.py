"""Windows: what a draft model sees of a long text, and what it costs to see less."""

import itertools

import numpy as np
import pytest

from edgespec import SamplingParams, ToyModel, ToyTokenizer
from edgespec.backends.features import Features
from edgespec.costs.curves import Curve
from edgespec.costs.online import Costs
from edgespec.costs.profiles import Profile
from edgespec.decoding.drafting import Drafting
from edgespec.decoding.output import Output
from edgespec.decoding.session import Session
from edgespec.drafters.draft_model import ModelDrafter
from edgespec.drafters.heads import HeadDrafter
from edgespec.drafters.suffix import SuffixDrafter
from edgespec.drafters.window import AUTOMATIC, SINKS, Window
from edgespec.policies.fixed import FixedDepth
from edgespec.sampling.base import Request
from edgespec.sampling.randomness import SeededRandomness
from edgespec.types import Draft, Stats, Verified
from edgespec.verifiers.local import LocalVerifier
from tests.helpers.growing import begin, said
from tests.helpers.toy_head import ToyHead, complete

N = 24
TOKENIZER = ToyTokenizer([chr(97 + i) for i in range(N)])
DEPTH = 3
PROMPT = [(5 * i + i * i // 7) % N for i in range(61)]


def recent(tokens):
    """Next-token probabilities that depend on the last two tokens."""
    code = tokens[-1] * N + (tokens[-2] if len(tokens) > 1 else 0)
    row = np.full(N, 0.1 / (N - 1))
    row[(7 * code + code // 5) % N] = 0.9
    return row / row.sum()


def far(tokens):
    """Probabilities that depend on how many tokens there are and on the first one."""
    row = np.full(N, 0.2 / (N - 1))
    row[(tokens[0] + len(tokens)) % N] = 0.8
    return row


class Watched(ToyModel):
    """A draft model that notes its largest cache."""

    def __init__(self, probs, **options):
        super().__init__(probs, vocab_size=N, **{"n_ctx": 512} | options)
        self.most = 0

    def decode(self, tokens, n_logits=1, abort=None):
        outputs = super().decode(tokens, n_logits, abort)
        self.most = max(self.most, self.n_past)
        return outputs

    def grow(self, tokens, parents, abort=None):
        outputs = super().grow(tokens, parents, abort)
        self.most = max(self.most, self.n_past)
        return outputs


class Remote(LocalVerifier):
    """A target on another machine, whose verdict takes until all is drafted that may be."""

    notices = ()

    def round_trip_s(self):
        return 0.0

    def submit(self, draft):
        self._sent = draft

    def ready(self):
        return False

    def result(self):
        return self.verify(self._sent)

    def finish(self):
        pass


def loop(kind, window, probs=recent, **options):
    """Return the loop of a toy target and a draft model of the same probabilities."""
    draft, is_tree, is_ahead = Watched(probs, **options), kind == "tree", kind == "ahead"
    drafter = ModelDrafter(
        draft, N, top_k=2 if is_tree else 1, window=Window(window, draft.n_ctx),
        acceptance="coupled" if is_ahead else "block",
    )  # fmt: skip
    drafters = [SuffixDrafter(2), drafter] if kind == "with lookup" else [drafter]
    target = ToyModel(probs, vocab_size=N, n_ctx=512)
    verifier = (Remote if is_ahead else LocalVerifier)(target)
    made = Session(verifier, drafters, FixedDepth(DEPTH, max_leaves=31 if is_tree else 1))
    made.draft, made.drafter = draft, drafter
    return made


def run(made, prompt=PROMPT, n=40, seed=None, **options):
    params = SamplingParams(max_tokens=n, ignore_eos=True, seed=seed, **options)
    output, made.stats = Output(TOKENIZER, params), Stats()
    request = Request(prompt, params, SeededRandomness(seed or 0))
    for _ in made.generate(request, output, made.stats):
        pass
    return output.token_ids


def plain(prompt=PROMPT, n=40, probs=recent, **options):
    target = ToyModel(probs, vocab_size=N, n_ctx=512)
    made = Session(LocalVerifier(target), [], FixedDepth(0))
    return run(made, prompt, n, **options)


KINDS = ["model", "tree", "ahead", "with lookup"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", [1, 2, 3, 5, 8, 16, 31, 64])
def test_text_is_that_of_plain_decoding_wherever_the_window_moves(kind, window):
    made = loop(kind, window)
    for shift in range(4):
        prompt = PROMPT[: 20 + 11 * shift]
        assert run(made, prompt) == plain(prompt)
        assert made.stats.num_draft_steps
    ahead = made._verifier.max_draft + 1 if kind == "ahead" else 0
    assert made.draft.most <= SINKS + window + 2 * DEPTH + 1 + ahead


@pytest.mark.parametrize("truncate", [True, False], ids=["truncates", "recurrent"])
@pytest.mark.parametrize("window", [0, 6, 200])
def test_engines_that_cannot_truncate_see_windows_too(truncate, window):
    made = loop("model", window, truncate=truncate)
    assert run(made) == plain()
    assert run(made, [*PROMPT, 3, 4, 5]) == plain([*PROMPT, 3, 4, 5])
    assert made.stats.num_accepted_draft_tokens > 10


@pytest.mark.parametrize("kind", KINDS)
def test_a_window_as_long_as_the_text_changes_no_draft(kind):
    drafts = []
    for window in (0, len(PROMPT) + 40):
        made = loop(kind, window, probs=far)
        verifier, drafted = made._verifier, []
        verify = verifier.verify
        verifier.verify = lambda draft, v=verify, d=drafted: d.append(draft) or v(draft)
        run(made)
        drafts.append(drafted)
    assert drafts[0] == drafts[1]
    assert len(drafts[0]) > 5


def test_the_cache_holds_the_first_tokens_and_the_latest():
    drafter = loop("model", 8).drafter
    begin(drafter, PROMPT)
    context, starts = list(PROMPT), []
    for token in range(20):
        said(drafter)
        start, model = drafter._start, drafter._model
        assert model._tokens[: len(context) - start] == context[:SINKS] + context[start + SINKS :]
        assert 4 <= len(context) - start - SINKS <= 8
        starts.append(start)
        drafter.accept(Verified((token,)))
        context.append(token)
    moves = [b - a for a, b in itertools.pairwise(starts) if b > a]
    assert set(moves) == {5}, "half of a full window is given up at a time"
    assert len(moves) == 3


def test_a_long_prompt_is_not_read_to_be_thrown_away():
    made = loop("model", 8)
    run(made, n=1)
    begin(made.drafter, [*PROMPT, 1])
    said(made.drafter)
    assert 0 < made.draft.n_evaluated <= SINKS + 8


def test_the_work_is_that_of_what_it_sees():
    drafter = loop("model", 8).drafter
    begin(drafter, PROMPT)
    work = drafter.work([drafter.root()])
    assert (work.n_tokens, work.n_cached) == (SINKS + drafter._window.n_kept, 0)
    said(drafter)
    drafter.accept(Verified((3,)))
    work = drafter.work([drafter.root()])
    assert (work.n_tokens, work.n_cached) == (1, SINKS + drafter._window.n_kept)


@pytest.mark.parametrize("window", [8, 16, 32])
def test_the_same_prompt_again_is_read_from_the_cache_as_far_as_it_goes(window):
    made = loop("model", window)
    first = run(made, n=3)
    before = made.draft.n_evaluated
    assert run(made, n=3) == first
    again = made.draft.n_evaluated - before
    assert again <= 2 * (DEPTH + 1), "nothing but drafts was evaluated"
    other = [9, *PROMPT[1:]]  # begins otherwise: its first tokens are in view
    assert run(made, other) == plain(other)
    assert made.drafter._cache.tokens[0] == 9


def test_a_short_text_behind_a_long_one_is_seen_as_a_whole():
    made = loop("model", 16)
    run(made)
    assert made.drafter._start
    short = PROMPT[:12]
    assert run(made, short, n=3) == plain(short, n=3)
    assert made.drafter._start == 0
    assert made.drafter._cache.tokens[:12] == short


@pytest.mark.parametrize("window", [3, 8, 20])
def test_a_request_that_was_left_half_way(window):
    made = loop("tree", window)
    for n_events in range(3, 40, 4):
        params = SamplingParams(max_tokens=40, ignore_eos=True)
        request = Request(PROMPT, params, SeededRandomness(0))
        events = made.generate(request, Output(TOKENIZER, params), Stats())
        list(itertools.islice(events, n_events))
        events.close()
        prompt = [*PROMPT[: 60 - n_events], 7]
        assert run(made, prompt) == plain(prompt)


@pytest.mark.parametrize("fails_at", range(1, 14))
def test_a_draft_model_that_fails_leaves_a_view_that_is_right(fails_at):
    made = loop("model", 8)
    calls, decode = itertools.count(1), made.draft.decode

    def failing(*args):
        if next(calls) == fails_at:
            raise MemoryError
        return decode(*args)

    made.draft.decode = failing
    with pytest.raises(MemoryError):
        run(made)
    made.draft.decode = decode
    assert run(made) == plain()
    drafter = made.drafter
    seen = [*PROMPT, *plain()]
    view = seen[:SINKS] + seen[drafter._start + SINKS :]
    assert drafter._cache.tokens[: drafter._known] == view[: drafter._known]
    assert made.stats.num_accepted_draft_tokens > 20


@pytest.mark.parametrize("kind", ["model", "tree", "ahead"])
@pytest.mark.parametrize("window", [2, 8, 21])
def test_a_seed_gives_the_same_text_by_coupled_sampling(kind, window):
    options = {"seed": 5, "temperature": 1.0}
    assert run(loop(kind, window), **options) == plain(**options)


def test_ahead_of_a_draft_the_view_does_not_move():
    drafter = loop("ahead", 8).drafter
    drafting = Drafting([drafter], FixedDepth(3))
    drafting.begin(Request(PROMPT, SamplingParams(), SeededRandomness(0)))
    said(drafter)
    start = drafter._start
    for draft in (*[Draft((3, 4, 5))] * 6, Draft(tuple(range(12)))):
        drafting.grow_ahead(draft, 4, lambda: False)
        assert drafter._start == start


@pytest.mark.parametrize("window", [0, 1, 6, 16, 200])
@pytest.mark.parametrize("most", [8, 512])
def test_a_head_with_a_window(window, most):
    head = ToyHead(recent, vocab_size=N, layers=(1, 3), n_ctx=512, most=most)
    target, states = ToyModel(recent, vocab_size=N, n_ctx=512), Features(most)
    view = Window(window, head.n_ctx, n_sinks=0)
    drafter = HeadDrafter(head, N, states, top_k=2, window=view)
    verifier, policy = LocalVerifier(target, states=states), FixedDepth(DEPTH, max_leaves=31)
    made = Session(verifier, [drafter], policy)
    held, accept = [], drafter.accept
    drafter.accept = lambda verified: accept(verified) or held.append(head.n_past)
    for prompt in (PROMPT, PROMPT, [*PROMPT, 4], PROMPT[:9]):
        assert run(made, prompt) == plain(prompt)
        assert complete(head)
    assert made.stats.num_accepted_draft_tokens > 10
    if window:
        assert max(held) <= window + DEPTH + 1


def costs(slope, reading=0.003):
    """Return the costs of a draft model that takes 8 ms and `slope` more for each cached token."""
    widths = (1, 128)
    rows = tuple((0.008 + slope * n, 128 * reading + slope * n) for n in (0, 2048))
    return Costs(Profile(Curve((0,), (1, 32), ((0.03, 0.1),)), Curve((0, 2048), widths, rows)))


def placed(made, n_text, known=0, start=0):
    return made.place(start, known, n_text, 32)[0]


def test_by_itself_a_window_is_used_where_it_saves_time():
    n = 16000
    fresh, read = (n, 0), (n, n - 1)
    for slope, (n_text, known), used in [
        (3e-6, fresh, True), (3e-6, read, True), (0, fresh, True), (0, read, False),
        (3e-8, read, False), (3e-6, (3000, 2999), False), (3e-6, (2000, 0), False),
    ]:  # fmt: skip
        start = placed(Window(None, 1 << 20, costs(slope).draft_s), n_text, known)
        assert bool(start) == used, (slope, n_text, known)
        if used:
            assert n_text - start == SINKS + AUTOMATIC // 2


def test_it_does_not_flap():
    made, slope = Window(None, 1 << 20, costs(3e-6).draft_s), 3e-6
    starts = [0]
    known = 2000
    for n_text in range(2001, 20000):
        start, known = made.place(starts[-1], known, n_text, 32)
        starts.append(start)
        known = n_text - start
        made._seconds = costs(slope * (0.7 if n_text % 200 < 100 else 1.4)).draft_s
    used = [start > 0 for start in starts]
    assert sorted(used) == used
    assert 1000 < used.index(True) < 10000
    moves = [b - a for a, b in itertools.pairwise(starts) if b > a][1:]
    assert set(moves) == {AUTOMATIC // 2 + 1}


@pytest.mark.parametrize("given", [None, Costs(None), costs(0)], ids=["none", "unknown", "of one"])
def test_without_costs_all_of_a_text_is_seen(given):
    if given and given.known:
        given.learn(Profile(given.profile.target))
    assert placed(Window(None, 1 << 20, given and given.draft_s), 16000) == 0


@pytest.mark.parametrize("n_ctx", [2, 8, 24, 100, 2053])
@pytest.mark.parametrize("size", [None, 0, 1, 7, 50, 4000])
def test_a_view_fits_into_the_context(n_ctx, size):
    made = Window(size, n_ctx, costs(3e-6).draft_s)
    start, known = 0, 0
    for n_text in range(1, 3 * n_ctx, max(1, n_ctx // 40)):
        start, known = made.place(start, known, n_text, n_ctx // 4)
        view = made.rest(range(n_text), start, 0)
        assert len(view) == n_text - start
        assert len(view) + n_ctx // 4 <= n_ctx
        assert 0 <= known <= len(view)
        assert view[-1:] == [n_text - 1]
        assert len(view) <= made.n_sinks + (size or n_ctx)
        assert made.rest(range(n_text), start, len(view)) == []
        known = len(view)
