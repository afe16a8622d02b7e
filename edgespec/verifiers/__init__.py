"""Verifiers: they let a target check drafts, in this process or on another machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..config import RemoteConfig
from ..errors import ConfigError

if TYPE_CHECKING:
    from ..backends.base import Tokenizer
    from .base import Verifier

    Factory = Callable[[RemoteConfig, Tokenizer], Verifier]


def _edgespec() -> Factory:
    from .remote import RemoteVerifier

    return RemoteVerifier


def _completions() -> Factory:
    from .completions import CompletionsVerifier

    return CompletionsVerifier


def _sglang() -> Factory:
    from .sglang import SGLangVerifier

    return SGLangVerifier


REMOTE: dict[str, Callable[[], Factory]] = {  # by URL scheme
    "ws": _edgespec,
    "wss": _edgespec,
    "vllm+http": _completions,
    "vllm+https": _completions,
    "openai+http": _completions,
    "openai+https": _completions,
    "sglang+http": _sglang,
    "sglang+https": _sglang,
}


def connect(remote: RemoteConfig, tokenizer: Tokenizer) -> Verifier:
    """Connect to the server at `remote.url` and return the verifier for the URL's scheme.

    tokenizer: the device's tokenizer; the server must have the same token ids.
    Raises ConfigError, EngineMissing, VocabularyMismatch and the subclasses of VerifierError.
    """
    scheme, _, address = remote.url.partition("://")
    if scheme not in REMOTE:
        raise ConfigError(
            f"{scheme + '://' + address.rpartition('@')[2]!r} is no address of a verifier; give "
            "ws://host:port or wss://host:port of `edgespec serve`, or vllm+http://host:port, "
            "openai+http://host:port or sglang+http://host:port of other servers, or https"
        )
    return REMOTE[scheme]()(remote, tokenizer)
