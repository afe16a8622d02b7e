"""Heads of a given quality over recorded answers: how often they are right, how sure, how slow."""

import itertools

import numpy as np
import pytest

from edgespec.bench.replay import Replay, rates
from edgespec.bench.trace_head import HEADS, OTHERS, HeadModel, HeadQuality
from edgespec.bench.trace_model import Clock, TraceModel
from edgespec.bench.traces import Drafts, Trace
from edgespec.costs.curves import Curve
from edgespec.costs.profiles import Profile

N = 8000
TEXT = [200 + i % 30000 for i in range(N)]
PROMPT = [198, 199]
BESIDE = [31000, 31001, 31002, 31003]
TRACE = Trace(
    "t", "c", PROMPT, TEXT, [[(token, 0.8), *((t, 0.05) for t in BESIDE)] for token in TEXT],
    {"draft_model": Drafts([[(token, 0.9)] for token in TEXT], {})},
)  # fmt: skip
TARGET = Curve((64,), (1, 32), ((0.020, 0.022),))
QUALITY = HeadQuality((0.75, 0.6, 0.5))


class Pair:
    """A target after some of the answer, and a head that has read as much."""

    def __init__(self, quality=QUALITY, seed=0):
        self.clock = Clock()
        self.target = TraceModel(self.clock, TARGET)
        self.head = HeadModel(self.clock, quality.curve(TARGET), quality, self.target, seed)
        for model in (self.target, self.head):
            model.tell(TRACE)

    def at(self, position):
        """Let the answer's next token be that at a position."""
        text = [*PROMPT, *TEXT[:position]]
        for model, n in ((self.target, len(text) - 1), (self.head, len(text) - 1)):
            model.truncate(n)
            if model.n_past < n:
                model.decode(text[model.n_past : n], 0)
        return text[-1:]

    def first_row(self, position):
        return self.head.decode(self.at(position)).logits[0]


def ranked(row, n=4):
    ids = np.argsort(-row, kind="stable")[:n]
    return [(int(token), float(np.exp(row[token]))) for token in ids]


def rows_by_depth(n_depths, step, quality=QUALITY):
    """Return, by depth, (position, choices) after right drafts."""
    pair, found = Pair(quality), [[] for _ in range(n_depths)]
    for position in range(0, N - n_depths, step):
        found[0].append((position, ranked(pair.first_row(position))))
        for depth in range(1, n_depths):
            row = pair.head.decode([TEXT[position + depth - 1]]).logits[0]
            found[depth].append((position + depth, ranked(row)))
    return found


def test_each_depth_is_as_good_as_it_is_said_to_be():
    for rate, rows in zip((0.75, 0.6, 0.5, 0.5), rows_by_depth(4, 3), strict=True):
        hits = np.array([choices[0][0] == TEXT[p] for p, choices in rows])
        sure = np.array([choices[0][1] for _, choices in rows])
        assert np.mean(hits) == pytest.approx(rate, abs=0.03)
        assert sure.mean() == pytest.approx(rate, abs=0.02)
        for low, high in ((0.3, 0.5), (0.5, 0.7), (0.7, 0.9), (0.9, 1.0)):
            some = (sure >= low) & (sure < high)
            assert some.mean() > 0.05
            assert np.mean(hits[some]) == pytest.approx(sure[some].mean(), abs=0.08)


def test_other_choices_are_right_as_often_as_they_are_said_to_be():
    (rows,) = rows_by_depth(1, 1)
    assert all(p >= q for _, choices in rows for (_, p), (_, q) in itertools.pairwise(choices))
    missed = [(p, choices) for p, choices in rows if choices[0][0] != TEXT[p]]
    for rank, share in enumerate(OTHERS, start=1):
        right = [choices[rank][0] == TEXT[p] for p, choices in missed]
        assert np.mean(right) == pytest.approx(share, abs=0.05)
        missed = [pair for pair, hit in zip(missed, right, strict=True) if not hit]
    wrong = {choices[0][0] for _, choices in missed}
    assert wrong == {BESIDE[0]}  # the likeliest token that the target had beside its own


