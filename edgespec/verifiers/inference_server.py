"""The base class of verifiers that ask inference servers other than edgespec's.

Every round asks for the server's own token after the context and after each prefix of the draft.
Drafted tokens are accepted as long as they equal the server's (`acceptance.match`). That is exact
for every draft, drawn or not. The first emitted token is the server's draw, which has the target's
distribution because it does not depend on the draft. Whether a second token is emitted depends on
the draft, but the second token's distribution, given the first, is again the target's. If the round
emits no second token, the next round draws it.

The draws must be independent of the draft and of each other, so the prompts of a round never share
a seed. With draft probabilities q and target probabilities p, a drafted token is accepted with the
probability Σ q(x) p(x). Rejection sampling accepts more, but would need the target's logits.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from ..backends.base import Tokenizer
from ..config import RemoteConfig, SamplingParams
from ..errors import ConfigError, ContextFull, VerifierFault, VerifierRefused
from ..sampling.acceptance import match
from ..sampling.base import Request
from ..sampling.defaults import SETTINGS
from ..setting import settings_of
from ..types import Abort, Draft, Requires, Verdict
from .http import Http, checked

_MOST_BIAS = 100.0
_SENT = ("temperature", "top_k", "top_p", "min_p")  # settings that all of these servers take


def split_url(url: str) -> tuple[str, str]:
    """Return the kind of server that a URL names, and its address without /v1 at the end.

    Raises ConfigError for a URL that is not one of a verifier.
    """
    kind, _, address = url.partition("+")
    try:
        parts = urlsplit(address)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if kind not in ("sglang", "vllm", "openai") or not good:
        raise ConfigError(
            f"{_without_credentials(url)!r} names no verifier; give sglang+http://host:port, "
            "vllm+http://host:port or openai+http://host:port, or https instead of http"
        )
    if parts.username is not None or parts.query or parts.fragment:
        raise ConfigError(
            "a verifier's URL has no user, password, query or fragment; give a key as api_key"
        )
    path = parts.path.rstrip("/").removesuffix("/v1")
    return kind, f"{parts.scheme}://{parts.netloc}{path}"


def _without_credentials(url: str) -> str:
    before, at, after = url.rpartition("@")
    return f"…@{after}" if at else before + after


class InferenceServerVerifier(ABC):
    """Asks an inference server for its own tokens and compares drafts with them.

    It stores the token ids of the context; the server has only what its prefix cache holds. name:
    the name of the kind of server. served: the name of its model. n_ctx: the length of the longest
    prompt that it continues by one token. max_draft: most tokens of a draft; a round has one prompt
    more. http: the client to use, in place of a new one for `remote`; it is closed with the
    verifier.

    Raises ConfigError, VocabularyMismatch and the subclasses of VerifierError if the server cannot
    be used.
    """

    name: str
    served: str
    n_ctx: int

    def __init__(
        self,
        remote: RemoteConfig,
        tokenizer: Tokenizer,
        *,
        max_draft: int = 15,
        http: Http | None = None,
    ) -> None:
        self.max_draft = max_draft
        self.max_leaves = 1
        self._tokenizer = tokenizer
        self._params = SamplingParams()
        self._abort: Abort | None = None
        self._http = http or Http(
            split_url(remote.url)[1], remote.api_key, timeout_s=remote.timeout_s
        )
        try:
            self._connect(remote)
        except BaseException:
            self.close()
            raise

    def n_reusable(self, owner: str, prompt: Sequence[int]) -> int:
        """Return 0: what the server has cached is not known here."""
        return 0

    def require(self, requires: Requires) -> None:
        """Do nothing: hidden states are not sent over the network."""
        return

    def begin(self, request: Request) -> Iterator[int]:
        """Check that the server can serve a request; nothing is sent before the first `verify`.

        Raises ValueError for an empty prompt, ContextFull and VerifierRefused.
        """
        if not request.prompt:
            raise ValueError("the prompt is empty: the target needs at least one token")
        if len(request.prompt) > self.n_ctx:
            raise ContextFull(
                f"the prompt has {len(request.prompt)} tokens, {self.name} at {self._http.host} "
                f"takes {self.n_ctx}; shorten the prompt or start the server with more context"
            )
        if request.constraint and request.constraint.description:
            kind = next(iter(request.constraint.description))
            asked = "tools and reasoning" if kind == "answer" else kind
            self._refuse(
                f"{asked}: each step is a request of its own to it, in which an answer's form "
                "would begin anew",
                "load the model here, or serve it with `edgespec serve`",
            )
        self._check_sampling(request.params)
        self._params, self._abort = request.params, request.abort
        self._context = list(request.prompt)
        self._n_read = 0
        return iter((0,))

    def verify(self, draft: Draft) -> Verdict:
        """Do one round. `draft.probs` is not used; the module's docstring says why.

        Raises ContextFull, Aborted and the subclasses of VerifierError.
        """
        n_tokens = len(self._context) + len(draft.tokens)
        if n_tokens > self.n_ctx:
            raise ContextFull(
                f"{n_tokens} tokens, but {self.name} at {self._http.host} takes {self.n_ctx}"
            )
        began = time.perf_counter()
        own = self._own_tokens(draft.tokens)
        seconds = time.perf_counter() - began
        n_accepted, token = match(draft.tokens, own.__getitem__)
        return Verdict(
            (*draft.tokens[:n_accepted], token), n_accepted,
            n_evaluated=n_tokens - self._n_read, seconds=seconds,
        )  # fmt: skip

    def accept(self, tokens: Sequence[int]) -> None:
        """Append the emitted tokens to the context; the server has read all but the last one."""
        self._context.extend(tokens)
        self._n_read = len(self._context) - 1

    def close(self) -> None:
        """Close the connection. Closing twice is harmless."""
        self._http.close()

    @abstractmethod
    def _connect(self, remote: RemoteConfig) -> None:
        """Check what the server can do, and set `n_ctx`, `served` and, if it varies, `name`."""

    @abstractmethod
    def _own_tokens(self, draft: Sequence[int]) -> list[int]:
        """Return the server's token after the context and after each prefix of the draft."""

    @abstractmethod
    def _check_sampling(self, params: SamplingParams) -> None:
        """Raise VerifierRefused for settings that the server cannot follow exactly."""

    def _refuse(self, what: str, remedy: str) -> None:
        raise VerifierRefused(f"{self.name} at {self._http.host} cannot serve {what}; {remedy}")

    def _check_common(self, params: SamplingParams, min_temperature: float) -> None:
        """Refuse settings that no server can follow exactly when asked for one token at a time.

        min_temperature: the server replaces temperatures between 0 and this one.
        """
        settings = settings_of(SamplingParams)
        unsent = [n for n in SETTINGS if n not in _SENT and settings[n].is_on(params)]
        if unsent:  # such as penalties: to the server the emitted tokens are part of the prompt
            self._refuse(
                f"{unsent[0]} exactly, so it is not sent there",
                f"leave {unsent[0]} out, decode locally, or use `edgespec serve`",
            )
        if params.logprobs is not None:
            self._refuse("logprobs", "leave them out, or decode locally")
        if params.temperature == 0:
            return
        if params.seed is not None:
            self._refuse(
                "a seed: tokens drawn with one seed in several rows depend on each other",
                "leave the seed out, or use an edgespec server, which honours it",
            )
        if params.temperature < min_temperature:
            self._refuse(
                f"temperature {params.temperature:g}: it uses another one below "
                f"{min_temperature:g}",
                f"take 0 or at least {min_temperature:g}",
            )

    def _check_bias(self, params: SamplingParams) -> dict[str, float]:
        """Return logit_bias as servers take it, with decimal ids as keys.

        Raises VerifierRefused for values outside -100 to 100.
        """
        wrong = next((b for b in params.logit_bias.values() if not abs(b) <= _MOST_BIAS), None)
        if wrong is not None:
            self._refuse(f"logit_bias {wrong:g}", "give values from -100 to 100")
        return {str(token): float(bias) for token, bias in params.logit_bias.items()}

    def _token(self, value: Any) -> int:
        """Return a token id from the server. Raises VerifierFault if the vocabulary lacks it."""
        token = checked(self._http.host, value, int, "a token id")
        if not 0 <= token < self._tokenizer.vocab_size:
            raise VerifierFault(
                f"{self._http.host} sent token {token}; ids of this vocabulary are 0 … "
                f"{self._tokenizer.vocab_size - 1}"
            )
        return token
