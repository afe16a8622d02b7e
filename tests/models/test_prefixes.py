"""Prompts that are read once, on real weights: the texts are those without a store."""

import functools

import numpy as np
import pytest

import edgespec
from edgespec import EngineConfig
from edgespec.cache.prefixes import PrefixStore
from edgespec.cache.token_cache import TokenCache
from tests.helpers import libllama
from tests.helpers.weights import FOLDER

gguf = pytest.importorskip("gguf")

CONTEXT = 1024
WHOLE, PARTS, PREFIX = "whole", "parts", "prefix"


def text(seed, n, most):
    return np.random.default_rng(seed).integers(3, most, n).tolist()


def smollm2(request, folder):
    libllama.require()
    return request.getfixturevalue("smollm2")


def onnx(request, folder):
    pytest.importorskip("onnxruntime")
    path = FOLDER / "smollm2-135m-onnx-int4/model.onnx"
    if not path.is_file():
        pytest.skip("smollm2-135m-onnx-int4 is not in $EDGESPEC_TEST_MODELS")
    return path


def mamba(request, folder):
    libllama.require()
    from tests.models.test_recurrent import write_mamba

    write_mamba(folder / "mamba.gguf")
    return folder / "mamba.gguf"


def windowed(request, folder):
    libllama.require()
    from tests.helpers import tiny_gemma4

    return tiny_gemma4.write_target(folder)


EVERY = pytest.mark.long("more settings of models that are tested anyway")
MODELS = {
    "smollm2": (smollm2, {}, PARTS),
    "smollm2, equal rows": (smollm2, {"batch_invariant": True}, PARTS),
    "smollm2, one sequence": (smollm2, {"flash_attn": "off"}, PREFIX),
    "smollm2, quantised cache": (smollm2, {"type_k": "q8_0", "type_v": "q8_0"}, PARTS),
    "onnx": (onnx, {}, PARTS),
    "onnx, equal rows": (onnx, {"batch_invariant": True}, PARTS),
    "recurrent": (mamba, {}, WHOLE),
    "windowed": (windowed, {}, PARTS),
    "windowed, one sequence": (windowed, {"flash_attn": "off"}, WHOLE),
}


QUICK = "smollm2", "recurrent", "windowed"


@pytest.fixture(
    params=[
        pytest.param(name, marks=[pytest.mark.llama_cpp, *([] if name in QUICK else [EVERY])])
        for name in MODELS
    ]
)
def load(request, tmp_path, monkeypatch):
    """Return a function that loads an engine, and the kind of states that its model saves."""
    monkeypatch.setenv("EDGESPEC_PREFIXES", str(tmp_path / "prefixes"))
    find, options, kind = MODELS[request.param]
    path = find(request, tmp_path)
    plain = {"n_ctx": CONTEXT, "n_threads": 1, "speculative_config": {"method": "none"}}
    return functools.partial(edgespec.load, path, None, **plain, **options), kind


def answers(engine, prompts):
    """Return the tokens of greedy answers, and how many tokens of each prompt were not read."""
    found = [
        engine.generate(prompt, max_tokens=12, temperature=0, ignore_eos=True) for prompt in prompts
    ]
    return [each.token_ids for each in found], [each.stats.num_cached_tokens for each in found]


def test_texts_are_the_same_however_a_prompt_came_into_the_cache(load):
    load, kind = load
    has_equal_rows = "batch_invariant" in load.keywords  # other engines may decide near-ties anew
    most = 200 if kind == WHOLE or "gemma" in str(load.args[0]) else 20000
    system = text(0, 100, most)
    prompts = [[*system, *text(i, 40, most)] for i in (1, 2, 3, 1)]
    prompts.append([*prompts[0][:135], *text(4, 60, most)])
    expected = []
    if has_equal_rows:
        with load(prompt_cache="off") as engine:
            for prompt in prompts:  # each of them from an empty cache
                engine.generate(text(9, 8, most), max_tokens=1)
                found, (n_cached,) = answers(engine, [prompt])
                expected += found
                assert n_cached == 0
    with load(prompt_cache="disk") as engine:
        assert engine.target.capabilities.saves == kind
        truncates = engine.target.capabilities.truncate
        found, cached = answers(engine, prompts)
        assert found == expected or not has_equal_rows
        if kind == WHOLE:  # at saved points only
            assert cached == [0, 100 if truncates else 0, 100, 139, 100]
        else:
            assert cached == [0, 100, 100, 139, 135]
    with load(prompt_cache="disk") as engine:
        found, cached = answers(engine, prompts)
        assert found == expected or not has_equal_rows
        if kind != WHOLE or not truncates:  # else texts were cut in the cache, and saved uncut
            assert min(cached) >= (100 if kind == WHOLE else 135)
        if kind != WHOLE:  # its last prompt was in the cache when the engine was closed
            assert cached[-1] == len(prompts[-1]) - 1


