"""Vision-language models in the layout of transformers.js, made of text models in the ONNX format:
the embedding becomes a graph of its own, and a vision encoder is added.
"""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from tests.helpers.colours import COLOURS

KINDS = ("llava", "idefics3")
SIDE, PATCH, HIDDEN = 56, 14, 512  # pixels of a tile and of a patch, and the width of the encoder
N_TOKENS = (SIDE // PATCH) ** 2  # of a tile
_SQUARES = 2  # along the longer side of a picture of idefics3
_AROUND = ("<fake_token_around_image>", "<global-img>", "<image>", *(
    f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)
))  # fmt: skip
_RIDGE, _N_SHADES = 1e-4, 6


def split(source: Path, folder: Path, kind: str) -> Path:
    """Write the two text graphs of a model in `source`, its companions, and the settings of a
    family into a folder; return the path of the decoder.
    """
    model = onnx.load(source / "model.onnx")
    gather = next(n for n in model.graph.node if "input_ids" in n.input and "Gather" in n.op_type)
    (folder / "onnx").mkdir(parents=True)
    onnx.save(_embedding(model, gather), folder / "onnx/embed_tokens.onnx")
    decoder = folder / "onnx/decoder_model_merged.onnx"
    onnx.save(_decoder(model, gather, _width(folder)), decoder)
    for path in source.iterdir():
        if path.suffix in (".json", ".jinja") and path.name != "edgespec.json":
            (folder / path.name).write_bytes(path.read_bytes())
    _name_tokens(folder / "tokenizer.json")
    config = json.loads((folder / "config.json").read_text())
    vision = {"model_type": "siglip_vision_model", "patch_size": PATCH, "image_size": SIDE}
    told = {"model_type": kind, "vision_config": vision, "text_config": config, "scale_factor": 1}
    told["vision_feature_select_strategy"] = "full"
    (folder / "config.json").write_text(json.dumps(told))
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor(kind)))
    return decoder


def preprocessor(kind: str) -> dict:
    """Return the contents of preprocessor_config.json."""
    told = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "rescale_factor": 1 / 255}
    if kind == "llava":
        size = {"height": SIDE, "width": SIDE}
        return told | {"image_processor_type": "SiglipImageProcessor", "resample": 3, "size": size}
    return told | {
        "image_processor_type": "Idefics3ImageProcessor",
        "resample": 1,
        "size": {"longest_edge": _SQUARES * SIDE},
        "max_image_size": {"longest_edge": SIDE},
    }


def _width(folder: Path) -> int:
    session = onnxruntime.InferenceSession(folder / "onnx/embed_tokens.onnx")
    return session.run(None, {"input_ids": np.zeros((1, 1), np.int64)})[0].shape[-1]


def _embedding(model: onnx.ModelProto, gather: onnx.NodeProto) -> onnx.ModelProto:
    """Return the part of a graph that makes embeddings of ids."""
    made, needed, nodes = _copy(model), set(gather.input), [gather]
    for node in reversed(model.graph.node):
        if needed & set(node.output):
            nodes.insert(0, node)
            needed |= set(node.input)
    _set(made.graph.node, [helper.make_node("Identity", gather.output, ["inputs_embeds"])])
    _set(made.graph.node, [*nodes, *made.graph.node])
    ids = [each for each in model.graph.input if each.name == "input_ids"]
    _set(made.graph.input, ids)
    kind = _type(model)
    shape = ["batch_size", "sequence_length", None]
    _set(made.graph.output, [helper.make_tensor_value_info("inputs_embeds", kind, shape)])
    _drop_unused(made)
    return made


def _decoder(model: onnx.ModelProto, gather: onnx.NodeProto, width: int) -> onnx.ModelProto:
    """Return the part of a graph that reads embeddings."""
    made = _copy(model)
    for node in made.graph.node:
        for i, name in enumerate(node.input):
            if name in ("input_ids", gather.output[0]):
                node.input[i] = "inputs_embeds"
    _set(made.graph.node, [n for n in made.graph.node if n.output[0] != gather.output[0]])
    shape = ["batch_size", "sequence_length", width]
    embeds = helper.make_tensor_value_info("inputs_embeds", _type(model), shape)
    others = [each for each in made.graph.input if each.name != "input_ids"]
    _set(made.graph.input, [embeds, *others])
    _drop_unused(made)
    return made


def _type(model: onnx.ModelProto) -> int:
    """Return the type of a graph's numbers: that of its logits."""
    return model.graph.output[0].type.tensor_type.elem_type


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.value_info[:]
    return made


def _set(field, values) -> None:
    values = list(values)
    del field[:]
    field.extend(values)


def _drop_unused(model: onnx.ModelProto) -> None:
    used = {name for node in model.graph.node for name in node.input}
    optional = {"attention_bias", "position_ids"} & used
    _set(
        model.graph.initializer,
        [each for each in model.graph.initializer if each.name in used | optional],
    )


def _name_tokens(path: Path) -> None:
    """Give tokens that no text has, or new ones, the names that a family puts around pictures."""
    told = json.loads(path.read_text())
    vocabulary, added = told["model"]["vocab"], told["added_tokens"]
    spare = [each for each in added if each["content"].strip("<>").isidentifier()]
    for name in _AROUND:
        if spare:
            token = spare.pop()
            vocabulary.pop(token["content"])
        else:
            token = added[0] | {"id": max(vocabulary.values()) + 1}
            added.append(token)
        token["content"] = name
        vocabulary[name] = token["id"]
    path.write_text(json.dumps(told))


