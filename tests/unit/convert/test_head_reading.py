"""Reading checkpoints of trained drafts: every naming, every number format, everything wrong."""

import functools
import itertools
import json
import struct
import zipfile

import numpy as np
import pytest

from edgespec import ConfigError, ModelError, ModelNotFound, TruncatedModel, UnknownArchitecture
from edgespec.backends.heads import KINDS, TargetSizes
from edgespec.convert.heads.checkpoint import check_target
from edgespec.convert.heads.pickles import read_pickle
from edgespec.convert.heads.reading import read_head
from edgespec.convert.heads.tensors import read_safetensors
from tests.helpers import head_files as files
from tests.helpers import moa_files, mtp_files
from tests.helpers.head_makers import MAKERS

FORMATS = ("safetensors", "bin", "pt")
NAMINGS = [
    *((files.eagle3, naming) for naming in files.EAGLE3),
    *((MAKERS[kind], f"{kind} {form}") for kind, form in itertools.product(MAKERS, FORMATS)
      if kind != "mtp"),  # its norms are rounded differently: see test_mtp_reading.py
    (functools.partial(files.dflash, speculators=True, bias=True), "dflash"),
]  # fmt: skip


def name_of(value):
    return value if isinstance(value, str) else getattr(value, "__name__", "partial")


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize(("make", "naming"), NAMINGS, ids=name_of)
def test_every_naming_becomes_the_same_description(tmp_path, make, naming, dtype):
    made = make()
    head = read_head(files.write(tmp_path, made, naming, dtype))
    assert head.kind == made.kind
    assert (head.hidden_size, head.vocab_size) == (files.HIDDEN, files.VOCAB)
    expected = files.rounded(made, dtype)
    assert head.weights.keys() == expected.keys()
    for name, array in expected.items():
        found = head.array(name)
        assert found.dtype == np.float32
        assert np.array_equal(found, array), name
    if made.d2t is not None:
        assert head.d2t.dtype == np.int64
        assert head.d2t.tolist() == made.d2t.tolist()
        assert head.head_vocab_size == len(made.d2t)
    sizes = TargetSizes(files.HIDDEN, files.VOCAB, files.TARGET_LAYERS, moa_files.KEPT)
    check_target(head, sizes)


def test_sizes_and_flags_of_eagle3(tmp_path):
    made = files.eagle3(
        fc="fc_norm", norm_before_residual=True, norm_output=True, embedding=True, bias=True
    )
    for naming in files.EAGLE3:
        head = read_head(files.write(tmp_path / naming, made, naming))
        layer = head.decoder
        assert (layer.width, layer.n_heads, layer.n_kv_heads, layer.head_dim) == (32, 4, 2, 16)
        assert (layer.feed_forward, layer.eps, head.n_ctx_train) == (48, 1e-5, 256)
        assert layer.rotation == pytest.approx([1e4 ** (-i / 8) for i in range(8)])
        assert head.norm_before_residual
        assert head.norm_output
        assert {"fc_norm.2.weight", "q.bias", "embed_tokens.weight"} <= head.weights.keys()
    plain = read_head(files.write(tmp_path, files.eagle3(fc="norm_before_fc"), "specforge"))
    assert not plain.norm_before_residual
    assert not plain.norm_output
    assert "input_norm.weight" in plain.weights


@pytest.mark.parametrize("t2d", [True, False])
@pytest.mark.parametrize("absolute", [True, False])
def test_d2t_in_both_forms(tmp_path, absolute, t2d):
    folder = files.write(tmp_path, files.eagle3(), "specforge", absolute=absolute, t2d=t2d)
    assert read_head(folder).d2t.tolist() == files.D2T.tolist()


