"""A worker process with one other runtime, controlled by JSON lines. `peers.py` starts it.

It imports nothing from edgespec, because it may run in a different Python environment. The first
line on stdin says what to load. Each further line is a request: {"prompt": [ids], "n": tokens}; for
llama-server it may also have "schema", a JSON schema. Replies go to stdout: {"ready": version}
once, then {"n": tokens, "drafted": …, "accepted": …} for each request.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

Runtime = tuple[Callable[..., dict[str, int]], str]


def llama_server(config: dict[str, Any]) -> Runtime:
    """Load llama.cpp's own server, from the Python package `xllamacpp`."""
    import xllamacpp as lib

    params = lib.CommonParams()
    params.model.path = config["model"]
    params.n_ctx, params.n_parallel, params.verbosity = config["n_ctx"], 1, -1
    for threads in (params.cpuparams, params.cpuparams_batch):
        threads.n_threads = config["threads"]
    kind = config["settings"].get("type", "none")
    types = lib.common_speculative_type
    params.speculative.types = [getattr(types, f"COMMON_SPECULATIVE_TYPE_{kind.upper()}")]
    if kind.startswith("draft"):
        draft = params.speculative.draft
        draft.mparams.path = config["draft"]
        for threads in (draft.cpuparams, draft.cpuparams_batch):
            threads.n_threads = config["threads"]
    section = params.speculative.draft if kind.startswith("draft") else None
    section = section or getattr(params.speculative, kind, None)
    for name, value in config["settings"].items():
        if name != "type":
            setattr(section, name, value)
    server = lib.Server(params)

    def answer(prompt: list[int], n: int, schema: dict[str, Any] | None = None) -> dict[str, int]:
        form = {"json_schema": schema} if schema else {}
        reply = server.handle_completions(
            {"prompt": prompt, "n_predict": n, "temperature": 0, "cache_prompt": True} | form
        )
        timings = reply["timings"]
        return {
            "n": reply["usage"]["completion_tokens"],
            "drafted": timings.get("draft_n", 0),
            "accepted": timings.get("draft_n_accepted", 0),
        }

    from importlib.metadata import version

    return answer, f"llama.cpp server (xllamacpp {version('xllamacpp')})"


def llama_cpp_python(config: dict[str, Any]) -> Runtime:
    """Load llama-cpp-python with its own prompt lookup."""
    import llama_cpp
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    size = config["settings"].get("num_pred_tokens")
    model = llama_cpp.Llama(
        config["model"], n_ctx=config["n_ctx"], n_threads=config["threads"],
        n_threads_batch=config["threads"], verbose=False, logits_all=bool(size),
        draft_model=LlamaPromptLookupDecoding(num_pred_tokens=size) if size else None,
    )  # fmt: skip

    vocab = llama_cpp.llama_model_get_vocab(model.model)

    def answer(prompt: list[int], n: int) -> dict[str, int]:
        count = 0
        for token in model.generate(prompt, temp=0.0, top_k=1):
            count += 1
            if count == n or llama_cpp.llama_vocab_is_eog(vocab, token):
                break
        return {"n": count, "drafted": 0, "accepted": 0}

    return answer, f"llama-cpp-python {llama_cpp.__version__}"


def onnxruntime_genai(config: dict[str, Any]) -> Runtime:
    """Load a model that onnxruntime-genai's builder made, with the runtime's own lookup or a draft
    model.
    """
    import onnxruntime_genai as og

    folder, settings = os.path.dirname(config["model"]), dict(config["settings"])
    threads = {"session_options": {"intra_op_num_threads": config["threads"]}}
    model: dict[str, Any] = {"decoder": threads}
    if settings.pop("draft", False):
        beside = os.path.dirname(config["draft"])
        with open(os.path.join(beside, "genai_config.json"), encoding="utf-8") as file:
            decoder = json.load(file)["model"]["decoder"]
        decoder["filename"] = os.path.relpath(config["draft"], folder)
        model["draft"] = decoder | threads
    settings = {k: v for k, v in settings.items() if v is not None}
    overlay = {"model": model} | ({"speculative": settings} if settings else {})
    known = og.Config(folder)
    known.overlay(json.dumps(overlay))
    loaded = og.Model(known)
    before: dict[str, Any] = {"prompt": None}

    def answer(prompt: list[int], n: int) -> dict[str, int]:
        if before["prompt"] == prompt:
            generator = before["generator"]
            generator.rewind_to(len(prompt) - 1)
            generator.append_tokens(prompt[-1:])
        else:
            before.clear()  # frees the cache before the next one is made
            params = og.GeneratorParams(loaded)
            params.set_search_options(do_sample=False, max_length=config["n_ctx"])
            generator = og.Generator(loaded, params)
            generator.append_tokens(prompt)
            before.update(prompt=prompt, generator=generator)
        drafted, accepted = counts(generator)
        count = 0
        while count < n and not generator.is_done():
            generator.generate_next_token()
            count += len(generator.get_next_tokens())
        now = counts(generator)
        return {"n": count, "drafted": now[0] - drafted, "accepted": now[1] - accepted}

    def counts(generator: Any) -> tuple[int, int]:
        if not settings:
            return 0, 0
        stats = generator.get_speculative_stats()
        return stats["draft_tokens_proposed"], stats["draft_tokens_accepted"]

    from importlib.metadata import version

    return answer, f"onnxruntime-genai {version('onnxruntime-genai')}"


def main() -> None:
    """Load the model and runtime that the first line names; answer requests until stdin ends."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a runtime prints goes to stderr
    config = json.loads(sys.stdin.readline())
    runtime = {
        "llama-server": llama_server,
        "llama-cpp-python": llama_cpp_python,
        "onnxruntime-genai": onnxruntime_genai,
    }
    answer, version = runtime[config["runtime"]](config)
    print(json.dumps({"ready": version}), file=replies, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(**json.loads(line))), file=replies, flush=True)


if __name__ == "__main__":
    main()
