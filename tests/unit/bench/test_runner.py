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