def write_encoder(path: Path, kind: str, last: np.ndarray, seed: int = 0) -> Path:
    """Write a vision encoder: a random layer over patches, and a last matrix [HIDDEN, width]. It
    returns 0 if the mask of the pixels is not all true.
    """
    first, places = _layer(seed)
    across = SIDE // PATCH
    weights = {
        "cut": np.array([-1, 3, across, PATCH, across, PATCH]),
        "flat": np.array([-1, N_TOKENS, 3 * PATCH**2]),
        "first": first,
        "places": places,
        "last": last.astype(np.float32),
    }
    node, lead = helper.make_node, ["batch"] if kind == "llava" else ["batch", "images"]
    nodes = [
        node("Reshape", ["pixel_values", "cut"], ["a"]),
        node("Transpose", ["a"], ["b"], perm=[0, 2, 4, 1, 3, 5]),
        node("Reshape", ["b", "flat"], ["c"]),
        node("MatMul", ["c", "first"], ["d"]),
        node("Add", ["d", "places"], ["e"]),
        node("Relu", ["e"], ["f"]),
    ]
    value = helper.make_tensor_value_info
    inputs = [value("pixel_values", TensorProto.FLOAT, [*lead, 3, SIDE, SIDE])]
    if kind == "idefics3":
        inputs.append(value("pixel_attention_mask", TensorProto.BOOL, [*lead, SIDE, SIDE]))
        nodes += [
            node("Cast", ["pixel_attention_mask"], ["m"], to=TensorProto.FLOAT),
            node("ReduceMin", ["m"], ["whole"], keepdims=0),
            node("MatMul", ["f", "last"], ["g"]),
            node("Mul", ["g", "whole"], ["image_features"]),
        ]
    else:
        nodes.append(node("MatMul", ["f", "last"], ["image_features"]))
    features = ["tiles", N_TOKENS, last.shape[1]]
    graph = helper.make_graph(
        nodes,
        "vision",
        inputs,
        [value("image_features", TensorProto.FLOAT, features)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return path


def slow_down(path: Path, side: int, n: int) -> Path:
    """Make an encoder compute `n` products of square matrices more, of `side` rows each. Its
    embeddings become other ones.
    """
    model, node = onnx.load(path), helper.make_node
    output = model.graph.output[0].name
    for each in model.graph.node:
        each.output[:] = ["features" if name == output else name for name in each.output]
    eye = numpy_helper.from_array(np.eye(side, dtype=np.float32), "square")
    model.graph.initializer.append(eye)
    model.graph.node.append(node("ReduceMax", ["features"], ["most"], keepdims=0))
    model.graph.node.append(node("Mul", ["square", "most"], ["x0"]))
    for i in range(n):
        model.graph.node.append(node("MatMul", [f"x{i}", "square"], [f"x{i + 1}"]))
    model.graph.node.append(node("ReduceMin", [f"x{n}"], ["least"], keepdims=0))
    model.graph.node.append(node("Add", ["features", "least"], [output]))
    onnx.save(model, path)
    return path


def _layer(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    size = 3 * PATCH**2
    first = (rng.standard_normal((size, HIDDEN)) * 3 / size**0.5 / 5).astype(np.float32)
    return first, rng.standard_normal((N_TOKENS, HIDDEN)).astype(np.float32)


def add_random_encoder(decoder: Path, kind: str, seed: int = 0) -> Path:
    """Write a random encoder next to a decoder."""
    rng = np.random.default_rng(seed)
    last = rng.standard_normal((HIDDEN, _width(decoder.parents[1]))) / HIDDEN**0.5
    return write_encoder(decoder.with_name("vision_encoder.onnx"), kind, last, seed)


def add_fitted_encoder(decoder: Path, kind: str) -> Path:
    """Write an encoder next to a decoder of SmolLM2 that makes the embeddings of a caption of a
    picture of one colour.
    """
    from tokenizers import Tokenizer

    folder, rng = decoder.parents[1], np.random.default_rng(1)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    embedding = onnxruntime.InferenceSession(folder / "onnx/embed_tokens.onnx")
    first, places = _layer(0)
    given, wanted = [], []
    for name, colour in COLOURS.items():
        caption = f" a picture. The whole picture is {name}, a plain {name} square"
        ids = (tokenizer.encode(caption, add_special_tokens=False).ids * N_TOKENS)[:N_TOKENS]
        embeddings = embedding.run(None, {"input_ids": np.array([ids])})[0][0]
        for i in range(_N_SHADES):
            shade = np.clip(np.array(colour) + (rng.integers(-8, 9, 3) if i else 0), 0, 255)
            patch = np.repeat((shade / 127.5 - 1).astype(np.float32), PATCH**2)
            given.append(np.maximum(patch @ first + places, 0))
            wanted.append(embeddings)
    x, y = np.concatenate(given), np.concatenate(wanted)
    last = np.linalg.solve(x.T @ x + _RIDGE * len(x) * np.eye(HIDDEN), x.T @ y)
    return write_encoder(decoder.with_name("vision_encoder.onnx"), kind, last)


def flat(colour: tuple[int, int, int]) -> np.ndarray:
    """Return a picture of one colour."""
    return np.full((SIDE, SIDE, 3), colour, np.uint8)
