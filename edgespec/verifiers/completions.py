"""Targets reached through OpenAI's /v1/completions, on vLLM, llama-server and similar servers.

The server must take prompts as token ids. With a context S and a draft D, a round is a fan-out: one
request with the prompts S, S+D[:1], …, S+D, each continued by one token. With vLLM a greedy round
may be the single prompt S+D instead, whose log-probabilities tell the argmax at every position.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..backends.base import Tokenizer
from ..config import RemoteConfig, SamplingParams
from ..errors import VerifierFault, VerifierRefused
from .compatibility import (
    SHORT,
    as_dict,
    check_tokenizer,
    check_vocab_size,
    choose_model,
    prompt_tokens,
    smallest_context,
)
from .http import Http, checked
from .inference_server import InferenceServerVerifier, split_url

logger = logging.getLogger("edgespec.verifiers")

_PATH = "/v1/completions"
_BLOCK = 16  # tokens that each prompt of a fan-out evaluates again: vLLM caches full blocks only
_DECIMAL = re.compile("[0-9]{1,9}").fullmatch
_HIGH_TEMPERATURE = 2.0
_N_EQUAL = 8


@dataclass(frozen=True, slots=True)
class Dialect:
    """The fields that a kind of server understands, and what it can do.

    fields: the fields sent with every request in addition to OpenAI's own, so that no default of
    the server or the model applies. off: the values that switch top_k and min_p off, for servers
    that have them. min_temperature: the server replaces temperatures between 0 and this one. bias:
    the server supports logit_bias. independent: the server is known to continue the prompts of one
    request independently.
    """

    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    off: Mapping[str, Any] = field(default_factory=dict)
    min_temperature: float = 0.0
    bias: bool = False
    independent: bool = False


DIALECTS = {
    "vllm": Dialect(
        "vLLM",
        {
            "logprobs": 0, "return_tokens_as_token_ids": True, "ignore_eos": True,
            "repetition_penalty": 1.0, "watermarking": False,
        },
        {"top_k": -1, "min_p": 0.0},
        min_temperature=0.01,
        bias=True,
        independent=True,
    ),
    # ignore_eos would forbid end tokens. Seed -1 gives every prompt a fresh seed, whatever the
    # server was started with. Samplers that are not in `samplers` are off; temperature goes first
    "llamacpp": Dialect(
        "llama-server",
        {
            "logprobs": 1, "seed": -1, "samplers": ["temperature", "top_k", "top_p", "min_p"],
            "dynatemp_range": 0.0, "mirostat": 0,
        },
        {"top_k": 0, "min_p": 0.0},
        bias=True,
        independent=True,
    ),
    "edgespec": Dialect(
        "edgespec",
        {
            "logprobs": 0, "return_tokens_as_token_ids": True, "ignore_eos": True,
            "repetition_penalty": 1.0, "disable_spec_decode": True,
        },
        {"top_k": 0, "min_p": 0.0},
        bias=True,
    ),
    "tensorrt_llm": Dialect(
        "TensorRT-LLM",
        {"detokenize": False, "ignore_eos": True, "repetition_penalty": 1.0},
        {"top_k": 0, "min_p": 0.0},
    ),
}  # fmt: skip
GENERIC = Dialect("the server", {"logprobs": 1, "return_tokens_as_token_ids": True})

Greedy = Literal["auto", "fan-out", "prompt_logprobs"]


class CompletionsVerifier(InferenceServerVerifier):
    """Lets a server with /v1/completions check drafts.

    remote.url: vllm+http:// for vLLM; openai+http:// for any server, which then tells its kind.
    greedy: how greedy drafts are checked. With "prompt_logprobs" vLLM evaluates the complete text
    again, with "fan-out" every prompt from its last cached block on. "auto" takes the way that
    evaluates fewer tokens.
    """

    def __init__(
        self,
        remote: RemoteConfig,
        tokenizer: Tokenizer,
        *,
        greedy: Greedy = "auto",
        max_draft: int = 15,
        http: Http | None = None,
    ) -> None:
        self._greedy: Greedy = greedy
        super().__init__(remote, tokenizer, max_draft=max_draft, http=http)

    def _connect(self, remote: RemoteConfig) -> None:
        http, tokenizer = self._http, self._tokenizer
        entry = choose_model(http, remote.model)
        self.served = entry["id"]
        kind = "vllm" if split_url(remote.url)[0] == "vllm" else str(entry.get("owned_by"))
        self._dialect = DIALECTS.get(kind, GENERIC)
        self.name = self._dialect.name
        meta = as_dict(entry.get("meta"))
        if "n_vocab" in meta and "n_ctx" not in meta:  # an older llama-server
            props = as_dict(http.get("/props", optional=True))
            meta = meta | as_dict(props.get("default_generation_settings"))
        sizes = remote.n_ctx, entry.get("max_model_len"), meta.get("n_ctx")
        self.n_ctx = smallest_context(http, *sizes) - 1
        check_vocab_size(http, tokenizer, meta.get("n_vocab"))
        check_tokenizer(http, tokenizer, self.served)
        self._probe()

    def _probe(self) -> None:
        """Try out on a short text everything that rounds will need."""
        text = self._tokenizer.encode(SHORT, add_special=False)
        try:
            answer = self._ask([text])
            self._rows(answer, 1)
            counted = prompt_tokens(answer)
            if counted not in (None, len(text)):
                raise VerifierFault(f"{len(text)} ids were sent and {counted} tokens counted")
            self._rows(self._ask([text[:-1], text]), 2)
        except (VerifierFault, VerifierRefused) as error:
            raise VerifierRefused(
                f"{self.name} at {self._http.host} cannot verify drafts: it must take lists of "
                f"token ids in {_PATH}, answer each with one choice and give token ids back, "
                f"but: {error}"
            ) from error
        self._independent = self._dialect.independent or self._draws_differ(text)
        if self._dialect.name != "vLLM":
            self._greedy = "fan-out"
        if self._greedy != "fan-out":
            try:
                self._argmaxes(text[:1], text[1:])
            except (VerifierFault, VerifierRefused) as error:
                if self._greedy == "prompt_logprobs":
                    raise
                logger.info("prompt log-probabilities cannot be had: %s", error)
                self._greedy = "fan-out"

    def _draws_differ(self, text: list[int]) -> bool:
        """Return True if equal prompts of one request get different tokens at a high temperature.

        If the server gave all prompts the same seed, tokens would not have the target's
        distribution.
        """
        self._params = SamplingParams(temperature=_HIGH_TEMPERATURE)
        rows = self._rows(self._ask([text] * _N_EQUAL), _N_EQUAL)
        self._params = SamplingParams()
        return len(set(rows)) > 1

    def _check_sampling(self, params: SamplingParams) -> None:
        dialect = self._dialect
        self._check_common(params, dialect.min_temperature)
        if params.logit_bias and not dialect.bias:
            self._refuse("logit_bias", "leave it out, or decode locally")
        self._check_bias(params)
        if params.temperature == 0:
            return
        if not self._independent:
            self._refuse(
                "temperature above 0: it drew one token in all rows, as with one seed for all",
                "start it without a fixed seed, or use temperature 0",
            )
        if (params.top_k or params.min_p) and not dialect.off:
            self._refuse("top_k and min_p: it is not known to have them", "use top_p alone")

    def _own_tokens(self, draft: Sequence[int]) -> list[int]:
        context = self._context
        rows = len(draft) + 1
        if self._greedy != "fan-out" and self._params.temperature == 0 and draft:
            fewer = len(context) + len(draft) <= _BLOCK * rows
            if not self._params.logit_bias and (fewer or self._greedy == "prompt_logprobs"):
                return self._argmaxes(context, draft)
        prompts = [[*context, *draft[:i]] for i in range(rows)]
        return self._rows(self._ask(prompts), rows)

    def _argmaxes(self, context: Sequence[int], draft: Sequence[int]) -> list[int]:
        """Return the argmax at every drafted position and the token after the draft.

        They come from one prompt with log-probabilities.
        """
        host = self._http.host
        answer = self._ask([[*context, *draft]], prompt_logprobs=1)
        last = self._rows(answer, 1)
        rows = checked(host, answer["choices"][0].get("prompt_logprobs"), list, "prompt_logprobs")[
            len(context) :
        ]
        if len(rows) != len(draft):
            raise VerifierFault(
                f"{host} sent {len(rows)} rows of prompt_logprobs for {len(draft)} drafted tokens"
            )
        return [self._best(row, token) for row, token in zip(rows, draft, strict=True)] + last

    def _best(self, row: Any, token: int) -> int:
        """Return the id of rank 1 in a row; the row must also list `token`, as vLLM's rows do."""
        row = checked(self._http.host, row, dict, "a row of prompt_logprobs")
        first = [
            id for id, entry in row.items() if isinstance(entry, dict) and entry.get("rank") == 1
        ]
        if str(token) not in row or len(first) != 1 or not _DECIMAL(first[0]):
            raise VerifierFault(
                f"{self._http.host} sent a row of prompt_logprobs without the token of the prompt "
                "or without one token of rank 1"
            )
        return self._token(int(first[0]))

    def _ask(self, prompts: list[list[int]], **more: Any) -> Any:
        body = {
            "model": self.served, "prompt": prompts, "max_tokens": 1, "n": 1, "stream": False,
            **self._sampling(), **self._dialect.fields, **more,
        }  # fmt: skip
        return self._http.post(_PATH, body, self._abort)

    def _sampling(self) -> dict[str, Any]:
        """Return all sampling fields that the server has, so that none is left to its default."""
        params, off = self._params, self._dialect.off
        sampled = params.temperature > 0
        fields: dict[str, Any] = {
            "temperature": float(params.temperature),
            "top_p": float(params.top_p) if sampled else 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
        }
        for name in off:
            fields[name] = (getattr(params, name) if sampled else 0) or off[name]
        if params.logit_bias:
            fields["logit_bias"] = self._check_bias(params)
        return fields

    def _rows(self, answer: Any, n: int) -> list[int]:
        """Return the token of each of n prompts, in their order, whatever order the choices have.

        Raises VerifierFault if there is not exactly one choice for each prompt.
        """
        host = self._http.host
        answer = checked(host, answer, dict, "an answer with choices")
        choices = checked(host, answer.get("choices"), list, "a list of choices")
        rows: dict[int, int] = {}
        for choice in choices:
            index = checked(host, choice, dict, "a choice").get("index")
            rows[checked(host, index, int, "the index of a choice")] = self._token(_id(choice))
        if len(choices) != n or rows.keys() != set(range(n)):
            raise VerifierFault(
                f"{host} sent choices {sorted(rows)} for {n} prompts; expected one for each"
            )
        return [rows[i] for i in range(n)]


def _id(choice: Mapping[str, Any]) -> Any:
    """Return the token id in a choice of one token, None if it has none.

    Servers put it into `token_ids` (TensorRT-LLM), into tokens such as "token_id:79" (vLLM), or
    into `content` with ids (llama-server).
    """
    ids = choice.get("token_ids")
    if isinstance(ids, list) and len(ids) == 1:
        return ids[0]
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, dict):
        return None
    tokens, content = logprobs.get("tokens"), logprobs.get("content")
    if isinstance(tokens, list) and len(tokens) == 1:
        named = re.fullmatch(r"token(?:_id)?:([0-9]{1,9})", str(tokens[0]))
        return int(named[1]) if named else None
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        return content[0].get("id")
    return None
