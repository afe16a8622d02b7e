"""The verification protocol: the bytes that a device and a verification server exchange."""

from .context import Context
from .encoding import ERROR, decode, encode, expect, options_of
from .fields import MAX_TEXT, Reader
from .frames import (
    CLOSING,
    CONSTRAINT,
    CONTEXT_FULL,
    INTERNAL,
    LIMIT,
    MODEL,
    NO_TOKEN,
    PROTOCOL,
    SUBPROTOCOL,
    UNSUPPORTED,
    VERSION,
    VOCABULARY,
    Answer,
    Begin,
    Busy,
    Cancel,
    Error,
    Frame,
    More,
    Need,
    Open,
    Opened,
    Options,
    Progress,
    Verify,
)
from .vocabulary import vocabulary, vocabulary_hash

__all__ = [
    "CLOSING", "CONSTRAINT", "CONTEXT_FULL", "ERROR", "INTERNAL", "LIMIT", "MAX_TEXT", "MODEL",
    "NO_TOKEN", "PROTOCOL", "SUBPROTOCOL", "UNSUPPORTED", "VERSION", "VOCABULARY",
    "Answer", "Begin", "Busy", "Cancel", "Context", "Error", "Frame", "More", "Need", "Open",
    "Opened", "Options", "Progress", "Reader", "Verify", "decode", "encode", "expect",
    "options_of", "vocabulary", "vocabulary_hash",
]  # fmt: skip
