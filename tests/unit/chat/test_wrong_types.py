"""Wrong types at every public entry: told in our words, as ConfigError."""

import asyncio
import contextlib
import os
import subprocess
import sys

import pytest

import edgespec
from edgespec import ConfigError, EngineConfig, SamplingParams, SpeculativeConfig
from edgespec.setting import settings_of
from tests.unit.decoding.test_engine import engine

NO_PROMPTS = [
    None, 5, 2.5, True, b"ab", bytearray(b"ab"), {"a": 1}, ["a", "b"], [1, 2, "x"], [None],
    [1.5], [[1]], object(),
]  # fmt: skip


@pytest.fixture(scope="module")
def made():
    with engine() as found:
        yield found


@pytest.mark.parametrize("prompt", NO_PROMPTS, ids=lambda prompt: type(prompt).__name__)
def test_what_is_no_prompt(made, prompt):
    def later(prompt):
        return asyncio.run(made.agenerate(prompt))

    for call in (made.generate, made.stream, made.encode, later):
        with pytest.raises(ConfigError, match=r"prompt.*(text or|are ints)"):
            call(prompt)


@pytest.mark.parametrize("text", [None, 5, b"ab", {}, [1, 2], [None]], ids=repr)
def test_what_is_no_message(made, text):
    chat = made.chat()
    for call in (chat.send, chat.stream):
        with pytest.raises(
            ConfigError,
            match=r"a (message is text or a list .*|picture is the path .*), got",
        ):
            call(text)
    assert chat.messages == []
    if text is not None:
        with pytest.raises(ConfigError, match="a system prompt is text or None"):
            made.chat(text)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        *((name, [None, "1", [], {}]) for name in (
            "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty",
            "frequency_penalty",
        )),
        *((name, ["7", [], True]) for name in (
            "seed", "max_tokens", "time_limit_s", "logprobs", "num_draft_tokens",
        )),
        ("logit_bias", [[], 5, "x", [(1, 2)], None]),
        ("stop", [5, {}, {"a": 1}, b"x", [b"x"], [None], None, True]),
        ("stop_token_ids", ["a", None, {}, {1: 2}, [1.5], True, [False]]),
        ("ignore_eos", ["no", None, 5]),
        ("disable_spec_decode", ["no", None, 1]),
    ],
)  # fmt: skip
def test_sampling_of_wrong_types(made, name, values):
    for value in values:
        with pytest.raises(ConfigError, match=name):
            SamplingParams(**{name: value})
        with pytest.raises(ConfigError, match=name):
            made.generate("abc", **{name: value})


WRONG = [None, 5, b"x", [], {}, "x"]


@pytest.mark.parametrize("value", [None, 5, b"x", []], ids=repr)
def test_what_is_no_model(value):
    for call in (edgespec.load, edgespec.inspect, edgespec.fitting_drafts):
        with pytest.raises(ConfigError, match="a model is a name or a file"):
            call(value)
    with pytest.raises(ConfigError, match="no address of a verifier"):
        edgespec.connect(value)
    if value is not None:
        with pytest.raises(ConfigError, match="a draft model is a name or a file"):
            edgespec.load("absent.gguf", value)


@pytest.mark.parametrize(
    ("name", "fine"),
    [
        ("n_ctx", 5), ("n_threads", 5), ("n_gpu_layers", 5), ("type_k", "f16"),
        ("flash_attn", "on"), ("provider", "x"), ("use_extra_bufts", True), ("requantize", True),
        ("batch_invariant", None), ("on_busy", "wait"),
    ],
)  # fmt: skip
def test_settings_of_wrong_types(name, fine):
    for value in WRONG:
        if type(value) is not type(fine):
            with pytest.raises(ConfigError, match=name):
                EngineConfig(**{name: value})


def test_options_that_are_not_named():
    for value in (5, "x", [], b"x"):
        with pytest.raises(ConfigError, match="made of named options"):
            engine(config=value)


def test_numbers_of_other_libraries_are_ints(made):
    numpy = pytest.importorskip("numpy")
    ids = numpy.array([0, 1, 2], numpy.int32)
    assert made.generate(ids, max_tokens=2).text == made.generate("abc", max_tokens=2).text


FORK = """
import os
from tests.unit.decoding.test_engine import engine
made = engine()
made.generate("abc", max_tokens=2)
if child := os.fork():
    os.waitpid(child, 0)
    print(made.generate("abc", max_tokens=2).text)
else:
    for call in (made.generate, made.encode, lambda p: next(made.stream(p))):
        try:
            call("abc")
        except Exception as error:
            print(type(error).__name__, "Load the model after the fork" in str(error), flush=True)
    made.close()
    os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_is_told():
    done = subprocess.run(
        [sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert done.stdout.splitlines() == ["EdgeSpecError True"] * 3 + ["de"], done.stderr


EXTREMES = [10**400, -(10**400), 2**63, 2**31, -1, 0, 1e308, -1e308, float("inf"), float("nan")]


@pytest.mark.parametrize("kind", [SamplingParams, EngineConfig, SpeculativeConfig])
def test_every_number_at_its_extremes_is_taken_or_refused(kind):
    numbers = [name for name, each in settings_of(kind).items() if each.kind in (int, float)]
    assert numbers
    for name in numbers:
        for value in EXTREMES:
            with contextlib.suppress(ConfigError):
                kind(**{name: value})


@pytest.mark.parametrize("name", ["n_threads", "n_threads_batch"])
def test_more_threads_than_an_engine_takes_are_refused(name):
    """llama.cpp would end the process."""
    with pytest.raises(ConfigError, match=f"{name} must be between 0 and 512"):
        EngineConfig(**{name: 99999999})
