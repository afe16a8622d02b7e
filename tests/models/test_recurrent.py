"""A recurrent model, made here with random weights: its memory cannot drop a tail, so every
rejection goes back to a checkpoint.
"""

import numpy as np
import pytest

import edgespec
from edgespec import CannotTruncate, EngineConfig
from tests.helpers import libllama

libllama.require()
gguf = pytest.importorskip("gguf")

pytestmark = pytest.mark.llama_cpp

N_EMBD, N_LAYER, N_INNER, N_STATE, N_CONV, N_DT = 64, 2, 128, 16, 4, 4


def write_mamba(path, noise=0.0):
    """Write a two-layer Mamba over bytes; `noise` perturbs its output layer."""
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "mamba")
    writer.add_context_length(4096)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_block_count(N_LAYER)
    writer.add_ssm_conv_kernel(N_CONV)
    writer.add_ssm_inner_size(N_INNER)
    writer.add_ssm_state_size(N_STATE)
    writer.add_ssm_time_step_rank(N_DT)
    writer.add_layer_norm_rms_eps(1e-5)
    tokens = [b"<unk>", b"<s>", b"</s>", *(b"<0x%02X>" % i for i in range(256))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types([2, 3, 3] + [6] * 256)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)

    def add(name, *shape, scale=0.3):
        writer.add_tensor(name, (rng.normal(size=shape) * scale).astype(np.float32))

    add("token_embd.weight", len(tokens), N_EMBD, scale=1.0)
    writer.add_tensor("output_norm.weight", np.ones(N_EMBD, np.float32))
    for i in range(N_LAYER):
        block = f"blk.{i}."
        writer.add_tensor(block + "attn_norm.weight", np.ones(N_EMBD, np.float32))
        add(block + "ssm_in.weight", 2 * N_INNER, N_EMBD)
        add(block + "ssm_conv1d.weight", N_INNER, N_CONV)
        add(block + "ssm_conv1d.bias", N_INNER)
        add(block + "ssm_x.weight", N_DT + 2 * N_STATE, N_INNER)
        add(block + "ssm_dt.weight", N_INNER, N_DT)
        add(block + "ssm_dt.bias", N_INNER)
        writer.add_tensor(
            block + "ssm_a", -np.exp(rng.normal(size=(N_INNER, N_STATE)) * 0.3).astype(np.float32)
        )
        add(block + "ssm_d", N_INNER)
        add(block + "ssm_out.weight", N_EMBD, N_INNER)
    output = rng.normal(size=(len(tokens), N_EMBD))
    output += noise * rng.normal(size=output.shape)
    writer.add_tensor("output.weight", output.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def mambas(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mamba")
    write_mamba(folder / "target.gguf")
    write_mamba(folder / "draft.gguf", noise=0.15)
    return folder / "target.gguf", folder / "draft.gguf"


def test_the_memory_cannot_be_truncated(mambas):
    from edgespec.backends.llama_cpp import LlamaCppModel

    model = LlamaCppModel(mambas[0], EngineConfig(n_ctx=256))
    assert not model.capabilities.truncate
    model.decode([5, 6, 7, 8])
    with pytest.raises(CannotTruncate):
        model.truncate(2)
    assert model.n_past == 4
    model.close()


def test_drafting_with_checkpoints_equals_plain(mambas):
    target, draft = mambas
    with edgespec.load(target, draft, n_ctx=512, speculative_config={"draft_p_min": 0.0}) as engine:
        total = np.zeros(5, int)
        for text in ("hello world", "abc", "The quick brown fox"):
            options = {"max_tokens": 80, "ignore_eos": True}
            plain = engine.generate(text, **options, disable_spec_decode=True)
            drafted = engine.generate(text, **options)
            assert drafted.token_ids == plain.token_ids
            histogram = drafted.stats.acceptance_histogram
            total[: len(histogram)] += histogram
        assert total[0] > 0
        assert total[1:4].sum() > 0
        assert total[4] > 0


def test_a_cancelled_request_leaves_a_usable_engine(mambas):
    target, draft = mambas
    with edgespec.load(target, draft, n_ctx=512) as engine:
        expected = engine.generate("hello world", max_tokens=20, ignore_eos=True).token_ids
        for n in range(12):
            events = engine.stream("something else", max_tokens=60, ignore_eos=True)
            for i, _ in enumerate(events):
                if i == n:
                    break
            events.close()
            again = engine.generate("hello world", max_tokens=20, ignore_eos=True)
            assert again.token_ids == expected