@pytest.mark.parametrize("ids", [range(8), range(10, 20), [3, 1, 2]], ids=str)
def test_d2t_of_neighbours_and_out_of_order(tmp_path, ids):
    made = files.eagle3()
    made.d2t = np.array(ids)
    made.weights["lm_head.weight"] = made.weights["lm_head.weight"][: len(ids)]
    for absolute in (True, False):
        folder = files.write(tmp_path / str(absolute), made, "specforge", absolute=absolute)
        assert read_head(folder).d2t.tolist() == list(ids)


def test_the_whole_vocabulary_without_d2t(tmp_path):
    head = read_head(files.write(tmp_path, files.eagle3(part=False), "specforge"))
    assert head.d2t is None
    assert head.head_vocab_size == files.VOCAB


@pytest.mark.parametrize(("naming", "config", "expected"), [
    ("safeailab", {}, [(2, 4, 5)]),
    ("speculators", {"eagle_aux_hidden_state_layer_ids": [1, 4, 6]}, [(1, 4, 6)]),
    ("specforge", {"eagle_aux_hidden_state_layer_ids": [1, 4, 6]}, [(1, 4, 6), (2, 5, 7)]),
    ("specforge", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 3, 7]}},
     [(0, 3, 7), (1, 4, 8)]),
    ("specforge", {"eagle_aux_hidden_state_layer_ids": [1, 3, 8]}, [(1, 3, 8)]),
    ("specforge", {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}, [(2, 4, 5)]),
    ("speculators", {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}, [(2, 4, 5)]),
    ("specforge", {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 4, 5]}}, [(2, 4, 5)]),
])  # fmt: skip
def test_layer_ids_become_inputs_and_both_readings_stay(tmp_path, naming, config, expected):
    head = read_head(files.write(tmp_path, files.eagle3(**config), naming))
    assert head.layers(files.TARGET_LAYERS) == expected


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind].reads == "final"])
def test_other_kinds_read_the_last_state(tmp_path, kind):
    head = read_head(files.write(tmp_path, MAKERS[kind]()))
    assert head.layers(files.TARGET_LAYERS) == [(-1,)]


def test_medusa_heads_are_counted(tmp_path):
    head = read_head(files.write(tmp_path, files.medusa(n_blocks=2), "medusa pt"))
    assert (head.n_heads, head.n_blocks) == (files.N_GUESSES, 2)


@pytest.mark.parametrize("tied", [True, False])
def test_mlp_speculators_that_share_weights(tmp_path, tied):
    made = files.mlp_speculator(tied=tied, scale_input=True)
    head = read_head(files.write(tmp_path, made, "mlp_speculator"))
    assert (head.n_heads, head.inner_size) == (files.N_GUESSES, files.INNER)
    assert (head.tied, head.scale_input) == (tied, True)
    for name, array in made.weights.items():
        assert np.array_equal(head.array(name), array), name


def test_rotations(tmp_path):
    def inverse(**config):
        head = read_head(files.write(tmp_path, files.eagle3(**config), "specforge"))
        return head.decoder.rotation

    plain = inverse()
    assert inverse(rope_theta=1e6) == pytest.approx([1e6 ** (-i / 8) for i in range(8)])
    nested = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    assert inverse(**nested) == inverse(rope_theta=1e6)
    linear = {"rope_scaling": {"type": "linear", "factor": 4}}
    assert inverse(**linear) == pytest.approx([each / 4 for each in plain])
    stretched = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                 "high_freq_factor": 4.0, "original_max_position_embeddings": 1024}  # fmt: skip
    found = inverse(rope_scaling=stretched)
    assert found[:4] == pytest.approx(plain[:4])  # waves of 6 to 199 tokens stay
    smooth = (1024 / (2 * np.pi / 0.01) - 1) / 3
    assert found[4] == pytest.approx((1 - smooth) * 0.01 / 8 + smooth * 0.01)
    assert found[5:] == pytest.approx([each / 8 for each in plain[5:]])
    with pytest.raises(ModelError, match="'yarn' rotations are not known"):
        inverse(rope_scaling={"rope_type": "yarn"})
    with pytest.raises(ModelError, match="a part of each head"):
        inverse(partial_rotary_factor=0.5)
    with pytest.raises(ModelError, match="'linear' is incomplete"):
        inverse(rope_scaling={"type": "linear"})


