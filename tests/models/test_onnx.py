"""ONNX graphs of real models, where $EDGESPEC_TEST_MODELS has them, and GPUs where there are any.

`edgespec convert smollm2-135m $EDGESPEC_TEST_MODELS/smollm2-135m-onnx-int4` makes the first; with
`--precision fp32` it makes smollm2-135m-onnx-fp32.
"""

import random
import shutil

import numpy as np
import pytest

import edgespec
from edgespec import EngineConfig, EngineMissing
from edgespec.chat.templates import render
from edgespec.convert.tree_inputs import add_tree_inputs
from tests.helpers.selection import share
from tests.helpers.trees import differences
from tests.helpers.weights import FOLDER

onnx_models = pytest.importorskip("tests.helpers.onnx_models")
backend = pytest.importorskip("edgespec.backends.onnx", exc_type=EngineMissing)
cuda = pytest.mark.skipif(
    not backend.supports_gpu_offload(), reason="this onnxruntime has no CUDA provider"
)
N = share(64, 2)
TEXT = "Repeat this list twice: apples, pears, plums, cherries, quinces."


@pytest.fixture(scope="module")
def graph():
    path = FOLDER / "smollm2-135m-onnx-int4/model.onnx"
    if not path.exists():
        pytest.skip("smollm2-135m-onnx-int4 is not in $EDGESPEC_TEST_MODELS")
    return path


def prompt_of(engine, text=TEXT):
    tokenizer = engine.tokenizer
    message = [{"role": "user", "content": text}]
    rendered = render(tokenizer.chat_template, message, tokenizer.special())
    return tokenizer.encode(rendered, add_special=False)


@pytest.fixture(scope="module", params=["fp32", "int4"])
def tree_graph(request, tmp_path_factory):
    """Return a graph that evaluates trees, and how far rows of nodes may be from their paths'."""
    source = FOLDER / f"smollm2-135m-onnx-{request.param}"
    if not source.exists():
        pytest.skip(f"{source.name} is not in $EDGESPEC_TEST_MODELS")
    folder = tmp_path_factory.mktemp("trees") / source.name
    shutil.copytree(source, folder)
    add_tree_inputs(folder / "model.onnx", folder / "model.onnx")  # if it has none yet
    yield folder / "model.onnx", 1e-4 if request.param == "fp32" else 4.0
    shutil.rmtree(folder)


def text_of(target, draft, **config):
    config = {"num_speculative_tokens": 4, "draft_p_min": 0.0} | config
    options = {"n_ctx": 1024, "batch_invariant": True, "speculative_config": config}
    with edgespec.load(target, draft, **options) as engine:
        prompt = prompt_of(engine)
        plain = engine.generate(prompt, max_tokens=N, disable_spec_decode=True)
        drafted = engine.generate(prompt, max_tokens=N)
        assert plain.stats.num_draft_tokens == 0
        return plain, drafted


def test_int4_says_what_it_says_without_drafts(graph):
    plain, drafted = text_of(graph, None, method="suffix")
    assert drafted.stats.num_accepted_draft_tokens > 5
    assert drafted.token_ids == plain.token_ids


def test_int4_with_more_drafts_than_a_chain_says_what_it_says_without(graph):
    """A tree's rows round in another way: `batch_invariant` allows chains only."""
    plain, drafted = text_of(graph, None, method="recycling", num_speculative_tokens=9)
    assert drafted.stats.drafted_per_position[0] == drafted.stats.num_draft_steps > 0
    assert drafted.token_ids == plain.token_ids


def test_a_gguf_drafts_for_a_graph(graph, small_draft):
    plain, drafted = text_of(graph, small_draft, method="draft_model")
    assert drafted.stats.num_draft_tokens > drafted.stats.num_accepted_draft_tokens > 5
    assert drafted.token_ids == plain.token_ids


def test_a_graph_drafts_for_a_gguf(graph, smollm2):
    plain, drafted = text_of(smollm2, graph, method="draft_model")
    assert drafted.stats.num_draft_tokens > drafted.stats.num_accepted_draft_tokens > 5
    same = [a == b for a, b in zip(plain.token_ids, drafted.token_ids, strict=False)]
    assert all(same[:16])  # later ones may be near ties for llama.cpp's kernels


def test_chunks_of_a_prompt_give_the_row_of_the_whole(graph):
    rows = []
    tokens = [100 + 7 * i % 5000 for i in range(150)]
    for n_batch in (32, 128):
        model = backend.OnnxModel(graph, EngineConfig(n_ctx=512, n_batch=n_batch))
        rows.append(model.decode(tokens).logits[0].copy())
        model.close()
    assert np.allclose(*rows, atol=1e-3)


def test_rows_of_nodes_are_those_of_their_paths(tree_graph):
    path, rounding = tree_graph
    model = backend.OnnxModel(path, EngineConfig(n_ctx=1024))
    model.decode([100 + 7 * i % 5000 for i in range(share(300, 3))], 0)
    found = sorted(differences(model, random.Random(0), 30000, rounds=2))
    assert found[len(found) // 2] < rounding / 4  # the median
    assert found[-1] < rounding
    model.close()


def test_text_with_a_tree_at_every_step_parts_from_plain_text_at_near_ties(tree_graph):
    config = {"method": "recycling", "num_speculative_tokens": 9, "draft_p_min": 0.0}
    path, rounding = tree_graph
    n_siblings = 0
    with edgespec.load(path, None, n_ctx=1024, speculative_config=config) as engine:
        for text in (TEXT, "Count from one to twenty."):
            prompt = prompt_of(engine, text)
            options = {"max_tokens": N, "logprobs": 2}
            plain = engine.generate(prompt, disable_spec_decode=True, **options)
            done = engine.generate(prompt, **options)
            n_siblings += done.stats.drafted_per_position[0] - done.stats.num_draft_steps
            both = list(zip(plain.token_ids, done.token_ids, strict=False))
            parts = [i for i, (one, other) in enumerate(both) if one != other]
            for i in parts[:1]:
                (best, first_logprob), (second, second_logprob) = plain.logprobs[i].top
                assert {best, second} == set(both[i])
                assert first_logprob - second_logprob < rounding / 4
    assert n_siblings > 10


@cuda
@pytest.mark.parametrize("options", [{}, {"keep": True}, {"shared": False}])
def test_cuda_gives_the_rows_of_the_cpu(tmp_path, options):
    path = onnx_models.save(tmp_path, **options)
    rows = []
    for provider in ("cpu", "cuda"):
        model = backend.OnnxModel(path, EngineConfig(n_ctx=64, provider=provider))
        assert model.provider == provider.upper()
        model.decode([3, 5, 7, 9])
        model.truncate(2)
        rows.append(model.decode([11, 13, 15], n_logits=3).logits.copy())
        model.close()
    assert np.allclose(*rows, atol=2e-2)


@cuda
def test_cuda_writes_what_the_cpu_writes(graph):
    texts = []
    for provider in ("cpu", "cuda"):
        with edgespec.load(graph, None, n_ctx=512, provider=provider) as engine:
            assert engine.describe()["model"]["placement"]["provider"] == provider.upper()
            texts.append(engine.generate(prompt_of(engine), max_tokens=16).token_ids)
    assert texts[0][:8] == texts[1][:8]