def test_it_is_the_same_head_whatever_was_drafted():
    one, other = Pair(), Pair()
    for position in (5, 40, 41, 300):
        expected = ranked(one.first_row(position))
        assert ranked(other.first_row(position)) == expected
        chain = [ranked(one.head.decode([TEXT[position + i]]).logits[0]) for i in range(2)]
        nodes = [TEXT[position], 31000, TEXT[position + 1]]
        grown = other.head.grow(nodes[:2], (-1, -1)).logits.copy()
        deeper = other.head.grow(nodes[2:], (0,)).logits.copy()
        assert [ranked(grown[0]), ranked(deeper[0])] == chain
        assert not {token for token, _ in ranked(grown[1])} & {*TEXT, *BESIDE}
        other.head.keep(())
    assert any(ranked(Pair(seed=1).first_row(p)) != ranked(one.first_row(p)) for p in (5, 40, 300))


def test_what_was_its_own_is_read_again_once_it_is_accepted():
    pair = Pair()
    pair.head.evaluated.clear()
    pending = pair.at(10)
    before = pair.head.evaluated.copy()
    pair.head.decode(pending)
    pair.head.grow([TEXT[10]], (-1,))
    pair.head.grow([TEXT[11]], (0,))
    pair.head.keep((0, 1))
    pair.target.decode([*pending, *TEXT[10:12]], 0)
    pair.head.decode([TEXT[12]])  # the bonus token, and two accepted ones
    assert pair.head.evaluated[len(before) :] == [(1, 11), (1, 12), (1, 12), (3, 14)]
    assert pair.clock.now > 0


def test_of_a_text_that_it_begins_later_it_knows_the_same():
    whole, part = Pair(), Pair()
    expected = ranked(whole.first_row(40))
    text = [*PROMPT, *TEXT[:40]]
    part.head.start = 7
    assert part.head.n_past == 0
    part.target.decode(text[:-1], 0)
    assert (part.head.features.start, part.head.features.end) == (0, len(text) - 1)
    part.head.evaluated.clear()
    assert ranked(part.head.decode(text[7:]).logits[0]) == expected
    assert part.head.n_past == len(text) - 7
    assert part.head.evaluated == [(len(text) - 7, 7)]
    part.head.truncate(3)
    part.head.decode(text[10:])
    assert part.head.n_past == len(text) - 7


@pytest.mark.parametrize("method", ["auto", "draft_model"])
def test_a_replay_drafts_with_it_as_with_a_head(method):
    short = Trace("t", "c", PROMPT, TEXT[:60], TRACE.top[:60], TRACE.drafts)
    stats = Replay(Profile(TARGET, overhead=0.0), method, head=QUALITY).run(short)
    assert {name.partition("+")[0] for name in stats.drafts_by_source} == {"eagle3"}


def test_a_block_is_guessed_at_once():
    pair = Pair(HeadQuality((0.8,), step=0.15, block=4))
    pending = pair.at(10)
    before = pair.clock.now
    pair.head.decode(pending)
    assert pair.clock.now - before == pytest.approx(0.15 * 0.020)
    rows = [pair.head.decode([token]).logits[0].copy() for token in TEXT[10:14]]
    pair.head.truncate(12)
    pair.head.grow([TEXT[10], 31000], (-1, -1))
    assert pair.clock.now - before == pytest.approx(0.15 * 0.020)
    sure = [ranked(row)[0][1] for row in rows]
    assert min(sure[:3]) > 0.31
    assert ranked(rows[3])[0] == (0, pytest.approx(0.3, abs=1e-3))  # after the block


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("method", ["auto", "draft_model"])
def test_replays_with_a_head_write_the_recorded_text(head, method):
    short = Trace("t", "c", PROMPT, TEXT[:150], TRACE.top[:150], TRACE.drafts)
    profile = Profile(TARGET, overhead=0.0)
    stats = Replay(profile, method, head=HEADS[head]).run(short)
    assert stats.num_emitted_tokens == 150
    assert stats.num_accepted_draft_tokens > 75
    (with_head,), (plain,) = (
        rates([short], [profile], setting, HEADS[head]) for setting in (method, "plain")
    )
    assert with_head["c"] > 1.5 * plain["c"]