@pytest.mark.parametrize(("make", "naming"), [
    (files.eagle3, "specforge"), (mtp_files.qwen, "mtp"),
])  # fmt: skip
def test_shards_are_read_together(tmp_path, make, naming):
    made = make()
    folder = files.write(tmp_path, made, naming)
    tensors = read_safetensors(folder / "model.safetensors")
    names, places = sorted(tensors), {}
    for i in range(2):
        part = {name: tensors[name].array() for name in names[i::2]}
        (folder / f"part-{i}.safetensors").write_bytes(files.safetensors(part))
        places |= dict.fromkeys(part, f"part-{i}.safetensors")
    (folder / "model.safetensors").unlink()
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    assert read_head(folder).weights.keys() == made.weights.keys()
    (folder / "part-1.safetensors").unlink()
    with pytest.raises(ModelNotFound, match="part-1"):
        read_head(folder)
    index.write_text("{}")
    with pytest.raises(ModelError, match="the field 'weight_map' is missing"):
        read_head(folder)


def test_the_licence_is_the_cards(tmp_path):
    folder = files.write(tmp_path, files.eagle(), "eagle bin")
    assert read_head(folder).license == "unknown"
    (folder / "README.md").write_text("---\nlicense: llama3.1\ntags: []\n---\n# A head\n")
    assert read_head(folder / "pytorch_model.bin").license == "llama3.1"


# --- what is wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize(("make", "naming", "gone", "said"), [
    (files.eagle3, "safeailab", "fc.weight", ".*fc.weight"),
    (files.eagle3, "speculators", "down.weight", ".*layers.0.mlp.down_proj.weight"),
    (files.eagle3, "specforge", "lm_head.weight", ".*lm_head.weight"),
    (files.eagle, "eagle bin", "post_attention_layernorm.weight", ".*post_attention_layernorm.*"),
    (files.medusa, "medusa pt", "1.lm_head.weight", ".*1.1.weight"),
    (files.medusa, "medusa pt", "2.0.linear.bias", ".*2.0.linear.bias"),
    (files.mlp_speculator, "mlp_speculator", "head.2.weight", ".*head.2.weight"),
    (files.dflash, "dflash", "hidden_norm.weight", "hidden_norm.weight"),
    (files.dflash, "dflash", "1.k_norm.weight", "layers.1.self_attn.k_norm.weight"),
    (files.dflash, "dflash", "1.down.weight", "layers.1.mlp.down_proj.weight"),
    (files.dflash, "dflash", "0.input_layernorm.weight", "layers.0.input_layernorm.weight"),
    (mtp_files.qwen, "mtp", "mtp.fc.weight", "mtp.fc.weight"),
    (mtp_files.qwen, "mtp", "mtp.layers.0.self_attn.q_norm.weight", ".*self_attn.q_norm.weight"),
    (mtp_files.qwen, "mtp", "mtp.norm.weight", "mtp.norm.weight"),
    (mtp_files.mimo, "mtp", "model.mtp_layers.0.input_proj.weight", ".*0.input_proj.weight"),
    (mtp_files.mimo, "mtp", "model.mtp_layers.0.mlp.up_proj.weight", ".*mlp.up_proj.weight"),
    (moa_files.moa, "moa", "layer_self_attention.self_attn.k_proj.weight",
     "layer_self_attention.self_attn.k_proj.weight"),
    (moa_files.moa, "moa", "cross_attention.mlp.down_proj.weight",
     "cross_attention.mlp.down_proj.weight"),
    (moa_files.moa, "moa", "self_attention.input_layernorm.weight",
     "self_attention.input_layernorm.weight"),
])  # fmt: skip
def test_a_missing_tensor_is_named(tmp_path, make, naming, gone, said):
    made = make()
    del made.tensors[gone]
    with pytest.raises(ModelError, match=f"the tensor {said} is missing"):
        read_head(files.write(tmp_path, made, naming))


