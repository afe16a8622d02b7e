"""The program that writes a checkpoint of a small model as a GGUF (see convert/program.py).

It needs transformers and gguf. Its job has "folder", that of the checkpoint; "vocabulary", a GGUF
with the same tokens; "types", a GGUF whose types of numbers are taken, "" for Q8_0; "license",
"name" and "out".
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ..convert.program import replacing, tell
from ..convert.worker import load_model
from . import gguf_file as file

ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""llama.cpp's name of each architecture, by transformers' name."""


def main(job: dict[str, Any]) -> None:
    """Write the model that the job describes."""
    import gguf

    tell(step="writing the student as a GGUF")
    model = load_model(Path(job["folder"]))
    config, vocabulary = model.config, gguf.GGUFReader(job["vocabulary"])
    check(config, vocabulary, Path(job["folder"]))
    architecture, n_layers = ARCHITECTURES[config.model_type], config.num_hidden_layers
    read = gguf.GGUFReader(job["types"]).tensors if job["types"] else ()
    types = {each.name: file.writable(each.tensor_type.name) for each in read}
    name_of = file.tensor_names(architecture, n_layers)
    with replacing(Path(job["out"])) as partial:
        writer = gguf.GGUFWriter(partial, architecture)
        file.add_metadata(writer, job | sizes_of(config), n_layers)
        file.copy_fields(writer, vocabulary, lambda key: key.startswith("tokenizer."))
        for given, weight in model.named_parameters():  # without the output matrix if it is tied
            name = name_of(given)
            array = file.as_in_file(given, weight.detach().numpy(), architecture, config)
            file.add_weight(writer, name, array, types.get(name, "Q8_0"))
        file.finish(writer)


def check(config: Any, vocabulary: Any, folder: Path) -> None:
    """Exit unless the model can be written, with the tokens of this GGUF."""
    rope = getattr(config, "rope_parameters", None) or {}
    if config.model_type not in ARCHITECTURES or rope.get("rope_type", "default") != "default":
        what = f"{config.model_type} with rotations of the kind {rope.get('rope_type')}"
        sys.exit(
            f"{folder} is a {what}, which is not written as a GGUF here; convert it with "
            "llama.cpp's convert_hf_to_gguf.py, and give the GGUF"
        )
    tokens = vocabulary.fields["tokenizer.ggml.tokens"].contents()
    if config.vocab_size != len(tokens):
        sys.exit(f"{folder} has {config.vocab_size} tokens, the target {len(tokens)}")
    path = folder / "tokenizer.json"
    try:
        known = json.loads(path.read_text("utf-8"))["model"]["vocab"] if path.exists() else {}
        other = isinstance(known, dict) and any(tokens[i] != text for text, i in known.items())
    except (ValueError, RecursionError, KeyError, TypeError, IndexError) as error:
        sys.exit(f"{path} is damaged, or of an unknown form: {error!r}; fetch it again")
    if other:
        sys.exit(f"{folder} has other tokens than the target: a draft model needs the same")


def sizes_of(config: Any) -> dict[str, Any]:
    """Return the sizes of a model, as for `add_metadata`."""
    d, n_heads = config.hidden_size, config.num_attention_heads
    rope = getattr(config, "rope_parameters", None) or {}
    return {
        "n_ctx": config.max_position_embeddings,
        "sizes": {
            "hidden_size": d, "feed_forward": config.intermediate_size, "n_heads": n_heads,
            "n_kv_heads": config.num_key_value_heads, "eps": config.rms_norm_eps,
            "head_dim": getattr(config, "head_dim", None) or d // n_heads,
            "rope_base": rope.get("rope_theta") or getattr(config, "rope_theta", 10000.0),
        },
    }  # fmt: skip
