"""The program that makes an ONNX folder from a model (see program.py).

It needs torch, transformers and onnxruntime-genai. Its job is described in conversion.py.
"""

from __future__ import annotations

import runpy
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .program import tell

N_GREEDY = 48
PROMPT = "Explain in a few sentences how a bicycle stays upright while it is moving."
ALL_ROWS = 1 << 31
ROUNDING = 0.1  # a quantised matrix differs by less than this, relative to its norm


def main(job: dict[str, Any]) -> None:
    """Convert the model that the job names."""
    from transformers import AutoTokenizer

    out = Path(job["folder"])
    tell(step="loading the source")
    source = Path(job["source"])
    given, file = _located(source)
    model, tokenizer = load_model(source), AutoTokenizer.from_pretrained(given, **file)
    tell(step=f"writing {N_GREEDY} greedy tokens with the source")
    reference(model, tokenizer, out / "reference.npz")
    tied = tie(model) if job["precision"] in ("int4", "int8") else is_tied(model)
    tell(step="writing the source's weights as floats")
    folder = out / "source"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    del model
    tell(step=f"building the graph in {job['precision']}")
    build(folder, out, job, tied)
    tell(step="adding num_logits_to_keep")
    if not keep_wanted_rows(out / "model.onnx"):
        tell(warning="the graph's head was not recognised: it computes logits of every token")
    shutil.rmtree(out / "source", ignore_errors=True)
    shutil.rmtree(out / "cache", ignore_errors=True)


def load_model(source: Path) -> Any:
    """Return the model in float32.

    source: a folder in Hugging Face's layout, or a GGUF, which is dequantised.
    """
    import torch
    from transformers import AutoModelForCausalLM

    folder, file = _located(source)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **file)
    if file:  # the weights of a GGUF are floats now, and can be written as such
        del model.config.quantization_config
        model.hf_quantizer, model.is_quantized = None, False
    return model


def _located(source: Path) -> tuple[Path, dict[str, str]]:
    """Return the folder and the further arguments with which transformers reads a model."""
    return (source, {}) if source.is_dir() else (source.parent, {"gguf_file": source.name})


def is_tied(model: Any) -> bool:
    """Return True if the embedding and the output head share one matrix."""
    return bool(model.config.tie_word_embeddings)


def tie(model: Any) -> bool:
    """Make the embedding and the output head share one matrix if both are roundings of one matrix.

    Many GGUF files contain this matrix twice; the graph then contains it once. Returns True if the
    two share one matrix now.
    """
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if is_tied(model):
        return True
    if embedding.weight.shape != head.weight.shape:
        return False
    apart = (embedding.weight - head.weight).norm() / head.weight.norm()
    if float(apart) > ROUNDING:
        return False
    embedding.weight = head.weight  # a GGUF rounds the head more finely
    model.config.tie_word_embeddings = True
    return True


def reference(model: Any, tokenizer: Any, path: Path) -> None:
    """Write the source's greedy tokens after a prompt, and its logits for each of them."""
    import numpy as np
    import torch

    prompt = tokenizer(PROMPT, return_tensors="pt").input_ids
    with torch.inference_mode():
        ids, past, new = prompt, None, prompt
        for _ in range(N_GREEDY):
            output = model(new, past_key_values=past, use_cache=True)
            past, new = output.past_key_values, output.logits[:, -1:].argmax(-1)
            ids = torch.cat([ids, new], 1)
        logits = model(ids[:, :-1]).logits[0, prompt.shape[1] - 1 :]
    np.savez(path, prompt=prompt[0].numpy(), greedy=ids[0, prompt.shape[1] :].numpy(),
             logits=logits.float().numpy())  # fmt: skip


def build(folder: Path, out: Path, job: dict[str, Any], tied: bool) -> None:
    """Run onnxruntime-genai's builder on the weights in `folder`."""
    from onnxruntime_genai.models import builder

    precision, provider = job["precision"], job["provider"]
    options: dict[str, str] = {"shared_embeddings": "true"} if tied else {}
    if job["accuracy_level"] is not None:
        options["accuracy_level"] = str(job["accuracy_level"])
    options |= job["builder_options"]
    arguments = [
        "builder", "-i", str(folder), "-o", str(out), "-p", precision, "-e", provider,
        "-c", str(out / "cache"),
    ]  # fmt: skip
    if options:
        arguments += ["--extra_options", *(f"{key}={value}" for key, value in options.items())]
    before, sys.argv = sys.argv, arguments
    try:
        runpy.run_path(builder.__file__, run_name="__main__")
    finally:
        sys.argv = before
    for name in ("config.json", "generation_config.json"):
        if (folder / name).exists():
            shutil.copy(folder / name, out / name)


def keep_wanted_rows(path: Path) -> bool:
    """Give a graph the optional input num_logits_to_keep, which newer exports have.

    If the input is given, logits are computed only for that number of last tokens, otherwise for
    all tokens. Returns False if the graph's output head was not recognised.
    """
    import numpy as np
    import onnx
    from onnx import helper, numpy_helper

    model = onnx.load(path, load_external_data=False)
    graph = model.graph
    head = find_head(graph)
    if head is None:
        return False
    name = "num_logits_to_keep"
    constants = {
        name: np.array([ALL_ROWS]),
        f"{name}/end": np.array([np.iinfo(np.int64).max]),
        f"{name}/axis": np.array([1]),
    }
    graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in constants.items())
    graph.input.append(helper.make_tensor_value_info(name, onnx.TensorProto.INT64, [1]))
    start, kept = f"{name}/start", f"{name}/rows"
    nodes = [
        helper.make_node("Neg", [name], [start], name=f"/{name}/Neg"),
        helper.make_node(
            "Slice", [head.input[0], start, f"{name}/end", f"{name}/axis"], [kept],
            name=f"/{name}/Slice",
        ),
    ]  # fmt: skip
    place = list(graph.node).index(head)
    head.input[0] = kept
    for node in reversed(nodes):
        graph.node.insert(place, node)
    for output in graph.output:
        if output.name == "logits":
            output.type.tensor_type.shape.dim[1].dim_param = "num_logits"
    del graph.value_info[:]
    onnx.save(model, path)
    return True


def find_head(graph: Any, products: Sequence[str] = ("MatMul", "MatMulNBits")) -> Any:
    """Return the matrix product that computes the logits, or None if it is not recognised."""
    makers = {name: node for node in graph.node for name in node.output}
    node = makers.get("logits")
    while node and node.op_type in ("Cast", "Mul", "Add", "Div", "Tanh", "Where"):
        given = node.input[1:] if node.op_type == "Where" else node.input
        node = next((makers[name] for name in given if name in makers), None)
    return node if node and node.op_type in products else None