@pytest.mark.parametrize(("make", "naming", "name", "expected"), [
    (files.eagle3, "specforge", "fc.weight", "[32, 96]"),
    (files.eagle3, "specforge", "q.weight", "[64, 64]"),
    (files.eagle, "eagle bin", "fc.bias", "[32]"),
    (files.medusa, "medusa pt", "0.0.linear.bias", "[32]"),
    (files.mlp_speculator, "mlp_speculator", "proj.1.weight", "[24, 24]"),
    (files.dflash, "dflash", "fc.weight", "[32, 96]"),
    (files.dflash, "dflash", "0.q_norm.weight", "[16]"),
    (files.dflash, "dflash", "1.k.weight", "[32, 32]"),
    (mtp_files.qwen, "mtp", "mtp.layers.0.self_attn.q_proj.weight", "[256, 32]"),
    (mtp_files.qwen, "mtp", "model.language_model.embed_tokens.weight", "[259, 32]"),
    (mtp_files.mimo, "mtp", "model.mtp_layers.0.input_proj.weight", "[32, 64]"),
    (mtp_files.mimo, "mtp", "lm_head.weight", "[259, 32]"),
    (moa_files.moa, "moa", "Ekv2E.weight", "[32, 64]"),
    (moa_files.moa, "moa", "self_attention.self_attn.v_proj.weight", "[16, 32]"),
    (moa_files.moa, "moa", "cross_attention.post_attention_layernorm.weight", "[32]"),
])  # fmt: skip
def test_a_wrong_shape_is_told(tmp_path, make, naming, name, expected):
    made = make()
    made.tensors[name] = np.zeros((5, 7), np.float32)
    with pytest.raises(ModelError) as raised:
        read_head(files.write(tmp_path, made, naming))
    assert f"has the shape [5, 7], expected {expected}" in str(raised.value)


@pytest.mark.parametrize("naming", ["safeailab", "specforge"])
def test_a_cut_file_is_incomplete_wherever_it_is_cut(tmp_path, naming):
    folder = files.write(tmp_path, files.eagle3(), naming)
    path = next(folder.glob("*model.*"))
    content = path.read_bytes()
    for n in {0, 4, 8, 30, len(content) // 2, len(content) - 1}:
        path.write_bytes(content[:n])
        with pytest.raises(TruncatedModel, match="incomplete"):
            read_head(folder)


def test_headers_of_safetensors_that_lie(tmp_path):
    path = tmp_path / "x.safetensors"

    def read(header, body=bytes(16)):
        head = header if isinstance(header, bytes) else json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(head)) + head + body)
        return read_safetensors(path)

    good = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
    assert read({"a": good})["a"].array().shape == (2, 2)
    for wrong in ({"shape": [2, 3]}, {"data_offsets": [16, 0]}, {"data_offsets": [0, 12]}):
        with pytest.raises(ModelError, match="is damaged: a of shape"):
            read({"a": good | wrong})
    for wrong in ({"data_offsets": [-16, 0]}, {"shape": [-2, -2]}, {"shape": [4.0]},
                  {"shape": [1 << 40] * 4}, {"shape": [1 << 60, 0]}, {"shape": [True, 4]},
                  {"data_offsets": [0.0, 16.0]}, {"shape": [1] * 9}):  # fmt: skip
        with pytest.raises(ModelError, match="is damaged"):
            read({"a": good | wrong})
    for others in ([0, 16], [8, 24], [32, 48]):
        with pytest.raises(ModelError, match="a tensor begins at byte"):
            read({"a": good, "b": good | {"data_offsets": others}}, bytes(48))
    with pytest.raises(ModelError, match="begins at byte 16, and the one before it ends at 0"):
        read(b'{"__metadata__": {"a": "b"}}')
    with pytest.raises(TruncatedModel, match="ends at byte"):
        read({"a": good | {"data_offsets": [8, 24]}})
    with pytest.raises(ModelError, match="the number format F8_E4M3"):
        read({"a": good | {"dtype": "F8_E4M3"}})
    for wrong in (b"[1]", b"{'a'", b'{"a": 3}', b'{"a": {"dtype": "F32"}}', b"\xff\xfe"):
        with pytest.raises(ModelError, match="its header is wrong"):
            read(wrong)
    path.write_bytes(struct.pack("<Q", 1 << 62) + b"{}")
    with pytest.raises(TruncatedModel, match="a header of"):
        read_safetensors(path)


