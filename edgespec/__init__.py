"""Quantised language models on your own device, faster by lossless speculative decoding.

import edgespec

with edgespec.load("smollm2-135m") as engine:
    print(engine.generate("The capital of France is", max_tokens=16).text)
"""

from . import drafters, hub
from .backends.toy import ToyModel, ToyTokenizer
from .config import EngineConfig, RemoteConfig, SamplingParams, SpeculativeConfig
from .convert.conversion import Conversion, ConversionOptions, convert
from .decoding.chat import Chat
from .decoding.engine import Engine
from .errors import (
    Aborted,
    CannotTruncate,
    ConfigError,
    ContextFull,
    ConversionError,
    DecodeError,
    DownloadError,
    EdgeSpecError,
    EngineBusy,
    EngineMissing,
    ModelError,
    ModelNotFound,
    NotAGGUF,
    OutOfMemory,
    TemplateError,
    TruncatedModel,
    UnknownArchitecture,
    VerifierError,
    VerifierFault,
    VerifierRefused,
    VerifierUnavailable,
    VocabularyMismatch,
)
from .loading.assembly import assemble
from .loading.connect import connect
from .loading.load import load
from .measure.doctor import diagnose, diagnose_verifier
from .measure.findings import Finding
from .measure.formats import Format
from .measure.inspection import DraftFit, ModelInfo, fitting_drafts, inspect
from .measure.results import Candidate, Choice, Tuning
from .measure.tuning import tune
from .types import Completion, Event, Logprob, Stats

__version__ = "0.1.0"

__all__ = [
    "Aborted",
    "Candidate",
    "CannotTruncate",
    "Chat",
    "Choice",
    "Completion",
    "ConfigError",
    "ContextFull",
    "Conversion",
    "ConversionError",
    "ConversionOptions",
    "DecodeError",
    "DownloadError",
    "DraftFit",
    "EdgeSpecError",
    "Engine",
    "EngineBusy",
    "EngineConfig",
    "EngineMissing",
    "Event",
    "Finding",
    "Format",
    "Logprob",
    "ModelError",
    "ModelInfo",
    "ModelNotFound",
    "NotAGGUF",
    "OutOfMemory",
    "RemoteConfig",
    "SamplingParams",
    "SpeculativeConfig",
    "Stats",
    "TemplateError",
    "ToyModel",
    "ToyTokenizer",
    "TruncatedModel",
    "Tuning",
    "UnknownArchitecture",
    "VerifierError",
    "VerifierFault",
    "VerifierRefused",
    "VerifierUnavailable",
    "VocabularyMismatch",
    "__version__",
    "assemble",
    "connect",
    "convert",
    "diagnose",
    "diagnose_verifier",
    "drafters",
    "fitting_drafts",
    "hub",
    "inspect",
    "load",
    "tune",
]
