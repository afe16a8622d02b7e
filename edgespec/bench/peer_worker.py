"""One other runtime in a process of its own, driven by JSON lines; run by `peers.py`.

Imports nothing of edgespec: it may run in another environment. The first line on stdin says
what to load, each further one is a request: {"prompt": [ids], "n": tokens}. Answers go to
stdout: {"ready": version} once, then {"n": tokens, "drafted": …, "accepted": …}.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

Runtime = tuple[Callable[[list[int], int], dict[str, int]], str]


def llama_server(config: dict[str, Any]) -> Runtime:
    """llama.cpp's own server, from the wheel `xllamacpp`."""
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
    part = params.speculative.draft if kind.startswith("draft") else None
    part = part or getattr(params.speculative, kind, None)
    for name, value in config["settings"].items():
        if name != "type":
            setattr(part, name, value)
    server = lib.Server(params)

    def answer(prompt: list[int], n: int) -> dict[str, int]:
        reply = server.handle_completions(
            {"prompt": prompt, "n_predict": n, "temperature": 0, "cache_prompt": True}
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
    """llama-cpp-python's own prompt lookup."""
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


def main() -> None:
    """Until stdin ends."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a runtime prints goes to stderr
    config = json.loads(sys.stdin.readline())
    runtime = {"llama-server": llama_server, "llama-cpp-python": llama_cpp_python}
    answer, version = runtime[config["runtime"]](config)
    print(json.dumps({"ready": version}), file=replies, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(answer(request["prompt"], request["n"])), file=replies, flush=True)


if __name__ == "__main__":
    main()