@pytest.mark.parametrize(("module", "name"), [
    ("os", "system"), ("builtins", "eval"), ("torch", "load"), ("posix", "system"),
    ("torch.storage", "_load_from_bytes"), ("collections", "namedtuple"),
])  # fmt: skip
def test_pickles_with_anything_but_tensors_are_refused_and_run_nothing(tmp_path, module, name):
    mark = tmp_path / "ran"
    command = f"touch {mark}"
    called = files.named(module, name) + b"(X" + struct.pack("<I", len(command))
    called += command.encode() + b"tR"
    path = files.zipped(tmp_path / "a.bin", b"\x80\x02" + called + b".", [])
    with pytest.raises(ModelError, match=rf"a pickle with {module}\.{name} in it"):
        read_pickle(path)
    assert not mark.exists()


def test_names_in_protocol_four_are_checked_as_well(tmp_path):
    code = b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02ls\x85R."
    with pytest.raises(ModelError, match=r"a pickle with os\.system in it"):
        read_pickle(files.zipped(tmp_path / "a.bin", code, []))


def test_tensors_outside_their_storage_are_refused(tmp_path):
    def read(n_bytes=24, **view):
        tensor = files.tensor_pickle("FloatStorage", 0, **({"shape": [2, 3], "n": 6} | view))
        content = b"\x80\x02}(X\x01\x00\x00\x00a" + tensor + b"u."
        return read_pickle(files.zipped(tmp_path / "a.bin", content, [bytes(n_bytes)]))["a"]

    assert read().array().tolist() == [[0, 0, 0], [0, 0, 0]]
    assert read(shape=[3, 2], strides=[1, 3]).array().shape == (3, 2)
    for wrong in ({"offset": 1}, {"shape": [3, 3]}, {"strides": [4, 1]}):
        with pytest.raises(TruncatedModel, match="lies outside its 6 numbers"):
            read(**wrong)
    with pytest.raises(TruncatedModel, match="has 20 bytes of 24"):
        read(n_bytes=20)
    for wrong in ({"offset": -1}, {"strides": [-3, 1]}, {"shape": [-2, -3], "strides": [3, 1]}):
        with pytest.raises(ModelError, match="cannot be read"):
            read(**wrong)


def test_transposed_views_are_read_as_they_lie(tmp_path):
    numbers = np.arange(6, dtype=np.float32)
    tensor = files.tensor_pickle("FloatStorage", 0, [3, 2], strides=[1, 3], n=6)
    content = b"\x80\x02}(X\x01\x00\x00\x00a" + tensor + b"u."
    path = files.zipped(tmp_path / "a.bin", content, [numbers.tobytes()])
    assert np.array_equal(read_pickle(path)["a"].array(), numbers.reshape(2, 3).T)


@pytest.mark.parametrize(
    "content", [b"", b"\x80\x02", b"garbage", b"\x80\x02}.extra", b"\x80\x02K\x01."]
)
def test_damaged_pickles(tmp_path, content):
    path = files.zipped(tmp_path / "a.bin", content, [])
    if content.startswith(b"\x80\x02}"):
        assert read_pickle(path) == {}
        return
    with pytest.raises(ModelError, match=r"cannot be read|a dict of tensors is expected"):
        read_pickle(path)


