"""Servers on loopback that answer as vLLM, llama-server, SGLang and a plain OpenAI server do, over
a toy model. Their defaults are bad on purpose: what a client does not send changes the text.
"""

import contextlib
import json
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

from edgespec import SamplingParams, ToyTokenizer
from edgespec.sampling.randomness import SeededRandomness
from edgespec.sampling.sampler import Sampler, logprob

VOCAB = 256
EOG = ord(".")


class Bytes(ToyTokenizer):
    """Every byte a token."""

    def __init__(self):
        super().__init__([bytes([i]) for i in range(VOCAB)], eog=[EOG])

    def encode(self, text, *, add_special=True, parse_special=True):
        return list(text.encode())


TOKENIZER = Bytes()
ALIVE = [ord("a"), ord("b"), EOG]  # what the toy model ever says
DEFAULTS = {  # of a model's generation config
    "temperature": 0.3, "top_p": 0.4, "top_k": 1, "min_p": 0.6, "repetition_penalty": 1.9,
    "presence_penalty": 1.5, "frequency_penalty": 1.5,
}  # fmt: skip


def toy_probs(tokens):
    """Next-token probabilities from the last three tokens."""
    p = np.zeros(VOCAB)
    code = sum((t + 1) * 300**i for i, t in enumerate(tokens[-3:]))
    p[ALIVE] = np.random.default_rng([7, code]).dirichlet([0.8, 0.8, 0.3])
    return p


