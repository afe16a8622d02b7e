"""SGLang as a target, through its own /generate.

A greedy round is one prompt: the answer's log-probabilities name the likeliest token at each
drafted position, and the server reuses its prefix cache. Any other round is a batch of prompts,
each continued by one token, as in `completions`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..config import RemoteConfig, SamplingParams
from ..errors import VerifierFault, VerifierRefused
from .compatibility import SHORT, as_dict, check_tokenizer, choose_model, smallest_context
from .http import checked
from .inference_server import InferenceServerVerifier

_PATH = "/generate"
_RESERVED = 7  # tokens of the context kept free if the server does not tell its longest prompt
_MIN_TEMPERATURE = 1e-6


class SGLangVerifier(InferenceServerVerifier):
    """Lets an SGLang server check drafts."""

    name = "SGLang"

    def _connect(self, remote: RemoteConfig) -> None:
        entry = choose_model(self._http, remote.model)
        if entry.get("parent"):
            self._refuse(f"the adapter {entry['id']}", "name the model itself")
        size = smallest_context(self._http, remote.n_ctx, entry.get("max_model_len"))
        self.n_ctx = min(size - 1, self._longest_prompt(size))
        self.served = entry["id"]
        check_tokenizer(self._http, self._tokenizer, self.served)
        self._probe()

    def _longest_prompt(self, size: int) -> int:
        info = as_dict(self._http.get("/server_info", optional=True))
        longest = info.get("max_req_input_len")
        return longest - 1 if isinstance(longest, int) else size - _RESERVED

    def _probe(self) -> None:
        text = self._tokenizer.encode(SHORT, add_special=False)
        try:
            self._argmaxes(text[:1], text[1:])
            self._drawn([text[:-1], text])
        except (VerifierFault, VerifierRefused) as error:
            raise VerifierRefused(
                f"{self._http.host} cannot verify drafts as SGLang does: {error}"
            ) from error

    def _check_sampling(self, params: SamplingParams) -> None:
        self._check_common(params, _MIN_TEMPERATURE)
        self._check_bias(params)

    def _own_tokens(self, draft: Sequence[int]) -> list[int]:
        if draft and self._params.temperature == 0 and not self._params.logit_bias:
            return self._argmaxes(self._context, draft)
        return self._drawn([[*self._context, *draft[:i]] for i in range(len(draft) + 1)])

    def _argmaxes(self, context: Sequence[int], draft: Sequence[int]) -> list[int]:
        """Return the argmax at every drafted position and the token after the draft."""
        prompt = [*context, *draft]
        answer = self._ask(
            prompt, return_logprob=True, logprob_start_len=len(context) - 1, top_logprobs_num=1
        )
        last = self._one(answer, len(prompt))
        # the first row is always null, so the rows are asked for from one token earlier
        rows = checked(
            self._http.host, answer["meta_info"].get("input_top_logprobs"), list,
            "input_top_logprobs",
        )[1:]  # fmt: skip
        if len(rows) != len(draft):
            raise VerifierFault(
                f"{self._http.host} sent {len(rows)} rows of input_top_logprobs for {len(draft)} "
                "drafted tokens"
            )
        return [*map(self._best, rows), last]

    def _best(self, row: Any) -> int:
        """Return the token id in the only entry of a row, [logprob, id, text]."""
        row = checked(self._http.host, row, list, "a row of input_top_logprobs")
        entry = row[0] if len(row) == 1 and isinstance(row[0], list) else []
        logprob = entry[0] if len(entry) >= 2 else None
        if not isinstance(logprob, (int, float)) or not -math.inf < logprob < 1e-3:
            raise VerifierFault(
                f"{self._http.host} sent a row of input_top_logprobs without one entry "
                "[logprob, id, text]"
            )
        return self._token(entry[1])

    def _drawn(self, prompts: list[list[int]]) -> list[int]:
        answers = checked(self._http.host, self._ask(prompts), list, "a list of answers")
        if len(answers) != len(prompts):
            raise VerifierFault(
                f"{self._http.host} sent {len(answers)} answers for {len(prompts)} prompts"
            )
        return [self._one(a, len(p)) for a, p in zip(answers, prompts, strict=True)]

    def _one(self, answer: Any, n_prompt: int) -> int:
        """Return the token that the server added to a prompt of `n_prompt` tokens.

        Raises VerifierFault if the server says that it has read fewer or more tokens.
        """
        host = self._http.host
        answer = checked(host, answer, dict, "an answer")
        meta = checked(host, answer.get("meta_info"), dict, "meta_info")
        if meta.get("prompt_tokens", n_prompt) != n_prompt:
            raise VerifierFault(
                f"{host} read {meta['prompt_tokens']} tokens of a prompt of {n_prompt}"
            )
        ids = checked(host, answer.get("output_ids"), list, "output_ids")
        if len(ids) != 1:
            raise VerifierFault(f"{host} sent {len(ids)} output_ids where one was asked for")
        return self._token(ids[0])

    def _ask(self, ids: list[Any], **more: Any) -> Any:
        body = {"input_ids": ids, "sampling_params": self._sampling(), **more}
        return self._http.post(_PATH, body, self._abort)

    def _sampling(self) -> dict[str, Any]:
        params = self._params
        sampled = params.temperature > 0
        fields: dict[str, Any] = {
            "max_new_tokens": 1,
            "ignore_eos": True,
            "temperature": float(params.temperature),
            "top_p": float(params.top_p) if sampled else 1.0,
            "top_k": (params.top_k if sampled else 0) or -1,
            "min_p": float(params.min_p) if sampled else 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
        }
        if params.logit_bias:
            fields["logit_bias"] = self._check_bias(params)
        return fields