def test_other_zips(tmp_path):
    path = tmp_path / "a.bin"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme", "")
    with pytest.raises(ModelError, match=r"without one data\.pkl"):
        read_pickle(path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("x/data.pkl", b"\x80\x02}.")
        archive.writestr("x/byteorder", "big")
    with pytest.raises(ModelError, match="big-endian"):
        read_pickle(path)
    with pytest.raises(ModelNotFound, match="cannot read"):
        read_pickle(tmp_path / "absent.bin")


def test_other_models_are_refused(tmp_path):
    folder = files.write(tmp_path, files.eagle3(), "specforge")
    config = json.loads((folder / "config.json").read_text())

    def refused(said, error=UnknownArchitecture, **changed):
        (folder / "config.json").write_text(json.dumps(config | changed))
        with pytest.raises(error, match=said):
            read_head(folder)

    refused("its activation is gelu", hidden_act="gelu")
    refused("has 2 layers", num_hidden_layers=2)
    refused("says no hidden_size", ModelError, num_attention_heads=0)
    refused("hidden_size must be a whole number", ModelError, hidden_size="many")
    (folder / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="holds no JSON object"):
        read_head(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match="is no JSON"):
        read_head(folder)
    made = files.eagle3()
    made.weights["midlayer.self_attn.q_norm.weight"] = np.ones(8, np.float32)
    with pytest.raises(UnknownArchitecture, match=r"not known here: midlayer\.self_attn\.q_norm"):
        read_head(files.write(folder, made, "specforge"))
    (folder / "model.safetensors").write_bytes(files.safetensors({"wte": np.ones(3, np.float32)}))
    with pytest.raises(UnknownArchitecture, match=r"is no head as .*holds wte"):
        read_head(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(
        ModelNotFound, match=r"holds no checkpoint.*there is a config\.json, but no"
    ):
        read_head(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelNotFound, match="there is neither"):
        read_head(folder)
    with pytest.raises(ModelNotFound, match=r"there is no file or folder .*absent"):
        read_head(tmp_path / "absent")


def test_a_head_narrower_than_its_target_needs_matrices_of_its_own(tmp_path):
    made = files.eagle3(target_hidden_size=64, part=False)
    made.weights["fc.weight"] = np.zeros((32, 192), np.float32)
    output = made.weights.pop("lm_head.weight")
    for name in ("embed_tokens", "lm_head"):
        with pytest.raises(ModelError, match=f"{name}.weight is .* does not fit states of 32"):
            read_head(files.write(tmp_path, made, "specforge"))
        made.weights[f"{name}.weight"] = output
    head = read_head(files.write(tmp_path, made, "specforge"))
    assert (head.hidden_size, head.decoder.width, head.lacking) == (64, 32, [])


def test_d2t_that_makes_no_sense(tmp_path):
    made = files.eagle3()
    made.d2t = np.full(len(files.D2T), 250)
    with pytest.raises(ModelError, match="gives no different ids below 259"):
        read_head(files.write(tmp_path, made, "specforge", absolute=True))


def test_heads_for_another_target_say_how_they_differ(tmp_path):
    head = read_head(files.write(tmp_path, files.eagle3(), "specforge"))
    for sizes, said in (
        ((48, 259, 8), "32 numbers a state, and this one has 48"),
        ((32, 80, 8), "259 tokens of vocabulary, and this one has 80"),
    ):
        with pytest.raises(ConfigError, match=said):
            check_target(head, TargetSizes(*sizes))
    made = files.eagle3(target_num_hidden_layers=8)
    with pytest.raises(ConfigError, match="with 8 layers, and this one has 6"):
        check_target(read_head(files.write(tmp_path, made, "specforge")), TargetSizes(32, 259, 6))
    made = files.eagle3(eagle_aux_hidden_state_layer_ids=[2, 6, 9])
    with pytest.raises(ConfigError, match="at least 9 layers, and this one has 8"):
        check_target(read_head(files.write(tmp_path, made, "specforge")), TargetSizes(32, 259, 8))