def test_what_a_loaded_state_continues_is_bit_for_bit_the_same(load):
    load, kind = load
    with load(prompt_cache="off") as engine:
        model, most = engine.target, min(engine.target.vocab_size, 20000)
        cache = TokenCache(model, prefixes=PrefixStore(1 << 30).of(None))
        one, other = text(1, 130, most), text(2, 90, most)
        cache.begin("")
        cache.align([*one, 3])
        cache.decode(one, 0)
        expected = cache.decode([5, 6], 2).logits.copy()
        for prompt in (other, [*one, 5, 6, 7]):
            cache.begin("")
            n = cache.align(prompt)
            if n < len(one):
                cache.decode(prompt[n:], 0)
        assert n == len(one) + 2
        cache.truncate(len(one))
        got = cache.decode([5, 6], 2).logits
        assert np.array_equal(got, expected) or kind == WHOLE
        assert np.allclose(got, expected, atol=1e-4)


@pytest.mark.llama_cpp
def test_a_cache_of_another_type_is_not_used(request, tmp_path, monkeypatch):
    monkeypatch.setenv("EDGESPEC_PREFIXES", str(tmp_path / "prefixes"))
    prompt = text(1, 100, 20000)
    cached = []
    for options in ({}, {"type_k": "q8_0"}, {"n_ctx": CONTEXT // 2}, {"n_threads": 2}):
        given = {"n_ctx": CONTEXT, "prompt_cache": "disk"} | options
        with edgespec.load(smollm2(request, tmp_path), None, **given) as engine:
            cached += answers(engine, [prompt])[1]
    assert cached == [0, 0, 99, 99]


def test_off_keeps_nothing(request, tmp_path, monkeypatch):
    monkeypatch.setenv("EDGESPEC_PREFIXES", str(tmp_path / "prefixes"))
    with edgespec.load(smollm2(request, tmp_path), None, n_ctx=256, prompt_cache="off") as engine:
        assert engine.describe()["prompt_cache"] == "off"
    assert not (tmp_path / "prefixes").exists()
    assert EngineConfig().prompt_cache == "memory"


@pytest.mark.llama_cpp
def test_a_draft_model_reads_its_prompts_once(request, tmp_path, monkeypatch):
    monkeypatch.setenv("EDGESPEC_PREFIXES", str(tmp_path / "prefixes"))
    path = smollm2(request, tmp_path)
    config = {"method": "draft_model", "num_speculative_tokens": 3, "draft_p_min": 0.0}
    prompts = [[*text(i % 2, 70, 20000), *text(i, 20, 20000)] for i in range(4)]
    found = {}
    for place in ("off", "memory"):
        with edgespec.load(
            path, path, n_ctx=CONTEXT, prompt_cache=place, speculative_config=config,
            draft_options={"requantize": False},
        ) as engine:  # fmt: skip
            (drafter,) = engine.sessions[0]._drafting.drafters
            found[place] = []
            for prompt in prompts:
                evaluated = drafter._cache.decode
                n_read = []

                def counted(tokens, *args, evaluated=evaluated, n_read=n_read):
                    n_read.append(len(tokens))
                    return evaluated(tokens, *args)

                monkeypatch.setattr(drafter._cache, "decode", counted)
                engine.generate(prompt, max_tokens=8, temperature=0, ignore_eos=True)
                monkeypatch.undo()
                monkeypatch.setenv("EDGESPEC_PREFIXES", str(tmp_path / "prefixes"))
                found[place].append(sum(n_read))
    assert min(found["off"]) >= 90
    assert max(found["memory"][2:]) < 60
