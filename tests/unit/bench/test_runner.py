"""What a benchmark asks of an engine."""

import edgespec
from edgespec.bench import runner
from edgespec.bench.workloads import Question
from edgespec.sampling.defaults import SamplingDefaults


def test_a_benchmark_takes_nothing_of_the_models_own_sampling():
    vocab = [bytes([i]) for i in range(256)] + ["<end>"]
    own = SamplingDefaults({"temperature": 0.5, "min_p": 0.2, "repetition_penalty": 1.3})
    engine = edgespec.assemble(
        edgespec.ToyModel(lambda tokens: [1 / 257] * 257, vocab_size=257),
        edgespec.ToyTokenizer(vocab, eog=[256]),
        speculative_config={"method": "none"},
        sampling=own,
    )
    options = runner.RunOptions(temperatures=(0.0, 0.8), max_tokens=2)
    with engine:
        answers = list(runner.run(engine, [Question("a", "qa", ("hello",))], options))
    assert {(answer.temperature, answer.stats.sampling) for answer in answers} == {
        (0.0, "greedy"), (0.8, "temperature 0.8, top_k 40, top_p 0.95"),
    }  # fmt: skip


def test_the_time_left_follows_from_what_this_run_has_measured():
    """A long document is read first, and takes most of the time: what follows is short."""
    now = [100.0]
    pace = runner.Pace(lambda: now[0])
    asked = [Question("a", "documents", ("x" * 9000,)), Question("b", "qa", ("y" * 100,)),
             Question("c", "qa", ("y" * 100, "y" * 100))]  # fmt: skip
    assert [pace.share(asked, n, 0.0) for n in range(3)] == [0, 0.25, 0.5]  # as turns
    pace.add(asked[0].turns[0], 90.0, 4.0)
    now[0] = 194.0
    left = 94 / pace.share(asked, 1, 0.0) - 94
    assert 14 < left < 16  # three turns of 1 s to read and 4 s to answer
    now[0] = 199.0
    assert 99 / pace.share(asked, 1, 1.0) - 99 < left - 4
    assert pace.share(asked, 2, 1.0) == 1