class FakeEngine:
    """kind: "vllm", "llamacpp", "sglang", "generic". seen: (path, body) of every request.

    before: called with (path, body) may return (status, headers, bytes) instead of an answer.
    after: called with (path, answer) may return another one. tied: all rows of a request are
    drawn with one noise, as with one seed. lacks: paths that are not there.
    """

    def __init__(self, kind, *, api_key=None, n_ctx=200, lacks=(), tokenizer=TOKENIZER):
        self.kind, self.api_key, self.n_ctx, self.lacks = kind, api_key, n_ctx, set(lacks)
        self.tokenizer = tokenizer
        self.randomness = SeededRandomness(5)
        self.tied = False
        self.before = lambda path, body: None
        self.after = lambda path, answer: answer
        self.entries = [{"id": "toy", "owned_by": {"generic": "someone"}.get(kind, kind)}]
        if kind == "llamacpp":
            self.entries[0]["meta"] = {"n_ctx": n_ctx, "n_vocab": VOCAB}
        elif kind != "generic":
            self.entries[0] |= {"max_model_len": n_ctx, "parent": None}
        self.seen = []
        self.arrived, self.hung_up = (threading.Event() for _ in range(2))

    @contextlib.contextmanager
    def serving(self):
        """Its address, while it runs."""
        engine, connections = self, []

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self):
                super().setup()
                connections.append(self.connection)

            def do_GET(self):
                self.serve(None)

            def do_POST(self):
                self.serve(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def serve(self, body):
                status, headers, data = engine.reply(
                    self.path, body, self.headers.get("Authorization"), self.connection
                )
                head = {"Content-Type": "application/json", "Content-Length": len(data)} | headers
                lines = [f"HTTP/1.1 {status} X", *(f"{k}: {v}" for k, v in head.items())]
                with contextlib.suppress(OSError):  # the client has gone
                    self.wfile.write("\r\n".join([*lines, "", ""]).encode() + data)
                if head["Content-Length"] != len(data):
                    self.close_connection = True

            def log_message(self, *args):
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, request, client_address):
                if not isinstance(sys.exc_info()[1], ConnectionError):  # clients go as they like
                    super().handle_error(request, client_address)

        server = Server(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
            for connection in connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def hang(self, connection):
        """Answer nothing until the client closes the connection."""
        self.arrived.set()
        connection.settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            if connection.recv(1):
                return
        self.hung_up.set()

    def reply(self, path, body, authorization, connection):
        self.seen.append((path, body))
        if path in self.lacks:
            return 404, {}, b'{"detail": "Not Found"}'
        if self.api_key and authorization != f"Bearer {self.api_key}":
            return 401, {}, b'{"error": "Unauthorized"}'
        spoiled = self.before(path, body)
        if spoiled == "hang":
            self.hang(connection)
            return 200, {}, b""
        if spoiled:
            return spoiled
        if path in ("/v1/completions", "/tokenize") and body["model"] != "toy":
            return 404, {}, b'{"error": {"type": "NotFoundError", "message": "no such model"}}'
        answer = self.after(path, self.answer(path, body))
        return 200, {}, json.dumps(answer).encode()

    def answer(self, path, body):
        if path == "/v1/models":
            return {"object": "list", "data": self.entries}
        if path == "/props":
            return {"default_generation_settings": {"n_ctx": self.n_ctx}}
        if path == "/server_info":
            return {"max_req_input_len": self.n_ctx - 6}
        if path == "/tokenize":
            text = body["content" if self.kind == "llamacpp" else "prompt"]
            return {"tokens": self.tokenizer.encode(text)}
        if path == "/generate":
            return self.generate(body)
        return self.completions(body)

    def completions(self, body):
        prompts = body["prompt"]
        if isinstance(prompts, str):  # only to count its tokens
            n = len(self.tokenizer.encode(prompts))
            return {"choices": [{"index": 0, "text": "?"}], "usage": {"prompt_tokens": n}}
        prompts = prompts if isinstance(prompts[0], list) else [prompts]
        assert body["max_tokens"] == 1
        assert "seed" not in body or (self.kind == "llamacpp" and body["seed"] == -1)
        choices = [
            {"index": i, "text": "?", "finish_reason": "length", **self.choice(token, p, body)}
            for i, (p, token) in enumerate(zip(prompts, self.rows(prompts, body), strict=True))
        ]
        usage = {"prompt_tokens": sum(map(len, prompts))}
        return {"object": "text_completion", "choices": choices, "usage": usage}

    def choice(self, token, prompt, body):
        if self.kind == "llamacpp":
            assert body["samplers"] == ["temperature", "top_k", "top_p", "min_p"]
            return {"logprobs": {"content": [{"id": token, "logprob": -1.0}]}}
        assert body["return_tokens_as_token_ids"]
        found = {"logprobs": {"tokens": [f"token_id:{token}"], "token_logprobs": [-1.0]}}
        if body.get("prompt_logprobs"):
            rows = [self.ranked(prompt[:i], prompt[i]) for i in range(1, len(prompt))]
            found["prompt_logprobs"] = [None, *rows]
        return found

    def ranked(self, prefix, token):
        """Return a row of prompt_logprobs: the prompt's own token and the likeliest."""
        row = self.logits(prefix)
        order = (-row).argsort(kind="stable").tolist()
        return {
            str(t): {"logprob": max(-99.0, float(row[t])), "rank": order.index(t) + 1}
            for t in {token, order[0]}
        }

    def generate(self, body):
        prompts, params = body["input_ids"], body["sampling_params"]
        assert params["max_new_tokens"] == 1
        assert params["ignore_eos"]
        assert "sampling_seed" not in params
        batch = isinstance(prompts[0], list)
        prompts = prompts if batch else [prompts]
        answers = []
        for prompt, token in zip(prompts, self.rows(prompts, params), strict=True):
            meta = {"prompt_tokens": len(prompt), "id": "x"}
            if body.get("return_logprob"):
                starts = range(body["logprob_start_len"] + 1, len(prompt))
                assert body["top_logprobs_num"] == 1
                top = [logprob(self.logits(prompt[:i]), 0, 1).top[0] for i in starts]
                meta["input_top_logprobs"] = [None, *([[lp, t, None]] for t, lp in top)]
            answers.append({"text": "?", "output_ids": [token], "meta_info": meta})
        return answers if batch else answers[0]

    def logits(self, tokens):
        with np.errstate(divide="ignore"):
            return np.log(toy_probs(tokens))

    def rows(self, prompts, body):
        """Return a token after each prompt, drawn as the fields of the request say."""
        fields = {name: body.get(name, default) for name, default in DEFAULTS.items()}
        fields["top_k"] = max(0, fields["top_k"])  # -1 is off, too
        if self.kind == "llamacpp":  # no penalties in `samplers`
            fields |= {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
        if self.kind == "generic":  # these it has not
            fields |= {"top_k": 0, "min_p": 0, "repetition_penalty": 1}
        bias = {int(token): value for token, value in body.get("logit_bias", {}).items()}
        params = SamplingParams(**fields, logit_bias=bias)
        found = []
        for prompt in prompts:
            sampler = Sampler(params, prompt, VOCAB)
            sampler.accept(prompt)
            law = sampler.distribution(self.logits(prompt))
            if params.temperature == 0:
                found.append(int(law.ids[0]))
            elif self.tied:
                found.append(self.randomness.gumbel(len(self.seen), law))
            else:
                found.append(self.randomness.draw(law))
        return found
